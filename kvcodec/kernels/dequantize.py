"""Grouped integers back to rows: tiles of codes, scales and zeros to float32, bfloat16 or float16.

x = s * (code + z / parts): a scale of 8 significant bits times at most 16 bits of parts is exact in float32, so there
is no rounding but the last one, to 16 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._floats_simd import floats_of, splat_float, store_floats
from kvcodec.kernels._jit import inline, jit, part
from kvcodec.kernels._lanes import (
    greatest_lane,
)
from kvcodec.kernels._scaling import (
    ROW,
    part_row,
    scale_by_channel,
    scale_by_token,
    settle,
    take_nibbles,
    take_pairs,
    take_words,
    to_floats,
)
from kvcodec.kernels._simd import (
    load_signed,
    load_unsigned,
)
from kvcodec.kernels.floats import STREAMED
from kvcodec.kernels.tiles import copy_rows, place_tile

GREATEST = (np.float32(3.4028234663852886e38),) * 2 + (np.float32(3.3895313892515355e38), np.float32(65504))
SAFE = (0x7780, 0x7780, 0x7780, 0x3F80)  # bfloat16 bits of scales up to which 2**15 steps are less than GREATEST


def work_bytes(dim: int) -> int:
    """Bytes that the steps of all channels take."""
    return 8 * ((dim + 15) & -16)


@inline
def load_steps(scales: Any, zeros: Any, grid: Any, symmetric: Any, steps: Any) -> Any:
    """Scales and shifts of 16 lanes, into two rows. The bits of the greatest scale."""
    bits = load_unsigned(scales)
    store_floats(floats_of(bits << 16), steps)
    if symmetric:
        store_floats(splat_float(np.float32(-grid.middle)), steps + ROW)
    else:
        store_floats(to_floats(load_signed(zeros)) * splat_float(grid.part), steps + ROW)
    return np.int64(greatest_lane(bits))


@inline
def scale_block(tile: Any, head: Any, count: Any, steps: Any, clamped: Any, form: Any, out: Any, stride: Any) -> None:
    """16 channels of up to 16 tokens from a tile to rows."""
    bits, mask, greatest = head.bits, (1 << head.bits) - 1, GREATEST[form]
    for t in range(0, count, 4):
        if head.channel_lane:
            codes = part_row(tile + (t * bits >> 5 << 6), (t >> 2) * bits & 7, mask)
        elif bits == 4:
            codes = take_nibbles(tile + 4 * t)
        elif bits == 8:
            codes = take_words(tile + 4 * t)
        else:
            codes = take_pairs(tile + 4 * t)
        if head.per_channel:
            scale_by_channel(codes, steps, clamped, greatest, form, out + t * stride, stride)
        else:
            scale_by_token(codes, steps + 4 * t, clamped, greatest, form, out + t * stride, stride)


@part
def scale_head(scales: Any, head: Any, grid: Any, form: Any, out: Any, stride: Any, steps: Any) -> None:
    """One head's numbers into rows `stride` bytes apart, padded to 4 tokens and 16 channels.

    scales: the first bytes of the head. steps: work_bytes(dim) of room.
    """
    quads, width, group = (head.tokens + 3) & -4, (head.dim + 15) & -16, head.group
    size = 4 if form <= STREAMED else 2
    zeros, tiles = scales + head.scales, scales + head.scales + head.zeros
    most = np.int64(0)
    for t in range(0, quads, 16):
        for c in range(0, width, 16):
            own = steps
            if head.per_channel:
                own = steps + 8 * c
                if t % group == 0:
                    at = 2 * (t // group * head.columns + c)
                    most = max(most, load_steps(scales + at, zeros + at, grid, head.symmetric, own))
            elif c % group == 0:
                at = 2 * (c // group * head.columns + t)
                most = load_steps(scales + at, zeros + at, grid, head.symmetric, own)
            tile, last = place_tile(tiles, head, t, c), min(quads - t, 16)
            scale_block(tile, head, last, own, most > SAFE[form], form, out + t * stride + size * c, stride)


@jit
def dequantize_records(body: Any, count: Any, head: Any, grid: Any, form: Any, rows: Any, work: Any) -> None:
    """Decode `count` heads of records.

    Addresses. body: uint8 (records, heads, total). rows: (records * tokens, heads, dim) in the form; STREAMED is for
    rows and dim that fill lines of 64 bytes. work: work_bytes(dim) and, if tokens are no multiple of 4 or channels
    none of 16, a head's rows padded to that.
    """
    tokens, dim, heads = head.tokens, head.dim, head.heads
    width = (dim + 15) & -16
    size = 4 if form <= STREAMED else 2
    for i in range(count):
        row, stride = rows + size * dim * (i // heads * tokens * heads + i % heads), size * dim * heads
        if width > dim or tokens & 3:
            padded = work + 8 * width
            scale_head(body + i * head.total, head, grid, form, padded, size * width, work)
            copy_rows(padded, size * width, row, stride, tokens, size * dim)
        else:
            scale_head(body + i * head.total, head, grid, form, row, stride, work)
    if form == STREAMED:
        settle()
