"""Values over a dictionary: a bucket for each atom, to which a token adds its coefficients times its weight.

Buckets are multiplied by the atoms once, when all strips of a run have been met or another dictionary comes. They are
int64 of 1, 2 or 4 query heads beside each other, each head with an exponent of its own. See docs/attention.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._buckets import (
    add_codes,
    add_codes_of_four,
    add_codes_of_two,
    join_longs,
    load_every,
    splat_long,
    store_long_halves,
    weigh_atoms_twice,
)
from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import bit_length, splat
from kvcodec.kernels._simd import (
    load_long,
    load_longs,
    load_signed,
    store_lanes,
    store_long,
    store_longs,
    widen_lanes,
)
from kvcodec.kernels.fold import SCALE_BIAS, fold_scales
from kvcodec.kernels.forms import ATOMS, MEAN, PADDED, STATE_BYTES, TOP, TOTAL, WIDE
from kvcodec.kernels.softmax import EMPTY, add_mean, add_totals, count_shares

# Of a group of heads: for each a state of its shares, TOP and TOTAL, and behind EXPONENTS the exponent of its buckets.
# Behind HEADER the buckets.
EXPONENTS, HEADER, GROUP = 64, 128, 4
ROWS = 64  # tokens of a block
BLOCK = 64  # atoms that are multiplied at a time
ZERO, ONE, WIDTH, BITS = np.int64(0), np.int64(1), np.int64(16), np.int64(8)
POINT = np.int64(16)  # bits behind the point of a share, and behind that of a weight
SLACK = np.int64(4)  # how far above its need an exponent is raised
NUMBER_BITS = np.int64(29)  # of a bucket when it is multiplied
LOW_BITS = np.int64(15)


def bucket_bytes(padded: Any, heads: Any) -> Any:
    """Bytes of the buckets of as many query heads, 1, 2 or 4, for `padded` atoms."""
    return HEADER + 8 * heads * padded


@inline
def find_group(buckets: Any, rank: Any, heads: Any, padded: Any) -> Any:
    """Address of the group of a KV head's query head number `rank`."""
    return buckets + rank // heads * (HEADER + 8 * heads * padded)


@part
def begin_group(group: Any, heads: Any, padded: Any) -> None:
    """Buckets that hold nothing."""
    for h in range(GROUP):
        store_long(EMPTY, group + 16 * h + TOP)
        store_long(ZERO, group + 16 * h + TOTAL)
        store_long(EMPTY, group + EXPONENTS + 8 * h)
    for n in range(0, 8 * heads * padded, 64):
        store_lanes(splat(np.int32(0)), group + HEADER + n)


@part
def raise_buckets(group: Any, lane: Any, heads: Any, padded: Any, exponent: Any) -> None:
    """Have a head's buckets hold weights below 2**15 * 2**exponent."""
    before = load_long(group + EXPONENTS + 8 * lane)
    store_long(np.int64(exponent), group + EXPONENTS + 8 * lane)
    if before > EMPTY:
        down = min(np.int64(exponent - before), np.int64(63))
        for n in range(padded):
            at = group + HEADER + 8 * (n * heads + lane)
            store_long(load_long(at) >> down, at)


@part
def weigh_codes(
    scales: Any, run: Any, exponent: Any, total: Any, group: Any, place: Any, padded: Any, scratch: Any
) -> None:
    """A head's weights of a strip's tokens: its shares times their scales, at the exponent of its buckets.

    scales: of the block's 64 tokens. run: first tile's first token and the last one's end, in the block. place: the
    head's in its group, and how many are there.
    """
    first, last = run
    lane, heads = place
    if lane == 0:
        for t in range(0, 4 * ROWS * heads, 64):
            store_lanes(splat(np.int32(0)), scratch.tokens + t)
    if total == 0:
        return
    fold_scales(scratch.shares, scales + 2 * first, ZERO, ONE, ZERO, last - first, WIDTH, BITS, scratch)
    unit = np.int64(exponent + load_long(scratch.folded) - SCALE_BIAS - POINT)
    if unit > load_long(group + EXPONENTS + 8 * lane):
        raise_buckets(group, lane, heads, padded, np.int64(unit + SLACK))
    down = np.int32(min(np.int64(load_long(group + EXPONENTS + 8 * lane) - unit), np.int64(31)))
    for t in range(first, last, 16):
        weight = load_signed(scratch.weights.halves + 2 * (t - first)) << np.int32(POINT)
        store_lanes(weight >> down, scratch.tokens + 4 * (ROWS * lane + t))
    count_shares(group + 16 * lane, exponent, total)


@inline
def fill_buckets(codes: Any, terms: Any, run: Any, group: Any, heads: Any, scratch: Any) -> None:
    """Add the codes of a strip's tokens, times the weights of a group of heads, to its buckets."""
    first, last = run
    if heads == 1:
        add_codes(codes, codes + WIDE, terms, scratch.tokens, first, last, group + HEADER)
    elif heads == 2:
        add_codes_of_two(codes, codes + WIDE, terms, scratch.tokens, first, last, group + HEADER)
    else:
        add_codes_of_four(codes, codes + WIDE, terms, scratch.tokens, first, last, group + HEADER)


@inline
def enter_codes(
    form: Any, codes: Any, head: Any, run: Any, shares: Any, buckets: Any, heads: Any, per_head: Any, scratch: Any
) -> None:
    """Take a strip's values for one query head, number buckets[1] of its KV head: with the last one of its group all of
    the group's heads are added.

    codes: see unpack_codes. shares: their exponent and their sum.
    """
    start, tokens = run
    within, rank = start & 63, buckets[1]
    span = within & ~15, (within + tokens + 15) & ~15
    padded = load_long(form.dictionary + PADDED)
    group, lane = find_group(buckets[0], rank, heads, padded), rank % heads
    weigh_codes(head + 2 * (start - within), span, shares[0], shares[1], group, (lane, heads), padded, scratch)
    if lane == heads - 1 or rank == per_head - 1:
        fill_buckets(codes, form.terms, span, group, heads, scratch)


@part
def find_bits(group: Any, place: Any, padded: Any) -> Any:
    """Bits of a head's buckets, their signs apart."""
    lane, heads = place
    most, step = splat_long(ZERO), 8 * heads
    for n in range(0, padded, 8):
        here = load_every(group + HEADER + n * step + 8 * lane, step)
        most = most | (here ^ (here >> 63))
    return np.int64(bit_length(join_longs(most)))


@part
def find_any(group: Any, place: Any, first: Any) -> Any:
    """Whether any of a head's BLOCK buckets from `first` on is not 0."""
    lane, heads = place
    most, step = splat_long(ZERO), 8 * heads
    for n in range(first, first + BLOCK, 8):
        most = most | load_every(group + HEADER + n * step + 8 * lane, step)
    return join_longs(most) != 0


@part
def split_buckets(group: Any, place: Any, first: Any, shift: Any, halves: Any) -> None:
    """BLOCK numbers, buckets rounded, as int16: their high parts, and behind them their low ones, of LOW_BITS."""
    lane, heads = place
    half, step, middle = np.int64((ONE << shift) >> ONE), 8 * heads, np.int64(ONE << LOW_BITS >> ONE)
    for n in range(0, BLOCK, 8):
        number = (load_every(group + HEADER + (first + n) * step + 8 * lane, step) + half) >> shift
        high = (number + middle) >> LOW_BITS
        store_long_halves(high, halves + 2 * n)
        store_long_halves(number - (high << LOW_BITS), halves + 2 * (BLOCK + n))


@part
def multiply_block(atoms: Any, dim: Any, halves: Any, totals: Any) -> None:
    """Add BLOCK atoms times their numbers, high * 2**15 + low, to int64 totals of all channels."""
    sums = halves + 4 * BLOCK
    for c in range(0, dim, 16):
        weigh_atoms_twice(atoms + c, dim, BLOCK, halves, halves + 2 * BLOCK, sums)
        for k in range(0, 16, 8):
            more = (widen_lanes(sums + 4 * k) << LOW_BITS) + widen_lanes(sums + 64 + 4 * k)
            at = totals + 8 * (c + k)
            store_longs(load_longs(at) + more, at)


@part
def multiply_buckets(dictionary: Any, dim: Any, group: Any, place: Any, scratch: Any) -> Any:
    """scratch.sums, int64: a head's buckets, rounded to NUMBER_BITS, times the atoms. How far they were shifted."""
    padded, atoms, totals = load_long(dictionary + PADDED), load_long(dictionary + ATOMS), scratch.sums
    for c in range(0, 8 * dim, 64):
        store_lanes(splat(np.int32(0)), totals + c)
    shift = max(find_bits(group, place, padded) - NUMBER_BITS, ZERO)
    for first in range(0, padded, BLOCK):
        if find_any(group, place, first):
            split_buckets(group, place, first, shift, scratch.tokens)
            multiply_block(atoms + first * dim, dim, scratch.tokens, totals)
    return shift


@part
def empty_buckets(dictionary: Any, group: Any, place: Any, state: Any, outputs: Any, dim: Any, scratch: Any) -> None:
    """Add a head's buckets to its outputs: first the atoms, then the mean."""
    lane, _ = place
    total = load_long(group + 16 * lane + TOTAL)
    if total == 0:
        return
    shift = multiply_buckets(dictionary, dim, group, place, scratch)
    exponent = np.int64(load_long(group + EXPONENTS + 8 * lane) - POINT + shift)
    add_totals(scratch.sums, dim, exponent, state, outputs)
    if load_long(dictionary + MEAN):
        add_mean(dictionary, load_long(group + 16 * lane + TOP), total, dim, scratch.sums, state, outputs)


@part
def empty_codes(dictionary: Any, buckets: Any, heads: Any, per_head: Any, sinks: Any, scratch: Any) -> None:
    """Add a KV head's buckets to the outputs of its query heads. sinks: the first one's state and outputs, and how many
    channels.
    """
    states, outputs, dim = sinks
    padded = load_long(dictionary + PADDED)
    for rank in range(per_head):
        group, place = find_group(buckets, rank, heads, padded), (rank % heads, heads)
        out = outputs + 8 * dim * rank
        empty_buckets(dictionary, group, place, states + STATE_BYTES * rank, out, dim, scratch)


@part
def begin_codes(dictionary: Any, buckets: Any, heads: Any, per_head: Any) -> None:
    """Buckets of a KV head that hold nothing."""
    padded = load_long(dictionary + PADDED)
    for rank in range(0, per_head, heads):
        begin_group(find_group(buckets, rank, heads, padded), heads, padded)
