"""Appending to a log: frames programmed unit by unit, committed by their trailing checksum, durable after `sync`."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from kvcodec.errors import DeviceError, ProgramFailed
from kvcodec.flash.block import Block, Counters
from kvcodec.flash.device import Device
from kvcodec.flash.image import Bytes
from kvcodec.layout import FRAME_OVERHEAD, NO_FRAME, FrameType
from kvcodec.log.cursor import Cursor
from kvcodec.log.frame import FrameId, Record, count_drops, host_bytes, seal_record, write_frame
from kvcodec.log.located import HEADER_ROOM, Located, Place, RecordTable, fill_table, join_records
from kvcodec.log.plan import PlannedFrame, plan_frames
from kvcodec.log.reader import Log
from kvcodec.log.rewriting import Moves, cut_span, unwritten_frames
from kvcodec.log.sidecar import LaneEnd
from kvcodec.log.tail import Tail
from kvcodec.log.walk import Walk

_MANY = 32  # records of a frame that are better located as rows of one table
_SETTLE_BYTES = 16 << 20  # programmed without a sync, after which later frames shall vouch for them


class LaneWriter:
    """The one writer of a lane; takeup.py makes those of a log.

    It goes on in unit `next_unit` of the block where the walk ended, its first frame chained to the last good one.
    moved: told of records of earlier appends that lie elsewhere now, since their units failed to program.
    """

    def __init__(self, device: Device, log: Log, walk: Walk, next_unit: int) -> None:
        self.device, self.lane = device, walk.lane
        self._log, self._walk = log, walk
        self.durable = walk.cursor.durable
        self.frame_type = FrameType.DATA
        self._number, self._crc, self._drops = walk.cursor.number, walk.cursor.crc, walk.cursor.drops
        self._begin_session()
        self.moved: Callable[[Sequence[Located]], None] = lambda _records: None
        self._moves = Moves()
        self._block = walk.cursor.block
        self._programmed_before = walk.totals.programmed  # when the open block was opened
        self._tail = Tail()  # bytes of frames in the unit that is not full yet
        self._starts: list[int] = []  # offsets in the block of the frames that begin in `_tail`
        self._failed = False
        self._witnessed = True
        self._frames = walk.report.frames
        self._frame_end = walk.cursor.offset - walk.padding
        self._unit_start = self._pending_from = next_unit * self._unit
        device.resume(self.lane, self._block, next_unit, walk.counters())
        self._settled = self.counters.programmed
        log.pending[self.lane] = self

    @property
    def _unit(self) -> int:
        return self.device.geometry.unit_bytes

    @property
    def counters(self) -> Counters:
        """Of the lane."""
        return self.device.counters[self.lane]

    @property
    def number(self) -> int:
        """Of the last frame."""
        return self._number

    @property
    def block(self) -> Block | None:
        """The open one."""
        return self._block

    # -- appending ---------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record], lsns: Sequence[int] = ()) -> Sequence[Located]:
        """Commit records in frames; whole units are programmed now, the rest with the next append or `sync`.

        lsns: of copies those that the records have. Returns each record (each part of one that was split) with its
        place. Raises NoSpace and SpecError with nothing written; DeviceError if the file failed in the middle, after
        which the log must be opened again.
        """
        self._refuse_if_failed()
        unit = self._unit
        numbers = lsns or range(self._log.lsn + 1, self._log.lsn + 1 + len(records))
        frames = self._plan(list(zip(numbers, records, strict=True)))
        self._reserve(frames)
        self._failed = True
        self._log.lsn += 0 if lsns else len(records)
        parts = [self._append_frame(frame) for frame in frames]
        while len(self._tail) >= unit:
            self._program(len(self._tail) // unit)
        self._witnessed = False
        if self.counters.programmed - self._settled >= _SETTLE_BYTES:
            self.settle()
        self._failed = False
        return self._tell_moves(parts[0] if len(parts) == 1 else self._join(parts))

    def _tell_moves(self, located: Sequence[Located] = ()) -> Sequence[Located]:
        """These records where they lie now; others that were moved are told of."""
        own, others = self._moves.take(located)
        if others:
            self.moved(others)
        return own

    def _join(self, located: Sequence[Sequence[Located]]) -> Sequence[Located]:
        """Records of several frames, in order."""
        return join_records(located)

    def _plan(self, numbered: Sequence[tuple[int, Record]]) -> list[PlannedFrame]:
        block_bytes = self.device.geometry.block_bytes
        offset = self._unit_start + len(self._tail) if self._block else block_bytes
        return plan_frames(numbered, offset=offset, first=self._unit, block_bytes=block_bytes)

    def count_fresh(self, records: Sequence[Record]) -> int:
        """Erased blocks that records would need. Raises SpecError."""
        return sum(frame.fresh for frame in self._plan([(0, record) for record in records]))

    def sync(self) -> None:
        """Pad and program the last unit; everything appended so far is durable when this returns."""
        self._refuse_if_failed()
        self._failed = True
        self._close_unit()
        if self.durable < self._number:
            self.device.sync()
            self.durable = self._number
        self._failed = False
        self._tell_moves()

    def bytes_from(self, place: Place) -> Bytes | None:
        """Bytes of the open block from a record's place on if some of them wait to be programmed, else None."""
        if self._block is None or place.block != self._block.number or place.offset < self._pending_from:
            return None
        programmed = max(0, self._unit_start - place.offset)
        waiting = self._tail.rest(max(0, place.offset - self._unit_start))
        return np.concatenate([self.device.data(place.block, place.offset, programmed), waiting])

    def end(self) -> LaneEnd:
        """Where the lane ends, as of the last sync."""
        cursor = Cursor(self._block, self._frame_end, self._number, self._crc, self.durable, drops=self._drops)
        counted = replace(self.counters, programmed=self._programmed_before)
        return LaneEnd(cursor, counted, self._frames)

    def begin_block(self) -> None:
        """Sync, and go on in a fresh block, with a frame that holds nothing. Raises NoSpace."""
        self.sync()
        unit = self._unit
        frame = PlannedFrame(True, unit, unit + FRAME_OVERHEAD, [])
        self._reserve([frame])
        self._failed = True
        self._append_frame(frame)
        self._failed = False
        self.sync()

    def _begin_session(self) -> None:
        """The next frame is the first one that did not follow the last good one in its place."""
        self._session = int.from_bytes(os.urandom(4), "little") or 1
        self._session_start = self._number + 1

    def witness(self) -> None:
        """Sync, and let a last frame without records say what is durable: the loss of that is then known as damage.

        The frame shares the last program unit with what waits for it; nothing happens if nothing was appended.
        """
        self._refuse_if_failed()
        offset = self._unit_start + len(self._tail)
        if self._witnessed or self._block is None or offset + FRAME_OVERHEAD > self.device.geometry.block_bytes:
            return self.sync()
        self._failed = True
        self.settle()
        self._append_frame(PlannedFrame(False, offset, offset + FRAME_OVERHEAD, []))
        self._failed = False
        self.sync()
        self._witnessed = True
        return None

    def settle(self) -> None:
        """Make the units programmed so far durable, and with them the frames that need no other."""
        self.device.sync()
        straddles = bool(self._tail) and self._pending_from < self._unit_start
        self.durable = max(self.durable, self._number - len(self._starts) - straddles)
        self._settled = self.counters.programmed

    @property
    def has_failed(self) -> bool:
        """Whether a write did, so that none may follow it."""
        return self._failed

    def _refuse_if_failed(self) -> None:
        if self._failed:
            path = str(self.device.image.path)
            raise DeviceError(errno.EIO, "an earlier write failed; open the log again", path)

    def _reserve(self, frames: Sequence[PlannedFrame]) -> None:
        fresh = self.device.next_blocks(sum(frame.fresh for frame in frames), self.lane)
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
            self._open_block()
        assert self._block is not None
        offset, size = self._unit_start + len(self._tail), frame.end - frame.offset
        self._walk.note(self._block, offset, self._number + 1, self._number + 1, self._crc)
        self._crc, host, located = self._write(frame, self._block, offset)
        self._starts.append(offset)
        self._number += 1
        self._drops = count_drops(self._drops, (record.kind for _, record in frame.records))
        self._frames, self._frame_end = self._frames + 1, offset + size
        self._count(self.frame_type, size, host)
        return located

    def _write(self, frame: PlannedFrame, block: Block, offset: int) -> tuple[int, int, Sequence[Located]]:
        """Put a frame that begins at `offset` of the open block into the tail. Gives its CRC, how many of its bytes are
        rows, and its records with their places.
        """
        sealed = [(seal_record(record, lsn), record.body) for lsn, record in frame.records]
        ident = FrameId(self._number + 1, self.durable, self._session, self._session_start, self._crc,
                        self._drops, self.frame_type)  # fmt: skip
        crc = write_frame(
            self._tail.extend(frame.end - frame.offset), sealed, ident, [at - offset for at in frame.places],
            generation=block.generation, uuid=self.device.uuid,
        )  # fmt: skip
        headers: list[np.void] = [record.header.reshape(1)[0] for _, record in frame.records]
        host = sum(map(host_bytes, headers))
        places = [Place(block.generation, block.number, at) for at in frame.places]
        if len(places) < _MANY:
            return crc, host, list(map(Located, places, headers))
        filled = b"".join(header.ljust(HEADER_ROOM, b"\0") for header, _ in sealed)
        return crc, host, RecordTable(fill_table(np.array(places, np.uint64), filled))

    def _open_block(self) -> None:
        self._programmed_before = self.counters.programmed
        self._block = self.device.allocate(self.lane)
        self._unit_start = self._pending_from = self._unit

    def _close_unit(self) -> None:
        while self._tail:  # again, where what it held went into another block
            units = -(-len(self._tail) // self._unit)
            self._tail.extend(units * self._unit - len(self._tail))[:] = 0
            self._program(units)

    def _program(self, units: int) -> None:
        """Program the first `units` of the tail. Where one fails, what was not wholly programmed is in the tail again,
        and goes into a fresh block. Raises WornOut if there is none.
        """
        assert self._block is not None
        unit, first = self._unit, self._unit_start // self._unit
        firsts = [NO_FRAME] * units
        for start in reversed(self._starts):
            if start // unit - first < units:
                firsts[start // unit - first] = start % unit
        try:
            self.device.program(self._block.number, first, self._tail.first(units * unit), firsts)
        except ProgramFailed as failure:
            if failure.unit > first:
                self._advance(failure.unit - first)
            self._write_elsewhere(self._block)
        else:
            self._advance(units)

    def _advance(self, units: int) -> None:
        """The first `units` of the tail are programmed."""
        self._tail.drop(units * self._unit)
        self._unit_start += units * self._unit
        begun = [s for s in self._starts if s < self._unit_start]
        self._pending_from = begun[-1] if begun and self._tail else self._unit_start
        self._starts = [s for s in self._starts if s >= self._unit_start]

    def _write_elsewhere(self, failed: Block) -> None:
        """Go on in a fresh block, with the frames that are not wholly programmed, as if a crash had torn the first."""
        held = self.device.data(failed.number, 0, self._unit_start)
        data = np.concatenate([held, self._tail.rest(0)])
        starts = {*self._starts, *([self._pending_from] if self._pending_from < self._unit_start else [])}
        frames = unwritten_frames(data, starts, self._unit_start, failed, self.device.uuid)
        for frame in frames:
            self._count(frame.type, -frame.size, -frame.host)
        self._open_block()
        self._tail.drop(len(self._tail))
        self._starts.clear()
        first = frames[0].frame.id
        self._number, self._crc, self._drops = first.number - 1, first.previous, first.drops
        self._begin_session()
        cut_span(self._walk, failed, first.number)
        self._frames -= len(frames)
        now = self.frame_type
        for frame in frames:
            places, self.frame_type = iter(frame.places), frame.type
            for planned in self._plan(frame.records) or [self._plan_empty()]:
                located = self._append_frame(planned)
                self._moves.add(list(itertools.islice(places, len(located))), located)
        self.frame_type = now

    def _count(self, type_: FrameType, size: int, host: int) -> None:
        """A frame of so many bytes, and of rows in it, or one less."""
        self.counters.framed += size
        if type_ == FrameType.COMPACTION:
            self.counters.compacted += size
        else:
            self.counters.host += host

    def _plan_empty(self) -> PlannedFrame:
        """A frame without records, where there is room for it."""
        offset = self._unit_start + len(self._tail)
        fresh = offset + FRAME_OVERHEAD > self.device.geometry.block_bytes
        offset = self._unit if fresh else offset
        return PlannedFrame(fresh, offset, offset + FRAME_OVERHEAD, [])
