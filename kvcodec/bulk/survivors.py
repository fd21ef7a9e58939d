"""What of a damaged log is worth a place in a new one: which tokens of a sequence, and which records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvcodec.bulk.chunks import Progress, no_progress
from kvcodec.bulk.salvage import LostTokens, find_length, token_ranges
from kvcodec.errors import FormatError
from kvcodec.layout import DropScope, Kind
from kvcodec.log.frame import Record
from kvcodec.log.located import Located, Place
from kvcodec.log.reader import Log
from kvcodec.store.ending import drop_record
from kvcodec.store.entering import KINDS
from kvcodec.store.index import LogIndex
from kvcodec.store.policy import read_sequence
from kvcodec.store.sequence_index import SequenceIndex

SETS = (Kind.DICTIONARY, Kind.CODEBOOK)


@dataclass(frozen=True)
class Survivor:
    """What is left of a sequence.

    tokens: how many it should have. length: that it keeps. lost: all that can't be read. evicted: ranges (first, end)
    below `length` that some layer or stream has lost, disjoint and ascending.
    """

    index: SequenceIndex
    tokens: int
    length: int
    lost: tuple[LostTokens, ...]
    evicted: tuple[tuple[int, int], ...]

    def drops(self) -> Iterator[Record]:
        """The DROP records that leave what is left and nothing else."""
        number = self.index.info.id
        if any(extents.end > self.length for extents in self.index.maps.values()):
            yield drop_record(number, DropScope.TAIL, self.length)
        for first, end in self.evicted:
            yield drop_record(number, DropScope.RANGE, first, end)

    def places(self) -> Iterator[Place]:
        """Where the records lie that hold a token which is left."""
        firsts = [first for first, _ in self.evicted]
        for (layer, _), extents in self.index.maps.items():
            held = self.index.model.layers[layer].held(self.length)
            for extent in extents.covering(held, self.length):
                first, end = max(extent.first, held), min(extent.end, self.length)
                n = bisect_right(firsts, first) - 1
                if n < 0 or self.evicted[n][1] < end:
                    yield from (part.place for part in extent.coded.parts)

    def places_behind(self) -> Iterator[Place]:
        """Where rows of summaries lie that a window has left: without them what they stand for would be back, as far as
        a record has it that the window still needs.
        """
        for (layer, _), extents in self.index.maps.items():
            held = self.index.model.layers[layer].held(self.length)
            for extent in extents.summaries():
                if extent.end <= held:
                    yield from (part.place for part in extent.coded.parts)


def find_survivor(
    whole: LogIndex, index: SequenceIndex, end: int, missing: list[str], *, tell: Progress = no_progress
) -> Survivor:
    """What is left of a sequence that should have `end` tokens. missing: as in find_lost_tokens.

    Lost tokens at its end are cut off; others are evicted, so that all that are left keep their numbers.
    """
    length, lost, _ = find_length(whole, index, end, missing=missing, tell=tell)
    evicted = tuple((first, stop) for first, stop in token_ranges(lost) if stop <= length)
    return Survivor(index, end, length, tuple(lost), evicted)


def choose_records(
    whole: LogIndex, entered: Sequence[Located], survivors: Sequence[Survivor], flawed: Sequence[bytes]
) -> list[Located]:
    """Those of the records that the index took which the new log needs, in their order.

    flawed: sets that are not what their hashes say.
    """
    places = {(place.block, place.offset) for one in survivors for place in one.places()}
    behind = (place for one in survivors for place in one.places_behind() if _is_whole(whole.log, place))
    places |= {(place.block, place.offset) for place in behind}
    return [one for one in entered if _is_needed(whole, one, places, flawed)]


def _is_whole(log: Log, place: Place) -> bool:
    try:
        log.load(place)
    except FormatError:
        return False
    return True


def _is_needed(whole: LogIndex, one: Located, places: set[tuple[int, int]], flawed: Sequence[bytes]) -> bool:
    kind, number = int(one.header["kind"]), int(one.header["sequence"])
    if kind in KINDS:
        return (one.place.block, one.place.offset) in places
    if kind in SETS:
        return one.header["basis_hash"].tobytes() not in flawed
    if kind == Kind.SEQUENCE and not number:
        return int(one.header["lsn"]) == whole.default_lsn
    if kind in (Kind.SEQUENCE, Kind.DROP):
        return number in whole.sharing
    return kind == Kind.MODEL


def read_copy(whole: LogIndex, one: Located) -> Record:
    """A record as it goes into the new log: byte for byte, but for a fork of a sequence that is lost: that begins
    without one, its first tokens evicted. Raises FormatError.
    """
    if int(one.header["kind"]) == Kind.DROP:  # that is its header, and nothing has asked yet for where it lies
        return Record(np.array(one.header).copy(), b"")
    header, body = whole.log.load(one.place)
    if int(header["kind"]) == Kind.SEQUENCE and int(header["parent"]) and int(header["parent"]) not in whole.sharing:
        return replace(read_sequence(header, body, 0), fork=(0, 0)).record()
    return Record(np.array(header), body)
