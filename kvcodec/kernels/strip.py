"""A strip of at most 64 tokens as query heads meet it: its rows as numbers, its codes to be looked up, its logits.

All query heads of a KV head take its bytes while they are in the cache, and the next strip's are asked for meanwhile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import splat
from kvcodec.kernels._simd import load_long, store_lanes
from kvcodec.kernels.fold import SEGMENT
from kvcodec.kernels.forms import (
    DIM,
    FORM,
    PADDED,
    PLACE_BYTES,
    PLACES,
    QUERY,
    RAW_BITS,
    SCORED,
    START,
    STREAM_BYTES,
    STRIP_BYTES,
    TOKENS,
    TURNED,
    VALUED,
    Query,
    has_codes,
    has_groups,
    has_rows,
    read_form,
)
from kvcodec.kernels.lookup import ask_for_codes, score_codes, table_bytes, unpack_codes
from kvcodec.kernels.product_scores import ask_for_sides, score_products, take_sides
from kvcodec.kernels.product_tables import product_table_bytes
from kvcodec.kernels.raw_rows import align_rows
from kvcodec.kernels.rebuild import rebuild_strip
from kvcodec.kernels.score import score_strip
from kvcodec.kernels.turns import score_turned

atom_bytes, product_bytes = inline(table_bytes), inline(product_table_bytes)


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


@inline
def find_planes(form: Any, head: Any, start: Any) -> Any:
    """Address of the codes of the block of 64 tokens that a strip begins in."""
    return head + form.codes + (start >> 6) * 64 * form.row_stride


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
        elif form.terms and scored | valued:
            other = read_form(tables.forms, load_long(later + place + FORM))
            if other.terms:
                after = load_long(later + place) + heads[1] * other.head_stride
                ask_for_codes(other, find_planes(other, after, load_long(later + place + START)))
                if has_groups(other):
                    ask_for_sides(after, load_long(later + place + START))
            planes, many = find_planes(form, head, start), valued * tables.per_head
            if form.rebuilt:
                rebuild_strip(form, strip, place, heads[0], (scored, valued), stream, tables, scratch, s)
            elif has_groups(form):
                take_sides(form.dictionary, head, start, scratch.rows + s * scratch.area)
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
    if has_groups(form):
        size = np.int64(product_bytes(form.terms, tables.per_head))
    else:
        size = np.int64(atom_bytes(load_long(form.dictionary + PADDED)))
    return load_long(tables.lookups + 8 * n) + query.quad * size


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
                table, rows = find_table(strip, form, tables, query, s), scratch.rows + s * scratch.area
                if has_groups(form):
                    planes, run = find_planes(form, head, start), (start & 63, tokens)
                    score_products(form, planes, rows, run, table, own, scratch)
                else:
                    score_codes(form, rows, head, (start, tokens), table, own, scratch)
            elif load_long(strip + place + TURNED):
                score_turned(strip, place, form, head, heads, dim, own, scratch)
            else:
                score_strip(form, head, start, tokens, dim, own, scratch, ahead)
