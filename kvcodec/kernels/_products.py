"""Products of codes and weights: the operations in which SIMD levels differ. See _vectors.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kvcodec.kernels._vectors import (
    HAS_AVX2,
    HAS_VNNI,
    I16X16,
    I16X32,
    INT,
    LEVEL,
    WORD,
    Bytes,
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


def plane(row: Any, shift: Any, mask: Any) -> Any:
    """Bytes: (each byte >> shift) & mask, where mask leaves no bit that a neighbour's shift brought in."""
    return (row >> np.uint8(shift)) & np.uint8(mask)


@compiled(plane, Bytes, Bytes, WORD, WORD)
def _(b: Any, row: Any, shift: Any, mask: Any) -> Any:
    moved = b.lshr(b.bitcast(row, I16X32), broadcast(b, b.trunc(shift, ir.IntType(16)), I16X32))
    return b.and_(b.bitcast(moved, Bytes.ir), broadcast(b, b.trunc(mask, ir.IntType(8)), Bytes.ir))


def spread_words(address: Any) -> Any:
    """Bytes: 16 int8 weights, each 4 of them for 4 lanes."""
    return np.repeat(memory(address, 4, np.int32), 4).view(np.uint8)


@compiled(spread_words, Bytes, INT)
def _(b: Any, address: Any) -> Any:
    four = load(b, address, ir.VectorType(ir.IntType(32), 4))
    return b.bitcast(pick(b, four, four, [i for i in range(4) for _ in range(4)]), Bytes.ir)


def turn_quads(row: Any) -> Any:
    """Bytes: 4 x 4 bytes turned in each quarter, so that byte j of lanes 4i to 4i + 3 becomes lane 4i + j."""
    return row.reshape(4, 4, 4).transpose(0, 2, 1).reshape(64)


@compiled(turn_quads, Bytes, Bytes)
def _(b: Any, row: Any) -> Any:
    return pick(b, row, row, [16 * q + 4 * i + j for q in range(4) for j in range(4) for i in range(4)])


def store_quads(sums: Any, address: Any) -> None:
    """4 int32, number j the sum of lanes j, j + 4, j + 8 and j + 12."""
    memory(address, 4, np.int32)[:] = sums.reshape(4, 4).sum(axis=0, dtype=np.int32)


@compiled(store_quads, types.void, Lanes, INT)
def _(b: Any, sums: Any, address: Any) -> None:
    half = b.add(pick(b, sums, sums, list(range(8))), pick(b, sums, sums, list(range(8, 16))))
    store(b, b.add(pick(b, half, half, [0, 1, 2, 3]), pick(b, half, half, [4, 5, 6, 7])), address)


def join_bytes(high: Any, low: Any) -> Any:
    """Lanes of products with the high and the low bytes of weights: high * 256 + low."""
    return (high << 8) + low


@compiled(join_bytes, Lanes, Lanes, Lanes)
def _(b: Any, high: Any, low: Any) -> Any:
    return b.add(b.shl(high, all_of(high.type, 8)), low)


def dot(sums: Any, codes: Any, weights: Any) -> Any:
    """sums + the four products of each lane's bytes, unsigned codes of at most 15 and signed weights."""
    return sums + (codes.astype(np.int32) * weights.view(np.int8)).reshape(-1, 4).sum(axis=1, dtype=np.int32)


@compiled(dot, Lanes, Lanes, Bytes, Bytes)
def _(b: Any, sums: Any, codes: Any, weights: Any) -> Any:
    if LEVEL != "avx2":
        return add_by_fours(b, sums, codes, weights)
    products = _by_registers(b, multiply_bytes, codes, weights)
    return b.add(sums, _by_registers(b, add_pairs, products, all_of(I16X32, 1)))


def add_by_fours(b: Any, sums: Any, codes: Any, weights: Any) -> Any:
    """sums + vpdpbusd's products of 64 bytes."""
    words = b.bitcast(codes, Lanes.ir), b.bitcast(weights, Lanes.ir)
    if LEVEL == "avx512vnni" and HAS_VNNI:
        return call(b, "llvm.x86.avx512.vpdpbusd.512", Lanes.ir, sums, *words)
    return b.add(sums, _multiply_by_fours(b, *words))


def _by_registers(b: Any, operate: Callable[..., Any], one: Any, two: Any) -> Any:
    """An operation on vectors of 256 bits, for vectors of 256 or 512."""
    if one.type.count * one.type.element.width == 256:
        return operate(b, one, two)
    halves = [list(range(n, n + one.type.count // 2)) for n in (0, one.type.count // 2)]
    done = [operate(b, pick(b, one, one, half), pick(b, two, two, half)) for half in halves]
    return pick(b, done[0], done[1], list(range(2 * done[0].type.count)))


def _multiply_by_fours(b: Any, codes: Any, weights: Any) -> Any:
    """vpdpbusd without its addition."""
    total, kind = None, codes.type
    for n in range(4):
        code = b.and_(b.lshr(codes, all_of(kind, 8 * n)), all_of(kind, 255))
        product = b.mul(code, b.ashr(b.shl(weights, all_of(kind, 24 - 8 * n)), all_of(kind, 24)))
        total = product if total is None else b.add(total, product)
    return total


def multiply_bytes(b: Any, codes: Any, weights: Any) -> Any:
    """vpmaddubsw: int16 sums of two products of unsigned and signed bytes, which do not overflow here."""
    if HAS_AVX2:
        return call(b, "llvm.x86.avx2.pmadd.ub.sw", I16X16, codes, weights)
    eight, one, two = all_of(I16X16, 8), b.bitcast(codes, I16X16), b.bitcast(weights, I16X16)
    low = b.mul(b.and_(one, all_of(I16X16, 255)), b.ashr(b.shl(two, eight), eight))
    return b.add(low, b.mul(b.lshr(one, eight), b.ashr(two, eight)))


def add_pairs(b: Any, one: Any, two: Any) -> Any:
    """vpmaddwd: int32 sums of two products of int16."""
    kind = ir.VectorType(ir.IntType(32), 8)
    if LEVEL != "portable" and HAS_AVX2:
        return call(b, "llvm.x86.avx2.pmadd.wd", kind, one, two)
    half, one, two = all_of(kind, 16), b.bitcast(one, kind), b.bitcast(two, kind)
    low = b.mul(b.ashr(b.shl(one, half), half), b.ashr(b.shl(two, half), half))
    return b.add(low, b.mul(b.ashr(one, half), b.ashr(two, half)))


def dot_halves(sums: Any, one: Any, two: Any) -> Any:
    """sums + the products of 16 int16 at two addresses: first 8 lanes, by twos, with the second ones' high bytes, then
    with their low ones, which are unsigned.
    """
    a, b = memory(one, 16, np.int16).astype(np.int32), memory(two, 16, np.int16).astype(np.int32)
    return sums + np.concatenate([(a * n).reshape(8, 2).sum(axis=1, dtype=np.int32) for n in (b >> 8, b & 255)])


@compiled(dot_halves, Lanes, Lanes, INT, INT)
def _(b: Any, sums: Any, one: Any, two: Any) -> Any:
    first, second = load(b, one, I16X16), load(b, two, I16X16)
    high, low = b.ashr(second, all_of(I16X16, 8)), b.and_(second, all_of(I16X16, 255))
    both = list(range(16)) * 2
    products = _by_registers(b, add_pairs, pick(b, first, first, both), pick(b, high, low, list(range(32))))
    return b.add(sums, products)


def weigh_pair(sums: Any, one: Any, two: Any, weights: Any, low: Any) -> Any:
    """sums + 16 channels of two rows of int16, each row times its weight: the high bytes of two int16, or the low ones,
    which are unsigned.
    """
    pair = memory(weights, 2, np.int16).astype(np.int32)
    a, b = (pair & 255) if low else (pair >> 8)
    return sums + memory(one, 16, np.int16) * a + memory(two, 16, np.int16) * b


@compiled(weigh_pair, Lanes, Lanes, INT, INT, INT, types.boolean)
def _(b: Any, sums: Any, one: Any, two: Any, weights: Any, low: Any) -> Any:
    rows = [load(b, address, I16X16) for address in (one, two)]
    both = pick(b, rows[0], rows[1], [n + 16 * k for n in range(16) for k in range(2)])
    pairs = b.bitcast(broadcast(b, load(b, weights, ir.IntType(32)), Lanes.ir), I16X32)
    part = b.select(low, b.and_(pairs, all_of(I16X32, 255)), b.ashr(pairs, all_of(I16X32, 8)))
    return b.add(sums, _by_registers(b, add_pairs, both, part))
