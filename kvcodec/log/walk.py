"""The walk along the chain of frames of one lane, live or at rest, and what recovery makes of a bad place.

`durable` decides between a torn tail and damage: a bad place at frame n is damage if a later frame says that n had
reached the medium (formats/frame.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from kvcodec.errors import CorruptRecord
from kvcodec.flash.block import Block, Counters
from kvcodec.flash.device import Device
from kvcodec.layout import FrameType, Lane
from kvcodec.log.behind import behind_freed, freed_ends
from kvcodec.log.blocks import BlockOrder
from kvcodec.log.broken import Broken
from kvcodec.log.cursor import Cursor, Span
from kvcodec.log.frame import Flaw, Frame, count_drops, host_bytes, implied_drop
from kvcodec.log.freed import FreedFrames, Run
from kvcodec.log.lane_frames import LaneFrames
from kvcodec.log.located import NOWHERE, Located, Place, RecordTable, join_records
from kvcodec.log.recover import BadRange, Found, Recovery, Report, alive
from kvcodec.log.scan import Scanned, scan_frames

_FEW = 8  # frames that are read with care before a scan is worth beginning


class Walk:
    """The reading side of one lane. `poll` gives the records that were committed since the last poll.

    freed: what is known of frames that are gone on purpose. jumps: frames that were passed over as such, (first, end);
    trusting: while nothing was known of them yet, but for those that are `refused`. passed: whether any were since that
    was last set.
    """

    def __init__(
        self, device: Device, recovery: Recovery, lane: Lane = Lane.FRESH, freed: FreedFrames | None = None,
        *, trusting: bool = False,
    ) -> None:  # fmt: skip
        self.device, self.recovery, self.lane = device, recovery, lane
        self.freed, self._trusting = FreedFrames() if freed is None else freed, trusting
        self.ask: Callable[[], bool] = lambda: False  # for more of `freed`; whether there was something
        self.jumps: list[Run] = []
        self.refused: Collection[Run] = ()
        self.passed = False
        self.cursor = Cursor()
        self.padding = 0  # bytes behind the last frame that the cursor was moved over
        self.report = Report()
        self.totals = Counters()
        self.lsn = 0
        self.spans: dict[int, Span] = {}  # by the generation of blocks; of those that were walked
        self.known_durable = 0  # a frame number that the sidecar vouches for
        self.stopped = self._skipped = False
        self.broken: list[Broken] = []  # where frames were skipped
        self.frames = LaneFrames(device, lane)

    @property
    def blocks(self) -> BlockOrder:
        """Those of the lane."""
        return self.frames.blocks

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
        if self._skipped and frame.id.drops != self.cursor.drops:
            out.append(Located(NOWHERE, implied_drop(self.lsn)))
        self._skipped = False
        out += (Located(Place(block.generation, block.number, at), header) for at, header in frame.records)
        self._count(frame)
        self.note(block, self.cursor.offset, frame.id.number, frame.id.number, frame.id.previous)
        self.padding = 0
        self.cursor = Cursor(
            block,
            frame.end,
            frame.id.number,
            frame.crc,
            max(self.cursor.durable, frame.id.durable),
            frame.id.session,
            count_drops(frame.id.drops, (int(header["kind"]) for _, header in frame.records)),
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
            self.note(block, offset, self.cursor.number + 1, found.cursor.number, self.cursor.crc)
            self._count_scanned(found)
            yield found.table
            self._skip_padding(block)
            if self.frames.any_from(block, self.cursor.offset // self.frames.unit):
                return
            block, offset = self.blocks.following(block), self.frames.unit

    def note(self, block: Block, offset: int, first: int, last: int, previous: int) -> None:
        """Frames first … last, the first of them at byte `offset`, belong to a block."""
        known = self.spans.get(block.generation)
        if known is not None:
            self.spans[block.generation] = known._replace(end=max(known.end, last + 1))
        else:
            self.spans[block.generation] = Span(offset, first, last + 1, previous)

    def _count_scanned(self, found: Scanned) -> None:
        self.report.frames += found.frames
        self.totals.framed += found.framed
        self.totals.compacted += found.compacted
        self.totals.host += found.host
        self.lsn = max(self.lsn, found.lsn)
        if found.frames:
            self.padding = 0
        self.cursor = found.cursor

    def _count(self, frame: Frame) -> None:
        self.report.frames += 1
        size = frame.end - self.cursor.offset
        self.totals.framed += size
        if frame.id.type == FrameType.COMPACTION:
            self.totals.compacted += size
        else:
            self.totals.host += sum(host_bytes(header) for _, header in frame.records)
        self.lsn = max(self.lsn, *(int(header["lsn"]) for _, header in frame.records), 0)

    def leave_unaccepted(self) -> None:
        """Stand in front of all blocks again if no frame of the first one was taken: nobody accepted those that may be
        in it all the same.
        """
        if not self.cursor.number:
            self.cursor, self.totals = Cursor(), Counters()

    def counters(self) -> Counters:
        """Cumulative bytes up to the cursor; of the open block all units that were programmed."""
        block = self.cursor.block
        units = int(self.device.programmed(block.number).sum()) if block else 0
        return replace(self.totals, programmed=self.totals.programmed + units * self.frames.unit)

    def _enter(self, block: Block, offset: int) -> None:
        """Set the cursor into a block; totals then are those before it."""
        here = self.cursor.block
        if here is None or here.number != block.number:
            self.totals = replace(block.before) if block.before else self.counters()
            if here is not None:
                self.device.release(here.number)  # so that a walk over a log holds one block in memory, not all
        self.cursor, self.padding = replace(self.cursor, block=block, offset=offset), 0

    def _next_frame(self) -> Frame | None:
        """The frame that continues the chain, the cursor set to where it begins; None at the end of the log."""
        if self._at_tail():
            self.report.torn = None
            if self.known_durable > self.cursor.number:
                return self._damaged(f"the log ends here, but frame {self.known_durable} was durable", [])
            if not self._names_next():
                return None
            if self._at_tail():  # still: a live writer may have gone on since
                return self._damaged("the log ends here, but what is behind was cleaned", [])
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
                if self.frames.any_from(block, self.cursor.offset // self.frames.unit):
                    return False
            following = self.blocks.following(block)
            if following is None:
                return True
            if not self.frames.any_from(following, 1):
                later = (b for b in self.blocks.in_use() if b.generation > following.generation)
                return not any(self.frames.any_from(b, 1) for b in later)
            if not self._first_continues(following):
                if block is not None and self.frames.any_from(block, self.cursor.offset // self.frames.unit):
                    return False  # a writer went on here before it began the next one
                if not self._jump_to(following) and block is not None:
                    return False
            self._enter(following, self.frames.unit)

    def _skip_padding(self, block: Block) -> None:
        inside = self.cursor.offset % self.frames.unit
        if inside:
            rest = self.device.data(block.number, self.cursor.offset, self.frames.unit - inside)
            if rest.size == self.frames.unit - inside and not rest.any():
                self.cursor = replace(self.cursor, offset=self.cursor.offset + rest.size)
                self.padding += rest.size

    def _first_continues(self, block: Block) -> bool:
        frame = self.frames.first_of(block)
        return frame is not None and self._continues(frame)

    def _jump_to(self, block: Block) -> bool:
        """Pass over frames that are gone on purpose, up to the first one of a block; False if they are not.

        Where nothing is programmed any more behind the cursor, they were in blocks between it and that one.
        """
        frame = self.frames.first_of(block)
        if frame is None:
            return False
        first, end = self.cursor.number + 1, frame.id.number
        if end <= first or (first, end) in self.refused:
            return False
        known = self.freed.covers(self.lane, first, end)
        known = known or (self.ask() and self.freed.covers(self.lane, first, end))
        if not (known or self._trusting):
            return False
        self._pass_freed(frame)
        return True

    def _pass_freed(self, frame: Frame) -> None:
        """Expect that frame next."""
        self.jumps.append((self.cursor.number + 1, frame.id.number))
        self.passed = True
        self.cursor = replace(self.cursor, number=frame.id.number - 1, crc=frame.id.previous, drops=frame.id.drops)

    def _names_next(self) -> bool:
        """Whether a FREED record names the next frame: then it was durable, and so was one behind it. Written again it
        would count for nothing. What lane KEPT says of itself may be of frames that were not accepted.
        """
        following = self.cursor.number + 1
        return self.lane != Lane.KEPT and self.freed.covers(self.lane, following, following + 1)

    def _continues(self, frame: Frame) -> bool:
        return frame.id.number == self.cursor.number + 1 and frame.id.previous == self.cursor.crc

    def _read_here(self) -> Frame:
        if self.cursor.block is None:
            raise Flaw("the first block does not begin with the first frame")
        frame = self.frames.read(self.cursor.block, self.cursor.offset)
        if not self._continues(frame):
            raise Flaw(f"frame {frame.id.number} does not continue frame {self.cursor.number}")
        return frame

    # -- bad places --------------------------------------------------------------------------------------------

    def _after_flaw(self, why: str) -> Frame | None:
        """A gap left on purpose, a torn tail, or damage: the frame to go on with, or None."""
        expected = self.cursor.number + 1
        later = list(self.frames.beyond(self.cursor.block, self.cursor.offset))
        self.device.image.release()
        for block, offset, frame in later:
            if self._continues(frame):
                self._pass_over(self._range(block, offset, why, "gap"), frame)
                self._enter(block, offset)
                return frame
        if (found := self._behind_freed(later)) is not None:
            block, offset, frame = found
            self.report.gaps.append(self._range(block, offset, why, "gap"))
            self._pass_freed(frame)
            self._enter(block, offset)
            return frame
        durable = max((f.id.durable for _, _, f in later), default=0)
        if max(durable, self.cursor.durable, self.known_durable) < expected and not self._names_next():
            self._torn(why)
            return None
        with contextlib.suppress(Flaw):
            return self._read_here()  # a live writer finished it while we looked further
        return self._damaged(why, later)

    def _behind_freed(self, later: Sequence[Found]) -> Found | None:
        """Where to go on behind frames that are gone on purpose, as far as is known or can be learnt."""
        here = self.cursor
        while True:
            told = [] if self.lane != Lane.KEPT else [self.frames.freed_by(found) for found in later]
            ends = freed_ends(self.freed, told, self.lane, here.number + 1)
            refused = {end for first, end in self.refused if first == here.number + 1}
            if (found := behind_freed(later, here, [end for end in ends if end not in refused])) is not None:
                return found
            if not self.ask():
                return None
            later = list(self.frames.beyond(here.block, here.offset))

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
        self._skipped, here = True, self.cursor
        if here.block is not None:
            following = self.blocks.following(here.block)
            self.broken.append(Broken(here.block, following, here.offset, here.number + 1, here.crc, frame.id))
        self._enter(block, offset)
        return frame

    def _range(self, block: Block | None, offset: int, why: str, kind: str) -> BadRange:
        """From the cursor to a byte of a block, or to the end of the file. A gap ends with the cursor's block, and so
        does what goes on in one that lies before that: what is between in the file is not part of it.
        """
        here = self.cursor.block
        start = self.device.file_offset(here.number, self.cursor.offset) if here else 0
        end = self.device.file_offset(block.number, offset) if block is not None else self.device.image.size
        if here is not None and block is not None and (end < start or (kind == "gap" and block.number != here.number)):
            end = self.device.file_offset(here.number, self.device.geometry.block_bytes)
        return BadRange(start, end, why, kind)
