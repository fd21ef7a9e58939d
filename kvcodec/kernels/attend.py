"""Decode attention on the bytes of records, with integers alone: scores, softmax and weighted values, strip by strip.

A *strip* is a run of at most 64 tokens that lies, in every stream, within one block of 64 tokens of one record. All
query heads of a KV head take its bytes while they are in the cache, and the next strip's are asked for meanwhile.
A state is what strips in order leave of a query head: integers that merge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import inline, jit
from kvcodec.kernels._simd import (
    load_long,
    load_word,
    splat,
    store_lanes,
)
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
from kvcodec.kernels.score import score_strip
from kvcodec.kernels.softmax import begin_state, count_shares, merge_state, weigh_logits
from kvcodec.kernels.values import value_strip


@inline
def attend_strip(
    strip: Any, later: Any, heads: Any, tables: Any, query: Any, scratch: Any, state: Any, outputs: Any
) -> None:
    """Take a strip into the state of one query head. later: the strip that comes next; heads: the KV heads of both."""
    forms, streams, count = tables
    tokens = load_long(strip + TOKENS)
    for at in range(0, STRIP_BYTES, 64):
        store_lanes(splat(np.int32(0)), scratch.logits + at)
    for s in range(count):
        stream, place = streams + STREAM_BYTES * s, PLACES + PLACE_BYTES * s
        form = read_form(forms, load_long(strip + place + 8))
        head = load_long(strip + place) + heads[0] * form.head_stride
        ahead = load_long(later + place) + heads[1] * form.head_stride - head
        start, dim = load_long(strip + place + 16), load_long(stream + DIM)
        if load_long(stream + SCORED):
            own = Query(query.numbers + 4 * load_long(stream + QUERY), query.shift, query.factor, query.width)
            score_strip(form, head, start, tokens, dim, own, scratch, ahead)
        if load_long(stream + VALUED) and s == count - 1:
            exponent, total = weigh_logits(scratch.logits, tokens, scratch.shares, start % 16)
            if total:
                count_shares(state, exponent, total)
                kind = dim, load_long(stream + TOKEN_LANE)
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
    memory: NDArray[np.uint8],
    logits: NDArray[np.int32],
) -> None:
    """logits (heads, tokens): those of all tokens of strips, one behind the other. Arguments as of attend_items, one
    query (heads, channels) and streams that are scored.
    """
    scratch = cut_scratch(memory.ctypes.data, memory.shape[0])
    heads, row = numbers.shape[0], 8 * strips.shape[1]
    out = 0
    for i in range(strips.shape[0]):
        strip, tokens = strips.ctypes.data + row * i, strips[i, 0]
        later = strip + row if i + 1 < strips.shape[0] else strip
        for h in range(heads):
            for at in range(0, STRIP_BYTES, 64):
                store_lanes(splat(np.int32(0)), scratch.logits + at)
            query = Query(numbers.ctypes.data + 4 * numbers.shape[1] * h, shifts[h], factors[h], width)
            for s in range(streams.shape[0]):
                stream, place = streams.ctypes.data + STREAM_BYTES * s, PLACES + PLACE_BYTES * s
                form = read_form(forms.ctypes.data, load_long(strip + place + 8))
                head = load_long(strip + place) + h // per_head * form.head_stride
                ahead = load_long(later + place) + h // per_head * form.head_stride - head
                start, dim = load_long(strip + place + 16), load_long(stream + DIM)
                own = Query(query.numbers + 4 * load_long(stream + QUERY), query.shift, query.factor, query.width)
                score_strip(form, head, start, tokens, dim, own, scratch, ahead)
            for t in range(tokens):
                logits[h, out + t] = load_word(scratch.logits + 4 * t)
        out += tokens


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
    memory: NDArray[np.uint8],
    states: NDArray[np.int64],
    outputs: NDArray[np.int64],
) -> None:
    """Fill the states of items: each a run of strips, some KV heads, and the query they are for.

    numbers (queries, heads, channels of all streams), shifts and factors (queries, heads): the queries, see `Query`.
    width: bits of their weights, 8 or 16. per_head: query heads of one KV head. memory: of this thread alone. states
    (slots, heads, 3), outputs (slots, heads, channels).
    """
    scratch = cut_scratch(memory.ctypes.data, memory.shape[0])
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
