"""System calls that fail under a log, each of them, once and from then on: one clear error or success, nothing that was
acknowledged lost, and nothing left behind.
"""

import contextlib
import errno
import gc
import itertools
import os
import random
import shutil
import signal
from unittest import mock

import pytest

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import DeviceError, KvcodecError, NoSpace
from kvcodec.flash import image as image_module
from kvcodec.flash.device import Device
from tests.lives import NOTHING, all_same, between, perform, plan, read_all
from tests.syscalls import KINDS, Fault, Syscalls
from tests.test_lifecycle import append, check, data, make, model

DEVICE = {"device": "page=256,unit=64,block=8192", "capacity": 20 * 8192}
SHARDS = 8
SAMPLE = 2  # of the calls that may fail in each way, in the tests that always run
QUIET = ("EINTR", "short")  # faults that nobody is to notice

# what the first writer does, one whose process ends, one that comes after it, and one more
BEGUN = [
    ("append", "a", 70, 1), ("sync",), ("append", "b", 80, 2), ("fork", "a", "c", 40), ("sync",),
    ("evict", "a", 0, 64), ("truncate", "b", 70), ("append", "a", 64, 3), ("drop", "c"),
]  # fmt: skip
BROKEN_OFF = [
    ("append", "d", 130, 4), ("drop", "b"), ("compact",), ("append", "e", 60, 5), ("sync",),
    ("append", "e", 150, 6),
]  # fmt: skip
STEPS = [
    ("append", "a", 1, 7), ("append", "e", 2, 8), ("drop", "d"), ("append", "f", 60, 9), ("append", "f", 70, 10),
    ("truncate", "f", 66), ("append", "f", 40, 11), ("drop", "e"), ("append", "g", 100, 12), ("fork", "g", "h", 30),
    ("compact",), ("append", "g", 3, 13), ("append", "g", 70, 14),
]  # fmt: skip

SHORT = [("append", "a", 70, 1), ("fork", "a", "c", 40), ("sync",), ("drop", "a"), ("compact",), ("append", "c", 30, 2)]


class Life:
    """A log that is written by one process after the other while system calls fail.

    states: how its sequences may stand; the first of them is acknowledged. after: whether a store is used on after an
    error, or opened again.
    """

    def __init__(self, folder, fault, after=True, short=False):
        self.path, self.calls, self._after, self._short = folder / "c", Syscalls(folder, fault), after, short
        self.states, self.known, self.errors, self._synced = [{}], {}, [], None

    def run(self):
        descriptors = _descriptors()
        with self.calls.watching():
            self._write("w", SHORT if self._short else BEGUN)
            if not self._short:
                self._write("a", BROKEN_OFF, broken_off=True)
                self._write("a", STEPS, durability="step")
            self._look()
        self._look()
        self._go_on()
        assert not self.calls.wrong
        left = {path.name for path in self.path.parent.iterdir()} - {"c", "c.idx"}
        assert not left or {"unlink", "replace"} & set(self.calls.failed), (left, self.calls.failed)
        gc.collect() if _descriptors() != descriptors else None
        assert _descriptors() == descriptors
        for left_over in left:
            (self.path.parent / left_over).unlink()

    def _write(self, mode, steps, *, broken_off=False, **options):
        """A session of a writer; it begins anew where that fails."""
        store = self._open(mode, **options)
        durable = "durability" in options
        self._settle(read_all(store))
        for step in steps:
            try:
                planned = plan(self.known, step)
            except LookupError:  # it stands on one that failed
                continue
            try:
                perform(store, step)
                self.known = planned
                self.states.append(planned)
                if durable or step[0] == "sync":
                    self._settle(planned)
                    self._synced = _end_of(store)
            except KvcodecError as error:
                self._failed(error)
                self.states.append(planned)
                if not self._stands(store, step, planned) or not self._after:
                    store = self._open_again(store, options)
        if broken_off:
            return self._break_off(store)
        try:
            store.close()
            self._settle(self.known)
        except KvcodecError as error:
            self._failed(error)
        return None

    def _failed(self, error):
        self.errors.append(str(error))  # without the frames that it came from, which hold maps
        assert self.calls.failed, error
        assert self.calls.fault.kind not in QUIET

    def _settle(self, known):
        """All of this is acknowledged."""
        assert between(known, self.states)
        self.known, self.states = known, [known]

    def _stands(self, store, step, planned):
        """Whether a store that refused a step can be read; then it stands as before the step or as after it, or has
        begun a sequence for it.
        """
        try:
            found = read_all(store)
        except KvcodecError as error:
            self._failed(error)
            return False
        begun = self.known | ({step[1]: NOTHING} if step[0] == "append" and step[1] not in self.known else {})
        stands = [known for known in (self.known, begun, planned) if all_same(found, known)]
        assert stands
        self.known = stands[0]
        self.states.append(self.known)
        return True

    def _open_again(self, store, options):
        self._abandon(store)
        store = self._open("a", **options)
        self._settle(read_all(store))
        return store

    def _abandon(self, store):
        try:
            store.abandon()
        except KvcodecError as error:
            self._failed(error)

    def _open(self, mode, **options):
        """A writer, in the end: a disk that fails for ever is mended once it has kept one from coming."""
        for _ in range(3):
            try:
                if mode == "w" and self.path.name not in os.listdir(self.path.parent):
                    return make(self.path, **DEVICE)
                return kv.open(self.path, "a", **options)
            except KvcodecError as error:
                self._failed(error)
                if mode == "w":
                    self._is_whole_or_nothing()
                self.calls.fault = None if self.calls.fault.forever else self.calls.fault
        raise AssertionError("no writer can open the log")

    def _is_whole_or_nothing(self):
        with mock.patch.object(self.calls, "fault", None):
            if self.path.exists():
                kv.open(self.path).close()
                assert verify_log(self.path).verdict == "clean"

    def _break_off(self, store):
        """The process ends, and the first unit of what was not synced is lost with its power."""
        self._abandon(store)
        if not self.errors:
            block, unit = self._synced
            with mock.patch.object(self.calls, "fault", None):
                device = Device.open(self.path)
                offset = device._spare_offset(block, unit)
                device.close()
            with open(self.path, "r+b") as file:
                file.seek(offset)
                file.write(bytes(16))

    def _look(self):
        """What a reader finds."""
        try:
            with kv.open(self.path) as store:
                found = read_all(store)
        except KvcodecError as error:
            return self._failed(error)
        assert between(found, self.states)
        return None

    def _go_on(self):
        with kv.open(self.path, "a") as store:
            found = read_all(store)
            assert between(found, self.states)
            store.compact()
            append(store.sequence("new"), data(70, 99))
        with kv.open(self.path) as store:
            again = read_all(store)
        again.pop("new")
        assert all_same(again, found)
        assert verify_log(self.path).verdict == "clean"


def _end_of(store):
    """Block and unit at which a writer goes on."""
    writer = store._writers.fresh
    return writer.block.number, writer._unit_start // 64


def _descriptors():
    return len(os.listdir("/proc/self/fd"))


def run(folder, fault):
    short = fault is not None and fault.kind == "EIO of fstat"
    life = Life(folder, fault, after=fault is None or fault.at % 2 == 0, short=short)
    life.run()
    return life


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    """How many calls there are that each kind of fault can befall."""
    life = run(tmp_path_factory.mktemp("counted"), None)
    short = run(tmp_path_factory.mktemp("short"), Fault("EIO of fstat", 1 << 62))
    assert not life.errors
    assert not short.errors
    return life.calls.counts | {"EIO of fstat": short.calls.counts["EIO of fstat"]}


WAYS = [(kind, forever) for kind in KINDS for forever in (False, True) if (kind, forever) != ("EINTR", True)]


@pytest.mark.parametrize(("kind", "forever"), WAYS)
def test_some_calls_fail(tmp_path, counts, kind, forever):
    assert counts[kind] > 150
    lot = random.Random(f"{kind} {forever}")
    for at in lot.sample(range(counts[kind]), 1 if forever or kind in QUIET else SAMPLE):
        (tmp_path / str(at)).mkdir()
        run(tmp_path / str(at), Fault(kind, at, forever))


def test_signals_are_not_noticed(tmp_path):
    """Some real ones, as often as the life can take them."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        assert not run(tmp_path, None).errors
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["ENOSPC", "EIO"])
def test_a_new_log_is_whole_or_not_there(tmp_path, kind, overwrite):
    """Each call of its making fails in turn. Of an old one all is left until then."""
    path, old = tmp_path / "c", tmp_path / "old"
    with make(old, **DEVICE) as store:
        append(store.sequence("old"), data(30, 1))
    at, failed = 0, True
    while failed:
        path.write_bytes(old.read_bytes()) if overwrite else path.unlink(missing_ok=True)
        calls = Syscalls(tmp_path, Fault(kind, at))
        with calls.watching():
            try:
                new = kv.open(path, "w", model=model(), overwrite=overwrite, **DEVICE)
                new.abandon()
            except DeviceError:
                pass
        at, failed = at + 1, bool(calls.failed)
        if path.exists():
            with kv.open(path) as store:
                assert store.sequences() in ([], ["old"])
                assert not (store.sequences() and not calls.failed)
        left = {one.name for one in tmp_path.iterdir()} - {"c", "old", "old.idx"}
        assert not left or "unlink" in calls.failed
        for name in left:
            (tmp_path / name).unlink()
    assert at > 8


def test_a_cleaning_that_finds_no_room_loses_nothing(tmp_path):
    """Each reservation of a compaction fails in turn; what was to be copied then still is when the log is cleaned."""
    path, parts, failed, at = tmp_path / "c", data(200, 1), True, 0
    while failed:
        with make(path, **DEVICE) as store:
            append(store.sequence("gone"), data(70, 2))
            append(store.sequence("a"), parts)
            append(store.sequence("gone"), data(70, 3))
            store.sync()
            store.drop("gone")
            with no_room(at) as refused, contextlib.suppress(NoSpace):
                store.compact()
            for n in range(8):
                append(store.sequence("b"), data(40, n))
                store.drop("b")
            check(store.sequence("a"), parts)
        with kv.open(path) as reader:
            check(reader.sequence("a"), parts)
        at, failed = at + 1, bool(refused)
    assert at > 3


@contextlib.contextmanager
def no_room(at):
    """Reservation number `at` finds the disk full; whether it did is in the list that this gives."""
    real, left, refused = image_module._fallocate, itertools.count(), []

    def fallocate(fd, how, offset, length):
        if not how & 2 and next(left) == at:
            refused.append(offset)
            raise OSError(errno.ENOSPC, "full")
        real(fd, how, offset, length)

    with mock.patch.object(image_module, "_fallocate", fallocate):
        yield refused


def test_a_writer_that_cannot_read_what_it_wrote_stops(tmp_path):
    """Else it would give the number of a sequence to another one."""
    with make(tmp_path / "c", **DEVICE) as store:
        append(store.sequence("a"), data(64, 1))
    store = kv.open(tmp_path / "c", "a")
    with mock.patch.object(store.index, "enter", side_effect=DeviceError(5, "broken")), pytest.raises(DeviceError):
        store.fork("a", "b")
    for use in (lambda: store.fork("a", "c"), lambda: store.sequence("a"), store.sync, store.compact):
        with pytest.raises(DeviceError, match="broken"):
            use()
    store.close()
    with kv.open(tmp_path / "c") as store:
        assert store.sequences() == ["a", "b"]
        assert len(store.sequence("b")) == 64


@pytest.mark.campaign
@pytest.mark.parametrize(("kind", "forever"), WAYS)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_each_call_fails(tmp_path, counts, kind, forever, shard):
    for at in range(shard, counts[kind], SHARDS):
        folder = tmp_path / str(at)
        folder.mkdir()
        run(folder, Fault(kind, at, forever))
        shutil.rmtree(folder)
