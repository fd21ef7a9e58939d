"""Logits of a strip of at most 64 tokens: a query times one stream's records, wherever its scales are."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import (
    splat,
)
from kvcodec.kernels._simd import (
    load_long,
    load_signed,
    load_unsigned,
    load_word,
    store_lanes,
    store_word,
)
from kvcodec.kernels.dot import dot_tiles
from kvcodec.kernels.fold import PARTS, SCALE_BIAS, SEGMENT, fold_numbers, fold_scales
from kvcodec.kernels.forms import has_rows
from kvcodec.kernels.raw_rows import BIAS, score_rows
from kvcodec.kernels.softmax import add_logit, add_logits, scale_logit

ZERO, ONE = np.int64(0), np.int64(1)  # not literals: of each numba would compile a function anew
POINT = np.int64(48)  # 16 bits behind a logit's point, and the 32 that its factor has


@inline
def score_by_channel(form: Any, head: Any, run: Any, segment: Any, query: Any, scratch: Any, ahead: Any) -> None:
    """Logits from codes with one scale a channel: it is folded into the query, for each group of tokens anew."""
    start, tokens = run
    dim, at, count = segment
    bits, group = form.bits, form.group
    position = start
    while position < start + tokens:
        end = min((position // group + 1) * group, start + tokens)
        scales = head + 2 * (position // group * form.columns + at)
        fold_scales(query.numbers + 4 * at, scales, ZERO, ONE, form.zeros, count, query.width, bits, scratch)
        exponent, zero = load_long(scratch.folded), load_long(scratch.folded + 8)
        first, stride = position >> 4, dim * bits * 2
        tiles, place = ((end + 15) >> 4) - first, head + form.codes + first * stride
        dot_tiles(place, tiles, stride, bits, (at, at + count), scratch.weights, query.width, ahead, scratch.sums)
        left = np.int64(query.shift + exponent - SCALE_BIAS + POINT)
        sums, logits = scratch.sums + 4 * (position & 15), scratch.logits + 4 * (position - start)
        add_logits(sums, end - position, zero, bits + 24, left, query.factor, logits)
        position = end


@part
def score_by_token(form: Any, head: Any, run: Any, segment: Any, query: Any, scratch: Any, ahead: Any) -> None:
    """Logits from codes with one scale a token and group of channels: each sum is scaled."""
    start, tokens = run
    dim, at, count = segment
    bits, group = form.bits, form.group
    channel = at
    while channel < at + count:
        end = min((channel // group + 1) * group, at + count)
        numbers = query.numbers + 4 * channel
        exponent, total = fold_numbers(numbers, end - channel, query.width, scratch.weights)
        shift = query.shift + exponent
        metadata = head + 2 * (channel // group * form.columns)
        for tile in range(start >> 4, (start + tokens + 15) >> 4):
            place, span = head + form.codes + tile * (dim * bits * 2), (channel, end)
            dot_tiles(place, ONE, ZERO, bits, span, scratch.weights, query.width, ahead, scratch.sums)
            scale_sums(form, metadata + 32 * tile, total, shift, query.factor, 16 * tile - start, tokens, scratch)
        channel = end


@inline
def scale_sums(
    form: Any, scales: Any, total: Any, shift: Any, factor: Any, first: Any, tokens: Any, scratch: Any
) -> None:
    """Add to the logits a tile's sums, each with its own zero, times `total`, and its own scale.

    first: the tile's first token, counted from the strip's; of the strip's tokens alone there are logits.
    """
    sums, bits = scratch.sums, form.bits
    store_lanes(load_unsigned(scales), sums + 64)
    store_lanes(load_signed(scales + form.zeros) if form.zeros else splat(np.int32(0)), sums + 128)
    for lane in range(max(-first, 0), min(tokens - first, 16)):
        zero = np.int64(-total << (bits - 1))
        if form.zeros:
            zero = np.int64(np.int64(total * np.int64(load_word(sums + 4 * (32 + lane)))) >> PARTS[bits])
        scale = load_word(sums + 4 * (16 + lane))
        number = np.int64(
            np.int64(np.int64(load_word(sums + 4 * lane)) + zero) * np.int64((scale & np.int32(127)) | np.int32(128))
        )
        left = np.int64(shift + np.int64(scale >> np.int32(7)) - SCALE_BIAS + POINT)
        logit = scratch.logits + 4 * (first + lane)
        store_word(add_logit(load_word(logit), scale_logit(number, left, factor)), logit)


@part
def score_numbers(form: Any, rows: Any, run: Any, dim: Any, query: Any, scratch: Any) -> None:
    """Add to a strip's logits those of its rows that became numbers (align_rows), from the first one of a run on."""
    first, tokens = run
    step = (dim + SEGMENT - 1) // SEGMENT * 4
    for at in range(0, dim, SEGMENT):
        count = min(np.int64(SEGMENT), dim - at)
        exponent, _ = fold_numbers(query.numbers + 4 * at, count, query.width, scratch.weights)
        left = query.shift + exponent + POINT - BIAS[form.half]
        exponents, halves = rows + 128 * dim + first * step + at // SEGMENT * 4, scratch.weights.halves
        here, logits = rows + 2 * (first * dim + at), scratch.logits + 4 * first
        scale = left, query.factor
        score_rows(here, dim, tokens, count, exponents, step, halves, scale, logits, scratch.folded)


@inline
def score_strip(form: Any, head: Any, start: Any, tokens: Any, dim: Any, query: Any, scratch: Any, ahead: Any) -> None:
    """Add a stream's part of the logits of `tokens` tokens from `start` on.

    head: address of the head's section of the record; of rows that became numbers, of these.
    """
    if has_rows(form):
        score_numbers(form, head, (ZERO, tokens), dim, query, scratch)
        return
    for at in range(0, dim, SEGMENT):
        count = min(np.int64(SEGMENT), dim - at)
        if form.by_channel:
            score_by_channel(form, head, (start, tokens), (dim, at, count), query, scratch, ahead)
        else:
            score_by_token(form, head, (start, tokens), (dim, at, count), query, scratch, ahead)
