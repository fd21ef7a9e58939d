"""Weighted sums of a strip's values, added to a state's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import (
    bit_length,
)
from kvcodec.kernels._simd import (
    load_half,
    load_long,
    load_word,
    store_long,
)
from kvcodec.kernels.dot import dot_tiles, weigh_tokens
from kvcodec.kernels.fold import PARTS, SCALE_BIAS, SEGMENT, fold_numbers, fold_scales
from kvcodec.kernels.forms import SCALE, Weights, has_rows
from kvcodec.kernels.raw_rows import BIAS, scale_by_rows, weigh_rows
from kvcodec.kernels.softmax import OUTPUT_BITS, add_outputs, add_wide_outputs, raise_outputs

WIDTH, ROWS = np.int64(16), np.int64(64)  # bits of weights; no literals, of each of which a part is compiled anew
POINT = np.int64(16)  # bits behind the point of a share


@inline
def multiply_codes(
    form: Any, head: Any, span: Any, channels: Any, dim: Any, token_lane: Any, weights: Any, sums: Any, ahead: Any
) -> None:
    """sums: `channels` of the tokens span[0] to span[1], multiples of 16 in one block, times their weights."""
    bits, codes, tokens = form.bits, head + form.codes, span[1] - span[0]
    if token_lane:
        tile = codes + (span[0] * dim * bits >> 3)
        weigh_tokens(tile, dim, tokens // 16, bits, channels, weights.bytes, ahead, sums)
    else:
        within = span[0] & 63
        block = codes + (span[0] >> 6) * (dim * bits * 8)
        place, count = block + channels[0] * (bits * 8), (channels[1] - channels[0]) >> 4
        span_ = (within, within + tokens)
        dot_tiles(place, count, bits * 128, bits, span_, weights, WIDTH, ahead, sums + 4 * channels[0])


@inline
def value_by_token(
    form: Any, head: Any, span: Any, stream: Any, exponent: Any, scratch: Any, sink: Any, ahead: Any
) -> None:
    """Values with one scale a token: it is folded into the tokens' shares, for each group of channels anew."""
    dim, token_lane = stream
    state, outputs = sink
    count, group = span[1] - span[0], form.group
    step, batch = 2 * form.columns, group * (SEGMENT // count)
    for first in range(0, dim, batch):
        groups = (min(dim - first, batch) + group - 1) // group
        scales = head + first // group * step + 2 * span[0]
        fold_scales(scratch.shares, scales, step, groups, form.zeros, count, WIDTH, form.bits, scratch)
        for g in range(groups):
            channel = first + g * group
            end = min(channel + group, dim)
            power, zero = load_long(scratch.folded + 16 * g), load_long(scratch.folded + 16 * g + 8)
            weights = Weights(scratch.weights.halves + 2 * g * count, scratch.weights.bytes + g * count)
            multiply_codes(form, head, span, (channel, end), dim, token_lane, weights, scratch.sums, ahead)
            unit = np.int64(exponent + power - SCALE_BIAS - POINT)
            sums, at = scratch.sums + 4 * channel, outputs + 8 * channel
            add_outputs(sums, end - channel, zero, form.bits + 21, unit, state, (outputs, dim), at)


@part
def value_by_channel(
    form: Any, head: Any, span: Any, stream: Any, exponent: Any, scratch: Any, sink: Any, ahead: Any
) -> None:
    """Values with one scale a channel, for each group of tokens: the sums are scaled."""
    dim, token_lane = stream
    group, start = form.group, span[0]
    while start < span[1]:
        end = min((start // group + 1) * group, span[1])
        shares = scratch.shares + 4 * (start - span[0])
        power, total = fold_numbers(shares, end - start, WIDTH, scratch.weights)
        if total:
            weights, sums = scratch.weights, scratch.sums
            multiply_codes(form, head, (start, end), (0, dim), dim, token_lane, weights, sums, ahead)
            scales = head + 2 * (start // group * form.columns)
            scale_outputs(form, scales, total, np.int64(exponent + power - SCALE_BIAS - POINT), dim, scratch, sink)
        start = end


@inline
def scale_outputs(form: Any, scales: Any, total: Any, unit: Any, dim: Any, scratch: Any, sink: Any) -> None:
    """Add the sums of all channels, each with its own zero, times `total`, and its own scale."""
    state, outputs = sink
    top, bits = np.int64(0), np.int64(0)
    for c in range(dim):
        number, power = scale_sum(form, scales, c, total, scratch.sums)
        if number:
            top = max(top, power)
            bits = max(bits, np.int64(bit_length(abs(number))))
    raise_outputs(state, outputs, dim, np.int64(unit + top + bits))
    for c in range(dim):
        number, power = scale_sum(form, scales, c, total, scratch.sums)
        left = np.int64(OUTPUT_BITS - load_long(state + SCALE) + unit + power)
        shifted = np.int64(number << max(left, np.int64(0))) if number else number
        shifted = np.int64(shifted >> min(max(-left, np.int64(0)), np.int64(63)))
        store_long(np.int64(load_long(outputs + 8 * c) + shifted), outputs + 8 * c)


@inline
def scale_sum(form: Any, scales: Any, channel: Any, total: Any, sums: Any) -> Any:
    """One channel's sum with its zero, times its scale's mantissa; and the scale's exponent."""
    scale = np.int64(load_half(scales + 2 * channel)) & np.int64(0xFFFF)
    zero = np.int64(-total << (form.bits - 1))
    if form.zeros:
        zero = np.int64(np.int64(total * np.int64(load_half(scales + form.zeros + 2 * channel))) >> PARTS[form.bits])
    mantissa = np.int64((scale & np.int64(127)) | np.int64(128))
    return np.int64(np.int64(np.int64(load_word(sums + 4 * channel)) + zero) * mantissa), np.int64(scale >> np.int64(7))


@part
def value_rows(
    form: Any, numbers: Any, tokens: Any, first: Any, dim: Any, exponent: Any, scratch: Any, sink: Any
) -> None:
    """Raw values: their numbers (align_rows)."""
    state, outputs = sink
    power = scale_by_rows(tokens, scratch.shares + 4 * first, numbers + 128 * dim, scratch.scaled)
    power += fold_numbers(scratch.scaled, ROWS, WIDTH, scratch.weights)[0]
    weigh_rows(numbers, tokens, dim, scratch.weights.halves, scratch.sums, scratch.others)
    unit = np.int64(exponent + power - BIAS[form.half] - 7 - POINT)
    add_wide_outputs(scratch.sums, scratch.others, dim, unit, state, outputs)


@inline
def value_strip(
    form: Any, head: Any, run: Any, stream: Any, exponent: Any, scratch: Any, sink: Any, ahead: Any
) -> None:
    """Add the strip's values, each times its share of 2**exponent, to a state's outputs. head: as of score_strip.

    run: first token in the record, and how many; scratch.shares begin with the 16 tokens that hold the first one.
    stream: its channels, and whether its tiles are token-lane. sink: a state and its outputs.
    """
    start, tokens = run
    first = start & ~15
    span = first, (start + tokens + 15) & ~15
    if has_rows(form):
        value_rows(form, head, tokens, start - first, stream[0], exponent, scratch, sink)
    elif form.by_channel:
        value_by_channel(form, head, span, stream, exponent, scratch, sink, ahead)
    else:
        value_by_token(form, head, span, stream, exponent, scratch, sink, ahead)
