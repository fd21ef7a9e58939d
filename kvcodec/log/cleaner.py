"""Cleaning: what is alive in a block is copied into lane KEPT, then the block is erased (formats/frame.md).

A block is erased once two things are durable: its copies, and a FREED record that says which frames went with it. What
made the rest of it worthless must be durable as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from kvcodec.errors import CorruptRecord, EraseFailed
from kvcodec.flash.block import Block
from kvcodec.flash.device import Device
from kvcodec.flash.supply import HELD_BLOCKS
from kvcodec.layout import HEADERS, RECORD_HEADER, Kind, Lane, RetireCause
from kvcodec.log.blocks import OneBlock
from kvcodec.log.cursor import Cursor
from kvcodec.log.frame import Record
from kvcodec.log.freed import freed_records
from kvcodec.log.keeper import Keeper
from kvcodec.log.located import Located
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery
from kvcodec.log.retired import retired_records
from kvcodec.log.retiring import body_limit, due_blocks, read_blocks, retire_blocks
from kvcodec.log.takeup import Writers
from kvcodec.log.victims import FULL, Victim, choose_victim
from kvcodec.log.walk import Walk

_FREE_SHARE = 0.02  # of a device's blocks that cleaning keeps erased
_LEAST_FREE = 3
_SPARE = 4  # and where units fail to program, in place of blocks that do so within one append
_FEW_BLOCKS = 12
_AT_ONCE = 5  # units of copies that one step makes at most


class Cleaner:
    """Cleans the blocks of a log, a little at a time."""

    def __init__(self, device: Device, log: Log, writers: Writers, keeper: Keeper) -> None:
        self._device, self._log, self._writers, self._keeper = device, log, writers, keeper
        self._victim: Victim | None = None
        self._ready: list[Victim] = []  # of which nothing is left to be copied
        self._spoilt: set[int] = set()  # generations of blocks that can't be cleaned
        self._levelled = False  # whether the last victim was chosen for its wear
        for writer in writers:
            writer.moved = keeper.moved

    @property
    def reserve(self) -> int:
        """Erased blocks below which cleaning begins."""
        return max(_LEAST_FREE, round(_FREE_SHARE * self._device.most_blocks)) + self._held - HELD_BLOCKS

    @property
    def _held(self) -> int:
        """Erased blocks that rows are not given."""
        faults = self._device.faults
        return HELD_BLOCKS + (_SPARE if faults is not None and faults.fail_programs else 0)

    def keep_room(self, records: Sequence[Record]) -> None:
        """A step for records that are to be appended, if erased blocks are getting few, and as far as they last."""
        size, block_bytes = _sizes(records), self._device.geometry.block_bytes
        most = 2 * size // block_bytes + 2  # blocks, each at least half full
        idle = self._victim is None and not self._ready and not due_blocks(self._device)
        if idle and self._device.erased_blocks - most > self.reserve:
            return
        needed = self._writers.fresh.count_fresh(records) + self._held
        with self._writers.unless_full():
            self._keep_room(needed, size // self._device.geometry.unit_bytes + 1)
            return
        self._victim = None

    def check_room(self, records: Sequence[Record]) -> None:
        """Raises NoSpace for records that would take the blocks that cleaning needs, and DROP records, or the rest of
        one that these have begun. A device of few blocks has none to spare for that.
        """
        left = self._device.erased_blocks - self._held
        if self._device.most_blocks < _FEW_BLOCKS or left * self._device.geometry.block_bytes > 2 * _sizes(records):
            return
        needed = self._writers.fresh.count_fresh(records)
        if left < 0 or needed > left:
            raise self._device.no_space(max(1, needed), max(0, left))

    def may_fit(self, records: Sequence[Record], others: int) -> bool:
        """Whether records could be appended if the log held nothing else but so many bytes of others."""
        needed = self._writers.fresh.count_fresh(records) + self._held
        return needed + others // self._device.geometry.block_bytes <= self._device.most_blocks

    def _keep_room(self, needed: int, units: int) -> None:
        free = self._device.erased_blocks
        hurry = free <= self.reserve // 2
        if self._ready:
            self._erase()
        elif self._victim is not None or self._begin_due(free) or (free <= self.reserve and self._begin(urgent=hurry)):
            self._step(self._share(units))
        for _ in range(self._device.blocks):  # what a block gives may be less than it takes to copy from it
            if self._device.erased_blocks >= needed or not self._clean_one(urgent=True):
                break

    def _share(self, units: int) -> int:
        """Units of copies that keep pace with so many of a writer."""
        assert self._victim is not None
        per_block = self._device.geometry.units_per_block
        live = self._victim.queue_bytes // self._device.geometry.unit_bytes + 1
        return min(_AT_ONCE, max(1, units) * -(-live // max(1, per_block - live)) + 1)

    def clean_all(self, least: float, tell: Callable[[int, int], None] = lambda _done, _all: None) -> int:
        """Clean blocks until none is dead to a share of `least`. Gives how many were erased.

        tell: called with the blocks that are done and all that are to be. Raises NoSpace.
        """
        for writer in self._writers:
            writer.sync()
        fresh, room = self._writers.fresh, self._device.geometry.block_bytes - self._device.geometry.unit_bytes
        old = {block.generation for walk in self._log.walks for block in walk.blocks.in_use()}
        done = self._clean_old(old, least, tell, 0)
        has_two = self._device.erased_blocks > 1  # the last one is for copies
        if has_two and fresh.block is not None and self._keeper.dead_bytes()[fresh.block.number] >= least * room:
            fresh.begin_block()
            done = self._clean_old(old, least, tell, done)
        while chosen := [block for _, block in self._padded() if block.generation in old]:
            if not self._take(chosen[0]):
                break
            self._finish()
            done += 1
        self._erase(surely=True)
        return done

    def _clean_old(self, old: set[int], least: float, tell: Callable[[int, int], None], done: int) -> int:
        """Clean blocks of these generations that are closed. done: how many were before; gives how many are now."""
        while True:
            shares = [(share, block) for block, share in self._candidates() if block.generation in old]
            chosen = [block for share, block in shares if 1 - share >= least]
            if self._victim is None and not chosen:
                break
            if self._victim is None:
                self._take(chosen[0])
            self._finish()
            done += 1
            tell(done, done + max(0, len(chosen) - 1))
        self._erase(surely=True)
        return done

    def _finish(self) -> None:
        """Copy all that is alive in the victim, and erase what is ready where erased blocks are few."""
        while self._victim is not None:
            self._step(1 << 30)
        if self._device.erased_blocks <= self.reserve:
            self._erase(surely=True)

    # -- one block ---------------------------------------------------------------------------------------------

    def _clean_one(self, *, urgent: bool) -> bool:
        if self._victim is None and not self._ready and not (self._begin(urgent=urgent) or self._begin_padded()):
            return False
        while self._victim is not None:
            self._step(1 << 30)
        self._erase(surely=True)
        return True

    def _candidates(self) -> list[tuple[Block, float]]:
        """Blocks that can be cleaned, each with the share of it that is alive."""
        passed = self._spoilt | {victim.block.generation for victim in self._ready}
        dead = self._keeper.dead_bytes()
        room = self._device.geometry.block_bytes - self._device.geometry.unit_bytes
        found = []
        for walk, writer in zip(self._log.walks, self._writers, strict=True):
            for block in walk.blocks.in_use():
                is_open = writer.block is not None and block.generation == writer.block.generation
                known, own = block.generation in walk.spans, dead[block.number]
                if not known and own < room:
                    continue  # rows of it are alive: its header is not that of its frames any more
                if not is_open and block.generation not in passed and block.number not in self._device.retired:
                    found.append((block, max(0.0, 1 - own / room)))
        return found

    def _padded(self) -> list[tuple[float, Block]]:
        """Blocks that can be cleaned and are mostly padding, as syncs leave it, or empty, with the bytes that live in
        them, fewest first: those of two fit one, each in units of its own, and leave two for what frees them.
        """
        geometry, filled = self._device.geometry, self._keeper.filled_bytes()
        most = ((geometry.units_per_block - 3) // 2 - 1) * geometry.unit_bytes
        room = geometry.block_bytes - geometry.unit_bytes
        found = [(filled[block.number] - (1 - share) * room, block) for block, share in self._candidates()]
        own = sorted((one for one in found if one[0] <= most), key=lambda one: one[0])
        return own if len(own) > 1 else []

    def _begin_padded(self) -> bool:
        """Begin with a block that is mostly padding: what is left where no block has much that is dead."""
        found = self._padded()
        return bool(found) and self._take(found[0][1])

    def settle_failures(self) -> bool:
        """Use blocks that failed no more, once what is alive in them is elsewhere; whether there were any. Durable when
        it returns. Where there is no room for that they stay as they are.
        """
        found = bool(self._device.failing)
        with self._writers.unless_full():
            while self._device.failing:
                self.empty(set(self._device.failing))
        return found

    def scrub(self) -> int:
        """Read all blocks, and clean those in which many bits flip; how many. Raises NoSpace."""
        read_blocks(self._device, (block.number for walk in self._log.walks for block in walk.blocks.in_use()))
        return self.empty(due_blocks(self._device) | self._device.failing.keys())

    def retire(self, causes: Mapping[int, RetireCause]) -> None:
        """Use these blocks no more, none of which is open; durable when it returns."""
        self._keeper.moved(retire_blocks(self._device, self._writers, causes))

    def empty(self, numbers: Collection[int]) -> int:
        """Move what is alive out of these blocks and erase them, or use them no more if they failed. Gives how many of
        them there were. Raises NoSpace.
        """
        if not numbers:
            return 0
        while self._victim is not None:
            self._step(1 << 30)
        for writer in self._writers:
            if writer.block is not None and writer.block.number in numbers:
                writer.begin_block()
        found = [block for block, _ in self._candidates() if block.number in numbers]
        for block in found:
            self._take(block)
            while self._victim is not None:
                self._step(1 << 30)
        self._erase(surely=True)
        left = {number: cause for number, cause in self._device.failing.items() if number in numbers}
        self.retire(left)
        return len(found) + len(set(left) - {block.number for block in found})

    def _begin_due(self, free: int) -> bool:
        """Begin with a block in which too many bits flip, while there is room for what is alive in it."""
        due = due_blocks(self._device)
        if not due or free <= 1:
            return False
        for writer in self._writers:
            if writer.block is not None and writer.block.number in due:
                writer.begin_block()
        found = next((block for block, _ in self._candidates() if block.number in due), None)
        return found is not None and self._take(found)

    def _begin(self, *, urgent: bool) -> bool:
        """Choose a block and look at what is alive in it; False if there is none worth it."""
        found = self._candidates()
        if not found:
            return False
        blocks, shares = zip(*found, strict=True)
        counts = np.array([self._device.erase_counts.get(block.number, 0) for block in blocks], np.int64)
        age = np.array([self._device.generation - block.generation for block in blocks], np.float64)
        mean = sum(self._device.erase_counts.values()) / max(1, len(self._device.erase_counts))
        chosen = choose_victim(np.array(shares), age, counts, mean, urgent=urgent, level=not self._levelled)
        if chosen < 0:
            return False
        self._levelled = shares[chosen] >= FULL
        return self._take(blocks[chosen])

    def _take(self, block: Block) -> bool:
        walk = next(walk for walk in self._log.walks if walk.lane == block.lane)
        victim, records = Victim(block, walk.spans.get(block.generation)), list[Located]()
        span = victim.span
        if span is not None and self._log.freed.covers(block.lane, span.first, span.end):
            victim.has_runs = True  # a crash left it in front of its erase, or within: what is there counts for nothing
        elif span is not None:
            found = self._read(walk, block)
            if found is None or any(int(one.header["kind"]) not in HEADERS for one in found):
                self._spoilt.add(block.generation)  # damaged since, which is to be told of; or who knows what they mean
                return False
            victim.has_runs = any(int(one.header["kind"]) in (Kind.FREED, Kind.RETIRED) for one in found)
            records = found
        victim.queue.extend(self._keeper.choose(block.number, records))
        victim.queue_bytes = sum(map(_size, victim.queue))
        victim.waits_for = self._writers.fresh.number
        if victim.queue and span is not None and block.lane == Lane.FRESH:
            self._settle_up_to(span.end - 1)
        self._victim = victim
        return True

    def _settle_up_to(self, frame: int) -> None:
        """Make frames of lane FRESH durable before anything in them is copied: a crash that took the frame and left the
        copy would leave it without the frames that it stands on.
        """
        if self._writers.fresh.durable < frame:
            self._writers.fresh.settle()

    def _read(self, walk: Walk, block: Block) -> list[Located] | None:
        """All records of a block that has frames; None if not all of them are there any more."""
        span = walk.spans[block.generation]
        alone = Walk(self._device, Recovery.TORN_TAIL, walk.lane)
        alone.frames.blocks = OneBlock(block)
        alone.cursor = Cursor(block, span.offset, span.first - 1, span.previous)
        with contextlib.suppress(CorruptRecord):
            records = alone.poll()
            return records if alone.cursor.number == span.end - 1 else None
        return None

    def _step(self, units: int) -> None:
        """Copy up to so many units of what is alive in the victim; with the last of it, free it."""
        victim = self._victim
        assert victim is not None
        self._victim = None  # until its records are copied: after an error it is begun anew, if at all
        left, copies, lsns = units * self._device.geometry.unit_bytes, list[Record](), list[int]()
        while victim.queue and left > 0:
            one = victim.queue.popleft()
            left -= _size(one)
            victim.queue_bytes -= _size(one)
            try:
                copy, lsn = self._load(one)
            except CorruptRecord:
                self._spoilt.add(victim.block.generation)  # what can't be copied stays where it is, to be told of
                if victim.block.number not in self._device.failing:
                    return
                victim.has_lost = True
                continue
            copies.append(copy)
            lsns.append(lsn)
        if copies:
            self._keeper.moved(self._writers.kept.append(copies, lsns))
        if victim.queue:
            self._victim = victim
        elif not victim.has_lost:
            self._ready.append(victim)

    def _load(self, one: Located) -> tuple[Record, int]:
        """A copy of a record, and its lsn. Raises CorruptRecord."""
        header, body = self._log.load_one(one)
        return Record(np.array(header), body), int(header["lsn"])

    def _erase(self, *, surely: bool = False) -> None:
        """Erase what is ready, if what that waits for is durable; surely: make it so."""
        fresh, kept = self._writers
        waits_for = max((victim.waits_for for victim in self._ready), default=0)
        if fresh.durable < waits_for:
            fresh.settle()
        if fresh.durable < waits_for and surely:
            fresh.sync()
        if fresh.durable < waits_for or not self._ready:
            return
        held = {number: cause for number, cause in self._device.failing.items() if cause == RetireCause.ERASE}
        self.retire(held)  # first: frames that nobody accepted lie in them, whose numbers these runs may hold
        runs = [(victim.block.lane, victim.span.first, victim.span.end) for victim in self._ready if victim.span]
        for run in runs:
            self._log.freed.add(*run)
        limit = body_limit(self._device)
        if any(victim.has_runs for victim in self._ready):
            runs = list(self._log.freed)
            self._keeper.moved(kept.append(retired_records(self._device.retired, limit)))
        if runs:
            kept.append(freed_records(runs, limit))
        kept.sync()
        self._erase_ready()

    def _erase_ready(self) -> None:
        """Erase what nothing stands against any more; retire what does not erase, and what failed before."""
        failed = {}
        while self._ready:  # none of them twice: after an error the block may be in use again
            victim = self._ready.pop(0)
            number = victim.block.number
            if number in self._device.retired:
                continue
            try:
                if number not in self._device.failing:
                    self._device.erase(number)
                    self._keeper.erased(victim.block)
                    continue
            except EraseFailed:
                pass
            failed[number] = self._device.failing.get(number, RetireCause.ERASE)
        self.retire(failed)


def _sizes(records: Sequence[Record]) -> int:
    return sum(record.size for record in records)


def _size(one: Located) -> int:
    return int(one.header["header_bytes"]) + int(one.header["body_bytes"]) + RECORD_HEADER.itemsize
