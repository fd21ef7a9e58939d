"""Scores of codes over a dictionary: the query is multiplied by all atoms once, and then a token's products are added.

Products are int16 with an exponent for each query head; four heads of a KV head make an entry. See docs/attention.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import greater, shift_unsigned, smaller, splat, where_zero
from kvcodec.kernels._lookup import (
    copy_codes,
    copy_indices,
    dot_atoms,
    look_up,
    multiply_high_each,
    store_heads,
    store_pairs,
    widen_codes,
)
from kvcodec.kernels._simd import (
    load_lanes,
    load_long,
    load_unsigned,
    load_word,
    prefetch,
    store_lanes,
    store_long,
    store_word,
)
from kvcodec.kernels.elias_fano import unpack_bit_planes, unpack_set_planes
from kvcodec.kernels.fold import SCALE_BIAS, find_shift, fold_numbers
from kvcodec.kernels.forms import ATOMS, CHANNELS, EXPONENT, LOOKED, MEAN, PADDED, PAIRS, SIZE, WIDE, Weights
from kvcodec.kernels.softmax import LARGEST, LIMIT, scale_logit

ROW = 64  # bytes, and tokens of a block
QUAD = 4  # heads of an entry
# A table: exponents of its heads, int64, what the mean adds to their logits, int32, and behind HEADER the entries.
LOGITS, HEADER = 32, 64
NARROWED = 512  # channels beyond which products of 16-bit weights would not fit an int32
WIDE_WIDTH, NARROW_WIDTH = np.int64(16), np.int64(15)
POINT = np.int64(48)
FACTOR_BITS = 8  # of a scale, by which a logit's factor is multiplied


def table_bytes(padded: Any) -> Any:
    """Bytes of a table for `padded` atoms, a multiple of 64, with what may be read behind it."""
    return HEADER + 8 * padded + 64


def work_bytes(padded: int, dim: int) -> int:
    """Bytes of the work space of make_atom_table: products of four heads, and a query's weights."""
    return 16 * padded + 4 * (dim + 512)


@part
def multiply_atoms(atoms: Any, padded: Any, dim: Any, numbers: Any, products: Any, work: Any) -> Any:
    """products, int32: a query's weights times each atom. (exponent of the weights, the greatest product's lanes)."""
    weights = Weights(work, work + 2 * dim)
    exponent, _ = fold_numbers(numbers, dim, NARROW_WIDTH if dim > NARROWED else WIDE_WIDTH, weights)
    most = splat(np.int32(0))
    for n in range(0, padded, 16):
        for k in range(n, n + 16, 4):
            dot_atoms(atoms + k * dim, dim, weights.halves, dim, products + 4 * k)
        product = load_lanes(products + 4 * n)
        most = greater(most, greater(product, splat(np.int32(0)) - product))
    return exponent, most


@part
def score_mean(dictionary: Any, numbers: Any, dim: Any, shift: Any, factor: Any) -> Any:
    """What the mean of a dictionary adds to each logit: int32."""
    mean, total = load_long(dictionary + MEAN), np.int64(0)
    if mean == 0:
        return np.int32(0)
    for c in range(dim):
        total = np.int64(total + np.int64(load_word(mean + 4 * c)) * np.int64(load_word(numbers + 4 * c)))
    return scale_logit(total, np.int64(np.int64(shift) + load_long(dictionary + EXPONENT) + POINT), factor)


@inline
def round_products(products: Any, n: Any, shift: Any) -> Any:
    """Lanes: 16 products from atom n on, rounded."""
    return (load_lanes(products + 4 * n) + np.int32((np.int64(1) << shift) >> 1)) >> np.int32(shift)


@part
def make_atom_table(table: Any, dictionary: Any, query: Any, stride: Any, count: Any, memory: Any) -> None:
    """Table of `count` query heads, at most 4, and of a dictionary. query: shifts, factors and numbers of the first
    head, as addresses; stride: bytes from one head's numbers to the next. memory: see work_bytes.
    """
    shifts, factors, numbers = query
    padded, dim = load_long(dictionary + PADDED), load_long(dictionary + CHANNELS)
    products, step = memory, 4 * padded
    work = memory + QUAD * step
    for h in range(QUAD):
        here = products + h * step
        store_long(np.int64(0), table + 8 * h)
        store_word(np.int32(0), table + LOGITS + 4 * h)
        if h < count:
            own = numbers + stride * h
            exponent, most = multiply_atoms(load_long(dictionary + ATOMS), padded, dim, own, here, work)
            down = np.int64(find_shift(most, WIDE_WIDTH))
            store_long(np.int64(exponent + down), table + 8 * h)
            logit = score_mean(dictionary, own, dim, load_long(shifts + 8 * h), load_word(factors + 4 * h))
            store_word(logit, table + LOGITS + 4 * h)
            for k in range(0, padded, 16):
                store_lanes(round_products(here, k, down), here + 4 * k)
        else:
            for k in range(0, padded, 16):
                store_lanes(splat(np.int32(0)), here + 4 * k)
    for k in range(0, padded, 16):
        one, two, three, four = (
            load_lanes(products + 4 * k),
            load_lanes(products + step + 4 * k),
            load_lanes(products + 2 * step + 4 * k),
            load_lanes(products + 3 * step + 4 * k),
        )
        store_heads(one, two, three, four, table + HEADER + 8 * k)


@part
def unpack_indices(form: Any, planes: Any, codes: Any, scratch: Any) -> Any:
    """Indices of a block of 64 tokens, an even number a token, and the address of its coefficients, int8.

    planes: where the block lies; of damaged ones indices are atoms yet.
    """
    terms, size = form.terms, load_long(form.dictionary + SIZE)
    if form.sets:
        unpack_set_planes(planes, size, form.low, terms, codes, scratch.counts)
    else:
        for j in range(terms):
            copy_indices(planes + 2 * ROW * j, np.int32(size - 1), codes + 2 * ROW * j)
    if terms & 1:
        copy_indices(codes, np.int32(0), codes + 2 * ROW * terms)
    coefficients = planes + ROW * form.columns
    if form.bits != 8:
        unpack_bit_planes(coefficients, form.bits, terms, scratch.coded)
        coefficients = scratch.coded
    return coefficients


@part
def unpack_codes(form: Any, planes: Any, scored: Any, valued: Any, codes: Any, scratch: Any) -> None:
    """Indices and coefficients of a block of 64 tokens, for all query heads that share them.

    codes: indices, and what is behind PAIRS for scores and behind WIDE for values, int8 if `valued` says that one head
    needs them, int32 for more.
    """
    coefficients, terms = unpack_indices(form, planes, codes, scratch), form.terms
    if scored:
        for j in range(0, terms, 2):
            one, both = coefficients + ROW * j, j + 1 < terms
            store_pairs(one, one + ROW if both else one, both, codes + PAIRS + 2 * ROW * j)
    if valued == 1:
        for j in range(terms):
            copy_codes(coefficients + ROW * j, codes + WIDE + ROW * j)
    elif valued:
        for j in range(terms):
            widen_codes(coefficients + ROW * j, codes + WIDE + 4 * ROW * j)


@inline
def scale_totals(scales: Any, left: Any, factor: Any, totals: Any) -> Any:
    """Lanes: what 16 tokens' sums of products add to their logits, saturated."""
    scale = load_unsigned(scales)
    multiplier = ((scale & 127) | 128) * factor
    small = where_zero(multiplier >> 30, splat(np.int32(1)), splat(np.int32(0)))
    here = greater(smaller(splat(left) + (scale >> 7) - small, splat(np.int32(30))), splat(np.int32(-31)))
    up = greater(here, splat(np.int32(0)))
    most = shift_unsigned(splat(LARGEST), up)
    number = greater(smaller(load_lanes(totals), most), splat(np.int32(0)) - most)
    logit = multiply_high_each((number << up) >> (up - here), multiplier << small)
    return greater(smaller(logit, splat(LIMIT)), splat(-LIMIT))


@part
def score_codes(form: Any, codes: Any, head: Any, run: Any, table: Any, query: Any, scratch: Any) -> None:
    """Add what codes over a dictionary give to the logits of a strip: first its mean, then its atoms.

    codes: see unpack_codes. head: address of the head's section. table: that of the query's four heads, all of which
    are looked up for the first one.
    """
    start, tokens = run
    within, lane = start & 63, query.lane
    first, last = within & ~15, (within + tokens + 15) & ~15
    if lane == 0:
        look_up(codes, codes + PAIRS, (form.terms + 1) >> 1, table + HEADER, first, last, codes + LOOKED)
    totals, scales = codes + LOOKED + 4 * ROW * lane, head + 2 * (start - within)
    left = np.int64(query.shift + load_long(table + 8 * lane) - SCALE_BIAS + POINT + FACTOR_BITS)
    left32, factor = np.int32(min(max(left, np.int64(-1024)), np.int64(1024))), np.int32(query.factor >> FACTOR_BITS)
    for t in range(first, last, 16):
        store_lanes(scale_totals(scales + 2 * t, left32, factor, totals + 4 * t), scratch.sums + 4 * t)
    mean = load_word(table + LOGITS + 4 * lane)
    for t in range(0, tokens, 16):
        logit = load_lanes(scratch.logits + 4 * t) + mean
        logit = greater(smaller(logit, splat(LIMIT)), splat(-LIMIT)) + load_lanes(scratch.sums + 4 * (within + t))
        store_lanes(greater(smaller(logit, splat(LIMIT)), splat(-LIMIT)), scratch.logits + 4 * t)


@inline
def ask_for_codes(form: Any, planes: Any) -> None:
    """Have what is read of a block of 64 tokens come."""
    for at in range(0, ROW * form.read, ROW):
        prefetch(planes + at)
    behind = planes + ROW * form.columns
    for at in range(0, ROW * ((form.terms * form.bits + 7) >> 3), ROW):
        prefetch(behind + at)
