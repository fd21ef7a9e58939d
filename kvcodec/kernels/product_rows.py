"""Rows of product codes that no table of products serves, a strip at a time: int16 numbers, as raw rows become.

Such are keys from before their rotary embedding, and records some of whose rows are kept otherwise: see rebuild.py,
which has the same for codes over a dictionary, and docs/attention.md. All rows of trellis codes are rebuilt likewise,
and all of V that is predicted from the codes of its K, which are summed with its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import bit_length, greater, greatest_lane, keep_first, splat
from kvcodec.kernels._product_vectors import CENTROIDS, add_basis_pairs, load_byte
from kvcodec.kernels._simd import (
    load_half,
    load_lanes,
    load_long,
    load_word,
    store_half,
    store_lanes,
    store_numbers,
    store_word,
)
from kvcodec.kernels.fold import SCALE_BIAS, find_shift
from kvcodec.kernels.forms import (
    COMPONENTS,
    ENDS,
    ENTRIES,
    EXPONENT,
    FORM,
    GROUPS,
    MEAN,
    NEAR,
    PAIRED_BASIS,
    PAIRED_BOOKS,
    PLACE_BYTES,
    PREDICTED,
    RATES,
    START,
    TOLD,
    TURNING,
    WINDOW,
    read_form,
)
from kvcodec.kernels.kept import store_exponents
from kvcodec.kernels.product_scores import GAINED, take_sides
from kvcodec.kernels.raw_rows import BIAS
from kvcodec.kernels.turns import turn_row

ROWS = 64  # tokens of a block
PAIRS = 1024  # bytes of what a block's scales and gains take, behind which are pairs of components, int16
WIDTH, SUM_BITS, MEAN_BITS = np.int64(16), np.int64(20), np.int32(2)  # of numbers, of sums; those that a mean loses
ZERO, ONE, RIGHT = np.int64(0), np.int64(1), np.int64(31)


class Factors(NamedTuple):
    """What a row's sums, the mean and the sums of what is predicted are put together with: by how much each is shifted
    down before and after it is multiplied. exponent: of the numbers.
    """

    down: Any
    scale: Any
    right: Any
    gain: Any
    mean_right: Any
    told_down: Any
    told: Any
    told_right: Any
    exponent: Any


class Given(NamedTuple):
    """K of a strip of V that is predicted from it. product: its header, 0 where nothing is predicted. codes: of the
    first token's first group; shapes: from the first token's on.
    """

    product: Any
    codes: Any
    shapes: Any


@inline
def find_mantissa(number: Any) -> Any:
    """Mantissa of a bfloat16, 0 of 0."""
    return np.int32((number & 127) | 128) if number else np.int32(0)


@inline
def find_given(product: Any, strip: Any, place: Any, kv_head: Any, tables: Any) -> Any:
    """What V's header `product` predicts it from: codes of the stream before its own, see attention/predicted.py."""
    before, is_told = place - PLACE_BYTES, load_long(product + PREDICTED) != 0
    form = read_form(tables.forms, load_long(strip + before + FORM) if is_told else ZERO)
    start = load_long(strip + before + START) if is_told else ZERO
    head, within = load_long(strip + before) + kv_head * form.head_stride if is_told else ZERO, start & 63
    block = start >> 6
    codes = head + form.codes + block * ROWS * form.row_stride + within
    return Given(form.dictionary if is_told else ZERO, codes, head + block * 2 * ROWS + ROWS + within)


@inline
def find_factors(product: Any, scale: Any, gain: Any, most: Any, factor: Any, told: Any) -> Any:
    """Factors of a row with a scale and a gain. most: the greatest sum's magnitude; told: that of those of what is
    predicted, which are multiplied by `factor`.
    """
    down = max(np.int64(bit_length(most)) - SUM_BITS, ZERO)
    own = np.int64(np.int64(scale >> 7) - SCALE_BIAS + down)
    other = np.int64(np.int64(gain >> 7) - SCALE_BIAS + load_long(product + EXPONENT) + np.int64(MEAN_BITS))
    has_mean = (load_long(product + MEAN) != 0) & (gain != 0)
    exponent = own
    if has_mean:
        exponent = max(own, other) if scale else other
    told_down = max(np.int64(bit_length(told)) - SUM_BITS, ZERO)
    third = np.int64(np.int64(factor >> 7) - SCALE_BIAS + told_down)
    if factor:
        exponent = max(exponent, third) if scale != 0 or has_mean else third
    right = np.int32(min(max(np.int64(exponent - own), ZERO), RIGHT))
    mean_right = np.int32(min(max(np.int64(exponent - other), ZERO), RIGHT))
    told_right = np.int32(min(max(np.int64(exponent - third), ZERO), RIGHT))
    mean_factor = find_mantissa(gain) if has_mean else np.int32(0)
    return Factors(
        np.int32(down), find_mantissa(scale), right, mean_factor, mean_right,
        np.int32(told_down), find_mantissa(factor), told_right, exponent,
    )  # fmt: skip


@inline
def shift_rounded(number: Any, right: Any) -> Any:
    """Lanes shifted down, halves up."""
    return (number + np.int32((ONE << np.int64(right)) >> ONE)) >> right


@part
def look_up_centroids(product: Any, codes: Any, pairs: Any) -> None:
    """pairs, int16: a token's components. codes: the token's of the first group, those of others ROWS bytes apart."""
    books, begin = load_long(product + PAIRED_BOOKS), ZERO
    for g in range(load_long(product + GROUPS)):
        end, k = load_long(load_long(product + ENDS) + 8 * g) >> 1, load_byte(codes + ROWS * g)
        for p in range(begin, end):
            store_word(load_word(books + 4 * (CENTROIDS * p + k)), pairs + 4 * p)
        begin = np.int64(end)


@part
def look_up_windows(trellis: Any, codes: Any, pairs: Any) -> None:
    """pairs, int16: a token's components by trellis codes. codes: its bits' first byte, the others ROWS bytes apart."""
    window, count = load_long(trellis + WINDOW), load_long(trellis + GROUPS)
    rates, entries = load_long(trellis + RATES), load_long(trellis + ENTRIES)
    mask, held, have, n = np.int64(np.int64(ONE << window) - ONE), ZERO, ZERO, ZERO
    for i in range(load_long(trellis + COMPONENTS)):
        while have < window and n < count:
            held = np.int64(held | np.int64(load_byte(codes + ROWS * n) << have))
            have, n = np.int64(have + 8), np.int64(n + ONE)
        store_half(load_half(load_long(entries + 8 * i) + 2 * np.int64(held & mask)), pairs + 2 * i)
        rate = load_long(rates + 8 * i)
        held, have = np.int64(held >> rate), np.int64(have - rate)


@part
def sum_basis(basis: Any, count: Any, dim: Any, pairs: Any, sums: Any) -> Any:
    """sums, int32: those of `count` pairs of components times a basis, exact. The greatest magnitude of them."""
    wide, most = (dim + 31) & -32, splat(np.int32(0))
    for c in range(0, wide, 32):
        add_basis_pairs(basis + 4 * c, 4 * wide, pairs, count, sums + 4 * c)
        for n in range(c, c + 32, 16):
            own = load_lanes(sums + 4 * n)
            most = greater(most, greater(own, splat(np.int32(0)) - own))
    return np.int64(greatest_lane(most))


@part
def sum_told(product: Any, given: Any, t: Any, dim: Any, scratch: Any) -> Any:
    """scratch.turned, free because V never turns: sums of what is predicted of token t. The greatest, without sign."""
    pairs, count = scratch.codes + PAIRS, load_long(given.product + COMPONENTS) >> 1
    look_up_centroids(given.product, given.codes + t, pairs)
    return sum_basis(load_long(product + PREDICTED), count, dim, pairs, scratch.turned)


@inline
def find_told(product: Any, given: Any, gain: Any, t: Any) -> Any:
    """bfloat16 that sums of what is predicted of token t are multiplied by. gain: code of V's; shapes count 4 bits."""
    place = load_long(product + TOLD) + 2 * (16 * gain + (load_byte(given.shapes + t) & 15))
    return np.int32(np.int32(load_half(place)) & 0xFFFF)


@part
def weigh_sums(product: Any, factors: Any, dim: Any, numbers: Any, told: Any) -> None:
    """numbers, int32 of at most 2**30: sums times a scale, a mean times a gain, each at most 2**28, and so much of the
    sums of what is predicted, `told`, in their place.
    """
    mean = load_long(product + MEAN)
    for c in range(0, dim, 16):
        number = shift_rounded(load_lanes(numbers + 4 * c), factors.down) * factors.scale
        number = shift_rounded(number, factors.right)
        if factors.gain:
            part = shift_rounded(load_lanes(mean + 4 * c) * factors.gain, MEAN_BITS)
            number = number + shift_rounded(part, factors.mean_right)
        if factors.told:
            part = shift_rounded(load_lanes(told + 4 * c), factors.told_down) * factors.told
            number = number + shift_rounded(part, factors.told_right)
        store_lanes(number, numbers + 4 * c)


@part
def find_greatest(numbers: Any, dim: Any, pairs: Any) -> Any:
    """Lanes of which one is the greatest magnitude: of channels that will turn the sum of both."""
    most, zero = splat(np.int32(0)), splat(np.int32(0))
    for c in range(2 * pairs & -16, dim, 16):
        number = load_lanes(numbers + 4 * c)
        if c < 2 * pairs:  # some of them turn
            number = number - keep_first(number, np.int32(2 * pairs - c), np.int32(0))
        most = greater(most, greater(number, zero - number))
    for c in range(pairs):
        both = np.int32(abs(load_word(numbers + 4 * c)) + abs(load_word(numbers + 4 * (c + pairs))))
        most = greater(most, splat(both))
    return most


@part
def rebuild_product_rows(
    form: Any, head: Any, kept: Any, run: Any, position: Any, dim: Any, segments: Any, given: Any,
    scratch: Any, rows: Any,
) -> None:  # fmt: skip
    """A strip's rows that are codes, as numbers and exponents; of other rows nothing. Arguments as of rebuild_rows."""
    start, tokens = run
    gains = head + (start >> 6) * 2 * ROWS + (start & 63)
    basis, count = load_long(form.dictionary + PAIRED_BASIS), load_long(form.dictionary + COMPONENTS) >> 1
    within, product, sides = start & 63, form.dictionary, scratch.codes
    others = load_long(kept + 8) | load_long(kept + 16) if kept else ZERO
    pairs, exponents, numbers = load_long(product + TURNING), rows + 128 * dim, scratch.wide
    turns = load_long(product + NEAR) + 4 * pairs * (position & 63)
    codes = head + form.codes + (start >> 6) * ROWS * form.row_stride + within
    is_trellis = load_long(product + WINDOW) != 0
    take_sides(product, head, start, sides)
    for t in range(tokens):
        if others >> (within + t) & 1 == 0:
            if is_trellis:
                look_up_windows(product, codes + t, scratch.codes + PAIRS)
            else:
                look_up_centroids(product, codes + t, scratch.codes + PAIRS)
            most = sum_basis(basis, count, dim, scratch.codes + PAIRS, numbers)
            factor, told = np.int32(0), ZERO
            if given.product:
                told = sum_told(product, given, t, dim, scratch)
                factor = find_told(product, given, load_byte(gains + t), t)
            own = sides + 2 * (within + t)
            scale = np.int32(np.int32(load_half(own)) & 0xFFFF)
            gain = np.int32(np.int32(load_half(own + GAINED)) & 0xFFFF)
            factors = find_factors(product, scale, gain, most, factor, told)
            weigh_sums(product, factors, dim, numbers, scratch.turned)
            shift = find_shift(find_greatest(numbers, dim, pairs), WIDTH)
            to = scratch.turned if pairs else rows + 2 * dim * t
            for c in range(0, dim, 16):
                store_numbers(shift_rounded(load_lanes(numbers + 4 * c), shift), to + 2 * c)
            if pairs:
                turn_row(scratch.turned, dim, pairs, turns + 4 * pairs * t, rows + 2 * dim * t)
            store_exponents(factors.exponent + np.int64(shift) + BIAS[0], segments, exponents + 4 * segments * t)
