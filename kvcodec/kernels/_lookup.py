"""What attention over dictionaries does with vectors: tables of products and sums by atom. See _vectors.py.

Query heads go by fours, which share a KV head's indices: of each atom an entry holds four products, int16, and looking
up two atoms of a token is one multiplication for four heads. No SIMD level has a better way on its own: entries are
loaded one by one, which takes no longer than what processors call a gather.
"""

from __future__ import annotations

from collections.abc import Callable
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
    LONG,
    WORD,
    Lanes,
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
QUAD = 4  # heads of an entry
ROWS = 64  # tokens of a block
I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_I16X4, _I16X8, _I32X4, _I32X8 = (ir.VectorType(t, n) for t, n in ((I16, 4), (I16, 8), (I32, 4), (I32, 8)))
_I8X16, _I8X64, _I16X64, _I32X64 = (ir.VectorType(t, n) for t, n in ((I8, 16), (I8, 64), (I16, 64), (I32, 64)))


def _plus(b: Any, address: Any, index: Any, size: int) -> Any:
    return b.add(address, b.mul(index, ir.Constant(index.type, size)))


def _at(b: Any, address: Any, offset: int) -> Any:
    return b.add(address, ir.Constant(address.type, offset)) if offset else address


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
    rows = [_plus(b, atoms, ir.Constant(stride.type, 0), 1)]
    for _ in range(QUAD - 1):
        rows.append(b.add(rows[-1], stride))
    sums = [_cgutils.alloca_once_value(b, all_of(_I32X8, 0)) for _ in rows]
    with cgutils.for_range(b, b.lshr(count, ir.Constant(count.type, 4))) as loop:
        own = load(b, _plus(b, weights, loop.index, 32), I16X16)
        for place, row in zip(sums, rows, strict=True):
            channels = b.sext(load(b, _plus(b, row, loop.index, 16), _I8X16), I16X16)
            b.store(b.add(b.load(place), add_pairs(b, channels, own)), place)
    first, second = (_add_neighbours(b, *(b.load(place) for place in sums[n : n + 2])) for n in (0, 2))
    both = _add_neighbours(b, first, second)  # of each half of the channels the four atoms
    store(b, b.add(pick(b, both, both, [0, 1, 2, 3]), pick(b, both, both, [4, 5, 6, 7])), to)


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
        own, codes = _plus(b, indices, group.index, 8), _plus(b, pairs, group.index, 16)
        with cgutils.for_range(b, count) as pair:
            here, coded = _plus(b, own, pair.index, 4 * ROWS), _plus(b, codes, pair.index, 4 * ROWS)
            for n, place in enumerate(totals):
                entries = [
                    load(b, _plus(b, table, b.zext(load(b, _at(b, here, 2 * n + at), I16), I64), 8), _I16X8)
                    for at in (0, 2 * ROWS)
                ]
                woven = pick(b, entries[0], entries[1], [0, 8, 1, 9, 2, 10, 3, 11])
                code = b.bitcast(broadcast(b, load(b, _at(b, coded, 4 * n), I32), _I32X4), _I16X8)
                b.store(b.add(b.load(place), _multiply_pairs(b, woven, code)), place)
        out = _plus(b, sums, group.index, 16)
        halves = [pick(b, b.load(totals[n]), b.load(totals[n + 1]), list(range(8))) for n in (0, 2)]
        for head in range(QUAD):
            store(b, pick(b, halves[0], halves[1], [head + 4 * n for n in range(4)]), _at(b, out, 4 * ROWS * head))


def multiply_high_each(lanes: Any, factors: Any) -> Any:
    """The high 32 of the 64 bits of the product of each two lanes."""
    return ((lanes.astype(np.int64) * factors) >> 32).astype(np.int32)


@compiled(multiply_high_each, Lanes, Lanes, Lanes)
def _(b: Any, lanes: Any, factors: Any) -> Any:
    one, two, half = b.bitcast(lanes, I64X8), b.bitcast(factors, I64X8), all_of(I64X8, 32)
    low = b.mul(b.ashr(b.shl(one, half), half), b.ashr(b.shl(two, half), half))
    odd = b.and_(b.mul(b.ashr(one, half), b.ashr(two, half)), all_of(I64X8, 0xFFFFFFFF00000000))
    return b.bitcast(b.or_(b.lshr(low, half), odd), Lanes.ir)


# -- values ----------------------------------------------------------------------------------------------------------


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
    rows = [load(b, _at(b, weights, 4 * ROWS * h), _I32X4) for h in range(heads)]
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
            own, coded = _plus(b, indices, group.index, 8), _plus(b, codes, group.index, 4 * size)
            weight = _turn_weights(b, _plus(b, weights, group.index, 16), heads)
            with cgutils.for_range(b, terms) as term:
                here, code = _plus(b, own, term.index, 2 * ROWS), _plus(b, coded, term.index, ROWS * size)
                for n in range(4):
                    index = b.zext(load(b, _at(b, here, 2 * n), I16), I64)
                    number = load(b, _at(b, code, n * size), I8 if one else I32)
                    number = b.sext(number if one else broadcast(b, number, narrow), wide)
                    place = _plus(b, buckets, index, 8 * heads)
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
            pair = b.bitcast(broadcast(b, load(b, _plus(b, halves, loop.index, 4), I32), _I32X8), I16X16)
            for n in range(2):
                place = sums[2 * k + n]
                b.store(b.add(b.load(place), add_pairs(b, woven[n], pair)), place)
    order = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
    for k in range(2):
        total = pick(b, b.load(sums[2 * k]), b.load(sums[2 * k + 1]), order)
        store(b, total, _at(b, to, 64 * k))
