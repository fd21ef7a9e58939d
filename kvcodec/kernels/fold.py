"""Scales folded into what the codes are multiplied by: a query's channels, or the weights of tokens.

sum_i n_i s_i (code_i + z_i / parts) = 2**exponent (sum_i w_i code_i + zero), where w_i = n_i s_i 2**-exponent is
rounded to int16, or int8, and zero = sum_i w_i z_i / parts is of the same rounded w. A bfloat16 scale is a mantissa of
8 bits and a shift: no float is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import (
    add_lanes,
    bit_length,
    greater,
    greatest_lane,
    greatest_scale,
    keep_first,
    smaller,
    splat,
)
from kvcodec.kernels._products import (
    dot_halves,
)
from kvcodec.kernels._simd import (
    load_lanes,
    load_long,
    load_unsigned,
    store_lanes,
    store_long,
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
def round_weight(scaled: Any, half: Any, shift: Any, width: Any, halves: Any, bytes_: Any, i: Any) -> Any:
    """Lanes: 16 weights from number i on, rounded and stored."""
    weight = (load_lanes(scaled + 4 * i) + half) >> shift
    if width == 16:
        store_weights(weight, halves + 2 * i, bytes_ + i, LOW)
    else:
        store_small_weights(weight, halves + 2 * i, bytes_ + i)
    return weight


@part
def fold_scales(
    numbers: Any, scales: Any, step: Any, groups: Any, zeros: Any, count: Any, width: Any, bits: Any, scratch: Any
) -> None:
    """Weights of `count` numbers times the scales of each of `groups` groups, `step` bytes apart.

    scratch.folded: exponent and zero of each. Weights of the groups follow each other, at most SEGMENT in all; count is
    a multiple of 16. numbers: at most 2**23. zeros: bytes from scales to zeros, which count parts of a step, or 0 if
    symmetric. Products are shifted to the greatest exponent of a group's scales, those of numbers that are 0 apart, and
    rounded. Each stage takes all groups: while one waits for its greatest number, the next one goes on.
    """
    for g in range(groups):
        store_long(np.int64(greatest_scale(numbers, scales + g * step, count)) >> 7, scratch.folded + 16 * g)
    for g in range(groups):
        exponent = splat(np.int32(load_long(scratch.folded + 16 * g)))
        most = splat(np.int32(0))
        for i in range(0, count, 16):
            scale = load_unsigned(scales + g * step + 2 * i)
            product = load_lanes(numbers + 4 * i) * ((scale & 127) | 128)
            product = product >> (smaller(exponent - (scale >> 7), splat(np.int32(31))) & 31)  # below 0 of a 0 alone
            most = greater(most, greater(product, splat(np.int32(0)) - product))
            store_lanes(product, scratch.scaled + 4 * (g * count + i))
        store_long(np.int64(find_shift(most, width)), scratch.folded + 16 * g + 8)
    for g in range(groups):
        shift = load_long(scratch.folded + 16 * g + 8)
        zero = round_group(scales + g * step, zeros, g * count, count, np.int32(shift), width, bits, scratch)
        store_long(np.int64(load_long(scratch.folded + 16 * g) + shift), scratch.folded + 16 * g)
        store_long(zero, scratch.folded + 16 * g + 8)


@inline
def round_group(
    scales: Any, zeros: Any, first: Any, count: Any, shift: Any, width: Any, bits: Any, scratch: Any
) -> Any:
    """Round `count` scaled numbers from number `first` on to weights; the sum of weights times zeros is returned."""
    half = np.int32((np.int64(1) << shift) >> 1)
    scaled, weights = scratch.scaled + 4 * first, scratch.weights
    halves = weights.halves + 2 * first
    sums = splat(np.int32(0))
    if zeros:
        for i in range(0, count, 16):
            round_weight(scaled, half, shift, width, halves, weights.bytes + first, i)
            sums = dot_halves(sums, halves + 2 * i, scales + zeros + 2 * i)
        high = np.int64(add_lanes(keep_first(sums, np.int32(8), np.int32(0))))
        low = np.int64(add_lanes(sums - keep_first(sums, np.int32(8), np.int32(0))))
        total, parts = np.int64(np.int64(high << 8) + low), PARTS[bits]
        zero = np.int64((total + (np.int64(1) << parts >> 1)) >> parts)
    else:
        for i in range(0, count, 16):
            sums = sums + round_weight(scaled, half, shift, width, halves, weights.bytes + first, i)
        zero = np.int64(-np.int64(add_lanes(sums)) << (bits - 1))
    return zero


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
        sums = sums + round_weight(numbers, half, shift, width, weights.halves, weights.bytes, i)
    return np.int64(shift), np.int64(add_lanes(sums))
