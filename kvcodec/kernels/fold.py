"""Scales folded into what the codes are multiplied by: a query's channels, or the weights of tokens.

sum_i n_i s_i (code_i + z_i / parts) = 2**exponent (sum_i w_i code_i + zero), where w_i = n_i s_i 2**-exponent is
rounded to int16, or int8, and zero = sum_i w_i z_i / parts is of the same rounded w. A bfloat16 scale is a mantissa of
8 bits and a shift: no float is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._products import (
    dot_halves,
)
from kvcodec.kernels._simd import (
    add_lanes,
    bit_length,
    greater,
    greatest_half,
    greatest_lane,
    keep_first,
    load_lanes,
    load_unsigned,
    smaller,
    splat,
    store_lanes,
    store_small_weights,
    store_weights,
)
from kvcodec.kernels._tiles import LOW

SEGMENT = 256  # numbers folded together: 255 * 32767 * 256 products fit an int32
PARTS = (0, 0, 4, 0, 4, 0, 0, 0, 1)  # by bits: a step has 2**PARTS parts, in which zeros are counted
SCALE_BIAS = 134  # of a bfloat16's exponent, its mantissa taken as an integer


@inline
def find_shift(most: Any, width: Any) -> Any:
    """How far numbers must be shifted to be weights of `width` bits, 8 or 16, with their sign.

    most: lanes of which one is their greatest magnitude, at most 2**30.
    """
    greatest = np.int64(greatest_lane(most))
    bits = np.int64(bit_length(greatest + (greatest >> 7))) - np.int64(width - 1)  # a 128th below 2**15 fits two bytes
    return np.int32(max(bits, np.int64(0)))


@inline
def round_weight(scaled: Any, half: Any, shift: Any, width: Any, weights: Any, i: Any) -> Any:
    """Lanes: 16 weights from number i on, rounded and stored."""
    weight = (load_lanes(scaled + 4 * i) + half) >> shift
    if width == 16:
        store_weights(weight, weights.halves + 2 * i, weights.bytes + i, LOW)
    else:
        store_small_weights(weight, weights.halves + 2 * i, weights.bytes + i)
    return weight


@part
def fold_scales(
    numbers: Any, scales: Any, zeros: Any, count: Any, width: Any, bits: Any, scaled: Any, weights: Any
) -> Any:
    """Weights of `count` numbers times their scales: (exponent, zero).

    numbers: at most 2**23. zeros: bytes from scales to zeros, which count parts of a step, or 0 if symmetric. count: to
    SEGMENT, a multiple of 16. Products are shifted to the greatest exponent of the scales, then rounded to the width.
    """
    exponent = np.int32(greatest_half(scales, count) >> np.int32(7))
    most = splat(np.int32(0))
    for i in range(0, count, 16):
        scale = load_unsigned(scales + 2 * i)
        product = load_lanes(numbers + 4 * i) * ((scale & 127) | 128)
        product = product >> smaller(splat(exponent) - (scale >> 7), splat(np.int32(31)))
        most = greater(most, greater(product, splat(np.int32(0)) - product))
        store_lanes(product, scaled + 4 * i)
    shift = find_shift(most, width)
    half = np.int32((np.int64(1) << shift) >> 1)
    sums = splat(np.int32(0))
    if zeros:
        for i in range(0, count, 16):
            round_weight(scaled, half, shift, width, weights, i)
            sums = dot_halves(sums, weights.halves + 2 * i, scales + zeros + 2 * i)
        high = np.int64(add_lanes(keep_first(sums, np.int32(8), np.int32(0))))
        low = np.int64(add_lanes(sums - keep_first(sums, np.int32(8), np.int32(0))))
        parts = PARTS[bits]
        total = np.int64(np.int64(high << 8) + low)
        zero = np.int64((total + (np.int64(1) << parts >> 1)) >> parts)
    else:
        for i in range(0, count, 16):
            sums = sums + round_weight(scaled, half, shift, width, weights, i)
        zero = np.int64(-np.int64(add_lanes(sums)) << (bits - 1))
    return np.int64(np.int64(exponent) + np.int64(shift)), zero


@part
def fold_numbers(numbers: Any, count: Any, width: Any, weights: Any) -> Any:
    """Weights of `count` numbers that have no scales: (exponent, sum of the weights)."""
    most = splat(np.int32(0))
    for i in range(0, count, 16):
        number = load_lanes(numbers + 4 * i)
        most = greater(most, greater(number, splat(np.int32(0)) - number))
    shift = find_shift(most, width)
    half = np.int32((np.int64(1) << shift) >> 1)
    sums = splat(np.int32(0))
    for i in range(0, count, 16):
        sums = sums + round_weight(numbers, half, shift, width, weights, i)
    return np.int64(shift), np.int64(add_lanes(sums))
