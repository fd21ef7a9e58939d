"""What attention over dictionaries does with vectors: tables of products and sums by atom. See _vectors.py.

Query heads go by fours, which share a KV head's indices: of each atom an entry holds four products, int16, and looking
up two atoms of a token is one multiplication for four heads. No SIMD level has a better way on its own: entries are
loaded one by one, which takes no longer than what processors call a gather.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._products import add_pairs
from kvcodec.kernels._vectors import (
    HAS_AVX2,
    I16X16,
    I64X8,
    INT,
    LEVEL,
    WORD,
    Lanes,
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
QUAD = 4  # heads of an entry
ROWS = 64  # tokens of a block
I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_I16X4, _I16X8, _I32X4, _I32X8 = (ir.VectorType(t, n) for t, n in ((I16, 4), (I16, 8), (I32, 4), (I32, 8)))
_I8X16, _I8X64, _I16X64, _I32X64 = (ir.VectorType(t, n) for t, n in ((I8, 16), (I8, 64), (I16, 64), (I32, 64)))


def plus(b: Any, address: Any, index: Any, size: int) -> Any:
    """An address and `index` things of so many bytes."""
    return b.add(address, b.mul(index, ir.Constant(index.type, size)))


def offset(b: Any, address: Any, count: int) -> Any:
    """An address and so many bytes."""
    return b.add(address, ir.Constant(address.type, count)) if count else address


# -- indices and coefficients of a block of 64 tokens ----------------------------------------------------------------


def copy_indices(source: Any, last: Any, to: Any) -> None:
    """64 uint16, each at most `last`: the map may change under a reader."""
    memory(to, ROWS, np.uint16)[:] = np.minimum(memory(source, ROWS, np.uint16), last)


@compiled(copy_indices, types.void, INT, WORD, INT)
def _(b: Any, source: Any, last: Any, to: Any) -> None:
    indices, most = load(b, source, _I16X64), broadcast(b, b.trunc(last, I16), _I16X64)
    store(b, b.select(b.icmp_unsigned("<", indices, most), indices, most), to)


def store_pairs(one: Any, two: Any, both: Any, to: Any) -> None:
    """64 int32: the low half an int8 of the first plane, the high one that of the second, or 0 unless `both`."""
    pairs = memory(to, 2 * ROWS, np.int16).reshape(ROWS, 2)
    pairs[:, 0] = memory(one, ROWS, np.int8)
    pairs[:, 1] = memory(two, ROWS, np.int8) if both else 0


@compiled(store_pairs, types.void, INT, INT, types.boolean, INT)
def _(b: Any, one: Any, two: Any, both: Any, to: Any) -> None:
    first, second = load(b, one, _I8X64), load(b, two, _I8X64)
    second = b.select(both, second, all_of(_I8X64, 0))
    woven = pick(b, first, second, [n + ROWS * k for n in range(ROWS) for k in range(2)])
    store(b, b.sext(woven, ir.VectorType(I16, 2 * ROWS)), to)


def copy_codes(source: Any, to: Any) -> None:
    """64 int8."""
    memory(to, ROWS, np.int8)[:] = memory(source, ROWS, np.int8)


@compiled(copy_codes, types.void, INT, INT)
def _(b: Any, source: Any, to: Any) -> None:
    store(b, load(b, source, _I8X64), to)


def widen_codes(source: Any, to: Any) -> None:
    """64 int8 as int32."""
    memory(to, ROWS, np.int32)[:] = memory(source, ROWS, np.int8)


@compiled(widen_codes, types.void, INT, INT)
def _(b: Any, source: Any, to: Any) -> None:
    store(b, b.sext(load(b, source, _I8X64), _I32X64), to)


# -- tables ----------------------------------------------------------------------------------------------------------


def dot_atoms(atoms: Any, stride: Any, weights: Any, count: Any, to: Any) -> None:
    """4 int32: int16 weights times as many channels, int8, of four atoms `stride` bytes apart."""
    own = memory(weights, count, np.int16).astype(np.int32)
    for n in range(QUAD):
        memory(to, QUAD, np.int32)[n] = (memory(atoms + n * stride, count, np.int8) * own).sum(dtype=np.int32)


@compiled(dot_atoms, types.void, INT, INT, INT, INT, INT)
def _(b: Any, atoms: Any, stride: Any, weights: Any, count: Any, to: Any) -> None:
    rows = [plus(b, atoms, ir.Constant(stride.type, 0), 1)]
    for _ in range(QUAD - 1):
        rows.append(b.add(rows[-1], stride))
    sums = [_cgutils.alloca_once_value(b, all_of(_I32X8, 0)) for _ in rows]
    with cgutils.for_range(b, b.lshr(count, ir.Constant(count.type, 4))) as loop:
        own = load(b, plus(b, weights, loop.index, 32), I16X16)
        for place, row in zip(sums, rows, strict=True):
            channels = b.sext(load(b, plus(b, row, loop.index, 16), _I8X16), I16X16)
            b.store(b.add(b.load(place), add_pairs(b, channels, own)), place)
    store(b, add_four(b, *(b.load(place) for place in sums)), to)


def add_four(b: Any, *sums: Any) -> Any:
    """4 int32: the sum of the lanes of each of four vectors of 8."""
    first, second = (_add_neighbours(b, *sums[n : n + 2]) for n in (0, 2))
    both = _add_neighbours(b, first, second)  # of each half of the lanes the four vectors
    return b.add(pick(b, both, both, [0, 1, 2, 3]), pick(b, both, both, [4, 5, 6, 7]))


def _add_neighbours(b: Any, one: Any, two: Any) -> Any:
    """vphaddd of 256 bits: sums of twos, those of each half of `one` before those of `two`."""
    even = [n + 4 * half for half in range(2) for n in (0, 2, 8, 10)]
    return b.add(pick(b, one, two, even), pick(b, one, two, [n + 1 for n in even]))


def store_heads(one: Any, two: Any, three: Any, four: Any, to: Any) -> None:
    """16 entries: numbers of four heads, which fit an int16."""
    memory(to, 16 * QUAD, np.int16).reshape(16, QUAD)[:] = np.stack([one, two, three, four], axis=1)


@compiled(store_heads, types.void, Lanes, Lanes, Lanes, Lanes, INT)
def _(b: Any, one: Any, two: Any, three: Any, four: Any, to: Any) -> None:
    low, high = all_of(Lanes.ir, 0xFFFF), all_of(Lanes.ir, 16)
    pairs = [b.or_(b.and_(even, low), b.shl(odd, high)) for even, odd in ((one, two), (three, four))]
    store(b, pick(b, pairs[0], pairs[1], [n + 16 * k for n in range(16) for k in range(2)]), to)


# -- scores ----------------------------------------------------------------------------------------------------------


def look_up(indices: Any, pairs: Any, count: Any, table: Any, first: Any, last: Any, sums: Any) -> None:
    """sums, int32 (4 heads, 64 tokens): coefficients of tokens `first` to `last`, multiples of 4, times entries.

    indices: uint16 (2 * count, 64). pairs: int32 (count, 64), see store_pairs. Behind a table 8 more bytes can be read.
    """
    own = memory(indices, 2 * count * ROWS, np.uint16).reshape(2 * count, ROWS)[:, first:last]
    codes = memory(pairs, 2 * count * ROWS, np.int16).reshape(count, ROWS, 2)[:, first:last].astype(np.int32)
    entries = memory(table, QUAD * (int(own.max()) + 1), np.int16).reshape(-1, QUAD)
    out = memory(sums, QUAD * ROWS, np.int32).reshape(QUAD, ROWS)
    out[:, first:last] = sum(
        codes[p, :, k] * entries[own[2 * p + k]].T for p in range(count) for k in range(2)
    )  # fmt: skip


def _multiply_pairs(b: Any, one: Any, two: Any) -> Any:
    """vpmaddwd of 128 bits."""
    if LEVEL != "portable" and HAS_AVX2:
        return call(b, "llvm.x86.sse2.pmadd.wd", _I32X4, one, two)
    half, one, two = all_of(_I32X4, 16), b.bitcast(one, _I32X4), b.bitcast(two, _I32X4)
    low = b.mul(b.ashr(b.shl(one, half), half), b.ashr(b.shl(two, half), half))
    return b.add(low, b.mul(b.ashr(one, half), b.ashr(two, half)))


@compiled(look_up, types.void, INT, INT, INT, INT, INT, INT, INT)
def _(b: Any, indices: Any, pairs: Any, count: Any, table: Any, first: Any, last: Any, sums: Any) -> None:
    two = ir.Constant(first.type, 2)
    totals = [_cgutils.alloca_once(b, _I32X4) for _ in range(4)]  # of four tokens
    with cgutils.for_range(b, b.lshr(last, two), start=b.lshr(first, two)) as group:
        for place in totals:
            b.store(all_of(_I32X4, 0), place)
        own, codes = plus(b, indices, group.index, 8), plus(b, pairs, group.index, 16)
        with cgutils.for_range(b, count) as pair:
            here, coded = plus(b, own, pair.index, 4 * ROWS), plus(b, codes, pair.index, 4 * ROWS)
            for n, place in enumerate(totals):
                entries = [
                    load(b, plus(b, table, b.zext(load(b, offset(b, here, 2 * n + at), I16), I64), 8), _I16X8)
                    for at in (0, 2 * ROWS)
                ]
                woven = pick(b, entries[0], entries[1], [0, 8, 1, 9, 2, 10, 3, 11])
                code = b.bitcast(broadcast(b, load(b, offset(b, coded, 4 * n), I32), _I32X4), _I16X8)
                b.store(b.add(b.load(place), _multiply_pairs(b, woven, code)), place)
        out = plus(b, sums, group.index, 16)
        halves = [pick(b, b.load(totals[n]), b.load(totals[n + 1]), list(range(8))) for n in (0, 2)]
        for head in range(QUAD):
            store(b, pick(b, halves[0], halves[1], [head + 4 * n for n in range(4)]), offset(b, out, 4 * ROWS * head))


def multiply_high_each(lanes: Any, factors: Any) -> Any:
    """The high 32 of the 64 bits of the product of each two lanes."""
    return ((lanes.astype(np.int64) * factors) >> 32).astype(np.int32)


@compiled(multiply_high_each, Lanes, Lanes, Lanes)
def _(b: Any, lanes: Any, factors: Any) -> Any:
    one, two, half = b.bitcast(lanes, I64X8), b.bitcast(factors, I64X8), all_of(I64X8, 32)
    low = b.mul(b.ashr(b.shl(one, half), half), b.ashr(b.shl(two, half), half))
    odd = b.and_(b.mul(b.ashr(one, half), b.ashr(two, half)), all_of(I64X8, 0xFFFFFFFF00000000))
    return b.bitcast(b.or_(b.lshr(low, half), odd), Lanes.ir)
