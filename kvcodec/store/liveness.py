"""Which records of a log are still worth something: what cleaning asks (log/cleaner.py)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.flash.block import Block
from kvcodec.layout import HEADERS, RECORD_HEADER, DropScope, Kind
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
        self._reaches: dict[int, tuple[NDArray[np.uint64], NDArray[np.uint64]]] = {}  # of sequences, as of one block
        self._groups: dict[int, NDArray[np.void]] = {}

    def moved(self, copies: Sequence[Located]) -> None:
        """See Keeper."""
        self._index.move(copies)
        self._moved_to(copies)

    def erased(self, block: Block) -> None:
        """See Keeper."""
        self._gone(block)

    def dead_bytes(self) -> NDArray[np.float64]:
        """See Keeper. Of rows and sets: other records are few, and small. A block of no others holds nothing that would
        not be as well elsewhere, but for what is alive of those.
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
        rowless = np.bincount(blocks[found & ~dead], minlength=len(counted)) == 0
        if rowless.any():
            small = rowless[blocks] & self._is_small_alive(table.kinds, common)
            counted[rowless] = device.geometry.block_bytes
            counted -= np.bincount(blocks[small], sizes[small], len(counted))
        return counted

    def filled_bytes(self) -> NDArray[np.float64]:
        """See Keeper."""
        table = self._present()
        common = table.columns(RECORD_HEADER)
        sizes = common["header_bytes"].astype(np.float64) + common["body_bytes"]
        counted = np.bincount(table.places["block"], sizes, self._index.log.device.present_blocks())
        return counted.astype(np.float64)

    def _is_small_alive(self, kinds: NDArray[Any], common: NDArray[np.void]) -> NDArray[np.bool_]:
        """Which records are of models, policies, and sequences that are there or others stand on: about what `choose`
        takes.
        """
        here, sharing = self._index.sequences, self._index.sharing
        lsns = [lsn for own in here.values() for lsn in (own.begun_lsn, own.named_lsn)]
        said = np.isin(common["lsn"], [self._index.default_lsn, *lsns])
        gone = np.isin(common["sequence"], [number for number in sharing if number not in here])
        ends = (kinds == Kind.DROP) & np.isin(common["sequence"], list(sharing))
        alive: NDArray[np.bool_] = ends | (kinds == Kind.MODEL) | ((kinds == Kind.SEQUENCE) & (said | gone))
        return alive

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
        self._reaches.clear()
        self._groups.clear()
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
        if kind == Kind.DROP and self._stands_alone(number) and not self._has_effect(one):
            return False
        if kind == Kind.DROP:  # outlives all that it ends, and the record that says that there was such a sequence
            return number in self._index.sharing or self._is_left(number, block, (*KINDS, Kind.SEQUENCE))
        return kind == Kind.MODEL

    def _stands_alone(self, number: int) -> bool:
        """Whether a sequence is there, and shares nothing with others."""
        own = self._index.sequences.get(number)
        return own is not None and not own.info.parent and self._index.sharing[number] == [own]

    def _has_effect(self, one: Located) -> bool:
        """Whether a DROP record of a sequence that stands alone says what no other record does."""
        scope = int(one.header["scope"])
        if scope == DropScope.TAIL:
            return self._cuts(one)
        return scope not in (DropScope.RANGE, DropScope.SUMMARY) or not self._is_covered(one)

    def _is_covered(self, one: Located) -> bool:
        """Whether a newer record evicts, cuts off, or summarises all that this one evicts or summarises."""
        number, header = int(one.header["sequence"]), one.header
        drops = self._drops_of(number)
        lsns = np.where(drops["scope"] == DropScope.SUMMARY, drops["summary_lsn"], drops["lsn"])
        newer = drops[(lsns > header["lsn"]) & (drops["first_token"] <= header["first_token"])]
        wider = newer["end_token"] >= header["end_token"]
        if ((newer["scope"] == DropScope.TAIL) | ((newer["scope"] == DropScope.RANGE) & wider)).any():
            return True
        all_layers = self._index.sequences[number].model.layers
        layers = {n for n, layer in enumerate(all_layers) if layer.window and layer.streams}
        if int(header["scope"]) == DropScope.SUMMARY and layers:
            layers &= self._summarised(header)
        others = newer[(newer["scope"] == DropScope.SUMMARY) & wider]
        return any(not layers or layers <= self._summarised(other) for other in others)

    def _summarised(self, header: np.void) -> set[int]:
        """The layers of which the log has rows of a summary, by its DROP record. It leaves others that have a window as
        they are.
        """
        number = int(header["sequence"])
        if number not in self._groups:
            present, columns = self._present(), self._present().columns(HEADERS[Kind.GROUP])
            own = (present.kinds == Kind.GROUP) & (columns["sequence"] == number) & (columns["position_bytes"] > 0)
            self._groups[number] = columns[own]
        groups = self._groups[number]
        own = (groups["first_token"] == header["first_token"]) & (groups["lsn"] < header["lsn"])
        found = groups[own & (groups["lsn"] >= header["summary_lsn"])]
        return {first + n for first, layers in found[["first_layer", "layers"]].tolist() for n in range(layers)}

    def _drops_of(self, number: int) -> NDArray[np.void]:
        present = self._present()
        columns = present.columns(HEADERS[Kind.DROP])
        drops: NDArray[np.void] = columns[(present.kinds == Kind.DROP) & (columns["sequence"] == number)]
        return drops

    def _cuts(self, one: Located) -> bool:
        """Whether the log has older records of its sequence that reach behind the token at which a record cuts it: of
        rows, dead ones too, and such as evict or summarise.
        """
        number = int(one.header["sequence"])
        if number not in self._reaches:
            present, drops = self._present(), self._drops_of(number)
            lsns, ends = [drops["lsn"]], [drops["end_token"]]  # 0 of those that cut
            for kind in KINDS:
                columns = present.columns(HEADERS[kind])
                own = columns[(present.kinds == kind) & (columns["sequence"] == number)]
                lsns.append(own["lsn"])
                ends.append(own["first_token"] + own["tokens"])
            self._reaches[number] = np.concatenate(lsns), np.concatenate(ends)
        lsns_, ends_ = self._reaches[number]
        return bool(((lsns_ < one.header["lsn"]) & (ends_ > one.header["first_token"])).any())

    def _is_left(self, number: int, block: int, kinds: Sequence[int]) -> bool:
        """Whether other blocks hold records of these kinds of a sequence."""
        present = self._present()
        common = present.columns(RECORD_HEADER)
        own = (common["sequence"] == number) & (present.places["block"] != block)
        return bool(np.isin(present.kinds[own], kinds).any())


def _key(block: int, offset: int) -> int:
    return block << 32 | offset
