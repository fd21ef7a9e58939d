"""V predicted from the codes of its K in logs: rows and records, crashes, what is refused."""

import contextlib
import functools
import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.bulk import chunks
from kvcodec.bulk.encode import encode_dump
from kvcodec.bulk.verify import verify_log
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.rotation import Rotation
from kvcodec.dictionary.artefact import Artefact, read_artefact, write_artefact
from kvcodec.dumps import open_dump
from kvcodec.errors import DeviceError, SpecError
from kvcodec.flash.device import Device
from kvcodec.layout import Kind, StreamId
from tests.test_bulk import REAL
from tests.test_cli import invoke
from tests.test_prediction import predicted
from tests.test_product_codec import product, wide_set

K, V = StreamId.K, StreamId.V
LAYERS, DIM, TOKENS, SINKS = 2, 8, 510, 3
MODEL = kv.Model.uniform(LAYERS, 2, DIM)
SMALL = {"device": "page=512,unit=64,block=8192", "capacity": 1 << 20}


def make_set():
    """Both layers' V is predicted, from keys before their rotation and after it."""
    keys = [product(DIM, 6, 2 + n, ((n, K),), [Rotation.of_base(50.0, DIM), None][n], seed=n) for n in range(LAYERS)]
    return DictionarySet(products=(*keys, *(predicted(own, 3 + n, uses=((n, V),)) for n, own in enumerate(keys))))


OWN = make_set()
OPTIONS = {"k": "pq", "v": "pq", "model": MODEL, "dictionary": OWN, **SMALL}


def rows(layer, stream, tokens=TOKENS, seed=0):
    lot = np.random.default_rng(100 * seed + 10 * layer + stream)
    return lot.standard_normal((tokens, 2, DIM)).astype(ml_dtypes.bfloat16)


def fill(store, first, end):
    for layer in range(LAYERS):
        store.sequence("a").append(layer, rows(layer, K)[first:end], rows(layer, V)[first:end])


def read(path, **options):
    with kv.open(path, **options) as store:
        return read_all(store)


def read_all(store):
    return [own.view(np.uint16) for layer in range(LAYERS) for own in store.sequence("a").read(layer)]


@functools.cache
def coded(layer, first, own=OWN):
    """What arrays of K and V from token `first` on decode to."""
    k, v = (rows(layer, stream)[first:] for stream in (K, V))
    keys = kv.encode_array(k, "pq", dictionary=own.find_product(layer, K), first=first)
    values = kv.encode_array(v, "pq", stream="v", dictionary=own.find_product(layer, V), first=first, given=keys)
    return [kv.decode_array(one).view(np.uint16) for one in (keys, values)]


def check(got, residual, sinks, group=64, tokens=TOKENS):
    """That rows read are raw where they have to be, and what arrays give elsewhere."""
    end = tokens if not residual else sinks + max(0, tokens - sinks - residual) // group * group
    for layer in range(LAYERS):
        for stream, wanted, own in zip((K, V), coded(layer, sinks), got[2 * layer : 2 * layer + 2], strict=True):
            raw = rows(layer, stream)[:tokens].view(np.uint16)
            assert np.array_equal(own[:sinks], raw[:sinks])
            assert np.array_equal(own[end:], raw[end:])
            assert np.array_equal(own[sinks:end], wanted[: end - sinks])


@pytest.mark.parametrize("options", [
    {"residual": 9}, {"residual": 0}, {"residual": 0, "durability": "step", "threads": 2},
    {"residual": 3, "durability": "step"}, {"residual": 0, "k": "pq/g128", "v": "pq/g128"},
], ids=str)  # fmt: skip
def test_a_log_gives_what_arrays_give(tmp_path, options):
    """Written in two sessions, of which the first one crashes where steps are durable."""
    path = tmp_path / "a.kvlog"
    later = {key: value for key, value in options.items() if key in ("durability", "threads")}
    store = kv.open(path, "w", sinks=SINKS, **OPTIONS | options)
    for start in range(0, 90, 30):
        fill(store, start, start + 30)
        check(read_all(store), options["residual"], SINKS, 128 if "k" in options else 64, start + 30)
    (store.abandon if "durability" in options else store.close)()
    with kv.open(path, "a", **later) as store:
        for start in range(90, TOKENS, 210):
            fill(store, start, start + 210)
        live = read_all(store)
        assert np.array_equal(
            store.sequence("a").read(1, np.array([220, 4, 100]))[1].view(np.uint16), live[3][[220, 4, 100]]
        )
    got = read(path)
    check(got, options["residual"], SINKS, 128 if "k" in options else 64)
    assert all(np.array_equal(a, b) for a, b in zip(got, live, strict=True))
    assert verify_log(path).verdict == "clean"


# -- crashes -------------------------------------------------------------------------------------------------------


def forgetful(window):
    """The model, layer 0 of which has a sliding window."""
    return kv.Model((replace(MODEL.layers[0], window=window), MODEL.layers[1]))


class PowerLoss(Exception):
    pass


def lose_power(monkeypatch, after):
    """Let the device program so many units more."""
    program, left = Device.program, [after]

    def until(self, block, unit, data, first_frames):
        size = self.geometry.unit_bytes
        count = min(left[0], len(data) // size)
        left[0] -= count
        if count:
            program(self, block, unit, data[: count * size], first_frames[:count])
        if count < len(data) // size:
            raise PowerLoss

    monkeypatch.setattr(Device, "program", until)


def check_prefix(got, residual, tokens, window=0):
    """That all rows are raw or what arrays give, and those that had to leave long ago are that. window: of layer 0."""
    for layer in range(LAYERS):
        for stream, wanted, own in zip((K, V), coded(layer, SINKS), got[2 * layer : 2 * layer + 2], strict=True):
            first = max(0, tokens - window) if window and layer == 0 else 0
            assert len(own) == tokens - first
            start = max(first, SINKS)
            later, raw = own[start - first :], rows(layer, stream).view(np.uint16)[start:tokens]
            as_coded = (later == wanted[start - SINKS :][: len(raw)]).all(axis=(1, 2))
            assert (as_coded | (later == raw).all(axis=(1, 2))).all()
            assert as_coded[: max(0, tokens - residual - 3 * 64 + 1 - start)].all()


@settings(max_examples=20)
@given(
    st.integers(0, 900), st.sampled_from([0, 5]), st.lists(st.integers(1, 70), min_size=3, max_size=3), st.booleans(),
    st.sampled_from([0, 40]),
)  # fmt: skip
def test_a_crash_at_any_place_leaves_what_can_be_read_and_gone_on_with(
    tmp_path_factory, after, residual, sizes, step, window
):
    path, durability = tmp_path_factory.mktemp("crash") / "a.kvlog", "step" if step else "sync"
    synced, end, starts = 0, 0, np.cumsum([0, *sizes]).tolist()
    options = OPTIONS | {"model": forgetful(window), "residual": residual, "durability": durability}
    store = kv.open(path, "w", sinks=SINKS, **options)
    with pytest.MonkeyPatch.context() as patch:
        lose_power(patch, after)
        with contextlib.suppress(PowerLoss, DeviceError):
            for first, end in itertools.pairwise(starts):
                fill(store, first, end)
                store.sync()
                synced = end
        store.abandon()
    with kv.open(path) as reader:
        there = len(reader.sequence("a")) if reader.sequences() else 0
        assert synced <= there <= end
        if there:
            check_prefix(read_all(reader), residual, there, window)
    assert window or verify_log(path).verdict in ("clean", "torn tail")
    with kv.open(path, "a", durability=durability) as store:
        assert len(store.sequence("a")) == there
        for first, end in itertools.pairwise([there, min(there + 9, TOKENS), TOKENS]):
            fill(store, first, end)
            check_prefix(read_all(store), residual, end, window)
    check_prefix(read(path), residual, TOKENS, window)
    assert verify_log(path).verdict == "clean"


class Torn:
    """Logs K's records of an append and loses power before those of V. order: layers and streams of GROUP records."""

    def __init__(self, store):
        self.log_records, self.sync, self.order, self.armed = store.log_records, store.sync_log, [], False
        store.log_records = self

    def __call__(self, records):
        groups = [record for record in records if record.kind == Kind.GROUP]
        self.order += [(int(record.header["first_layer"]), int(record.header["stream"])) for record in groups]
        if self.armed and any(record.header["stream"] == V for record in groups):
            self.log_records([record for record in groups if record.header["stream"] == K])
            self.sync()
            raise PowerLoss
        self.log_records(records)


@pytest.mark.parametrize("window", [0, 75])
@pytest.mark.parametrize("residual", [0, 5])
def test_groups_of_v_wait_for_those_of_their_k(tmp_path, residual, window):
    """Twice the groups of K are durable, and those of V are not: their groups begin at other tokens from then on."""
    path = tmp_path / "a.kvlog"
    store = kv.open(path, "w", sinks=SINKS, residual=residual, **OPTIONS | {"model": forgetful(window)})
    for first, middle, end in ((0, 40, 110), (40, 120, 190)):
        torn = Torn(store)
        fill(store, first, middle)
        store.sync()
        torn.armed = True
        with pytest.raises(PowerLoss):
            fill(store, middle, end)
        store.abandon()
        check_prefix(read(path), residual, middle, window)
        store = kv.open(path, "a")
        assert len(store.sequence("a")) == middle
        opened = store.sequence("a")._open
        assert opened[0, K].first == middle > opened[0, V].first
    torn, border = Torn(store), opened[0, V].first + 64
    fill(store, middle, border)
    check_prefix(read_all(store), residual, border, window)
    fill(store, border, TOKENS)
    check_prefix(read_all(store), residual, TOKENS, window)
    assert all(torn.order.index((layer, K)) < torn.order.index((layer, V)) for layer, _ in torn.order)
    store.close()
    check_prefix(read(path), residual, TOKENS, window)
    assert verify_log(path).verdict == "clean"


@pytest.mark.parametrize("residual", [0, 20])
def test_records_that_are_split_and_layers_that_forget(tmp_path, residual):
    """Records of heads that no erase block holds together, and a sliding window that groups of K fall out of."""
    path, heads, own = tmp_path / "a.kvlog", 8, make_set()
    model = kv.Model(
        (replace(kv.Model.uniform(1, heads, DIM).layers[0], window=90), kv.Model.uniform(1, heads, DIM).layers[0])
    )
    lot = np.random.default_rng(4)
    k, v = lot.standard_normal((2, TOKENS, heads, DIM)).astype(ml_dtypes.bfloat16)
    spec = {"k": "pq/g256", "v": "pq/g256", "residual": residual, "sinks": 0}
    store = kv.open(path, "w", **OPTIONS | spec | {"model": model, "dictionary": own})
    for end in (100, 300):
        there = len(store.sequence("a"))
        for layer in range(2):
            store.sequence("a").append(layer, k[there:end], v[there:end])
        store.sync()
        store.abandon()
        store = kv.open(path, "a")
    for layer in range(2):
        store.sequence("a").append(layer, k[300:], v[300:])
    store.close()
    with kv.open(path) as reader:
        for layer in range(2):
            parts = [len(e.coded.parts) for e in reader.index.sequences[1].maps[layer, V] if e.coded.step is None]
            assert max(parts) > 1
            keys = kv.encode_array(k, "pq", dictionary=own.find_product(layer, K))
            wanted = kv.encode_array(v, "pq", stream="v", dictionary=own.find_product(layer, V), given=keys)
            held = reader.sequence("a").held(layer)
            assert len(held) == (90 if layer == 0 else TOKENS)
            back, got = kv.decode_array(wanted)[held.start :], reader.sequence("a").read(layer)[1]
            as_coded = (got.view(np.uint16) == back.view(np.uint16)).all(axis=(1, 2))
            raw = (got.view(np.uint16) == v[held.start :].view(np.uint16)).all(axis=(1, 2))
            assert (as_coded | raw).all()
            assert as_coded.sum() >= (len(held) if not residual else len(held) - residual - 255)
    assert verify_log(path).verdict == "clean"


# -- what is refused -----------------------------------------------------------------------------------------------


def test_k_that_v_cannot_stand_on_is_refused(tmp_path):
    path, plain = tmp_path / "a.kvlog", replace(OWN.products[2], prediction=None)
    for options, said in (
        ({"k": "raw"}, "V is predicted from the codes of its K, which is raw: want pq of the same set"),
        ({"k": "int4/token/g16"}, "which is int4/token/g16: want pq"),
        ({"k": "pq/g128"}, "k and v differ in tokens of a record: 128 and 64"),
        ({"residual": {"k": 3, "v": 9}}, "differ in residual: 3 and 9"),
        ({"sinks": {"k": 1, "v": 2}}, "differ in sinks: 1 and 2"),
        ({"max_error": 0.3}, "no bound on errors"),
        ({"k": "pq/max0.3"}, "no bound on errors"),
        ({"v": "pq/max0.3"}, "no bound on errors"),
        ({"model": kv.Model((kv.Layer((kv.Stream(V, 2, DIM),)),))}, "the layer has none of as many heads"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=f"layer 0, stream v: .*{said}"):
            kv.open(path, "w", **OPTIONS | options)
        assert not path.exists()
    for options in ({"v": "raw"}, {"dictionary": DictionarySet(products=(*OWN.products[:2], plain, OWN.products[3]))}):
        kv.open(path, "w", **OPTIONS | options).close()
        with pytest.raises(SpecError, match=r"layer [01], stream v: .*differ in residual"):
            kv.open(path, "a", v="pq", residual={"v": 1}, dictionary=OWN)
        path.unlink()


# -- commands ------------------------------------------------------------------------------------------------------


@pytest.fixture(name="artefact", scope="module")
def artefact_fixture(tmp_path_factory):
    path = tmp_path_factory.mktemp("set") / "m.kvdict"
    keys = [replace(own, rotation=None) for own in wide_set().products[::2]]
    values = [predicted(own, n, 256, ((own.uses[0][0], V),)) for n, own in enumerate(keys)]
    values = [replace(own, gains=keys[0].gains) for own in values]
    write_artefact(path, Artefact(DictionarySet(products=(*keys, *values)), {}))
    return path


def test_commands_take_it(tmp_path, artefact):
    log, out = tmp_path / "a.kvlog", tmp_path / "out.safetensors"
    invoke("encode", REAL, log, "--k", "pq", "--v", "pq", "--dictionary", artefact, "--residual", "0")
    assert "pq/g64" in invoke("info", log).stdout
    assert "clean" in invoke("verify", log).stdout
    invoke("decode", log, out)
    own = read_artefact(artefact).dictionaries
    with open_dump(REAL) as was, open_dump(out) as got:
        for layer in (5, 17):
            k, v = (was.rows(layer, stream, 4, 512) for stream in (K, V))
            keys = kv.encode_array(k, "pq", dictionary=own.find_product(layer, K))
            wanted = kv.encode_array(v, "pq", stream="v", dictionary=own.find_product(layer, V), given=keys)
            back = kv.decode_array(wanted).view(np.uint16)
            assert np.array_equal(got.rows(layer, V, 4, 512).view(np.uint16), back)
    assert "Rows" in invoke("diff", REAL, log).stdout
    assert "pq/g64" in invoke("drift", log, "--dictionary", artefact).stdout


def test_an_interrupted_encode_goes_on(tmp_path, monkeypatch, artefact):
    def interrupt(done, total):
        if done > total // 2:
            raise PowerLoss

    options = {"k": "pq", "v": "pq", "dictionary": artefact, "resume": True}
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1 << 16)
    log, whole = tmp_path / "a.kvlog", tmp_path / "whole.kvlog"
    with pytest.raises(PowerLoss):
        encode_dump(REAL, log, progress=interrupt, **options)
    assert encode_dump(REAL, log, **options).resumed
    encode_dump(REAL, whole, threads=2, **options)
    with kv.open(log) as one, kv.open(whole) as two:
        (name,) = one.sequences()
        for layer in (5, 8, 17):
            pairs = zip(one.sequence(name).read(layer), two.sequence(name).read(layer), strict=True)
            assert all(np.array_equal(a.view(np.uint16), b.view(np.uint16)) for a, b in pairs)
