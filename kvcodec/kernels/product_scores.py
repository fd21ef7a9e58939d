"""Scores of product codes: of a token the sum of an entry of each group, times its scale, and a mean times its gain.

See docs/attention.md; what is looked up is made by product_tables.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import greater, smaller, splat, where_zero
from kvcodec.kernels._product_vectors import look_up_sides, sum_entries, sum_entries_of_four
from kvcodec.kernels._simd import (
    load_lanes,
    load_long,
    load_unsigned,
    load_word,
    prefetch,
    store_lanes,
)
from kvcodec.kernels.fold import SCALE_BIAS
from kvcodec.kernels.forms import SIDES
from kvcodec.kernels.lookup import FACTOR_BITS, POINT, scale_totals
from kvcodec.kernels.product_tables import ENTRIES, HEADS, MEAN_EXPONENTS, MEANS
from kvcodec.kernels.softmax import LIMIT

ROWS = 64  # tokens of a block
# Of a block of 64 tokens, where raw rows have their numbers: scales, bfloat16; behind GAINED gains, bfloat16; behind
# SUMMED sums of entries of 4 heads, int32; behind MEANT 16 products with the mean, int32.
GAINED, SUMMED, MEANT = 256, 512, 512 + 16 * ROWS
MOST_SHIFT = np.int64(1024)


@inline
def take_sides(product: Any, head: Any, start: Any, sink: Any) -> None:
    """Scales and gains of the block of 64 tokens that a strip begins in. head: address of the head's section."""
    place = head + (start >> 6) * 2 * ROWS
    look_up_sides(place, load_long(product + SIDES), sink + SUMMED, sink, sink + GAINED)


@inline
def ask_for_sides(head: Any, start: Any) -> None:
    """Have what take_sides reads come."""
    place = head + (start >> 6) * 2 * ROWS
    prefetch(place)
    prefetch(place + ROWS)


@inline
def scale_parts(scales: Any, totals: Any, exponent: Any, query: Any) -> Any:
    """Lanes: what 16 totals * 2**exponent, times bfloat16 scales, add to logits; nothing where a scale is 0."""
    left = np.int64(query.shift + exponent - SCALE_BIAS + POINT + FACTOR_BITS)
    left32 = np.int32(min(max(left, -MOST_SHIFT), MOST_SHIFT))
    logit = scale_totals(scales, left32, np.int32(query.factor >> FACTOR_BITS), totals)
    return where_zero(load_unsigned(scales), splat(np.int32(0)), logit)


@inline
def saturate(logits: Any) -> Any:
    """Lanes of logits within +-LIMIT."""
    return greater(smaller(logits, splat(LIMIT)), splat(-LIMIT))


@part
def score_products(form: Any, codes: Any, sides: Any, run: Any, table: Any, query: Any, scratch: Any) -> None:
    """Add what product codes give to the logits of a strip: first the mean, then the centroids.

    codes: of the block's 64 tokens; sides: see take_sides. table: that of the query's four heads, all of which are
    looked up for the first one.
    """
    within, tokens = run
    lane = query.lane
    first, last = within & ~15, (within + tokens + 15) & ~15
    if lane == 0 and load_long(table + HEADS) == 1:
        sum_entries(codes, form.terms, table + ENTRIES, first, last, sides + SUMMED)
    elif lane == 0:
        sum_entries_of_four(codes, form.terms, table + ENTRIES, first, last, sides + SUMMED)
    totals, means = sides + SUMMED + 4 * ROWS * lane, sides + MEANT
    store_lanes(splat(load_word(table + MEANS + 4 * lane)), means)
    exponent, power = load_long(table + 8 * lane), load_long(table + MEAN_EXPONENTS + 8 * lane)
    for t in range(first, last, 16):
        store_lanes(scale_parts(sides + GAINED + 2 * t, means, power, query), scratch.others + 4 * t)
        store_lanes(scale_parts(sides + 2 * t, totals + 4 * t, exponent, query), scratch.sums + 4 * t)
    for t in range(0, tokens, 16):
        at = 4 * (within + t)
        logit = saturate(load_lanes(scratch.logits + 4 * t) + load_lanes(scratch.others + at))
        store_lanes(saturate(logit + load_lanes(scratch.sums + at)), scratch.logits + 4 * t)
