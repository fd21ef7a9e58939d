"""Values in product codes: a bucket for each centroid of each group, to which a token adds its weight.

Buckets are multiplied by the centroids once, which gives components, and these by the basis. They are int32 of 1, 2 or
4 query heads beside each other. What is in the buckets of a group adds up to the weights of all tokens: an exponent
that keeps that sum below 2**31 keeps each bucket, and leaves weights all the bits there are. See docs/attention.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import add_lanes, bit_length, greatest_lane, greatest_scale, smaller, splat, where_zero
from kvcodec.kernels._product_buckets import (
    LOW_BITS,
    add_basis,
    dot_books,
    load_words_every,
)
from kvcodec.kernels._product_vectors import CENTROIDS
from kvcodec.kernels._simd import (
    load_lanes,
    load_long,
    load_unsigned,
    load_word,
    store_lanes,
    store_long,
    store_numbers,
    store_word,
)
from kvcodec.kernels.fold import SCALE_BIAS
from kvcodec.kernels.forms import BASIS, BOOKS, CHANNELS, COMPONENTS, ENDS, GROUPS, MEAN, STATE_BYTES, TOP, TOTAL
from kvcodec.kernels.product_scores import GAINED
from kvcodec.kernels.product_waiting import HEADER, WAITING, add_waiting, let_wait
from kvcodec.kernels.softmax import EMPTY, add_mean, add_totals, count_shares

# Of a group of heads: for each a state of its shares times gains, TOP and TOTAL, behind EXPONENTS the exponent of its
# buckets and behind WEIGHTS the sum of its weights. Then the strips that wait, and behind HEADER the buckets.
EXPONENTS, WEIGHTS, MOST_HEADS = 64, 96, 4
ROWS = 64  # tokens of a block
ZERO, ONE = np.int64(0), np.int64(1)
POINT = np.int64(16)  # bits behind the point of a share
SUM_BITS, RAISED_BITS = np.int64(31), np.int64(27)  # of a sum of weights, and after its exponent was raised
ROUNDING = np.int64(64)  # more than the rounding of a strip's weights adds to their sum
BUCKET_BITS, LOW = np.int64(29), np.int32(LOW_BITS)  # of a bucket when it is multiplied, and of its low part
MIDDLE = np.int32(1 << LOW_BITS >> 1)
COMPONENT_BITS = np.int64(29)  # of a component when it is multiplied
NUMBERS = 8 * 648  # bytes of components as int64, behind which they are int32


def product_bucket_bytes(groups: Any, heads: Any) -> Any:
    """Bytes of the buckets of as many query heads: 1, 2 or 4."""
    return HEADER + 4 * CENTROIDS * groups * heads


@inline
def find_product_group(buckets: Any, rank: Any, heads: Any, groups: Any) -> Any:
    """Address of the buckets of a KV head's query head number `rank` and of those beside it."""
    return buckets + rank // heads * (HEADER + 4 * CENTROIDS * groups * heads)


@part
def begin_product_group(group: Any, heads: Any, groups: Any) -> None:
    """Buckets that hold nothing."""
    for h in range(MOST_HEADS):
        store_long(EMPTY, group + 16 * h + TOP)
        store_long(ZERO, group + 16 * h + TOTAL)
        store_long(EMPTY, group + EXPONENTS + 8 * h)
        store_long(ZERO, group + WEIGHTS + 8 * h)
    store_long(ZERO, group + WAITING)
    for n in range(0, 4 * CENTROIDS * groups * heads, 64):
        store_lanes(splat(np.int32(0)), group + HEADER + n)


@part
def raise_weights(group: Any, place: Any, groups: Any, exponent: Any) -> None:
    """Have a head's buckets hold weights in units of 2**exponent, which is more than before."""
    lane, heads = place
    before, total = load_long(group + EXPONENTS + 8 * lane), load_long(group + WEIGHTS + 8 * lane)
    store_long(np.int64(exponent), group + EXPONENTS + 8 * lane)
    if total == 0:
        return
    add_waiting(group, heads, groups)
    down = min(np.int64(exponent - before), SUM_BITS)
    half = np.int64(ONE << down >> ONE)
    store_long(np.int64(total + half) >> down, group + WEIGHTS + 8 * lane)
    held, right = group + HEADER, np.int32(down)
    if heads == 1:
        for n in range(0, 4 * CENTROIDS * groups, 64):
            number = load_lanes(held + n)
            store_lanes((number >> right) + ((number >> np.int32(right - np.int32(1))) & 1), held + n)
    else:
        for n in range(lane, CENTROIDS * groups * heads, heads):
            store_word(np.int32(np.int64(np.int64(load_word(held + 4 * n)) + half) >> down), held + 4 * n)


@inline
def multiply_shares(shares: Any, scales: Any, top: Any) -> Any:
    """Lanes: 16 shares times their scales, at the exponent `top`; 0 where a scale is 0."""
    scale = load_unsigned(scales)
    product = load_lanes(shares) * ((scale & 127) | 128)
    product = product >> (smaller(splat(top) - (scale >> 7), splat(np.int32(31))) & 31)  # below 0 of a 0 alone
    return where_zero(scale, splat(np.int32(0)), product)


@inline
def make_room(group: Any, place: Any, groups: Any, unit: Any, total: Any) -> Any:
    """How far a strip's weights, in units of 2**unit, must be shifted up, so that their sum `total` finds room."""
    lane, _ = place
    held, exponent = load_long(group + WEIGHTS + 8 * lane), load_long(group + EXPONENTS + 8 * lane)
    up, bits = np.int64(unit - exponent), np.int64(bit_length(total))
    room = np.int64(np.int64(ONE << SUM_BITS) - ROUNDING - held)
    full = up + bits > SUM_BITS
    if not full:
        full = np.int64(np.int64(total << max(up, ZERO)) >> min(max(np.int64(-up), ZERO), SUM_BITS)) >= room
    if full:
        most = np.int64(unit + bits)
        if held:
            most = max(most, np.int64(exponent + np.int64(bit_length(held))))
        exponent = np.int64(most - RAISED_BITS)
        raise_weights(group, place, groups, exponent)
    return np.int64(unit - exponent)


@part
def weigh_products(
    sides: Any, span: Any, exponent: Any, total: Any, group: Any, place: Any, product: Any, scratch: Any
) -> None:
    """A head's weights of a strip's tokens: its shares times their scales, at the exponent of its buckets.

    sides: see take_sides. span: first tile's first token and the last one's end, in the block. place: the head's in
    its group, and how many are there.
    """
    first, last = span
    lane, heads = place
    if lane == 0:
        for t in range(0, 4 * ROWS * heads, 64):
            store_lanes(splat(np.int32(0)), scratch.tokens + t)
    if total == 0:
        return
    count, weights = last - first, scratch.tokens + 4 * (ROWS * lane + first)
    if load_long(product + MEAN):
        count_gains(sides + GAINED + 2 * first, count, exponent, group + 16 * lane, scratch)
    top, sums = np.int32(greatest_scale(scratch.shares, sides + 2 * first, count) >> np.int32(7)), splat(np.int32(0))
    for t in range(0, count, 16):
        weight = multiply_shares(scratch.shares + 4 * t, sides + 2 * (first + t), top)
        sums = sums + weight
        store_lanes(weight, weights + 4 * t)
    unit, most = np.int64(exponent + np.int64(top) - SCALE_BIAS - POINT), np.int64(add_lanes(sums))
    if most == 0:
        return
    up = make_room(group, place, load_long(product + GROUPS), unit, most)
    down, sums = min(max(np.int64(-up), ZERO), SUM_BITS), splat(np.int32(0))
    half, left, right = np.int32(ONE << down >> ONE), np.int32(max(up, ZERO)), np.int32(down)
    for t in range(0, count, 16):
        weight = ((load_lanes(weights + 4 * t) + half) >> right) << left
        sums = sums + weight
        store_lanes(weight, weights + 4 * t)
    held = group + WEIGHTS + 8 * lane
    store_long(np.int64(load_long(held) + np.int64(add_lanes(sums))), held)


@inline
def count_gains(gains: Any, count: Any, exponent: Any, state: Any, scratch: Any) -> None:
    """Enter a strip's shares times the gains of their tokens in a state, for the mean."""
    top, sums = np.int32(greatest_scale(scratch.shares, gains, count) >> np.int32(7)), splat(np.int32(0))
    for t in range(0, count, 16):
        sums = sums + multiply_shares(scratch.shares + 4 * t, gains + 2 * t, top)
    count_shares(state, np.int64(exponent + np.int64(top) - SCALE_BIAS), np.int64(add_lanes(sums)))


@inline
def enter_products(
    form: Any, codes: Any, sides: Any, run: Any, shares: Any, buckets: Any, heads: Any, per_head: Any, scratch: Any
) -> None:
    """Take a strip's values for one query head, number buckets[1] of its KV head: with the last one of its group all of
    the group's heads are added.

    codes, sides: of the block's 64 tokens, see take_sides. shares: their exponent and their sum.
    """
    within, rank = run[0], buckets[1]
    span = within & ~15, (within + run[1] + 15) & ~15
    group, place = find_product_group(buckets[0], rank, heads, form.terms), (rank % heads, heads)
    weigh_products(sides, span, shares[0], shares[1], group, place, form.dictionary, scratch)
    if place[0] == heads - 1 or rank == per_head - 1:
        let_wait(group, heads, form.terms, codes, span, scratch.tokens)


@part
def split_centroids(buckets: Any, heads: Any, shift: Any, halves: Any) -> Any:
    """A head's buckets of one group, rounded, as int16: their high parts, and behind them their low ones, of LOW_BITS.

    heads: whose buckets are beside each other. Whether any is not 0.
    """
    half, right, most = np.int32(ONE << shift >> ONE), np.int32(shift), splat(np.int32(0))
    for k in range(0, CENTROIDS, 16):
        own = load_lanes(buckets + 4 * k) if heads == 1 else load_words_every(buckets + 4 * heads * k, 4 * heads)
        number = (own + half) >> right
        high = (number + MIDDLE) >> LOW
        store_numbers(high, halves + 2 * k)
        store_numbers(number - (high << LOW), halves + 2 * (CENTROIDS + k))
        most = most | number
    return greatest_lane(most) != 0


@part
def sum_components(product: Any, group: Any, place: Any, shift: Any, sums: Any, scratch: Any) -> None:
    """sums, int64 of at most 36 bits: a head's buckets, rounded, times the centroids, for each component."""
    lane, heads = place
    books, begin, halves, step = load_long(product + BOOKS), ZERO, scratch.tokens, 4 * heads
    for g in range(load_long(product + GROUPS)):
        end, own = load_long(load_long(product + ENDS) + 8 * g), group + HEADER + step * CENTROIDS * g + 4 * lane
        if split_centroids(own, heads, shift, halves):
            for n in range(begin, end, 2):
                dot_books(books + CENTROIDS * n, halves, sums + 8 * n)
        else:
            for n in range(begin, end):
                store_long(ZERO, sums + 8 * n)
        begin = np.int64(end)


@part
def spread_components(product: Any, sums: Any, numbers: Any, totals: Any) -> Any:
    """totals, int64 of at most 53 bits: components, rounded to COMPONENT_BITS, times the basis. How far they were
    shifted. numbers: room for them as int32.
    """
    count, dim, basis = load_long(product + COMPONENTS), load_long(product + CHANNELS), load_long(product + BASIS)
    most = ZERO
    for n in range(count):
        most = np.int64(most | abs(load_long(sums + 8 * n)))
    shift = max(np.int64(bit_length(most)) - COMPONENT_BITS, ZERO)
    half = np.int64(ONE << shift >> ONE)
    for n in range(count):
        store_word(np.int32(np.int64(load_long(sums + 8 * n) + half) >> shift), numbers + 4 * n)
    for c in range(0, dim, 16):
        add_basis(basis + 2 * c, 2 * dim, numbers, count, totals + 8 * c)
    return shift


@part
def empty_product_group(product: Any, group: Any, place: Any, sink: Any, scratch: Any) -> None:
    """Add a head's buckets to its outputs: first the centroids, then the mean. sink: state, outputs, channels."""
    lane, heads = place
    state, outputs, dim = sink
    add_waiting(group, heads, load_long(product + GROUPS))
    held, own = load_long(group + WEIGHTS + 8 * lane), group + 16 * lane
    if held:
        shift = max(np.int64(bit_length(held)) - BUCKET_BITS, ZERO)
        sums, numbers = scratch.codes, scratch.codes + NUMBERS
        sum_components(product, group, place, shift, sums, scratch)
        down = spread_components(product, sums, numbers, scratch.sums)
        exponent = np.int64(load_long(group + EXPONENTS + 8 * lane) + shift + down)
        add_totals(scratch.sums, dim, exponent, state, outputs)
    if load_long(own + TOTAL) and load_long(product + MEAN):
        add_mean(product, load_long(own + TOP), load_long(own + TOTAL), dim, scratch.sums, state, outputs)


@part
def empty_products(product: Any, buckets: Any, heads: Any, per_head: Any, sinks: Any, scratch: Any) -> None:
    """Add a KV head's buckets to the outputs of its query heads. sinks: the first one's state and outputs, and how many
    channels.
    """
    states, outputs, dim = sinks
    groups = load_long(product + GROUPS)
    for rank in range(per_head):
        group, place = find_product_group(buckets, rank, heads, groups), (rank % heads, heads)
        sink = states + STATE_BYTES * rank, outputs + 8 * dim * rank, dim
        empty_product_group(product, group, place, sink, scratch)


@part
def begin_products(product: Any, buckets: Any, heads: Any, per_head: Any) -> None:
    """Buckets of a KV head that hold nothing."""
    groups = load_long(product + GROUPS)
    for rank in range(0, per_head, heads):
        begin_product_group(find_product_group(buckets, rank, heads, groups), heads, groups)
