"""Queries as integers: the only floats that attention begins with, rounded on the host."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import DtypeError, NonFiniteError, ShapeError, SpecError
from kvcodec.layout import TILE_LANES, align

QUERY_BITS = (8, 16)
_NUMBER_BITS = 22
_FACTOR_BITS = 31
_FLOATS = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)


class Queries(NamedTuple):
    """numbers: int32 (queries, heads, channels), at most 2**22, each stream's channels padded to a multiple of 16.
    shifts int64, factors int32, (queries, heads): a logit in log2 units is (numbers . key) * factor * 2**shift.
    """

    numbers: NDArray[np.int32]
    shifts: NDArray[np.int64]
    factors: NDArray[np.int32]


def take_queries(q: Any, dims: tuple[int, ...], kv_heads: int) -> NDArray[np.float64]:
    """q (queries, heads, channels) as float64; a multiple of kv_heads heads, and the channels of all streams.

    Raises ShapeError, DtypeError, NonFiniteError.
    """
    if not isinstance(q, np.ndarray) or q.dtype not in _FLOATS:
        got = q.dtype if isinstance(q, np.ndarray) else type(q).__name__
        raise DtypeError(f"q: got {got}, want an array of float32, bfloat16, float16 or float64")
    if q.ndim != 3 or q.shape[2] != sum(dims) or not q.shape[1] or q.shape[1] % kv_heads:
        wanted = f"a multiple of {kv_heads} heads" if kv_heads > 1 else "heads"
        raise ShapeError(f"q: shape is {q.shape[1:]}, want ({wanted}, {sum(dims)})")
    wide: NDArray[np.float64] = q.astype(np.float64)
    if not np.isfinite(wide).all():
        _, head, channel = (int(i) for i in np.argwhere(~np.isfinite(wide))[0])
        raise NonFiniteError(None, "q", 0, head, channel)
    return wide


def quantize_queries(q: NDArray[np.float64], dims: tuple[int, ...], scale: float) -> Queries:
    """Integers for q (queries, heads, channels), the channels of streams of `dims` one behind the other.

    scale: of the logits, in nats, above 0. Raises SpecError.
    """
    wide = float(scale)
    if not (wide > 0 and math.isfinite(wide * math.log2(math.e))):
        raise SpecError(f"scale is {scale}, want a finite number above 0")
    _, exponents = np.frexp(np.abs(q).max(axis=2))  # at most 2**exponent
    up = np.where(q.any(axis=2), _NUMBER_BITS - exponents, 0).astype(np.int64)
    rounded = np.rint(np.ldexp(q, up[..., None])).astype(np.int32)
    numbers = np.zeros((*q.shape[:2], sum(align(d, TILE_LANES) for d in dims)), np.int32)
    source = target = 0
    for dim in dims:
        numbers[..., target : target + dim] = rounded[..., source : source + dim]
        source, target = source + dim, target + align(dim, TILE_LANES)
    mantissa, exponent = math.frexp(wide * math.log2(math.e))
    factor = min(round(mantissa * 2**_FACTOR_BITS), 2**_FACTOR_BITS - 1)
    return Queries(numbers, exponent - _FACTOR_BITS - up, np.full(up.shape, factor, np.int32))
