"""Summaries: rows that the caller gives take the place of a range of tokens (formats/record.md#summaries)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Sequence_
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from kvcodec.codecs.raw import RawCodec
from kvcodec.errors import ShapeError
from kvcodec.log.frame import Record
from kvcodec.store.ending import check_settled
from kvcodec.store.model import Layer, Model
from kvcodec.store.positions import take_positions
from kvcodec.store.records import summary_record
from kvcodec.store.rows import take_streams
from kvcodec.store.sequence_index import SequenceIndex
from kvcodec.store.window import Rows

if TYPE_CHECKING:
    from kvcodec.store.sequence import Sequence

Array = npt.NDArray[Any]


def summarize(
    sequence: Sequence,
    tokens: tuple[int, int],
    settled: int,
    index: SequenceIndex,
    rows: Mapping[int, Sequence_[Array]],
    positions: Any,
    visible_from: Any,
) -> list[Record]:
    """The GROUP records of rows that are to stand for tokens (first, end). settled: as in `evict`.

    Raises ShapeError, DtypeError, NonFiniteError.
    """
    first, end = tokens
    check_settled(sequence, first, end, settled, index, "summarised")
    records = []
    for layer, own in _choose_layers(sequence, tokens, index.model, rows).items():
        taken = _take_rows(layer, own, tokens, index.model, rows[layer])
        where, count = f"sequence {sequence.name!r}, layer {layer}", len(taken[0])
        at, seen = (given.get(layer) if isinstance(given, Mapping) else given for given in (positions, visible_from))
        placed = take_positions(at, seen, count, first, end, where)
        records += [
            summary_record(index.info.id, layer, stream, first, x, RawCodec(stream.id), index.model.dtype_id, placed)
            for stream, x in zip(own.streams, taken, strict=True)
        ]
    return records


def _choose_layers(
    sequence: Sequence, tokens: tuple[int, int], model: Model, rows: Mapping[int, Sequence_[Array]]
) -> dict[int, Layer]:
    """The layers that rows are given for: all with a cache, but that one with a window may be left to forget by itself.

    Raises ShapeError.
    """
    first, length = tokens[0], len(sequence)
    chosen = {layer: sequence.layer(layer) for layer in sorted(rows)}
    for n, layer in enumerate(model.layers):
        if layer.streams and not layer.window and n not in chosen:
            raise ShapeError(f"sequence {sequence.name!r}: no rows of layer {n} to be a summary")
        if n in chosen and first < layer.held(length):
            raise ShapeError(
                f"sequence {sequence.name!r}: token {first} is to be summarised, but the window of {layer.window} of "
                f"layer {n} has left it: leave rows of that layer out"
            )
    if not chosen:
        raise ShapeError(f"sequence {sequence.name!r}: no rows of any layer to be a summary")
    return chosen


def _take_rows(layer: int, own: Layer, tokens: tuple[int, int], model: Model, given: Sequence_[Array]) -> list[Rows]:
    """Bits of the rows of a layer, a stream each. Raises ShapeError, DtypeError, NonFiniteError."""
    first, end = tokens
    taken = take_streams(given, model, layer, own.streams, [first] * len(own.streams))
    if not 1 <= len(taken[0]) <= end - first:
        raise ShapeError(
            f"layer {layer}: {len(taken[0])} rows to stand for tokens {first} to {end - 1}, want 1 to {end - first}"
        )
    return taken
