"""Keys and queries turned by positions, as integers: what attention does about keys from before their rotary embedding.

Channels c and c + pairs are a pair. The table of cosines and sines is made by attention/headers.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._rebuild import turn_halves, turn_numbers
from kvcodec.kernels._simd import (
    load_half,
    load_lanes,
    load_long,
    load_signed,
    load_word,
    store_half,
    store_lanes,
    store_numbers,
    store_word,
)
from kvcodec.kernels.forms import CHANNELS, FAR, POSITION, START, TOKENS, TURNED, TURNING, Query
from kvcodec.kernels.kept import find_kept
from kvcodec.kernels.score import score_numbers

UNIT, ROUNDING = np.int32(1), np.int64(1 << 29)


@inline
def multiply_rounded(one: Any, two: Any) -> Any:
    """Product of an int16 and a Q15, halves up."""
    return np.int32(np.int32(np.int32(np.int32(one * two) >> 14) + UNIT) >> 1)


@inline
def turn_row(row: Any, dim: Any, pairs: Any, turns: Any, to: Any) -> None:
    """A row turned. turns: cosines of the pairs, Q15, and behind them sines."""
    for c in range(2 * pairs & -16, dim, 16):
        store_numbers(load_signed(row + 2 * c), to + 2 * c)
    if pairs >= 16:
        for c in range(0, pairs, 16):  # the last ones may be some of those before them
            at = min(c, pairs - 16)
            other = 2 * (at + pairs)
            turn_halves(row + 2 * at, row + other, turns + 2 * at, turns + other, to + 2 * at, to + other)
    else:
        for c in range(pairs):
            x, y = np.int32(load_half(row + 2 * c)), np.int32(load_half(row + 2 * (c + pairs)))
            cosine, sine = np.int32(load_half(turns + 2 * c)), np.int32(load_half(turns + 2 * (c + pairs)))
            one = np.int32(multiply_rounded(x, cosine) - multiply_rounded(y, sine))
            two = np.int32(multiply_rounded(y, cosine) + multiply_rounded(x, sine))
            store_half(np.int16(one), to + 2 * c)
            store_half(np.int16(two), to + 2 * (c + pairs))


@part
def turn_query(dictionary: Any, numbers: Any, position: Any, to: Any) -> None:
    """A query's numbers for keys that are turned by their positions from 64 * n on: turned back by that of the first.

    numbers: turned back to the multiple of 4,096 before that.
    """
    pairs, dim = load_long(dictionary + TURNING), load_long(dictionary + CHANNELS)
    turns = load_long(dictionary + FAR) + 8 * pairs * (position >> 6 & 63)
    for c in range(2 * pairs & -16, dim, 16):
        store_lanes(load_lanes(numbers + 4 * c), to + 4 * c)
    for c in range(0, pairs & -16, 16):
        other = 4 * (c + pairs)
        turn_numbers(numbers + 4 * c, numbers + other, turns + 4 * c, turns + other, to + 4 * c, to + other)
    for c in range(pairs & -16, pairs):
        x, y = np.int64(load_word(numbers + 4 * c)), np.int64(load_word(numbers + 4 * (c + pairs)))
        cosine, sine = np.int64(load_word(turns + 4 * c)), np.int64(load_word(turns + 4 * (c + pairs)))
        one, two = (
            np.int64(np.int64(x * cosine) + np.int64(y * sine)),
            np.int64(np.int64(y * cosine) - np.int64(x * sine)),
        )
        store_word(np.int32(np.int64(one + ROUNDING) >> 30), to + 4 * c)
        store_word(np.int32(np.int64(two + ROUNDING) >> 30), to + 4 * (c + pairs))


@inline
def score_turned(strip: Any, place: Any, form: Any, rows: Any, heads: Any, dim: Any, query: Any, scratch: Any) -> None:
    """Logits of rebuilt keys, which are turned from the strip's multiple of 64 on alone; of rows kept otherwise, which
    are turned to where they stand, from the query as it is.
    """
    position, tokens = load_long(strip + POSITION), load_long(strip + TOKENS)
    turn_query(form.dictionary, load_long(strip + place + TURNED) + 4 * dim * query.head, position, scratch.turned)
    own = Query(query.head, scratch.turned, query.shift, query.factor, query.width, query.quad, query.lane)
    kept, within = find_kept(strip, place, form, heads[0]), load_long(strip + place + START) & 63
    others = np.int64(load_long(kept + 8) | load_long(kept + 16)) >> within if kept else np.int64(0)
    first = np.int64(0)
    while first < tokens:
        end, other = np.int64(first + 1), others >> first & 1
        while end < tokens and others >> end & 1 == other:
            end = np.int64(end + 1)
        if other:
            score_numbers(form, rows, (first, end - first), dim, query, scratch)
        else:
            score_numbers(form, rows, (first, end - first), dim, own, scratch)
        first = end
