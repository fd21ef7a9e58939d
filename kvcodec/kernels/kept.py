"""Rows that a record with an error bound keeps otherwise than as codes, INT4 or raw: formats/dictionary.md.

Where they lie is told by a table that is made when a record is checked: what the record itself says may change under a
reader.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._atoms import copy_bytes
from kvcodec.kernels._jit import inline, jit, part
from kvcodec.kernels._lanes import greater, keep_first, splat
from kvcodec.kernels._rebuild import load_nibbles
from kvcodec.kernels._simd import load_half, load_lanes, load_long, store_lanes, store_numbers, store_word
from kvcodec.kernels.fold import SCALE_BIAS, find_shift
from kvcodec.kernels.forms import FORM, KEPT, KEPT_BYTES, PLACE_BYTES, PLACES, START, TOKENS, WIDTH, read_form
from kvcodec.kernels.raw_rows import BIAS, align_numbers, find_exponent

ZERO, ONE = np.int32(0), np.int64(1)
WHOLE_WIDTH = np.int64(16)  # bits of numbers
PART_BITS = np.int64(4)  # an INT4 step has 2**PART_BITS parts


@inline
def find_kept(strip: Any, place: Any, form: Any, kv_head: Any) -> Any:
    """Address of a block's row of the table of rows kept otherwise, or 0."""
    kept, blocks = load_long(strip + place + KEPT), form.codes >> 7  # of each 128 bytes of scales
    number = kv_head * blocks + (load_long(strip + place + START) >> 6)
    return np.int64(kept + KEPT_BYTES * number) if kept else np.int64(0)


@inline
def store_exponents(exponent: Any, count: Any, to: Any) -> None:
    """A row's exponent, for each of its segments."""
    for n in range(count):
        store_word(np.int32(exponent), to + 4 * n)


@inline
def align_nibbles(row: Any, own: Any, dim: Any, scratch: Any, numbers: Any) -> Any:
    """A row of int4/token/g32 of `own` channels as `dim` numbers: their exponent."""
    groups, top = (own + 31) >> 5, ZERO
    for g in range(groups):
        top = max(top, np.int32(np.int32(np.int32(load_half(row + 2 * g)) & 0xFFFF) >> 7))
    most = splat(ZERO)
    for c in range(0, dim, 16):
        scales = row + 2 * (c >> 5)
        scale = np.int32(np.int32(load_half(scales)) & 0xFFFF)
        step = (load_nibbles(row + 4 * groups + (c >> 1)) << PART_BITS) + np.int32(load_half(scales + 2 * groups))
        number = (step * np.int32((scale & 127) | 128)) >> min(np.int32(top - np.int32(scale >> 7)), np.int32(31))
        number = keep_first(number, np.int32(min(own - c, 16)), ZERO)
        most = greater(most, greater(number, splat(ZERO) - number))
        store_lanes(number, scratch.wide + 4 * c)
    shift = find_shift(most, WHOLE_WIDTH)
    half = np.int32((np.int64(1) << np.int64(shift)) >> 1)
    for c in range(0, dim, 16):
        store_numbers((load_lanes(scratch.wide + 4 * c) + half) >> shift, numbers + 2 * c)
    return np.int64(np.int64(top) + np.int64(shift) + BIAS[0] - SCALE_BIAS - PART_BITS)


@inline
def align_raw(row: Any, own: Any, dim: Any, half: Any, scratch: Any, numbers: Any) -> Any:
    """A raw row of `own` channels as `dim` numbers: their exponent, which is that of a bfloat16."""
    for c in range(0, dim, 16):
        store_numbers(splat(ZERO), scratch.turned + 2 * c)
    copy_bytes(row, 2 * own, scratch.turned)
    exponent = find_exponent(scratch.turned, dim, half)
    for c in range(0, dim, 16):
        store_numbers(align_numbers(scratch.turned + 2 * c, exponent, half), numbers + 2 * c)
    return np.int64(np.int64(exponent) + BIAS[0] - BIAS[half])


@part
def place_others(form: Any, place: Any, kept: Any, run: Any, dim: Any, segments: Any, scratch: Any, rows: Any) -> None:
    """The rows of a strip that are kept otherwise, put where rebuild_rows left room for them.

    place: address of the first head of the record. kept: see rebuild_rows.
    """
    within, tokens = run[0] & 63, run[1]
    at, int4, raw = place + load_long(kept), load_long(kept + 8), load_long(kept + 16)
    own, exponents = load_long(form.dictionary + WIDTH), rows + 128 * dim
    small, large = 4 * ((own + 31) >> 5) + (dim >> 1), 2 * own
    for t in range(within + tokens):
        is_int4, is_raw = int4 >> t & 1, raw >> t & 1
        if t >= within and is_int4 | is_raw:
            row = rows + 2 * dim * (t - within)
            if is_int4:
                exponent = align_nibbles(at, own, dim, scratch, row)
            else:
                exponent = align_raw(at, own, dim, form.rebuilt - 1, scratch, row)
            store_exponents(exponent, segments, exponents + 4 * segments * (t - within))
        at += is_int4 * small + is_raw * large


@inline
def count_bits(bits: Any) -> Any:
    """How many of 64 bits are set."""
    count = np.int64(0)
    while bits != 0:
        bits = np.int64(bits & np.int64(bits - ONE))
        count = np.int64(count + ONE)
    return count


@jit
def count_kept(strips: NDArray[np.int64], stream: Any, forms: NDArray[np.int64], kv_heads: Any) -> Any:
    """Bytes of the rows kept otherwise of one stream that strips read."""
    total, place = np.int64(0), PLACES + PLACE_BYTES * stream
    for n in range(strips.shape[0]):
        strip = strips.ctypes.data + 8 * strips.shape[1] * n
        if load_long(strip + place + KEPT):
            form = read_form(forms.ctypes.data, load_long(strip + place + FORM))
            own, within = load_long(form.dictionary + WIDTH), load_long(strip + place + START) & 63
            mask = np.int64(np.int64(-1) << within)
            if within + load_long(strip + TOKENS) < 64:
                mask = np.int64(mask & np.int64(np.int64(ONE << (within + load_long(strip + TOKENS))) - ONE))
            for kv_head in range(kv_heads):
                kept = find_kept(strip, place, form, np.int64(kv_head))
                small, large = 4 * ((own + 31) >> 5) + ((own + 15 & -16) >> 1), 2 * own
                total = np.int64(total + small * count_bits(np.int64(load_long(kept + 8) & mask)))
                total = np.int64(total + large * count_bits(np.int64(load_long(kept + 16) & mask)))
    return total
