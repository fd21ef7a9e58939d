"""Vectors of 16 float32 in kernels: `Floats`, and the steps that quantizing takes with them. See _vectors.py.

Rows of 16-bit floats are taken 16 at a time, as 8 words: the low halves of the words, then the high ones, so that
widening bfloat16 is a shift and a mask. Numbers in this order are *parted*: even ones first, then odd ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kvcodec.kernels._vectors import (
    FEATURES,
    I16X16,
    INT,
    WORD,
    Lanes,
    Vector,
    all_of,
    broadcast,
    call,
    compiled,
    load,
    memory,
    pick,
    store,
)

Floats = Vector(32, 16, floats=True)
FLOAT, FLAG = types.float32, types.boolean
F64X4, F64X16 = (ir.VectorType(ir.DoubleType(), n) for n in (4, 16))
I32X8 = ir.VectorType(ir.IntType(32), 8)
PARTED = [*range(0, 16, 2), *range(1, 16, 2)]
WOVEN = [n for i in range(8) for n in (i, i + 8)]  # the inverse


def _bits(b: Any, floats: Any) -> Any:
    return b.bitcast(floats, Lanes.ir)


def _floats(b: Any, lanes: Any) -> Any:
    return b.bitcast(lanes, Floats.ir)


def offset(b: Any, address: Any, by: int) -> Any:
    """An address some bytes on."""
    return b.add(address, ir.Constant(address.type, by)) if by else address


# -- loads and stores ------------------------------------------------------------------------------------------------


def widen_bits(bits: Any, half: Any) -> Any:
    """float32 of finite 16-bit floats' bits, uint16."""
    if not half:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


def load_parted(address: Any, half: Any) -> Any:
    """Floats: 16 finite 16-bit floats, parted; half: they are float16, else bfloat16."""
    return widen_bits(memory(address, 16, np.uint16)[PARTED], half)


@compiled(load_parted, Floats, INT, FLAG)
def _(b: Any, address: Any, half: Any) -> Any:
    return branch(b, half, lambda: [widen_row(b, address, True)], lambda: [widen_row(b, address, False)])[0]


def widen_row(b: Any, address: Any, half: bool) -> Any:
    """What load_parted is compiled to."""
    words = load(b, address, I32X8)
    if not half:
        return _floats(b, _part_words(b, words))
    return _convert_halves(b, words) if FEATURES.get("f16c") else _widen_halves(b, words)


def branch(b: Any, flag: Any, then: Callable[[], list[Any]], otherwise: Callable[[], list[Any]]) -> list[Any]:
    """The values of the one or the other, built in blocks of their own."""
    done = []
    with b.if_else(flag) as cases:
        for case, build in zip(cases, (then, otherwise), strict=True):
            with case:
                done.append((build(), b.basic_block))
    merged = []
    for pair in zip(*(values for values, _ in done), strict=True):
        merged.append(b.phi(pair[0].type))
        for value, (_, block) in zip(pair, done, strict=True):
            merged[-1].add_incoming(value, block)
    return merged


def _part_words(b: Any, words: Any) -> Any:
    """Lanes that have the low halves of 8 words in their high halves, then the high ones."""
    low, high = b.shl(words, all_of(I32X8, 16)), b.and_(words, all_of(I32X8, 0xFFFF0000))
    return pick(b, low, high, list(range(16)))


def _convert_halves(b: Any, words: Any) -> Any:
    halves = b.bitcast(words, ir.VectorType(ir.HalfType(), 16))
    return b.fpext(pick(b, halves, halves, PARTED), Floats.ir)


def _widen_halves(b: Any, words: Any) -> Any:
    """Subnormals take a subtraction that is exact and has normal operands."""
    lanes = _part_words(b, words)
    sign = b.and_(lanes, all_of(Lanes.ir, 0x80000000))
    low = b.lshr(b.and_(lanes, all_of(Lanes.ir, 0x7FFF0000)), all_of(Lanes.ir, 3))
    tiny = _floats(b, b.or_(low, all_of(Lanes.ir, 0x38800000)))
    tiny = _bits(b, b.fsub(tiny, all_of(Floats.ir, 2.0**-14)))
    normal = b.icmp_signed(">=", low, all_of(Lanes.ir, 0x800000))
    return _floats(b, b.or_(b.select(normal, b.add(low, all_of(Lanes.ir, 0x38000000)), tiny), sign))


def load_floats(address: Any) -> Any:
    """Floats: 16 float32."""
    return memory(address, 16, np.float32).copy()


@compiled(load_floats, Floats, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, Floats.ir)


def store_floats(floats: Any, address: Any) -> None:
    """Floats as 16 float32."""
    memory(address, 16, np.float32)[:] = floats


@compiled(store_floats, types.void, Floats, INT)
def _(b: Any, floats: Any, address: Any) -> None:
    store(b, floats, address)


def store_low_halves(lanes: Any, count: Any, address: Any) -> None:
    """The low halves of the first `count` of 16 parted lanes, in order, as 16 int16, and 0 for the rest."""
    low = (lanes[WOVEN] & 0xFFFF).astype(np.uint16)
    memory(address, 16, np.uint16)[:] = np.where(np.arange(16) < count, low, np.uint16(0))


@compiled(store_low_halves, types.void, Lanes, WORD, INT)
def _(b: Any, lanes: Any, count: Any, address: Any) -> None:
    even, odd = pick(b, lanes, lanes, list(range(8))), pick(b, lanes, lanes, list(range(8, 16)))
    words = b.or_(b.and_(even, all_of(I32X8, 0xFFFF)), b.shl(odd, all_of(I32X8, 16)))
    counts = broadcast(b, b.trunc(count, ir.IntType(16)), I16X16)
    here = b.icmp_signed("<", ir.Constant(I16X16, list(range(16))), counts)
    store(b, b.select(here, b.bitcast(words, I16X16), all_of(I16X16, 0)), address)


# -- floats: + - * / and these ---------------------------------------------------------------------------------------


def splat_float(number: Any) -> Any:
    """Floats that all hold one float32."""
    return np.full(16, number, np.float32)


@compiled(splat_float, Floats, FLOAT)
def _(b: Any, number: Any) -> Any:
    return broadcast(b, number, Floats.ir)


def greater_float(a: Any, b: Any) -> Any:
    """The greater of each two finite floats."""
    return np.maximum(a, b)


@compiled(greater_float, Floats, Floats, Floats)
def _(b: Any, one: Any, other: Any) -> Any:
    return b.select(b.fcmp_ordered(">", one, other), one, other)


def magnitude(floats: Any) -> Any:
    """Floats without their signs."""
    return np.abs(floats)


@compiled(magnitude, Floats, Floats)
def _(b: Any, floats: Any) -> Any:
    return _floats(b, b.and_(_bits(b, floats), all_of(Lanes.ir, 0x7FFFFFFF)))


def bits_of(floats: Any) -> Any:
    """Lanes of the floats' bits."""
    return floats.view(np.int32)


@compiled(bits_of, Lanes, Floats)
def _(b: Any, floats: Any) -> Any:
    return _bits(b, floats)


def floats_of(lanes: Any) -> Any:
    """Floats of lanes' bits."""
    return lanes.view(np.float32)


@compiled(floats_of, Floats, Lanes)
def _(b: Any, lanes: Any) -> Any:
    return _floats(b, lanes)


def add_to_doubles(floats: Any, address: Any) -> None:
    """Add the floats to 4 float64 at an address: four to each, which takes two float32 roundings."""
    eight = floats[:8] + floats[8:]
    memory(address, 4, np.float64)[:] += (eight[:4] + eight[4:]).astype(np.float64)


@compiled(add_to_doubles, types.void, Floats, INT)
def _(b: Any, floats: Any, address: Any) -> None:
    eight = b.fadd(pick(b, floats, floats, list(range(8))), pick(b, floats, floats, list(range(8, 16))))
    four = b.fadd(pick(b, eight, eight, list(range(4))), pick(b, eight, eight, list(range(4, 8))))
    store(b, b.fadd(load(b, address, F64X4), b.fpext(four, F64X4)), address)


def store_doubles(number: Any, address: Any) -> None:
    """4 float64 that are one number."""
    memory(address, 4, np.float64)[:] = number


@compiled(store_doubles, types.void, types.float64, INT)
def _(b: Any, number: Any, address: Any) -> None:
    store(b, broadcast(b, number, F64X4), address)


def sum_doubles(address: Any) -> Any:
    """Sum of 4 float64."""
    one, two, three, four = memory(address, 4, np.float64)
    return (one + two) + (three + four)


@compiled(sum_doubles, types.float64, INT)
def _(b: Any, address: Any) -> Any:
    one, two, three, four = (load(b, offset(b, address, 8 * n), ir.DoubleType()) for n in range(4))
    return b.fadd(b.fadd(one, two), b.fadd(three, four))


def load_double(address: Any) -> Any:
    """One float64."""
    return memory(address, 1, np.float64)[0]


@compiled(load_double, types.float64, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, ir.DoubleType())


def add_squares(row: Any, half: Any, back: Any, errors: Any, totals: Any) -> None:
    """Add to 16 float64 each the exact squares of 16 numbers less those that came `back`, float32, and of the numbers.

    row: of 16-bit floats, half or bfloat16.
    """
    numbers = widen_bits(memory(row, 16, np.uint16), half)
    memory(errors, 16, np.float64)[:] += (numbers - memory(back, 16, np.float32)).astype(np.float64) ** 2
    memory(totals, 16, np.float64)[:] += numbers.astype(np.float64) ** 2


@compiled(add_squares, types.void, INT, FLAG, INT, INT, INT)
def _(b: Any, row: Any, half: Any, back: Any, errors: Any, totals: Any) -> None:
    parted = branch(b, half, lambda: [widen_row(b, row, True)], lambda: [widen_row(b, row, False)])[0]
    numbers = pick(b, parted, parted, WOVEN)
    for number, at in ((b.fsub(numbers, load(b, back, Floats.ir)), errors), (numbers, totals)):
        wide = b.fpext(number, F64X16)
        store(b, b.fadd(load(b, at, F64X16), b.fmul(wide, wide)), at)


def _operators() -> None:
    builders = {operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul", operator.truediv: "fdiv"}
    for op, name in builders.items():

        @compiled(op, Floats, Floats, Floats)
        def _(b: Any, one: Any, two: Any, name: str = name) -> Any:
            return getattr(b, name)(one, two)


_operators()


def multiply_add(b: Any, one: Any, two: Any, three: Any) -> Any:
    """one * two + three, fused or not: only where both give the same, or the result is but an estimate."""
    return call(b, "llvm.fmuladd.v16f32", Floats.ir, one, two, three)
