"""Which records of a log are still worth something: what cleaning asks (log/cleaner.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.flash.block import Block
from kvcodec.layout import GROUP_HEADER, RECORD_HEADER, STEP_HEADER, Kind
from kvcodec.log.located import Located, RecordTable
from kvcodec.store.coded import Extent
from kvcodec.store.entering import KINDS
from kvcodec.store.index import LogIndex, row_bytes
from kvcodec.store.model import Stream

_HEADERS = {True: GROUP_HEADER.itemsize, False: STEP_HEADER.itemsize}


class Liveness:
    """What of a log is alive, by its index. A Keeper.

    present: all records that the blocks hold, dead or alive. moved_to, gone: told of copies, and of blocks erased.
    """

    def __init__(
        self,
        index: LogIndex,
        present: Callable[[], RecordTable],
        moved_to: Callable[[Sequence[Located]], None],
        gone: Callable[[Block], None],
    ) -> None:
        self._index, self._present, self._moved_to, self._gone = index, present, moved_to, gone

    def moved(self, copies: Sequence[Located]) -> None:
        """See Keeper."""
        self._index.move(copies)
        self._moved_to(copies)

    def erased(self, block: Block) -> None:
        """See Keeper."""
        self._gone(block)

    def live_bytes(self) -> NDArray[np.float64]:
        """See Keeper. Records of models, sequences and sets count as nothing: they are few, and small."""
        out = np.zeros(self._index.log.device.present_blocks())
        seen: set[tuple[int, int]] = set()  # records of rows that a fork shares
        for stream, extent in self._extents():
            coded = extent.coded
            for part in coded.parts:
                place = part.place.block, part.place.offset
                size = part.size if coded.step is None else coded.tokens * part.heads * row_bytes(coded.step, stream)
                if coded.step is None and place in seen:
                    continue
                seen.add(place)
                out[place[0]] += size + _HEADERS[coded.step is None]
        for one in self._index.dictionaries.records():
            out[one.place.block] += int(one.header["header_bytes"]) + int(one.header["body_bytes"])
        return out

    def _extents(self) -> Iterator[tuple[Stream, Extent]]:
        """What sequences read from, or may, but for what windows have left behind."""
        for sequence in self._index.sequences.values():
            length = sequence.settled
            for (layer, id_), extents in sequence.maps.items():
                own = sequence.model.layers[layer]
                stream = next(s for s in own.streams if s.id == id_)
                for extent in extents.covering(own.held(length), 1 << 62):
                    yield stream, extent

    def choose(self, block: int, records: Sequence[Located]) -> Sequence[Located]:
        """See Keeper."""
        rows = {
            part.place.offset
            for _, extent in self._extents() for part in extent.coded.parts if part.place.block == block
        }  # fmt: skip
        sets = {one.place.offset for one in self._index.dictionaries.records() if one.place.block == block}
        return [one for one in records if self._is_alive(one, block, rows, sets)]

    def _is_alive(self, one: Located, block: int, rows: set[int], sets: set[int]) -> bool:
        kind, number = int(one.header["kind"]), int(one.header["sequence"])
        if kind in KINDS:
            return one.place.offset in rows
        if kind in (Kind.DICTIONARY, Kind.CODEBOOK):
            return one.place.offset in sets
        if kind == Kind.SEQUENCE and not number:
            return int(one.header["lsn"]) == self._index.default_lsn
        if kind == Kind.SEQUENCE:
            return number in self._index.sharing or self._is_left(number, block, KINDS)
        if kind == Kind.DROP:  # outlives all that it ends, and the record that says that there was such a sequence
            return number in self._index.sharing or self._is_left(number, block, (*KINDS, Kind.SEQUENCE))
        return kind == Kind.MODEL

    def _is_left(self, number: int, block: int, kinds: Sequence[int]) -> bool:
        """Whether other blocks hold records of these kinds of a sequence."""
        present = self._present()
        common = present.columns(RECORD_HEADER)
        own = (common["sequence"] == number) & (present.places["block"] != block)
        return bool(np.isin(present.kinds[own], kinds).any())
