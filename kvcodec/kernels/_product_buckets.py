"""What values in product codes do with vectors: weights into buckets, buckets into outputs. See _vectors.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._lookup import I8, I16, I32, I64, QUAD, ROWS, add_four, offset, plus
from kvcodec.kernels._product_vectors import CENTROIDS, load_bytes
from kvcodec.kernels._products import add_pairs
from kvcodec.kernels._vectors import (
    I16X16,
    INT,
    Lanes,
    Longs,
    all_of,
    broadcast,
    compiled,
    load,
    memory,
    pick,
    store,
)

_cgutils: Any = cgutils
LOW_BITS = 15  # of a bucket's low part, when it is multiplied
_I8X16, _I16X8, _I32X4, _I32X8 = (ir.VectorType(t, n) for t, n in ((I8, 16), (I16, 8), (I32, 4), (I32, 8)))


def _add_weights(codes: Any, groups: Any, weights: Any, first: Any, last: Any, buckets: Any, heads: int) -> None:
    own = memory(codes, groups * ROWS, np.uint8).reshape(groups, ROWS)[:, first:last]
    weight = memory(weights, heads * ROWS, np.int32).reshape(heads, ROWS)[:, first:last].T
    out = memory(buckets, groups * CENTROIDS * heads, np.int32).reshape(groups, CENTROIDS, heads)
    np.add.at(out, (np.arange(groups)[:, None], own), weight)


def add_weights(codes: Any, groups: Any, weights: Any, first: Any, last: Any, buckets: Any) -> None:
    """Add the weights of tokens `first` to `last`, multiples of 4, to the buckets of their codes, of one head.

    codes: uint8 (groups, 64). weights: int32 (heads, 64). buckets: int32 (groups, 256, heads).
    """
    _add_weights(codes, groups, weights, first, last, buckets, 1)


def add_weights_of_two(codes: Any, groups: Any, weights: Any, first: Any, last: Any, buckets: Any) -> None:
    """`add_weights` of two heads."""
    _add_weights(codes, groups, weights, first, last, buckets, 2)


def add_weights_of_four(codes: Any, groups: Any, weights: Any, first: Any, last: Any, buckets: Any) -> None:
    """`add_weights` of four heads."""
    _add_weights(codes, groups, weights, first, last, buckets, QUAD)


def _turn_weights(b: Any, weights: Any, heads: int) -> list[Any]:
    """Of four tokens the weights of each head."""
    rows = [load(b, offset(b, weights, 4 * ROWS * h), _I32X4) for h in range(heads)]
    if heads == 1:
        return [b.extract_element(rows[0], ir.Constant(I32, n)) for n in range(4)]
    if heads == 2:
        return [pick(b, rows[0], rows[1], [n, n + 4]) for n in range(4)]
    halves = [pick(b, rows[n], rows[n + 1], list(range(8))) for n in (0, 2)]
    return [pick(b, halves[0], halves[1], [n + 4 * h for h in range(4)]) for n in range(4)]


def _register_weights(twin: Callable[..., None], heads: int) -> None:
    """Four tokens at a time, a group after the other."""
    kind, size = I32 if heads == 1 else ir.VectorType(I32, heads), 4 * heads

    @compiled(twin, types.void, INT, INT, INT, INT, INT, INT)
    def _(b: Any, codes: Any, groups: Any, weights: Any, first: Any, last: Any, buckets: Any) -> None:
        two = ir.Constant(first.type, 2)
        with cgutils.for_range(b, b.lshr(last, two), start=b.lshr(first, two)) as four:
            own, weight = plus(b, codes, four.index, 4), _turn_weights(b, plus(b, weights, four.index, 16), heads)
            with cgutils.for_range(b, groups) as group:
                here, held = plus(b, own, group.index, ROWS), plus(b, buckets, group.index, CENTROIDS * size)
                for n, code in enumerate(load_bytes(b, here, 4)):
                    place = plus(b, held, code, size)
                    store(b, b.add(load(b, place, kind), weight[n]), place)


for _adder, _count in ((add_weights, 1), (add_weights_of_two, 2), (add_weights_of_four, QUAD)):
    _register_weights(_adder, _count)


def load_words_every(address: Any, step: Any) -> Any:
    """Lanes of 16 int32 `step` bytes apart."""
    return np.array([memory(address + n * step, 1, np.int32)[0] for n in range(16)])


@compiled(load_words_every, Lanes, INT, INT)
def _(b: Any, address: Any, step: Any) -> Any:
    lanes = ir.Constant(Lanes.ir, ir.Undefined)
    for n in range(16):
        place = b.add(address, b.mul(step, ir.Constant(step.type, n)))
        lanes = b.insert_element(lanes, load(b, place, I32), ir.Constant(I32, n))
    return lanes


def dot_books(rows: Any, halves: Any, to: Any) -> None:
    """2 int64: int8 (2, 256) times numbers, of which there are high parts and low ones of 15 bits: int16 (2, 256)."""
    own, (high, low) = memory(rows, 2 * CENTROIDS, np.int8), memory(halves, 2 * CENTROIDS, np.int16).reshape(2, -1)
    numbers = (high.astype(np.int64) << LOW_BITS) + low
    memory(to, 2, np.int64)[:] = own.reshape(2, CENTROIDS).astype(np.int64) @ numbers


@compiled(dot_books, types.void, INT, INT, INT)
def _(b: Any, rows: Any, halves: Any, to: Any) -> None:
    sums = [_cgutils.alloca_once_value(b, all_of(_I32X8, 0)) for _ in range(4)]
    with cgutils.for_range(b, ir.Constant(rows.type, CENTROIDS // 16)) as loop:
        here, numbers = plus(b, rows, loop.index, 16), plus(b, halves, loop.index, 32)
        own = [b.sext(load(b, offset(b, here, n), _I8X16), I16X16) for n in (0, CENTROIDS)]
        for n, place in enumerate(sums):
            half = load(b, offset(b, numbers, n // 2 * 2 * CENTROIDS), I16X16)
            b.store(b.add(b.load(place), add_pairs(b, own[n % 2], half)), place)
    four = b.sext(add_four(b, *(b.load(place) for place in sums)), ir.VectorType(I64, 4))
    high, low = pick(b, four, four, [0, 1]), pick(b, four, four, [2, 3])
    store(b, b.add(b.shl(high, all_of(high.type, LOW_BITS)), low), to)


def add_basis(rows: Any, stride: Any, numbers: Any, count: Any, to: Any) -> None:
    """16 int64: as many channels, int16, of `count` rows `stride` bytes apart, each times its number, int32."""
    own = np.stack([memory(rows + n * stride, 16, np.int16).astype(np.int64) for n in range(count)])
    memory(to, 16, np.int64)[:] = (own * memory(numbers, count, np.int32)[:, None]).sum(axis=0)


@compiled(add_basis, types.void, INT, INT, INT, INT, INT)
def _(b: Any, rows: Any, stride: Any, numbers: Any, count: Any, to: Any) -> None:
    sums = [_cgutils.alloca_once_value(b, all_of(Longs.ir, 0)) for _ in range(2)]
    with cgutils.for_range(b, count) as loop:
        here = b.add(rows, b.mul(loop.index, stride))
        number = broadcast(b, b.sext(load(b, plus(b, numbers, loop.index, 4), I32), I64), Longs.ir)
        for n, place in enumerate(sums):
            row = b.sext(load(b, offset(b, here, 16 * n), _I16X8), Longs.ir)
            b.store(b.add(b.load(place), b.mul(row, number)), place)
    for n, place in enumerate(sums):
        store(b, b.load(place), offset(b, to, 64 * n))
