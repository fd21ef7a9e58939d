"""Decode attention on the bytes of records, with integers alone: scores, softmax and weighted values, strip by strip.

A *strip* is a run of at most 64 tokens that lies, in every stream, within one block of 64 tokens of one record. All
query heads of a KV head take its bytes while they are in the cache, and the next strip's are asked for meanwhile.
A state is what strips in order leave of a query head: integers that merge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
from kvcodec.kernels.buckets import empty_groups, enter_codes, turn_buckets
from kvcodec.kernels.fold import SEGMENT
from kvcodec.kernels.forms import (
    ASKED,
    DIM,
    END,
    FIRST,
    FORM,
    HEAD,
    LAST,
    PADDED,
    PLACE_BYTES,
    PLACES,
    QUERY,
    RAW_BITS,
    SCORED,
    SLOT,
    START,
    STATE_BYTES,
    STREAM_BYTES,
    STRIP_BYTES,
    TOKEN_LANE,
    TOKENS,
    TURNED,
    VALUED,
    Query,
    cut_scratch,
    has_codes,
    has_rows,
    read_form,
)
from kvcodec.kernels.lookup import ask_for_codes, score_codes, table_bytes, unpack_codes
from kvcodec.kernels.raw_rows import align_rows
from kvcodec.kernels.rebuild import rebuild_strip
from kvcodec.kernels.score import score_strip
from kvcodec.kernels.softmax import begin_state, count_shares, merge_state, weigh_logits
from kvcodec.kernels.turns import score_turned
from kvcodec.kernels.values import value_strip

table_bytes_ = inline(table_bytes)


class Tables(NamedTuple):
    """What attention is told: addresses of the tables of forms.py. count: of streams. known: of forms. lookups: for
    each stream and form the first of its tables of products. per_head: query heads of a KV head.
    """

    forms: Any
    streams: Any
    count: Any
    lookups: Any
    known: Any
    per_head: Any


@inline
def take_query(
    numbers: NDArray[np.int32],
    shifts: NDArray[np.int64],
    factors: NDArray[np.int32],
    width: Any,
    asked: Any,
    kv_head: Any,
    rank: Any,
    per_head: Any,
) -> Any:
    """Head number `rank` of a KV head of the query number `asked`."""
    all_heads, h = numbers.shape[1], kv_head * per_head + rank
    place = numbers.ctypes.data + 4 * numbers.shape[2] * (asked * all_heads + h)
    quad = (asked * (all_heads // per_head) + kv_head) * ((per_head + 3) >> 2) + (rank >> 2)
    return Query(h, place, shifts[asked, h], factors[asked, h], width, quad, rank & 3)


@part
def align_strip(strip: Any, later: Any, heads: Any, tables: Any, scratch: Any) -> None:
    """The numbers of a strip's rows, and its codes over a dictionary, of each stream and KV head that has such, for its
    query heads to share.

    Scores take rows by segments, values with one exponent a row: rows that are for both become numbers twice.
    """
    for s in range(tables.count):
        stream, place = tables.streams + STREAM_BYTES * s, PLACES + PLACE_BYTES * s
        form = read_form(tables.forms, load_long(strip + place + FORM))
        head, start = load_long(strip + place) + heads[0] * form.head_stride, load_long(strip + place + START)
        scored, valued = load_long(stream + SCORED), load_long(stream + VALUED)
        if form.bits == RAW_BITS:
            row = head + start * form.row_stride
            dim, tokens = load_long(stream + DIM), load_long(strip + TOKENS)
            segment = np.int64(SEGMENT) if scored else dim
            align_rows(row, form.row_stride, tokens, dim, segment, form.half, scratch.rows + s * scratch.area)
            if scored and valued:
                align_rows(
                    row, form.row_stride, tokens, dim, dim, form.half, scratch.rows + tables.count * scratch.area
                )
        elif form.terms:
            other = read_form(tables.forms, load_long(later + place + FORM))
            if other.terms:
                after, next_ = (
                    load_long(later + place) + heads[1] * other.head_stride,
                    load_long(later + place + START) >> 6,
                )
                ask_for_codes(other, after + other.codes + next_ * 64 * other.row_stride)
            planes, many = head + form.codes + (start >> 6) * 64 * form.row_stride, valued * tables.per_head
            if form.rebuilt:
                rebuild_strip(form, strip, place, heads[0], (scored, valued), stream, tables, scratch, s)
            else:
                unpack_codes(form, planes, scored, many, scratch.rows + s * scratch.area, scratch)


@inline
def place_head(strip: Any, later: Any, heads: Any, tables: Any, scratch: Any, s: Any) -> Any:
    """Form of stream s, address of a KV head's section, or of its rows' numbers, and bytes to what comes next."""
    place = PLACES + PLACE_BYTES * s
    form = read_form(tables.forms, load_long(strip + place + FORM))
    head = load_long(strip + place) + heads[0] * form.head_stride
    ahead = load_long(later + place) + heads[1] * form.head_stride - head
    return form, scratch.rows + s * scratch.area if has_rows(form) else head, ahead


@inline
def find_table(strip: Any, form: Any, tables: Any, query: Any, s: Any) -> Any:
    """Address of the table of products of stream s for a query head."""
    n = s * tables.known + load_long(strip + PLACES + PLACE_BYTES * s + FORM)
    return load_long(tables.lookups + 8 * n) + query.quad * table_bytes_(load_long(form.dictionary + PADDED))


@inline
def score_streams(strip: Any, later: Any, heads: Any, tables: Any, query: Any, scratch: Any) -> None:
    """Logits of a strip for one query head. later: the strip that comes next; heads: the KV heads of both."""
    for at in range(0, STRIP_BYTES, 64):
        store_lanes(splat(np.int32(0)), scratch.logits + at)
    for s in range(tables.count):
        stream = tables.streams + STREAM_BYTES * s
        if load_long(stream + SCORED):
            form, head, ahead = place_head(strip, later, heads, tables, scratch, s)
            place, tokens, dim = PLACES + PLACE_BYTES * s, load_long(strip + TOKENS), load_long(stream + DIM)
            start, numbers = load_long(strip + place + START), query.numbers + 4 * load_long(stream + QUERY)
            own = Query(query.head, numbers, query.shift, query.factor, query.width, query.quad, query.lane)
            if has_codes(form):
                table, codes = find_table(strip, form, tables, query, s), scratch.rows + s * scratch.area
                score_codes(form, codes, head, (start, tokens), table, own, scratch)
            elif load_long(strip + place + TURNED):
                score_turned(strip, place, form, head, heads, dim, own, scratch)
            else:
                score_strip(form, head, start, tokens, dim, own, scratch, ahead)


@inline
def attend_strip(
    strip: Any, later: Any, heads: Any, tables: Any, query: Any, scratch: Any, state: Any, outputs: Any, buckets: Any
) -> None:
    """Take a strip into the state of a query head, number buckets[1] of its KV head. The last stream has the values."""
    score_streams(strip, later, heads, tables, query, scratch)
    s, tokens = tables.count - 1, load_long(strip + TOKENS)
    stream, start = tables.streams + STREAM_BYTES * s, load_long(strip + PLACES + PLACE_BYTES * s + START)
    exponent, total = weigh_logits(scratch.logits, tokens, scratch.shares, start & 15)
    if total:
        count_shares(state, exponent, total)
    form, head, ahead = place_head(strip, later, heads, tables, scratch, s)
    if has_codes(form):
        codes, run = scratch.rows + s * scratch.area, (start, tokens)
        enter_codes(form, codes, head, run, (exponent, total), buckets, tables.per_head, scratch)
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
    of that, of this thread alone; buckets: bucket_bytes, alike, empty if no values are codes over a dictionary. states
    (slots, heads, 3), outputs (slots, heads, channels).
    """
    scratch = cut_scratch(memory.ctypes.data, widest)
    tables = Tables(
        forms.ctypes.data, streams.ctypes.data, streams.shape[0], lookups.ctypes.data, forms.shape[0], per_head
    )
    row, all_heads, dim = 8 * strips.shape[1], numbers.shape[1], outputs.shape[2]
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
                dictionary = np.int64(0)
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
                        dictionary = turn_buckets(dictionary, other, buckets.ctypes.data, per_head, sinks, scratch)
                    for rank in range(per_head):
                        query = take_query(numbers, shifts, factors, width, asked, kv_head, rank, per_head)
                        state = states.ctypes.data + STATE_BYTES * (sink + query.head)
                        out = outputs.ctypes.data + 8 * dim * (sink + query.head)
                        own_buckets = buckets.ctypes.data, rank
                        attend_strip(strip, later, heads, tables, query, scratch, state, out, own_buckets)
                if dictionary:
                    empty_groups(dictionary, buckets.ctypes.data, per_head, sinks, scratch)


@jit
def merge_slots(slots: NDArray[np.int64], states: NDArray[np.int64], outputs: NDArray[np.int64]) -> None:
    """Merge, for each row (slot, other) of slots in order, the states of `other` into those of `slot`."""
    heads, dim = outputs.shape[1], outputs.shape[2]
    for n in range(slots.shape[0]):
        for h in range(heads):
            one, two = slots[n, 0] * heads + h, slots[n, 1] * heads + h
            state, other = states.ctypes.data + STATE_BYTES * one, states.ctypes.data + STATE_BYTES * two
            merge_state(state, outputs.ctypes.data + 8 * dim * one, other, outputs.ctypes.data + 8 * dim * two, dim)
