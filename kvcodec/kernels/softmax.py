"""Softmax in integers: logits in log2 units, weights against the exponent of their own block, sums that merge.

A logit is an int32 with 16 bits behind the point. A weight is 2**(logit - exponent) as Q16, where exponent is that of
its block of at most 64 tokens; so long tails far below the greatest logit keep their bits, and blocks meet by shifts.
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
    keep_first,
    multiply_high,
    shift_unsigned,
    smaller,
    splat,
)
from kvcodec.kernels._simd import (
    load_lanes,
    load_long,
    load_longs,
    load_word,
    store_lanes,
    store_long,
    store_longs,
    widen_lanes,
)
from kvcodec.kernels.forms import EXPONENT, MEAN, SCALE, TOP, TOTAL

LIMIT = np.int32(1 << 29)  # logits beyond +-2**13 log2 units saturate
MASKED = np.int32(-(1 << 30))  # of a token that is not attended to
LARGEST = np.int32(0x7FFFFFFF)
EMPTY = np.int64(-(1 << 40))  # exponent of a state that has seen nothing
TOTAL_BITS = np.int64(20)
OUTPUT_BITS = np.int64(47)
TOTAL_POINT = np.int64(36)  # of a sum of shares


@inline
def clamp_shift(shift: Any) -> Any:
    """A shift to the left that an int32 can take: from 30 on all but 0 saturate, below -31 nothing is left."""
    return np.int32(min(max(shift, np.int64(-31)), np.int64(30)))


@part
def add_logits(sums: Any, count: Any, zero: Any, room: Any, shift: Any, factor: Any, logits: Any) -> None:
    """Add (sum + zero) * 2**shift * factor / 2**32 to as many logits, `count`, saturating at +-LIMIT.

    room: bits of the greatest |sum|; factor: 2**30 to 2**31. Behind sums and logits 15 more can be accessed.
    """
    spare = np.int64(max(np.int64(bit_length(abs(zero))), np.int64(room)) - 30)
    spare = max(spare, np.int64(0))
    left = clamp_shift(np.int64(shift) + spare)
    most = np.int32(LARGEST >> max(left, np.int32(0)))
    offset, right = np.int32(zero >> spare), np.int32(spare)
    for i in range(0, count, 16):
        number = (load_lanes(sums + 4 * i) >> right) + offset
        number = greater(smaller(number, splat(most)), splat(-most)) << left if left >= 0 else number >> -left
        logit = multiply_high(number, factor)
        if count - i < 16:
            logit = keep_first(logit, np.int32(count - i), np.int32(0))
        logit = load_lanes(logits + 4 * i) + logit
        store_lanes(greater(smaller(logit, splat(LIMIT)), splat(-LIMIT)), logits + 4 * i)


@part
def scale_logit(number: Any, shift: Any, factor: Any) -> Any:
    """int32 of number * 2**shift * factor / 2**32 for an int64, saturating at +-LIMIT."""
    spare = np.int64(max(np.int64(bit_length(abs(number))) - 31, np.int64(0)))
    number = np.int64(number >> spare)
    left = np.int64(clamp_shift(np.int64(shift) + spare))
    if left >= 0:
        most = np.int64(np.int64(LARGEST) >> left)
        number = np.int64(min(max(number, -most), most) << left)
    else:
        number = np.int64(number >> -left)
    logit = np.int64(np.int64(number * np.int64(factor)) >> 32)
    return np.int32(min(max(logit, np.int64(-LIMIT)), np.int64(LIMIT)))


@inline
def add_logit(logit: Any, more: Any) -> Any:
    """Sum of two logits, saturating at +-LIMIT."""
    return np.int32(min(max(np.int32(logit + more), np.int32(-LIMIT)), LIMIT))


@inline
def greatest_logit(logits: Any, count: Any) -> Any:
    """Of `count`; MASKED of none."""
    most = splat(MASKED)
    for i in range(0, count, 16):
        most = greater(most, keep_first(load_lanes(logits + 4 * i), np.int32(count - i), MASKED))
    return np.int32(greatest_lane(most))


@part
def weigh_logits(logits: Any, count: Any, shares: Any, first: Any) -> Any:
    """Shares from number `first` on: 2**(logit - exponent) as Q16, and 0 around them. (exponent, sum of the shares).

    count: at most 64 - first. If all logits are MASKED the sum is 0.
    """
    greatest = greatest_logit(logits, count)
    if first or count < 64:
        for i in range(0, 80, 16):
            store_lanes(splat(np.int32(0)), shares + 4 * i)
    if greatest == MASKED:
        return np.int64(0), np.int64(0)
    exponent = np.int32(np.int32(greatest + np.int32(65535)) >> np.int32(16))
    total = splat(np.int32(0))
    for i in range(0, count, 16):
        logit = keep_first(load_lanes(logits + 4 * i), np.int32(count - i), MASKED)
        share = raise_two(splat(np.int32(exponent << np.int32(16))) - logit)
        store_lanes(share, shares + 4 * (first + i))
        total = total + share
    return np.int64(exponent), np.int64(add_lanes(total))


@inline
def raise_two(below: Any) -> Any:
    """Lanes: 2**-below as Q16, below being Q16 and not negative.

    A polynomial of degree 4 whose coefficients were searched with these very roundings: off by at most 2 of 65536.
    """
    fraction, whole = below & 65535, smaller(below >> 16, splat(np.int32(31)))
    sixteen = splat(np.int32(16))
    number = splat(np.int32(3482)) - shift_unsigned(fraction * 443, sixteen)
    number = splat(np.int32(15691)) - shift_unsigned(number * fraction, sixteen)
    number = splat(np.int32(45419)) - shift_unsigned(number * fraction, sixteen)
    number = splat(np.int32(65535)) - shift_unsigned(number * fraction, sixteen)
    half = shift_unsigned(splat(np.int32(1)) << whole, splat(np.int32(1)))
    return shift_unsigned(number + half, whole)


@inline
def count_shares(state: Any, exponent: Any, total: Any) -> None:
    """Enter a block's sum of shares, at its exponent, in a state."""
    top = load_long(state + TOP)
    if exponent > top:
        store_long(load_long(state + TOTAL) >> min(np.int64(exponent - top), np.int64(63)), state + TOTAL)
        store_long(exponent, state + TOP)
        top = exponent
    below = min(np.int64(top - exponent), np.int64(63))
    more = np.int64(np.int64(total << TOTAL_BITS) >> below)
    store_long(np.int64(load_long(state + TOTAL) + more), state + TOTAL)


@inline
def raise_outputs(state: Any, outputs: Any, dim: Any, exponent: Any) -> None:
    """Have a state's outputs, `dim` of them, a multiple of 16, hold numbers below 2**exponent."""
    scale = load_long(state + SCALE)
    if exponent > scale:
        down = min(np.int64(exponent - scale), np.int64(63))
        for c in range(0, dim, 8):
            store_longs(load_longs(outputs + 8 * c) >> down, outputs + 8 * c)
        store_long(np.int64(exponent), state + SCALE)


@part
def add_outputs(sums: Any, count: Any, zero: Any, room: Any, exponent: Any, state: Any, outputs: Any, at: Any) -> None:
    """Add (sum + zero) * 2**exponent to `count` outputs at an address, a multiple of 16.

    sums: int32; room: bits of the greatest |sum|. outputs: all of the state's, and how many.
    """
    bits = np.int64(max(np.int64(bit_length(abs(zero))), np.int64(room)) + 1)
    raise_outputs(state, outputs[0], outputs[1], np.int64(exponent + bits))
    left = np.int64(OUTPUT_BITS - load_long(state + SCALE) + exponent)
    if left >= 0:
        for c in range(0, count, 8):
            number = (widen_lanes(sums + 4 * c) + zero) << left
            store_longs(load_longs(at + 8 * c) + number, at + 8 * c)
    else:
        right = min(np.int64(-left), np.int64(63))
        for c in range(0, count, 8):
            number = (widen_lanes(sums + 4 * c) + zero) >> right
            store_longs(load_longs(at + 8 * c) + number, at + 8 * c)


@inline
def add_wide_outputs(high: Any, low: Any, dim: Any, exponent: Any, state: Any, outputs: Any) -> None:
    """Add (high * 256 + low) * 2**exponent to all outputs: int32 both, their sum of at most 37 bits."""
    raise_outputs(state, outputs, dim, np.int64(exponent + 38))
    left = np.int64(OUTPUT_BITS - load_long(state + SCALE) + exponent)
    up, down = max(left, np.int64(0)), min(max(np.int64(-left), np.int64(0)), np.int64(63))
    for c in range(0, dim, 8):
        number = (widen_lanes(high + 4 * c) << 8) + widen_lanes(low + 4 * c)
        store_longs(load_longs(outputs + 8 * c) + ((number << up) >> down), outputs + 8 * c)


@part
def add_totals(totals: Any, dim: Any, exponent: Any, state: Any, outputs: Any) -> None:
    """Add int64 totals, of at most 54 bits, times 2**exponent to all outputs."""
    most = np.int64(0)
    for c in range(dim):
        most = max(most, abs(load_long(totals + 8 * c)))
    if most == 0:
        return
    raise_outputs(state, outputs, dim, np.int64(exponent + np.int64(bit_length(most))))
    left = np.int64(OUTPUT_BITS - load_long(state + SCALE) + exponent)
    up, down = max(left, np.int64(0)), min(max(np.int64(-left), np.int64(0)), np.int64(63))
    for c in range(0, dim, 8):
        store_longs(load_longs(outputs + 8 * c) + ((load_longs(totals + 8 * c) << up) >> down), outputs + 8 * c)


@part
def add_mean(dictionary: Any, top: Any, total: Any, dim: Any, sums: Any, state: Any, outputs: Any) -> None:
    """Add the mean of a dictionary, or of product codes, times a sum of shares, as count_shares leaves it, to all
    outputs. sums: room for as many int64.
    """
    mean = load_long(dictionary + MEAN)
    spare = max(np.int64(bit_length(total)) - np.int64(31), np.int64(0))
    for c in range(dim):
        number = np.int64(np.int64(total >> spare) * np.int64(load_word(mean + 4 * c)))
        store_long(number, sums + 8 * c)
    exponent = np.int64(top - TOTAL_POINT + spare)
    add_totals(sums, dim, np.int64(exponent + load_long(dictionary + EXPONENT)), state, outputs)


@inline
def begin_state(state: Any, outputs: Any, dim: Any) -> None:
    """A state that has seen nothing."""
    store_long(EMPTY, state + TOP)
    store_long(np.int64(0), state + TOTAL)
    store_long(EMPTY, state + SCALE)
    for c in range(dim):
        store_long(np.int64(0), outputs + 8 * c)


@part
def merge_state(state: Any, outputs: Any, other: Any, others: Any, dim: Any) -> None:
    """Add another state to one. Outputs leave room for as many sums as an int64 has bits to spare."""
    if load_long(other + TOTAL) == 0:
        return
    raise_outputs(state, outputs, dim, load_long(other + SCALE))
    down = min(np.int64(load_long(state + SCALE) - load_long(other + SCALE)), np.int64(63))
    most = np.int64(0)
    for c in range(dim):
        number = np.int64(load_long(outputs + 8 * c) + np.int64(load_long(others + 8 * c) >> down))
        store_long(number, outputs + 8 * c)
        most = max(most, abs(number))
    if most >> np.int64(60):
        raise_outputs(state, outputs, dim, np.int64(load_long(state + SCALE) + 2))
    exponent = max(load_long(state + TOP), load_long(other + TOP))
    mine = min(np.int64(exponent - load_long(state + TOP)), np.int64(63))
    its = min(np.int64(exponent - load_long(other + TOP)), np.int64(63))
    total = np.int64(load_long(state + TOTAL) >> mine) + np.int64(load_long(other + TOTAL) >> its)
    store_long(np.int64(total), state + TOTAL)
    store_long(np.int64(exponent), state + TOP)
