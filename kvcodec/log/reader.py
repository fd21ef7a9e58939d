"""Reading a log: the walk along the chain of frames, live or at rest, and what recovery makes of a bad place.

`durable` decides between a torn tail and damage: a bad place at frame n is damage if a later frame says that n had
reached the medium (formats/frame.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from kvcodec.errors import CorruptRecord, TruncatedLog
from kvcodec.flash.block import Block, Counters
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.flash.image import Bytes
from kvcodec.layout import NO_FRAME, RECORD_HEADER
from kvcodec.log.blocks import BlockOrder
from kvcodec.log.frame import Flaw, Frame, host_bytes, implied_drop, read_frame, read_record_header
from kvcodec.log.located import NOWHERE, Located, Place, RecordTable, join_records
from kvcodec.log.recover import BadRange, Found, Recovery, Report, alive
from kvcodec.log.scan import Scanned, scan_frames

__all__ = ["NOWHERE", "Cursor", "Located", "Log", "Pending", "Place"]


@dataclass
class Cursor:
    """The end of the walk: the next frame is expected at byte `offset` of `block`."""

    block: Block | None = None
    offset: int = 0
    number: int = 0
    crc: int = 0
    durable: int = 0
    session: int = 0


_FEW = 8  # frames that are read with care before a scan is worth beginning


class Pending(Protocol):
    """What a writer holds of frames that are not wholly programmed yet."""

    def bytes_from(self, place: Place) -> Bytes | None:
        """Bytes of the block from a record's place on, or None if the device holds all of the record."""
        ...


class Log:
    """The reading side of a log. `poll` gives the records that were committed since the last poll."""

    def __init__(self, device: Device, recovery: Recovery = Recovery.TORN_TAIL) -> None:
        self.device, self.recovery = device, recovery
        self.cursor = Cursor()
        self.report = Report()
        self.totals = Counters()
        self.lsn = 0
        self.pending: Pending | None = None
        self.known_durable = 0  # a frame number that the sidecar vouches for
        self.stopped = self._skipped = False
        self.blocks = BlockOrder(device)

    # -- walking -----------------------------------------------------------------------------------------------

    def poll(self) -> list[Located]:
        """Records of all frames committed since the last call, in log order, each frame read with care.

        Raises CorruptRecord for damage (and in mode `absolute` for any flaw), TruncatedLog, UnsupportedVersion.
        """
        out: list[Located] = []
        while (found := self._step()) is not None:
            out += found
        return out

    def poll_table(self) -> Sequence[Located]:
        """What `poll` gives and raises; quicker, and as a table, where many frames wait."""
        parts: list[Sequence[Located]] = []
        few: list[Located] = []
        frames = 0
        while (found := self._step()) is not None:
            few, frames = few + found, frames + 1
            if frames == _FEW:
                parts += [few, *self._scan()]
                few, frames = [], 0
        return join_records([*parts, few]) if parts else few

    def _step(self) -> list[Located] | None:
        """Records of the next frame; None at the end of the log."""
        if self.stopped or (frame := self._next_frame()) is None:
            return None
        block, out = self.cursor.block, list[Located]()
        assert block is not None
        if self._skipped and frame.id.session != self.cursor.session:
            out.append(Located(NOWHERE, implied_drop(self.lsn)))
        self._skipped = False
        out += (Located(Place(block.generation, block.number, at), header) for at, header in frame.records)
        self._count(frame)
        self.cursor = Cursor(
            block,
            frame.end,
            frame.id.number,
            frame.crc,
            max(self.cursor.durable, frame.id.durable),
            frame.id.session,
        )
        return out

    def _scan(self) -> Iterator[RecordTable]:
        """Records of frames that need no care, up to the first one that does; from block to block."""
        block, offset = self.cursor.block, self.cursor.offset
        while block is not None:
            found = scan_frames(self.device, self.cursor, block, offset)
            if block is not self.cursor.block:
                if not found.frames:
                    return
                self._enter(block, offset)
            self._count_scanned(found)
            yield found.table
            self._skip_padding(block)
            if self._programmed_from(block, self.cursor.offset // self._unit):
                return
            block, offset = self.blocks.following(block), self._unit

    def _count_scanned(self, found: Scanned) -> None:
        self.report.frames += found.frames
        self.totals.framed += found.framed
        self.totals.host += found.host
        self.lsn = max(self.lsn, found.lsn)
        self.cursor = found.cursor

    def _count(self, frame: Frame) -> None:
        self.report.frames += 1
        self.totals.framed += frame.end - self.cursor.offset
        self.totals.host += sum(host_bytes(header) for _, header in frame.records)
        self.lsn = max(self.lsn, *(int(header["lsn"]) for _, header in frame.records), 0)

    def counters(self) -> Counters:
        """Cumulative bytes up to the cursor; of the open block all units that were programmed."""
        block = self.cursor.block
        units = int(self.device.programmed(block.number).sum()) if block else 0
        return replace(self.totals, programmed=self.totals.programmed + units * self._unit)

    def _enter(self, block: Block, offset: int) -> None:
        """Set the cursor into a block; totals then are those before it."""
        here = self.cursor.block
        if here is None or here.number != block.number:
            self.totals = replace(block.before) if block.before else self.counters()
            if here is not None:
                self.device.release(here.number)  # so that a walk over a log holds one block in memory, not all
        self.cursor = replace(self.cursor, block=block, offset=offset)

    def _next_frame(self) -> Frame | None:
        """The frame that continues the chain, the cursor set to where it begins; None at the end of the log."""
        if self._at_tail():
            self.report.torn = None
            if self.known_durable > self.cursor.number:
                return self._damaged(f"the log ends here, but frame {self.known_durable} was durable", [])
            return None
        try:
            frame = self._read_here()
        except Flaw as flaw:
            return self._after_flaw(str(flaw))
        self.report.torn = None
        return frame

    def _at_tail(self) -> bool:
        """Move over padding and to the next block; True if nothing is programmed beyond the cursor."""
        while True:
            block = self.cursor.block
            if block is not None:
                self._skip_padding(block)
                if self._programmed_from(block, self.cursor.offset // self._unit):
                    return False
            following = self.blocks.following(block)
            if following is None:
                return True
            if not self._programmed_from(following, 1):
                later = (b for b in self.blocks.in_use() if b.generation > following.generation)
                return not any(self._programmed_from(b, 1) for b in later)
            if block is not None and not self._first_continues(following):
                return False
            self._enter(following, self._unit)

    def _programmed_from(self, block: Block, unit: int) -> bool:
        """Whether any unit from `unit` on is programmed; the next one mostly tells."""
        near = self.device.programmed(block.number, unit, min(2, self.device.geometry.units_per_block - unit))
        return bool(near.any() or self.device.programmed(block.number, unit).any())

    @property
    def _unit(self) -> int:
        return self.device.geometry.unit_bytes

    def _skip_padding(self, block: Block) -> None:
        inside = self.cursor.offset % self._unit
        if inside:
            rest = self.device.data(block.number, self.cursor.offset, self._unit - inside)
            if rest.size == self._unit - inside and not rest.any():
                self.cursor = replace(self.cursor, offset=self.cursor.offset + rest.size)

    def _first_continues(self, block: Block) -> bool:
        try:
            return self._continues(self._read(block, self._unit))
        except Flaw:
            return False

    def _continues(self, frame: Frame) -> bool:
        return frame.id.number == self.cursor.number + 1 and frame.id.previous == self.cursor.crc

    def _read_here(self) -> Frame:
        assert self.cursor.block is not None
        frame = self._read(self.cursor.block, self.cursor.offset)
        if not self._continues(frame):
            raise Flaw(f"frame {frame.id.number} does not continue frame {self.cursor.number}")
        return frame

    def _read(self, block: Block, offset: int) -> Frame:
        data = self.device.data(block.number, 0, self.device.geometry.block_bytes)
        base = self.device.file_offset(block.number)
        frame = read_frame(data, offset, generation=block.generation, uuid=self.device.uuid, base=base)
        first, last = offset // self._unit, (frame.end - 1) // self._unit
        if not self.device.programmed(block.number, first, last - first + 1).all():
            raise Flaw("the frame reaches into a unit that is not programmed")
        return frame

    # -- bad places --------------------------------------------------------------------------------------------

    def _after_flaw(self, why: str) -> Frame | None:
        """A gap left on purpose, a torn tail, or damage: the frame to go on with, or None."""
        expected = self.cursor.number + 1
        later = list(self._later_frames())
        self.device.image.release()
        for block, offset, frame in later:
            if self._continues(frame):
                self._pass_over(self._range(block, offset, why, "gap"), frame)
                self._enter(block, offset)
                return frame
        durable = max((f.id.durable for _, _, f in later), default=0)
        if max(durable, self.cursor.durable, self.known_durable) < expected:
            self._torn(why)
            return None
        with contextlib.suppress(Flaw):
            return self._read_here()  # a live writer finished it while we looked further
        return self._damaged(why, later)

    def _pass_over(self, gap: BadRange, frame: Frame) -> None:
        """What lies between two frames is a gap on purpose only if a writer began anew behind it; else it was padding
        that is zeros no longer: no row is lost.
        """
        if frame.id.number != frame.id.session_start:
            gap = replace(gap, kind="padding", why="padding is not zeros")
            if self.recovery == Recovery.ABSOLUTE:
                raise CorruptRecord(gap.start, f"damage: {gap.why}, up to byte {gap.end}")
        self.report.gaps.append(gap)

    def _torn(self, why: str) -> None:
        self.report.torn = self._range(None, 0, why, "torn tail")
        if self.recovery == Recovery.ABSOLUTE:
            raise CorruptRecord(self.report.torn.start, f"torn tail: {why}")

    def _damaged(self, why: str, later: list[Found]) -> Frame | None:
        found = next(iter(alive(later, self.cursor.number)), None) if self.recovery == Recovery.SKIP_DAMAGED else None
        block, offset, frame = found or (None, 0, None)
        bad = self._range(block, offset, why, "damage")
        if self.recovery in (Recovery.TORN_TAIL, Recovery.ABSOLUTE):
            raise CorruptRecord(bad.start, f"damage: {why} (frame {self.cursor.number + 1}, up to byte {bad.end})")
        self.report.damage.append(bad)
        if block is None or frame is None:
            self.stopped = True
            return None
        self._skipped = True
        self._enter(block, offset)
        return frame

    def _later_frames(self) -> Iterator[Found]:
        """Good frames beyond the cursor that the spare slots point at, in log order."""
        here = self.cursor.block
        for block in self.blocks.in_use():
            if here is not None and block.generation < here.generation:
                continue
            firsts = self.device.slots(block.number)["first_frame"]
            programmed = self.device.programmed(block.number)[: len(firsts)]
            for unit in np.flatnonzero(programmed & (firsts != NO_FRAME)):
                offset = int(unit) * self._unit + int(firsts[unit])
                if here is not None and block.generation == here.generation and offset < self.cursor.offset:
                    continue
                try:
                    yield Found(block, offset, self._read(block, offset))
                except Flaw:
                    continue

    def _range(self, block: Block | None, offset: int, why: str, kind: str) -> BadRange:
        here = self.cursor.block
        start = self.device.file_offset(here.number, self.cursor.offset) if here else 0
        end = self.device.file_offset(block.number, offset) if block is not None else self.device.image.size
        return BadRange(start, end, why, kind)

    # -- one record --------------------------------------------------------------------------------------------

    def load(self, place: Place) -> tuple[np.void, Bytes]:
        """Header and body (a view of the map) of a record, both checked. Raises CorruptRecord, TruncatedLog."""
        base = self.device.file_offset(place.block, place.offset)
        data = self.pending.bytes_from(place) if self.pending is not None else None
        if data is None:
            data = self.device.data(place.block, place.offset, self.device.geometry.block_bytes)
            self.check_unerased(place)
        if data.size < RECORD_HEADER.itemsize:
            raise TruncatedLog(f"{self.device.image.path} ends before byte {base + RECORD_HEADER.itemsize}")
        header = read_record_header(data, 0, base)
        start = int(header["header_bytes"])
        body = data[start : start + int(header["body_bytes"])]
        if int(header["body_crc"]) != crc32c(body):
            raise CorruptRecord(base + start, "record body checksum")
        return header, body

    def waits(self, place: Place) -> bool:
        """Whether bytes of a record wait in memory to be programmed."""
        return self.pending is not None and self.pending.bytes_from(place) is not None

    def check_unerased(self, place: Place) -> None:
        """Raises CorruptRecord if the block has been erased since: what was read from the map may be another's."""
        if self.waits(place):
            return
        if self.device.generation(place.block, place.offset // self._unit) != place.generation:
            base = self.device.file_offset(place.block, place.offset)
            raise CorruptRecord(base, f"no such record: block {place.block} was erased, or its spare slot is damaged")
