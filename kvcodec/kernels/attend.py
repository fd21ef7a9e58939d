"""Decode attention on the bytes of records, with integers alone: scores, softmax and weighted values, strip by strip.

A *strip* is a run of at most 64 tokens that lies, in every stream, within one block of 64 tokens of one record. All
query heads of a KV head take its bytes while they are in the cache, and the next strip's are asked for meanwhile.
A state is what strips in order leave of a query head: integers that merge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import inline, jit, part
from kvcodec.kernels._lanes import (
    splat,
)
from kvcodec.kernels._simd import (
    load_lanes,
    load_long,
    load_word,
    store_lanes,
    store_word,
)
from kvcodec.kernels.fold import SEGMENT
from kvcodec.kernels.forms import (
    ASKED,
    DIM,
    END,
    FIRST,
    HEAD,
    LAST,
    PLACE_BYTES,
    PLACES,
    QUERY,
    RAW_BITS,
    SCORED,
    SLOT,
    STATE_BYTES,
    STREAM_BYTES,
    STRIP_BYTES,
    TOKEN_LANE,
    TOKENS,
    VALUED,
    Query,
    cut_scratch,
    read_form,
)
from kvcodec.kernels.raw_rows import align_rows
from kvcodec.kernels.score import score_strip
from kvcodec.kernels.softmax import begin_state, count_shares, merge_state, weigh_logits
from kvcodec.kernels.values import value_strip


@part
def align_strip(strip: Any, kv_head: Any, tables: Any, scratch: Any) -> None:
    """The numbers of a strip's raw rows, of each stream and KV head that has such, for its query heads to share.

    Scores take them by segments, values with one exponent a row: rows that are for both become numbers twice.
    """
    forms, streams, count = tables
    for s in range(count):
        stream, place = streams + STREAM_BYTES * s, PLACES + PLACE_BYTES * s
        form = read_form(forms, load_long(strip + place + 8))
        if form.bits == RAW_BITS:
            row = (
                load_long(strip + place) + kv_head * form.head_stride + load_long(strip + place + 16) * form.row_stride
            )
            dim, tokens, scored = load_long(stream + DIM), load_long(strip + TOKENS), load_long(stream + SCORED)
            segment = np.int64(SEGMENT) if scored else dim
            align_rows(row, form.row_stride, tokens, dim, segment, form.half, scratch.rows + s * scratch.area)
            if scored and load_long(stream + VALUED):
                align_rows(row, form.row_stride, tokens, dim, dim, form.half, scratch.rows + count * scratch.area)


@inline
def place_head(strip: Any, later: Any, heads: Any, tables: Any, scratch: Any, s: Any) -> Any:
    """Form of stream s, address of a KV head's section, or of its rows' numbers, and bytes to what comes next."""
    forms, _, _ = tables
    place = PLACES + PLACE_BYTES * s
    form = read_form(forms, load_long(strip + place + 8))
    head = load_long(strip + place) + heads[0] * form.head_stride
    ahead = load_long(later + place) + heads[1] * form.head_stride - head
    return form, scratch.rows + s * scratch.area if form.bits == RAW_BITS else head, ahead


@inline
def score_streams(strip: Any, later: Any, heads: Any, tables: Any, query: Any, scratch: Any) -> None:
    """Logits of a strip for one query head. later: the strip that comes next; heads: the KV heads of both."""
    _, streams, count = tables
    for at in range(0, STRIP_BYTES, 64):
        store_lanes(splat(np.int32(0)), scratch.logits + at)
    for s in range(count):
        stream = streams + STREAM_BYTES * s
        if load_long(stream + SCORED):
            form, head, ahead = place_head(strip, later, heads, tables, scratch, s)
            start, tokens = load_long(strip + PLACES + PLACE_BYTES * s + 16), load_long(strip + TOKENS)
            own = Query(query.numbers + 4 * load_long(stream + QUERY), query.shift, query.factor, query.width)
            score_strip(form, head, start, tokens, load_long(stream + DIM), own, scratch, ahead)


@inline
def attend_strip(
    strip: Any, later: Any, heads: Any, tables: Any, query: Any, scratch: Any, state: Any, outputs: Any
) -> None:
    """Take a strip into the state of one query head. The last stream has the values."""
    _, streams, count = tables
    score_streams(strip, later, heads, tables, query, scratch)
    s, tokens = count - 1, load_long(strip + TOKENS)
    stream, start = streams + STREAM_BYTES * s, load_long(strip + PLACES + PLACE_BYTES * s + 16)
    exponent, total = weigh_logits(scratch.logits, tokens, scratch.shares, start & 15)
    if total:
        count_shares(state, exponent, total)
        form, head, ahead = place_head(strip, later, heads, tables, scratch, s)
        if form.bits == RAW_BITS and load_long(stream + SCORED):
            head += scratch.area
        kind = load_long(stream + DIM), load_long(stream + TOKEN_LANE)
        value_strip(form, head, (start, tokens), kind, exponent, scratch, (state, outputs), ahead)


@jit
def score_strips(
    strips: NDArray[np.int64],
    forms: NDArray[np.int64],
    streams: NDArray[np.int64],
    numbers: NDArray[np.int32],
    shifts: NDArray[np.int64],
    factors: NDArray[np.int32],
    width: Any,
    per_head: Any,
    widest: Any,
    memory: NDArray[np.uint8],
    logits: NDArray[np.int32],
) -> None:
    """logits (heads, tokens): those of all tokens of strips, one behind the other. Arguments as of attend_items, one
    query (heads, channels) and streams that are scored.
    """
    scratch = cut_scratch(memory.ctypes.data, widest)
    tables = forms.ctypes.data, streams.ctypes.data, streams.shape[0]
    row, out = 8 * strips.shape[1], 0
    for i in range(strips.shape[0]):
        strip = strips.ctypes.data + row * i
        later = strip + row if i + 1 < strips.shape[0] else strip
        for kv_head in range(numbers.shape[0] // per_head):
            align_strip(strip, kv_head, tables, scratch)
            for h in range(kv_head * per_head, (kv_head + 1) * per_head):
                place = numbers.ctypes.data + 4 * numbers.shape[1] * h
                query = Query(place, shifts[h], factors[h], width)
                score_streams(strip, later, (kv_head, kv_head), tables, query, scratch)
                place = logits.ctypes.data + 4 * (logits.shape[1] * h + out)
                whole = strips[i, 0] & ~15
                for t in range(0, whole, 16):
                    store_lanes(load_lanes(scratch.logits + 4 * t), place + 4 * t)
                for t in range(whole, strips[i, 0]):
                    store_word(load_word(scratch.logits + 4 * t), place + 4 * t)
        out += strips[i, 0]


@jit
def attend_items(
    items: NDArray[np.int64],
    strips: NDArray[np.int64],
    forms: NDArray[np.int64],
    streams: NDArray[np.int64],
    numbers: NDArray[np.int32],
    shifts: NDArray[np.int64],
    factors: NDArray[np.int32],
    width: Any,
    per_head: Any,
    widest: Any,
    memory: NDArray[np.uint8],
    states: NDArray[np.int64],
    outputs: NDArray[np.int64],
) -> None:
    """Fill the states of items: each a run of strips, some KV heads, and the query they are for.

    numbers (queries, heads, channels of all streams), shifts and factors (queries, heads): the queries, see `Query`.
    width: bits of their weights, 8 or 16. per_head: query heads of one KV head. widest: channels of a stream, at most;
    memory: scratch_bytes of that, of this thread alone. states
    (slots, heads, 3), outputs (slots, heads, channels).
    """
    scratch = cut_scratch(memory.ctypes.data, widest)
    tables = forms.ctypes.data, streams.ctypes.data, streams.shape[0]
    row, all_heads, dim = 8 * strips.shape[1], numbers.shape[1], outputs.shape[2]
    for n in range(items.shape[0]):
        first, last, head, end = items[n, FIRST], items[n, LAST], items[n, HEAD], items[n, END]
        sink, asked = items[n, SLOT] * all_heads, items[n, ASKED]
        for h in range(sink + head * per_head, sink + end * per_head):
            begin_state(states.ctypes.data + STATE_BYTES * h, outputs.ctypes.data + 8 * dim * h, dim)
        for i in range(first, last):
            strip = strips.ctypes.data + row * i
            for kv_head in range(head, end):
                more = kv_head + 1 < end
                later = strip if more or i + 1 == last else strip + row
                heads = kv_head, kv_head + 1 if more else head
                align_strip(strip, kv_head, tables, scratch)
                for h in range(kv_head * per_head, (kv_head + 1) * per_head):
                    place = numbers.ctypes.data + 4 * numbers.shape[2] * (asked * all_heads + h)
                    query = Query(place, shifts[asked, h], factors[asked, h], width)
                    state, out = (
                        states.ctypes.data + STATE_BYTES * (sink + h),
                        outputs.ctypes.data + 8 * dim * (sink + h),
                    )
                    attend_strip(strip, later, heads, tables, query, scratch, state, out)


@jit
def merge_slots(slots: NDArray[np.int64], states: NDArray[np.int64], outputs: NDArray[np.int64]) -> None:
    """Merge, for each row (slot, other) of slots in order, the states of `other` into those of `slot`."""
    heads, dim = outputs.shape[1], outputs.shape[2]
    for n in range(slots.shape[0]):
        for h in range(heads):
            one, two = slots[n, 0] * heads + h, slots[n, 1] * heads + h
            state, other = states.ctypes.data + STATE_BYTES * one, states.ctypes.data + STATE_BYTES * two
            merge_state(state, outputs.ctypes.data + 8 * dim * one, other, outputs.ctypes.data + 8 * dim * two, dim)
