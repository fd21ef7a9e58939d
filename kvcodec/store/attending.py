"""Decode attention over the caches of sequences: which tokens, where they lie, one run of the kernel for all."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Sequence as Sequence_
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvcodec.attention.query import quantize_queries, take_queries
from kvcodec.attention.rows import Found
from kvcodec.attention.run import StreamUse, Task
from kvcodec.attention.state import AttentionState
from kvcodec.attention.strips import Form, Spans, cut_strips, tile_ranges
from kvcodec.attention.tiers import Tiers, prepare
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import TILE_LANES, StreamId
from kvcodec.log import located as log
from kvcodec.store.model import Layer, Stream
from kvcodec.store.rows import refuse_evicted, take_tokens
from kvcodec.store.summaries import refuse_hidden

if TYPE_CHECKING:
    from kvcodec.store.readable import Readable

Ranges = npt.NDArray[np.int64]


class Asked(NamedTuple):
    """Tokens that a query is to see: ranges (m, 2), ascending; chosen: they are single tokens, (n,) ascending, each of
    which stands for the tile that holds it, as far as the layer has that. hidden: ranges that no tile may show.
    """

    ranges: Ranges
    held: range
    chosen: npt.NDArray[np.int64] | None = None
    hidden: Sequence_[tuple[int, int]] = ()

    @property
    def bounds(self) -> tuple[int, int]:
        """The first token and the one behind the last; equal if there is none."""
        if self.chosen is not None and not len(self.chosen):
            return 0, 0
        if self.chosen is not None:  # and what their tiles may have beyond
            first, end = int(self.chosen[0]) - TILE_LANES + 1, int(self.chosen[-1]) + TILE_LANES
            return max(self.held.start, first), min(self.held.stop, end)
        return (int(self.ranges[0, 0]), int(self.ranges[-1, 1])) if len(self.ranges) else (0, 0)

    def without(self, evicted: list[tuple[int, int]]) -> Asked:
        """The same but for tokens that were evicted. Raises ShapeError if one was chosen."""
        if self.chosen is not None:
            refuse_evicted(self.chosen, evicted)
            return self
        return self._replace(ranges=_cut(self.ranges, evicted))

    def hiding(self, hidden: list[tuple[int, int]]) -> Asked:
        """The same but for tokens that the query may not see. Raises ShapeError if one was chosen."""
        if self.chosen is not None:
            refuse_hidden(self.chosen, hidden)
            return self._replace(hidden=hidden)
        return self._replace(ranges=_cut(self.ranges, hidden))

    def find_ranges(self, spans: Spans) -> Ranges:
        """The tokens, where those of a stream are. Raises LookupError where some are nowhere."""
        if self.chosen is None:
            return self.ranges.clip(self.held.start, self.held.stop)
        return _cut(tile_ranges(spans, self.chosen).clip(self.held.start, self.held.stop), self.hidden)


def _cut(ranges: Ranges, gone: Sequence_[tuple[int, int]]) -> Ranges:
    """What is left of ranges without others; both are disjoint and ascending."""
    left, n = list[tuple[int, int]](), 0
    for start, stop in ranges.tolist():
        while n < len(gone) and gone[n][1] <= start:
            n += 1
        for first, end in gone[n : bisect_left(gone, (stop, 0))]:
            left.append((start, first))
            start = max(start, end)
        left.append((start, stop))
    return np.array([part for part in left if part[0] < part[1]], np.int64).reshape(-1, 2)


def ask_tokens(tokens: Any, window: int | None, held: range) -> Asked:
    """What `attend` is asked for. Raises ShapeError, SpecError."""
    if window is not None:
        if tokens is not None:
            raise SpecError("window and tokens exclude each other: say it in tokens")
        window = operator.index(window)
        if window < 1:
            raise SpecError(f"window is {window}, want 1 or more")
        held = range(max(held.start, held.stop - window), held.stop)
    if tokens is None or (isinstance(tokens, slice) and tokens.step in (None, 1)):
        index = held if tokens is None else take_tokens(tokens, held)
        ranges = [[index[0], index[-1] + 1]] if len(index) else np.empty((0, 2))
        return Asked(np.array(ranges, np.int64).reshape(-1, 2), held)
    return Asked(np.empty((0, 2), np.int64), held, np.unique(take_tokens(tokens, held)))


def uses_of(layer: Layer) -> tuple[tuple[Stream, ...], tuple[StreamUse, ...]]:
    """The streams of a layer in the kernel's order, the one with the values last, and what each is for."""
    streams = {s.id: s for s in layer.streams}
    if set(streams) == {StreamId.K, StreamId.V}:
        k, v = streams[StreamId.K], streams[StreamId.V]
        return (k, v), (StreamUse(k.dim, True, False, True), StreamUse(v.dim, False, True, False))
    if set(streams) == {StreamId.C, StreamId.KR}:
        c, kr = streams[StreamId.C], streams[StreamId.KR]
        return (kr, c), (StreamUse(kr.dim, True, False, True), StreamUse(c.dim, True, True, True))
    raise SpecError(f"attention needs k and v, or c and kr; the layer has {', '.join(s.name for s in layer.streams)}")


def take_layer_queries(q: Any, layer: Layer) -> npt.NDArray[np.float64]:
    """Queries (n, heads, channels) in the kernel's order of streams, of which c and kr are given in that order."""
    streams, _ = uses_of(layer)
    given = [s for s in layer.streams if s.id != StreamId.V]
    wide = take_queries(q, tuple(s.dim for s in given), streams[0].heads)
    if len(given) == 1:
        return wide
    return np.concatenate([wide[..., given[0].dim :], wide[..., : given[0].dim]], axis=2)


class Place(NamedTuple):
    """Where one sequence's tokens were found, a Found for each stream, which of them are asked for, and a record of
    each block that they are read from.
    """

    found: Sequence_[Found]
    asked: Asked
    read: Sequence_[log.Place]


def attend_places(
    layer: Layer,
    places: Sequence_[Place],
    forms: list[Form],
    q: npt.NDArray[np.float64],
    *,
    scale: float | None,
    query_bits: int,
    tiers: Tiers | None,
    threads: int,
    pool: Executor | None,
) -> list[AttentionState]:
    """States of one query a place. Raises LookupError(number of the place) where tokens are lost; SpecError."""
    streams, uses = uses_of(layer)
    scored = tuple(use.dim for use in uses if use.scored)
    if scale is None:
        if len(scored) > 1:
            raise SpecError("latent attention needs scale=: that of the heads before their projections were absorbed")
        scale = float(scored[0]) ** -0.5
    strips = []
    for n, (found, asked, _) in enumerate(places):
        spans = [one.spans for one in found]
        try:
            strips.append(cut_strips(spans, asked.find_ranges(spans[0])))
        except LookupError:
            raise LookupError(n) from None
    task = Task(quantize_queries(q, scored, scale), strips, uses, forms, streams[0].heads, query_bits, places)
    return prepare(task, tiers, threads=threads, pool=pool).run()


class Queried(NamedTuple):
    """A sequence that a query is for, and the query's position; None for one behind all tokens."""

    sequence: Readable
    position: int | None


def take_queried(sequences: Sequence_[Readable], position: Any) -> list[Queried]:
    """position: that of all queries, or of each. Raises ShapeError."""
    each = [position] * len(sequences) if np.ndim(position) == 0 else list(position)
    if len(each) != len(sequences):
        raise ShapeError(f"position: {len(each)} of them, want one, or one a sequence: {len(sequences)}")
    return [Queried(own, None if at is None else operator.index(at)) for own, at in zip(sequences, each, strict=True)]


def check_batch(q: Any, count: int) -> None:
    """Raises ShapeError unless q has `count` queries."""
    if not isinstance(q, np.ndarray) or q.ndim != 3 or len(q) != count:
        shape = q.shape if isinstance(q, np.ndarray) else type(q).__name__
        raise ShapeError(f"q: shape is {shape}, want ({count}, query heads, channels): one query a sequence")
