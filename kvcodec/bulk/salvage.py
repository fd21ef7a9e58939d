"""Which tokens of a sequence can't be read any more, found by reading all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.bulk.chunks import Progress, no_progress
from kvcodec.errors import FormatError, MissingDictionary
from kvcodec.store.dictionaries import StreamCodecs
from kvcodec.store.extents import Extent
from kvcodec.store.given import keys_for
from kvcodec.store.index import LogIndex
from kvcodec.store.reading import read_extent
from kvcodec.store.rows import cut_out
from kvcodec.store.sequence_index import SequenceIndex


class LostTokens(NamedTuple):
    """Tokens first <= t < end of one stream of one layer."""

    layer: int
    stream: str
    first: int
    end: int


def find_lost_tokens(
    whole: LogIndex, index: SequenceIndex, end: int, *, tell: Progress = no_progress
) -> tuple[list[LostTokens], list[tuple[Extent, str]]]:
    """Tokens below `end` that no readable record holds, but for those evicted, and the extents that can't be read, each
    with why.

    What a layer's sliding window has left behind is not looked for.

    tell: called with (tokens read, all of them), in tokens times streams times layers.
    """
    lost: list[LostTokens] = []
    bad: list[tuple[Extent, str]] = []
    for n, ((layer, id_), extents) in enumerate(index.maps.items()):
        stream = next(s for s in index.model.layers[layer].streams if s.id == id_)
        codecs = StreamCodecs(whole.dictionaries, layer, stream, index.model.dtype_id)
        keys = keys_for(whole.log, whole.dictionaries, index, (layer, id_))
        held = position = index.model.layers[layer].held(end)
        gone = extents.evicted(held, end)
        for extent in [*extents.covering(held, end), None]:
            first = end if extent is None else extent.first
            missing = cut_out(range(position, max(position, first)), gone)
            lost += (LostTokens(layer, stream.name, part.start, part.stop) for part in missing)
            if extent is None:
                break
            position = min(extent.end, end)
            try:
                own = extent._replace(first=max(extent.first, held), end=position)
                read_extent(whole.log, own, codecs, keys, as_float32=False)
            except MissingDictionary:
                raise
            except FormatError as error:
                bad.append((extent, str(error)))
                lost.append(LostTokens(layer, stream.name, max(extent.first, held), position))
            tell(n * end + position, len(index.maps) * end)
    return lost, bad


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
