"""Power fails behind every program and erase of a log whose sequences come and go: nothing that was synced is lost, and
nothing is ever there that nobody wrote.
"""

import contextlib
import itertools
import os
import random
from unittest import mock

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import EraseFailed, KvcodecError, ShapeError
from kvcodec.flash.device import Device
from kvcodec.layout import NO_FRAME, SPARE_SLOT
from kvcodec.log.sidecar import sidecar_path
from tests.campaigns import times
from tests.lives import between, cut_known, read_all, same
from tests.power import Erase, Recorder, Sync, Write, after_loss, apply
from tests.test_lifecycle import append, cut, data, join, make, put

GEOMETRIES = {
    "page=256,unit=64,block=4096": 52 * 4096,
    "page=512,unit=512,block=8192": 32 * 8192,
    "page=2048,unit=2048,block=16384": 24 * 16384,
    "page=64,unit=64,block=8192": 24 * 8192,
    "page=1024,unit=256,block=32768": 16 * 32768,
}
WINDOWS = {"page=512,unit=512,block=8192": 30, "page=64,unit=64,block=8192": 70}  # of the last layer
SHARDS, PAIR_SHARDS = 8, 80
SAMPLE = 40  # of the places where power fails, in the tests that always run


class Story:
    """A log with a past: what was asked of its file, and how its sequences stood after each step and at each sync.

    window: of the last layer. options: of the writer.
    """

    def __init__(self, folder, device, seed, capacity=None, window=0, **options):
        self.recorder, self.states, self.acknowledged = Recorder(), [({}, 0)], [(0, 0)]
        self.path, self.window, lot = folder / "c", window, random.Random(seed)
        with make(self.path, capacity=capacity or GEOMETRIES[device], device=device, window=window) as store:
            store.sync()
        self.device = device
        self.before, self.unit = self.path.read_bytes(), kv.Geometry.parse(device).unit_bytes
        with self.recorder.recording():
            store = kv.open(self.path, "a", **options)
            known = {}
            for n in range(60):
                known = self._step(store, dict(known), lot, n)
                self.states.append((known, len(self.recorder.asked)))
                if n % 4 == 3:
                    store.sync()
                    self.acknowledged.append((len(self.states) - 1, len(self.recorder.asked)))
            self.retired = store.device.retired
            store.abandon()
        self.asked = self.recorder.asked

    @staticmethod
    def _step(store, known, lot, n):
        """What cannot be for a summary's or a window's sake is not done."""
        with contextlib.suppress(ShapeError):
            Story._do(store, known, lot, n)
        while sum(len(rows[0][0]) for rows, _ in known.values()) > 700:
            name = min(known)
            store.drop(name)
            del known[name]
        return known

    @staticmethod
    def _do(store, known, lot, n):
        what = lot.choice(["append"] * 6 + ["drop", "drop", "fork", "truncate", "evict", "summarize", "compact"])
        name = lot.choice(sorted(known)) if known else None
        if what == "compact":
            store.compact()
        elif what == "append" or name is None or sum(len(rows[0][0]) for rows, _ in known.values()) < 60:
            name = lot.choice("abcd")
            parts = data(lot.randint(1, 80), n)
            append(store.sequence(name), parts)
            rows, gone = known.get(name, (cut(parts, 0), ()))
            known[name] = join(rows, parts), gone
        elif what == "drop":
            store.drop(name)
            del known[name]
        elif what == "fork":
            end = lot.randint(0, len(known[name][0][0][0]))
            store.fork(name, f"f{n}", end)
            known[f"f{n}"] = cut_known(known[name], end)
        elif what == "truncate":
            end = lot.randint(0, len(known[name][0][0][0]))
            store.sequence(name).truncate(end)
            known[name] = cut_known(known[name], end)
        else:
            rows, gone = known[name]
            end = len(rows[0][0]) // 64 * 64
            first, count = end - 64, 0
            if end and what == "evict":
                store.sequence(name).evict(first, end)
            elif end:
                first, count = end - lot.choice([20, 64, 64]), lot.randint(1, 20)
                new = data(count, n)
                store.sequence(name).summarize(first, end, dict(enumerate(new)))
                rows = put(rows, first, new)
            if end:
                gone = {*gone, *range(first, end)} - {*range(first, first + count)}
                known[name] = rows, tuple(sorted(gone))

    def check(self, count, image):
        """That a log is as it may be once power failed behind `count` things of those asked, and can be written."""
        path = self._lay(image)
        least = max(state for state, asked in self.acknowledged if asked <= count)
        most = max(n for n, (_, asked) in enumerate(self.states) if asked <= count) + 1
        allowed = [known for known, _ in self.states[least : most + 1]]
        for mode in "ra":  # a writer completes a unit that the file ends within
            with kv.open(path, mode) as store:
                found = read_all(store)
                store.abandon()
            lengths = {n: len(r[0][0][0]) for n, r in found.items()}
            assert between(found, allowed, self.window), (mode, count, least, most, lengths)
        self._write_on(path)
        assert self._go_on_from(path, found) == 70

    def check_twice(self, image, chosen, lot=None):
        """That what a log holds outlasts a second loss of power while a writer takes it up, cleans and appends.

        chosen: of how many things asked then it picks those behind which power fails.
        """
        path = self._lay(image)
        with kv.open(path, "a") as store:
            found = read_all(store)
            store.abandon()
        image, second = path.read_bytes(), Recorder()
        with second.recording():
            self._write_on(path)
        for count in chosen(len(second.asked)):
            self._go_on_from(self._lay(after_loss(image, second.asked, count, self.unit, lot)), found)

    def _lay(self, image):
        path = self.path.with_name("lost")
        path.write_bytes(image)
        sidecar_path(path).unlink(missing_ok=True)
        return path

    @staticmethod
    def _write_on(path):
        with kv.open(path, "a") as store:
            store.compact()
            append(store.sequence("new"), data(70, 99))
            store.sync()

    def _go_on_from(self, path, found):
        """How much there is of what was appended since; the rest is as it was found."""
        with kv.open(path) as store:
            again = read_all(store)
            rows, gone = again.pop("new", (cut(data(70, 99), 0), ()))
        length = len(rows[0][0])
        assert same((rows, gone), (cut(data(70, 99), length), ()), window=self.window)
        assert sorted(again) == sorted(found)
        assert all(same(again[name], found[name], window=self.window) for name in found)
        return length


@pytest.fixture(scope="module", params=GEOMETRIES)
def story(request, tmp_path_factory):
    return Story(tmp_path_factory.mktemp("power"), request.param, seed=1, window=WINDOWS.get(request.param, 0))


def places(story, shard, shards):
    wanted = [n + 1 for n, one in enumerate(story.asked) if not isinstance(one, Sync)]
    return wanted[shard::shards]


def test_the_story_is_worth_it(story):
    """Blocks are erased, of both lanes, and sequences of all sorts are there."""
    erased = [one for one in story.asked if type(one).__name__ == "Erase"]
    assert len(erased) > 3
    assert len(story.asked) > 200


@pytest.mark.parametrize("out_of_order", [False, True])
def test_power_fails_here_and_there(story, out_of_order):
    lot = random.Random(7)
    chosen = sorted(lot.sample(range(1, len(story.asked) + 1), SAMPLE // 4))
    for count in chosen:
        own = random.Random(count) if out_of_order else None
        story.check(count, after_loss(story.before, story.asked, count, story.unit, own))


@pytest.mark.parametrize("cut", ["in the header's slot", "in the slot of the first frame", "before the last unit"])
def test_a_block_that_is_half_erased_is_no_damage(story, cut):
    """Where no frame of it is left, it is erased when a writer comes; else when it is cleaned."""
    path = story.path.with_name("half")
    erases = [n for n, one in enumerate(story.asked) if isinstance(one, Erase)]
    for n in random.Random(5).sample(erases, 4):
        image, whole = bytearray(after_loss(story.before, story.asked, n, story.unit)), story.asked[n]
        slots = np.frombuffer(bytes(image), SPARE_SLOT, kv.Geometry.parse(story.device).units_per_block, whole.offset)
        last = int(np.flatnonzero(slots["generation"])[-1])
        length = {"in the header's slot": 5, "in the slot of the first frame": 24}.get(cut, 16 * last)
        apply(image, whole._replace(length=length))
        path.write_bytes(image)
        sidecar_path(path).unlink(missing_ok=True)
        assert verify_log(path).verdict in ("clean", "torn tail")
        kv.open(path, "a").close()
        if cut == "before the last unit" and slots[last]["first_frame"] == NO_FRAME:
            assert not any(path.read_bytes()[whole.offset : whole.offset + whole.length])
        assert verify_log(path).verdict == "clean"


@pytest.mark.campaign
@pytest.mark.parametrize("out_of_order", [False, True])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_power_fails_at_every_program_and_erase(story, shard, out_of_order):
    for count in places(story, shard, SHARDS):
        own = random.Random(count) if out_of_order else None
        story.check(count, after_loss(story.before, story.asked, count, story.unit, own))


@pytest.mark.parametrize("out_of_order", [False, True])
def test_power_fails_twice_here_and_there(story, out_of_order):
    lot = random.Random(11)
    for count in lot.sample(range(1, len(story.asked) + 1), 2):
        image = after_loss(story.before, story.asked, count, story.unit, lot if out_of_order else None)
        story.check_twice(image, lambda asked: lot.sample(range(1, asked + 1), 4), lot if out_of_order else None)


@pytest.mark.campaign
@pytest.mark.parametrize("out_of_order", [False, True])
@pytest.mark.parametrize("shard", range(times(1, PAIR_SHARDS)))
def test_power_fails_at_every_pair_of_places(story, shard, out_of_order):
    """Of these `make check` has an eightieth."""
    for count in places(story, shard, PAIR_SHARDS):
        lot = random.Random(count) if out_of_order else None
        image = after_loss(story.before, story.asked, count, story.unit, lot)
        story.check_twice(image, lambda asked: range(1, asked + 1), lot)


@pytest.fixture(scope="module")
def unaccepted(tmp_path_factory):
    """A log that lost power while it was compacted, before any block was erased: of lane KEPT the frame of copies is
    torn, and the FREED record behind it is whole. Gives the file, and where block `number` has byte `offset`.
    """
    path, device, recorder = tmp_path_factory.mktemp("freed") / "c", "page=256,unit=64,block=16384", Recorder()
    with make(path, capacity=24 * 16384, device=device) as store:
        for seed, name in enumerate("yyybxaxab"):
            append(store.sequence(name), data(64, seed))
        store.sync()
        store.drop("x")
    image = bytearray(path.read_bytes())
    with recorder.recording(), kv.open(path, "a") as store:
        store.compact()
        place = store.device.file_offset
        first = (
            place(store._writers.kept.block.number, 64),
            store.device._spare_offset(store._writers.kept.block.number, 1),
        )
    for one in itertools.takewhile(lambda one: not isinstance(one, Erase), recorder.asked):
        apply(image, one)
    for at, size in zip(first, (64, 16), strict=True):
        image[at : at + size] = bytes(size)
    path.write_bytes(image)
    sidecar_path(path).unlink()
    return path, place


def test_a_freed_record_that_was_not_accepted_covers_no_damage_up(unaccepted, tmp_path):
    path, place = unaccepted
    with kv.open(path) as store:
        wanted = {own.name: len(own) for own in store}
        assert wanted == {"y": 192, "b": 128, "a": 128}
        blocks = store.log.fresh.blocks.in_use()
    image = path.read_bytes()
    for block, offset in itertools.product((block.number for block in blocks), range(100, 16384, 1500)):
        damaged = bytearray(image)
        damaged[place(block, offset)] ^= 1
        (tmp_path / "c").write_bytes(damaged)
        try:
            with kv.open(tmp_path / "c") as store:
                assert {own.name: len(own) for own in store} == wanted, (block, offset)
        except KvcodecError:
            continue


@pytest.mark.parametrize("what", ["its header's unit, but not the slot", "its header"])
def test_a_block_that_a_crash_left_and_that_does_not_erase_is_retired(tmp_path, what):
    """The log is as good as without it, and can be written."""
    path, recorder = tmp_path / "c", Recorder()
    with make(path) as store:
        append(store.sequence("a"), data(30, 1))
        append(store.sequence("c"), data(64, 3))
    image = bytearray(path.read_bytes())
    with recorder.recording(), kv.open(path, "a") as store:
        append(store.sequence("a"), data(64, 2))
        block = store.log.fresh.blocks.in_use()[-1].number
        place, slot = store.device.file_offset(block), store.device._spare_offset(block, 0)
    for one in recorder.asked:
        apply(image, one)
        if isinstance(one, Write) and one.offset == (slot if what == "its header" else place):
            break
    path.write_bytes(image)
    sidecar_path(path).unlink(missing_ok=True)
    erase, weak = Device.erase, set[int]()

    def erase_or_fail(device, number):
        weak.update([number] if not weak else [])
        if number in weak:
            raise EraseFailed(5, f"block {number} did not erase", "c")
        erase(device, number)

    with mock.patch.object(Device, "erase", erase_or_fail):
        with kv.open(path, "a") as store:
            length = len(store.sequence("a"))
            assert weak == {block}
            append(store.sequence("a"), data(64, 7))
            append(store.sequence("b"), data(128, 8))
            retired = set(store.device.retired)
        with kv.open(path, recovery="absolute") as store:
            assert {own.name: len(own) for own in store} == {"a": length + 64, "b": 128, "c": 64}
    assert verify_log(path).verdict == "clean"
    assert retired == weak


@pytest.mark.parametrize("device", ["page=256,unit=256,block=4096", "tlc"])
@pytest.mark.parametrize("share", [0.5, 0.75])
def test_a_unit_that_the_file_ends_within_stays_what_it_was_taken_for(tmp_path, device, share):
    """A frame that fits the part of its unit that is there, behind which come zeros as soon as the file grows."""
    path, unit = tmp_path / "c", kv.Geometry.parse(device).unit_bytes
    capacity = 64 * kv.Geometry.parse(device).block_bytes
    with make(path, device=device, capacity=capacity, durability="step") as store:
        append(store.sequence("a"), data(64, 1))
        append(store.sequence("b"), data(10, 2))
        store.drop("b")
        store.abandon()
    sidecar_path(path).unlink(missing_ok=True)
    os.truncate(path, path.stat().st_size - round(unit * (1 - share)))
    with kv.open(path, "a") as store:
        found = store.sequences()
        store.abandon()
    for session in range(3):
        with kv.open(path, "a", durability="step") as store:
            assert store.sequences() == found
            append(store.sequence("a"), data(64, 3 + session))
            store.abandon()
    with kv.open(path) as store:
        assert store.sequences() == found
        assert len(store.sequence("a")) == 4 * 64
    assert verify_log(path).verdict == "clean"
