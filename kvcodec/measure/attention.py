"""What coding does to attention: errors of logits and outputs, of K and V each and of both.

The error of rows misranks codecs; this is the figure to judge by. Attention is causal, softmax(scale q·k) v,
with grouped-query heads and sliding windows, all in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import ShapeError, SpecError
from kvcodec.measure.error import as_float64, finite_or_none, relative_error

_LOGITS_MAX = 1 << 20  # of one block of queries: 8 MiB of float64 an array
_KINDS = ("k_only", "v_only", "both")


@dataclass(frozen=True)
class OutputError:
    """Relative errors of attention outputs.

    relative: Frobenius, over all queries. worst_head, worst_position: the query with the largest relative error,
    by query head and token number. worst_relative: that error.
    """

    relative: float
    worst_head: int
    worst_position: int
    worst_relative: float


@dataclass(frozen=True)
class AttentionError:
    """Errors of one layer's attention.

    queries: how many, over all heads. logits: how many, each a query's with a token that it sees. logit_max: largest
    absolute difference of a logit, logit_rms: root of the mean square. k_only, v_only, both: outputs with k_hat and v,
    k and v_hat, k_hat and v_hat, compared with those of k and v.
    """

    queries: int
    logits: int
    logit_max: float
    logit_rms: float
    k_only: OutputError
    v_only: OutputError
    both: OutputError

    def as_dict(self) -> dict[str, Any]:
        """For JSON: an infinite relative error is None."""
        result = asdict(self)
        for kind in _KINDS:
            result[kind] |= {key: finite_or_none(result[kind][key]) for key in ("relative", "worst_relative")}
        return result


class _Caches(NamedTuple):
    """One KV head's rows, (tokens, dim) float64."""

    k: NDArray[np.float64]
    v: NDArray[np.float64]
    k_hat: NDArray[np.float64]
    v_hat: NDArray[np.float64]


class _Sums:
    """What has been seen of the queries so far. squares: of the error of each kind's outputs, by query."""

    def __init__(self, q_heads: int, positions: int) -> None:
        self.logits = 0
        self.logit_max = 0.0
        self.logit_square = 0.0
        self.squares = {kind: np.zeros((q_heads, positions)) for kind in _KINDS}
        self.output_square = np.zeros((q_heads, positions))


def attention_error(
    q: NDArray[Any],
    positions: NDArray[Any],
    scale: float,
    window: int | None,
    k: NDArray[Any],
    v: NDArray[Any],
    k_hat: NDArray[Any],
    v_hat: NDArray[Any],
) -> AttentionError:
    """Errors of one layer's attention when k_hat, v_hat stand for k, v.

    q: (q_heads, positions, dim); positions: (positions,) integers, the token each query stands at; it sees tokens
    t <= position, and with a window only t > position - window. k, k_hat: (tokens, kv_heads, dim); v, v_hat:
    (tokens, kv_heads, v_dim); bfloat16, float16, float32 or float64 all. q_heads is m * kv_heads, and query head i
    uses KV head i // m. Memory: a float64 copy of one KV head, and blocks of queries.

    Raises ShapeError for shapes that do not fit and positions beyond the tokens, DtypeError, NonFiniteError, and
    SpecError for a scale or window that is not positive.
    """
    _check_arguments(q, positions, scale, window, k, v, k_hat, v_hat)
    wide_q = as_float64(q.transpose(1, 0, 2), "q").transpose(1, 0, 2) * scale
    sums = _Sums(*q.shape[:2])
    per_kv_head = q.shape[0] // k.shape[1]
    for kv_head in range(k.shape[1]):
        caches = _Caches(
            *(_one_head(a, kv_head, n) for n, a in (("k", k), ("v", v), ("k_hat", k_hat), ("v_hat", v_hat)))
        )
        for q_head in range(kv_head * per_kv_head, (kv_head + 1) * per_kv_head):
            for block in _blocks(positions, window):
                _add_block(
                    sums, q_head, block, wide_q[q_head, block], positions[block].astype(np.int64), window, caches
                )
    return _result(sums, positions)


def _one_head(array: NDArray[Any], head: int, name: str) -> NDArray[np.float64]:
    return as_float64(array[:, head : head + 1], name, first_head=head)[:, 0]


def _blocks(positions: NDArray[Any], window: int | None) -> Iterator[NDArray[np.int64]]:
    """Indices of queries, block by block in the order of their positions, so that a block sees few tokens."""
    order = np.argsort(positions, kind="stable")
    start = 0
    while start < len(order):
        first = int(positions[order[start]])
        low = 0 if window is None else max(0, first - window + 1)
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * (int(positions[order[stop]]) + 1 - low) <= _LOGITS_MAX:
            stop += 1
        yield order[start:stop]
        start = stop


def _add_block(
    sums: _Sums,
    q_head: int,
    block: NDArray[np.int64],
    q: NDArray[np.float64],
    positions: NDArray[np.int64],
    window: int | None,
    caches: _Caches,
) -> None:
    """Adds queries `block` of one head; q (n, dim) is scaled already, positions (n,) ascend."""
    low = 0 if window is None else max(0, int(positions[0]) - window + 1)
    seen = slice(low, int(positions[-1]) + 1)
    tokens = np.arange(seen.start, seen.stop)
    visible = tokens <= positions[:, None]
    if window is not None:
        visible &= tokens > positions[:, None] - window
    k, v, k_hat, v_hat = (rows[seen] for rows in caches)
    logits, logits_hat = q @ k.T, q @ k_hat.T
    difference = np.where(visible, logits_hat - logits, 0.0)
    sums.logits += int(np.count_nonzero(visible))
    sums.logit_max = max(sums.logit_max, float(np.abs(difference).max()))
    sums.logit_square += float(np.square(difference).sum())
    weights, weights_hat = _softmax(logits, visible), _softmax(logits_hat, visible)
    output = weights @ v
    sums.output_square[q_head, block] = np.square(output).sum(axis=1)
    for kind, other in zip(_KINDS, (weights_hat @ v, weights @ v_hat, weights_hat @ v_hat), strict=True):
        sums.squares[kind][q_head, block] = np.square(other - output).sum(axis=1)


def _softmax(logits: NDArray[np.float64], visible: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Row by row over the visible tokens, of which each row has one at least: its own."""
    hidden = np.where(visible, logits, -np.inf)
    weights = np.exp(hidden - hidden.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(weights, np.float64)


def _result(sums: _Sums, positions: NDArray[Any]) -> AttentionError:
    outputs = {kind: _output_error(sums.squares[kind], sums.output_square, positions) for kind in _KINDS}
    rms = math.sqrt(sums.logit_square / sums.logits)
    return AttentionError(sums.output_square.size, sums.logits, sums.logit_max, rms, **outputs)


def _output_error(error: NDArray[np.float64], original: NDArray[np.float64], positions: NDArray[Any]) -> OutputError:
    relative = np.vectorize(relative_error, otypes=[np.float64])(error, original)
    head, index = divmod(int(np.argmax(relative)), error.shape[1])
    total = relative_error(float(error.sum()), float(original.sum()))
    return OutputError(total, head, int(positions[index]), float(relative[head, index]))


def _check_arguments(
    q: NDArray[Any],
    positions: NDArray[Any],
    scale: float,
    window: int | None,
    k: NDArray[Any],
    v: NDArray[Any],
    k_hat: NDArray[Any],
    v_hat: NDArray[Any],
) -> None:
    if not (math.isfinite(scale) and scale > 0):
        raise SpecError(f"scale is {scale}, want a positive number")
    if window is not None and window < 1:
        raise SpecError(f"window is {window}, want 1 token at least")
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array.ndim != 3 or 0 in array.shape:
            raise ShapeError(f"{name}: shape is {array.shape}, want three sizes of 1 at least")
    if v.shape[:2] != k.shape[:2]:
        raise ShapeError(f"v: (tokens, heads) is {v.shape[:2]}, but k has {k.shape[:2]}")
    for name, hat, array in (("k_hat", k_hat, k), ("v_hat", v_hat, v)):
        if hat.shape != array.shape:
            raise ShapeError(f"{name}: shape is {hat.shape}, want {array.shape}")
    if q.shape[2] != k.shape[2] or q.shape[0] % k.shape[1]:
        raise ShapeError(f"q: shape is {q.shape}, want (a multiple of {k.shape[1]} heads, positions, {k.shape[2]})")
    if positions.shape != q.shape[1:2] or positions.dtype.kind not in "iu":
        raise ShapeError(f"positions: {positions.dtype} {positions.shape}, want integers {q.shape[1:2]}")
    for index in (int(np.argmin(positions)), int(np.argmax(positions))):
        if not 0 <= int(positions[index]) < k.shape[0]:
            raise ShapeError(f"positions: {int(positions[index])} at {index}, but there are {k.shape[0]} tokens")
