"""Which tokens of a sequence can't be read any more, found by reading all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.bulk.chunks import Progress, no_progress
from kvcodec.errors import CorruptRecord, FormatError, MissingDictionary
from kvcodec.store.dictionaries import StreamCodecs
from kvcodec.store.extents import Coded, Extent
from kvcodec.store.given import CodedKeys, keys_for
from kvcodec.store.index import LogIndex
from kvcodec.store.positions import Positions
from kvcodec.store.reading import read_extent
from kvcodec.store.sequence_index import SequenceIndex
from kvcodec.store.summaries import load_positions


class LostTokens(NamedTuple):
    """Tokens first <= t < end of one stream of one layer."""

    layer: int
    stream: str
    first: int
    end: int


def find_lost_tokens(
    whole: LogIndex, index: SequenceIndex, end: int, *, missing: list[str] | None = None, tell: Progress = no_progress
) -> tuple[list[LostTokens], list[tuple[Extent, str]]]:
    """Tokens below `end` that no readable record holds, and the extents that can't be read, each with why.

    What was evicted, and what a layer's sliding window has left behind, is not looked for. With any
    part of a summary all that it stands for is lost.

    missing: takes what is to be said of sets that are nowhere; of records over them the checksums then have to do.
    Without it they raise MissingDictionary.
    tell: called with (tokens read, all of them), in tokens times streams times layers.
    """
    lost: list[LostTokens] = []
    bad: list[tuple[Extent, str]] = []
    placed: dict[tuple[int, int], Positions] = {}
    for n, ((layer, id_), extents) in enumerate(index.maps.items()):
        stream = next(s for s in index.model.layers[layer].streams if s.id == id_)
        codecs = StreamCodecs(whole.dictionaries, layer, stream, index.model.dtype_id)
        keys = keys_for(whole.log, whole.dictionaries, index, (layer, id_))
        held = position = index.model.layers[layer].held(end)
        for extent in [*extents.covering(held, end), None]:
            first = end if extent is None else extent.first
            gaps = _uncovered(position, first, extents.evicted(position, first))
            lost += (LostTokens(layer, stream.name, *gap) for gap in gaps)
            if extent is None:
                break
            position = min(extent.end, end)
            own = extent._replace(first=max(extent.first, held), end=position)
            try:
                _read(whole, own, codecs, keys, missing)
                if extent.coded.stands_for:
                    _check_summary(whole, extent.coded, layer, placed)
            except MissingDictionary:
                raise
            except FormatError as error:
                bad.append((extent, str(error)))
                lost.append(LostTokens(layer, stream.name, max(extent.first, held), position))
            tell(n * end + position, len(index.maps) * end)
    return [_widened(one, index.summarized, end) for one in lost], bad


def find_length(
    whole: LogIndex, index: SequenceIndex, end: int, *, missing: list[str] | None = None, tell: Progress = no_progress
) -> tuple[int, list[LostTokens], list[tuple[Extent, str]]]:
    """How long a sequence is of which some layers or streams reach to `end`, and what of its first `end` tokens is lost
    then; otherwise as find_lost_tokens.

    It ends with a token that all of them still have; but where sliding windows then need tokens that they had left
    behind, with that of the lengths of which most can be read.
    """
    lost, bad = find_lost_tokens(whole, index, end, missing=missing, tell=tell)
    ranges, length, tries = token_ranges(lost), end, [(end, lost)]
    while (last := token_ranges(tries[-1][1])) and last[-1][1] == length:
        length = _common_end(index, last[-1][0])
        own, more = find_lost_tokens(whole, index, length, missing=missing)
        bad += [one for one in more if one not in bad]
        tries.append((length, own))
    if not all(any(first <= a and b <= stop for first, stop in ranges) for a, b in last):
        length, own = max(tries, key=lambda one: _worth(index, *one))
        tries = tries[: tries.index((length, own)) + 1]
    if length == end:
        return end, lost, bad
    beyond = [one._replace(first=max(one.first, length)) for _, own in tries for one in own if one.end > length]
    return length, _merged([*tries[-1][1], *beyond, *_gaps(index, length, end)]), bad


def _common_end(index: SequenceIndex, length: int) -> int:
    """The longest length, up to one, at the end of which every stream has a record or was evicted from."""
    while True:
        held = [(extents.covering(0, length), extents.evicted(0, length)) for extents in index.maps.values()]
        ends = (max([0, *(e.end for e in own), *(stop for _, stop in gone)]) for own, gone in held)
        if (shorter := min(length, *ends)) == length:
            return length
        length = shorter


def _worth(index: SequenceIndex, length: int, lost: Iterable[LostTokens]) -> tuple[bool, int, int]:
    """What can be read if a sequence has a length, to compare: whether any token by all layers, and how many in all."""
    held = [index.model.layers[layer].held(length) for layer, _ in index.maps]
    kept = kept_tokens(lost, length)
    return bool((kept >= max(held)).any()), int(np.count_nonzero(kept >= min(held))), length


def _merged(lost: Iterable[LostTokens]) -> list[LostTokens]:
    """The same tokens, none of a stream twice."""
    own = itertools.groupby(sorted(lost), key=lambda one: (one.layer, one.stream))
    return [LostTokens(*key, first, end) for key, all_ in own for first, end in token_ranges(all_)]


def _gaps(index: SequenceIndex, first: int, end: int) -> Iterator[LostTokens]:
    """Those of the tokens first … end - 1 that streams have no record of."""
    for (layer, id_), extents in index.maps.items():
        held = [(max(e.first, first), min(e.end, end)) for e in extents.covering(first, end)]
        for gap in _uncovered(first, end, sorted([*held, *extents.evicted(first, end)])):
            yield LostTokens(layer, id_.name, *gap)


def _widened(lost: LostTokens, summarized: Iterable[tuple[int, int]], end: int) -> LostTokens:
    """With all tokens below `end` of the summaries that it has some of."""
    own = [(a, b) for a, b in summarized if a < lost.end and lost.first < b]
    first, last = min([lost.first, *(a for a, _ in own)]), max([lost.end, *(min(b, end) for _, b in own)])
    return lost._replace(first=first, end=last)


def _uncovered(first: int, end: int, covered: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is left of tokens first … end - 1 without ranges of them, which are disjoint and ascending."""
    for start, stop in [*covered, (end, end)]:
        if start > first:
            yield first, start
        first = max(first, stop)


def _read(
    whole: LogIndex, extent: Extent, codecs: StreamCodecs, keys: CodedKeys | None, missing: list[str] | None
) -> None:
    """Raises FormatError if the tokens of an extent can't be read."""
    try:
        read_extent(whole.log, extent, codecs, keys, as_float32=False)
    except MissingDictionary as error:
        if missing is None:
            raise
        missing.append(str(error))
        for part in extent.coded.parts:
            whole.log.load(part.place)


def _check_summary(whole: LogIndex, coded: Coded, layer: int, placed: dict[tuple[int, int], Positions]) -> None:
    """Raises FormatError if the positions of a summary can't be, or are not those in records of its other streams.

    placed: those by layer and first token, as far as they are known.
    """
    own = load_positions(whole.log, [coded])
    if not np.array_equal(own, placed.setdefault((layer, coded.first), own)):
        place = coded.parts[0].place
        at = whole.log.device.file_offset(place.block, place.offset)
        raise CorruptRecord(at, "records of a summary contradict each other in positions")


def token_ranges(lost: Iterable[LostTokens]) -> list[tuple[int, int]]:
    """Token ranges (first, end) that any layer or stream has lost, disjoint and ascending."""
    ranges: list[tuple[int, int]] = []
    for first, end in sorted((one.first, one.end) for one in lost):
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((first, end))
    return ranges


def kept_tokens(lost: Iterable[LostTokens], length: int) -> NDArray[np.int64]:
    """Token numbers below `length` that every layer and stream still has."""
    kept = np.ones(length, np.bool_)
    for one in lost:
        kept[one.first : one.end] = False
    return np.flatnonzero(kept)
