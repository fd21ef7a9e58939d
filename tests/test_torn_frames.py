"""A frame of which power let some units be written and others not, or halves of them: it is there whole, or not at all,
or, where a later frame proves that it was durable, its loss is damage.
"""

import itertools
import random
from typing import NamedTuple

import pytest

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import KvcodecError
from kvcodec.layout import SPARE_BYTES
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import sidecar_path
from tests.lives import all_same, perform, plan, read_all
from tests.power import Erase, Recorder, Sync, Write, apply
from tests.test_lifecycle import make

UNIT, BLOCK = 64, 4096
DEVICE = {"device": f"page={UNIT},unit={UNIT},block={BLOCK}", "capacity": 24 * BLOCK}
FRAMES = {
    "drop": ("truncate", "a", 3), "one token": ("append", "a", 1, 5), "two tokens": ("append", "a", 2, 5),
    "four tokens": ("append", "a", 4, 5), "fork": ("fork", "a", "b", 4),
}  # fmt: skip
SIZES = {"truncate": 2, "append": 2, "fork": 5}  # units, and two for each token
SAMPLE = 2  # of each kind of tearing, for each frame, in the tests that always run
FATES = ("erased", "new", "old", "garbage")


class Fate(NamedTuple):
    """What becomes of a unit, and of its slot."""

    data: str
    slot: str


class Torn:
    """A log with a frame that ends a block. units: how many it takes. later: whether there is one in the next block,
    which says that it was durable. reused: whether its block held frames of an older generation, which were erased.
    """

    def __init__(self, folder, step, *, later, reused):
        self.path, self.later, recorder = folder / "c", later, Recorder()
        with recorder.recording():
            store = make(self.path, **DEVICE)
            fresh = self.path.read_bytes()
            recorder.asked.clear()
            known = {}
            for one in self._past(store, reused):
                perform(store, one)
                known = plan(known, one)
            size = SIZES[step[0]] + (2 * step[2] if step[0] == "append" else 0)
            while not size <= BLOCK // UNIT - store._writers.fresh._unit_start // UNIT < size + 4:
                for one in (("append", "a", 1, len(known["a"][0][0][0])), ("sync",)):
                    perform(store, one)
                    known = plan(known, one)
            begun = len(recorder.asked)
            perform(store, step)
            store.sync()
            written = [one for one in recorder.asked[begun:] if isinstance(one, Write)]
            done = len(recorder.asked)
            self.before, self.after = known, plan(known, step)
            self.known = self.after
            if later:
                block = store._writers.fresh.block
                for one in (("append", "a", 1, 77), ("sync",)):
                    perform(store, one)
                    self.known = plan(self.known, one)
                assert store._writers.fresh.block != block
            store.abandon()
        self.data, self.slots = (
            Write(own[0].offset, b"".join(one.data for one in own)) for own in (written[::2], written[1::2])
        )
        self.units = len(self.data.data) // UNIT
        assert self.units == size
        self.image = self._replay(fresh, recorder.asked[:begun])
        self._old = self._old_contents(fresh, recorder.asked[:begun])
        self._behind = recorder.asked[done:]

    @staticmethod
    def _past(store, reused):
        yield from [("append", "a", 20, 1), ("sync",)]
        if reused:
            blocks = set()
            while store._writers.fresh.block.number not in blocks or store._writers.fresh.block.erase_count == 0:
                blocks.add(store._writers.fresh.block.number)
                yield from [("append", "x", 60, 2), ("sync",), ("drop", "x"), ("compact",)]

    @staticmethod
    def _replay(before, asked):
        image = bytearray(before)
        for one in asked:
            apply(image, one)
        return bytes(image)

    def _old_contents(self, fresh, asked):
        """Units and slots as they were before the block was erased; zeros if it never was."""
        last = max((n for n, one in enumerate(asked) if isinstance(one, Erase)
                    and one.offset <= self.data.offset < one.offset + one.length), default=0)  # fmt: skip
        image = self._replay(fresh, asked[:last]).ljust(self.data.offset + len(self.data.data), b"\0")
        return [image[one.offset : one.offset + len(one.data)] for one in (self.data, self.slots)]

    def torn(self, fates):
        """The file when this became of the frame's units."""
        lot, image = random.Random(str(fates)), bytearray(self.image)
        for n, fate in enumerate(fates):
            for write, old, size, own in zip(
                (self.data, self.slots), self._old, (UNIT, SPARE_BYTES), fate, strict=True
            ):
                place = slice(n * size, (n + 1) * size)
                content = {
                    "erased": bytes(size), "new": write.data[place], "old": old[place], "garbage": lot.randbytes(size)
                }[own]  # fmt: skip
                apply(image, Write(write.offset + n * size, content))
        for one in self._behind:
            if not isinstance(one, Sync):
                apply(image, one)
        return bytes(image)

    def check(self, fates):
        """That readers and writers make the right thing of it."""
        self.path.write_bytes(self.torn(fates))
        sidecar_path(self.path).unlink(missing_ok=True)
        gone = any(fate.data != "new" or fate.slot == "erased" for fate in fates)
        whole = all(fate == Fate("new", "new") for fate in fates)
        odd = any("garbage" in fate or "old" in fate for fate in fates)
        for mode in Recovery:
            self._check_reader(mode, gone, whole)
        verdict = verify_log(self.path).verdict
        if whole:
            assert verdict == "clean"
        elif self.later:
            assert verdict == "damaged"
        elif not odd:
            assert verdict in ("clean", "torn tail")
        self._check_writer(gone, whole, odd)

    def _check_reader(self, mode, gone, whole):
        try:
            with kv.open(self.path, recovery=mode) as store:
                damage = bool(store.log.report.damage)
                found = None if damage and mode == Recovery.SKIP_DAMAGED else read_all(store)
        except KvcodecError:
            assert not whole
            assert self.later or mode == Recovery.ABSOLUTE or not gone
            return
        if whole:
            assert all_same(found, self.known)
        elif self.later:
            assert damage or (not gone and all_same(found, self.known))
            assert found is None or all_same(found, self.known if not damage else self.before)
        else:
            assert all_same(found, self.before) or (not gone and all_same(found, self.after))

    def _check_writer(self, gone, whole, odd):
        try:
            with kv.open(self.path, "a") as store:
                found = read_all(store)
                perform(store, ("append", "a", 3, 9))
        except KvcodecError:
            assert not whole
            assert self.later or not gone
            return
        assert not (self.later and gone)
        known = next(known for known in (self.known, self.before) if all_same(found, known))
        with kv.open(self.path) as store:
            assert all_same(read_all(store), plan(known, ("append", "a", 3, 9)))
        assert odd or verify_log(self.path).verdict == "clean"


@pytest.fixture(scope="module")
def torn(request, tmp_path_factory):
    name, later, reused = request.param
    return Torn(tmp_path_factory.mktemp("torn"), FRAMES[name], later=later, reused=reused)


ALL = list(itertools.product(FRAMES, (False, True), (False, True)))
EVERY = pytest.mark.parametrize("torn", ALL, indirect=True, ids=lambda own: "-".join(map(str, own)))
FEW_UNITS = [own for own in ALL if own[0] in ("drop", "one token")]
SMALL = pytest.mark.parametrize("torn", FEW_UNITS, indirect=True, ids=lambda own: "-".join(map(str, own)))


def subsets(units):
    """Each unit is there or not."""
    return itertools.product((Fate("erased", "erased"), Fate("new", "new")), repeat=units)


def alike(units):
    """Each unit and its slot are erased, new, old or garbage."""
    return itertools.product([Fate(own, own) for own in FATES], repeat=units)


def apart(units):
    """The same, but the unit and its slot need not be alike."""
    return itertools.product([Fate(*own) for own in itertools.product(FATES, FATES)], repeat=units)


@pytest.mark.parametrize("torn", ALL[1::4], indirect=True, ids=lambda own: "-".join(map(str, own)))
def test_some_frames_are_torn(torn):
    lot = random.Random(torn.units)
    kinds = list(subsets(1)), list(alike(1)), list(apart(1))
    for fates in kinds:
        for _ in range(SAMPLE):
            torn.check([lot.choice(fates)[0] for _ in range(torn.units)])


@pytest.mark.parametrize("torn", [("drop", False, True)], indirect=True)
def test_a_gap_before_a_block_of_a_lower_number_is_none_of_damage(torn):
    """A slot was written and its unit not; the log goes on in a block that lies before this one."""
    torn.check([Fate("erased", "new"), Fate("erased", "new")])
    (gap,) = verify_log(torn.path).gaps
    assert (gap.start, gap.end) == (torn.data.offset, torn.data.offset + len(torn.data.data))


@pytest.mark.campaign
@EVERY
def test_frames_of_which_each_subset_of_units_is_there(torn):
    for fates in subsets(torn.units):
        torn.check(fates)


@pytest.mark.campaign
@SMALL
def test_frames_whose_units_are_erased_new_old_or_garbage(torn):
    for fates in alike(torn.units):
        torn.check(fates)


@pytest.mark.campaign
@SMALL
def test_frames_whose_units_and_slots_are_torn_apart(torn):
    fates = list(apart(torn.units))
    for chosen in random.Random(3).sample(fates, min(len(fates), 500)):
        torn.check(chosen)
