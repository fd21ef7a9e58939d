"""Walks over forged frames: what is read of them, and what is said of the places between, byte by byte."""

from unittest import mock

import pytest

import kvcodec as kv
from kvcodec.flash.block import Counters
from kvcodec.flash.device import Device
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import FrameType, Kind
from kvcodec.log import lane_frames as frames_module
from kvcodec.log import walk as walk_module
from kvcodec.log.cursor import Cursor, Span
from kvcodec.log.frame import new_record
from kvcodec.log.located import NOWHERE
from kvcodec.log.reader import Log
from kvcodec.log.recover import BadRange, Recovery, Report
from tests.caches import TINY, rows, tiny_model
from tests.walked import (
    READS,
    REFUSES,
    Packed,
    end_of,
    here,
    lost,
    opened,
    place_of,
    refused,
    size,
    step,
    torn,
    walk,
)
from tools.golden.forged import forged_step

# -- regular ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recovery", Recovery)
def test_a_whole_log_has_nothing_to_report(forge, recovery):
    forge.steps(3)
    forge.begin_block(2)
    forge.steps(2)
    assert walk(forge, recovery, known=(5, 0)) == ([1, 2, 3, 4, 5], Report(5))


@pytest.mark.parametrize("recovery", Recovery)
def test_blocks_of_which_only_the_header_is_there_hold_no_frames_yet(forge, recovery):
    forge.steps(2)
    for generation in (2, 3):
        forge.begin_block(generation)
        assert walk(forge, recovery) == ([1, 2], Report(2))


def test_an_empty_log_is_an_empty_log(tmp_path):
    device = Device.create(tmp_path / "c", Geometry.parse("page=512,unit=64,block=8192"), blocks=4)
    log = Log(device)
    assert (log.poll(), list(log.poll_table()), log.report, log.lsn) == ([], [], Report(), 0)
    assert (log.totals, log.cursor) == (Counters(), Cursor())
    assert [each.counters() for each in log.walks] == [Counters()] * 2
    log = Log(device, Recovery.POINT_IN_TIME)
    log.fresh.known_durable = 1
    assert log.poll() == []
    (bad,) = log.report.damage
    assert (bad.start, bad.end, bad.kind) == (0, 8192, "damage")
    device.close()


def test_spans_are_the_frames_of_blocks(forge):
    forge.steps(3)
    third = forge.crc
    forge.begin_block(5)
    forge.steps(2)
    for read in (Log.poll, Log.poll_table):
        for few in (1, 2, 8):
            with opened(forge) as log, mock.patch.object(walk_module, "_FEW", few):
                read(log)
                assert log.fresh.spans == {1: Span(64, 1, 4, 0), 5: Span(64, 4, 6, third)}
                assert log.cursor == Cursor(log.cursor.block, forge.offset, 5, forge.crc, 4, 1, 0)
                assert log.cursor.block.generation == 5


def test_what_is_counted_of_frames(forge):
    forge.steps(2)
    forge.frame(forge.seal(forged_step(2)), type=FrameType.COMPACTION)
    forge.begin_block(2)
    forge.frame(forge.seal(new_record(Kind.STEP, b"abc", sequence=1)), forge.seal(forged_step(3)))
    host = len(forged_step(0).body)
    frame = 56 + 64 + host + 8
    with opened(forge) as log:
        log.poll()
        totals = log.fresh.totals
        assert (totals.framed, totals.host, totals.compacted) == (
            56 + 64 + 8 + 64 + host + 8,
            3 + host,
            0,
        )  # since the block was begun; what its header says of those before is the writer's word
        assert totals.programmed == log.cursor.block.before.programmed == 64 + 3 * -(-frame // 64) * 64
        used = int(log.device.programmed(1).sum()) * 64
        assert log.fresh.counters().programmed == totals.programmed + used
        assert log.lsn == 5


def test_compaction_is_counted_apart(forge):
    """However it is read."""
    forge.steps(2)
    for n in range(6):
        forge.frame(forge.seal(forged_step(2 + n)), type=FrameType.COMPACTION)
    walk(forge)
    with opened(forge) as log:
        log.poll_table()
        host = len(forged_step(0).body)
        frame = 56 + 64 + host + 8
        assert log.totals == Counters(log.totals.programmed, 8 * frame, 2 * host, 6 * frame)


def test_many_frames_are_not_read_one_by_one(forge):
    """But for the first few of them; and those of further blocks are not either."""
    for generation in range(2, 5):
        for _ in range(40):
            forge.frame()
        forge.begin_block(generation)
    own = frames_module.read_frame
    with opened(forge) as log, mock.patch.object(frames_module, "read_frame", side_effect=own) as careful:
        log.poll_table()
        assert (log.report, log.lsn) == (Report(120), 0)
        assert careful.call_count < 2 * walk_module._FEW


def test_a_block_whose_header_is_damaged_is_counted_by_what_is_read(tmp_path):
    """The others say what had been written before them."""
    with kv.open(tmp_path / "c", "w", model=tiny_model(), device=TINY, k="raw", v="raw", residual=0) as store:
        for turn in range(3):
            for layer in range(2):
                span = range(100 * turn, 100 * turn + 100)
                store.sequence("a").append(layer, *(rows(layer, stream, span) for stream in "kv"))
        device = store.device
    good, found = (tmp_path / "c").read_bytes(), []
    for damaged in (None, 0, 1, 2):
        raw = bytearray(good)
        if damaged is not None:
            raw[device.file_offset(damaged, 20)] ^= 1
        (tmp_path / "c").write_bytes(raw)
        own = Device.open(tmp_path / "c")
        assert own.present_blocks() > 3
        log = Log(own)
        log.poll_table()
        found.append((log.totals, log.fresh.counters(), log.report))
        own.close()
    assert found[0][0].framed > 0
    assert found == found[:1] * 4


# -- the end of what is good ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recovery", Recovery)
def test_a_torn_tail_goes_to_the_end_of_the_file(forge, recovery):
    forge.steps(2)
    start = torn(forge)
    if recovery == Recovery.ABSOLUTE:
        assert refused(forge, recovery) == (start, "torn tail: frame checksum")
        return
    bad = BadRange(start, size(forge), "frame checksum", "torn tail")
    assert walk(forge, recovery) == ([1, 2], Report(2, torn=bad))


def test_a_torn_tail_may_be_finished(forge):
    """By a writer that was at it when somebody looked, or began anew behind it."""
    forge.steps(2)
    start = forge.device.file_offset(0, forge.offset)
    torn(forge)
    with opened(forge) as log:
        log.poll()
        assert log.report.torn.start == start
        at = start + 70
        forge.device.image.write(at, bytes([forge.device.image.view(at, 1)[0] ^ 1]))
        assert [int(one.header["lsn"]) for one in log.poll()] == [3]
        assert log.report == Report(3)


def test_a_torn_tail_is_forgotten_at_a_regular_end(forge):
    """The unit that was half there when somebody looked is gone again: the writer is another one now."""
    forge.steps(2)
    start = forge.offset
    torn(forge)
    with opened(forge) as log:
        log.poll()
        assert log.report.torn is not None
        units = range(start // forge.unit, forge.offset // forge.unit)
        for unit in units:
            forge.device.image.write(forge.device._spare_offset(0, unit), bytes(16))
        assert log.poll() == []
        assert log.report == Report(2)


def test_a_tail_that_was_finished_is_not_torn_where_damage_follows(forge):
    forge.steps(1)
    at = here(forge) + 70
    lost(forge)
    with opened(forge, "point-in-time") as log:
        log.poll()
        assert log.report.torn is not None
        forge.device.image.write(at, bytes([forge.device.image.view(at, 1)[0] ^ 1]))
        start = lost(forge)
        forge.steps(1)
        assert [int(one.header["lsn"]) for one in log.poll()] == [2]
        assert log.report == Report(2, damage=[BadRange(start, size(forge), "frame checksum", "damage")])


@pytest.mark.parametrize("known", [2, 3])
def test_a_bad_frame_is_damage_if_the_sidecar_knew_it(forge, known):
    forge.steps(2)
    start = torn(forge)
    for recovery in READS:
        lsns, report = walk(forge, recovery, (known, 0))
        bad = BadRange(start, size(forge), "frame checksum", "damage" if known == 3 else "torn tail")
        assert (lsns, report) == ([1, 2], Report(2, damage=[bad]) if known == 3 else Report(2, torn=bad))
    kind = "damage" if known == 3 else "torn tail"
    assert refused(forge, Recovery.ABSOLUTE, (known, 0))[1].startswith(kind)


@pytest.mark.parametrize("known", [2, 3])
def test_an_end_before_what_the_sidecar_knew_is_damage(forge, known):
    forge.steps(2)
    start = here(forge)
    if known == 2:
        assert walk(forge, "absolute", (known, 0)) == ([1, 2], Report(2))
        return
    why = "the log ends here, but frame 3 was durable"
    for recovery in REFUSES:
        assert refused(forge, recovery, (known, 0)) == (
            start, f"damage: {why} (frame 3, up to byte {size(forge)})",
        )  # fmt: skip
    for recovery in READS:
        bad = BadRange(start, size(forge), why, "damage")
        assert walk(forge, recovery, (known, 0)) == ([1, 2], Report(2, damage=[bad]))


def test_a_log_that_stopped_at_damage_gives_nothing_more(forge):
    forge.steps(1)
    lost(forge)
    forge.steps(2)
    with opened(forge, "point-in-time") as log:
        assert [int(one.header["lsn"]) for one in log.poll()] == [1]
        assert log.fresh.stopped
        forge.steps(1)
        assert log.poll() == []
        assert len(log.report.damage) == 1


# -- damage, and what goes on behind it -------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [None, "behind", "before"])
def test_damage_ends_where_the_walk_goes_on(forge, elsewhere):
    """In the same block, in one that lies behind it, or in one that lies before it: then with the block."""
    if elsewhere == "before":
        forge.begin_block(2)  # of the first one only the header is there
    forge.steps(2)
    start, block = lost(forge), forge.block.number
    if elsewhere == "behind":
        forge.begin_block(3)
    elif elsewhere == "before":
        forge.device.erase(0)
        forge.device._untouched = forge.device.blocks
        forge.begin_block(3)
        assert forge.block.number == 0
    fourth = step(forge)
    forge.steps(1)
    whole = f"damage: frame checksum (frame 3, up to byte {size(forge)})"
    for recovery in REFUSES:
        assert refused(forge, recovery) == (start, whole)
    bad = BadRange(start, size(forge), "frame checksum", "damage")
    assert walk(forge, "point-in-time") == ([1, 2], Report(2, damage=[bad]))
    bad = BadRange(start, end_of(forge, block) if elsewhere == "before" else fourth, "frame checksum", "damage")
    assert walk(forge, "skip-damaged") == ([1, 2, 4, 5], Report(4, damage=[bad]))


def test_a_walk_goes_on_within_a_unit(tmp_path):
    """Where the slot says that a frame begins."""
    forge = Packed(tmp_path / "c", "x")
    for n in range(5):
        after = (lambda data: data.__setitem__(70, data[70] ^ 1)) if n == 2 else None
        offset = forge.frame(forge.seal(new_record(Kind.STEP, b"abc", sequence=1)), after=after)
        if n == 2:
            start, fourth = place_of(forge, offset), here(forge)
    forge.flush()
    assert start % 64
    assert fourth % 64
    bad = BadRange(start, fourth, "frame checksum", "damage")
    assert walk(forge, "skip-damaged") == ([1, 2, 4, 5], Report(4, damage=[bad]))
    forge.device.close()


def test_a_first_frame_that_is_lost_is_lost_from_the_beginning_of_the_file(forge):
    """Where its block is not known: that of which only the header is there may have held it."""
    forge.begin_block(2)
    lost(forge)
    second = step(forge)
    bad = BadRange(0, second, "the first block does not begin with the first frame", "damage")
    assert walk(forge, "skip-damaged") == ([2], Report(1, damage=[bad]))
    assert refused(forge, "torn-tail")[0] == 0
    with opened(forge, "skip-damaged") as log:
        log.poll()
        assert log.fresh.broken == []


def test_what_is_known_of_frames_that_are_lost(forge):
    forge.steps(2)
    crc = forge.crc
    start, block = forge.offset, forge.block
    lost(forge)
    forge.steps(1)
    forge.begin_block(2)
    forge.steps(1)
    with opened(forge, "skip-damaged") as log:
        log.poll()
        (broken,) = log.fresh.broken
        assert (broken.block.generation, broken.following, broken.offset) == (1, log.cursor.block, start)
        assert (broken.number, broken.previous, broken.found.number) == (3, crc, 4)
        assert block.generation == 1


@pytest.mark.parametrize(("drops", "implied"), [(0, False), (1, True), ((1 << 32) - 1, True)])
def test_a_drop_that_is_lost_is_implied(forge, drops, implied):
    """Once: what the frames behind it count is not compared again."""
    forge.steps(2)
    lost(forge)
    forge.frame(forge.seal(forged_step(4)), drops=drops)
    forge.frame(forge.seal(forged_step(5)), drops=7)
    with opened(forge, "skip-damaged") as log:
        found = log.poll()
    kinds = [int(one.header["kind"]) for one in found]
    assert kinds == [Kind.STEP] * 2 + [Kind.DROP] * implied + [Kind.STEP] * 2
    if implied:
        assert found[2].place == NOWHERE
        assert (int(found[2].header["lsn"]), int(found[2].header["sequence"])) == (2, 0)


def test_drops_are_compared_behind_damage_alone(forge):
    forge.steps(2)
    forge.frame(forge.seal(forged_step(2)), drops=5)
    for recovery in Recovery:
        assert walk(forge, recovery) == ([1, 2, 3], Report(3))


def test_a_drop_that_was_read_is_not_implied(forge):
    forge.frame(forge.seal(new_record(Kind.DROP, b"", sequence=1)))
    lost(forge, drops=1)
    forge.frame(forge.seal(forged_step(2)), drops=1)
    assert [int(lsn) for lsn in walk(forge, "skip-damaged")[0]] == [1, 3]


def test_frames_of_a_history_that_was_begun_anew_are_not_alive(forge):
    """Frame 4 of the first session was not accepted by the second one, which wrote frames 3 and 4 again."""
    forge.steps(2)
    crc = forge.crc
    start = torn(forge)
    forge.number = 3
    step(forge)
    forge.number, forge.crc, forge.lsn = 2, crc, 2
    lost(forge, session=2, session_start=3, durable=2)
    goes_on = step(forge, session=2, session_start=3)
    step(forge, session=2, session_start=3)
    bad = BadRange(start, goes_on, "frame checksum", "damage")
    assert walk(forge, "skip-damaged") == ([1, 2, 4, 5], Report(4, damage=[bad]))


# -- gaps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recovery", Recovery)
@pytest.mark.parametrize("elsewhere", [None, "behind", "before"])
def test_a_gap_ends_with_the_frame_that_was_written_again_or_with_its_block(forge, recovery, elsewhere):
    if elsewhere == "before":
        forge.begin_block(2)
    forge.steps(2)
    start, end = torn(forge), end_of(forge, forge.block.number)
    if elsewhere == "behind":
        forge.begin_block(3)
    elif elsewhere == "before":
        forge.device.erase(0)
        forge.device._untouched = forge.device.blocks
        forge.begin_block(3)
    third = step(forge, session=2, session_start=3, durable=2)
    step(forge, session=2, session_start=3)
    gap = BadRange(start, end if elsewhere else third, "frame checksum", "gap")
    assert walk(forge, recovery) == ([1, 2, 3, 4], Report(4, gaps=[gap]))


def test_a_gap_may_have_blocks_of_which_only_the_header_is_there(forge):
    forge.steps(2)
    start, end = here(forge), end_of(forge, 0)
    forge.begin_block(2)
    forge.begin_block(3)
    step(forge, session=2, session_start=3)
    gap = BadRange(start, end, "no frame magic", "gap")
    assert walk(forge, "absolute") == ([1, 2, 3], Report(3, gaps=[gap]))


def test_a_frame_is_none_if_any_of_its_units_is_not_programmed(forge):
    forge.steps(2)
    start, units = here(forge), range(forge.offset // forge.unit, forge.offset // forge.unit + 4)
    forge.steps(1)
    assert forge.offset == units.stop * forge.unit
    for unit in units:
        at = forge.device._spare_offset(0, unit)
        slot = forge.device.image.view(at, 16).tobytes()
        forge.device.image.write(at, bytes(16))
        torn = BadRange(start, size(forge), "the frame reaches into a unit that is not programmed", "torn tail")
        assert walk(forge) == ([1, 2], Report(2, torn=torn))
        forge.device.image.write(at, slot)
    assert walk(forge) == ([1, 2, 3], Report(3))


def test_units_that_were_never_programmed_are_no_end(forge):
    """Of a torn frame any of the units may be missing: what lies behind it goes on all the same."""
    forge.steps(2)
    start, unit = here(forge), forge.offset // forge.unit
    number, crc = forge.number, forge.crc
    forge.frame(forge.seal(forged_step(2, tokens=4)))
    forge.number, forge.crc = number, crc
    for missing in range(unit, unit + 6):
        forge.device.image.write(forge.device._spare_offset(0, missing), bytes(16))
    third = step(forge, session=2, session_start=3, durable=2)
    gap = BadRange(start, third, "the frame reaches into a unit that is not programmed", "gap")
    assert walk(forge, "absolute") == ([1, 2, 4], Report(3, gaps=[gap]))


@pytest.mark.parametrize("recovery", Recovery)
@pytest.mark.parametrize("other", [False, True])
def test_padding_that_is_zeros_no_longer_costs_no_row(forge, recovery, other):
    forge.steps(1)
    offset = forge.frame(forge.seal(new_record(Kind.STEP, b"abc", sequence=1)))
    assert forge.offset - offset == 192
    start = place_of(forge, offset + 136)  # behind the trailer
    forge.device.image.write(place_of(forge, offset + 191), b"\1")
    end = end_of(forge, 0)
    if other:
        forge.begin_block(2)
    third = step(forge)
    gap = BadRange(start, end if other else third, "padding is not zeros", "padding")
    if recovery == Recovery.ABSOLUTE:
        assert refused(forge, recovery) == (start, f"damage: padding is not zeros, up to byte {gap.end}")
    else:
        assert walk(forge, recovery) == ([1, 2, 3], Report(3, gaps=[gap]))


def test_a_first_frame_that_continues_another_one_is_none(forge):
    """Nothing is programmed behind frame 2, and what the next block begins with is another frame 3."""
    forge.steps(2)
    start = here(forge)
    forge.begin_block(2)
    forge.crc ^= 1
    forge.steps(1)
    torn = BadRange(start, size(forge), "no frame magic", "torn tail")
    assert walk(forge) == ([1, 2], Report(2, torn=torn))
    forge.steps(1)  # which says that a frame 3 was durable
    assert refused(forge, "torn-tail")[0] == start
