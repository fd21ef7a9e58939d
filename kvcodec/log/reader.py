"""Reading a log: both lanes in turn, and single records.

What a writer appended is in lane FRESH; lane KEPT has copies of what was worth keeping of erased blocks, and says which
frames went with them. So KEPT is read first: nothing that FRESH then lacks is unexplained, or it is damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from kvcodec.errors import BlockErased, CorruptRecord, TruncatedLog, UnsupportedVersion
from kvcodec.flash.block import Counters
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.flash.image import Bytes
from kvcodec.layout import RECORD_HEADER, Kind, Lane, RetireCause
from kvcodec.log.blocks import BlockOrder
from kvcodec.log.cursor import Cursor
from kvcodec.log.frame import read_record_header
from kvcodec.log.freed import FreedFrames, Run, read_freed
from kvcodec.log.located import NOWHERE, Located, Place, RecordTable
from kvcodec.log.order import order_records
from kvcodec.log.recover import Recovery, Report
from kvcodec.log.retired import read_retired
from kvcodec.log.walk import Walk

__all__ = ["NOWHERE", "Cursor", "Located", "Log", "News", "Pending", "Place"]


class Pending(Protocol):
    """What a writer holds of frames that are not wholly programmed yet."""

    def bytes_from(self, place: Place) -> Bytes | None:
        """Bytes of the block from a record's place on, or None if the device holds all of the record."""
        ...


class News(NamedTuple):
    """What came since the last look. fresh: records in the order of their lsns. moved: copies of records that were
    known. jumped: frames were passed over that had not been read, so that a record may be among `moved` that was not.
    """

    fresh: Sequence[Located]
    moved: Sequence[Located]
    jumped: bool


class Log:
    """The reading side of a log, live or at rest."""

    def __init__(self, device: Device, recovery: Recovery = Recovery.TORN_TAIL) -> None:
        self.device, self.recovery = device, recovery
        self.freed = FreedFrames()
        self.retired: dict[int, RetireCause] = {}  # blocks
        self.fresh = Walk(device, recovery, Lane.FRESH, self.freed)
        self.fresh.frames.blocks = BlockOrder(device, Lane.FRESH, self.retired)
        self.kept = Walk(device, recovery, Lane.KEPT, self.freed, trusting=True)
        self.fresh.ask = self._ask
        self.pending: dict[Lane, Pending] = {}
        self.lsn = 0
        self._more: list[Sequence[Located]] = []  # of lane KEPT
        self._refused_as_of = np.empty(0, np.uint64)  # generations of the blocks where `kept` refused to go on
        self._left_out = False

    @property
    def walks(self) -> tuple[Walk, Walk]:
        """Those of both lanes."""
        return self.fresh, self.kept

    # -- walking -----------------------------------------------------------------------------------------------

    def poll(self) -> list[Located]:
        """Records of all frames committed since the last call, each frame read with care; in log order, or where
        records were copied in that of their lsns.

        Raises CorruptRecord for damage (and in mode `absolute` for any flaw), TruncatedLog, UnsupportedVersion.
        """
        return list(self._join(*self._poll(careful=True)))

    def poll_table(self) -> Sequence[Located]:
        """What `poll` gives and raises; quicker, and as a table, where many frames wait."""
        return self._join(*self._poll(careful=False))

    def follow(self) -> News:
        """What `poll_table` gives and raises, for somebody who knows all that came before."""
        fresh, kept = self._poll(careful=False)
        jumped = self._left_out or any(walk.passed for walk in self.walks)
        for walk in self.walks:
            walk.passed = False
        return News(fresh, kept, jumped)

    @staticmethod
    def _join(fresh: Sequence[Located], kept: Sequence[Located]) -> Sequence[Located]:
        return order_records([fresh, kept]) if len(kept) else fresh

    def _poll(self, *, careful: bool) -> tuple[Sequence[Located], Sequence[Located]]:
        """Records of both lanes."""
        self._more = [self._poll_kept(careful=careful)]
        fresh = self.fresh.poll() if careful else self.fresh.poll_table()
        self.lsn = max(self.lsn, self.fresh.lsn, self.kept.lsn)
        filled = [part for part in self._more if len(part)]
        kept = filled[0] if len(filled) == 1 else order_records(filled) if filled else []
        left = self._without_freed(fresh, self.fresh), self._without_freed(kept, self.kept)
        self._left_out = any(len(own) < len(all_) for own, all_ in zip(left, (fresh, kept), strict=True))
        return left

    def _without_freed(self, found: Sequence[Located], walk: Walk) -> Sequence[Located]:
        """Without what lies in frames that FREED records name: of a block that a crash left in front of its erase, or
        within it, any part may be there, and its records may have been worth something to one another alone.
        """
        if not len(self.freed) or not len(found):
            return found
        if isinstance(found, RecordTable):
            places = found.places["generation"]
            gone = [own for own in np.unique(places).tolist() if self._is_freed(own, walk)]
            return RecordTable(found.entries[~np.isin(places, np.array(gone, np.uint64))]) if gone else found
        known: dict[int, bool] = {}
        for one in found:
            if one.place.generation not in known:
                known[one.place.generation] = self._is_freed(one.place.generation, walk)
        return [one for one in found if not known[one.place.generation]]

    def _is_freed(self, generation: int, walk: Walk) -> bool:
        span = walk.spans.get(generation)
        return span is not None and self.freed.covers(walk.lane, span.first, span.end)

    def _ask(self) -> bool:
        """Read on in lane KEPT: a writer may have erased blocks since."""
        found = self._poll_kept(careful=True)
        self._more.append(found)
        return len(found) > 0

    def _poll_kept(self, *, careful: bool) -> Sequence[Located]:
        """Records of lane KEPT, and what those of them say that is for the log as a whole."""
        if self.kept.cursor.number == 0:
            return self._begin_kept(careful=careful)
        if self.kept.refused and not np.array_equal(self._refused_as_of, self.device.generations()):
            self.kept.refused = ()  # a writer came, and may free frames of these numbers
        found = self.kept.poll() if careful else self.kept.poll_table()
        for one in _for_the_log(found):
            self.learn(one)
        lost = [jump for jump in self.kept.jumps if not self.freed.covers(Lane.KEPT, *jump)]
        self.kept.jumps.clear()
        if lost:
            raise CorruptRecord(0, f"damage: frames {lost[0][0]} to {lost[0][1] - 1} of lane KEPT are lost")
        return found

    def _begin_kept(self, *, careful: bool) -> Sequence[Located]:
        """`_poll_kept` from the beginning. What explains a jump stands behind it: so the lane is walked in good faith,
        and again without the jumps that nothing explains. Then the walk shall meet such a place as what it is, and what
        lies behind it says nothing.
        """
        durable, refused = self.kept.known_durable, set[Run]()
        while True:
            found = self.kept.poll() if careful else self.kept.poll_table()
            freed, retired = FreedFrames(), dict[int, RetireCause]()
            for one in _for_the_log(found):
                self._learn(one, freed, retired)
            lost = [jump for jump in self.kept.jumps if not freed.covers(Lane.KEPT, *jump)]
            if not lost:
                break
            refused.update(lost)
            self._refused_as_of = self.device.generations()
            self.kept = Walk(self.device, self.recovery, Lane.KEPT, self.freed, trusting=True)
            self.kept.known_durable, self.kept.refused = durable, refused
        for run in freed:
            self.freed.add(*run)
        self.retired |= retired
        self.kept.jumps.clear()
        return found

    def learn(self, one: Located) -> None:
        """Take in a FREED or a RETIRED record. Raises CorruptRecord."""
        self._learn(one, self.freed, self.retired)

    def _learn(self, one: Located, freed: FreedFrames, retired: dict[int, RetireCause]) -> None:
        header, body = self.load_one(one)
        at = self.device.file_offset(one.place.block, one.place.offset)
        if int(header["kind"]) == Kind.RETIRED:
            retired |= read_retired(header, body, at)
            return
        for run in read_freed(header, body, at):
            freed.add(*run)

    @property
    def report(self) -> Report:
        """What the walks met beside good frames."""
        fresh, kept = (walk.report for walk in self.walks)
        return Report(
            fresh.frames + kept.frames, fresh.gaps + kept.gaps, fresh.damage + kept.damage, fresh.torn or kept.torn
        )

    @property
    def is_damaged(self) -> bool:
        """Whether frames are lost that had been durable."""
        return any(walk.report.damage for walk in self.walks)

    @property
    def cursor(self) -> Cursor:
        """The end of lane FRESH."""
        return self.fresh.cursor

    @property
    def totals(self) -> Counters:
        """Cumulative bytes of both lanes, of units up to those that are open."""
        return self.fresh.totals + self.kept.totals

    # -- one record --------------------------------------------------------------------------------------------

    def load(self, place: Place) -> tuple[np.void, Bytes]:
        """Header and body (a view of the map) of a record, both checked. Raises CorruptRecord (Uncorrectable, where a
        device's reads fail), TruncatedLog.
        """
        base = self.device.file_offset(place.block, place.offset)
        data = waiting = self._waiting(place)
        if data is None:
            data = self.device.data(place.block, place.offset, self.device.geometry.block_bytes)
            self.check_unerased(place)
        if data.size < RECORD_HEADER.itemsize:
            raise TruncatedLog(f"{self.device.image.path} ends before byte {base + RECORD_HEADER.itemsize}")
        try:
            header, body = _read_record(data, base)
        except (CorruptRecord, UnsupportedVersion):
            self.check_unerased(place)
            raise
        if self.device.read_errors is not None and waiting is None:
            self.device.sense(place.block, place.offset, header.itemsize + body.size)
        return header, body

    def load_one(self, one: Located) -> tuple[np.void, Bytes]:
        """`load` of a record whose header is known, and a copy of the body. Raises CorruptRecord too where another
        record lies, as a forged sidecar may say.
        """
        header, body = self.load(one.place)
        body = body.copy()
        self.check_unerased(one.place)
        if header.tobytes() != one.header.tobytes():
            base = self.device.file_offset(one.place.block, one.place.offset)
            raise CorruptRecord(base, "another record than the index names")
        return header, body

    def _waiting(self, place: Place) -> Bytes | None:
        found = (pending.bytes_from(place) for pending in self.pending.values())
        return next((data for data in found if data is not None), None)

    def waits(self, place: Place) -> bool:
        """Whether bytes of a record wait in memory to be programmed."""
        return self._waiting(place) is not None

    def check_unerased(self, place: Place) -> None:
        """Raises BlockErased if the block has been erased since: what was read from the map may be another's."""
        if self.waits(place):
            return
        unit = place.offset // self.device.geometry.unit_bytes
        if self.device.was_erased(place.block, unit, place.generation):
            base = self.device.file_offset(place.block, place.offset)
            raise BlockErased(base, f"no such record: block {place.block} was erased, or its spare slot is damaged")


def _for_the_log(found: Sequence[Located]) -> Sequence[Located]:
    """The FREED and RETIRED records among these."""
    kinds = found.kinds if isinstance(found, RecordTable) else [int(one.header["kind"]) for one in found]
    return [found[n] for n in np.flatnonzero(np.isin(np.asarray(kinds, int), (Kind.FREED, Kind.RETIRED))).tolist()]


def _read_record(data: Bytes, base: int) -> tuple[np.void, Bytes]:
    """Header and body of a record at the beginning of `data`, which begins at byte `base` of the file."""
    header = read_record_header(data, 0, base)
    start = int(header["header_bytes"])
    body = data[start : start + int(header["body_bytes"])]
    if int(header["body_crc"]) != crc32c(body):
        raise CorruptRecord(base + start, "record body checksum")
    return header, body
