"""Which record holds which tokens of one stream: the highest lsn wins for each token."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from kvcodec.log.reader import Place
from kvcodec.spec import CodecSpec


class Part(NamedTuple):
    """Rows of some heads of a record: where the record lies, and where in its body the rows begin.

    size: bytes of codes, scales and zeros, or of raw rows. coded: whether they are codes.
    """

    place: Place
    first_head: int
    heads: int
    body_offset: int
    size: int = 0
    coded: bool = False


class Coded(NamedTuple):
    """A whole record as one stream sees it: its tokens, and its parts by head (one unless it was split).

    step: the codec of rows in a STEP record, which a GROUP record will supersede: a writer that takes up the log holds
    them open. None for a GROUP.
    """

    lsn: int
    step: CodecSpec | None
    first: int
    tokens: int
    parts: tuple[Part, ...]


class Extent(NamedTuple):
    """Tokens first … end - 1 are read from `coded`."""

    first: int
    end: int
    coded: Coded


class ExtentMap:
    """Disjoint extents of one stream, in token order."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._extents: list[Extent] = []
        self._reach = self._contiguous = 0  # how far, and how many, extents are known to follow each other

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._extents)

    def __len__(self) -> int:
        return len(self._extents)

    def insert(self, coded: Coded) -> None:
        """Give the tokens of a record to it, but for those that a higher lsn holds."""
        first, end = coded.first, coded.first + coded.tokens
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
        lo, hi = self._span(first, 1 << 62)
        kept = []
        for old in self._extents[lo:hi]:
            if old.coded.lsn > lsn:
                kept.append(old)
            elif old.first < first:
                kept.append(Extent(old.first, first, old.coded))
        self._replace(lo, hi, kept)

    def covering(self, first: int, end: int) -> list[Extent]:
        """The extents that hold any of the tokens first … end - 1."""
        lo, hi = self._span(first, end)
        return self._extents[lo:hi]

    def run_end(self, window: int, bound: int) -> int:
        """The greatest n up to `bound` so that the `window` tokens before n are held (all before n, if n is less)."""
        for first, end in self._runs():
            n = min(end, bound)
            if n > first and n - first >= min(window, n):
                return n
        return 0

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Stretches of tokens that are held without a gap, the last one first."""
        first = end = -1
        for extent in reversed(self._extents):
            if extent.end != first:
                if end >= 0:
                    yield first, end
                end = extent.end
            first = extent.first
        if end >= 0:
            yield first, end

    @property
    def held(self) -> int:
        """How many tokens are held."""
        return sum(extent.end - extent.first for extent in self._extents)

    @property
    def end(self) -> int:
        """The token after the last one that is held."""
        return self._extents[-1].end if self._extents else 0

    @property
    def reach(self) -> int:
        """The first token, counted from 0, that no extent holds."""
        for extent in self._extents[self._contiguous :]:
            if extent.first > self._reach:
                break
            self._reach = extent.end
            self._contiguous += 1
        return self._reach

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
        self._extents[lo:hi] = merged
        self._firsts[lo:hi] = [e.first for e in merged]
        if lo < self._contiguous:
            self._contiguous = lo
            self._reach = self._extents[lo - 1].end if lo else 0
