"""Attention on raw 16-bit rows with integers: a row is int16 numbers that share the exponent of its greatest one.

Rows become numbers once, for all query heads that share them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import (
    add_lanes,
    greater,
    greatest_lane,
    keep_first,
    smaller,
    splat,
    where_zero,
)
from kvcodec.kernels._products import dot_halves, weigh_pair
from kvcodec.kernels._raw_rows import dot_rows
from kvcodec.kernels._simd import (
    load_long,
    load_signed,
    load_word,
    store_lanes,
    store_numbers,
    store_word,
)
from kvcodec.kernels.softmax import add_logit, scale_logit

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
def align_rows(row: Any, stride: Any, tokens: Any, dim: Any, segment: Any, half: Any, numbers: Any) -> None:
    """Rows as int16 numbers, `dim` of them each, and behind 64 rows the exponents, int32, of each row's segments.

    row: the first one; stride: bytes between them. segment: channels that share an exponent; as dim a multiple of 16.
    """
    exponents = numbers + 128 * dim
    for t in range(tokens):
        for at in range(0, dim, segment):
            here, count = row + t * stride + 2 * at, min(segment, dim - at)
            exponent = find_exponent(here, count, half)
            store_word(exponent, exponents)
            exponents += 4
            for c in range(0, count, 16):
                store_numbers(align_numbers(here + 2 * c, exponent, half), numbers + 2 * (t * dim + at + c))


@part
def score_rows(
    numbers: Any,
    dim: Any,
    tokens: Any,
    count: Any,
    exponents: Any,
    step: Any,
    weights: Any,
    scale: Any,
    logits: Any,
    totals: Any,
) -> None:
    """Add to `tokens` logits those of rows of `dim` numbers, of which `count`, a multiple of 16, meet int16 weights.

    exponents: that of the first row, the others `step` bytes apart. scale: shift and factor, see `scale_logit`. totals:
    room for 4 int64.
    """
    shift, factor = scale
    fours = tokens & -4
    for first in range(0, fours, 4):
        dot_rows(numbers + 2 * first * dim, 2 * dim, weights, count, totals)
        for n in range(4):
            t = first + n
            left = np.int64(np.int64(shift) + np.int64(load_word(exponents + t * step)))
            logit = scale_logit(load_long(totals + 8 * n), left, factor)
            store_word(add_logit(load_word(logits + 4 * t), logit), logits + 4 * t)
    for t in range(fours, tokens):
        sums = splat(ZERO)
        for c in range(0, count, 16):
            sums = dot_halves(sums, numbers + 2 * (t * dim + c), weights + 2 * c)
        high = keep_first(sums, np.int32(8), ZERO)
        total = np.int64(np.int64(np.int64(add_lanes(high)) << 8) + np.int64(add_lanes(sums - high)))
        logit = scale_logit(total, np.int64(shift) + np.int64(load_word(exponents + t * step)), factor)
        store_word(add_logit(load_word(logits + 4 * t), logit), logits + 4 * t)


@part
def scale_by_rows(tokens: Any, shares: Any, exponents: Any, scaled: Any) -> Any:
    """scaled: 64 shares times 2**7 and the exponents of their rows, relative to the one that is returned; 0 behind."""
    top = ZERO
    for t in range(tokens):
        top = max(top, load_word(exponents + 4 * t)) if load_word(shares + 4 * t) else top
    for t in range(0, 64, 16):
        store_lanes(splat(ZERO), scaled + 4 * t)
    for t in range(tokens):
        down = np.int32(min(max(np.int32(top - load_word(exponents + 4 * t)), ZERO), np.int32(31)))
        share = np.int32(load_word(shares + 4 * t) << np.int32(7))
        store_word(np.int32(share >> down), scaled + 4 * t)
    return np.int32(top)


@part
def weigh_rows(numbers: Any, tokens: Any, dim: Any, weights: Any, high: Any, low: Any) -> None:
    """high * 256 + low: the channels of rows times their weights, int16 and not negative. Those behind are 0."""
    for c in range(0, dim, 16):
        upper, lower = splat(ZERO), splat(ZERO)
        for t in range(0, tokens, 2):
            one, two = numbers + 2 * (t * dim + c), numbers + 2 * ((t + 1) * dim + c)
            upper = weigh_pair(upper, one, two, weights + 2 * t, False)
            lower = weigh_pair(lower, one, two, weights + 2 * t, True)
        store_lanes(upper, high + 4 * c)
        store_lanes(lower, low + 4 * c)
