"""What an error of a stream costs, by what dumps tell of it: metrics for training codes (kvcodec/dumps/extra.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.bulk.train_options import TrainOptions, Unit
from kvcodec.bulk.train_rows import query_metric
from kvcodec.dumps.dump import Dump
from kvcodec.dumps.extra import read_numbers
from kvcodec.errors import DumpError
from kvcodec.layout import StreamId

Metric = NDArray[np.float32] | None
_PLAIN = 0.2  # how much of the plain metric is in that of gradients
_SHARES = {StreamId.K: 1.0, StreamId.V: 2.0}  # so divided, a budget costs a model less than by second moments alone


def find_metrics(dumps: Sequence[Dump], units: Sequence[Unit], options: TrainOptions) -> list[Metric]:
    """The metric of each unit, float32 (d, d); None for the plain one. Raises DumpError, SpecError.

    Those of gradients are all divided by one number: errors of units can be compared, those of V counting twice.
    """
    if options.metric == "query":
        return [_attention_metric(dumps, unit, options) for unit in units]
    if options.metric != "gradient":
        return [None] * len(units)
    found = [gradient_metric(dumps, unit, unrotate=options.unrotates(unit)) for unit in units]
    found = [own * _SHARES[unit.uses[0][1]] for own, unit in zip(found, units, strict=True)]
    mean = float(np.mean([np.trace(own) / len(own) for own in found]))
    return [(own / mean).astype(np.float32) for own in found]


def _attention_metric(dumps: Sequence[Dump], unit: Unit, options: TrainOptions) -> Metric:
    layers = [layer for layer, _ in unit.uses]
    if unit.stream == StreamId.V:
        return output_metric(dumps, layers, options.ridge)
    unrotate = options.unrotates(unit)
    return query_metric(dumps, layers, options.ridge, unrotate=unrotate, rope_base=options.rope_base)


def output_metric(dumps: Sequence[Dump], layers: Sequence[int], ridge: float) -> Metric:
    """float32 (d, d) for V: what an error costs at the output projection, from o_cov.L of the dumps, as query_metric is
    for K. None if a layer has it in no dump. Raises DumpError.
    """
    found = []
    for layer in layers:
        moments = [own / np.trace(own) for own in _read_moments(dumps, "o_cov", layer, StreamId.V)]
        if not moments:
            return None
        found.append(np.mean(moments, axis=0))
    total = np.mean(found, axis=0)
    dim = len(total)
    return np.asarray((total + total.T) / 2 / np.trace(total) * dim + ridge * np.eye(dim), np.float32)


def gradient_metric(dumps: Sequence[Dump], unit: Unit, *, unrotate: bool) -> NDArray[np.float64]:
    """float64 (d, d): second moments of the loss's gradients, summed over heads and layers, averaged over the dumps
    that have them, and a fifth of the plain metric. Raises DumpError for a layer that no dump has them of.
    """
    total: NDArray[np.float64] | None = None
    for layer, stream in unit.uses:
        name = "v_grad" if stream == StreamId.V else "k_grad_pre" if unrotate else "k_grad"
        found = _read_moments(dumps, name, layer, stream)
        if not found:
            raise DumpError(
                f"{dumps[0].path}: no {name}.{layer} in it or any other: no gradients to weigh errors of layer "
                f"{layer} {stream.name} by (python -m tools.capture --gradients)"
            )
        own: NDArray[np.float64] = np.mean(found, axis=0)
        total = own if total is None else total + own
    assert total is not None
    dim = len(total)
    return np.asarray((total + total.T) / 2 + _PLAIN * np.trace(total) / dim * np.eye(dim))


def _read_moments(dumps: Sequence[Dump], name: str, layer: int, stream: StreamId) -> list[NDArray[np.float64]]:
    """Of the dumps that have a tensor, its sums over heads, (d, d), but zeros."""
    found = []
    for dump in dumps:
        _, heads, dim = dump.shape(layer, stream)
        moments = read_numbers(dump, f"{name}.{layer}", (heads, dim, dim))
        if moments is not None and np.trace(own := moments.sum(axis=0)) > 0:
            found.append(own)
    return found
