"""Readers in other processes while a writer appends, drops, cuts and compacts; and writers that are killed at it."""

import contextlib
import functools
import itertools
import os
import random
import time

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.errors import NoSpace, ShapeError, UnknownSequence
from tests.caches import rows
from tests.campaigns import times
from tests.children import Child
from tests.test_lifecycle import append, cut, data, make

TOKENS = 150
GATHERS = 8  # of single tokens, at each sequence that a reader comes to


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_loaded_before_a_fork(tmp_path_factory):
    with make(tmp_path_factory.mktemp("warm") / "c", k="int4/channel/g16", v="int4/token/g16") as store:
        append(store.sequence("a"), data(100, 1))
        store.sequence("a").attend(0, np.ones((2, 16), np.float32))


def live(path, ends, pause, seed, write):
    """A writer whose sequences are named after what their rows are; it reports each that it made durable."""
    lot, names = random.Random(seed), itertools.count(seed * 100_000)
    with kv.open(path, "a") as store:
        while not ends():
            time.sleep(lot.uniform(0, pause))
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


@functools.lru_cache(64)
def written(layer, name):
    """All rows that a sequence of this name may have."""
    return [rows(layer, stream, TOKENS, 1, 16, salt=int(name)) for stream in "kv"]


def follow(path, reads, done, write):
    """So many reads and attentions of whatever is there; rows that were never written are a failure."""
    left, lot, q = reads, np.random.default_rng(os.getpid()), np.ones((2, 16), np.float32)
    try:
        with kv.open(path) as store:
            while left > 0:
                for name in store.sequences():
                    layer = int(lot.integers(2))
                    with contextlib.suppress(UnknownSequence):
                        sequence = store.sequence(name)
                        got = sequence.read(layer)
                        for own, whole in zip(got, written(layer, name), strict=True):
                            assert np.array_equal(own.view(np.uint16), whole[: len(own)].view(np.uint16)), name
                        sequence.attend(layer, q)
                        left -= 2
                        left -= gather(sequence, layer, lot)
        os.write(write, str(reads - left).encode())
    finally:
        done.touch()


def gather(sequence, layer, lot):
    """Some reads of single tokens; how many."""
    for n in range(GATHERS):
        length = len(sequence)
        if not length:
            return n
        tokens = lot.integers(0, length, 4)
        try:
            got = sequence.read(layer, tokens)
        except ShapeError:  # it was cut meanwhile
            assert tokens.max() >= len(sequence)
            return n
        for own, whole in zip(got, written(layer, sequence.name), strict=True):
            assert np.array_equal(own.view(np.uint16), whole[tokens].view(np.uint16)), sequence.name
    return GATHERS


def run(tmp_path, reads, readers, pause):
    """What the writer told, while each reader read so often."""
    path, done = tmp_path / "c", [tmp_path / f"done{n}" for n in range(readers)]
    make(path, capacity=48 * 4096).close()
    children = [Child(follow, path, reads, own) for own in done]
    writer = Child(live, path, lambda: all(own.exists() for own in done), pause, 1)
    try:
        report = writer.rest().decode().splitlines()
        assert writer.wait() == 0
        assert all(int(child.rest() or b"0") >= reads for child in children)
        assert [child.wait() for child in children] == [0] * readers
    finally:
        for child in (writer, *children):
            child.kill()
    return report


def test_readers_follow_a_writer_that_cleans(tmp_path):
    assert len(run(tmp_path, reads=400, readers=2, pause=0.01)) > 20


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(times(8, 800)))
def test_eight_readers_follow_a_writer_that_cleans(tmp_path, shard):
    """In all shards 10^6 reads, or 10^8."""
    assert len(run(tmp_path, reads=125_000 // 8, readers=8, pause=0.2)) > 100, shard


def kill_writers(tmp_path, shard, kills):
    path, lot = tmp_path / "c", random.Random(shard)
    make(path, capacity=48 * 4096).close()
    for n in range(kills):
        with Child(live, path, lambda: False, 0, shard * kills + n) as writer:
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
