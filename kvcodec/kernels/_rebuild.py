"""What rebuilding rows of codes for attention takes: sums of atoms in 16 bits, scales, rotations. See _vectors.py.

Atoms are bytes, each 128 more than it stands for, and lie so that two of them woven by registers are in the order of
their channels: of 32 channels first 0 to 7, then 16 to 23, 8 to 15, 24 to 31. Sums of int16 wrap, and what they come to
fits them: see rebuild.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._lookup import offset, plus
from kvcodec.kernels._products import add_pairs, multiply_bytes
from kvcodec.kernels._vectors import (
    HAS_AVX2,
    I16X16,
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
ROWS = 64  # tokens of a block
WIDE, NARROW = 128, 32  # channels that are summed at a time
BIAS = 128  # of an atom's bytes
ATOM_ORDER = np.r_[0:8, 16:24, 8:16, 24:32]
SUM_ORDER = np.r_[0:4, 8:12, 4:8, 12:16]  # of 16 channels, as weigh_sums gives them
_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_I8X8, _I8X32, _I8X64 = (ir.VectorType(_I8, n) for n in (8, 32, 64))
_I32X8, _I32X16, _I64X16 = ir.VectorType(_I32, 8), ir.VectorType(_I32, 16), ir.VectorType(_I64, 16)


def _weave(count: int, lane: int, half: int) -> list[int]:
    """Lanes of two vectors of `count`, woven in each lane of registers, as vpunpckl and vpunpckh do: their halves."""
    per = lane // 2
    chosen = [n for start in range(0, count, lane) for n in range(start + half * per, start + half * per + per)]
    return [k for n in chosen for k in (n, n + count)]


# -- codes of a block ------------------------------------------------------------------------------------------------


def weave_codes(one: Any, two: Any, both: Any, shift: Any, mask: Any, to: Any) -> None:
    """64 pairs of int8: of each plane (code >> shift) & mask, the second one's 0 unless `both`."""
    pairs = memory(to, 2 * ROWS, np.int8).reshape(ROWS, 2)
    for k, source in enumerate((one, two)):
        codes = (memory(source, ROWS, np.int8).astype(np.int32) >> shift) & mask
        pairs[:, k] = codes.astype(np.int8) if k == 0 or both else 0


@compiled(weave_codes, types.void, INT, INT, types.boolean, WORD, WORD, INT)
def _(b: Any, one: Any, two: Any, both: Any, shift: Any, mask: Any, to: Any) -> None:
    down, kept = (broadcast(b, b.trunc(n, _I8), _I8X64) for n in (shift, mask))
    planes = [b.and_(b.ashr(load(b, address, _I8X64), down), kept) for address in (one, two)]
    second = b.select(both, planes[1], all_of(_I8X64, 0))
    store(b, pick(b, planes[0], second, [n + ROWS * k for n in range(ROWS) for k in range(2)]), to)


def start_sums(pairs: Any, count: Any, to: Any) -> None:
    """64 int16: -BIAS times the sum of the codes of `count` planes of pairs."""
    codes = memory(pairs, 2 * count * ROWS, np.int8).reshape(count, ROWS, 2)
    memory(to, ROWS, np.int16)[:] = (codes.sum(axis=(0, 2)) * -BIAS).astype(np.int16)


@compiled(start_sums, types.void, INT, INT, INT)
def _(b: Any, pairs: Any, count: Any, to: Any) -> None:
    for n in range(0, ROWS, 16):
        place = _cgutils.alloca_once_value(b, all_of(I16X16, 0))
        with cgutils.for_range(b, count) as loop:
            codes = load(b, offset(b, plus(b, pairs, loop.index, 2 * ROWS), 2 * n), _I8X32)
            b.store(b.add(b.load(place), multiply_bytes(b, all_of(_I8X32, 1), codes)), place)
        store(b, b.mul(b.load(place), all_of(I16X16, -BIAS)), offset(b, to, 2 * n))


# -- rows ------------------------------------------------------------------------------------------------------------


def _sum_atoms(
    channels: int, atoms: Any, stride: Any, indices: Any, pairs: Any, count: Any, start: Any, sums: Any
) -> None:
    total = np.full(channels, start, np.int16)
    for p in range(count):
        for k in range(2):
            index = memory(indices + 2 * ROWS * (2 * p + k), 1, np.uint16)[0]
            code = memory(pairs + 2 * ROWS * p + k, 1, np.int8)[0]
            row = memory(atoms + int(index) * stride, channels, np.uint8).reshape(-1, NARROW)
            total += np.int16(code) * row[:, np.argsort(ATOM_ORDER)].reshape(-1).astype(np.int16)
    memory(sums, channels, np.int16)[:] = total


def sum_atoms(atoms: Any, stride: Any, indices: Any, pairs: Any, count: Any, start: Any, sums: Any) -> None:
    """WIDE int16: start + channels of 2 * count atoms, each times its code.

    atoms: the first one's first channel of these; stride: bytes from one to the next. indices: uint16, of a token,
    those of the next atom ROWS of them behind; pairs: alike of two codes each, int8.
    """
    _sum_atoms(WIDE, atoms, stride, indices, pairs, count, start, sums)


def sum_few_atoms(atoms: Any, stride: Any, indices: Any, pairs: Any, count: Any, start: Any, sums: Any) -> None:
    """The same of NARROW channels."""
    _sum_atoms(NARROW, atoms, stride, indices, pairs, count, start, sums)


def _build_sums(channels: int) -> Any:
    def build(b: Any, atoms: Any, stride: Any, indices: Any, pairs: Any, count: Any, start: Any, sums: Any) -> None:
        begin = broadcast(b, start, I16X16)
        totals = [_cgutils.alloca_once_value(b, begin) for _ in range(channels // 16)]
        with cgutils.for_range(b, count) as loop:
            here = plus(b, indices, loop.index, 4 * ROWS)
            rows = [
                b.add(atoms, b.mul(b.zext(load(b, offset(b, here, at), _I16), _I64), stride)) for at in (0, 2 * ROWS)
            ]
            code = broadcast(b, load(b, plus(b, pairs, loop.index, 2 * ROWS), _I16), I16X16)
            codes = b.bitcast(code, _I8X32)
            for n in range(0, channels, 32):
                one, two = (load(b, offset(b, row, n), _I8X32) for row in rows)
                for half in range(2):
                    place = totals[n // 16 + half]
                    woven = pick(b, one, two, _weave(32, 16, half))
                    b.store(b.add(b.load(place), multiply_bytes(b, woven, codes)), place)
        for n, place in enumerate(totals):
            store(b, b.load(place), offset(b, sums, 32 * n))

    return build


for _operation, _channels in ((sum_atoms, WIDE), (sum_few_atoms, NARROW)):
    compiled(_operation, types.void, INT, INT, INT, INT, INT, types.int16, INT)(_build_sums(_channels))


def weigh_sums(one: Any, two: Any, factors: Any) -> Any:
    """Lanes: 16 int16 at each of two addresses, times the low and the high half of an int32, added; in SUM_ORDER."""
    low, high = np.array([factors], np.int32).view(np.int16).astype(np.int32)
    return (memory(one, 16, np.int16) * low + memory(two, 16, np.int16) * high)[SUM_ORDER]


@compiled(weigh_sums, Lanes, INT, INT, WORD)
def _(b: Any, one: Any, two: Any, factors: Any) -> Any:
    first, second = (load(b, address, I16X16) for address in (one, two))
    both = b.bitcast(broadcast(b, factors, _I32X8), I16X16)
    halves = [add_pairs(b, pick(b, first, second, _weave(16, 8, half)), both) for half in range(2)]
    return pick(b, halves[0], halves[1], list(range(16)))


def store_sums(lanes: Any, address: Any) -> None:
    """16 numbers that stand in SUM_ORDER and fit an int16, in the order of their channels."""
    memory(address, 16, np.int16)[SUM_ORDER] = lanes.astype(np.int16)


@compiled(store_sums, types.void, Lanes, INT)
def _(b: Any, lanes: Any, address: Any) -> None:
    store(b, _narrow(b, lanes), address)


def _narrow(b: Any, lanes: Any) -> Any:
    if not HAS_AVX2:
        return b.trunc(pick(b, lanes, lanes, np.argsort(SUM_ORDER).tolist()), I16X16)
    return call(b, "llvm.x86.avx2.packssdw", I16X16, *(pick(b, lanes, lanes, list(range(n, n + 8))) for n in (0, 8)))


def turn_sums(one: Any, two: Any, half: Any, shift: Any, cosines: Any, sines: Any, to: Any, to_two: Any) -> None:
    """turn_halves of int32 numbers in SUM_ORDER, first (number + half) >> shift, which fit an int16."""
    rows = np.empty((2, 16), np.int16)
    for row, address in zip(rows, (one, two), strict=True):
        row[SUM_ORDER] = ((memory(address, 16, np.int32) + half) >> shift).astype(np.int16)
    turn_halves(rows[0].ctypes.data, rows[1].ctypes.data, cosines, sines, to, to_two)


@compiled(turn_sums, types.void, INT, INT, WORD, WORD, INT, INT, INT, INT)
def _(b: Any, one: Any, two: Any, half: Any, shift: Any, cosines: Any, sines: Any, to: Any, to_two: Any) -> None:
    more, down = (broadcast(b, number, Lanes.ir) for number in (half, shift))
    x, y = (_narrow(b, b.ashr(b.add(load(b, address, Lanes.ir), more), down)) for address in (one, two))
    _turn(b, x, y, cosines, sines, to, to_two)


def turn_halves(one: Any, two: Any, cosines: Any, sines: Any, to: Any, to_two: Any) -> None:
    """16 pairs of int16, turned by angles whose cosines and sines are Q15; each product is rounded, halves up."""
    x, y, c, s = (memory(address, 16, np.int16).astype(np.int32) for address in (one, two, cosines, sines))
    turned = [((p * q >> 14) + 1) >> 1 for p, q in ((x, c), (y, s), (y, c), (x, s))]
    memory(to, 16, np.int16)[:] = turned[0] - turned[1]
    memory(to_two, 16, np.int16)[:] = turned[2] + turned[3]


def _multiply_rounded(b: Any, one: Any, two: Any) -> Any:
    """vpmulhrsw."""
    if LEVEL != "portable" and HAS_AVX2:
        return call(b, "llvm.x86.avx2.pmul.hr.sw", I16X16, one, two)
    product = b.mul(b.sext(one, _I32X16), b.sext(two, _I32X16))
    unit = all_of(_I32X16, 1)
    return b.trunc(b.ashr(b.add(b.ashr(product, all_of(_I32X16, 14)), unit), unit), I16X16)


@compiled(turn_halves, types.void, INT, INT, INT, INT, INT, INT)
def _(b: Any, one: Any, two: Any, cosines: Any, sines: Any, to: Any, to_two: Any) -> None:
    x, y = (load(b, address, I16X16) for address in (one, two))
    _turn(b, x, y, cosines, sines, to, to_two)


def _turn(b: Any, x: Any, y: Any, cosines: Any, sines: Any, to: Any, to_two: Any) -> None:
    c, s = (load(b, address, I16X16) for address in (cosines, sines))
    store(b, b.sub(_multiply_rounded(b, x, c), _multiply_rounded(b, y, s)), to)
    store(b, b.add(_multiply_rounded(b, y, c), _multiply_rounded(b, x, s)), to_two)


def load_nibbles(address: Any) -> Any:
    """Lanes of 16 codes of 4 bits, the first one of each byte in its low half."""
    codes = memory(address, 8, np.uint8)
    return np.stack([codes & 15, codes >> 4], axis=1).reshape(16).astype(np.int32)


@compiled(load_nibbles, Lanes, INT)
def _(b: Any, address: Any) -> Any:
    codes = load(b, address, _I8X8)
    low, high = b.and_(codes, all_of(_I8X8, 15)), b.lshr(codes, all_of(_I8X8, 4))
    return b.zext(pick(b, low, high, [n + 8 * k for n in range(8) for k in range(2)]), Lanes.ir)


# -- queries ---------------------------------------------------------------------------------------------------------


def turn_numbers(one: Any, two: Any, cosines: Any, sines: Any, to: Any, to_two: Any) -> None:
    """16 pairs of int32, of at most 2**24, turned back by angles whose cosines and sines are Q30; halves up."""
    x, y, c, s = (memory(address, 16, np.int32).astype(np.int64) for address in (one, two, cosines, sines))
    memory(to, 16, np.int32)[:] = (x * c + y * s + (1 << 29)) >> 30
    memory(to_two, 16, np.int32)[:] = (y * c - x * s + (1 << 29)) >> 30


@compiled(turn_numbers, types.void, INT, INT, INT, INT, INT, INT)
def _(b: Any, one: Any, two: Any, cosines: Any, sines: Any, to: Any, to_two: Any) -> None:
    x, y, c, s = (b.sext(load(b, address, Lanes.ir), _I64X16) for address in (one, two, cosines, sines))
    for sums, address in (
        (b.add(b.mul(x, c), b.mul(y, s)), to),
        (b.sub(b.mul(y, c), b.mul(x, s)), to_two),
    ):
        rounded = b.lshr(b.add(sums, all_of(_I64X16, 1 << 29)), all_of(_I64X16, 30))
        store(b, b.trunc(rounded, Lanes.ir), address)
