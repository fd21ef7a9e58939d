"""What scores of product codes do with vectors: tables, sums of their entries, and rows rebuilt.

A code is a byte: whatever it is, it names one of 256 entries. Groups lie in planes of 64 tokens. See _vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._lookup import I8, I16, I32, I64, QUAD, ROWS, offset, plus
from kvcodec.kernels._products import add_pairs
from kvcodec.kernels._vectors import (
    I16X16,
    INT,
    LONG,
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
CENTROIDS = 256
_TOKENS = 8  # whose sums are held in registers
SIDES = 4096  # gains and shapes together
_I16X8, _I32X4, _I32X8 = (ir.VectorType(t, n) for t, n in ((I16, 8), (I32, 4), (I32, 8)))
_I8X64, _I16X64, _I32X64 = (ir.VectorType(t, 64) for t in (I8, I16, I32))


def load_byte(address: Any) -> Any:
    """One uint8, as an int64."""
    return np.int64(memory(address, 1, np.uint8)[0])


@compiled(load_byte, LONG, INT)
def _(b: Any, address: Any) -> Any:
    return b.zext(load(b, address, I8), I64)


def look_up_sides(sides: Any, table: Any, words: Any, scales: Any, gains: Any) -> None:
    """64 scales and as many gains, uint16. sides: 64 gains and 64 shapes, of which 4 bits count; table: uint32 of
    gain * 16 + shape, a scale in the low half, a gain in the high one. words: room for 64 uint32.
    """
    gain, shape = memory(sides, 2 * ROWS, np.uint8).reshape(2, ROWS).astype(np.int64)
    found = memory(table, SIDES, np.uint32)[16 * gain + (shape & 15)]
    memory(words, ROWS, np.uint32)[:] = found
    memory(scales, ROWS, np.uint16)[:], memory(gains, ROWS, np.uint16)[:] = found & 0xFFFF, found >> 16


@compiled(look_up_sides, types.void, INT, INT, INT, INT, INT)
def _(b: Any, sides: Any, table: Any, words: Any, scales: Any, gains: Any) -> None:
    gain, shape = (b.zext(load(b, offset(b, sides, n), _I8X64), _I16X64) for n in (0, ROWS))
    index = b.or_(b.shl(gain, all_of(_I16X64, 4)), b.and_(shape, all_of(_I16X64, 15)))
    store(b, index, scales)
    with cgutils.for_range(b, ir.Constant(sides.type, ROWS // 4)) as loop:
        here, to = plus(b, scales, loop.index, 8), plus(b, words, loop.index, 16)
        for n in range(4):
            place = plus(b, table, b.zext(load(b, offset(b, here, 2 * n), I16), I64), 4)
            store(b, load(b, place, I32), offset(b, to, 4 * n))
    found = load(b, words, _I32X64)
    store(b, b.trunc(found, _I16X64), scales)
    store(b, b.trunc(b.lshr(found, all_of(_I32X64, 16)), _I16X64), gains)


# -- scores ----------------------------------------------------------------------------------------------------------


def _sum_entries(codes: Any, groups: Any, table: Any, first: Any, last: Any, heads: int) -> Any:
    """int32 (heads, last - first)."""
    own = memory(codes, groups * ROWS, np.uint8).reshape(groups, ROWS)[:, first:last]
    entries = memory(table, groups * CENTROIDS * heads, np.int32).reshape(groups, CENTROIDS, heads)
    return entries[np.arange(groups)[:, None], own].sum(axis=0, dtype=np.int32).T


def sum_entries(codes: Any, groups: Any, table: Any, first: Any, last: Any, sums: Any) -> None:
    """sums, int32 (64,): of tokens `first` to `last`, multiples of 8, the entries of their codes.

    codes: uint8 (groups, 64). table: int32 (groups, 256), behind which 12 bytes can be read, as 12 behind the sums can
    be written.
    """
    memory(sums, ROWS, np.int32)[first:last] = _sum_entries(codes, groups, table, first, last, 1)[0]


def sum_entries_of_four(codes: Any, groups: Any, table: Any, first: Any, last: Any, sums: Any) -> None:
    """`sum_entries` of four heads: table (groups, 256, 4), sums (4, 64)."""
    out = memory(sums, QUAD * ROWS, np.int32).reshape(QUAD, ROWS)
    out[:, first:last] = _sum_entries(codes, groups, table, first, last, QUAD)


def _register_sums(twin: Callable[..., None], heads: int) -> None:
    """Eight tokens at a time, whose sums stay in registers while groups pass.

    Of one head every other token adds four entries, of which the first one is its own: vectors are idle otherwise. What
    is stored behind its sum are no sums, and is stored over by those of the tokens that come next.
    """
    kinds = [I32 if heads == 1 and n % 2 == 0 else _I32X4 for n in range(_TOKENS)]
    size = 4 * heads

    @compiled(twin, types.void, INT, INT, INT, INT, INT, INT)
    def _(b: Any, codes: Any, groups: Any, table: Any, first: Any, last: Any, sums: Any) -> None:
        three = ir.Constant(first.type, 3)
        with cgutils.for_range(b, b.lshr(last, three), start=b.lshr(first, three)) as eight:
            totals = [_cgutils.alloca_once_value(b, ir.Constant(kind, None)) for kind in kinds]
            own = plus(b, codes, eight.index, _TOKENS)
            with cgutils.for_range(b, groups) as group:
                here = plus(b, own, group.index, ROWS)
                entries = plus(b, table, group.index, CENTROIDS * size)
                for n, code in enumerate(_load_codes(b, here, heads)):
                    total = b.add(b.load(totals[n]), load(b, plus(b, entries, code, size), kinds[n]))
                    b.store(total, totals[n])
            out = plus(b, sums, eight.index, 4 * _TOKENS)
            if heads == 1:
                for n, place in enumerate(totals):
                    store(b, b.load(place), offset(b, out, 4 * n))
            else:
                for n in range(0, _TOKENS, 4):
                    _store_turned(b, [b.load(place) for place in totals[n : n + 4]], offset(b, out, 4 * n))


def _load_codes(b: Any, codes: Any, heads: int) -> list[Any]:
    """Codes of eight tokens, int64. Of one head loads are what takes time, so that eight codes are one."""
    if heads > 1:
        return [b.zext(load(b, offset(b, codes, n), I8), I64) for n in range(_TOKENS)]
    return load_bytes(b, codes, _TOKENS)


def load_bytes(b: Any, address: Any, count: int) -> list[Any]:
    """As many uint8, of one load, each as an int64."""
    all_, kind = load(b, address, ir.IntType(8 * count)), ir.IntType(8 * count)
    every = [b.and_(b.lshr(all_, ir.Constant(kind, 8 * n)), ir.Constant(kind, 255)) for n in range(count)]
    return [own if kind == I64 else b.zext(own, I64) for own in every]


def _store_turned(b: Any, sums: list[Any], to: Any) -> None:
    """Sums of four tokens, of four heads each, to the rows of the heads."""
    halves = [pick(b, sums[n], sums[n + 1], list(range(8))) for n in (0, 2)]
    for head in range(QUAD):
        store(b, pick(b, halves[0], halves[1], [head + 4 * n for n in range(4)]), offset(b, to, 4 * ROWS * head))


for _twin, _heads in ((sum_entries, 1), (sum_entries_of_four, QUAD)):
    _register_sums(_twin, _heads)


# -- tables ----------------------------------------------------------------------------------------------------------


def dot_wide(row: Any, numbers: Any, count: Any) -> Any:
    """int64: `count` int16, a multiple of 8, times as many int32."""
    return np.int64((memory(row, count, np.int16).astype(np.int64) * memory(numbers, count, np.int32)).sum())


@compiled(dot_wide, LONG, INT, INT, INT)
def _(b: Any, row: Any, numbers: Any, count: Any) -> Any:
    total = _cgutils.alloca_once_value(b, all_of(Longs.ir, 0))
    with cgutils.for_range(b, b.lshr(count, ir.Constant(count.type, 3))) as loop:
        one = b.sext(load(b, plus(b, row, loop.index, 16), _I16X8), Longs.ir)
        two = b.sext(load(b, plus(b, numbers, loop.index, 32), _I32X8), Longs.ir)
        b.store(b.add(b.load(total), b.mul(one, two)), total)
    return call(b, "llvm.vector.reduce.add.v8i64", I64, b.load(total))


def store_fours(one: Any, two: Any, three: Any, four: Any, to: Any) -> None:
    """16 entries: numbers of four heads, int32."""
    memory(to, 16 * QUAD, np.int32).reshape(16, QUAD)[:] = np.stack([one, two, three, four], axis=1)


@compiled(store_fours, types.void, Lanes, Lanes, Lanes, Lanes, INT)
def _(b: Any, one: Any, two: Any, three: Any, four: Any, to: Any) -> None:
    for first in range(0, 16, 4):
        halves = [pick(b, *both, [n + 16 * k for n in range(first, first + 4) for k in range(2)])
                  for both in ((one, two), (three, four))]  # fmt: skip
        order = [2 * n + k + 8 * half for n in range(4) for half in range(2) for k in range(2)]
        store(b, pick(b, halves[0], halves[1], order), offset(b, to, 16 * first))


# -- rows ------------------------------------------------------------------------------------------------------------


def add_basis_pairs(rows: Any, stride: Any, pairs: Any, count: Any, to: Any) -> None:
    """32 int32: as many channels of `count` pairs of rows, woven, `stride` bytes apart, times pairs of int16."""
    own = np.stack([memory(rows + n * stride, 64, np.int16).astype(np.int32).reshape(32, 2) for n in range(count)])
    two = memory(pairs, 2 * count, np.int16).astype(np.int32).reshape(count, 1, 2)
    memory(to, 32, np.int32)[:] = (own * two).sum(axis=(0, 2), dtype=np.int32)


@compiled(add_basis_pairs, types.void, INT, INT, INT, INT, INT)
def _(b: Any, rows: Any, stride: Any, pairs: Any, count: Any, to: Any) -> None:
    sums = [_cgutils.alloca_once_value(b, all_of(_I32X8, 0)) for _ in range(4)]
    with cgutils.for_range(b, count) as loop:
        here = b.add(rows, b.mul(loop.index, stride))
        pair = b.bitcast(broadcast(b, load(b, plus(b, pairs, loop.index, 4), I32), _I32X8), I16X16)
        for n, place in enumerate(sums):
            b.store(b.add(b.load(place), add_pairs(b, load(b, offset(b, here, 32 * n), I16X16), pair)), place)
    for n, place in enumerate(sums):
        store(b, b.load(place), offset(b, to, 32 * n))
