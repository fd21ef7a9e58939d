"""Rows that stand for several tokens: where they stand, and which of a layer's rows a query at a position may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import CorruptRecord, ShapeError
from kvcodec.log.reader import Log
from kvcodec.store.coded import Coded, Extent
from kvcodec.store.positions import Positions, misplaced, unpack_positions
from kvcodec.store.reading import load_part
from kvcodec.store.sequence_index import SequenceIndex


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
    """The rows of an extent of a summary, and the positions of these."""

    extent: Extent
    positions: Positions

    def told(self) -> Summary:
        """As the caller of `summaries` gets it."""
        coded, own = self.extent.coded, self.positions
        at, seen = (own[name].astype(np.int64) for name in ("position", "visible_from"))
        return Summary(coded.first, coded.stands_for, len(own), at, seen)


class Summaries:
    """The summaries of a sequence. What a record says of positions is read when it is first asked for."""

    def __init__(self, log: Log, index: SequenceIndex) -> None:
        self._log, self._index = log, index
        self._known: dict[int, Positions] = {}  # by lsn of a record

    def of(self, layer: int, held: range) -> list[Placed]:
        """Those of a layer of which it holds any row, in token order. Raises CorruptRecord."""
        stream = self._index.model.layers[layer].streams[0]
        found = []
        for extent in self._index.maps[layer, stream.id].summaries():
            if extent.first < held.stop and extent.end > held.start:
                first, own = extent.coded.first, self.positions(layer, extent.coded)
                found.append(Placed(extent, own[extent.first - first : extent.end - first]))
        return found

    def positions(self, layer: int, coded: Coded) -> Positions:
        """Of the rows of a summary, of which a record of any stream is named. Raises CorruptRecord."""
        if coded.lsn not in self._known:
            maps = [self._index.maps[layer, s.id] for s in self._index.model.layers[layer].streams]
            records = [e.coded for own in maps for e in own.summaries() if e.coded.first == coded.first]
            self._known[coded.lsn] = load_positions(self._log, records)
        return self._known[coded.lsn]


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


def hidden_tokens(placed: Sequence[Placed], held: range, position: int | None) -> list[tuple[int, int]]:
    """Those of the tokens that a layer holds that a query at `position`, behind all of them unless given, may not see:
    later ones, and rows of summaries that are for later queries. Ranges (first, end), disjoint and ascending.

    Rows of summaries are seen by what is said of them, whatever their numbers.
    """
    at = held.stop if position is None else position
    border, hidden = min(held.stop, at + 1), list[tuple[int, int]]()
    for (first, end, coded), own in placed:
        if coded.first > at:
            continue
        late = np.flatnonzero(own["visible_from"] > at) + first
        breaks = np.flatnonzero(np.diff(late) > 1) + 1
        hidden += [(int(run[0]), int(run[-1]) + 1) for run in np.split(late, breaks) if len(run)]
        border = max(border, end)
    border = max(border, held.start)
    return [*hidden, (border, held.stop)] if border < held.stop else hidden


def refuse_hidden(index: NDArray[np.int64], hidden: Sequence[tuple[int, int]]) -> None:
    """Raises ShapeError if one of the token numbers lies in a range that the query may not see."""
    for first, end in hidden if len(index) else ():
        wrong = (index >= first) & (index < end)
        if wrong.any():
            raise ShapeError(f"tokens: {int(index[wrong][0])} is not for a query at this position to see")
