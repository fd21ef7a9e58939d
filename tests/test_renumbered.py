"""Frames whose numbers were given again, since the one in front of them was lost: nobody takes them for their
namesakes, also where the block of those was cleaned since.
"""

import contextlib
from unittest import mock

import pytest

import kvcodec as kv
from formats import reader
from kvcodec.errors import EraseFailed, NoSpace
from kvcodec.flash.device import Device
from kvcodec.layout import Lane, RetireCause
from kvcodec.log.recover import Recovery
from kvcodec.log.retired import retired_records
from kvcodec.log.sidecar import sidecar_path
from tests.test_lifecycle import append, data, make
from tests.walked import REFUSES, freed, lost, refused, step, taken_up, walk

BLOCK, UNIT = 4096, 64
GEOMETRY = {"device": f"page={UNIT},unit={UNIT},block={BLOCK}", "capacity": 64 * BLOCK}
AGAIN = {"session": 2, "session_start": 2, "durable": 1}


def plainly(forge):
    """lsns that the plain reader finds."""
    return [record.header.lsn for record in reader.walk_lanes(reader.Device(forge.path), (0, 0), "absolute")]


def begin(forge, lane, old, block=None):
    """Frame 1 of a lane, the next one lost, `old` ones behind that, in this block or in one of their own; the writer
    that comes then knows of frame 1 alone.
    """
    forge.steps(1)
    if lane == Lane.KEPT:
        forge.begin_kept()
        forge.steps(1)
    crc, lsn = forge.crc, forge.lsn
    lost(forge)
    if block is not None:
        forge.begin_block(block, lane)
    for _ in range(old):
        step(forge, durable=0)
    forge.number, forge.crc = 1, crc
    return lsn


@pytest.mark.parametrize("recovery", Recovery)
@pytest.mark.parametrize("gone", [1, 2, 3])
@pytest.mark.parametrize("old", [1, 2, 3, 4])
@pytest.mark.parametrize("lane", Lane)
def test_a_jump_ends_behind_the_frames_that_are_freed(forge, recovery, lane, old, gone):
    """Frames 2 to 1 + gone were written again, in a block that was cleaned; of the old ones 3 to 2 + old are there."""
    lsn = begin(forge, lane, old)
    forge.begin_block(4, lane)
    block = forge.block.number
    for _ in range(gone):
        step(forge, **AGAIN)
    forge.begin_block(5, lane)
    kept = [*range(1, lsn + 1), forge.lsn + 1, forge.lsn + 2]
    step(forge, **AGAIN)
    if lane == Lane.FRESH:
        forge.begin_kept()
        freed(forge, lane, 2, gone)
    else:
        freed(forge, lane, 2, gone, **AGAIN)
    forge.device.erase(block)
    lsns, report = walk(forge, recovery)
    assert lsns == kept
    assert [one.kind for one in (*report.gaps, *report.damage)] == ["gap"]
    assert plainly(forge) == kept


def test_an_old_frame_in_a_block_that_was_freed_is_no_jump_s_end(forge):
    """Power was lost within its erase. The frame has the number behind those that are freed, since the writer that gave
    it first had accepted a frame 4 that power took as well.
    """
    forge.steps(1)
    forge.begin_block(2)
    block = forge.block.number
    forge.steps(1)
    forge.begin_block(3)
    lost(forge)
    crc, forge.number = forge.crc, 4
    step(forge, session=2, session_start=5, durable=3)
    forge.number, forge.crc = 3, crc
    step(forge, session=3, session_start=4, durable=3)
    forge.begin_block(4)
    step(forge, session=3, session_start=4, durable=4)
    kept = [1, forge.lsn, forge.lsn + 1]
    forge.device.erase(block)
    forge.begin_kept()
    freed(forge, Lane.FRESH, 2, 3)
    assert walk(forge)[0] == plainly(forge) == kept


@pytest.mark.parametrize("gone", [1, 2])
@pytest.mark.parametrize("lane", Lane)
def test_an_old_frame_is_no_jump_s_end_where_the_new_one_is_damaged(forge, lane, gone):
    """Its block holds the frame in front of those that are freed, and they filled others."""
    begin(forge, lane, 4)
    forge.begin_block(4, lane)
    block = forge.block.number
    for _ in range(gone):
        step(forge, **AGAIN)
    forge.begin_block(5, lane)
    lost(forge, **AGAIN)
    ident = {"session": 3, "session_start": forge.number + 1}
    step(forge, **ident)
    if lane == Lane.FRESH:
        forge.begin_kept()
    freed(forge, lane, 2, gone, **(ident if lane == Lane.KEPT else {}))
    forge.device.erase(block)
    for recovery in REFUSES:
        refused(forge, recovery)


@pytest.mark.parametrize("old", [1, 2, 3, 4])
@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_block_that_did_not_erase_is_passed_over(forge, old, gone):
    """It holds frames that nobody accepted, the first of them with the number behind those that are freed."""
    lsn = begin(forge, Lane.FRESH, old, block=2)
    stale = forge.block.number
    forge.begin_block(3)
    block = forge.block.number
    for _ in range(gone):
        step(forge, **AGAIN)
    forge.begin_block(4)
    kept = [*range(1, lsn + 1), *(forge.lsn + n for n in (1, 2, 3))]
    step(forge, **AGAIN)
    forge.device.erase(block)
    forge.begin_kept()
    (record,) = retired_records({stale: RetireCause.ERASE}, 64)
    forge.frame(forge.seal(record))
    freed(forge, Lane.FRESH, 2, gone)
    assert walk(forge)[0] == plainly(forge) == kept


@pytest.mark.parametrize("recovery", ["torn-tail", "point-in-time", "skip-damaged"])
@pytest.mark.parametrize("explained", [False, True])
def test_what_lane_kept_says_behind_a_torn_tail_counts_for_nothing(forge, recovery, explained):
    """Its frames 2 and 3 did not reach the medium, and the block of frame 4 did, which says what was to be erased: of
    lane FRESH, or those that were lost too.
    """
    forge.steps(2)
    forge.begin_block(2)
    forge.steps(2)
    forge.begin_kept()
    forge.steps(1)
    lsn = forge.lsn
    forge.number, forge.crc = forge.number + 2, 7
    forge.begin_block(4, Lane.KEPT)
    freed(forge, Lane.FRESH, 1, 2, durable=0)
    if explained:
        lost(forge, durable=0)
        freed(forge, Lane.KEPT, 2, 2, durable=0)
    lsns, report = walk(forge, recovery)
    assert lsns == list(range(1, lsn + 1))
    assert report.torn is not None
    assert not report.damage
    assert [record.header.lsn for record in reader.walk_lanes(reader.Device(forge.path), (0, 0), "torn-tail")] == lsns


# -- by writers ------------------------------------------------------------------------------------------------------


def lose_units(path, device, block, first, units):
    """Power was lost before these reached the medium."""
    with open(path, "r+b") as file:
        file.seek(device._spare_offset(block, first))
        file.write(bytes(16 * units))
        file.seek(device.file_offset(block, first * UNIT))
        file.write(bytes(UNIT * units))


def lengths(path):
    """Of all sequences, as the log alone tells them, and the plain reader."""
    sidecar_path(path).unlink(missing_ok=True)
    with kv.open(path) as store:
        found = {own.name: len(own) for own in store}
    assert {name: own.length for name, own in reader.Log(path).sequences.items()} == found
    return found


@contextlib.contextmanager
def begun(path):
    """A log with one sequence, all synced."""
    make(path, **GEOMETRY).close()
    with kv.open(path, "a") as store:
        append(store.sequence("keep"), data(64, 1))
        store.sync()
        yield store


def never_erases(which, path):
    """Blocks that fail to be erased."""
    own = Device.erase

    def erase(device, block):
        if block in which:
            raise EraseFailed(5, "it did not erase", str(path))
        own(device, block)

    return mock.patch.object(Device, "erase", erase)


def test_rows_behind_frames_that_were_given_again_and_cleaned(tmp_path):
    """Of frames that power let not become durable the first is lost, and those behind it, in the same block, are not.
    The next writer gives their numbers again, and its blocks are cleaned.
    """
    path = tmp_path / "c"
    with begun(path) as store:
        writer = store._writers.fresh
        block, first = writer.block.number, writer._unit_start // UNIT
        store.sequence("x")
        while writer.block.number == block:
            store.sequence("keep").truncate(0)
        device = store.device
        store.abandon()
    lose_units(path, device, block, first, 1)
    with kv.open(path, "a") as store:
        assert len(store.sequence("keep")) == 64
        for n in range(20):
            append(store.sequence("big"), data(16, n))
            store.sync()
        store.drop("big")
        append(store.sequence("precious"), data(10, 3))
        store.compact()
    assert lengths(path) == {"keep": 64, "precious": 10}


@pytest.mark.parametrize("full", [False, True])
def test_rows_behind_a_block_that_did_not_erase(tmp_path, full):
    """It holds frames that were never accepted, the first of which has the number behind those that FREED names. Where
    there was no room to say that it did not erase, that is said later.
    """
    path = tmp_path / "c"
    with begun(path) as store:
        writer = store._writers.fresh
        writer.begin_block()
        block, first, n = writer.block.number, writer._unit_start // UNIT, 0
        while writer.block.number == block or writer._unit_start < 3700:
            before, n = writer.block.number, n + 1
            store.sequence(f"x{n}")
            if writer.block.number != before:
                number = writer.number
        device, stale = store.device, writer.block.number
        store.abandon()
    lose_units(path, device, block, first, BLOCK // UNIT - first)
    with never_erases({stale}, path), kv.open(path, "a") as store:
        writer, used = store._writers.fresh, {block}
        if full:
            store._writers.kept._reserve = mock.Mock(side_effect=[NoSpace(28, "for the first record"), *[None] * 99])
        while writer.number < number - 1:
            store.sequence(f"z{writer.number}")
            if writer.number < number - 1:
                store.drop(f"z{writer.number - 1}")
            used.add(writer.block.number)
        store.sync()
        writer.begin_block()
        append(store.sequence("precious"), data(10, 3))
        store.sync()
        store._cleaner.empty(used)
        store.sync()
        assert store.device.retired == {stale: RetireCause.ERASE}
        store.abandon()
    assert lengths(path)["precious"] == 10
    with kv.open(path, "a") as store:  # no generation is given twice
        assert store.device.generation >= max(store.device.generations())


def test_a_block_of_lane_kept_that_nobody_accepted_must_erase(forge):
    """What says that it did not would stand behind it: a walk would take its frames first. So nobody writes."""
    lsn = begin(forge, Lane.KEPT, 2, block=4)
    stale, size = forge.block.number, forge.path.stat().st_size
    told = f"block {stale}, which a crash left in lane KEPT, does not erase"
    with never_erases({stale}, forge.path), pytest.raises(EraseFailed, match=told):
        taken_up(forge)
    assert forge.path.stat().st_size == size
    assert walk(forge)[0] == list(range(1, lsn + 1))
    log, _ = taken_up(forge)
    assert forge.device.block(stale) is None
    assert log.kept.cursor.number == 1


def test_a_block_of_lane_kept_without_a_whole_frame_need_not_erase(forge):
    """Nobody can take one of it."""
    begin(forge, Lane.KEPT, 0, block=4)
    forge.number += 1
    lost(forge)
    stale = forge.block.number
    with never_erases({stale}, forge.path):
        _, writers = taken_up(forge)
    assert forge.device.failing == {stale: RetireCause.ERASE}
    writers.fresh.begin_block()
    assert walk(forge)[1].torn is not None
