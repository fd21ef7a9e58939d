"""A log without payload: sequences of records of given sizes on a device that counts, cleaned as a real one is.

Frames, blocks, allocation, cleaning and its pace are those of log/ and flash/ themselves (counted.py); what is told
here once more is which records are alive, as store/liveness.py tells it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kvcodec.flash.block import Block, Counters
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import Kind, Lane
from kvcodec.log.frame import Record
from kvcodec.log.keeper import Keeper
from kvcodec.log.located import Located
from kvcodec.log.takeup import Writers
from kvcodec.measure.counted import CountedCleaner, CountedDevice, CountedLog, CountedWriter
from kvcodec.measure.sized import Origin, RecordShape, SizedRecord

_ROWS = (Kind.GROUP, Kind.STEP, Kind.ROWS)
_LASTING = (Kind.MODEL, Kind.SEQUENCE)  # without a sequence: kept for good


@dataclass(frozen=True)
class Step:
    """What one append gives a log.

    groups: shape, stream, and the token behind the last one, in log order; up to that the stream's STEPs are dead once
    the append is done. steps: shape, first token and the one behind the last, of rows that stay open.
    """

    groups: Sequence[tuple[RecordShape, int, int]] = ()
    steps: Sequence[tuple[RecordShape, int, int]] = ()


@dataclass
class _Sequence:
    """One sequence. alive: whether it was not dropped. origins: of its records that are read. steps: those of each
    stream's STEPs, oldest first. rows, all_: its records in each block, dead or alive, without and with SEQUENCE.
    """

    alive: bool = True
    origins: set[Origin] = field(default_factory=set)
    steps: dict[int, deque[Origin]] = field(default_factory=dict)
    rows: Counter[int] = field(default_factory=Counter)
    all_: Counter[int] = field(default_factory=Counter)


class Simulation:
    """A store of one device, its writer and its sequences, without payload. A Keeper of the cleaner that it has."""

    def __init__(self, geometry: Geometry, blocks: int) -> None:
        self.device = CountedDevice(geometry, blocks)
        self.log = CountedLog(self.device)
        fresh, kept = (CountedWriter(self.device, self.log, walk) for walk in self.log.walks)
        self.writers = Writers(fresh, kept)
        self._cleaner = CountedCleaner(self.device, self.log, self.writers, cast("Keeper", self))
        self._live, self._rows = np.zeros(blocks), np.zeros(blocks)
        self._sequences: dict[int, _Sequence] = {}
        self.appends = 0

    # -- what a store does -------------------------------------------------------------------------------------

    def begin_log(self, shapes: Sequence[RecordShape]) -> None:
        """Records of the model and the policy."""
        self._log([SizedRecord(shape, Origin(0, set())) for shape in shapes])
        self.sync()

    def begin_sequence(self, number: int, shape: RecordShape) -> None:
        """A sequence of that number, and its SEQUENCE record."""
        self._sequences[number] = _Sequence()
        self._log([SizedRecord(shape, Origin(number, set()))])

    def append(self, number: int, step: Step, *, durable: bool = False) -> None:
        """One append. durable: when it returns."""
        own, records, covered = self._sequences[number], list[SizedRecord](), dict[int, int]()
        for shape, stream, end in step.groups:
            records.append(SizedRecord(shape, Origin(number, {stream}, end=end)))
            covered[stream] = end
        for shape, first, end in step.steps:
            records.append(SizedRecord(shape, Origin(number, set(shape.weights), first, end)))
        if records:
            self._log(records)
            own.origins.update(one.origin for one in records)
            for one in records[len(step.groups) :]:
                for stream in one.origin.alive:
                    own.steps.setdefault(stream, deque()).append(one.origin)
            for stream, end in covered.items():
                self._supersede(own, stream, end)
        if durable:
            self.sync()
        self.appends += 1

    def drop(self, number: int, shape: RecordShape, *, durable: bool = False) -> None:
        """End a sequence. durable: when it returns."""
        self._log([SizedRecord(shape, Origin(number, set()))])
        own = self._sequences[number]
        own.alive = False
        for origin in own.origins:
            self._weigh(origin, -1)
            origin.alive = set()
        own.origins, own.steps = set(), {}
        if durable:
            self.sync()

    def sync(self) -> None:
        """Pad and program what waits in the lane of what is new."""
        self.writers.fresh.sync()

    def _log(self, records: Sequence[SizedRecord]) -> None:
        """See Store.log_records."""
        self._cleaner.keep_room(cast("Sequence[Record]", records))
        located = self.writers.fresh.append(cast("Sequence[Record]", records))
        for one in cast("Sequence[SizedRecord]", located):
            self._note(one)
            one.origin.parts.append(one)
            self._live[one.place.block] += one.weight

    def _note(self, one: SizedRecord) -> None:
        own = self._sequences.get(one.origin.sequence)
        if own is not None and one.kind in (*_ROWS, Kind.SEQUENCE):
            own.all_[one.place.block] += 1
            own.rows[one.place.block] += one.kind != Kind.SEQUENCE
            self._rows[one.place.block] += one.size * (one.kind != Kind.SEQUENCE)

    def _supersede(self, own: _Sequence, stream: int, end: int) -> None:
        """GROUPs hold the tokens before `end` now."""
        steps = own.steps.get(stream, deque())
        while steps and steps[0].end <= end:
            origin = steps.popleft()
            self._weigh(origin, -1)
            origin.alive.discard(stream)
            self._weigh(origin, 1)
            if not origin.alive:
                own.origins.discard(origin)

    def _weigh(self, origin: Origin, sign: int) -> None:
        for part in origin.parts:
            self._live[part.place.block] += sign * part.weight

    # -- a Keeper ----------------------------------------------------------------------------------------------

    def dead_bytes(self) -> NDArray[np.float64]:
        """See Keeper."""
        dead = np.where(self._live > 0, self._rows - self._live, self.device.geometry.block_bytes)
        for block, held in self.device.held.items():
            if self._live[block] <= 0:
                dead[block] -= sum(one.size for one in held if self._is_small_alive(one))
        return dead

    def filled_bytes(self) -> NDArray[np.float64]:
        """See Keeper."""
        filled = np.zeros(len(self._live))
        for block, held in self.device.held.items():
            filled[block] = sum(one.size for one in held if one.kind not in (Kind.FREED, Kind.RETIRED))
        return filled

    def _is_small_alive(self, one: SizedRecord) -> bool:
        own = self._sequences.get(one.origin.sequence)
        named = one.kind in (Kind.SEQUENCE, Kind.DROP) and (own.alive if own else not one.origin.sequence)
        return named or one.kind == Kind.MODEL

    def choose(self, block: int, records: Sequence[Located]) -> Sequence[Located]:
        """See Keeper."""
        return [one for one in records if self._is_alive(cast("SizedRecord", one), block)]

    def _is_alive(self, one: SizedRecord, block: int) -> bool:
        if one.kind in _ROWS:
            return bool(one.origin.alive) and one in one.origin.parts
        if not one.origin.sequence:
            return one.kind in _LASTING
        own = self._sequences.get(one.origin.sequence)
        if own is None:
            return False
        held = own.rows if one.kind == Kind.SEQUENCE else own.all_
        return own.alive or any(count and other != block for other, count in held.items())

    def moved(self, copies: Sequence[Located]) -> None:
        """See Keeper."""
        for one in cast("Sequence[SizedRecord]", copies):
            self._note(one)
            parts, old = one.origin.parts, one.copied
            if old is not None and old in parts:
                self._live[old.place.block] -= old.weight
                parts.remove(old)
            self._live[one.place.block] += one.weight
            parts.append(one)
            one.copied = None

    def erased(self, block: Block) -> None:
        """See Keeper."""
        self._rows[block.number] = 0
        for one in self.device.held.pop(block.number):
            own = self._sequences.get(one.origin.sequence)
            if own is not None and one.kind in (*_ROWS, Kind.SEQUENCE):
                own.all_[block.number] -= 1
                own.rows[block.number] -= one.kind != Kind.SEQUENCE
                if not own.alive and not own.all_.total():
                    del self._sequences[one.origin.sequence]

    # -- what it came to ---------------------------------------------------------------------------------------

    @property
    def counters(self) -> Mapping[Lane, Counters]:
        """Bytes of each lane."""
        return self.device.counters

    @property
    def erases(self) -> NDArray[np.int64]:
        """Of each block (blocks,)."""
        counts = self.device.erase_counts
        return np.array([counts.get(block, 0) for block in range(self.device.blocks)], np.int64)
