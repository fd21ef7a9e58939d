"""Appending to a log: frames programmed unit by unit, committed by their trailing checksum, durable after `sync`."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvcodec.errors import DeviceError, SpecError
from kvcodec.flash.device import Device
from kvcodec.flash.image import Bytes
from kvcodec.layout import FRAME_OVERHEAD, NO_FRAME
from kvcodec.log.frame import FrameId, Record, host_bytes, seal_record, write_frame
from kvcodec.log.located import HEADER_ROOM, Located, Place, RecordTable, fill_table, join_records
from kvcodec.log.plan import PlannedFrame, plan_frames
from kvcodec.log.reader import Cursor, Log
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import LogEnd
from kvcodec.log.tail import Tail

_MANY = 32  # records of a frame that are better located as rows of one table
_SETTLE_BYTES = 16 << 20  # programmed without a sync, after which later frames shall vouch for them


class LogWriter:
    """The one writer of a log. `log` must have been polled to its end, on the same device.

    Takes up an unclean end: goes on in the next unit (the last one may be unstable), its first frame chained to
    the last good one; blocks that hold nothing accepted are erased. Refuses a damaged log.
    """

    def __init__(self, device: Device, log: Log) -> None:
        if log.report.damage or log.recovery == Recovery.SKIP_DAMAGED:
            raise SpecError("a damaged log, or one opened with skip-damaged, can only be read")
        self.device = device
        self.durable = log.cursor.durable
        self.lsn = log.lsn
        self._number, self._crc = log.cursor.number, log.cursor.crc
        self._session = int.from_bytes(os.urandom(4), "little") or 1
        self._session_start = self._number + 1
        self._block = log.cursor.block
        self._generation = max((b.generation for b in log.blocks.in_use()), default=0)
        self._programmed_before = log.totals.programmed  # when the open block was opened
        self._tail = Tail()  # bytes of frames in the unit that is not full yet
        self._starts: list[int] = []  # offsets in the block of the frames that begin in `_tail`
        self._failed = False
        self._witnessed = True
        self._frames = log.report.frames
        self._frame_end = log.cursor.offset
        self._unit_start = self._take_up(log)
        self._pending_from = self._unit_start
        self._settled = device.counters.programmed
        log.pending = self

    @property
    def _unit(self) -> int:
        return self.device.geometry.unit_bytes

    # -- taking up ---------------------------------------------------------------------------------------------

    def _take_up(self, log: Log) -> int:
        """Byte of the open block from which on it is erased."""
        device, block = self.device, log.cursor.block
        in_use = {b.number: b for b in log.blocks.in_use()}
        accepted = {n: b for n, b in in_use.items() if block and b.generation <= block.generation}
        next_unit = 0
        if block is not None:
            used = np.flatnonzero(device.programmed(block.number) | self._touched(block.number))
            next_unit = int(used[-1]) + 1 if used.size else 0
        stale = [b for b in range(device.present_blocks()) if b not in accepted and self._touched(b).any()]
        device.resume(block, next_unit, log.counters(), {n: b.erase_count for n, b in in_use.items()})
        for number in stale:
            device.erase(number)
        if stale:
            device.sync()
        return next_unit * self._unit

    def _touched(self, block: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Units of which a slot or data byte is set: programmed, or caught by a crash in the middle of it."""
        units, unit = self.device.geometry.units_per_block, self._unit
        touched = np.zeros(units, np.bool_)
        slots = self.device.slots(block).view("<u8").reshape(-1, 2)
        touched[: len(slots)] = (slots != 0).any(axis=1)
        held = self.device.data(block, 0, units * unit)
        whole = held.size // unit
        touched[:whole] |= held[: whole * unit].reshape(-1, unit).any(axis=1)
        if held.size % unit:
            touched[whole] |= held[whole * unit :].any()
        return touched

    # -- appending ---------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> Sequence[Located]:
        """Commit records in frames; whole units are programmed now, the rest with the next append or `sync`.

        Returns each record (each part of one that was split) with its place. Raises NoSpace and SpecError with
        nothing written; DeviceError if the file failed in the middle, after which the log must be opened again.
        """
        self._refuse_if_failed()
        unit, block_bytes = self._unit, self.device.geometry.block_bytes
        offset = self._unit_start + len(self._tail) if self._block else block_bytes
        numbered = list(enumerate(records, self.lsn + 1))
        frames = plan_frames(numbered, offset=offset, first=unit, block_bytes=block_bytes)
        self._reserve(frames)
        self._failed = True
        self.lsn += len(records)
        located = [self._append_frame(frame) for frame in frames]
        self._program(len(self._tail) // unit)
        self._witnessed = False
        if self.device.counters.programmed - self._settled >= _SETTLE_BYTES:
            self._settle()
        self._failed = False
        return located[0] if len(located) == 1 else join_records(located)

    def sync(self) -> None:
        """Pad and program the last unit; everything appended so far is durable when this returns."""
        self._refuse_if_failed()
        self._failed = True
        self._close_unit()
        if self.durable < self._number:
            self.device.sync()
            self.durable = self._number
        self._failed = False

    def bytes_from(self, place: Place) -> Bytes | None:
        """Bytes of the open block from a record's place on if some of them wait to be programmed, else None."""
        if self._block is None or place.block != self._block.number or place.offset < self._pending_from:
            return None
        programmed = max(0, self._unit_start - place.offset)
        waiting = self._tail.rest(max(0, place.offset - self._unit_start))
        return np.concatenate([self.device.data(place.block, place.offset, programmed), waiting])

    def end(self) -> LogEnd:
        """Where the log ends, as of the last sync."""
        cursor = Cursor(self._block, self._frame_end, self._number, self._crc, self.durable)
        counted = replace(self.device.counters, programmed=self._programmed_before)
        return LogEnd(cursor, counted, self._frames, self.lsn)

    def witness(self) -> None:
        """Sync, and let a last frame without records say what is durable: the loss of that is then known as damage.

        The frame shares the last program unit with what waits for it; nothing happens if nothing was appended.
        """
        self._refuse_if_failed()
        offset = self._unit_start + len(self._tail)
        if self._witnessed or offset + FRAME_OVERHEAD > self.device.geometry.block_bytes:
            return self.sync()
        self._failed = True
        self._settle()
        self._append_frame(PlannedFrame(False, offset, offset + FRAME_OVERHEAD, []))
        self._failed = False
        self.sync()
        self._witnessed = True
        return None

    def _settle(self) -> None:
        """Make the units programmed so far durable, and with them the frames that need no other."""
        self.device.sync()
        straddles = bool(self._tail) and self._pending_from < self._unit_start
        self.durable = max(self.durable, self._number - len(self._starts) - straddles)
        self._settled = self.device.counters.programmed

    def _refuse_if_failed(self) -> None:
        if self._failed:
            path = str(self.device.image.path)
            raise DeviceError(errno.EIO, "an earlier write failed; open the log again", path)

    def _reserve(self, frames: Sequence[PlannedFrame]) -> None:
        fresh = self.device.next_blocks(sum(frame.fresh for frame in frames))
        number = self._block.number if self._block else -1
        for frame in frames:
            if frame.fresh:
                number = fresh.pop(0)
                self.device.reserve(number, 0, self._unit)
            end = min(frame.end + self._unit, self.device.geometry.block_bytes)
            self.device.reserve(number, frame.offset // self._unit * self._unit, end)

    def _append_frame(self, frame: PlannedFrame) -> Sequence[Located]:
        if frame.fresh:
            self._close_unit()
            self._generation += 1
            self._programmed_before = self.device.counters.programmed
            self._block = self.device.allocate(self._generation)
            self._unit_start = self._pending_from = self._unit
        assert self._block is not None
        block, offset = self._block, self._unit_start + len(self._tail)
        sealed = [(seal_record(record, lsn), record.body) for lsn, record in frame.records]
        ident = FrameId(self._number + 1, self.durable, self._session, self._session_start, self._crc)
        size = frame.end - frame.offset
        starts = [at - offset for at in frame.places]
        crc = write_frame(
            self._tail.extend(size), sealed, ident, starts, generation=block.generation, uuid=self.device.uuid
        )
        self._starts.append(offset)
        self._number, self._crc = ident.number, crc
        self._frames, self._frame_end = self._frames + 1, offset + size
        headers: list[np.void] = [record.header.reshape(1)[0] for _, record in frame.records]
        self.device.counters.framed += size
        self.device.counters.host += sum(map(host_bytes, headers))
        places = [Place(block.generation, block.number, at) for at in frame.places]
        if len(places) < _MANY:
            return list(map(Located, places, headers))
        filled = b"".join(header.ljust(HEADER_ROOM, b"\0") for header, _ in sealed)
        return RecordTable(fill_table(np.array(places, np.uint64), filled))

    def _close_unit(self) -> None:
        if self._tail:
            units = -(-len(self._tail) // self._unit)
            self._tail.extend(units * self._unit - len(self._tail))[:] = 0
            self._program(units)

    def _program(self, units: int) -> None:
        """Program the first `units` of the tail."""
        if not units:
            return
        assert self._block is not None
        unit, first = self._unit, self._unit_start // self._unit
        firsts = [NO_FRAME] * units
        for start in reversed(self._starts):
            if start // unit - first < units:
                firsts[start // unit - first] = start % unit
        self.device.program(self._block.number, first, self._tail.first(units * unit), firsts)
        self._tail.drop(units * unit)
        self._unit_start += units * unit
        begun = [s for s in self._starts if s < self._unit_start]
        self._pending_from = begun[-1] if begun and self._tail else self._unit_start
        self._starts = [s for s in self._starts if s >= self._unit_start]
