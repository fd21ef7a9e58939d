"""What scoring raw rows does with four of them at a time. See _vectors.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._lookup import add_four, plus
from kvcodec.kernels._products import add_pairs
from kvcodec.kernels._vectors import I16X16, INT, all_of, compiled, load, memory, store

_cgutils: Any = cgutils
_I32X8, _I64X4 = ir.VectorType(ir.IntType(32), 8), ir.VectorType(ir.IntType(64), 4)


def dot_rows(rows: Any, stride: Any, weights: Any, count: Any, totals: Any) -> None:
    """4 int64: the products of `count` int16, a multiple of 16, of four rows `stride` bytes apart with int16 weights.

    The products with the weights' high bytes fit an int32 in all, and so do those with their low ones.
    """
    own = memory(weights, count, np.int16).astype(np.int64)
    for n in range(4):
        memory(totals, 4, np.int64)[n] = (memory(rows + n * stride, count, np.int16) * own).sum()


@compiled(dot_rows, types.void, INT, INT, INT, INT, INT)
def _(b: Any, rows: Any, stride: Any, weights: Any, count: Any, totals: Any) -> None:
    places = [plus(b, rows, ir.Constant(stride.type, 0), 1)]
    for _ in range(3):
        places.append(b.add(places[-1], stride))
    sums = [[_cgutils.alloca_once_value(b, all_of(_I32X8, 0)) for _ in places] for _ in range(2)]
    with cgutils.for_range(b, b.lshr(count, ir.Constant(count.type, 4))) as loop:
        own = load(b, plus(b, weights, loop.index, 32), I16X16)
        halves = b.ashr(own, all_of(I16X16, 8)), b.and_(own, all_of(I16X16, 255))
        for n, row in enumerate(places):
            numbers = load(b, plus(b, row, loop.index, 32), I16X16)
            for half, part in enumerate(halves):
                b.store(b.add(b.load(sums[half][n]), add_pairs(b, numbers, part)), sums[half][n])
    high, low = (b.sext(add_four(b, *(b.load(place) for place in own)), _I64X4) for own in sums)
    store(b, b.add(b.shl(high, all_of(_I64X4, 8)), low), totals)
