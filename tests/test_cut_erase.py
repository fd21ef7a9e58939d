"""Power fails within an erase, or within a spare slot: at each place, whatever part of it was done."""

import contextlib
import random
from unittest import mock

import pytest

import kvcodec as kv
from kvcodec.bulk.verify import Verdict, verify_log
from kvcodec.flash.device import Device
from kvcodec.log.sidecar import sidecar_path
from tests.power import Erase, Recorder, Write, apply
from tests.test_lifecycle import append, check, data, make

SPARE, UNITS = 4096, 128
WIDE = "page=1024,unit=1024,block=8192"


@pytest.fixture(name="erase", scope="module")
def erase_fixture(tmp_path_factory):
    """A log in front of the erase of a block with all of a dropped sequence, from SEQUENCE to DROP, and that erase."""
    path = tmp_path_factory.mktemp("erase") / "c"
    with make(path, device="page=64,unit=64,block=8192", capacity=24 * 8192) as store:
        for name in ("keep", "x"):
            append(store.sequence(name), data(20, ord(name[0])))
            store.sync()
        store.drop("x")
        store.sync()
        append(store.sequence("z"), data(20, 2))
        store.sync()
    image, recorder = bytearray(path.read_bytes()), Recorder()
    with recorder.recording(), kv.open(path, "a") as store:
        store.compact()
    first, *others = (n for n, one in enumerate(recorder.asked) if isinstance(one, Erase))
    assert not others
    for one in recorder.asked[:first]:
        apply(image, one)
    assert recorder.asked[first].length == SPARE + UNITS * 64
    return image, recorder.asked[first].offset


def erase_units(image, offset, units):
    for unit in units:
        apply(image, Erase(offset + 16 * unit, 16))
        apply(image, Erase(offset + SPARE + 64 * unit, 64))


def holds_what_it_should(path, image):
    path.write_bytes(image)
    sidecar_path(path).unlink(missing_ok=True)
    for mode in "ra":
        with kv.open(path, mode) as store:
            assert store.sequences() == ["keep", "z"]
            check(store.sequence("keep"), data(20, ord("k")))
            check(store.sequence("z"), data(20, 2))
            if mode == "a":
                append(store.sequence("z"), data(5, 3))
    assert verify_log(path).verdict == Verdict.CLEAN


@pytest.mark.parametrize("begins", [True, False], ids=["beginning first", "end first"])
def test_an_erase_that_is_cut_short_brings_nothing_back(tmp_path, erase, begins):
    image, offset = erase
    for done in range(1, UNITS, 3):
        own = bytearray(image)
        erase_units(own, offset, range(done) if begins else range(UNITS - done, UNITS))
        holds_what_it_should(tmp_path / "c", own)


def test_any_part_of_an_erase_brings_nothing_back(tmp_path, erase):
    image, offset = erase
    for seed in range(30):
        lot, own = random.Random(seed), bytearray(image)
        erase_units(own, offset, [unit for unit in range(UNITS) if lot.random() < 0.3])
        holds_what_it_should(tmp_path / "c", own)


class PowerFails(BaseException):
    """Before anything is erased."""


def test_a_sidecar_from_before_frames_were_freed_brings_nothing_back(tmp_path):
    """Blocks that it knows are freed, and yet there: two writers lost power, no erase of theirs reached the medium."""
    path, erase = tmp_path / "c", Device.erase
    with make(path, durability="step") as store:
        append(store.sequence("x"), data(200, 2))
        append(store.sequence("keep"), data(20, 1))
        early = store.device.present_blocks()
    known = sidecar_path(path).read_bytes()
    store = kv.open(path, "a")
    append(store.sequence("y"), data(70, 3))
    store.sequence("x").truncate(64)
    append(store.sequence("y"), data(70, 3))
    store.sync()
    with mock.patch.object(Device, "erase", side_effect=PowerFails), pytest.raises(PowerFails):
        store.compact()
    store.abandon()
    store = kv.open(path, "a")
    store.drop("y")
    append(store.sequence("z"), data(30, 4))
    store.sync()

    def erase_late_ones(device, number):
        if number >= early:
            erase(device, number)

    with mock.patch.object(Device, "erase", erase_late_ones):
        store.compact()
    store.abandon()
    assert sidecar_path(path).read_bytes() == known
    for _ in range(2):
        with kv.open(path) as store:
            assert {one.name: len(one) for one in store} == {"x": 64, "keep": 20, "z": 30}
            check(store.sequence("x"), [tuple(rows[:64] for rows in own) for own in data(200, 2)])
        sidecar_path(path).unlink(missing_ok=True)


# -- slots -----------------------------------------------------------------------------------------------------------


def fill(store, first=0):
    """Frames of a unit each, until the open block has room for one more; how many sequences that makes."""
    writer = store._writers.fresh
    while 8192 - writer._unit_start > 1024:
        store.sequence(f"q{first}")
        first += 1
        store.sync()
    return first


def test_a_frame_whose_slot_is_torn_is_good_however_it_is_read(tmp_path):
    """It is the first of a block whose header's unit is lost: read quickly, then, as fewer are before it, with care."""
    path, recorder = tmp_path / "c", Recorder()
    with make(path, device=WIDE, capacity=48 * 8192) as store:
        for n in range(10):
            append(store.sequence("old"), data(3, n))
            store.sync()
    image = bytearray(path.read_bytes())
    with recorder.recording():
        store = kv.open(path, "a")
        count, writer = fill(store), store._writers.fresh
        full, before = writer.block.number, len(recorder.asked)
        while writer.block.number == full or writer._unit_start < 4096:
            store.sequence(f"q{count}")
            count += 1
        block, device = writer.block.number, store.device
        lost, torn = (device.file_offset(block, 0), device._spare_offset(block, 0)), device._spare_offset(block, 1)
        store.abandon()
    for n, one in enumerate(recorder.asked):
        if n < before or one.offset not in lost:
            apply(image, Write(torn, one.data[:8]) if n >= before and one.offset == torn else one)
    path.write_bytes(image)
    sidecar_path(path).unlink()
    with kv.open(path, "a") as store:
        found = store.sequences()
        append(store.sequence("b"), data(5, 5))
    sidecar_path(path).unlink()
    with kv.open(path, "a") as store:
        for name in found:
            store.drop(name)
        store.compact()
    sidecar_path(path).unlink()
    with kv.open(path) as store:
        assert store.sequences() == ["b"]
        check(store.sequence("b"), data(5, 5))


def test_a_slot_torn_within_its_generation(tmp_path):
    """From generation 256 on what is there of it is another number."""
    path, recorder = tmp_path / "c", Recorder()
    with make(path, device=WIDE, capacity=48 * 8192) as store:
        append(store.sequence("old"), data(3, 1))
        store.device.generation = 300
        store._writers.fresh.begin_block()
        append(store.sequence("old"), data(3, 2))
        store.sync()
    image = path.read_bytes()
    with recorder.recording():
        store = kv.open(path, "a")
        writer = store._writers.fresh
        torn = store.device._spare_offset(writer.block.number, writer._unit_start // 1024)
        for n in range(12):
            store.sequence(f"q{n}")
        store.abandon()
    for cut in range(1, 16):
        own = bytearray(image)
        for one in recorder.asked:
            rest = bytes(16 - cut) + one.data[16:] if len(one.data) > 16 else b""
            apply(own, Write(torn, one.data[:cut] + rest) if one.offset == torn else one)
        path.write_bytes(own)
        sidecar_path(path).unlink(missing_ok=True)
        for mode in "ra":
            with kv.open(path, mode) as store:
                assert "old" in store.sequences(), cut
                assert len(store.sequence("old")) == 6
                store.abandon()


@pytest.mark.parametrize("cut", range(1, 16))
def test_a_file_that_ends_within_a_slot(tmp_path, cut):
    path = tmp_path / "c"
    with make(path, durability="step") as store:
        append(store.sequence("a"), data(20, 1))
    image = path.read_bytes()
    with kv.open(path, "a") as store:
        append(store.sequence("a"), data(64, 2))
        store.sync()
        slots = [store.device._spare_offset(block, unit) for block in range(1, 4) for unit in (0, 1, 5)]
    whole = path.read_bytes()
    slots = [at for at in slots if len(image) < at < len(whole) and any(whole[at : at + 16])]
    assert len(slots) > 1
    for at in slots:
        own = bytearray(image)
        apply(own, Write(at, whole[at : at + cut]))
        path.write_bytes(own)
        sidecar_path(path).unlink(missing_ok=True)
        with kv.open(path, "a") as store:
            append(store.sequence("b"), data(128, 3))
        with kv.open(path) as store:
            check(store.sequence("a"), data(20, 1))
            check(store.sequence("b"), data(128, 3))


def test_what_a_freed_block_held_is_not_copied(tmp_path):
    """A crash left it in front of its erase, with an eviction that wider and later ones made worth nothing; these are
    cleaned before it is.
    """
    path = tmp_path / "c"
    make(path, device="page=64,unit=64,block=4096").close()
    store = kv.open(path, "a")
    own = store.sequence("p")
    append(own, data(200, 1))

    def end_block():
        number = store._writers.fresh.block.number
        store._writers.fresh.begin_block()
        return number

    end_block()
    own.evict(64, 74)
    left = end_block()
    own.evict(74, 94)
    wider = end_block()
    with mock.patch.object(Device, "erase", side_effect=KeyboardInterrupt), contextlib.suppress(KeyboardInterrupt):
        store._cleaner.empty({left})
    store.abandon()
    store = kv.open(path, "a")
    own = store.sequence("p")
    own.truncate(64)
    cut = end_block()
    store._cleaner.empty({*range(4, 12), wider})
    for number in [cut, *(block.number for block in store.log.kept.blocks.in_use())]:
        store._cleaner.empty({number})
    assert store._cleaner.empty({left}) == 1
    store.close()
    for keep in (True, False):
        if not keep:
            sidecar_path(path).unlink()
        with kv.open(path) as store:
            assert len(store.sequence("p")) == 64
