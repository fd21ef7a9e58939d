"""Sequences that end, are cut, forked, evicted from and summarised, on devices that are cleaned: against a dict."""

import contextlib
import functools
import itertools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.bulk.wear import Use, log_wear
from kvcodec.errors import NoSpace, ShapeError, SpecError, UnknownSequence
from kvcodec.flash.image import Image
from kvcodec.layout import StreamId
from kvcodec.log.cleaner import Cleaner
from kvcodec.log.sidecar import sidecar_path
from kvcodec.store import attending
from tests.caches import rows
from tests.campaigns import run_shard, short, times

SMALL = "page=256,unit=64,block=4096"
LAYERS = 2


def model(window=0):
    return kv.Model((kv.Layer.kv(1, 16), kv.Layer.kv(1, 16, window=window)))


def make(path, *, capacity=64 * 4096, window=0, **options):
    options = {"residual": 0, "sinks": 0, "k": "raw", "v": "raw", "device": SMALL, "model": model(window)} | options
    return kv.open(path, "w", capacity=capacity, overwrite=True, **options)


def data(tokens, seed):
    return [tuple(rows(n, stream, tokens, 1, 16, salt=seed) for stream in "kv") for n in range(LAYERS)]


def append(sequence, parts):
    sequence.append_layers(dict(enumerate(parts)))


def check(sequence, parts, evicted=(), late=None, window=0):
    """That a sequence holds these rows, but for those evicted. late: by token, from which query on it is seen. window:
    of the last layer.
    """
    left = np.ones(len(parts[0][0]), bool)
    for first, end in evicted:
        left[first:end] = False
    left[[token for token, seen in (late or {}).items() if seen > len(left)]] = False
    assert len(sequence) == len(left)
    for layer, own in enumerate(parts):
        if window and layer == len(parts) - 1:
            left[: max(0, len(left) - window)] = False
        for got, wanted in zip(sequence.read(layer), own, strict=True):
            assert np.array_equal(got.view(np.uint16), wanted[left].view(np.uint16))


def cut(parts, end):
    return [tuple(x[:end] for x in own) for own in parts]


def put(parts, first, rows):
    """Rows at the place of those from a token on."""
    return [tuple(np.concatenate([x[:first], y, x[first + len(y) :]]) for x, y in zip(own, new, strict=True))
            for own, new in zip(parts, rows, strict=True)]  # fmt: skip


def join(a, b):
    return [tuple(np.concatenate(pair) for pair in zip(x, y, strict=True)) for x, y in zip(a, b, strict=True)]


def test_a_dropped_sequence_is_gone_and_its_name_free(tmp_path):
    with make(tmp_path / "c") as store:
        append(store.sequence("a"), data(70, 1))
        append(store.sequence("b"), data(70, 5))
        old = store.sequence("a")
        store.drop("a")
        assert store.sequences() == ["b"]
        for use in (lambda: len(old), lambda: old.read(0), lambda: append(old, data(1, 1)), lambda: store.drop("a")):
            with pytest.raises(UnknownSequence):
                use()
        append(store.sequence("a"), data(5, 9))
    for mode in "ra":
        with kv.open(tmp_path / "c", mode) as store:
            assert store.sequences() == ["b", "a"]
            check(store.sequence("a"), data(5, 9))
            check(store.sequence("b"), data(70, 5))


def test_a_fork_shares_records_and_outlives_its_parent(tmp_path):
    parts = data(100, 1)
    with make(tmp_path / "c") as store:
        append(store.sequence("a"), parts)
        before = store.stats().framed_bytes
        fork = store.fork("a", "b", 70)
        assert store.stats().framed_bytes - before < 64 * 100  # the open rows, and one record
        append(fork, data(30, 9))
        store.sequence("a").truncate(10)
        append(store.sequence("a"), data(5, 20))
        twice = store.fork("b", "c")
        store.drop("a")
        store.compact()
        check(fork, join(cut(parts, 70), data(30, 9)))
        with pytest.raises(SpecError, match="already"):
            store.fork("b", "c")
        with pytest.raises(ShapeError):
            store.fork("b", "d", 101)
        store.drop("b")
        store.compact()
        check(twice, join(cut(parts, 70), data(30, 9)))
    with kv.open(tmp_path / "c") as store:
        assert store.sequences() == ["c"]
        check(store.sequence("c"), join(cut(parts, 70), data(30, 9)))
    assert verify_log(tmp_path / "c").verdict == "clean"


def test_evicted_tokens_are_neither_read_nor_attended_to(tmp_path):
    parts = data(200, 1)
    q = np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)
    with make(tmp_path / "c", k="int4/channel/g16", v="int4/token/g16") as store:
        sequence = store.sequence("a")
        append(sequence, parts)
        whole = [sequence.read(0, dtype=np.float32), sequence.read(1, dtype=np.float32)]
        parts = (sequence.attend(0, q, tokens=slice(*ends), return_state=True)[1] for ends in ((0, 20), (128, 200)))
        wanted = functools.reduce(lambda a, b: a.merge(b), parts).output()
        sequence.evict(20, 128)
        assert sequence.evicted(0) == [(20, 128)]
        for layer in range(LAYERS):
            for got, all_ in zip(sequence.read(layer, dtype=np.float32), whole[layer], strict=True):
                assert np.array_equal(got, np.delete(all_, np.r_[20:128], 0))
        with pytest.raises(ShapeError, match="evicted"):
            sequence.read(0, [5, 20])
        with pytest.raises(ShapeError, match="evicted"):
            sequence.attend(0, q, tokens=[30])
        with pytest.raises(ShapeError, match="residual"):
            sequence.evict(190, 200)
        assert len(sequence) == 200
        got = sequence.attend(0, q)
        assert np.abs(got - wanted).max() < 1e-3 * np.abs(wanted).max()
        store.compact()
        assert np.array_equal(sequence.attend(0, q), got)
        append(sequence, data(10, 50))
        assert np.array_equal(sequence.read(0, slice(150, 10, -7), dtype=np.float32)[0],
                              whole[0][0][[t for t in range(150, 10, -7) if not 20 <= t < 128]])  # fmt: skip
    with kv.open(tmp_path / "c") as store:
        assert len(store.sequence("a")) == 210
        assert np.array_equal(store.sequence("a").attend(0, q, tokens=slice(0, 200)), got)


@pytest.mark.parametrize(
    "options",
    [
        {"k": "int4/channel/g16", "v": "int4/token/g16", "residual": 32},
        {"k": "int4/token/g16", "v": "int4/token/g16", "residual": 0},
        {"k": "raw", "v": "raw", "residual": 32, "journal": "int8/token/g16"},
    ],
)
def test_rows_of_single_steps_are_laid_together(tmp_path, options):
    parts, path, plain = data(50, 1), tmp_path / "c", {k: v for k, v in options.items() if k != "journal"}
    with make(path, durability="step", **options) as store, make(tmp_path / "d", **plain) as other:
        for t in range(50):
            append(store.sequence("a"), [tuple(rows[t : t + 1] for rows in layer) for layer in parts])
        append(other.sequence("a"), parts)
    with kv.open(path) as reader:
        before = step_lsns(reader)
        shown = [reader.sequence("a").read(layer, dtype=np.float32) for layer in range(LAYERS)]
        with kv.open(path, "a") as store:
            store.compact()
            assert not store._sequences  # nothing that it looked at stays in memory
        again = [reader.sequence("a").read(layer, dtype=np.float32) for layer in range(LAYERS)]
        assert all(np.array_equal(x, y) for a, b in zip(shown, again, strict=True) for x, y in zip(a, b, strict=True))
        journaled = "journal" in options  # rounded once already: those stay, and so would be what decodes them
        assert len(step_lsns(reader)) == len(before) if journaled else 2 * len(step_lsns(reader)) <= len(before)
    if not journaled:
        for where in (path, tmp_path / "d"):
            with kv.open(where, "a") as store:
                append(store.sequence("a"), data(70, 60))
        with kv.open(path) as store, kv.open(tmp_path / "d") as other:
            for layer in range(LAYERS):
                for got, want in zip(store.sequence("a").read(layer), other.sequence("a").read(layer), strict=True):
                    assert np.array_equal(got, want)
    assert verify_log(path).verdict == "clean"


def test_compaction_counts_apart_from_cleaning(tmp_path):
    path = tmp_path / "c"
    with make(path, durability="step", residual=8, k="int4/channel/g16", v="int4/token/g16") as store:
        for name in "abcd":
            append(store.sequence(name), data(90, ord(name)))
        for t in range(12):
            append(store.sequence("e"), data(1, t))
        store.drop("b")
        before = store.stats()
        assert (before.copied_bytes, before.compacted_bytes) == (0, 0)
        store.compact()
        after = store.stats()
        assert (after.host_bytes, after.framed_bytes, after.copied_bytes) == (before.host_bytes, before.framed_bytes, 0)
        assert after.compacted_bytes == pytest.approx(after.programmed_bytes - before.programmed_bytes, rel=0.05)
        append(store.sequence("a"), data(1, 99))
        last = store.stats()
        assert last.host_bytes > after.host_bytes
    for sidecar in (True, False):
        if not sidecar:
            sidecar_path(path).unlink()
        with kv.open(path) as store:
            found = store.stats()
        for name in ("host_bytes", "framed_bytes"):
            assert getattr(found, name) - getattr(last, name) in range(100)  # the witness of the close
        assert found.compacted_bytes == pytest.approx(last.compacted_bytes, rel=0.02)
        wear = log_wear(path, Use()).amplification
        assert wear.cleaning < 1.01 < wear.compaction
        assert wear.total == pytest.approx(found.programmed_bytes / found.host_bytes)


def step_lsns(store):
    maps = next(iter(store.index.sequences.values())).maps.values()
    return {extent.coded.lsn for extents in maps for extent in extents if extent.coded.step is not None}


@pytest.mark.parametrize("length", [0, 1, 63, 64, 100, 199, 200])
def test_a_truncated_sequence_goes_on_from_there(tmp_path, length):
    parts = data(200, 1)
    with make(tmp_path / "c", residual=16, sinks=4) as store:
        sequence = store.sequence("a")
        append(sequence, parts)
        sequence.truncate(length)
        check(sequence, cut(parts, length))
        append(sequence, data(70, 9))
        store.compact()
        check(sequence, join(cut(parts, length), data(70, 9)))
    with kv.open(tmp_path / "c", "a") as store:
        check(store.sequence("a"), join(cut(parts, length), data(70, 9)))


def test_what_a_window_has_left_cannot_come_back(tmp_path):
    with make(tmp_path / "c", window=32) as store:
        append(store.sequence("a"), data(300, 1))
        with pytest.raises(ShapeError, match="window of 32 has gone on"):
            store.sequence("a").truncate(100)
        with pytest.raises(ShapeError, match="window of 32 has gone on"):
            store.fork("a", "b", 100)
        assert len(store.sequence("a")) == 300
        assert store.sequences() == ["a"]


@pytest.mark.parametrize(("residual", "durability"), [(0, "sync"), (20, "step"), (120, "step")])
@pytest.mark.parametrize(("how", "back"), [("truncate", 595), ("truncate", 540), ("fork", 540), ("fork", 600)])
def test_what_cleaning_took_behind_a_window_cannot_come_back(tmp_path, residual, durability, how, back):
    """Records that left the window are erased, but the writer's own index goes on naming them: what it cuts a sequence
    to must be there, now and for whoever opens the log next, or be refused.
    """
    parts = data(600, 1)
    with make(tmp_path / "c", window=100, capacity=1 << 22, residual=residual, durability=durability) as store:
        sequence = store.sequence("a")
        for t in range(0, 600, 10):
            append(sequence, [tuple(x[t : t + 10] for x in own) for own in parts])
        store.compact()
        wanted = {"a": 600}
        try:
            sequence.truncate(back) if how == "truncate" else store.fork("a", "b", back)
            wanted |= {"a": back} if how == "truncate" else {"b": back}
        except ShapeError as error:
            assert "window of 100 has gone on" in str(error)  # noqa: PT017
        for name, length in wanted.items():
            for got, own in zip(store.sequence(name).read(1), parts[1], strict=True):
                assert np.array_equal(got.view(np.uint16), own[length - 100 : length].view(np.uint16))
    with kv.open(tmp_path / "c") as store:
        assert {own.name: len(own) for own in store} == wanted
    assert verify_log(tmp_path / "c").verdict == "clean"


@pytest.mark.parametrize("how", ["truncate", "fork"])
def test_what_is_cleaned_for_the_record_of_a_cut_is_not_what_the_cut_needs(tmp_path, how):
    """A cut is found to be servable, then its own record has a block cleaned, with what a window had left."""
    with make(tmp_path / "c", window=30, capacity=64 * 4096, durability="step") as store:
        parts = data(200, 1)
        for t in range(0, 200, 10):
            append(store.sequence("a"), [tuple(x[t : t + 10] for x in own) for own in parts])
        keep_room = Cleaner.keep_room

        def clean(self, records):
            self.clean_all(0.02, lambda _done, _all: None)
            keep_room(self, records)

        wanted = {"a": 200}
        with mock.patch.object(Cleaner, "keep_room", clean), contextlib.suppress(ShapeError):
            store.fork("a", "b", 150) if how == "fork" else store.sequence("a").truncate(150)
            wanted |= {"b" if how == "fork" else "a": 150}
    with kv.open(tmp_path / "c") as store:
        for name, length in wanted.items():
            check(store.sequence(name), cut(parts, length), window=30)
        assert store.sequences() == list(wanted)


def test_a_cut_on_a_small_device_loses_nothing(tmp_path):
    with make(tmp_path / "c", window=30, capacity=14 * 4096, durability="step") as store:
        sequence = store.sequence("a")
        for t in range(150):
            append(sequence, data(10, t))
            length = len(sequence)
            if length >= 100:
                back = length - (t % 8) * 6
                with contextlib.suppress(ShapeError):
                    sequence.truncate(back)
                    length = back
                assert len(sequence) == length
            if length > 110:
                store.drop("a")
                sequence = store.sequence("a")


@pytest.mark.parametrize("how", ["close", "sync"])
@pytest.mark.parametrize("ahead", [30, 50, 100])
def test_a_layer_with_a_window_that_is_ahead_takes_nothing_from_the_others(tmp_path, ahead, how):
    """Its window has left tokens behind that the sequence, as long as all layers are, still needs."""
    parts, more = data(56, 1), data(ahead, 9)
    store = make(tmp_path / "c", window=40, capacity=1 << 20)
    append(store.sequence("a"), parts)
    store.sequence("a").append(1, *more[1])
    store.sync()
    assert len(store.sequence("a")) == 56
    store.close() if how == "close" else store.abandon()
    with kv.open(tmp_path / "c") as reader:
        assert len(reader.sequence("a")) == 56
        for layer, first in ((0, 0), (1, 16)):
            for got, own in zip(reader.sequence("a").read(layer), parts[layer], strict=True):
                assert np.array_equal(got.view(np.uint16), own[first:].view(np.uint16))
    assert verify_log(tmp_path / "c").verdict == "clean"


@pytest.mark.parametrize("what", ["truncate", "fork"])
def test_what_a_window_forgot_stays_forgotten_for_the_next_writer(tmp_path, what):
    """A group is cleaned away, and the raw steps that it took the place of are not."""
    path, steps = tmp_path / "c", 80
    with make(path, capacity=400 * 4096, window=100, residual=20, k="int4/channel/g16", v="int4/token/g16") as store:
        sequence = store.sequence("a")
        append(sequence, data(steps, 1))
        store.sync()  # all of them are steps
        append(store.sequence("x"), data(300, 2))
        append(sequence, data(10, 3))  # the first group leaves
        groups = [sequence._index.maps[1, stream].covering(0, 64) for stream in (StreamId.K, StreamId.V)]
        held = {part.place.block for own in groups for extent in own for part in extent.coded.parts}
        append(sequence, data(200, 4))
        append(store.sequence("y"), data(300, 5))
        store.sync()
        assert store._cleaner.empty(held)
        with pytest.raises(ShapeError, match="has gone on"):
            sequence.truncate(60)
    with kv.open(path, "a") as store:
        sequence = store.sequence("a")
        with pytest.raises(ShapeError, match="has gone on"):
            sequence.truncate(60) if what == "truncate" else store.fork("a", "b", 60)
        sequence.truncate(289)
        assert sequence.held(1) == range(189, 289)
        sequence.read(1)


def test_a_cut_leaves_streams_that_it_does_not_reach_as_they_are(tmp_path):
    """K is all in its window, exact; V is cut within a group, and is taken up from the journal again."""
    x = rows(0, "k", 150, 1, 16)
    model = kv.Model.uniform(1, 1, 16)
    with kv.open(tmp_path / "c", "w", model=model, residual={"k": 128, "v": 0}, sinks=0, durability="step",
                 k="int4/channel/g64", v="int4/token/g16", journal="int8/token/g16") as store:  # fmt: skip
        sequence = store.sequence("a")
        sequence.append(0, x, x)
        sequence.truncate(120)
        assert np.array_equal(sequence.read(0)[0], x[:120])
        sequence.append(0, x[120:], x[120:])
        assert np.array_equal(sequence.read(0)[0][22:], x[22:])
        assert len(sequence) == 150


def test_attention_over_a_window_needs_nothing_that_it_has_left(tmp_path):
    """Blocks behind a window are erased; those who attended to them once, writer and reader, go on."""
    parts, q = data(600, 1), np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)
    with (
        make(tmp_path / "c", window=100, capacity=1 << 21, durability="step") as store,
        kv.open(tmp_path / "c") as reader,
    ):
        for t in range(0, 600, 10):
            append(store.sequence("a"), [tuple(x[t : t + 10] for x in own) for own in parts])
            if t % 100 == 90:
                store.compact()
            outs = [one.sequence("a").attend(1, q) for one in (store, reader)]
            assert np.allclose(*outs, rtol=0.02, atol=0.02)


def test_attention_in_one_thread_while_another_cleans(tmp_path):
    """A writer's own blocks may be erased under a query: it is asked again, as in a reader."""
    q = np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)
    with make(tmp_path / "c", capacity=64 * 16384, device="page=256,unit=64,block=16384") as store:
        for n in range(4):
            append(store.sequence("a"), data(64, n))
            append(store.sequence("x"), data(64, 50 + n))
        store.sync()
        wanted, run, cleaned = store.sequence("a").attend(0, q), attending.attend_places, []

        def clean_beneath(*args, **options):
            states = run(*args, **options)
            if not cleaned:
                with ThreadPoolExecutor(1) as other:
                    other.submit(store.drop, "x").result()
                    cleaned.append(other.submit(store.compact).result())
            return states

        with mock.patch.object(attending, "attend_places", clean_beneath):
            assert np.allclose(store.sequence("a").attend(0, q), wanted)
        assert cleaned[0]


def test_half_the_sequences_dropped_is_half_the_file(tmp_path):
    path = tmp_path / "c"
    with make(path, capacity=1 << 24, device="page=1024,unit=256,block=16384") as store:
        for n in range(16):
            append(store.sequence(str(n)), data(400, n))
        store.sync()
        before = path.stat().st_blocks
        with kv.open(path) as reader:
            for n in range(0, 16, 2):
                store.drop(str(n))
            store.sync()
            store.compact()
            assert 0.45 <= path.stat().st_blocks / before <= 0.55
            for n in range(1, 16, 2):
                check(reader.sequence(str(n)), data(400, n))
            with pytest.raises(UnknownSequence):
                reader.sequence("0")


@pytest.mark.parametrize("oldest", [True, False])
def test_a_full_device_is_cleaned_while_it_is_written(tmp_path, oldest):
    lot, kept, number = np.random.default_rng(0), {}, itertools.count()
    path, tokens = tmp_path / "c", 60
    with make(path, capacity=48 * 4096, durability="step") as store:
        for _ in range(120):
            while sum(len(p[0][0]) for p in kept.values()) > 600:
                name = next(iter(kept)) if oldest else lot.choice(list(kept))
                store.drop(name)
                del kept[name]
            name = f"s{next(number)}"
            kept[name] = data(tokens, next(number))
            append(store.sequence(name), kept[name])
        for name, parts in kept.items():
            check(store.sequence(name), parts)
        counts = store.device.erase_counts
        assert sum(counts.values()) > 48
    for keep in (True, False):
        if not keep:
            sidecar_path(path).unlink()
        with kv.open(path) as store:
            assert sorted(store.sequences()) == sorted(kept)
            for name, parts in kept.items():
                check(store.sequence(name), parts)
    assert verify_log(path).verdict == "clean"


def test_no_append_waits_long_for_cleaning(tmp_path):
    """In times of the device: what an append programs and erases, at the price of its geometry."""
    device = kv.Geometry.parse("page=2048,unit=2048,block=65536")
    options = {"device": device, "capacity": 40 * 65536, "durability": "step", "residual": 64, "sinks": 0}
    x = [np.ones((1, 2, 32), np.float32)] * 4
    times, names = [], []
    with (
        mock.patch.object(Image, "sync"),
        kv.open(tmp_path / "c", "w", model=kv.Model.uniform(4, 2, 32), **options) as store,
    ):
        for number in range(10):
            names.append(str(number))
            sequence = store.sequence(str(number))
            for _ in range(200):
                before = count(store.device)
                sequence.append_step(x, x)
                units, erases = count(store.device) - before
                times.append(units / device.page_bytes * device.program_ns + erases * device.erase_ns)
            if len(names) > 4:
                store.drop(names.pop(number % 3))
        assert sum(store.device.erase_counts.values()) > 20
    assert max(times) <= 20 * np.median(times)


def test_an_append_of_many_blocks_has_them_cleaned_first(tmp_path):
    """Fewer blocks are erased than it takes, though more than are kept erased: what is dead makes up for them."""
    with make(tmp_path / "c", capacity=60 * 4096) as store:
        append(store.sequence("a"), data(300, 1))
        append(store.sequence("b"), data(300, 2))
        store.drop("a")
        parts = data(480, 9)
        assert store.device.erased_blocks > store._cleaner.reserve
        append(store.sequence("c"), parts)
        check(store.sequence("c"), parts)
        check(store.sequence("b"), data(300, 2))
        assert sum(store.device.erase_counts.values()) > 0


def count(device):
    """Bytes programmed and blocks erased."""
    return np.array([sum(own.programmed for own in device.counters.values()), sum(device.erase_counts.values())])


class Life(RuleBasedStateMachine):
    """Any order of what may befall sequences, against a dict; crashes and reopening among it."""

    names = st.sampled_from("abcd")

    @initialize(
        seed=st.integers(0, 99),
        residual=st.sampled_from([0, 20]),
        window=st.sampled_from([0, 0, 30]),
        lru=st.booleans(),
    )
    def begin(self, seed, residual, window, lru):
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.seed, self.window = Path(self.folder.name) / "c", itertools.count(seed * 1000), window
        make(self.path, capacity=40 * 4096, residual=residual, window=window).close()
        self.options = {"durability": "step"} | ({"cap": 38 * 4096, "when_full": "lru"} if lru else {})
        self.store, self.reader = kv.open(self.path, "a", **self.options), kv.open(self.path)
        self.known, self.evicted = {}, {}
        self.units, self.late = {}, {}  # what summaries stand for, and which of their rows are seen from where on

    def teardown(self):
        if hasattr(self, "store"):
            self.reader.close()
            self.store.close()
            self.folder.cleanup()

    @rule(name=names, tokens=st.integers(1, 90))
    def append(self, name, tokens):
        parts = data(tokens, next(self.seed))
        if not self.does(lambda: append(self.store.sequence(name), parts), name):
            return
        self.known[name] = join(self.known[name], parts) if name in self.known else parts
        self.evicted.setdefault(name, [])
        self.units.setdefault(name, [])
        self.late.setdefault(name, {})

    def drop_others(self, *used):
        """Forget sequences that had to go for others. Raises AssertionError for those that may not."""
        for name in set(self.known) - set(self.store.sequences()):
            assert "when_full" in self.options
            assert name not in used
            self.forget(name)

    def forget(self, name):
        del self.known[name], self.evicted[name], self.units[name], self.late[name]

    def does(self, work, name):
        """Whether there was room for something that is done to a sequence. If not, all of them are dropped."""
        try:
            work()
        except NoSpace:
            for one in self.store.sequences():
                self.store.drop(one)
            self.known, self.evicted, self.units, self.late = {}, {}, {}, {}
            self.store.compact()
            return False
        self.drop_others(name)
        return True

    def may_cut(self, name, end, work):
        """Whether a sequence could be cut at a token; if not, its window has gone on, or there was no room."""
        try:
            return self.does(work, name)
        except ShapeError as error:
            why = str(error)
        assert self.window
        assert end < len(self.known[name][0][0])
        assert "has gone on" in why
        return False

    def cut(self, name, end):
        """What is said of the first tokens of a sequence; None if a summary lies across their end."""
        if any(first < end < last for first, last in self.units[name]):
            return None
        return (
            cut(self.known[name], end),
            [(first, min(last, end)) for first, last in self.evicted[name] if first < end],
            [unit for unit in self.units[name] if unit[1] <= end],
            {token: seen for token, seen in self.late[name].items() if token < end},
        )

    def set(self, name, state):
        self.known[name], self.evicted[name], self.units[name], self.late[name] = state

    def refuses(self, name, first, end):
        """Whether a range has tokens that are in no record of their own, or some of a summary's, but not all."""
        settled = min(own.first for own in self.store.sequence(name)._open.values())
        return end > settled or any(a < end and first < b and not first <= a < b <= end for a, b in self.units[name])

    def take_out(self, name, first, end):
        """Forget what was said of a range."""
        self.units[name] = [unit for unit in self.units[name] if not first <= unit[0] < end]
        self.late[name] = {token: seen for token, seen in self.late[name].items() if not first <= token < end}

    @precondition(lambda self: self.known)
    @rule(lot=st.randoms())
    def drop(self, lot):
        name = lot.choice(sorted(self.known))
        self.store.drop(name)
        self.forget(name)

    @precondition(lambda self: self.known)
    @rule(lot=st.randoms(), new=st.sampled_from("xyz"))
    def fork(self, lot, new):
        name = lot.choice(sorted(self.known))
        if new in self.known:
            return
        end = lot.randint(0, len(self.known[name][0][0]))
        if (state := self.cut(name, end)) is None:
            with pytest.raises(ShapeError, match="summary"):
                self.store.fork(name, new, end)
            return
        if self.may_cut(name, end, lambda: self.store.fork(name, new, end)):
            self.set(new, state)

    @precondition(lambda self: self.known)
    @rule(lot=st.randoms())
    def truncate(self, lot):
        name = lot.choice(sorted(self.known))
        end = lot.randint(0, len(self.known[name][0][0]))
        if (state := self.cut(name, end)) is None:
            with pytest.raises(ShapeError, match="summary"):
                self.store.sequence(name).truncate(end)
            return
        if self.may_cut(name, end, lambda: self.store.sequence(name).truncate(end)):
            self.set(name, state)

    @precondition(lambda self: self.known)
    @rule(lot=st.randoms())
    def evict(self, lot):
        name = lot.choice(sorted(self.known))
        length = len(self.known[name][0][0])
        if length < 2:
            return
        first, end = sorted(lot.sample(range(length + 1), 2))
        if self.refuses(name, first, end):
            with pytest.raises(ShapeError):
                self.store.sequence(name).evict(first, end)
            return
        if not self.does(lambda: self.store.sequence(name).evict(first, end), name):
            return
        self.take_out(name, first, end)
        self.evicted[name].append((first, end))

    @precondition(lambda self: self.known and not self.window)
    @rule(lot=st.randoms(), share=st.floats(0, 1), late=st.integers(0, 60))
    def summarize(self, lot, share, late):
        name = lot.choice(sorted(self.known))
        length = len(self.known[name][0][0])
        if length < 2:
            return
        first, end = sorted(lot.sample(range(length + 1), 2))
        count = max(1, round(share * min(end - first, 60)))
        new = data(count, next(self.seed))
        seen = [lot.randint(end, end + late) for _ in range(count)]
        if self.refuses(name, first, end):
            with pytest.raises(ShapeError):
                self.store.sequence(name).summarize(first, end, dict(enumerate(new)), visible_from=seen)
            return
        own = self.store.sequence(name)
        if not self.does(lambda: own.summarize(first, end, dict(enumerate(new)), visible_from=seen), name):
            return
        self.take_out(name, first, end)
        self.known[name] = put(self.known[name], first, new)
        pairs = [((a, min(b, first)), (max(a, end), b)) for a, b in self.evicted[name]]
        self.evicted[name] = [(a, b) for pair in pairs for a, b in pair if a < b] + [(first + count, end)]
        self.units[name].append((first, end))
        self.late[name] |= dict(enumerate(seen, first))

    @rule()
    def compact(self):
        self.store.compact()

    @rule(crash=st.booleans(), sidecar=st.booleans())
    def reopen(self, crash, sidecar):
        self.store.sync() if crash else None
        self.store.abandon() if crash else self.store.close()
        if not sidecar:
            sidecar_path(self.path).unlink(missing_ok=True)
        self.store = kv.open(self.path, "a", **self.options)
        self.drop_others()

    @invariant()
    def holds(self):
        for store in (self.store, self.reader):
            assert sorted(store.sequences()) == sorted(self.known)
            for name, parts in self.known.items():
                check(store.sequence(name), parts, self.evicted[name], self.late[name], self.window)
                told = [(own.first, own.end) for own in store.sequence(name).summaries(1)]
                assert told == sorted(self.units[name])


TestAnyOrder = Life.TestCase
TestAnyOrder.settings = short(6)


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(times(100, 10_000)))
def test_any_order_of_20_times_100_steps(shard):
    run_shard(Life, shard, 100)
