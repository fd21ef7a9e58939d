"""Frames that are gone on purpose, as lane KEPT says: they are passed over, and no others are."""

from unittest import mock

import pytest

from kvcodec.errors import CorruptRecord
from kvcodec.layout import Lane
from kvcodec.log.reader import Log
from kvcodec.log.recover import BadRange, Recovery, Report
from tests.walked import (
    REFUSES,
    Packed,
    end_of,
    freed,
    here,
    opened,
    refused,
    size,
    step,
    torn,
    walk,
)
from tools.golden import forge as forging

# -- frames that are gone on purpose ----------------------------------------------------------------------------------


def end_of_fresh(forge):
    """Where frame 6 ends."""
    with opened(forge, "point-in-time") as log:
        log.poll()
        return forge.device.file_offset(log.cursor.block.number, log.cursor.offset)


def cleaned(forge, first, frames, *, behind=True, torn_before=False, torn_after=False, **ident):
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
    if torn_after:
        torn(forge)
    forge.begin_kept()
    if frames:
        freed(forge, Lane.FRESH, first, frames)
    if behind:
        forge.device.erase(1)
    return start


@pytest.mark.parametrize("recovery", Recovery)
@pytest.mark.parametrize(
    ("first", "frames", "left"), [(3, 2, [1, 2, 5, 6]), (2, 3, [1, 2, 5, 6]), (1, 4, [5, 6]), (1, 5, [5, 6])]
)
def test_freed_frames_are_passed_over(forge, recovery, first, frames, left):
    """Blocks of which all frames are named count for nothing, be they erased yet or not."""
    cleaned(forge, first, frames)
    assert walk(forge, recovery) == ([*left, 7], Report(5))
    with opened(forge, recovery) as log:
        news = log.follow()
        assert news.jumped
        assert [int(one.header["lsn"]) for one in news.fresh] == left
        assert [int(one.header["lsn"]) for one in news.moved] == [7]
        news = log.follow()
        assert (list(news.fresh), list(news.moved), news.jumped) == ([], [], False)


@pytest.mark.parametrize("torn_after", [True, False])
@pytest.mark.parametrize(("first", "frames"), [(3, 5), (1, 9), (2, 6)])
def test_frames_that_are_freed_have_one_behind_them(forge, first, frames, torn_after):
    """It was durable before they were named. A frame that was given the number of one of them would count for
    nothing.
    """
    cleaned(forge, first, frames, torn_after=torn_after)
    start = end_of_fresh(forge)
    for recovery in REFUSES:
        assert refused(forge, recovery)[0] == start
    for recovery in ("skip-damaged", "point-in-time"):
        assert [bad.start for bad in walk(forge, recovery)[1].damage] == [start]


@pytest.mark.parametrize(("first", "frames"), [(3, 1), (4, 1), (5, 2), (0, 0)])
def test_frames_that_are_gone_and_not_freed_are_damage(forge, first, frames):
    start = cleaned(forge, first, frames)
    for recovery in REFUSES:
        assert refused(forge, recovery)[0] == start
    left = [n for n in (1, 2, 5, 6) if (first, frames) != (5, 2) or n < 5]
    assert walk(forge, "skip-damaged")[0] == left + [7] * bool(frames)


def test_freed_frames_that_are_there_count_for_nothing(forge):
    """As a crash before the erase leaves them: they are walked over."""
    cleaned(forge, 3, 2, behind=False)
    assert walk(forge, "absolute") == ([1, 2, 5, 6, 7], Report(7))
    with opened(forge) as log:
        assert log.follow().jumped


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
    assert [bad.start for bad in report.damage if bad.start != end_of_fresh(forge)] == [start]
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
