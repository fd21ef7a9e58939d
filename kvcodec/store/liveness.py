"""Which records of a log are still worth something: what cleaning asks (log/cleaner.py)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.flash.block import Block
from kvcodec.layout import RECORD_HEADER, Kind
from kvcodec.log.located import Located, Place, RecordTable
from kvcodec.store.entering import KINDS
from kvcodec.store.extents import ExtentMap
from kvcodec.store.index import LogIndex


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

    def dead_bytes(self) -> NDArray[np.float64]:
        """See Keeper. Of rows and sets: other records are few, and small; a block of no others holds nothing that would
        not be as well elsewhere.
        """
        table = self._present()
        places, common = table.places, table.columns(RECORD_HEADER)
        alive = np.array([_key(place.block, place.offset) for place in self._places()], np.uint64)
        keys = places["block"].astype(np.uint64) << np.uint64(32) | places["offset"].astype(np.uint64)
        found = np.isin(table.kinds, (*KINDS, Kind.DICTIONARY, Kind.CODEBOOK))
        dead = found & ~np.isin(keys, alive)
        sizes = common["header_bytes"].astype(np.float64) + common["body_bytes"]
        device, blocks = self._index.log.device, places["block"]
        counted = np.bincount(blocks[dead], sizes[dead], device.present_blocks()).astype(np.float64)
        counted[np.bincount(blocks[found & ~dead], minlength=len(counted)) == 0] = device.geometry.block_bytes
        return counted

    def _places(self) -> Iterator[Place]:
        """Where records of rows and of sets lie that are alive; some more than once.

        Of a layer with a window those that it needs, or may still need, and summaries: without them what they stand for
        would be back where its block is not cleaned yet.
        """
        for extents, held in self._streams():
            for extent in itertools.chain(extents.covering(held, 1 << 62), extents.summaries()):
                yield from (part.place for part in extent.coded.parts)
        yield from (one.place for one in self._index.dictionaries.records())

    def choose(self, block: int, records: Sequence[Located]) -> Sequence[Located]:
        """See Keeper. What windows have left and this block will take along is forgotten now: a sequence that is cut
        before the block is erased must not count on it.
        """
        alive = {place.offset for place in self._places() if place.block == block}
        self._forget(block, alive)
        return [one for one in records if self._is_alive(one, block, alive)]

    def _forget(self, block: int, alive: set[int]) -> None:
        for extents, held in self._streams():
            left = extents.covering(0, held) if held else ()
            places = ((one.end, part.place) for one in left for part in one.coded.parts)
            gone = [end for end, place in places if place.block == block and place.offset not in alive]
            if gone:
                extents.forget(max(gone))

    def _streams(self) -> Iterator[tuple[ExtentMap, int]]:
        """What holds the tokens of each stream, and the first of them that its sequence needs."""
        for sequence in self._index.sequences.values():
            layers = sequence.model.layers
            length = sequence.settled if any(layer.window for layer in layers) else 0
            yield from ((extents, layers[layer].held(length)) for (layer, _), extents in sequence.maps.items())

    def _is_alive(self, one: Located, block: int, alive: set[int]) -> bool:
        kind, number = int(one.header["kind"]), int(one.header["sequence"])
        if kind in (*KINDS, Kind.DICTIONARY, Kind.CODEBOOK):
            return one.place.offset in alive
        if kind == Kind.SEQUENCE and not number:
            return int(one.header["lsn"]) == self._index.default_lsn
        if kind == Kind.SEQUENCE and number in self._index.sequences:
            own = self._index.sequences[number]
            return int(one.header["lsn"]) in (own.begun_lsn, own.named_lsn)
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


def _key(block: int, offset: int) -> int:
    return block << 32 | offset
