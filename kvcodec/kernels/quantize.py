"""Rows of 16-bit floats to grouped integers: scales, zeros, tiles of codes, and the error that was made.

Two facts spare the inner loops a clamp. A scale is rounded up and at least 2**-126, so 1 / scale is finite (only of
INT2 it may be subnormal, and keeps 21 bits). And a code before rounding lies within 0 and the greatest, but for half
a part of a step, by which its zero may be off (1/32 of a step; 1/4 with 8 bits), and for what float32 misses, which
is less than 1/1000 (1/100): together less than half a step, so it rounds to a code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._extremes import fold_rows, note_channel_extremes, note_token_extremes
from kvcodec.kernels._floats_simd import add_to_doubles, splat_float, store_doubles
from kvcodec.kernels._jit import inline, jit
from kvcodec.kernels._lanes import (
    splat,
)
from kvcodec.kernels._quads import (
    ROW,
    STEPS,
    lay_nibbles,
    lay_pairs,
    lay_words,
    round_by_channel,
    round_by_token,
    weave,
)
from kvcodec.kernels._simd import (
    prefetch,
    store_lanes,
    store_word,
)
from kvcodec.kernels.figure import UNDECIDED, estimate_error, measure_error, measuring_bytes
from kvcodec.kernels.steps import MAGIC, choose_steps
from kvcodec.kernels.tiles import clear_padding, pad_rows, place_tile

SQUARES = 2 * ROW  # bytes into the work space, behind the extremes: 4 float64 of what codes miss, 4 of the numbers
FOLDED = SQUARES + ROW  # three rows of 16 uint16 for each of 16 tokens
STEP_ROWS = FOLDED + 16 * 96
ROWS = STEP_ROWS + STEPS * ROW


def work_bytes(tokens: int, dim: int) -> int:
    """Bytes of the work space of quantize_records: with a head's rows padded to 4 tokens and 16 channels."""
    width = (dim + 15) & -16
    return ROWS + 2 * ((tokens + 3) & -4) * width + measuring_bytes(tokens, dim)


@inline
def find_steps(
    source: Any, half: Any, head: Any, grid: Any, tokens: Any, channels: Any, scales: Any, work: Any
) -> None:
    """Steps of a region, which is a group of its tokens or channels."""
    row, stride, _ = source
    (first, last), (channel, end) = tokens, channels
    start = row + first * stride + 2 * channel
    if head.per_channel:
        note_channel_extremes(start, stride, last - first, work)
        at, lanes = first // head.group * head.columns + channel, min(head.dim - channel, 16)
    else:
        fold_rows(start, stride, last - first, (end - channel) >> 4, work + FOLDED)
        note_token_extremes(work + FOLDED, work)
        at, lanes = channel // head.group * head.columns + first, min(head.tokens - first, 16)
    zeros = scales + head.scales
    choose_steps(work, half, grid, head.symmetric, work + STEP_ROWS, lanes, scales + 2 * at, zeros + 2 * at)


@inline
def code_block(source: Any, half: Any, head: Any, count: Any, magic: Any, tile: Any, steps: Any, sums: Any) -> Any:
    """Codes of 16 channels of up to 16 tokens into a tile. The sums, Floats, with the squares added."""
    row, stride, ahead = source
    error, total = sums
    lanes, bits = splat(np.int32(0)), head.bits
    for n in range(0, 32 * bits, ROW):
        prefetch(tile + head.total + n)
    for t in range(0, count, 4):
        at = row + t * stride
        if head.per_channel:
            quad = round_by_channel(at, stride, half, steps, head.symmetric, magic)
        else:
            quad = round_by_token(at, stride, half, steps + 2 * t, head.symmetric, magic)
        if at & 32 == 0:  # of two blocks of channels one
            for n in range(4):
                prefetch(at + n * stride + ahead)
        codes, missed, squares = quad
        error, total = error + missed, total + squares
        if head.channel_lane:
            shift = (t >> 2) * bits & 7
            lanes = codes if shift == 0 else lanes | (codes << shift)
            if shift + bits == 8 or t + 4 >= count:
                store_lanes(weave(lanes), tile + (t * bits >> 5 << 6))
        elif bits == 4:
            lay_nibbles(codes, tile + 4 * t)
        elif bits == 8:
            lay_words(codes, tile + 4 * t)
        else:
            lay_pairs(codes, tile + 4 * t)
    return error, total


@inline
def code_region(
    source: Any, half: Any, head: Any, tokens: Any, channels: Any, magic: Any, tiles: Any, work: Any
) -> None:
    """Codes of a region into tiles: of the tokens and channels from one number of each to the other.

    source: of the rows address, stride, and bytes to the rows that are coded next, which are asked for meanwhile.
    The squares join those in the work space after at most 14 float32 roundings.
    """
    row, stride, ahead = source
    sums, blocks = (splat_float(np.float32(0)), splat_float(np.float32(0))), np.int64(0)
    for c in range(channels[0], channels[1], 16):
        for t in range(tokens[0], tokens[1], 16):
            tile, count = place_tile(tiles, head, t, c), min(tokens[1] - t, 16)
            start = row + t * stride + 2 * c
            sums = code_block((start, stride, ahead), half, head, count, magic, tile, work + STEP_ROWS, sums)
            blocks += 1
            if blocks & 1 == 0:
                flush_squares(sums, work)
                sums = splat_float(np.float32(0)), splat_float(np.float32(0))
    flush_squares(sums, work)


@inline
def flush_squares(sums: Any, work: Any) -> None:
    """Add squares to those in the work space."""
    add_to_doubles(sums[0], work + SQUARES)
    add_to_doubles(sums[1], work + SQUARES + 32)


@inline
def code_head(source: Any, half: Any, head: Any, grid: Any, scales: Any, work: Any) -> None:
    """Scales, zeros and codes of a head, and its squares."""
    quads, width = (head.tokens + 3) & -4, (head.dim + 15) & -16
    down, across = (head.group, 16) if head.per_channel else (16, head.group)
    magic = np.float32(MAGIC + grid.middle) if head.symmetric else MAGIC
    tiles = scales + head.scales + head.zeros
    store_doubles(np.float64(0), work + SQUARES)
    store_doubles(np.float64(0), work + SQUARES + 32)
    for first in range(0, head.tokens, down):
        span = first, min(first + down, quads)
        for channel in range(0, width, across):
            channels = channel, min(channel + across, width)
            find_steps(source, half, head, grid, span, channels, scales, work)
            code_region(source, half, head, span, channels, magic, tiles, work)


@jit
def quantize_records(
    rows: Any, half: Any, count: Any, head: Any, grid: Any, body: Any, figures: Any, work: Any
) -> None:
    """Code `count` heads of records.

    Addresses. rows: uint16 (records * tokens, heads, dim). body: uint8 (records, heads, total), zeroed if anything
    in it is padded. figures: int32 (records, heads), Q15 errors. work: work_bytes(tokens, dim).
    """
    tokens, dim = head.tokens, head.dim
    quads, width = (tokens + 3) & -4, (dim + 15) & -16
    padded = quads > tokens or width > dim
    for i in range(count):
        stride = 2 * dim * head.heads
        row = rows + i // head.heads * tokens * stride + i % head.heads * 2 * dim
        ahead = 2 * dim if (i + 1) % head.heads else (tokens - 1) * stride + 2 * dim
        scales = body + i * head.total
        if padded:
            pad_rows(row, stride, tokens, dim, work + ROWS)
            row, stride, ahead = work + ROWS, 2 * width, 0
        code_head((row, stride, ahead), half, head, grid, scales, work)
        error = UNDECIDED
        if padded:
            clear_padding(scales + head.scales + head.zeros, head)
        else:
            error = estimate_error(work + SQUARES)
        if error == UNDECIDED:
            space = work + ROWS + (2 * quads * width if padded else 0)
            error = measure_error(row, stride, half, scales, head, grid, space)
        store_word(error, figures + 4 * i)
