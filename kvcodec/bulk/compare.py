"""How far a log or a dump is from the dump that it came from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kvcodec.bulk.chunks import Progress, no_progress, token_chunks
from kvcodec.bulk.comparison import Comparison, LayerError
from kvcodec.bulk.sources import DumpRows, LogRows, Rows, open_rows
from kvcodec.dumps import open_dump
from kvcodec.dumps.dump import Dump
from kvcodec.errors import ShapeError
from kvcodec.measure.attention import AttentionError, attention_error
from kvcodec.measure.error import RowError, WorstToken

FilePath = str | os.PathLike[str]
_WORK = 8  # a chunk's 16-bit rows are compared in float64, two copies of them


def compare(
    dump: FilePath,
    other: FilePath,
    *,
    sequence: str | None = None,
    mapping: Sequence[str] = (),
    other_mapping: Sequence[str] = (),
    kv_heads: int | None = None,
    head_dim: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Errors of `other`, a log or a dump (its content tells), against the original rows in `dump`.

    Of each layer's K and V the relative error, signal-to-noise ratio, worst channel and worst token; where `dump` has
    queries, the errors of logits and attention outputs. A log's rows are those that decoding it would write; of a layer
    whose sliding window went on, those that it still has, and the queries that see no others.
    sequence: of a log, the only one by default. mapping, kv_heads, head_dim: for reading `dump`, as open_dump takes
    them; other_mapping: for `other`. progress: called with (done, total) in tokens times layers.
    Memory: about 32 MiB; of a layer with queries all its rows, twice.

    Raises ShapeError if tokens, layers or shapes differ, and what open_dump and kvcodec.open raise.
    """
    tell = progress or no_progress
    with (
        open_dump(dump, mapping=mapping, kv_heads=kv_heads, head_dim=head_dim) as original,
        open_rows(Path(other), sequence=sequence, mapping=other_mapping) as rows,
    ):
        source = DumpRows(original)
        _check_alike(source, rows, str(other))
        totals = RowError(None, "k"), RowError(None, "v")
        layers = []
        for n, layer in enumerate(source.layers):

            def tell_layer(done: int, n: int = n) -> None:
                tell(n * source.tokens + done, len(source.layers) * source.tokens)

            k, v = _compare_rows(source, rows, layer, totals, tell_layer)
            layers.append(LayerError(layer, k, v, _compare_attention(original, source, rows, layer)))
        name = rows.sequence.name if isinstance(rows, LogRows) else None
    return Comparison(str(dump), str(other), name, source.tokens, tuple(layers), *totals)


def _check_alike(source: Rows, other: Rows, path: str) -> None:
    if other.tokens != source.tokens:
        raise ShapeError(f"{path}: {other.tokens} tokens, want {source.tokens}, as many as the dump has")
    if other.layers != source.layers:
        mine, theirs = (",".join(map(str, rows.layers)) for rows in (source, other))
        raise ShapeError(f"{path}: layers {theirs}, want {mine}, those that the dump has")
    for layer in source.layers:
        if other.shape(layer) != source.shape(layer):
            what = f"(heads, dim) of K and V are {other.shape(layer)}"
            raise ShapeError(f"{path}: layer {layer}: {what}, want {source.shape(layer)}")


class _RowErrorFrom(RowError):
    """Errors of rows of which the first is not token 0."""

    def __init__(self, layer: int, stream: str, first: int) -> None:
        super().__init__(layer, stream)
        self._first = first

    @property
    def worst_token(self) -> WorstToken | None:
        worst = super().worst_token
        return worst and worst._replace(token=self._first + worst.token)


def _compare_rows(
    source: Rows, other: Rows, layer: int, totals: tuple[RowError, RowError], tell: Callable[[int], None]
) -> tuple[RowError, RowError]:
    held = other.held(layer)
    errors = _RowErrorFrom(layer, "k", held.start), _RowErrorFrom(layer, "v", held.start)
    token_bytes = sum(2 * heads * dim for heads, dim in source.shape(layer))
    for at, end in token_chunks(len(held), _WORK * token_bytes):
        start, stop = held.start + at, held.start + end
        pairs = zip(source.read(layer, start, stop), other.read(layer, start, stop), strict=True)
        for error, total, (original, decoded) in zip(errors, totals, pairs, strict=True):
            error.add(original, decoded)
            total.add(original.reshape(-1, 1, 1), decoded.reshape(-1, 1, 1))
        tell(stop)
    return errors


def _compare_attention(dump: Dump, source: Rows, other: Rows, layer: int) -> AttentionError | None:
    """Of the queries that see no token which `other` has forgotten; None if there are none."""
    queries = dump.queries(layer)
    if queries is None:
        return None
    held = other.held(layer)
    seen = queries.positions - (queries.window or source.tokens) >= held.start - 1 if held.start else slice(None)
    q, positions = queries.q[:, seen], queries.positions[seen] - held.start
    if not len(positions) and len(queries.positions):
        return None
    k, v = source.read(layer, held.start, held.stop)
    k_hat, v_hat = other.read(layer, held.start, held.stop)
    try:
        return attention_error(q, positions, queries.scale, queries.window, k, v, k_hat, v_hat)
    except ShapeError as error:
        raise ShapeError(f"{dump.path}: queries of layer {layer}: {error}") from None
