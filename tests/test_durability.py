"""What a crash leaves: with durability "step" all that returned; rows coded one by one are never rounded twice."""

import os
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.codecs.rows import GroupedRows
from kvcodec.errors import SpecError
from kvcodec.layout import DtypeId, StreamId
from kvcodec.spec import CodecSpec
from tests.caches import GEOMETRIES, TINY, bits, rows, same, tiny_model
from tests.children import Child

SHARDS, LOGS = 5, 4
RAW = {"k": "raw", "v": "raw"}


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_loaded_before_a_fork():
    kv.encode_array(rows(0, "k", 1), "int4/token/g16")


def step(store, t, layers=2, **options):
    k, v = ([rows(layer, s, [t], **options)[0] for layer in range(layers)] for s in "kv")
    store.sequence("a").append_step(k, v)


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_steps_that_returned_survive_a_crash(tmp_path, geometry):
    path = tmp_path / "c"
    store = kv.open(path, "w", model=tiny_model(), residual=5, device=geometry, durability="step", **RAW)
    for t in range(100):
        step(store, t)
        if t % 30 == 29:
            store.abandon()
            store = kv.open(path, "a", durability="step")
            assert len(store.sequence("a")) == t + 1
    store.abandon()
    (tmp_path / "c.idx").unlink(missing_ok=True)
    with kv.open(path) as reader:
        for layer in range(2):
            for stream, got in zip("kv", reader.sequence("a").read(layer), strict=True):
                assert same(got, rows(layer, stream, 100))


def test_without_steps_a_crash_loses_what_was_not_synced(tmp_path):
    store = kv.open(tmp_path / "c", "w", model=tiny_model(), residual=50, device=TINY, **RAW)
    step(store, 0)
    store.sync()
    step(store, 1)
    store.abandon()
    with kv.open(tmp_path / "c") as reader:
        assert len(reader.sequence("a")) == 1


def steps_for_ever(path, write):
    with kv.open(path, "a", durability="step") as store:
        n = len(store.sequence("a"))
        while True:
            step(store, n)
            n += 1
            os.write(write, struct.pack("<q", n))


@pytest.mark.no_cover
@pytest.mark.parametrize("shard", range(SHARDS))
def test_some_kills_lose_no_step_that_returned(tmp_path, shard):
    kill_writers(tmp_path, shard, 200)


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(SHARDS))
def test_1000_kills_lose_no_step_that_returned(tmp_path, shard):
    kill_writers(tmp_path, shard + 100, 1000)


def kill_writers(tmp_path, shard, kills):
    random = np.random.default_rng(shard)
    geometry = list(GEOMETRIES.values())[shard % len(GEOMETRIES)]
    for log in range(LOGS):
        path = tmp_path / f"{log}.kvlog"
        kv.open(path, "w", model=tiny_model(), residual=3, device=geometry, **RAW).close()
        returned = 0
        for _ in range(kills // SHARDS // LOGS):
            with Child(steps_for_ever, path) as child:
                told = child.read(8)
                time.sleep(random.exponential(0.005))
                assert child.kill() == -signal.SIGKILL
                told += child.rest()
            returned = max(returned, *struct.unpack(f"<{len(told) // 8}q", told))
            with kv.open(path) as store:
                sequence = store.sequence("a")
                assert len(sequence) >= returned
                for layer in range(2):
                    for stream, got in zip("kv", sequence.read(layer), strict=True):
                        assert same(got, rows(layer, stream, len(got)))


@pytest.mark.parametrize("geometry", ["tlc", "slc", "mlc", "qlc", "nor"])
@pytest.mark.parametrize("streams", ["v", "kv"])
def test_the_price_of_a_step_is_the_padding_of_its_unit(tmp_path, geometry, streams):
    """flash.md: a sync after p bytes programs ceil(p / unit) units; here p is one step of codes with its headers."""
    device = kv.Geometry.parse(geometry)
    model = kv.Model.uniform(4, 2, 128)
    spec = {"k": "int4/token/g64", "v": "int4/token/g64"}
    # a K that is not coded row by row would be raw; both streams are here, of one codec, or V alone is counted
    residual = {"k": 0, "v": 0} if streams == "kv" else {"k": 1 << 20, "v": 0}
    for durability in ("step", "sync"):
        path = tmp_path / durability
        with kv.open(
            path, "w", model=model, residual=residual, sinks=0, device=device, durability=durability, **spec
        ) as s:
            step(s, 0, layers=4, dim=128)  # with the SEQUENCE record
            s.sync()
            before, steps, framed = s.stats(), 40, []
            for t in range(1, steps + 1):
                step(s, t, layers=4, dim=128)
                if durability == "sync":
                    s.sync()
                framed.append(s.stats().framed_bytes)
            after = s.stats()
        headers = after.blocks_used - before.blocks_used
        frame = int(np.median(np.diff(framed)))  # all but those that begin a block
        payload = (after.host_bytes - before.host_bytes) // steps
        coded = 4 * 2 * 72
        assert payload == (2 * coded if streams == "kv" else coded + 4 * 2 * 256)
        assert frame - payload <= 3 * 64 + 64
        programmed = after.programmed_bytes - before.programmed_bytes
        units = -(-frame // device.unit_bytes)
        slack = headers * device.unit_bytes * (1 + units)  # a block header, and a frame that moved to the next block
        assert steps * units * device.unit_bytes <= programmed <= steps * units * device.unit_bytes + slack


def test_the_overhead_of_a_step_is_128_bytes(tmp_path):
    """32 layers x 8 heads x 2 streams of 18 B in the article's form would be 9216 B: here raw rows of the same size."""
    model = kv.Model((kv.Layer.kv(1, 72),) * 32)
    device = kv.Geometry.parse("tlc")
    with kv.open(tmp_path / "c", "w", model=model, device=device, durability="step", residual=9, sinks=0, **RAW) as s:
        step(s, 0, layers=32, heads=1, dim=72)  # with the SEQUENCE record
        before = s.stats()
        step(s, 1, layers=32, heads=1, dim=72)
        after = s.stats()
    payload = after.host_bytes - before.host_bytes
    assert payload == 9216
    assert after.framed_bytes - before.framed_bytes == 9216 + 128
    assert after.programmed_bytes - before.programmed_bytes == 16384


# -- rows coded one by one ------------------------------------------------------------------------------------------


def coded_once(spec, stream, layer, n, heads=2, dim=16):
    codec = GroupedRows(CodecSpec.parse(spec), StreamId[stream.upper()])
    own = codec.encode(bits(rows(layer, stream, n, heads=heads, dim=dim)), DtypeId.BFLOAT16)
    return codec.decode(own, dim, DtypeId.BFLOAT16)


@pytest.mark.no_cover
@pytest.mark.parametrize(("spec", "sinks"), [("int4/token/g16", 4), ("int4/token/g16/sym", 0)])
@pytest.mark.parametrize("durability", ["sync", "step"])
def test_rows_without_a_window_are_coded_once_whatever_happens(tmp_path, spec, durability, sinks):
    path, n = tmp_path / "c", 0
    options = {"k": spec, "v": spec, "residual": 0, "sinks": sinks, "device": TINY}
    kv.open(path, "w", model=tiny_model(), **options).close()
    for count in (1, 2, 3, 60, 5, 100, 64):
        with kv.open(path, "a", durability=durability) as store:
            for t in range(n, n + count):
                step(store, t)
            n += count
            check_coded_once(store, n, spec, sinks)
        with kv.open(path) as store:
            check_coded_once(store, n, spec, sinks)
            steps = [e for e in store.index.sequences[1].maps[0, StreamId.K] if e.coded.step is not None]
            assert sum(e.end - e.first for e in steps) == ((n - sinks) % 64 if n >= sinks else n)


def check_coded_once(store, n, spec, sinks):
    for layer in range(2):
        for stream, got in zip("kv", store.sequence("a").read(layer), strict=True):
            want = coded_once(spec, stream, layer, n)
            first = bits(rows(layer, stream, n))[:sinks]
            assert np.array_equal(bits(got)[:sinks], first)
            assert np.array_equal(bits(got)[sinks:], want[sinks:])


def test_steps_of_codes_are_small(tmp_path):
    model = kv.Model.uniform(32, 8, 128)
    spec = {"k": "int4/token/g64", "v": "int4/token/g64"}
    with kv.open(tmp_path / "c", "w", model=model, residual=0, sinks=0, durability="step", **spec) as store:
        before = store.stats().host_bytes
        step(store, 0, layers=32, heads=8, dim=128)
        assert store.stats().host_bytes - before == 32 * 8 * 2 * 72


def test_a_journal_of_codes_is_smaller_and_a_crash_leaves_its_rows(tmp_path):
    sizes = {}
    for journal in ("raw", "int4/token/g16"):
        path = tmp_path / journal.replace("/", "-")
        store = kv.open(
            path, "w", model=tiny_model(), residual=30, sinks=0, device="nor", durability="step", journal=journal
        )
        for t in range(20):
            step(store, t)
        assert same(store.sequence("a").read(0)[0], rows(0, "k", 20))  # in memory they are as they came
        sizes[journal] = store.stats().host_bytes
        store.abandon()
        with kv.open(path, "a") as store:
            got = bits(store.sequence("a").read(1)[1])
            want = bits(rows(1, "v", 20)) if journal == "raw" else coded_once(journal, "v", 1, 20)
            assert np.array_equal(got, want)
    assert sizes["int4/token/g16"] < 0.45 * sizes["raw"]


def test_options_that_make_no_sense_are_refused(tmp_path):
    for options, why in [
        ({"durability": "often"}, "durability"),
        ({"journal": "int4/token/g64"}, "needs durability"),
        ({"journal": "int4/channel/g64", "durability": "step"}, "one by one"),
        ({"threads": 0}, "threads"),
        ({"residual": "many"}, "residual"),
        ({"sinks": {"q": 1}}, "sinks"),
    ]:
        with pytest.raises(SpecError, match=why):
            kv.open(tmp_path / "c", "w", model=tiny_model(), **options)
    assert not (tmp_path / "c").exists()


def test_the_prices_that_the_rationale_names():
    """docs/format.md: one stream of a step, and both, synced alone on a tlc page."""
    text = (Path(__file__).parent.parent / "docs" / "format.md").read_text()
    unit, step = kv.Geometry.parse("tlc").unit_bytes, 32 * 8 * 18
    one, both = (-(-p // unit) * unit / p for p in (step, 2 * step))
    assert f"{step:,} bytes" in text
    assert f"costs {one:.2f} times its bytes, with K and V together {both:.2f} times" in text.replace("\n", " ")
