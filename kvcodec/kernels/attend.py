"""Decode attention on the bytes of records, with integers alone: scores, softmax and weighted values, strip by strip.

A *strip* is a run of at most 64 tokens that lies, in every stream, within one block of 64 tokens of one record. All
query heads of a KV head take its bytes while they are in the cache: see strip.py.
A state is what strips in order leave of a query head: integers that merge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import inline, jit
from kvcodec.kernels._simd import load_lanes, load_long, load_word, store_lanes, store_word
from kvcodec.kernels.buckets import enter_codes
from kvcodec.kernels.forms import (
    ASKED,
    DIM,
    END,
    FIRST,
    FORM,
    HEAD,
    LAST,
    PLACE_BYTES,
    PLACES,
    SCORED,
    SLOT,
    START,
    STATE_BYTES,
    STREAM_BYTES,
    TOKEN_LANE,
    TOKENS,
    cut_scratch,
    has_codes,
    has_groups,
    has_rows,
    read_form,
)
from kvcodec.kernels.held import count_beside, empty_held, turn_held
from kvcodec.kernels.product_buckets import enter_products
from kvcodec.kernels.softmax import begin_state, count_shares, merge_state, weigh_logits
from kvcodec.kernels.strip import Tables, align_strip, find_planes, place_head, score_streams, take_query
from kvcodec.kernels.values import value_strip

beside_ = inline(count_beside)


@inline
def attend_strip(
    strip: Any, later: Any, heads: Any, tables: Any, query: Any, scratch: Any, state: Any, outputs: Any, buckets: Any
) -> None:
    """Take a strip into the state of a query head. The last stream has the values. buckets: their address, the head's
    number in its KV head, and how many heads' are beside each other.
    """
    score_streams(strip, later, heads, tables, query, scratch)
    s, tokens = tables.count - 1, load_long(strip + TOKENS)
    stream, start = tables.streams + STREAM_BYTES * s, load_long(strip + PLACES + PLACE_BYTES * s + START)
    exponent, total = weigh_logits(scratch.logits, tokens, scratch.shares, start & 15)
    if total:
        count_shares(state, exponent, total)
    form, head, ahead = place_head(strip, later, heads, tables, scratch, s)
    if has_codes(form):
        rows, shares, beside, per_head = scratch.rows + s * scratch.area, (exponent, total), buckets[2], tables.per_head
        if has_groups(form):
            planes, run = find_planes(form, head, start), (start & 63, tokens)
            enter_products(form, planes, rows, run, shares, buckets, beside, per_head, scratch)
        else:
            enter_codes(form, rows, head, (start, tokens), shares, buckets, beside, per_head, scratch)
    elif total:
        if has_rows(form) and load_long(stream + SCORED):
            head += scratch.area
        kind = load_long(stream + DIM), load_long(stream + TOKEN_LANE)
        value_strip(form, head, (start, tokens), kind, exponent, scratch, (state, outputs), ahead)


@jit
def score_strips(
    strips: NDArray[np.int64],
    forms: NDArray[np.int64],
    streams: NDArray[np.int64],
    lookups: NDArray[np.int64],
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
    query and streams that are scored.
    """
    scratch = cut_scratch(memory.ctypes.data, widest)
    tables = Tables(
        forms.ctypes.data, streams.ctypes.data, streams.shape[0], lookups.ctypes.data, forms.shape[0], per_head
    )
    row, out = 8 * strips.shape[1], 0
    for i in range(strips.shape[0]):
        strip = strips.ctypes.data + row * i
        later = strip + row if i + 1 < strips.shape[0] else strip
        for kv_head in range(numbers.shape[1] // per_head):
            align_strip(strip, later, (kv_head, kv_head), tables, scratch)
            for rank in range(per_head):
                query = take_query(numbers, shifts, factors, width, np.int64(0), kv_head, rank, per_head)
                score_streams(strip, later, (kv_head, kv_head), tables, query, scratch)
                place = logits.ctypes.data + 4 * (logits.shape[1] * query.head + out)
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
    lookups: NDArray[np.int64],
    numbers: NDArray[np.int32],
    shifts: NDArray[np.int64],
    factors: NDArray[np.int32],
    width: Any,
    per_head: Any,
    widest: Any,
    memory: NDArray[np.uint8],
    buckets: NDArray[np.uint8],
    states: NDArray[np.int64],
    outputs: NDArray[np.int64],
) -> None:
    """Fill the states of items: each a run of strips, some KV heads, and the query they are for.

    lookups (streams, forms): addresses of the tables that make_tables made, 0 where there is none. numbers (queries,
    heads, channels of all streams), shifts and factors (queries, heads): the queries, see `Query`. width: bits of their
    weights, 8 or 16. per_head: query heads of one KV head. widest: channels of a stream, at most; memory: scratch_bytes
    of that, of this thread alone; buckets: alike, empty if no values are codes of whole vectors. states
    (slots, heads, 3), outputs (slots, heads, channels).
    """
    scratch = cut_scratch(memory.ctypes.data, widest)
    tables = Tables(
        forms.ctypes.data, streams.ctypes.data, streams.shape[0], lookups.ctypes.data, forms.shape[0], per_head
    )
    row, all_heads, dim, beside = 8 * strips.shape[1], numbers.shape[1], outputs.shape[2], np.int64(beside_(per_head))
    value = PLACES + PLACE_BYTES * (streams.shape[0] - 1)
    for n in range(items.shape[0]):
        first, last, head, end = items[n, FIRST], items[n, LAST], items[n, HEAD], items[n, END]
        sink, asked = items[n, SLOT] * all_heads, items[n, ASKED]
        for h in range(sink + head * per_head, sink + end * per_head):
            begin_state(states.ctypes.data + STATE_BYTES * h, outputs.ctypes.data + 8 * dim * h, dim)
        turn = max(last - first, 1) if buckets.shape[0] else 1  # buckets stay in the cache
        for begin in range(first, last, turn):
            until = min(begin + turn, last)
            for kv_head in range(head, end):
                own = sink + kv_head * per_head
                sinks = states.ctypes.data + STATE_BYTES * own, outputs.ctypes.data + 8 * dim * own, dim
                held = np.int64(0)
                for i in range(begin, until):
                    strip, more = strips.ctypes.data + row * i, kv_head + 1 < end
                    later, after = strip + row, kv_head
                    if i + 1 == until and more:
                        later, after = strips.ctypes.data + row * begin, kv_head + 1
                    elif i + 1 == until:
                        later, after = strip if i + 1 == last else strip + row, head
                    heads = kv_head, after
                    align_strip(strip, later, heads, tables, scratch)
                    if buckets.shape[0]:
                        form = read_form(tables.forms, load_long(strip + value + FORM))
                        other = form.dictionary if has_codes(form) else np.int64(0)
                        held = turn_held(held, other, buckets.ctypes.data, beside, per_head, sinks, scratch)
                    for rank in range(per_head):
                        query = take_query(numbers, shifts, factors, width, asked, kv_head, rank, per_head)
                        state = states.ctypes.data + STATE_BYTES * (sink + query.head)
                        out = outputs.ctypes.data + 8 * dim * (sink + query.head)
                        own_buckets = buckets.ctypes.data, rank, beside
                        attend_strip(strip, later, heads, tables, query, scratch, state, out, own_buckets)
                if held:
                    empty_held(held, buckets.ctypes.data, beside, per_head, sinks, scratch)


@jit
def merge_slots(slots: NDArray[np.int64], states: NDArray[np.int64], outputs: NDArray[np.int64]) -> None:
    """Merge, for each row (slot, other) of slots in order, the states of `other` into those of `slot`."""
    heads, dim = outputs.shape[1], outputs.shape[2]
    for n in range(slots.shape[0]):
        for h in range(heads):
            one, two = slots[n, 0] * heads + h, slots[n, 1] * heads + h
            state, other = states.ctypes.data + STATE_BYTES * one, states.ctypes.data + STATE_BYTES * two
            merge_state(state, outputs.ctypes.data + 8 * dim * one, other, outputs.ctypes.data + 8 * dim * two, dim)
