"""Which record holds which tokens of one stream: the highest lsn wins for each token."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from kvcodec.layout import COUNTER_LIMIT
from kvcodec.store.coded import Coded, Extent, Part, evicted
from kvcodec.store.packed import Packed, Rows, moved, pack, rows_of_one

__all__ = ["Coded", "Extent", "ExtentMap", "Part"]


class ExtentMap:
    """Disjoint extents of one stream, in token order; tokens that were evicted count as if they were held.

    Records that come by the thousand wait until somebody asks, and are then packed as arrays; what overlaps them
    later unpacks them from there on. All packed extents lie before the others.
    """

    def __init__(self) -> None:
        self._waiting: list[Rows] = []
        self._packed: Packed | None = None
        self._firsts: list[int] = []
        self._extents: list[Extent] = []
        self._changes = 0
        self._summaries: tuple[int, list[Extent]] = -1, []  # as of how many changes
        self._reach = self._contiguous = 0  # how far, and how many, extents are known to follow each other

    def __iter__(self) -> Iterator[Extent]:
        return iter(self.covering(0, 1 << 62))

    def __len__(self) -> int:
        self._settle()
        return len(self._extents) + (len(self._packed) if self._packed is not None else 0)

    def insert_rows(self, rows: Rows) -> None:
        """Insert whole records; no two of one run of records (LogIndex) have the same lsn."""
        self._waiting.append(rows)

    def insert(self, coded: Coded) -> None:
        """Give the tokens of a record to it, but for those that a higher lsn holds."""
        if self._waiting and coded.lsn < COUNTER_LIMIT:  # what a forged sidecar may name beyond fits no array
            self._waiting.append(rows_of_one(coded))
            return
        self._settle()
        first, end = coded.first, coded.first + coded.tokens
        self._unpack(first)
        if not self._extents or self._extents[-1].end <= first:
            self._firsts.append(first)
            self._extents.append(Extent(first, end, coded))
            return
        lo, hi = self._span(first, end)
        pieces: list[Extent] = []
        position = first
        for old in self._extents[lo:hi]:
            if old.coded.lsn > coded.lsn:
                if position < old.first:
                    pieces.append(Extent(position, old.first, coded))
                pieces.append(old)
                position = max(position, old.end)
                continue
            if old.first < first:
                pieces.append(Extent(old.first, first, old.coded))
            if position < min(old.end, end):
                pieces.append(Extent(position, min(old.end, end), coded))
                position = min(old.end, end)
            if old.end > end:
                pieces.append(Extent(end, old.end, old.coded))
        if position < end:
            pieces.append(Extent(position, end, coded))
        self._replace(lo, hi, sorted(pieces, key=lambda e: e.first))

    def drop(self, first: int, lsn: int) -> None:
        """Forget tokens from `first` on that records older than `lsn` hold."""
        self._settle()
        self._unpack(first)
        lo, hi = self._span(first, 1 << 62)
        kept = []
        for old in self._extents[lo:hi]:
            if old.coded.lsn > lsn:
                kept.append(old)
            elif old.first < first:
                kept.append(Extent(old.first, first, old.coded))
        self._replace(lo, hi, kept)

    def forget(self, end: int) -> None:
        """Have nothing but summaries hold tokens before `end`, as if they had never come; no extent lies across it."""
        self._settle()
        if self._packed is not None:
            self._set_packed(self._packed.take(slice(self._packed.span(0, end).stop, None)))
        lo, hi = self._span(0, end)
        self._replace(lo, hi, [extent for extent in self._extents[lo:hi] if extent.coded.stands_for])

    def covering(self, first: int, end: int) -> list[Extent]:
        """The extents that hold any of the tokens first … end - 1, and were not evicted."""
        self._settle()
        lo, hi = self._span(first, end)
        early = self._packed.extents(self._packed.span(first, end)) if self._packed is not None else []
        return early + [extent for extent in self._extents[lo:hi] if extent.coded.parts]

    def evicted(self, first: int, end: int) -> list[tuple[int, int]]:
        """Those of the tokens first … end - 1 that were evicted, as disjoint ascending ranges."""
        self._settle()
        lo, hi = self._span(first, end)
        gone = [extent for extent in self._extents[lo:hi] if not extent.coded.parts]
        return [(max(extent.first, first), min(extent.end, end)) for extent in gone]

    def evict(self, first: int, end: int, lsn: int) -> None:
        """Forget the rows of tokens first … end - 1 that records older than `lsn` hold."""
        self._settle()
        self._unpack(first)
        self.insert(evicted(first, end - first, lsn))
        self._changes += 1

    def lose(self, token: int, lsn: int) -> None:
        """Have nothing hold a token that records older than `lsn` hold, as if it had never come."""
        self.evict(token, token + 1, lsn)
        lo, hi = self._span(token, token + 1)
        self._replace(lo, hi, [extent for extent in self._extents[lo:hi] if extent.coded.lsn > lsn])

    def summaries(self) -> list[Extent]:
        """The extents whose rows stand for several tokens."""
        if self._summaries[0] != self.changes:
            self._summaries = self._changes, [extent for extent in self._extents if extent.coded.stands_for]
        return self._summaries[1]

    def move(self, coded: Coded) -> None:
        """A part of a record that is known has been copied to another place."""
        self._settle()
        if self._packed is not None and self._packed.move(coded):
            self._changes += 1
        lo, hi = self._span(coded.first, coded.first + coded.tokens)
        for n, old in enumerate(self._extents[lo:hi], lo):
            if old.coded.lsn == coded.lsn and old.coded.parts:
                self._extents[n] = old._replace(coded=moved(old.coded, coded.parts[0]))
                self._changes += 1

    def copied(self, end: int) -> ExtentMap:
        """What holds the tokens before `end`, for another sequence."""
        self._settle()
        out = ExtentMap()
        kept = self._packed.take(slice(self._packed.span(0, end).stop)) if self._packed is not None else None
        out._set_packed(kept)
        out._extents = [extent for extent in self._extents if extent.first < end]
        out._firsts = [extent.first for extent in out._extents]
        if out.end > end:
            out.drop(end, COUNTER_LIMIT)
        return out

    def tally(self, first: int, end: int) -> Iterator[tuple[Coded, int, int]]:
        """What holds any of the tokens first … end - 1: a record, how many there are like it, their extents' tokens.

        Records are alike if they differ in nothing but lsn, first token and place.
        """
        self._settle()
        if self._packed is not None:
            yield from self._packed.tally(self._packed.span(first, end))
        lo, hi = self._span(first, end)
        for extent in self._extents[lo:hi]:
            if extent.coded.parts:
                yield extent.coded, 1, extent.end - extent.first

    def run_end(self, window: int, bound: int) -> int:
        """The greatest n up to `bound` so that the `window` tokens before n are held (all before n, if n is less)."""
        for first, end in self._runs():
            n = min(end, bound)
            if n > first and n - first >= min(window, n):
                return n
        return 0

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Stretches of tokens that are held without a gap, the last one first."""
        self._settle()
        first = end = -1
        early = self._packed.runs() if self._packed is not None else ()
        for start, stop in itertools.chain(((e.first, e.end) for e in reversed(self._extents)), early):
            if stop != first:
                if end >= 0:
                    yield first, end
                end = stop
            first = start
        if end >= 0:
            yield first, end

    @property
    def changes(self) -> int:
        """How often extents were replaced or forgotten, not just added behind the others."""
        self._settle()
        return self._changes

    @property
    def held(self) -> int:
        """How many tokens are held, without those that were evicted."""
        self._settle()
        early = self._packed.held if self._packed is not None else 0
        return early + sum(extent.end - extent.first for extent in self._extents if extent.coded.parts)

    @property
    def end(self) -> int:
        """The token after the last one that is held."""
        self._settle()
        if self._extents:
            return self._extents[-1].end
        return self._packed.end if self._packed is not None else 0

    @property
    def reach(self) -> int:
        """The first token, counted from 0, that no extent holds."""
        self._settle()
        if self._packed is not None and self._packed.reach < self._packed.end:
            return self._packed.reach
        for extent in self._extents[self._contiguous :]:
            if extent.first > self._reach:
                break
            self._reach = extent.end
            self._contiguous += 1
        return self._reach

    def _settle(self) -> None:
        """Pack the records that wait."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        packed = pack(waiting)
        if packed is None:
            for coded in (coded for rows in waiting for coded in rows.records()):
                self.insert(coded)
        elif not self._extents and (self._packed is None or self._packed.end <= int(packed.firsts[0])):
            self._set_packed(packed if self._packed is None else self._packed.joined(packed))
        else:
            for extent in packed.extents(slice(None)):
                self.insert(extent.coded)

    def _unpack(self, first: int) -> None:
        """Have no packed extent hold a token from `first` on."""
        if self._packed is None or self._packed.end <= first:
            return
        kept = self._packed.span(first, 1 << 62).start
        self._extents[:0] = extents = self._packed.extents(slice(kept, None))
        self._firsts[:0] = [extent.first for extent in extents]
        self._set_packed(self._packed.take(slice(kept)))

    def _set_packed(self, packed: Packed | None) -> None:
        self._packed = packed
        self._reach, self._contiguous = self._before, 0

    @property
    def _before(self) -> int:
        """Where the packed extents end."""
        return self._packed.end if self._packed is not None else 0

    def _span(self, first: int, end: int) -> tuple[int, int]:
        lo = bisect_right(self._firsts, first) - 1
        if lo < 0 or self._extents[lo].end <= first:
            lo += 1
        return lo, max(lo, bisect_left(self._firsts, end))

    def _replace(self, lo: int, hi: int, extents: list[Extent]) -> None:
        merged: list[Extent] = []
        for extent in extents:
            if merged and merged[-1].coded is extent.coded and merged[-1].end == extent.first:
                merged[-1] = Extent(merged[-1].first, extent.end, extent.coded)
            else:
                merged.append(extent)
        self._changes += 1
        self._extents[lo:hi] = merged
        self._firsts[lo:hi] = [e.first for e in merged]
        if lo < self._contiguous:
            self._contiguous = lo
            self._reach = self._extents[lo - 1].end if lo else self._before
