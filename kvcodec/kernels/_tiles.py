"""Tiles times weights: the loops in which attention spends half of its time, a row of 64 bytes at a time.

They are written out for the level, for numba's own loops over vectors know nothing of how many registers there are.
avx2 says each weight once for both halves of a row, and adds the products of up to 8 planes of codes of at most 15 in
16 bits: 8 * 2 * 15 * 128.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._products import add_by_fours, add_pairs, multiply_bytes
from kvcodec.kernels._vectors import (
    I16X16,
    INT,
    LEVEL,
    all_of,
    broadcast,
    compiled,
    load,
    memory,
    pick,
    store,
)

LOW = 256  # bytes from the high bytes of weights to their low ones
_COLUMNS = 2 if LEVEL == "avx2" else 1  # parts of a row, each a register
_CODES = ir.VectorType(ir.IntType(8), 64 // _COLUMNS)
_SUMS = ir.VectorType(ir.IntType(32), 16 // _COLUMNS)
_HALVES = ir.VectorType(ir.IntType(16), 32 // _COLUMNS)
_STEP = 8  # planes


def dot_int4(tile: Any, rows: Any, weights: Any, sums: Any) -> None:
    """sums, 16 int32: the codes of 4 bits of each lane times weights of 16. rows: of the tile, an even number."""
    _dot(tile, rows, weights, sums, 4, (0, LOW))


def dot_int4_bytes(tile: Any, rows: Any, weights: Any, sums: Any) -> None:
    """`dot_int4` with weights of 8 bits."""
    _dot(tile, rows, weights, sums, 4, (0,))


def dot_int2(tile: Any, rows: Any, weights: Any, sums: Any) -> None:
    """sums, 16 int32: the codes of 2 bits of each lane times weights of 16."""
    _dot(tile, rows, weights, sums, 2, (0, LOW))


def dot_int2_bytes(tile: Any, rows: Any, weights: Any, sums: Any) -> None:
    """`dot_int2` with weights of 8 bits."""
    _dot(tile, rows, weights, sums, 2, (0,))


def dot_int8(tile: Any, rows: Any, halves: Any, sums: Any) -> None:
    """sums, 16 int32: the codes of 8 bits of each lane times weights of int16."""
    codes = memory(tile, 64 * rows, np.uint8).reshape(rows, 16, 4).astype(np.int32)
    memory(sums, 16, np.int32)[:] = np.einsum("rlc,rc->l", codes, memory(halves, 4 * rows, np.int16).reshape(rows, 4))


def _dot(tile: Any, rows: Any, weights: Any, sums: Any, bits: int, offsets: tuple[int, ...]) -> None:
    row = memory(tile, 64 * rows, np.uint8).reshape(rows, 16, 4)
    planes = np.stack([(row >> np.uint8(n)) & np.uint8((1 << bits) - 1) for n in range(0, 8, bits)], axis=1)
    totals = []
    for at in offsets:
        words = memory(weights + at, rows * 32 // bits, np.int8).reshape(rows, 8 // bits, 4)
        totals.append(np.einsum("rplc,rpc->l", planes.astype(np.int32), words.astype(np.int32)))
    memory(sums, 16, np.int32)[:] = totals[0] if len(totals) == 1 else (totals[0] << 8) + totals[1]


class _Loop:
    """Builds a loop over rows: accumulators for each set of weights and each column, in registers."""

    def __init__(self, b: Any, bits: int, offsets: tuple[int, ...]) -> None:
        self._b, self._bits, self._offsets = b, bits, offsets
        zero = all_of(_SUMS, 0)
        self._sums = [[cgutils.alloca_once_value(b, zero) for _ in range(_COLUMNS)] for _ in offsets]

    def run(self, tile: Any, rows: Any, weights: Any) -> None:
        """All rows: steps of 8 planes, and half a step if one is left."""
        b, count = self._b, _STEP * self._bits // 8  # rows of a step
        one = ir.Constant(rows.type, 1)
        steps = b.lshr(rows, ir.Constant(rows.type, count.bit_length() - 1))
        with cgutils.for_range(b, steps) as loop:
            self._add(*self._at(tile, weights, loop.index, count), _STEP)
        left = b.and_(b.lshr(rows, ir.Constant(rows.type, count.bit_length() - 2)), one)
        with b.if_then(b.icmp_unsigned("!=", left, ir.Constant(rows.type, 0))):
            self._add(*self._at(tile, weights, steps, count), _STEP // 2)

    def _at(self, tile: Any, weights: Any, step: Any, count: int) -> tuple[Any, Any]:
        b = self._b
        return (
            b.add(tile, b.mul(step, ir.Constant(step.type, 64 * count))),
            b.add(weights, b.mul(step, ir.Constant(step.type, 4 * _STEP))),
        )

    def _add(self, tile: Any, weights: Any, planes: int) -> None:
        b, per_row = self._b, 8 // self._bits
        mask = all_of(_CODES, (1 << self._bits) - 1)
        wide: list[list[Any]] = [[None] * _COLUMNS for _ in self._offsets]
        for n in range(planes):
            row, shift = 64 * (n // per_row), n % per_row * self._bits
            words = [
                broadcast(b, load(b, _plus(b, weights, 4 * n + at), ir.IntType(32)), _SUMS) for at in self._offsets
            ]
            for column in range(_COLUMNS):
                codes = load(b, _plus(b, tile, row + 64 // _COLUMNS * column), _CODES)
                if shift:
                    codes = b.bitcast(b.lshr(b.bitcast(codes, _HALVES), all_of(_HALVES, shift)), _CODES)
                codes = b.and_(codes, mask)
                for k, word in enumerate(words):
                    self._multiply(wide, k, column, codes, b.bitcast(word, _CODES))
        if LEVEL == "avx2":
            for k, totals in enumerate(wide):
                for column, total in enumerate(totals):
                    self._accumulate(k, column, add_pairs(b, total, all_of(I16X16, 1)))

    def _multiply(self, wide: list[list[Any]], k: int, column: int, codes: Any, word: Any) -> None:
        b = self._b
        if LEVEL != "avx2":
            place = self._sums[k][column]
            b.store(add_by_fours(b, b.load(place), codes, word), place)
            return
        product, before = multiply_bytes(b, codes, word), wide[k][column]
        wide[k][column] = product if before is None else b.add(before, product)

    def _accumulate(self, k: int, column: int, more: Any) -> None:
        place = self._sums[k][column]
        self._b.store(self._b.add(self._b.load(place), more), place)

    def finish(self, address: Any) -> None:
        """Store high * 256 + low."""
        b = self._b
        for column in range(_COLUMNS):
            total = b.load(self._sums[0][column])
            for other in self._sums[1:]:
                total = b.add(b.shl(total, all_of(_SUMS, 8)), b.load(other[column]))
            store(b, total, _plus(b, address, 64 // _COLUMNS * column))


def _plus(b: Any, address: Any, offset: int) -> Any:
    return b.add(address, ir.Constant(address.type, offset)) if offset else address


def _register(twin: Callable[..., None], bits: int, offsets: tuple[int, ...]) -> None:
    @compiled(twin, types.void, INT, INT, INT, INT)
    def _(b: Any, tile: Any, rows: Any, weights: Any, sums: Any) -> None:
        loop = _Loop(b, bits, offsets)
        loop.run(tile, rows, weights)
        loop.finish(sums)


for _twin, _bits, _offsets in (
    (dot_int4, 4, (0, LOW)),
    (dot_int4_bytes, 4, (0,)),
    (dot_int2, 2, (0, LOW)),
    (dot_int2_bytes, 2, (0,)),
):
    _register(_twin, _bits, _offsets)


# Products of 8-bit codes would overflow 16 bits: codes are widened, and their weights are int16. Of each 16 bytes of a
# row the first 8, two lanes, and the others are multiplied apart; each leaves two sums a lane, which meet at the end.


@compiled(dot_int8, types.void, INT, INT, INT, INT)
def _(b: Any, tile: Any, rows: Any, halves: Any, sums: Any) -> None:
    kind, wide = ir.VectorType(ir.IntType(32), 8), ir.VectorType(ir.IntType(64), 4)
    totals = [[cgutils.alloca_once_value(b, all_of(kind, 0)) for _ in range(2)] for _ in range(2)]
    with cgutils.for_range(b, rows) as loop:
        row = b.add(tile, b.shl(loop.index, ir.Constant(rows.type, 6)))
        quad = load(b, b.add(halves, b.shl(loop.index, ir.Constant(rows.type, 3))), ir.IntType(64))
        weights = b.bitcast(broadcast(b, quad, wide), I16X16)
        for column in range(2):
            codes = load(b, _plus(b, row, 32 * column), ir.VectorType(ir.IntType(8), 32))
            for first in range(2):
                part = pick(b, codes, codes, [16 * q + 8 * first + n for q in range(2) for n in range(8)])
                place = totals[column][first]
                b.store(b.add(b.load(place), add_pairs(b, b.zext(part, I16X16), weights)), place)
    even = [n + 4 * q for q in range(2) for n in (0, 2, 8, 10)]
    for column in range(2):
        low, high = (b.load(place) for place in totals[column])
        total = b.add(pick(b, low, high, even), pick(b, low, high, [n + 1 for n in even]))
        store(b, total, _plus(b, sums, 32 * column))
