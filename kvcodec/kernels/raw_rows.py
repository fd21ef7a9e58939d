"""Attention on raw 16-bit rows with integers: a row is int16 numbers that share the exponent of its greatest one."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._simd import (
    add_lanes,
    greater,
    greatest_lane,
    load_half,
    load_signed,
    load_word,
    smaller,
    splat,
    store_lanes,
    store_word,
    where_zero,
)
from kvcodec.kernels.softmax import scale_logit

FRACTION = (7, 10)  # bits of a mantissa: bfloat16, float16
BIAS = (141, 29)  # a row's number i stands for i * 2**(exponent - BIAS)
ZERO, ONE = np.int32(0), np.int32(1)


@inline
def find_exponent(row: Any, count: Any, half: Any) -> Any:
    """The greatest exponent field, at least 1, of `count` numbers. half: float16, else bfloat16."""
    most = splat(ZERO)
    for c in range(0, count, 16):
        most = greater(most, load_signed(row + 2 * c) & 0x7FFF)
    return np.int32(max(np.int32(greatest_lane(most) >> np.int32(FRACTION[half])), ONE))


@inline
def align_numbers(row: Any, exponent: Any, half: Any) -> Any:
    """Lanes: 16 numbers as integers of 15 bits and sign at a row's exponent, rounded."""
    bits = load_signed(row)
    fraction = np.int32(FRACTION[half])
    field = (bits & 0x7FFF) >> fraction
    hidden = np.int32(ONE << fraction)
    mantissa = (bits & np.int32(hidden - ONE)) + where_zero(field, splat(ZERO), splat(hidden))
    own = where_zero(field, splat(ONE), field)
    down = smaller(splat(exponent) - own, splat(np.int32(31)))
    number = (((mantissa << np.int32(np.int32(15) - fraction)) >> down) + 1) >> 1
    sign = bits >> 31
    return (number ^ sign) - sign


@part
def score_rows(
    row: Any, stride: Any, tokens: Any, count: Any, half: Any, weights: Any, shift: Any, factor: Any, logits: Any
) -> None:
    """Add to `tokens` logits those of as many rows, each `count` numbers, a multiple of 16, times int16 weights.

    row: the first one; stride: bytes between them. shift, factor: of the weights, see `scale_logit`.
    """
    for t in range(tokens):
        here = row + t * stride
        exponent = find_exponent(here, count, half)
        high, low = splat(ZERO), splat(ZERO)
        for c in range(0, count, 16):
            product = align_numbers(here + 2 * c, exponent, half) * load_signed(weights + 2 * c)
            high = high + (product >> 8)
            low = low + (product & 255)
        total = np.int64(np.int64(np.int64(add_lanes(high)) << 8) + np.int64(add_lanes(low)))
        logit = scale_logit(total, np.int64(shift) + np.int64(exponent) - np.int64(BIAS[half]), factor)
        store_word(np.int32(load_word(logits + 4 * t) + logit), logits + 4 * t)


@part
def scale_by_rows(
    row: Any, stride: Any, tokens: Any, count: Any, half: Any, shares: Any, exponents: Any, scaled: Any
) -> Any:
    """scaled: shares times 2**7 and the exponents of their rows, relative to the one that is returned."""
    top = ZERO
    for t in range(tokens):
        exponent = find_exponent(row + t * stride, count, half)
        store_word(exponent, exponents + 4 * t)
        top = max(top, exponent) if load_word(shares + 4 * t) else top
    for t in range(tokens):
        down = np.int32(min(max(np.int32(top - load_word(exponents + 4 * t)), ZERO), np.int32(31)))
        share = np.int32(load_word(shares + 4 * t) << np.int32(7))
        store_word(np.int32(share >> down), scaled + 4 * t)
    return np.int32(top)


@part
def weigh_rows(
    row: Any, stride: Any, tokens: Any, count: Any, half: Any, weights: Any, exponents: Any, high: Any, low: Any
) -> None:
    """high * 256 + low: `count` channels, a multiple of 16, of rows times their int16 weights."""
    for c in range(0, count, 16):
        upper, lower = splat(ZERO), splat(ZERO)
        for t in range(tokens):
            numbers = align_numbers(row + t * stride + 2 * c, load_word(exponents + 4 * t), half)
            product = numbers * np.int32(load_half(weights + 2 * t))
            upper = upper + (product >> 8)
            lower = lower + (product & 255)
        store_lanes(upper, high + 4 * c)
        store_lanes(lower, low + 4 * c)
