"""Readers in other processes while a writer appends, drops, cuts and compacts; and writers that are killed at it."""

import itertools
import os
import random
import time

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.errors import NoSpace, UnknownSequence
from tests.caches import rows
from tests.campaigns import times
from tests.children import Child
from tests.test_lifecycle import append, cut, data, make

TOKENS = 150


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_loaded_before_a_fork(tmp_path_factory):
    with make(tmp_path_factory.mktemp("warm") / "c", k="int4/channel/g16", v="int4/token/g16") as store:
        append(store.sequence("a"), data(100, 1))
        store.sequence("a").attend(0, np.ones((2, 16), np.float32))


def live(path, seconds, seed, write):
    """A writer whose sequences are named after what their rows are; it reports each that it made durable."""
    lot, names = random.Random(seed), itertools.count(seed * 100_000)
    with kv.open(path, "a") as store:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name = str(next(names))
            try:
                append(store.sequence(name), data(lot.randint(1, TOKENS), int(name)))
            except NoSpace:
                store.drop(name)
            known = store.sequences()
            while len(known) > 6:
                store.drop(known.pop(lot.randrange(len(known) - 1)))
            if lot.random() < 0.2:
                victim = store.sequence(lot.choice(known))
                victim.truncate(lot.randint(0, len(victim)))
            if lot.random() < 0.2:
                store.compact()
            store.sync()
            os.write(write, f"{name} {' '.join(store.sequences())}\n".encode())


def follow(path, end, write):
    """Reads whatever is there until told to end; rows that were never written are a failure."""
    reads, lot = 0, np.random.default_rng(os.getpid())
    with kv.open(path) as store:
        while not end.exists():
            for name in store.sequences():
                try:
                    sequence = store.sequence(name)
                    layer = int(lot.integers(2))
                    got = sequence.read(layer)
                    sequence.attend(layer, np.ones((2, 16), np.float32))
                except UnknownSequence:
                    continue
                for stream, own in zip("kv", got, strict=True):
                    wanted = rows(layer, stream, TOKENS, 1, 16, salt=int(name))[: len(own)]
                    assert np.array_equal(own.view(np.uint16), wanted.view(np.uint16)), name
                reads += 1
    os.write(write, str(reads).encode())


def run(tmp_path, seconds, readers):
    """How many reads there were."""
    path, end = tmp_path / "c", tmp_path / "end"
    make(path, capacity=48 * 4096).close()
    children = [Child(follow, path, end) for _ in range(readers)]
    writer = Child(live, path, seconds, 1)
    try:
        report = writer.rest().decode().splitlines()
        assert writer.wait() == 0
        end.touch()
        reads = [int(child.rest() or b"-1") for child in children]
        assert [child.wait() for child in children] == [0] * readers
        assert len(report) > 3
    finally:
        for child in (writer, *children):
            child.kill()
    return sum(reads)


def test_readers_follow_a_writer_that_cleans(tmp_path):
    assert run(tmp_path, seconds=4, readers=2) > 10


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(times(4, 400)))
def test_eight_readers_follow_a_writer_that_cleans(tmp_path, shard):
    assert run(tmp_path, seconds=120, readers=8) > 1000, shard


def kill_writers(tmp_path, shard, kills):
    path, lot = tmp_path / "c", random.Random(shard)
    make(path, capacity=48 * 4096).close()
    for n in range(kills):
        with Child(live, path, 60, shard * kills + n) as writer:
            first = writer.read(1)
            time.sleep(lot.uniform(0, 0.15))
            writer.kill()
            report = (first + writer.rest()).decode().splitlines(keepends=True)
        whole = [line.split() for line in report if line.endswith("\n")]
        with kv.open(path) as store:
            found = store.sequences()
            if whole:
                assert len(set(whole[-1][1:]) - set(found)) <= 3, (whole[-1], found)  # what was dropped since
            for sequence in store:
                wanted = data(TOKENS, int(sequence.name))
                for layer, own in enumerate(cut(wanted, len(sequence))):
                    for got, row in zip(sequence.read(layer), own, strict=True):
                        assert np.array_equal(got.view(np.uint16), row.view(np.uint16))


def test_some_kills_of_a_writer_that_cleans(tmp_path):
    kill_writers(tmp_path, 0, 8)


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(times(8, 800)))
def test_kills_of_a_writer_that_cleans(tmp_path, shard):
    kill_writers(tmp_path, 1 + shard, 125)
