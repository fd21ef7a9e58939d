"""What kernels compute with vectors as they do with numbers: + - * & | ^ << >>, and what is here. See _vectors.py."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from kvcodec.kernels._vectors import (
    I16X16,
    I64X8,
    INT,
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
)


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


@compiled(bit_length, LONG, LONG)
def _(b: Any, number: Any) -> Any:
    zeros = call(b, "llvm.ctlz.i64", ir.IntType(64), number, ir.Constant(ir.IntType(1), 0))
    return b.sub(ir.Constant(ir.IntType(64), 64), zeros)


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
