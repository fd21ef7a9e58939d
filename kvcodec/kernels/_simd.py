"""Vectors in kernels: `Bytes` is a row of a tile, 64 bytes, `Lanes` 16 int32, `Longs` 8 int64.

Kernels load, combine and store them as they do numbers, with + - * & | ^ << >> and what is here; how many registers a
64-byte vector takes is LLVM's business. See _vectors.py.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._vectors import (
    HAS_AVX2,
    I16X16,
    I64X8,
    INT,
    LONG,
    WORD,
    Bytes,
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

# -- loads and stores ------------------------------------------------------------------------------------------------


def load_bytes(address: Any) -> Any:
    """Bytes: a row of 64."""
    return memory(address, 64, np.uint8).copy()


@compiled(load_bytes, Bytes, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, Bytes.ir)


def load_lanes(address: Any) -> Any:
    """Lanes of 16 int32."""
    return memory(address, 16, np.int32).copy()


@compiled(load_lanes, Lanes, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, Lanes.ir)


def load_unsigned(address: Any) -> Any:
    """Lanes of 16 uint16."""
    return memory(address, 16, np.uint16).astype(np.int32)


@compiled(load_unsigned, Lanes, INT)
def _(b: Any, address: Any) -> Any:
    return b.zext(load(b, address, I16X16), Lanes.ir)


def load_signed(address: Any) -> Any:
    """Lanes of 16 int16."""
    return memory(address, 16, np.int16).astype(np.int32)


@compiled(load_signed, Lanes, INT)
def _(b: Any, address: Any) -> Any:
    return b.sext(load(b, address, I16X16), Lanes.ir)


def load_half(address: Any) -> Any:
    """One int16."""
    return memory(address, 1, np.int16)[0]


@compiled(load_half, types.int16, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, ir.IntType(16))


def store_half(half: Any, address: Any) -> None:
    """One int16."""
    memory(address, 1, np.int16)[0] = half


@compiled(store_half, types.void, types.int16, INT)
def _(b: Any, half: Any, address: Any) -> None:
    store(b, half, address)


def load_word(address: Any) -> Any:
    """One int32."""
    return memory(address, 1, np.int32)[0]


@compiled(load_word, WORD, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, ir.IntType(32))


def load_long(address: Any) -> Any:
    """One int64."""
    return memory(address, 1, np.int64)[0]


@compiled(load_long, LONG, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, ir.IntType(64))


def store_long(number: Any, address: Any) -> None:
    """One int64."""
    memory(address, 1, np.int64)[0] = number


@compiled(store_long, types.void, LONG, INT)
def _(b: Any, number: Any, address: Any) -> None:
    store(b, number, address)


def load_longs(address: Any) -> Any:
    """Longs: 8 int64."""
    return memory(address, 8, np.int64).copy()


@compiled(load_longs, Longs, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, Longs.ir)


def store_longs(longs: Any, address: Any) -> None:
    """Longs as 8 int64."""
    memory(address, 8, np.int64)[:] = longs


@compiled(store_longs, types.void, Longs, INT)
def _(b: Any, longs: Any, address: Any) -> None:
    store(b, longs, address)


def widen_lanes(address: Any) -> Any:
    """Longs of 8 int32."""
    return memory(address, 8, np.int32).astype(np.int64)


@compiled(widen_lanes, Longs, INT)
def _(b: Any, address: Any) -> Any:
    return b.sext(load(b, address, ir.VectorType(ir.IntType(32), 8)), Longs.ir)


def store_word(word: Any, address: Any) -> None:
    """One int32."""
    memory(address, 1, np.int32)[0] = word


@compiled(store_word, types.void, WORD, INT)
def _(b: Any, word: Any, address: Any) -> None:
    store(b, word, address)


def store_lanes(lanes: Any, address: Any) -> None:
    """Lanes as 16 int32."""
    memory(address, 16, np.int32)[:] = lanes


@compiled(store_lanes, types.void, Lanes, INT)
def _(b: Any, lanes: Any, address: Any) -> None:
    store(b, lanes, address)


def store_weights(lanes: Any, halves: Any, bytes_: Any, low: Any) -> None:
    """16 weights as int16; and as bytes, high ones and, `low` behind them, low ones: high * 256 + low, both signed."""
    memory(halves, 16, np.int16)[:] = lanes.astype(np.int16)
    memory(bytes_, 16, np.int8)[:] = ((lanes + 128) >> 8).astype(np.int8)
    memory(bytes_ + low, 16, np.int8)[:] = lanes.astype(np.int8)


@compiled(store_weights, types.void, Lanes, INT, INT, INT)
def _(b: Any, lanes: Any, halves: Any, bytes_: Any, low: Any) -> None:
    narrow = _narrow(b, lanes)
    store(b, narrow, halves)
    lows = b.and_(narrow, all_of(I16X16, 255))
    highs = b.lshr(b.add(narrow, all_of(I16X16, 128)), all_of(I16X16, 8))
    if HAS_AVX2:
        both = call(b, "llvm.x86.avx2.packuswb", ir.VectorType(ir.IntType(8), 32), highs, lows)
        halves_ = [[*range(n, n + 8), *range(n + 16, n + 24)] for n in (0, 8)]
    else:
        both, byte = None, ir.VectorType(ir.IntType(8), 16)
        highs, lows = b.trunc(highs, byte), b.trunc(lows, byte)
    store(b, highs if both is None else pick(b, both, both, halves_[0]), bytes_)
    store(b, lows if both is None else pick(b, both, both, halves_[1]), b.add(bytes_, low))


def _narrow(b: Any, lanes: Any) -> Any:
    """int16 of lanes that fit it."""
    if not HAS_AVX2:
        return b.trunc(lanes, I16X16)
    packed = call(b, "llvm.x86.avx2.packssdw", I16X16, *(pick(b, lanes, lanes, list(range(n, n + 8))) for n in (0, 8)))
    return pick(b, packed, packed, [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)])


def store_numbers(lanes: Any, address: Any) -> None:
    """16 numbers as int16, which they fit."""
    memory(address, 16, np.int16)[:] = lanes.astype(np.int16)


@compiled(store_numbers, types.void, Lanes, INT)
def _(b: Any, lanes: Any, address: Any) -> None:
    store(b, _narrow(b, lanes), address)


def store_small_weights(lanes: Any, halves: Any, bytes_: Any) -> None:
    """16 weights of 8 bits as int16 and as bytes."""
    memory(halves, 16, np.int16)[:] = lanes.astype(np.int16)
    memory(bytes_, 16, np.int8)[:] = lanes.astype(np.int8)


@compiled(store_small_weights, types.void, Lanes, INT, INT)
def _(b: Any, lanes: Any, halves: Any, bytes_: Any) -> None:
    narrow = _narrow(b, lanes)
    store(b, narrow, halves)
    store(b, b.trunc(narrow, ir.VectorType(ir.IntType(8), 16)), bytes_)


def prefetch(address: Any) -> None:
    """Have the line at an address come to the second cache. Any address will do."""


@compiled(prefetch, types.void, INT)
def _(b: Any, address: Any) -> None:
    pointer = b.inttoptr(address, ir.IntType(8).as_pointer())
    hints = [ir.Constant(ir.IntType(32), n) for n in (0, 3, 1)]  # read, first cache, data
    call(b, "llvm.prefetch.p0", ir.VoidType(), pointer, *hints)


# -- lanes: + - * & | ^ << >> with lanes or a number, and these ------------------------------------------------------


def splat(number: Any) -> Any:
    """Lanes that all hold one int32."""
    return np.full(16, number, np.int32)


@compiled(splat, Lanes, WORD)
def _(b: Any, number: Any) -> Any:
    return broadcast(b, number, Lanes.ir)


def smaller(a: Any, b: Any) -> Any:
    """The smaller of each two lanes."""
    return np.minimum(a, b)


@compiled(smaller, Lanes, Lanes, Lanes)
def _(b: Any, one: Any, other: Any) -> Any:
    return b.select(b.icmp_signed("<", one, other), one, other)


def greater(a: Any, b: Any) -> Any:
    """The greater of each two lanes."""
    return np.maximum(a, b)


@compiled(greater, Lanes, Lanes, Lanes)
def _(b: Any, one: Any, other: Any) -> Any:
    return b.select(b.icmp_signed(">", one, other), one, other)


def shift_unsigned(lanes: Any, by: Any) -> Any:
    """Lanes as uint32, shifted right by 0 to 31 each."""
    return (lanes.view(np.uint32) >> by.view(np.uint32)).view(np.int32)


@compiled(shift_unsigned, Lanes, Lanes, Lanes)
def _(b: Any, lanes: Any, by: Any) -> Any:
    return b.lshr(lanes, by)


def keep_first(lanes: Any, count: Any, other: Any) -> Any:
    """The first `count` lanes, and `other`, a number, in the rest."""
    return np.where(np.arange(16) < count, lanes, np.int32(other))


@compiled(keep_first, Lanes, Lanes, WORD, WORD)
def _(b: Any, lanes: Any, count: Any, other: Any) -> Any:
    here = b.icmp_signed("<", ir.Constant(Lanes.ir, list(range(16))), broadcast(b, count, Lanes.ir))
    return b.select(here, lanes, broadcast(b, other, Lanes.ir))


def where_zero(lanes: Any, zero: Any, other: Any) -> Any:
    """`zero` in lanes that are 0, `other` in the rest."""
    return np.where(lanes == 0, zero, other)


@compiled(where_zero, Lanes, Lanes, Lanes, Lanes)
def _(b: Any, lanes: Any, zero: Any, other: Any) -> Any:
    return b.select(b.icmp_signed("==", lanes, all_of(Lanes.ir, 0)), zero, other)


def multiply_high(lanes: Any, factor: Any) -> Any:
    """The high 32 of the 64 bits of lanes times an int32."""
    return ((lanes.astype(np.int64) * int(factor)) >> 32).astype(np.int32)


@compiled(multiply_high, Lanes, Lanes, WORD)
def _(b: Any, lanes: Any, factor: Any) -> Any:
    wide = broadcast(b, b.sext(factor, ir.IntType(64)), I64X8)
    pairs, half = b.bitcast(lanes, I64X8), all_of(I64X8, 32)
    even = b.lshr(b.mul(b.ashr(b.shl(pairs, half), half), wide), half)
    odd = b.and_(b.mul(b.ashr(pairs, half), wide), all_of(I64X8, 0xFFFFFFFF00000000))
    return b.bitcast(b.or_(even, odd), Lanes.ir)


def add_lanes(lanes: Any) -> Any:
    """Sum of the lanes, modulo 2**32."""
    return np.int32(lanes.sum(dtype=np.int32))


@compiled(add_lanes, WORD, Lanes)
def _(b: Any, lanes: Any) -> Any:
    return call(b, "llvm.vector.reduce.add.v16i32", ir.IntType(32), lanes)


def greatest_lane(lanes: Any) -> Any:
    """The greatest lane."""
    return np.int32(lanes.max())


@compiled(greatest_lane, WORD, Lanes)
def _(b: Any, lanes: Any) -> Any:
    return call(b, "llvm.vector.reduce.smax.v16i32", ir.IntType(32), lanes)


def greatest_scale(numbers: Any, scales: Any, count: Any) -> Any:
    """The greatest of `count` uint16, a multiple of 16, whose int32 numbers are not 0; or 0."""
    here = memory(numbers, count, np.int32) != 0
    return np.int32(np.where(here, memory(scales, count, np.uint16), 0).max())


@compiled(greatest_scale, WORD, INT, INT, INT)
def _(b: Any, numbers: Any, scales: Any, count: Any) -> Any:
    most = cgutils.alloca_once_value(b, all_of(I16X16, 0))
    with cgutils.for_range(b, b.lshr(count, ir.Constant(count.type, 4))) as loop:
        own = load(b, b.add(numbers, b.shl(loop.index, ir.Constant(count.type, 6))), Lanes.ir)
        here = b.sext(b.icmp_signed("!=", own, all_of(Lanes.ir, 0)), I16X16)
        new = b.and_(here, load(b, b.add(scales, b.shl(loop.index, ir.Constant(count.type, 5))), I16X16))
        old = b.load(most)
        b.store(b.select(b.icmp_unsigned(">", new, old), new, old), most)
    return b.zext(call(b, "llvm.vector.reduce.umax.v16i16", ir.IntType(16), b.load(most)), ir.IntType(32))


def bit_length(number: Any) -> Any:
    """Bits of a non-negative int64 below its leading zeros."""
    return int(number).bit_length()


@compiled(bit_length, types.int64, types.int64)
def _(b: Any, number: Any) -> Any:
    zeros = call(b, "llvm.ctlz.i64", ir.IntType(64), number, ir.Constant(ir.IntType(1), 0))
    return b.sub(ir.Constant(ir.IntType(64), 64), zeros)


# -- operators of lanes ----------------------------------------------------------------------------------------------


def _operators() -> None:
    builders = {
        operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.and_: "and_", operator.or_: "or_",
        operator.xor: "xor", operator.lshift: "shl", operator.rshift: "ashr",
    }  # fmt: skip
    for op, name in builders.items():
        for vector, numbers in ((Lanes, (WORD, LONG)), (Longs, (LONG,))):
            for other in (vector, *numbers):

                @compiled(op, vector, vector, other)
                def _(b: Any, one: Any, two: Any, name: str = name) -> Any:
                    if two.type != one.type:
                        two = b.trunc(two, one.type.element) if two.type != one.type.element else two
                        two = broadcast(b, two, one.type)
                    return getattr(b, name)(one, two)


_operators()
