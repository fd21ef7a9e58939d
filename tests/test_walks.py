"""Walks over forged frames: what is read of them, and what is said of the places between, byte by byte."""

import contextlib
from unittest import mock

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.errors import BlockErased, CorruptRecord, KvcodecError, TruncatedLog, UnsupportedVersion
from kvcodec.flash.block import Counters
from kvcodec.flash.device import Device
from kvcodec.flash.faults import Faults
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import FREED_RUN, FrameType, Kind, Lane
from kvcodec.log import reader as reader_module
from kvcodec.log import walk as walk_module
from kvcodec.log.blocks import BlockOrder
from kvcodec.log.frame import new_record
from kvcodec.log.located import NOWHERE, Place
from kvcodec.log.reader import Log
from kvcodec.log.recover import BadRange, Recovery, Report
from kvcodec.log.takeup import take_up
from kvcodec.log.walk import Span, Walk
from tests.caches import TINY, rows, tiny_model
from tools.golden import forge as forging
from tools.golden.forge import Forge
from tools.golden.forged import forged_step

READS = (Recovery.POINT_IN_TIME, Recovery.SKIP_DAMAGED)
REFUSES = (Recovery.TORN_TAIL, Recovery.ABSOLUTE)


@pytest.fixture
def forge(tmp_path):
    forge = Forge(tmp_path / "c", "x")
    yield forge
    forge.device.close()


class Packed(Forge):
    """Frames share units, as those of a writer do."""

    def program(self, data):
        self.waiting = [*getattr(self, "waiting", []), (self.offset, data)]
        offset, self.offset = self.offset, self.offset + len(data)
        return offset

    def flush(self):
        start, data = self.waiting[0][0], b"".join(data for _, data in self.waiting)
        firsts = {offset // self.unit: offset % self.unit for offset, _ in reversed(self.waiting)}
        units = range(start // self.unit, start // self.unit - (-len(data) // self.unit))
        padded = data.ljust(len(units) * self.unit, b"\0")
        self.device.program(self.block.number, units[0], padded, [firsts.get(unit, 0xFFFF) for unit in units])
        self.offset, self.waiting = units[-1] * self.unit + self.unit, []


def step(forge, **ident):
    """A frame with one STEP record; where in the file it begins."""
    return place_of(forge, forge.frame(forge.seal(forged_step(forge.number)), **ident))


def torn(forge):
    """The next frame, of which a bit is wrong: it does not count."""
    number, crc, lsn = forge.number, forge.crc, forge.lsn
    start = forge.frame(forge.seal(forged_step(0)), after=lambda data: data.__setitem__(70, data[70] ^ 1))
    forge.number, forge.crc, forge.lsn = number, crc, lsn
    return place_of(forge, start)


def lost(forge, **ident):
    """The next frame, of which a bit is wrong, while those behind it go on as if it were whole."""
    start = forge.frame(forge.seal(forged_step(0)), after=lambda data: data.__setitem__(70, data[70] ^ 1), **ident)
    return place_of(forge, start)


def freed(forge, lane, first, frames, **ident):
    body = np.array([(lane, b"", first, frames)], FREED_RUN).tobytes()
    return forge.frame(forge.seal(new_record(Kind.FREED, body, runs=1)), **ident)


def place_of(forge, offset):
    return forge.device.file_offset(forge.block.number, offset)


def here(forge):
    """Where in the file the next frame would begin."""
    return place_of(forge, forge.offset)


def end_of(forge, block):
    return forge.device.file_offset(block, forge.device.geometry.block_bytes)


def size(forge):
    return forge.path.stat().st_size


@contextlib.contextmanager
def opened(forge, recovery="torn-tail", known=(0, 0)):
    """A log of which the sidecar vouches for frames `known` of the lanes."""
    device = Device.open(forge.path)
    log = Log(device, Recovery(recovery))
    for walk, durable in zip(log.walks, known, strict=True):
        walk.known_durable = durable
    try:
        yield log
    finally:
        device.close()


def walk(forge, recovery="torn-tail", known=(0, 0)):
    """lsns of what is read, and the report; read with care and without it is the same."""
    found = []
    for read, few in ((Log.poll, 8), (Log.poll_table, 8), (Log.poll_table, 1)):
        with opened(forge, recovery, known) as log, mock.patch.object(walk_module, "_FEW", few):
            lsns = [int(one.header["lsn"]) for one in read(log)]
            ends = [(each.cursor, each.spans, each.counters(), each.lsn, each.stopped) for each in log.walks]
            found.append((lsns, log.report, ends, log.totals, log.lsn))
    assert found[0] == found[1] == found[2]
    return found[0][:2]


def refused(forge, recovery, known=(0, 0)):
    """What a walk raises."""
    with opened(forge, recovery, known) as log, pytest.raises(CorruptRecord) as raised:
        log.poll()
    with opened(forge, recovery, known) as log, pytest.raises(CorruptRecord) as again:
        log.poll_table()
    assert str(again.value) == str(raised.value)
    return raised.value.offset, raised.value.why


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
    assert (log.totals, log.cursor) == (Counters(), walk_module.Cursor())
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
                assert log.cursor == walk_module.Cursor(log.cursor.block, forge.offset, 5, forge.crc, 4, 1, 0)
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


def test_many_frames_are_not_read_one_by_one(forge):
    """But for the first few of them; and those of further blocks are not either."""
    for generation in range(2, 5):
        for _ in range(40):
            forge.frame()
        forge.begin_block(generation)
    own = walk_module.read_frame
    with opened(forge) as log, mock.patch.object(walk_module, "read_frame", side_effect=own) as careful:
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


# -- frames that are gone on purpose ----------------------------------------------------------------------------------


def cleaned(forge, first, frames, *, behind=True, torn_before=False, **ident):
    """Frames 1 and 2, 3 and 4 in a block that is erased, and 5 and 6; lane KEPT says that some are freed."""
    forge.steps(2)
    start = torn(forge) if torn_before else here(forge)
    ident |= {"session": 2, "session_start": 3} if torn_before else {}
    forge.begin_block(2)
    step(forge, **ident)
    step(forge, **ident)
    forge.begin_block(3)
    step(forge, **ident)
    step(forge, **ident)
    forge.begin_kept()
    if frames:
        freed(forge, Lane.FRESH, first, frames)
    if behind:
        forge.device.erase(1)
    return start


@pytest.mark.parametrize("recovery", Recovery)
@pytest.mark.parametrize(("first", "frames"), [(3, 2), (1, 9), (2, 3)])
def test_freed_frames_are_passed_over(forge, recovery, first, frames):
    cleaned(forge, first, frames)
    assert walk(forge, recovery) == ([1, 2, 5, 6, 7], Report(5))
    with opened(forge, recovery) as log:
        news = log.follow()
        assert news.jumped
        assert [int(one.header["lsn"]) for one in news.fresh] == [1, 2, 5, 6]
        assert [int(one.header["lsn"]) for one in news.moved] == [7]
        news = log.follow()
        assert (list(news.fresh), list(news.moved), news.jumped) == ([], [], False)


@pytest.mark.parametrize(("first", "frames"), [(3, 1), (4, 1), (5, 2), (0, 0)])
def test_frames_that_are_gone_and_not_freed_are_damage(forge, first, frames):
    start = cleaned(forge, first, frames)
    for recovery in REFUSES:
        assert refused(forge, recovery)[0] == start
    assert walk(forge, "skip-damaged")[0] == [1, 2, 5, 6] + [7] * bool(frames)


def test_freed_frames_that_are_there_are_read(forge):
    """As a crash before the erase leaves them."""
    cleaned(forge, 3, 2, behind=False)
    assert walk(forge, "absolute") == ([1, 2, 3, 4, 5, 6, 7], Report(7))
    with opened(forge) as log:
        assert not log.follow().jumped


@pytest.mark.parametrize("recovery", Recovery)
@pytest.mark.parametrize("synced", [{}, {"durable": 2}])
def test_a_gap_in_front_of_freed_frames(forge, recovery, synced):
    """What a crash left of frame 3; the block in which it was written again was cleaned. Whether the frames behind say
    that frame 3 was durable does not matter.
    """
    start = cleaned(forge, 3, 2, torn_before=True, **synced)
    gap = BadRange(start, end_of(forge, 0), "frame checksum", "gap")
    assert walk(forge, recovery) == ([1, 2, 5, 6, 7], Report(5, gaps=[gap]))


@pytest.mark.parametrize(("first", "frames"), [(3, 1), (4, 1), (0, 0)])
def test_a_torn_frame_in_front_of_frames_that_are_gone_and_not_freed_is_damage(forge, first, frames):
    start = cleaned(forge, first, frames, torn_before=True)
    assert refused(forge, "torn-tail")[0] == start


@pytest.mark.parametrize("frames", [2, 1])
def test_the_first_frames_may_be_freed(forge, frames):
    forge.steps(2)
    forge.begin_block(2)
    start = here(forge)
    forge.steps(2)
    forge.begin_kept()
    freed(forge, Lane.FRESH, 1, frames)
    forge.device.erase(0)
    if frames == 2:
        assert walk(forge, "absolute") == ([3, 4, 5], Report(3))
    else:
        assert refused(forge, "torn-tail") == (
            start, f"damage: frame 3 does not continue frame 0 (frame 1, up to byte {size(forge)})",
        )  # fmt: skip


@pytest.mark.parametrize("read", [Log.poll, Log.poll_table, Log.follow])
def test_what_lane_kept_says_meanwhile_is_asked_for(forge, read):
    """A writer frees frames and erases their block after lane KEPT was looked at, before lane FRESH is."""
    cleaned(forge, 0, 0, behind=False)
    forge.steps(1)
    with opened(forge) as log:
        fresh = log.fresh
        own = {name: getattr(fresh, name) for name in ("poll", "poll_table")}

        def live(name):
            if forge.device.block(1) is not None:
                freed(forge, Lane.FRESH, 3, 2)
                forge.device.erase(1)
            return own[name]()

        with mock.patch.multiple(fresh, poll=lambda: live("poll"), poll_table=lambda: live("poll_table")):
            found = read(log)
        records = [*found.fresh, *found.moved] if read is Log.follow else found
        assert [int(one.header["lsn"]) for one in records] == [1, 2, 5, 6, 7, 8]
        assert log.lsn == 8
        assert log.report == Report(6)


# -- lane KEPT --------------------------------------------------------------------------------------------------------


def kept(forge, run, *, torn_before=False):
    """Lane KEPT: frame 1, 2 and 3 in a block that is erased, then 4, which frees `run`."""
    forge.steps(1)
    forge.begin_kept()
    forge.steps(1)
    start = torn(forge) if torn_before else here(forge)
    ident = {"session": 2, "session_start": 2} if torn_before else {}
    forge.begin_block(3, Lane.KEPT)
    step(forge, **ident)
    step(forge, **ident)
    forge.begin_block(4, Lane.KEPT)
    freed(forge, *run, **ident) if run else step(forge, **ident)
    forge.device.erase(2)
    return start


@pytest.mark.parametrize("recovery", Recovery)
def test_frames_of_lane_kept_may_be_freed_by_a_later_one(forge, recovery):
    """Which is read before it is known."""
    kept(forge, (Lane.KEPT, 2, 2))
    assert walk(forge, recovery) == ([1, 2, 5], Report(3))


@pytest.mark.parametrize("run", [None, (Lane.KEPT, 2, 1), (Lane.KEPT, 3, 1), (Lane.FRESH, 2, 2)])
def test_frames_of_lane_kept_that_nothing_explains_are_damage(forge, run):
    start = kept(forge, run)
    for recovery in REFUSES:
        assert refused(forge, recovery)[0] == start
    lsns, report = walk(forge, "skip-damaged")
    assert lsns == [1, 2, 5]
    assert [bad.start for bad in report.damage] == [start]
    lsns, report = walk(forge, "point-in-time")
    assert lsns == [1, 2]
    assert [bad.start for bad in report.damage] == [start]


def test_what_the_sidecar_knows_of_lane_kept_stays_known(forge):
    kept(forge, None)
    with opened(forge, "point-in-time", (0, 9)) as log:
        log.poll()
        assert log.kept.known_durable == 9
        assert log.kept.stopped


def test_lane_kept_that_loses_frames_while_it_is_followed_is_damage(forge):
    forge.steps(1)
    forge.begin_kept()
    forge.steps(1)
    with opened(forge) as log:
        log.poll()
        forge.begin_block(3, Lane.KEPT)
        forge.steps(2)
        forge.begin_block(4, Lane.KEPT)
        forge.steps(1)
        forge.device.erase(2)
        with pytest.raises(CorruptRecord, match="frames 2 to 3 of lane KEPT are lost"):
            log.poll()


def test_lane_kept_that_frees_frames_while_it_is_followed(forge):
    forge.steps(1)
    forge.begin_kept()
    forge.steps(1)
    with opened(forge) as log:
        assert not log.follow().jumped
        forge.begin_block(3, Lane.KEPT)
        forge.steps(2)
        forge.begin_block(4, Lane.KEPT)
        freed(forge, Lane.KEPT, 2, 2)
        forge.device.erase(2)
        news = log.follow()
        assert news.jumped
        assert [int(one.header["lsn"]) for one in news.moved] == [5]


@pytest.mark.parametrize("recovery", Recovery)
def test_a_gap_of_lane_kept_in_front_of_frames_that_a_later_one_frees(forge, recovery):
    start = kept(forge, (Lane.KEPT, 2, 2), torn_before=True)
    gap = BadRange(start, end_of(forge, 1), "frame checksum", "gap")
    assert walk(forge, recovery) == ([1, 2, 5], Report(3, gaps=[gap]))


@pytest.mark.parametrize("run", [None, (Lane.KEPT, 2, 1), (Lane.FRESH, 2, 2)])
def test_a_torn_frame_of_lane_kept_in_front_of_frames_that_none_frees_is_damage(forge, run):
    start = kept(forge, run, torn_before=True)
    assert refused(forge, "torn-tail")[0] == start


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_record_that_frees_may_be_behind_the_frame_that_a_slot_points_at(tmp_path, monkeypatch, place):
    """In the same unit: no slot points at frames that begin there later."""
    monkeypatch.setattr(forging, "DEVICE", "page=512,unit=512,block=8192")
    forge = Packed(tmp_path / "c", "x")
    forge.steps(1)
    forge.flush()
    forge.begin_kept()
    forge.steps(1)
    forge.flush()
    number, crc = forge.number, forge.crc
    forge.frame(after=lambda data: data.__setitem__(-1, data[-1] ^ 1))
    forge.flush()
    forge.number, forge.crc = number, crc
    ident = {"session": 2, "session_start": 2}
    forge.begin_block(3, Lane.KEPT)
    step(forge, **ident)
    step(forge, **ident)
    forge.flush()
    forge.begin_block(4, Lane.KEPT)
    for n in range(3):
        freed(forge, Lane.KEPT, 2, 2, **ident) if n == place else forge.frame(**ident)
    forge.flush()
    forge.device.erase(2)
    lsns, report = walk(forge, "absolute")
    assert lsns == [1, 2, 5]
    assert [gap.kind for gap in report.gaps] == ["gap"]
    forge.device.close()


# -- others are at work -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, CorruptRecord(0, "another's"), UnsupportedVersion("another's")])
@pytest.mark.parametrize("look", [1, 2])
def test_a_frame_of_a_block_that_is_erased_while_it_is_read_is_none(forge, wrong, look):
    """Whether it was whole by then, or what is not there any more looked wrong; at the first look, or the second."""
    forge.steps(2)
    forge.begin_block(2)
    forge.steps(1)
    own, calls = walk_module.read_frame, []

    def erased(data, offset, **options):
        frame = own(data, offset, **options)
        calls.append(options["generation"])
        if calls.count(2) == look:
            forge.device.erase(1)
            if wrong is not None:
                raise wrong
        return frame

    with opened(forge) as log, mock.patch.object(walk_module, "read_frame", erased):
        assert [int(one.header["lsn"]) for one in log.poll()] == [1, 2]
        assert log.poll() == []
        assert log.report == Report(2)


def test_a_frame_of_a_block_that_is_used_anew_while_it_is_read_is_none(forge):
    """The units are programmed again by then, under another generation."""
    forge.steps(2)
    forge.begin_block(2)
    forge.steps(1)
    own, calls = walk_module.read_frame, []

    def used_anew(data, offset, **options):
        frame = own(data, offset, **options)
        calls.append(options["generation"])
        if calls.count(2) == 2 and forge.block.generation == 2:
            forge.device.erase(1)
            forge.device._untouched = forge.device.blocks
            forge.begin_kept()
            forge.steps(1)
            assert forge.block.number == 1
        return frame

    with opened(forge) as log, mock.patch.object(walk_module, "read_frame", used_anew):
        assert [int(one.header["lsn"]) for one in log.poll()] == [1, 2]
        assert [int(one.header["lsn"]) for one in log.poll()] == [4]


def test_a_committed_frame_that_is_impossible_is_an_error_in_all_modes(forge):
    forge.steps(1)
    start = here(forge)
    step(forge, durable=9)
    for recovery in Recovery:
        assert refused(forge, recovery)[0] == start


@pytest.mark.parametrize("damaged", [0, 1])
def test_one_slot_of_a_frame_that_is_read_may_be_damaged(forge, damaged):
    """That of the block's header, or that of the frame's first unit."""
    forge.frame(forge.seal(forged_step(0)), forge.seal(forged_step(1)))
    at = forge.device._spare_offset(0, damaged) + 8
    forge.device.image.write(at, bytes([7]))
    if damaged == 0:  # by whose slot the block is known
        return
    assert walk(forge, "absolute") == ([1, 2], Report(1))


def test_a_writer_that_goes_on_before_it_begins_the_next_block_is_followed(forge):
    """It fills the block after a reader found it at its end, and before that looks for the next one."""
    forge.steps(2)
    own = BlockOrder.following
    with opened(forge) as log:

        def following(order, block):
            if block is not None and forge.number == 2:
                forge.steps(2)
                forge.begin_block(2)
                forge.steps(1)
            return own(order, block)

        with mock.patch.object(BlockOrder, "following", following):
            assert [int(one.header["lsn"]) for one in log.poll()] == [1, 2, 3, 4, 5]
        assert log.report == Report(5)


def test_a_writer_that_finishes_a_frame_while_a_reader_looks_further_is_followed(forge):
    """Frame 3 was not there when it was looked for, while a later one said that it was durable: it is there now."""
    forge.steps(2)
    start = forge.offset
    forge.steps(2)
    at, own = forge.device.file_offset(0, start) + 70, Walk._later_frames
    byte = forge.device.image.view(at, 1)[0]
    forge.device.image.write(at, bytes([byte ^ 1]))

    def later(walk_):
        found = list(own(walk_))
        forge.device.image.write(at, bytes([byte]))
        return found

    with opened(forge) as log, mock.patch.object(Walk, "_later_frames", later):
        assert [int(one.header["lsn"]) for one in log.poll()] == [1, 2, 3, 4]
        assert log.report == Report(4)


# -- one record -------------------------------------------------------------------------------------------------------


def test_a_record_behind_the_end_of_the_file_is_truncated(forge):
    """Its slot is there, its bytes are not."""
    forge.begin_block(2)
    forge.steps(1)
    with opened(forge) as log:
        ((place, header),) = log.poll()
        assert log.load(place)[0].tobytes() == header.tobytes()
    base = forge.device.file_offset(place.block, place.offset)
    whole = forge.path.read_bytes()
    for left in (0, 31, 32, 64):
        forge.path.write_bytes(whole[: base + left])
        with opened(forge) as log:
            with pytest.raises(TruncatedLog if left < 32 else CorruptRecord) as raised:
                log.load(place)
            if left < 32:
                assert str(raised.value).endswith(f"ends before byte {base + 32}")
            else:
                assert raised.value.offset == base
    forge.path.write_bytes(whole)


def test_a_record_of_a_block_that_was_erased_is_named_so(forge):
    forge.begin_block(2)
    forge.steps(1)
    with opened(forge) as log:
        ((place, _),) = log.poll()
        base = log.device.file_offset(place.block, place.offset)
        with pytest.raises(BlockErased) as raised:
            log.load(Place(place.generation + 1, place.block, place.offset))
        assert raised.value.offset == base
        forge.device.erase(place.block)
        with pytest.raises(BlockErased, match=f"block {place.block} was erased"):
            log.load(place)


def test_a_record_whose_body_is_wrong_is_named_by_where_the_body_begins(forge):
    forge.frame(forge.seal(forged_step(0), body_crc=1))
    with opened(forge) as log:
        ((place, header),) = log.poll()
        base = log.device.file_offset(place.block, place.offset)
        with pytest.raises(CorruptRecord, match="record body checksum") as raised:
            log.load(place)
        assert raised.value.offset == base + header.dtype.itemsize


def test_another_record_than_the_one_that_is_known(forge):
    forge.steps(2)
    with opened(forge) as log:
        one, other = log.poll()
        with pytest.raises(CorruptRecord, match="another record") as raised:
            log.load_one(one._replace(header=other.header))
        assert raised.value.offset == log.device.file_offset(one.place.block, one.place.offset)


def test_a_record_that_was_loaded_stays_what_it_was(forge):
    """Whatever becomes of its block."""
    forge.steps(1)
    with opened(forge) as log:
        (one,) = log.poll()
        header, body = log.load_one(one)
        place = log.device.file_offset(one.place.block, one.place.offset)
        forge.device.image.write(place, bytes(header.nbytes + body.size))
        assert not log.device.data(one.place.block, one.place.offset, 100).any()
        assert header.tobytes() == one.header.tobytes()
        assert body.tobytes() == bytes(forged_step(0).body)


def test_a_record_of_a_block_that_is_erased_while_it_is_read_is_none(forge):
    """Its bytes were whole when they were checked; who knows when they were copied."""
    forge.begin_block(2)
    forge.steps(1)
    own = Log.load
    with opened(forge) as log:
        (one,) = log.poll()

        def erased(log_, place):
            found = own(log_, place)
            forge.device.erase(place.block)
            return found

        with mock.patch.object(Log, "load", erased), pytest.raises(BlockErased):
            log.load_one(one)


@pytest.mark.parametrize("wrong", [CorruptRecord(0, "another's"), UnsupportedVersion("another's")])
@pytest.mark.parametrize("erased", [True, False])
def test_what_is_wrong_with_a_record_that_is_erased_is_that_it_was_erased(forge, wrong, erased):
    forge.begin_block(2)
    forge.steps(1)
    with opened(forge) as log:
        (one,) = log.poll()

        def fail(data, base):
            if erased:
                forge.device.erase(one.place.block)
            raise wrong

        kind = BlockErased if erased else type(wrong)
        with mock.patch.object(reader_module, "_read_record", fail), pytest.raises(kind) as raised:
            log.load(one.place)
        assert raised.type is kind


def test_what_waits_in_memory_is_not_sensed(forge):
    """A device's reads fail; what no unit holds yet is not read from it."""
    forge.steps(1)
    forge.device.close()
    device = Device.open(forge.path, writable=True)
    log = Log(device)
    log.poll()
    device.fail_by(Faults(1, flips=1e-12))
    writers = take_up(device, log)
    (one,) = writers.fresh.append([new_record(Kind.STEP, bytes(range(100)), sequence=1)])
    with mock.patch.object(device, "sense") as sense:
        assert log.waits(one.place)
        body = log.load_one(one)[1]
        sense.assert_not_called()
        writers.fresh.sync()
        assert not log.waits(one.place)
        assert np.array_equal(log.load_one(one)[1], body)
        sense.assert_called_once_with(one.place.block, one.place.offset, 64 + len(body))
    device.close()


def test_recovery_modes_have_names():
    assert [Recovery.parse(str(mode)) for mode in Recovery] == list(Recovery)
    assert Recovery.parse(Recovery.ABSOLUTE) is Recovery.ABSOLUTE
    with pytest.raises(KvcodecError, match="'none', want one of torn-tail, absolute, point-in-time, skip-damaged"):
        Recovery.parse("none")
