"""What values over a dictionary do with vectors: tokens into buckets, buckets into outputs. See _vectors.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._lookup import I8, I16, I32, I64, ROWS, offset, plus
from kvcodec.kernels._products import add_pairs
from kvcodec.kernels._vectors import (
    I16X16,
    INT,
    LONG,
    Longs,
    all_of,
    broadcast,
    call,
    compiled,
    load,
    memory,
    pick,
    store,
)

_cgutils: Any = cgutils
_I8X16, _I16X8, _I32X4, _I32X8 = (ir.VectorType(t, n) for t, n in ((I8, 16), (I16, 8), (I32, 4), (I32, 8)))


# -- tokens into buckets ---------------------------------------------------------------------------------------------


def _add_codes(
    indices: Any, codes: Any, terms: Any, weights: Any, first: Any, last: Any, buckets: Any, heads: int
) -> None:
    kind = np.int8 if heads == 1 else np.int32
    own = memory(indices, terms * ROWS, np.uint16).reshape(terms, ROWS)[:, first:last]
    code = memory(codes, terms * ROWS, kind).reshape(terms, ROWS)[:, first:last].astype(np.int64)
    weight = memory(weights, heads * ROWS, np.int32).reshape(heads, ROWS)[:, first:last].T
    out = memory(buckets, heads * (int(own.max()) + 1), np.int64).reshape(-1, heads)
    np.add.at(out, own, code[..., None] * weight)


def add_codes(indices: Any, codes: Any, terms: Any, weights: Any, first: Any, last: Any, buckets: Any) -> None:
    """Add to the int64 of each token's atoms, of one head, its coefficients times its weight.

    indices: uint16 (terms, 64). codes: int8 (terms, 64). weights: int32 (heads, 64). buckets: int64 (atoms, heads).
    Tokens from `first` to `last`, multiples of 4.
    """
    _add_codes(indices, codes, terms, weights, first, last, buckets, 1)


def add_codes_of_two(indices: Any, codes: Any, terms: Any, weights: Any, first: Any, last: Any, buckets: Any) -> None:
    """`add_codes` of two heads, with codes of int32."""
    _add_codes(indices, codes, terms, weights, first, last, buckets, 2)


def add_codes_of_four(indices: Any, codes: Any, terms: Any, weights: Any, first: Any, last: Any, buckets: Any) -> None:
    """`add_codes` of four heads, with codes of int32."""
    _add_codes(indices, codes, terms, weights, first, last, buckets, 4)


def _turn_weights(b: Any, weights: Any, heads: int) -> list[Any]:
    """Of four tokens the weights of each head, int64."""
    rows = [load(b, offset(b, weights, 4 * ROWS * h), _I32X4) for h in range(heads)]
    if heads == 1:
        return [b.sext(b.extract_element(rows[0], ir.Constant(I32, n)), I64) for n in range(4)]
    wide = ir.VectorType(I64, heads)
    if heads == 2:
        return [b.sext(pick(b, rows[0], rows[1], [n, n + 4]), wide) for n in range(4)]
    halves = [pick(b, rows[n], rows[n + 1], list(range(8))) for n in (0, 2)]
    return [b.sext(pick(b, halves[0], halves[1], [n + 4 * h for h in range(4)]), wide) for n in range(4)]


def _register(twin: Callable[..., None], heads: int) -> None:
    """Four tokens at a time, one atom of each after the other: atoms of one token never wait for each other."""
    one = heads == 1
    narrow, wide = (I32, I64) if one else (ir.VectorType(n, heads) for n in (I32, I64))
    size = 1 if one else 4  # bytes of a code

    @compiled(twin, types.void, INT, INT, INT, INT, INT, INT, INT)
    def _(b: Any, indices: Any, codes: Any, terms: Any, weights: Any, first: Any, last: Any, buckets: Any) -> None:
        two = ir.Constant(first.type, 2)
        with cgutils.for_range(b, b.lshr(last, two), start=b.lshr(first, two)) as group:
            own, coded = plus(b, indices, group.index, 8), plus(b, codes, group.index, 4 * size)
            weight = _turn_weights(b, plus(b, weights, group.index, 16), heads)
            with cgutils.for_range(b, terms) as term:
                here, code = plus(b, own, term.index, 2 * ROWS), plus(b, coded, term.index, ROWS * size)
                for n in range(4):
                    index = b.zext(load(b, offset(b, here, 2 * n), I16), I64)
                    number = load(b, offset(b, code, n * size), I8 if one else I32)
                    number = b.sext(number if one else broadcast(b, number, narrow), wide)
                    place = plus(b, buckets, index, 8 * heads)
                    store(b, b.add(load(b, place, wide), b.mul(number, weight[n])), place)


for _twin, _heads in ((add_codes, 1), (add_codes_of_two, 2), (add_codes_of_four, 4)):
    _register(_twin, _heads)


# -- buckets into outputs ----------------------------------------------------------------------------------------------


def load_every(address: Any, step: Any) -> Any:
    """Longs of 8 int64 `step` bytes apart."""
    return np.array([memory(address + n * step, 1, np.int64)[0] for n in range(8)])


@compiled(load_every, Longs, INT, INT)
def _(b: Any, address: Any, step: Any) -> Any:
    longs = ir.Constant(Longs.ir, ir.Undefined)
    for n in range(8):
        place = b.add(address, b.mul(step, ir.Constant(step.type, n)))
        longs = b.insert_element(longs, load(b, place, I64), ir.Constant(I32, n))
    return longs


def splat_long(number: Any) -> Any:
    """Longs that all hold one int64."""
    return np.full(8, number, np.int64)


@compiled(splat_long, Longs, LONG)
def _(b: Any, number: Any) -> Any:
    return broadcast(b, number, Longs.ir)


def join_longs(longs: Any) -> Any:
    """The 8 numbers, or'd."""
    return np.int64(np.bitwise_or.reduce(longs))


@compiled(join_longs, LONG, Longs)
def _(b: Any, longs: Any) -> Any:
    return call(b, "llvm.vector.reduce.or.v8i64", I64, longs)


def store_long_halves(longs: Any, address: Any) -> None:
    """8 int64 that fit an int16."""
    memory(address, 8, np.int16)[:] = longs.astype(np.int16)


@compiled(store_long_halves, types.void, Longs, INT)
def _(b: Any, longs: Any, address: Any) -> None:
    store(b, b.trunc(longs, _I16X8), address)


def weigh_atoms_twice(atoms: Any, stride: Any, count: Any, high: Any, low: Any, to: Any) -> None:
    """32 int32: 16 channels, int8, of `count` atoms, an even number, times an int16 each: first the high ones."""
    rows = np.stack([memory(atoms + n * stride, 16, np.int8).astype(np.int32) for n in range(count)])
    both = [memory(address, count, np.int16).astype(np.int32) for address in (high, low)]
    memory(to, 32, np.int32)[:] = np.concatenate([(rows * own[:, None]).sum(axis=0, dtype=np.int32) for own in both])


@compiled(weigh_atoms_twice, types.void, INT, INT, INT, INT, INT, INT)
def _(b: Any, atoms: Any, stride: Any, count: Any, high: Any, low: Any, to: Any) -> None:
    """Channels 0 to 3 and 8 to 11 are added apart from the others: as vpunpck leaves them."""
    one = ir.Constant(count.type, 1)
    sums = [_cgutils.alloca_once_value(b, all_of(_I32X8, 0)) for _ in range(4)]
    orders = [
        [n + 8 * half + 16 * k for half in range(2) for n in range(at, at + 4) for k in range(2)] for at in (0, 4)
    ]
    with cgutils.for_range(b, b.lshr(count, one)) as loop:
        here = b.add(atoms, b.mul(loop.index, b.shl(stride, one)))
        rows = [b.sext(load(b, address, _I8X16), I16X16) for address in (here, b.add(here, stride))]
        woven = [pick(b, rows[0], rows[1], order) for order in orders]
        for k, halves in enumerate((high, low)):
            pair = b.bitcast(broadcast(b, load(b, plus(b, halves, loop.index, 4), I32), _I32X8), I16X16)
            for n in range(2):
                place = sums[2 * k + n]
                b.store(b.add(b.load(place), add_pairs(b, woven[n], pair)), place)
    order = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
    for k in range(2):
        total = pick(b, b.load(sums[2 * k]), b.load(sums[2 * k + 1]), order)
        store(b, total, offset(b, to, 64 * k))
