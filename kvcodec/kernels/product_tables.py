"""A query meets product codes once: components, its products with the basis, and for each group those with centroids.

What a token's codes are worth is then the sum of an entry of each group. Components are int16 with an exponent for each
query head, entries int32, so that no sum of them overflows or is rounded. See docs/attention.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._buckets import weigh_atoms_twice
from kvcodec.kernels._jit import part
from kvcodec.kernels._lanes import bit_length
from kvcodec.kernels._product_vectors import CENTROIDS, dot_wide, store_fours
from kvcodec.kernels._simd import load_lanes, load_long, load_word, store_half, store_lanes, store_long, store_word
from kvcodec.kernels.forms import BASIS, BOOKS, CHANNELS, COMPONENTS, ENDS, EXPONENT, GROUPS, MEAN

# A table: exponents of its heads, int64; behind MEANS their products with the mean, int32, and behind MEAN_EXPONENTS
# the exponents of these, int64; how many HEADS it has; and behind ENTRIES int32 (groups, 256, 1 or 4).
MEANS, MEAN_EXPONENTS, HEADS, ENTRIES, BEHIND = 32, 64, 96, 128, 64
QUAD = 4
WEIGHT_BITS, WORD_BITS = np.int64(15), np.int64(31)
ZERO, ONE = np.int64(0), np.int64(1)


def product_table_bytes(groups: Any, heads: Any) -> Any:
    """Bytes of a table of `groups` groups for as many query heads: for one, or for four of which some may be none; and
    of what may be read behind it.
    """
    return ENTRIES + 4 * CENTROIDS * groups * (1 if heads == 1 else QUAD) + BEHIND


def product_work_bytes(components: int) -> int:
    """Bytes of the work space of make_product_table: components of a query, and those of four as weights."""
    return (8 + 2 * QUAD) * components + 512


@part
def multiply_basis(product: Any, numbers: Any, sums: Any, weights: Any) -> Any:
    """weights, int16: a query's components, all with the exponent that is returned. sums: room for them as int64."""
    count, dim, basis = load_long(product + COMPONENTS), load_long(product + CHANNELS), load_long(product + BASIS)
    greatest = ZERO
    for n in range(count):
        total = dot_wide(basis + 2 * dim * n, numbers, dim)
        store_long(total, sums + 8 * n)
        greatest = max(greatest, abs(total))
    shift = max(np.int64(bit_length(np.int64(greatest + (greatest >> 7)))) - WEIGHT_BITS, ZERO)
    half = np.int64(ONE << shift >> ONE)
    for n in range(count):
        store_half(np.int16(np.int64(load_long(sums + 8 * n) + half) >> shift), weights + 2 * n)
    return shift


@part
def multiply_mean(product: Any, numbers: Any) -> Any:
    """(number, exponent): a query's product with the mean, as 31 bits and sign."""
    mean, dim, total = load_long(product + MEAN), load_long(product + CHANNELS), ZERO
    if mean == 0:
        return np.int32(0), ZERO
    for c in range(dim):
        total = np.int64(total + np.int64(load_word(mean + 4 * c)) * np.int64(load_word(numbers + 4 * c)))
    spare = max(np.int64(bit_length(abs(total))) - WORD_BITS, ZERO)
    return np.int32(total >> spare), np.int64(load_long(product + EXPONENT) + spare)


@part
def enter_centroids(product: Any, weights: Any, count: Any, entries: Any, work: Any) -> None:
    """Entries of all centroids, of the weights of `count` heads, which lie behind each other for four."""
    books, stride = load_long(product + BOOKS), 2 * load_long(product + COMPONENTS)
    size, begin = (ONE if count == 1 else np.int64(QUAD)), ZERO
    for g in range(load_long(product + GROUPS)):
        end, own = load_long(load_long(product + ENDS) + 8 * g), weights + 2 * begin
        for k in range(0, CENTROIDS, 16):
            rows, to = books + CENTROIDS * begin + k, entries + 4 * size * (CENTROIDS * g + k)
            weigh_atoms_twice(rows, np.int64(CENTROIDS), np.int64(end - begin), own, own + stride, work)
            if count == 1:
                store_lanes(load_lanes(work), to)
            else:
                three = own + 2 * stride
                weigh_atoms_twice(rows, np.int64(CENTROIDS), np.int64(end - begin), three, three + stride, work + 128)
                one, two = load_lanes(work), load_lanes(work + 64)
                store_fours(one, two, load_lanes(work + 128), load_lanes(work + 192), to)
        begin = np.int64(end)


@part
def make_product_table(table: Any, product: Any, numbers: Any, stride: Any, count: Any, work: Any) -> None:
    """Table of `count` query heads, at most 4, whose numbers are `stride` bytes apart. work: see product_work_bytes."""
    components = load_long(product + COMPONENTS)
    weights = work + 8 * components
    store_long(np.int64(count), table + HEADS)
    for h in range(QUAD):
        own, exponent, mean, power = weights + 2 * components * h, ZERO, np.int32(0), ZERO
        if h < count:
            exponent = np.int64(multiply_basis(product, numbers + stride * h, work, own))
            mean, power = multiply_mean(product, numbers + stride * h)
        else:
            for n in range(components):
                store_half(np.int16(0), own + 2 * n)
        store_long(exponent, table + 8 * h)
        store_word(mean, table + MEANS + 4 * h)
        store_long(power, table + MEAN_EXPONENTS + 8 * h)
    room = (weights + 2 * QUAD * components + 63) & -64
    enter_centroids(product, weights, count, table + ENTRIES, room)
