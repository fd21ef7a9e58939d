"""Becoming the writer of a log: where its lanes go on, and what a crash left behind."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvcodec.errors import EraseFailed, NoSpace, SpecError
from kvcodec.flash.device import Device
from kvcodec.layout import FrameType, RetireCause
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery
from kvcodec.log.walk import Walk
from kvcodec.log.writer import LaneWriter


class Writers(NamedTuple):
    """Of the records that are appended, and of what is copied out of blocks that are erased."""

    fresh: LaneWriter
    kept: LaneWriter

    @contextlib.contextmanager
    def compacting(self) -> Iterator[None]:
        """What is written meanwhile counts as compaction."""
        for writer in self:
            writer.frame_type = FrameType.COMPACTION
        try:
            yield
        finally:
            for writer in self:
                writer.frame_type = FrameType.DATA

    @contextlib.contextmanager
    def unless_full(self) -> Iterator[None]:
        """What there is no room for stays undone. Raises NoSpace for a write that failed for that: nothing can be
        written behind it.
        """
        try:
            yield
        except NoSpace:
            if any(writer.has_failed for writer in self):
                raise


def check_writable(log: Log) -> None:
    """Raises SpecError for a damaged log."""
    if log.report.damage or log.recovery == Recovery.SKIP_DAMAGED:
        raise SpecError("a damaged log, or one opened with skip-damaged, can only be read")


def take_up(device: Device, log: Log) -> Writers:
    """The writers of a log that was polled to its end, on the same device.

    Takes up an unclean end: goes on in the next unit (the last one may be unstable); blocks that hold nothing accepted
    are erased, and so are those of whose frames none was, as a crash within their erase leaves them. Raises SpecError
    for a damaged log, EraseFailed for one that can't be taken up.
    """
    check_writable(log)
    for walk in log.walks:
        walk.leave_unaccepted()
    accepted = {b.number: b for walk in log.walks for b in walk.blocks.in_use() if _is_accepted(walk, b.generation)}
    device.retired = log.retired
    unknown = (b for b in range(device.present_blocks()) if b not in accepted and b not in device.retired)
    stale = [block for block in unknown if _touched(device, block).any()]
    device.survey(log.fresh.blocks.of_all_lanes())
    if stale:
        device.sync()  # what makes them worthless may have been read before it was on the medium
    left = {number for number in stale if not _erase(device, number)}
    _refuse_kept(device, log, left)
    if stale:
        device.sync()
    fresh, kept = (LaneWriter(device, log, walk, _next_unit(device, walk, left)) for walk in log.walks)
    return Writers(fresh, kept)


def _erase(device: Device, number: int) -> bool:
    """Whether a block was erased; if not, the cleaner will retire it."""
    try:
        device.erase(number)
    except EraseFailed:
        device.hold_back(number, RetireCause.ERASE)
        return False
    return True


def _refuse_kept(device: Device, log: Log, left: Collection[int]) -> None:
    """Raises EraseFailed if frames of lane KEPT are left that nobody accepted: what says that their block did not erase
    would stand behind them, and a walk would come to them first.
    """
    for block in log.kept.blocks.in_use():
        if block.number in left and log.kept.frames.has_any(block):
            why = f"block {block.number}, which a crash left in lane KEPT, does not erase"
            raise EraseFailed(errno.EIO, f"{why}: the log can only be read, or repaired", str(device.image.path))


def _is_accepted(walk: Walk, generation: int) -> bool:
    end = walk.cursor.block
    if end is None or generation > end.generation:
        return False
    return generation == end.generation or generation in walk.spans


def _next_unit(device: Device, walk: Walk, left: set[int]) -> int:
    """The unit of a lane's open block from which on it is erased. Behind blocks that are left as a crash left them a
    lane goes on in a fresh one: what begins a block with a session is a gap.
    """
    block = walk.cursor.block
    if block is None:
        return 0
    if left or block.number in device.retired:
        return device.geometry.units_per_block
    used = np.flatnonzero(device.programmed(block.number) | _touched(device, block.number))
    return int(used[-1]) + 1 if used.size else 0


def _touched(device: Device, block: int) -> npt.NDArray[np.bool_]:
    """Units of which a slot or data byte is set: programmed, or caught by a crash in the middle of it."""
    units, unit = device.geometry.units_per_block, device.geometry.unit_bytes
    touched = np.zeros(units, np.bool_)
    slots = device.slots(block).view("<u8").reshape(-1, 2)
    touched[: len(slots)] = (slots != 0).any(axis=1)
    held = device.data(block, 0, units * unit)
    whole = held.size // unit
    touched[:whole] |= held[: whole * unit].reshape(-1, unit).any(axis=1)
    if held.size % unit:
        touched[whole] |= held[whole * unit :].any()
    return touched
