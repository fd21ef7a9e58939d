"""Grouped integers back to rows: tiles of codes, scales and zeros to float32, bfloat16 or float16.

x = s * (code + z / parts): a scale of 8 significant bits times at most 16 bits of parts is exact in float32, so there
is no rounding but the last one, to 16 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit
from kvcodec.kernels.floats import (
    BFLOAT16,
    FLOAT16,
    GREATEST_BFLOAT16,
    GREATEST_FLOAT16,
    GREATEST_FLOAT32,
    store_rows,
)
from kvcodec.kernels.steps import SCALE, SHIFT, load_steps
from kvcodec.kernels.tiles import unpack_channel_tiles, unpack_token_tiles


@jit
def scale_by_channel(
    codes: NDArray[np.uint8], first: Any, count: Any, floats: NDArray[np.float32], greatest: Any, values: Any
) -> None:
    """values of `count` tokens from `first`, each channel by its own step, clamped to +-greatest."""
    for t in range(count):
        for c in range(values.shape[1]):
            value = np.float32(np.float32(np.float32(codes[first + t, c]) + floats[SHIFT, c]) * floats[SCALE, c])
            values[t, c] = min(max(value, -greatest), greatest)


@jit
def scale_by_token(
    codes: NDArray[np.uint8],
    first: Any,
    count: Any,
    channel: Any,
    last: Any,
    floats: NDArray[np.float32],
    greatest: Any,
    values: Any,
) -> None:
    """values of channels `channel` to `last` of `count` tokens from `first`, each token by its own step."""
    for t in range(count):
        scale, zero = floats[SCALE, t], floats[SHIFT, t]
        for c in range(np.uint64(channel), np.uint64(last)):
            value = np.float32(np.float32(np.float32(codes[first + t, c]) + zero) * scale)
            values[t, c] = min(max(value, -greatest), greatest)


@jit
def dequantize_records(
    body: Any,
    tokens: Any,
    group: Any,
    grid: Any,
    per_channel: Any,
    symmetric: Any,
    channel_lane: Any,
    sections: Any,
    scratch: Any,
    form: Any,
    halves: NDArray[np.uint16],
    full: NDArray[np.float32],
) -> None:
    """Decode records of `tokens` tokens each, 16 tokens at a time.

    body: one array as scales uint16, zeros int16 and tiles uint32, each (records * heads, head bytes / itemsize).
    sections: bytes of a head's scales and zeros. form: FLOAT32 fills full, BFLOAT16 or FLOAT16 halves, either
    (records * tokens, heads, dim). scratch: values float32 (16, dim); codes uint8 (padded tokens, padded dim) and the
    same as words uint32; joined uint32 (padded dim); floats float32 (2, lanes), lanes being dim and at least 16.
    """
    values, codes, words, joined, floats = scratch
    scales, zeros, tiles = body
    dim = values.shape[1]
    greatest = GREATEST_FLOAT32
    if form == BFLOAT16:
        greatest = GREATEST_BFLOAT16
    elif form == FLOAT16:
        greatest = GREATEST_FLOAT16
    heads = max(halves.shape[1], full.shape[1])
    start = (sections[0] + sections[1]) // 4
    for i in range(scales.shape[0]):
        if channel_lane:
            unpack_channel_tiles(tiles, i, start, grid.bits, joined, codes)
        else:
            unpack_token_tiles(tiles, i, start, grid.bits, words)
        for first in range(0, tokens, 16):
            count = min(tokens - first, 16)
            if per_channel:
                if first % group == 0:
                    at = first // group * codes.shape[1]
                    load_steps((scales, zeros), i, at, sections[0] // 2 + at, dim, grid, symmetric, floats)
                scale_by_channel(codes, first, count, floats, greatest, values)
            else:
                for channel in range(0, dim, group):
                    at = channel // group * codes.shape[0] + first
                    load_steps((scales, zeros), i, at, sections[0] // 2 + at, count, grid, symmetric, floats)
                    last = min(channel + group, dim)
                    scale_by_token(codes, first, count, channel, last, floats, greatest, values)
            store_rows(values, count, form, i // heads * tokens + first, i % heads, halves, full)
