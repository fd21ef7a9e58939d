"""Rows that stand for several tokens: where they stand, and which of a layer's rows a query at a position may see."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import CorruptRecord, ShapeError
from kvcodec.log.reader import Log
from kvcodec.store.coded import Coded, Extent
from kvcodec.store.positions import Positions, misplaced, unpack_positions
from kvcodec.store.reading import load_part
from kvcodec.store.rows import find_within
from kvcodec.store.sequence_index import SequenceIndex

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Summary:
    """Tokens first … end - 1 of a layer, which `rows` rows stand for, of token numbers first … first + rows - 1.

    positions: int64 (rows,), the position that each stands at. visible_from: int64 (rows,), that of the first query
    that may see it.
    """

    first: int
    end: int
    rows: int
    positions: NDArray[np.int64]
    visible_from: NDArray[np.int64]


class Placed(NamedTuple):
    """Rows of the summaries of a layer, in token order.

    extents, positions: of each summary. tokens, seen: int64 (rows,), of each row its number and who sees it first.
    firsts, ends: int64 (summaries,), the first token of what each stands for, and the one behind its last row.
    """

    extents: list[Extent]
    positions: list[Positions]
    tokens: Ints
    seen: Ints
    firsts: Ints
    ends: Ints

    @classmethod
    def of(cls, extents: list[Extent], positions: list[Positions]) -> Placed:
        """positions: of the rows of each extent."""
        none = np.empty(0, np.int64)
        tokens = np.concatenate([none, *(np.arange(extent.first, extent.end) for extent in extents)])
        seen = np.concatenate([none, *(own["visible_from"].astype(np.int64) for own in positions)])
        firsts, ends = ([e.coded.first for e in extents], [e.end for e in extents])
        return cls(extents, positions, tokens, seen, np.array(firsts, np.int64), np.array(ends, np.int64))

    def told(self) -> list[Summary]:
        """As the caller of `summaries` gets it."""
        out = []
        for extent, own in zip(self.extents, self.positions, strict=True):
            at, seen = (own[name].astype(np.int64) for name in ("position", "visible_from"))
            out.append(Summary(extent.coded.first, extent.coded.stands_for, len(own), at, seen))
        return out


_NONE = Placed.of([], [])


class Summaries:
    """The summaries of a sequence. What a record says of positions is read when it is first asked for."""

    def __init__(self, log: Log, index: SequenceIndex) -> None:
        self._log, self._index = log, index
        self._known: dict[int, Positions] = {}  # by lsn of a record of a layer's first stream
        self._placed: dict[int, tuple[tuple[int, int], Placed]] = {}  # of each layer, as of what it was made

    def of(self, layer: int, held: range) -> Placed:
        """Those of a layer of which it holds any row. Raises CorruptRecord."""
        extents = self._index.maps[layer, self._index.model.layers[layer].streams[0].id]
        summaries = extents.summaries()
        if not summaries:
            return _NONE
        left = bisect_right(summaries, held.start, key=attrgetter("end"))  # behind a sliding window
        made, placed = self._placed.get(layer, ((-1, 0), _NONE))
        if made != (extents.changes, left):
            placed = Placed.of(summaries[left:], [self._positions(layer, extent) for extent in summaries[left:]])
            self._placed[layer] = (extents.changes, left), placed
        return placed

    def _positions(self, layer: int, extent: Extent) -> Positions:
        coded = extent.coded
        if coded.lsn not in self._known:
            maps = [self._index.maps[layer, s.id] for s in self._index.model.layers[layer].streams]
            records = [e.coded for own in maps for e in own.summaries() if e.coded.first == coded.first]
            self._known[coded.lsn] = load_positions(self._log, records)
        return self._known[coded.lsn][extent.first - coded.first : extent.end - coded.first]


def load_positions(log: Log, records: Sequence[Coded]) -> Positions:
    """Positions of the rows of a summary, out of the records of the streams of a layer, which all have to say the same.

    Raises CorruptRecord.
    """
    known: Positions | None = None
    for coded in records:
        for part in coded.parts:
            _, _, rows_at = load_part(log, coded, part)
            _, body = log.load(part.place)
            own = unpack_positions(body[part.body_offset - part.positions :], coded.tokens)
            log.check_unerased(part.place)
            at, row = rows_at - part.positions, misplaced(own, coded.first, coded.stands_for)
            if row is not None:
                raise CorruptRecord(at + row * own.itemsize, f"position of row {row} of a summary, or who may see it")
            if known is not None and not np.array_equal(own, known):
                raise CorruptRecord(at, "records of a summary contradict each other in positions")
            known = own
    assert known is not None
    return known


def hidden_tokens(placed: Placed, held: range, position: int | None) -> list[tuple[int, int]]:
    """Those of the tokens that a layer holds that a query at `position`, behind all of them unless given, may not see:
    later ones, and rows of summaries that are for later queries. Ranges (first, end), disjoint and ascending.

    Rows of summaries are seen by what is said of them, whatever their numbers.
    """
    at = held.stop if position is None else position
    begun, border = int(np.searchsorted(placed.firsts, at, "right")), max(held.start, min(held.stop, at + 1))
    hidden: list[tuple[int, int]] = []
    if begun:
        border = max(border, int(placed.ends[begun - 1]))
        low, high = np.searchsorted(placed.tokens, (held.start, placed.ends[begun - 1]))
        late = placed.tokens[low:high][placed.seen[low:high] > at]
        breaks = np.flatnonzero(np.diff(late) > 1)
        starts, stops = np.append(late[:1], late[breaks + 1]), np.append(late[breaks], late[-1:]) + 1
        hidden = list(zip(starts.tolist(), stops.tolist(), strict=True))
    return [*hidden, (border, held.stop)] if border < held.stop else hidden


def refuse_hidden(index: Ints, hidden: Sequence[tuple[int, int]]) -> None:
    """Raises ShapeError if one of the token numbers lies in a range that the query may not see."""
    found = find_within(index, hidden)
    if found is not None:
        raise ShapeError(f"tokens: {found} is not for a query at this position to see")
