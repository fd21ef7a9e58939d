"""A device or a cap that is full: what is refused, what goes for what, and that it can be freed."""

import contextlib
import random
from unittest import mock

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import NoSpace, SpecError
from kvcodec.layout import Kind
from kvcodec.log.writer import LaneWriter
from tests.caches import rows
from tests.test_lifecycle import append, check, cut, data, make


def test_a_cap_refuses_or_drops_what_was_used_least_recently(tmp_path):
    path, cap = tmp_path / "c", 30 * 4096
    with make(path, capacity=1 << 22) as store:
        pass
    with kv.open(path, "a", cap=cap) as store:
        append(store.sequence("a"), data(100, 1))
        with pytest.raises(NoSpace):
            append(store.sequence("b"), data(900, 2))
        check(store.sequence("a"), data(100, 1))
        assert len(store.sequence("b")) == 0
        store.drop("b")
    names = list("abcdefghij")
    with kv.open(path, "a", cap=cap, when_full="lru") as store:
        for n, name in enumerate(names[1:], 2):
            append(store.sequence(name), data(100, n))
            if "a" in store.sequences():
                store.sequence("a").read(0)
        left = store.sequences()
        assert left[0] == "a"  # the oldest, and the one that was read again and again
        assert left[1:] == names[-len(left) + 1 :]
        store.sequence(left[1]).read(1)
        store.sync()
        in_use = np.count_nonzero(store.device.generations())
        assert in_use <= 30
    with kv.open(path, "a", cap=cap, when_full="lru") as store:
        for n in range(len(left) - 3):
            append(store.sequence(f"new{n}"), data(100, 50 + n))
        assert left[1] in store.sequences()  # read last by the writer before this one
        check(store.sequence(left[1]), data(100, 1 + names.index(left[1])))
    report = verify_log(path)
    assert report.verdict == "clean", (report.orphans, report.damage, report.error)


@pytest.mark.parametrize(
    ("options", "why"), [({"cap": 4096}, "6 erase blocks"), ({"cap": 1 << 20, "when_full": "x"}, "lru")]
)
def test_a_cap_that_makes_no_sense_is_refused(tmp_path, options, why):
    make(tmp_path / "c").close()
    with pytest.raises(SpecError, match=why):
        kv.open(tmp_path / "c", "a", **options)


def full_once(kind):
    """While this lasts: the first append of a record of a kind finds no room."""
    append, left = LaneWriter.append, [True]

    def append_if_room(self, records, lsns=()):
        if left and not lsns and any(record.kind == kind for record in records):
            left.clear()
            raise NoSpace(28, "1 erased blocks wanted, 0 left", "c")
        return append(self, records, lsns)

    return mock.patch.object(LaneWriter, "append", append_if_room)


def test_a_fork_does_not_drop_its_parent_for_room(tmp_path):
    path, parts = tmp_path / "c", data(70, 1)
    with make(path, capacity=1 << 22) as store:
        append(store.sequence("a"), parts)
        append(store.sequence("b"), data(70, 2))
    with kv.open(path, "a", cap=30 * 4096, when_full="lru") as store:
        with full_once(Kind.SEQUENCE):
            fork = store.fork("a", "f", 64)
        assert len(fork) == 64
    with kv.open(path) as store:
        check(store.sequence("f"), cut(parts, 64))


def test_compaction_brings_no_dropped_sequence_back(tmp_path):
    path = tmp_path / "c"
    with make(path, durability="step", residual=20) as store:
        for name in "ab":
            for t in range(12):
                append(store.sequence(name), data(1, t))
    with kv.open(path, "a", cap=30 * 4096, when_full="lru", durability="step") as store:
        with full_once(Kind.STEP):
            store.compact()
        assert [len(sequence) for sequence in store] == [12] * len(store.sequences())


def test_what_can_never_fit_drops_nothing(tmp_path):
    path = tmp_path / "c"
    make(path, capacity=1 << 22).close()
    with kv.open(path, "a", cap=30 * 4096, when_full="lru") as store:
        for n, name in enumerate("abc"):
            append(store.sequence(name), data(64, n))
        with pytest.raises(NoSpace):
            append(store.sequence("d"), data(3000, 9))
        assert store.sequences() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("what", ["begin", "fork", "evict", "truncate"])
def test_a_full_device_can_still_be_freed(tmp_path, what):
    """Whatever filled it: its sequences can be dropped, and what they took comes back."""
    store = make(tmp_path / "c", capacity=20 * 4096)
    until_full(lambda n: append(store.sequence("c"), data(64, n)))
    until_full({
        "begin": lambda n: store.sequence(f"x{n}"),
        "fork": lambda n: store.fork("c", f"x{n}", 64),
        "evict": lambda n: store.sequence("c").evict(n % 64, n % 64 + 1),
        "truncate": lambda _: store.sequence("c").truncate(len(store.sequence("c"))),
    }[what])  # fmt: skip
    for name in store.sequences():
        store.drop(name)
    store.compact()
    append(store.sequence("new"), data(64, 1))
    store.close()


def test_a_device_full_of_padding_goes_on(tmp_path):
    """Every sync pads a unit: what is alive of such blocks is little, if nothing of it is dead."""
    options = {"device": "page=1024,unit=1024,block=16384", "capacity": 20 * 16384, "model": kv.Model.uniform(1, 1, 16)}
    with make(tmp_path / "c", **options) as store:
        for n in range(500):  # 20 blocks have 300 units for them
            store.sequence(f"s{n}").append(0, *(rows(0, stream, 1, 1, 16, salt=n) for stream in "kv"))
            store.sync()
    with kv.open(tmp_path / "c") as store:
        assert len(store.sequences()) == 500
        for n in range(0, 500, 7):
            assert np.array_equal(store.sequence(f"s{n}").read(0)[1], rows(0, "v", 1, 1, 16, salt=n))
    with kv.open(tmp_path / "c", "a") as store:
        used = store.stats().blocks_used
        store.compact()
        least = store.stats().blocks_used
        assert least < used
        before = store.stats().programmed_bytes
        assert store.compact() <= 1
        assert store.stats().programmed_bytes - before <= 4 * 1024
    assert verify_log(tmp_path / "c").verdict == "clean"


@pytest.mark.parametrize("options", [{}, {"residual": 1}])
def test_a_cap_below_what_is_in_use_is_come_to(tmp_path, options):
    with make(tmp_path / "c", capacity=64 * 4096) as store:
        for n in range(40):
            append(store.sequence(f"s{n}"), data(20, n))
    with kv.open(tmp_path / "c", "a") as store:
        assert store.stats().blocks_used > 32
    with kv.open(tmp_path / "c", "a", cap=30 * 4096, when_full="lru", **options) as store:
        append(store.sequence("new"), data(64, 1))
        store.drop(store.sequences()[0])
        store.compact()
        assert store.stats().blocks_used <= 30
        left = store.sequences()
        assert left[-2:] == ["s39", "new"]
    with kv.open(tmp_path / "c") as store:
        check(store.sequence("s39"), data(20, 39))
        check(store.sequence("new"), data(64, 1))
    with kv.open(tmp_path / "c", "a", cap=10 * 4096) as store:
        with pytest.raises(NoSpace):
            append(store.sequence("more"), data(200, 1))
        for name in left:
            store.drop(name)
        store.compact()
        append(store.sequence("more"), data(64, 1))
        assert store.stats().blocks_used <= 10
    assert verify_log(tmp_path / "c").verdict == "clean"


def test_blocks_that_cleaning_could_gain_nothing_from_are_refused(tmp_path):
    with pytest.raises(SpecError, match="2 program units, want 3"):
        make(tmp_path / "c", device="page=8192,block=16384")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("how", ["evict", "summarize"])
def test_a_cut_of_evicted_tokens_holds_once_their_rows_are_cleaned_away(tmp_path, how):
    """The record that evicted them, or made a summary of them, lies elsewhere, and must not bring them back."""
    path, model = tmp_path / "c", kv.Model.uniform(1, 1, 16)
    options = {"k": "int8/channel/g16", "v": "int8/channel/g16", "device": "page=256,unit=64,block=4096"}

    def grow(store, name, tokens):
        store.sequence(name).append(0, *(rows(0, stream, tokens, 1, 16) for stream in "kv"))
        store.sync()

    store = make(path, model=model, capacity=60 * 4096, **options)
    for name, tokens in (("a", 64), ("fill", 128), ("y", 256), ("a", 64), ("y", 256)):
        grow(store, name, tokens)
    sequence = store.sequence("a")
    if how == "evict":
        sequence.evict(64, 128)
    else:
        sequence.summarize(64, 128, {0: [rows(0, stream, 2, 1, 16) for stream in "kv"]})
        grow(store, "y", 256)
    grow(store, "fill", 256)
    grow(store, "z", 256)
    sequence.truncate(64)
    store.sync()
    if how == "summarize":
        for name, tokens in (("z", 384), ("fill", 128), ("a", 16)):
            grow(store, name, tokens)
    length = len(sequence)
    grow(store, "z", 256)
    store.drop("y")
    store.compact()
    for _ in range(3):
        store.drop("z")
        store.compact()
        grow(store, "z", 256)
    store.close()
    for mode in "ra":
        with kv.open(path, mode) as store:
            assert len(store.sequence("a")) == length
            assert not store.sequence("a").evicted(0)


def until_full(work):
    """Do it again and again, told how often it was done, until there is no room, or it is as if it could go on so."""
    with contextlib.suppress(NoSpace):
        for n in range(600):
            work(n)


@pytest.mark.parametrize(("seed", "blocks"), [(22, 13), (57, 16)])
def test_a_device_full_of_rows_can_still_be_freed(tmp_path, seed, blocks):
    """Appends and drops of whole sequences alone: one block held back serves one lane, and both may need one."""
    lot = random.Random(seed)
    lot.choice([1024, 2048, 4096]), lot.choice([12, 13, 16, 24, 32])
    residual = lot.choice([0, 10])
    device, one = "page=64,unit=64,block=1024", kv.Model((kv.Layer.kv(1, 16),))
    store = kv.open(tmp_path / "c", "w", model=one, residual=residual, sinks=0, k="raw", v="raw", device=device,
                    capacity=blocks * 1024, durability=lot.choice(["sync", "step"]))  # fmt: skip

    def grow(name, tokens, salt):
        store.sequence(name).append(0, *(rows(0, stream, tokens, 1, 16, salt=salt) for stream in "kv"))

    for step in range(150):
        try:
            if lot.random() < 0.75:
                name = lot.choice("abcdefgh")
                store.sequence(name)
                grow(name, lot.choice([1, 3, 8, 20]), step)
            elif store.sequences():
                store.drop(lot.choice(store.sequences()))
        except NoSpace:
            for name in store.sequences():
                store.drop(name)
            store.compact()
            grow("z", 8, 1)
            store.sync()
    store.abandon()


def fill(store, name, *sizes):
    """Append to a sequence so many tokens at a time until there is no room for them, and then so many, …"""
    for size in sizes:
        with contextlib.suppress(NoSpace):
            while True:
                append(store.sequence(name), data(size, 1))


def test_rows_do_not_fill_a_block_that_was_begun_for_a_drop_record(tmp_path):
    """Sequences without rows free nothing when they go, so that all of the others are still needed."""
    path = tmp_path / "c"
    with make(path, capacity=24 * 4096, durability="step") as store:
        for n in range(6):
            store.sequence(f"empty {n}")
        fill(store, "big", 64, 1)
        for n in range(6):
            store.drop(f"empty {n}")
            fill(store, "big", 1)
    with kv.open(path, "a") as store:
        store.drop("big")
        assert store.compact() >= 20
        append(store.sequence("new"), data(64, 2))
        store.sync()


def test_compact_leaves_the_last_erased_block_for_copies(tmp_path):
    device = {"device": "page=2048,unit=512,block=16384", "capacity": 24 * 16384, "model": kv.Model.uniform(1, 2, 16)}
    with make(tmp_path / "c", **device, durability="step") as store:
        for n in range(40):
            store.sequence(f"empty {n}")
        for tokens in (64, 1):
            with contextlib.suppress(NoSpace):
                while True:
                    store.sequence("big").append(0, *[rows(0, "k", tokens, 2, 16)] * 2)
        assert store._writers.kept.block is None  # nothing was ever copied
    with kv.open(tmp_path / "c", "a") as store:
        for n in range(40):
            if store.device.erased_blocks > 1:
                store.drop(f"empty {n}")
        assert store.device.erased_blocks == 1
        store.compact()
        for name in store.sequences():
            store.drop(name)
        assert store.compact() > 10
        store.sequence("new").append(0, *[rows(0, "k", 200, 2, 16)] * 2)
        store.sync()


def test_compact_makes_room_for_rows_that_are_in_memory(tmp_path):
    """It cleans what it can before it says that they find none."""
    with make(tmp_path / "c", capacity=24 * 4096, residual=20) as store:
        append(store.sequence("gone"), data(300, 1))
        append(store.sequence("a"), data(10, 2))
        store.sync()
        store.drop("gone")
        append(store.sequence("a"), data(5, 3))
        with full_once(Kind.STEP):
            assert store.compact() > 3
        store.abandon()
    with kv.open(tmp_path / "c") as store:
        assert len(store.sequence("a")) == 15


def test_what_is_left_of_the_order_of_uses_is_dead(tmp_path):
    """Each session logs it anew, in a frame that fills whole blocks with records of sequences that are all there."""
    path, cap = tmp_path / "c", {"cap": 60 * 4096, "when_full": "lru"}
    with make(path, capacity=100 * 4096) as store:
        for n in range(150):
            store.sequence(f"{n}")
    for session in range(6):
        with kv.open(path, "a", **cap) as store:
            for name in random.Random(session).sample(store.sequences(), 150):
                store.sequence(name).read(0)
    with kv.open(path, "a", **cap) as store:
        shares = [share for _, share in store._cleaner._candidates()]
        assert len(shares) > 10
        assert sum(share < 0.1 for share in shares) >= len(shares) // 2
