"""What dequantizing does with a quad, 16 channels of 4 tokens: take its codes out of a tile, scale and store them.

Codes are Bytes: byte j of lane c is of token j, channel c. Steps are two rows of 16 float32, shifts behind scales, a
lane a channel or a token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba import types

from kvcodec.kernels._floats_simd import FLAG, FLOAT, Floats, branch, offset
from kvcodec.kernels._vectors import (
    FEATURES,
    I16X16,
    INT,
    Bytes,
    Lanes,
    all_of,
    broadcast,
    compiled,
    load,
    memory,
    pick,
    store,
)
from kvcodec.kernels.floats import BFLOAT16, FLOAT32, STREAMED

ROW = 64  # bytes
I8X16, I8X32 = (ir.VectorType(ir.IntType(8), n) for n in (16, 32))
TURNED = [16 * q + 4 * i + j for q in range(4) for j in range(4) for i in range(4)]

# -- codes out of tiles ----------------------------------------------------------------------------------------------


def part_row(row: Any, shift: Any, mask: Any) -> Any:
    """Bytes of a row of a channel-lane tile, shifted right and masked."""
    return (memory(row, ROW, np.uint8) >> np.uint8(shift)) & np.uint8(mask)


@compiled(part_row, Bytes, INT, INT, INT)
def _(b: Any, row: Any, shift: Any, mask: Any) -> Any:
    words = b.lshr(load(b, row, Lanes.ir), broadcast(b, b.trunc(shift, ir.IntType(32)), Lanes.ir))
    return b.and_(b.bitcast(words, Bytes.ir), broadcast(b, b.trunc(mask, ir.IntType(8)), Bytes.ir))


def take_words(address: Any) -> Any:
    """Bytes of the codes of 8 bits of 4 tokens, whose lanes in the first of 4 rows of a token-lane tile are here."""
    return _take_twin(address, 8)


@compiled(take_words, Bytes, INT)
def _(b: Any, address: Any) -> Any:
    return _take_codes(b, address, 8)


def take_nibbles(address: Any) -> Any:
    """`take_words` of 4 bits a code, of 2 rows."""
    return _take_twin(address, 4)


@compiled(take_nibbles, Bytes, INT)
def _(b: Any, address: Any) -> Any:
    return _take_codes(b, address, 4)


def take_pairs(address: Any) -> Any:
    """`take_words` of 2 bits a code, of a row."""
    return _take_twin(address, 2)


@compiled(take_pairs, Bytes, INT)
def _(b: Any, address: Any) -> Any:
    return _take_codes(b, address, 2)


def _take_twin(address: Any, bits: int) -> Any:
    planes = 8 // bits
    rows = [memory(address + ROW * (q // planes), 16, np.uint8) >> np.uint8(bits * (q % planes)) for q in range(4)]
    return (np.concatenate(rows) & np.uint8((1 << bits) - 1))[TURNED]


def _take_codes(b: Any, address: Any, bits: int) -> Any:
    planes = 8 // bits
    rows = [load(b, offset(b, address, ROW * n), I8X16) for n in range(4 // planes)]
    halves = []
    for q in (0, 2):  # a plane of a row in each quarter
        low, high = rows[q // planes], rows[(q + 1) // planes]
        both = b.bitcast(pick(b, low, high, list(range(32))), ir.VectorType(ir.IntType(32), 8))
        shifts = ir.Constant(both.type, [bits * ((q + n // 4) % planes) for n in range(8)])
        halves.append(b.bitcast(b.lshr(both, shifts), I8X32))
    codes = b.and_(pick(b, halves[0], halves[1], list(range(64))), all_of(Bytes.ir, (1 << bits) - 1))
    return pick(b, codes, codes, TURNED)


# -- scaling ---------------------------------------------------------------------------------------------------------


def to_floats(lanes: Any) -> Any:
    """Floats of 16 int32 of at most 2**24."""
    return lanes.astype(np.float32)


@compiled(to_floats, Floats, Lanes)
def _(b: Any, lanes: Any) -> Any:
    return b.sitofp(lanes, Floats.ir)


def scale_by_channel(
    codes: Any,
    steps: Any,
    clamped: Any,
    greatest: Any,
    form: Any,
    out: Any,
    stride: Any,
) -> None:
    """Store (code + shift) * scale of 4 tokens in one of the forms; clamped: to +-greatest, else none is beyond it.

    out: of 16 numbers of the first token; stride: bytes to the next. STREAMED needs both multiples of 64.
    """
    lanes = memory(steps, 32, np.float32).reshape(2, 16)
    _scale_twin(codes, [lanes] * 4, greatest if clamped else np.float32(np.inf), form, out, stride)


@compiled(scale_by_channel, types.void, Bytes, INT, FLAG, FLOAT, INT, INT, INT)
def _(b: Any, codes: Any, steps: Any, *rest: Any) -> None:
    def step(_: int, field: int) -> Any:
        return load(b, offset(b, steps, ROW * field), Floats.ir)

    _scale_quad(b, codes, step, *rest)


def scale_by_token(
    codes: Any,
    steps: Any,
    clamped: Any,
    greatest: Any,
    form: Any,
    out: Any,
    stride: Any,
) -> None:
    """`scale_by_channel` with a step each token: those of the first of them are at `steps`."""
    lanes = [[memory(steps + ROW * field + 4 * n, 1, np.float32) for field in range(2)] for n in range(4)]
    _scale_twin(codes, lanes, greatest if clamped else np.float32(np.inf), form, out, stride)


@compiled(scale_by_token, types.void, Bytes, INT, FLAG, FLOAT, INT, INT, INT)
def _(b: Any, codes: Any, steps: Any, *rest: Any) -> None:
    def step(token: int, field: int) -> Any:
        return broadcast(b, load(b, offset(b, steps, ROW * field + 4 * token), ir.FloatType()), Floats.ir)

    _scale_quad(b, codes, step, *rest)


def _scale_twin(codes: Any, steps: Any, greatest: Any, form: Any, out: Any, stride: Any) -> None:
    for n, (scales, shifts) in enumerate(steps):
        numbers = np.clip((codes[n::4].astype(np.float32) + shifts) * scales, -greatest, greatest)
        if form in (FLOAT32, STREAMED):
            memory(out + n * stride, 16, np.float32)[:] = numbers
        else:
            narrow = numbers.astype(ml_dtypes.bfloat16 if form == BFLOAT16 else np.float16)
            memory(out + n * stride, 16, np.uint16)[:] = narrow.view(np.uint16)


def _scale_quad(
    b: Any, codes: Any, step: Callable[[int, int], Any], clamped: Any, greatest: Any, form: Any, out: Any, stride: Any
) -> None:
    numbers = []
    for n in range(4):
        wide = pick(b, codes, all_of(Bytes.ir, 0), [4 * c + n if k == 0 else 64 for c in range(16) for k in range(4)])
        code = b.uitofp(b.bitcast(wide, Lanes.ir), Floats.ir)
        numbers.append(b.fmul(b.fadd(code, step(n, 1)), step(n, 0)))
    numbers = branch(b, clamped, partial(_clamp, b, numbers, greatest), lambda: numbers)
    rows = [out]
    for _ in range(3):
        rows.append(b.add(rows[-1], stride))
    with b.if_else(b.icmp_signed("<=", form, ir.Constant(form.type, STREAMED))) as (wide, narrow):
        with wide, b.if_else(b.icmp_signed("==", form, ir.Constant(form.type, STREAMED))) as (streamed, cached):
            with streamed:
                hint = b.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
                for number, row in zip(numbers, rows, strict=True):
                    place = b.inttoptr(row, Floats.ir.as_pointer())
                    b.store(number, place, align=64).set_metadata("nontemporal", hint)
            with cached:
                for number, row in zip(numbers, rows, strict=True):
                    store(b, number, row)
        with narrow, b.if_else(b.icmp_signed("==", form, ir.Constant(form.type, BFLOAT16))) as (brain, half):
            for case, convert in ((brain, _narrow_brain), (half, _narrow_half)):
                with case:
                    for number, row in zip(numbers, rows, strict=True):
                        store(b, convert(b, number), row)


def _clamp(b: Any, numbers: list[Any], greatest: Any) -> list[Any]:
    most, least = broadcast(b, greatest, Floats.ir), broadcast(b, b.fneg(greatest), Floats.ir)
    below = [b.select(b.fcmp_ordered("<", number, most), number, most) for number in numbers]
    return [b.select(b.fcmp_ordered(">", number, least), number, least) for number in below]


def _narrow_brain(b: Any, number: Any) -> Any:
    """To nearest, ties to even."""
    bits = b.bitcast(number, Lanes.ir)
    odd = b.and_(b.lshr(bits, all_of(Lanes.ir, 16)), all_of(Lanes.ir, 1))
    rounded = b.add(b.add(bits, all_of(Lanes.ir, 0x7FFF)), odd)
    return b.trunc(b.lshr(rounded, all_of(Lanes.ir, 16)), I16X16)


def _narrow_half(b: Any, number: Any) -> Any:
    """To nearest, ties to even. Below 2**-14 adding 1/2 leaves the subnormal's bits in the low mantissa, rounded."""
    if FEATURES.get("f16c"):
        return b.bitcast(b.fptrunc(number, ir.VectorType(ir.HalfType(), 16)), I16X16)
    bits = b.bitcast(number, Lanes.ir)
    sign = b.lshr(b.and_(bits, all_of(Lanes.ir, 0x80000000)), all_of(Lanes.ir, 16))
    bits = b.and_(bits, all_of(Lanes.ir, 0x7FFFFFFF))
    odd = b.and_(b.lshr(bits, all_of(Lanes.ir, 13)), all_of(Lanes.ir, 1))
    rounded = b.lshr(b.add(b.add(bits, all_of(Lanes.ir, 0xFFF)), odd), all_of(Lanes.ir, 13))
    small = b.bitcast(b.fadd(b.bitcast(bits, Floats.ir), all_of(Floats.ir, 0.5)), Lanes.ir)
    tiny = b.and_(small, all_of(Lanes.ir, 0x3FFFFF))
    normal = b.icmp_signed(">=", bits, all_of(Lanes.ir, 0x38800000))
    chosen = b.select(normal, b.sub(rounded, all_of(Lanes.ir, 0x1C000)), tiny)
    return b.trunc(b.or_(chosen, sign), I16X16)


def settle() -> None:
    """Have what was streamed reach memory before anything after it."""


@compiled(settle, types.void)
def _(b: Any) -> None:
    b.fence("seq_cst")
