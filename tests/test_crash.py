"""Processes that die and processes that watch: kill -9 loses nothing that was synced, readers follow a writer live."""

import os
import signal
import struct
import time

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from tests.caches import GEOMETRIES, rows, tiny_model
from tests.campaigns import times
from tests.children import Child

WORKERS = 4
WAITS = 4


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_loaded_before_a_fork():
    kv.encode_array(rows(0, "k", 1), "raw")


def append_for_ever(path, model, write):
    """Append and sync, telling after each sync how many tokens had to survive."""
    with kv.open(path, "a", model=model) as store:
        sequence = store.sequence("a")
        n = len(sequence)
        while True:
            for layer in range(2):
                span = range(n, n + 9)
                sequence.append(layer, rows(layer, "k", span), rows(layer, "v", span))
            n += 9
            if n % 2 == 0:
                store.sync()
                os.write(write, struct.pack("<q", n))


@pytest.mark.no_cover
@pytest.mark.parametrize("kills", [120, pytest.param(times(1000, 100_000), marks=pytest.mark.campaign)])
@pytest.mark.parametrize("shard", range(WORKERS))
@pytest.mark.parametrize("geometry", ["tlc", "slc", "mlc", "qlc", "nor"])
def test_kill_9_loses_nothing_that_was_synced(tmp_path, geometry, shard, kills):
    random = np.random.default_rng([shard, *geometry.encode()])
    model = tiny_model()
    for log in range(2):
        path = tmp_path / f"{log}.kvlog"
        kv.open(path, "w", model=model, k="raw", v="raw", residual=20, device=GEOMETRIES[geometry]).close()
        synced = 0
        for _ in range(kills // WORKERS // 5 // 2):
            with Child(append_for_ever, path, model) as child:
                told = child.read(8)
                time.sleep(random.exponential(0.02))
                assert child.kill() == -signal.SIGKILL
                told += child.rest()
            synced = max(synced, *struct.unpack(f"<{len(told) // 8}q", told))
            verdict = verify_log(path)
            assert verdict.verdict in ("clean", "torn tail"), verdict
            with kv.open(path) as store:
                sequence = store.sequence("a")
                assert len(sequence) >= synced > 0
                for layer in range(2):
                    for stream, got in zip("kv", sequence.read(layer), strict=True):
                        assert np.array_equal(got.view(np.uint16), rows(layer, stream, len(got)).view(np.uint16))


def follow(path, tokens, raw, coded, write):
    """Read random tokens of a growing log until all are there; any other number than written is a failure."""
    random = np.random.default_rng(os.getpid())
    seen = reads = 0
    with kv.open(path) as store:
        while seen < tokens:
            if not store.sequences():
                continue
            sequence = store.sequence("a")
            length = len(sequence)
            assert length >= seen
            seen = length
            if not length:
                continue
            layer = int(random.integers(2))
            index = random.integers(0, length, 5)
            for got, a, b in zip(sequence.read(layer, index), raw[layer], coded[layer], strict=True):
                got = got.view(np.uint16)
                as_raw = (got == a[index].view(np.uint16)).all(axis=(1, 2))
                as_coded = (got == b[index].view(np.uint16)).all(axis=(1, 2))
                assert (as_raw | as_coded).all()
            reads += 1
            if reads % 4 == 0 and reads <= 4 * WAITS:
                os.write(write, b"4")


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_two_readers_follow_a_writer_live(tmp_path, geometry):
    n, options = 1200, {"model": tiny_model(), "residual": 30, "sinks": 4, "device": geometry}
    raw = [[rows(layer, s, n) for s in "kv"] for layer in range(2)]
    with kv.open(tmp_path / "once", "w", **options, v="int4/token/g16") as store:
        for layer in range(2):
            store.sequence("a").append(layer, *raw[layer])
        coded = [store.sequence("a").read(layer) for layer in range(2)]
    path = tmp_path / "live.kvlog"
    with (
        kv.open(path, "w", **options, v="int4/token/g16") as store,
        Child(follow, path, n, raw, coded) as one,
        Child(follow, path, n, raw, coded) as other,
    ):
        sequence, waits = store.sequence("a"), range(n // WAITS // 2, n, n // WAITS)
        for at in range(0, n, 5):
            for layer in range(2):
                sequence.append(layer, *(r[at : at + 5] for r in raw[layer]))
            if at % 3 == 0:
                store.sync()
                time.sleep(0.004)
            if at in waits:  # for readers on a busy machine to keep up: they are to see it grow
                store.sync()
                assert (one.read(1), other.read(1)) == (b"4", b"4")
        store.sync()
        assert (one.wait(), other.wait()) == (0, 0)
