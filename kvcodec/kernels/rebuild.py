"""Rows that no table of products serves, from their codes, a strip at a time: int16 numbers, as raw rows become.

Such are keys from before their rotary embedding, and rows of records with an error bound, of which some are kept as
INT4 or raw. A strip's rows are made once for all query heads of a KV head, in memory that stays in the cache, and look
then as align_rows leaves raw ones of bfloat16. See docs/attention.md.

Codes of 8 bits are summed in two digits, of 4 bits each. Sums of atoms are int16 as long as they fit, whatever the
atoms, and are put together behind that: each such run is a pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvcodec.kernels._atoms import copy_bytes
from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import greater, splat
from kvcodec.kernels._rebuild import (
    start_sums,
    store_sums,
    sum_atoms,
    sum_few_atoms,
    turn_sums,
    weave_codes,
    weigh_sums,
)
from kvcodec.kernels._simd import load_half, load_lanes, load_long, load_word, store_lanes, store_word
from kvcodec.kernels.fold import SCALE_BIAS, SEGMENT, find_shift
from kvcodec.kernels.forms import (
    BIASED,
    DIGIT,
    DIM,
    EXPONENT,
    GREATEST,
    MEAN,
    NEAR,
    PAIRED,
    POSITION,
    START,
    STARTS,
    SUMMED,
    TOKENS,
    TURNING,
    has_groups,
)
from kvcodec.kernels.kept import find_kept, place_others, store_exponents
from kvcodec.kernels.lookup import unpack_indices
from kvcodec.kernels.product_rows import find_given, rebuild_product_rows
from kvcodec.kernels.raw_rows import BIAS
from kvcodec.kernels.turns import turn_row

ROWS = 64  # tokens of a block
PLANE = 128  # bytes of an index of as many tokens, or of a pair of codes
LARGEST = np.int64(32767)
WIDTH = np.int64(16)  # bits of numbers
MEAN_ROOM = np.int64(7)  # bits by which a mean of 22 is shifted up before
ZERO, FOUR, RIGHT = np.int32(0), np.int32(4), np.int64(31)


@inline
def find_run(form: Any) -> Any:
    """Terms whose sum fits an int16: an even number."""
    most = np.int64(15) if form.bits == 8 else np.int64(np.int64(1) << (form.bits - 1))
    return np.int64(LARGEST // np.int64(load_long(form.dictionary + GREATEST) * most)) & np.int64(-2)


@part
def weave_block(form: Any, planes: Any, scratch: Any) -> None:
    """scratch.codes: of a block of 64 tokens indices, behind PAIRED codes by twos, DIGIT bytes from one digit to the
    next, behind STARTS what the sums of each pass begin with.
    """
    codes, terms, run = scratch.codes, form.terms, find_run(form)
    coefficients = unpack_indices(form, planes, codes, scratch)
    digits, passes = (2 if form.bits == 8 else 1), 0
    for digit in range(digits):
        shift = np.int32(4) if digits == 2 and digit == 0 else ZERO
        mask = np.int32(15) if digit == 1 else np.int32(-1)
        pairs = codes + PAIRED + DIGIT * digit
        for j in range(0, terms, 2):
            one, both = coefficients + ROWS * j, j + 1 < terms
            weave_codes(one, one + ROWS if both else one, both, shift, mask, pairs + PLANE // 2 * j)
        for first in range(0, terms, run):
            count = (min(run, terms - first) + 1) >> 1
            start_sums(pairs + PLANE // 2 * first, count, codes + STARTS + PLANE * passes)
            passes += 1


@inline
def sum_row(form: Any, t: Any, run: Any, wide: Any, scratch: Any) -> Any:
    """scratch.passes: sums of atoms of the block's token t, `wide` a pass. (passes, those of the first digit)."""
    atoms, terms, codes = load_long(form.dictionary + BIASED), form.terms, scratch.codes
    digits, passes = (2 if form.bits == 8 else 1), np.int64(0)
    for digit in range(digits):
        for first in range(0, terms, run):
            count = (min(run, terms - first) + 1) >> 1
            pairs = codes + PAIRED + DIGIT * digit + PLANE // 2 * first + 2 * t
            indices, sums = codes + PLANE * first + 2 * t, scratch.passes + 2 * wide * passes
            start, whole = load_half(codes + STARTS + PLANE * passes + 2 * t), wide & -128
            for c in range(0, whole, 128):
                sum_atoms(atoms + c, wide, indices, pairs, count, start, sums + 2 * c)
            for c in range(whole, wide, 32):
                sum_few_atoms(atoms + c, wide, indices, pairs, count, start, sums + 2 * c)
            passes += 1
    return passes, passes >> (digits - 1)


class Factors(NamedTuple):
    """What a row's sums are put together with. both: factors of the first two passes, the second one's high; next_:
    bytes to the second one's sums. top, mantissa: factors of the first `high` passes, and of the others. right, down:
    by how much sums and the mean are shifted. exponent: of the numbers.
    """

    both: Any
    next_: Any
    top: Any
    mantissa: Any
    high: Any
    passes: Any
    right: Any
    mean: Any
    down: Any
    exponent: Any


@inline
def find_factors(form: Any, passes: Any, high: Any, scale: Any, wide: Any) -> Any:
    """Factors of a row. high: passes that count 16 times, of two digits; else all."""
    mantissa, own = (scale & 127) | 128, np.int64(np.int64(scale >> 7) - SCALE_BIAS)
    top = np.int32(mantissa << FOUR) if high < passes else mantissa
    least = np.int64(load_long(form.dictionary + EXPONENT) - MEAN_ROOM)
    exponent = max(own, least) if load_long(form.dictionary + MEAN) else own
    mean, down = load_long(form.dictionary + SUMMED), np.int32(min(max(np.int64(exponent - least), np.int64(0)), RIGHT))
    right, second = np.int32(min(np.int64(exponent - own), RIGHT)), min(np.int64(1), passes - 1)
    other = (top if second < high else mantissa) if passes > 1 else ZERO
    both = np.int32(top | np.int32(other << 16))
    return Factors(both, 2 * wide * second, top, mantissa, high, passes, right, mean, down, exponent)


@inline
def weigh_channels(factors: Any, c: Any, wide: Any, scratch: Any) -> Any:
    """Lanes: a row's numbers from channel c on in all their bits, at most 2**30, in SUM_ORDER."""
    first = scratch.passes + 2 * c
    number = weigh_sums(first, first + factors.next_, factors.both)
    if factors.passes > 2:
        for n in range(2, factors.passes, 2):
            one, more = first + 2 * wide * n, n + 1 < factors.passes
            two = factors.top if n < factors.high else factors.mantissa
            other = (factors.top if n + 1 < factors.high else factors.mantissa) if more else ZERO
            number = number + weigh_sums(one, one + 2 * wide if more else one, np.int32(two | np.int32(other << 16)))
    half = np.int32((np.int64(1) << np.int64(factors.down)) >> 1)
    return (number >> factors.right) + ((load_lanes(factors.mean + 4 * c) + half) >> factors.down)


@inline
def weigh_row(factors: Any, dim: Any, pairs: Any, wide: Any, scratch: Any, numbers: Any) -> Any:
    """numbers: a row's, int32 in SUM_ORDER. Lanes of the greatest magnitude: of pairs that turn the sum of both."""
    joint, most, zero = (np.int64(0) if pairs & 15 else pairs), splat(ZERO), splat(ZERO)
    for c in range(0, joint, 16):
        one, two = weigh_channels(factors, c, wide, scratch), weigh_channels(factors, c + pairs, wide, scratch)
        most = greater(most, greater(one, zero - one) + greater(two, zero - two))
        store_lanes(one, numbers + 4 * c)
        store_lanes(two, numbers + 4 * (c + pairs))
    for c in range(2 * joint, dim, 16):
        number = weigh_channels(factors, c, wide, scratch)
        most = greater(most, greater(number, zero - number))
        store_lanes(number, numbers + 4 * c)
    for c in range(joint, pairs):
        one, two = load_word(numbers + 4 * find_place(c)), load_word(numbers + 4 * find_place(c + pairs))
        most = greater(most, splat(np.int32(abs(one) + abs(two))))
    return most


@inline
def find_place(channel: Any) -> Any:
    """Where a channel stands in SUM_ORDER."""
    return (channel & -13) | ((channel & 4) << 1) | ((channel & 8) >> 1)


@inline
def finish_row(numbers: Any, shift: Any, dim: Any, pairs: Any, turns: Any, scratch: Any, row: Any) -> None:
    """A row's numbers as int16, turned if it has pairs. turns: cosines of the pairs, Q15, and behind them sines."""
    half = np.int32((np.int64(1) << np.int64(shift)) >> 1)
    if pairs & 15:
        for c in range(0, dim, 16):
            store_sums((load_lanes(numbers + 4 * c) + half) >> shift, scratch.turned + 2 * c)
        turn_row(scratch.turned, dim, pairs, turns, row)
    else:
        for c in range(0, pairs, 16):
            other, cosines = c + pairs, turns + 2 * c
            one, two, to = numbers + 4 * c, numbers + 4 * other, row + 2 * c
            turn_sums(one, two, half, shift, cosines, cosines + 2 * pairs, to, to + 2 * pairs)
        for c in range(2 * pairs, dim, 16):
            store_sums((load_lanes(numbers + 4 * c) + half) >> shift, row + 2 * c)


@part
def rebuild_rows(
    form: Any, head: Any, kept: Any, run: Any, position: Any, dim: Any, segments: Any, scratch: Any, rows: Any
) -> None:
    """A strip's rows that are codes, as numbers and exponents, see align_rows; of other rows nothing.

    head: address of a head's section. kept: its block's row of the table of rows kept otherwise, or 0. run: first token
    in the record, and how many; position: of the first one in its sequence. A row is finished while the next one is
    summed: what it has to wait for is its greatest number.
    """
    start, tokens = run
    block, within, exponents = start >> 6, start & 63, rows + 128 * dim
    weave_block(form, head + form.codes + block * ROWS * form.row_stride, scratch)
    others = load_long(kept + 8) | load_long(kept + 16) if kept else np.int64(0)
    terms_run, wide = find_run(form), (dim + 31) & -32
    pairs = load_long(form.dictionary + TURNING)
    turns = load_long(form.dictionary + NEAR) + 4 * pairs * (position & 63)
    late, late_shift = np.int64(-1), ZERO
    for t in range(tokens + 1):
        now, shift, numbers = np.int64(-1), ZERO, scratch.wide + 4 * dim * (t & 1)
        if t < tokens and others >> (within + t) & 1 == 0:
            passes, high = sum_row(form, within + t, terms_run, wide, scratch)
            scale = np.int32(np.int32(load_half(head + 2 * (start + t))) & 0xFFFF)
            factors = find_factors(form, passes, high, scale, wide)
            most = weigh_row(factors, dim, pairs, wide, scratch, numbers)
            now, shift = np.int64(t), find_shift(most, WIDTH)
            store_exponents(factors.exponent + np.int64(shift) + BIAS[0], segments, exponents + 4 * segments * t)
        if late >= 0:
            before, to = scratch.wide + 4 * dim * (late & 1), rows + 2 * dim * late
            finish_row(before, late_shift, dim, pairs, turns + 4 * pairs * late, scratch, to)
        late, late_shift = now, shift


@inline
def rebuild_strip(
    form: Any, strip: Any, place: Any, kv_head: Any, uses: Any, stream: Any, tables: Any, scratch: Any, s: Any
) -> None:
    """Rows of codes that no table serves as numbers, where those of raw rows are. uses: scored, valued."""
    dim, rows = load_long(stream + DIM), scratch.rows + s * scratch.area
    run, position = (load_long(strip + place + START), load_long(strip + TOKENS)), load_long(strip + POSITION)
    segments = np.int64((dim + SEGMENT - 1) // SEGMENT) if uses[0] else np.int64(1)
    first, kept = load_long(strip + place), find_kept(strip, place, form, kv_head)
    head = first + kv_head * form.head_stride
    if has_groups(form):
        given = find_given(form.dictionary, strip, place, kv_head, tables)
        rebuild_product_rows(form, head, kept, run, position, dim, segments, given, scratch, rows)
    else:
        rebuild_rows(form, head, kept, run, position, dim, segments, scratch, rows)
    if kept:
        place_others(form, first, kept, run, dim, segments, scratch, rows)
    if uses[0] and uses[1]:
        once = scratch.rows + tables.count * scratch.area
        copy_bytes(rows, 128 * dim, once)
        for t in range(run[1]):
            store_word(load_word(rows + 128 * dim + 4 * segments * t), once + 128 * dim + 4 * t)
