"""What quantizing does with a quad, 16 channels of 4 tokens: round it, and lay its codes into tiles.

Numbers, codes and steps are parted Floats and Lanes (_floats_simd.py). Steps are STEPS rows of 16 float32: a lane of
a row is a channel or, of groups of channels, a token. The bits of a rounded float have its code in their low byte, and
nothing else in their low half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kvcodec.kernels._floats_simd import (
    FLAG,
    FLOAT,
    I32X8,
    WOVEN,
    Floats,
    branch,
    load_parted,
    multiply_add,
    offset,
    widen_row,
)
from kvcodec.kernels._vectors import (
    FEATURES,
    I16X16,
    INT,
    Lanes,
    all_of,
    broadcast,
    compiled,
    load,
    memory,
    pick,
    store,
)

INVERSE, SHIFT, SCALE, OFFSET, STEPS = range(5)  # 1 / scale; subtracted before rounding; scale; shift * scale
ROW = 64  # bytes
ROUNDED = types.Tuple((Lanes, Floats, Floats))  # type: ignore[no-untyped-call]
PLACES = (0, 32, 4, 36)  # bytes to four parted lanes that follow each other

# -- rounding --------------------------------------------------------------------------------------------------------


def round_by_channel(row: Any, stride: Any, half: Any, steps: Any, symmetric: Any, magic: Any) -> Any:
    """Round the 16 channels of 4 tokens. Lanes, parted, whose bytes are the tokens' codes, and Floats: sums of squares,
    of what the codes miss and of the numbers, each in 4 float32 roundings.

    row: of 16-bit floats, half or bfloat16; stride: bytes to the next token. magic: added, rounds to a code.
    """
    lanes = memory(steps, 16 * STEPS, np.float32).reshape(STEPS, 16)
    return _round_twin([load_parted(row + stride * n, half) for n in range(4)], [lanes] * 4, symmetric, magic)


@compiled(round_by_channel, ROUNDED, INT, INT, FLAG, INT, FLAG, FLOAT)
def _(b: Any, row: Any, stride: Any, half: Any, steps: Any, *rest: Any) -> Any:
    def step(_: int, field: int) -> Any:
        return load(b, offset(b, steps, ROW * field), Floats.ir)

    return _round_quad(b, row, stride, half, step, *rest)


def round_by_token(row: Any, stride: Any, half: Any, steps: Any, symmetric: Any, magic: Any) -> Any:
    """`round_by_channel` with a step each token: those of the first of them are at `steps`."""
    lanes = [[memory(steps + ROW * f + place, 1, np.float32) for f in range(STEPS)] for place in PLACES]
    return _round_twin([load_parted(row + stride * n, half) for n in range(4)], lanes, symmetric, magic)


@compiled(round_by_token, ROUNDED, INT, INT, FLAG, INT, FLAG, FLOAT)
def _(b: Any, row: Any, stride: Any, half: Any, steps: Any, *rest: Any) -> Any:
    def step(token: int, field: int) -> Any:
        return broadcast(b, load(b, offset(b, steps, ROW * field + PLACES[token]), ir.FloatType()), Floats.ir)

    return _round_quad(b, row, stride, half, step, *rest)


def _round_twin(numbers: Any, steps: Any, symmetric: Any, magic: Any) -> Any:
    codes, error, total = [], np.zeros(16, np.float32), np.zeros(16, np.float32)
    for x, lanes in zip(numbers, steps, strict=True):
        shift, origin = (np.float32(0), np.float32(0)) if symmetric else (lanes[SHIFT], lanes[OFFSET])
        rounded = x * lanes[INVERSE] - shift + magic
        missed = x - ((rounded - magic) * lanes[SCALE] + origin)
        codes.append((rounded.view(np.int32) & 255).astype(np.uint8))
        error, total = error + missed * missed, total + x * x
    return np.stack(codes, axis=1).view(np.int32)[:, 0], error, total


def _round_quad(
    b: Any, row: Any, stride: Any, half: Any, step: Callable[[int, int], Any], symmetric: Any, magic: Any
) -> Any:
    def round_case(is_half: bool, is_symmetric: bool) -> list[Any]:
        return _round_numbers(b, row, stride, is_half, step, magic, is_symmetric)

    merged = branch(
        b,
        half,
        lambda: branch(b, symmetric, lambda: round_case(True, True), lambda: round_case(True, False)),
        lambda: branch(b, symmetric, lambda: round_case(False, True), lambda: round_case(False, False)),
    )
    out = ir.Constant(ir.LiteralStructType([Lanes.ir, Floats.ir, Floats.ir]), ir.Undefined)
    for n, value in enumerate(merged):
        out = b.insert_value(out, value, n)
    return out


def _round_numbers(
    b: Any, row: Any, stride: Any, half: Any, step: Callable[[int, int], Any], magic: Any, symmetric: bool
) -> list[Any]:
    """Symmetric steps have no shift. The product and the sum of what a code stands for are exact, fused or not.

    The fences, which are no instructions, keep tokens apart: what LLVM mingles does not fit the registers.
    """
    codes, error, total, magics = [], None, None, broadcast(b, magic, Floats.ir)
    for n in range(4):
        x = widen_row(b, row, half)
        row = b.add(row, stride)
        steps = b.fmul(x, step(n, INVERSE))
        rounded = b.fadd(steps if symmetric else b.fsub(steps, step(n, SHIFT)), magics)
        code, scale = b.fsub(rounded, magics), step(n, SCALE)
        if symmetric:
            missed = multiply_add(b, b.fneg(code), scale, x)
        else:
            missed = b.fsub(x, multiply_add(b, code, scale, step(n, OFFSET)))
        codes.append(b.bitcast(rounded, Lanes.ir))
        error = b.fmul(missed, missed) if error is None else multiply_add(b, missed, missed, error)
        total = b.fmul(x, x) if total is None else multiply_add(b, x, x, total)
        if n % 2:
            codes.append(b.add(codes.pop(-2), b.shl(codes.pop(), all_of(Lanes.ir, 8))))
        error, total = pin(b, error), pin(b, total)
        b.fence("seq_cst", "singlethread")
    low = b.and_(codes[0], all_of(Lanes.ir, 0xFFFF))
    return [b.or_(low, b.shl(codes[1], all_of(Lanes.ir, 16))), error, total]


def pin(b: Any, floats: Any) -> Any:
    """Floats that LLVM computes here, in the order of the text, and nowhere else."""
    if not FEATURES.get("avx2"):
        return floats
    if FEATURES.get("avx512f"):
        return _pin(b, floats)
    low, high = (_pin(b, pick(b, floats, floats, list(range(n, n + 8)))) for n in (0, 8))
    return pick(b, low, high, list(range(16)))


def _pin(b: Any, value: Any) -> Any:
    return b.asm(ir.FunctionType(value.type, [value.type]), "", "=x,0", [value], side_effect=True)


# -- codes into tiles ------------------------------------------------------------------------------------------------


def weave(lanes: Any) -> Any:
    """Parted lanes in order."""
    return lanes[WOVEN]


@compiled(weave, Lanes, Lanes)
def _(b: Any, lanes: Any) -> Any:
    return pick(b, lanes, lanes, WOVEN)


def lay_words(codes: Any, address: Any) -> None:
    """Four tokens' codes of 8 bits into 4 rows of a token-lane tile. codes: of round_by_channel."""
    for n, words in enumerate(_turn_twin(codes)):
        memory(address + ROW * n, 4, np.int32)[:] = words


@compiled(lay_words, types.void, Lanes, INT)
def _(b: Any, codes: Any, address: Any) -> None:
    low, high = _turn_codes(b, codes)
    for n, (words, part) in enumerate(((low, 0), (high, 0), (low, 4), (high, 4))):
        store(b, pick(b, words, words, list(range(part, part + 4))), offset(b, address, ROW * n))


def lay_nibbles(codes: Any, address: Any) -> None:
    """`lay_words` of 4 bits a code, into 2 rows."""
    one, two, three, four = _turn_twin(codes)
    memory(address, 4, np.int32)[:] = one | two << 4
    memory(address + ROW, 4, np.int32)[:] = three | four << 4


@compiled(lay_nibbles, types.void, Lanes, INT)
def _(b: Any, codes: Any, address: Any) -> None:
    low, high = _turn_codes(b, codes)
    words = b.or_(low, b.shl(high, all_of(I32X8, 4)))
    for n in range(2):
        store(b, pick(b, words, words, list(range(4 * n, 4 * n + 4))), offset(b, address, ROW * n))


def lay_pairs(codes: Any, address: Any) -> None:
    """`lay_words` of 2 bits a code, into a row."""
    one, two, three, four = _turn_twin(codes)
    memory(address, 4, np.int32)[:] = one | two << 2 | three << 4 | four << 6


@compiled(lay_pairs, types.void, Lanes, INT)
def _(b: Any, codes: Any, address: Any) -> None:
    low, high = _turn_codes(b, codes)
    words = b.or_(low, b.shl(high, all_of(I32X8, 2)))
    one, two = (pick(b, words, words, list(range(4 * n, 4 * n + 4))) for n in range(2))
    store(b, b.or_(one, b.shl(two, all_of(two.type, 4))), address)


def _turn_twin(codes: Any) -> Any:
    """Words of 4 channels, (4 words, 4 tokens)."""
    return np.ascontiguousarray(codes[WOVEN].view(np.uint8).reshape(4, 4, 4).transpose(0, 2, 1)).view(np.int32)[:, :, 0]


def _turn_codes(b: Any, codes: Any) -> list[Any]:
    """Words of 4 channels of 4 tokens: words 0 of the tokens and 2 of the tokens; 1 and 3."""
    even, odd = (
        b.bitcast(pick(b, codes, codes, list(range(n, n + 8))), ir.VectorType(ir.IntType(8), 32)) for n in (0, 8)
    )
    words = []
    for first in (0, 8):  # of each 16 bytes
        paired = pick(b, even, odd, [32 * k + 16 * h + first + n for h in (0, 1) for n in range(8) for k in (0, 1)])
        halves = b.bitcast(paired, I16X16)
        turned = pick(b, halves, halves, [8 * h + n + k for h in (0, 1) for n in range(4) for k in (0, 4)])
        words.append(b.bitcast(turned, I32X8))
    return words
