"""Rows of 16-bit floats to grouped integers: scales, zeros, tiles of codes, and the error that was made.

Two facts spare the inner loops a clamp. A scale is rounded up and at least 2**-126, so 1 / scale is finite (only of
INT2 it may be subnormal, and keeps 21 bits). And a code before rounding lies within 0 and the greatest, but for half
a part of a step, by which its zero may be off (1/32 of a step; 1/4 with 8 bits), and for what float32 misses, which
is less than 1/1000 (1/100): together less than half a step, so it rounds to a code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit
from kvcodec.kernels.figure import estimate_error
from kvcodec.kernels.floats import GREATEST_FLOAT32, widen_rows
from kvcodec.kernels.steps import (
    INVERSE,
    MAGIC,
    SCALE,
    SHIFT,
    choose_steps,
    find_channel_extremes,
    find_token_extremes,
    store_steps,
)
from kvcodec.kernels.tiles import pack_channel_tiles, pack_token_tiles

LOW_BYTE = np.uint32(255)


@jit
def round_by_channel(
    values: NDArray[np.float32], count: Any, floats: NDArray[np.float32], magic: Any, first: Any, codes: Any
) -> None:
    """Codes of `count` tokens from `first`, each channel by its own step; values become what the codes miss."""
    for t in range(count):
        for c in range(values.shape[1]):
            steps = np.float32(np.float32(values[t, c] * floats[INVERSE, c]) - floats[SHIFT, c])
            rounded = np.float32(steps + magic)
            codes[first + t, c] = np.uint8(np.uint32(rounded.view(np.uint32)) & LOW_BYTE)
            decoded = np.float32(np.float32(np.float32(rounded - magic) + floats[SHIFT, c]) * floats[SCALE, c])
            values[t, c] = np.float32(values[t, c] - min(max(decoded, -GREATEST_FLOAT32), GREATEST_FLOAT32))


@jit
def round_by_token(
    values: NDArray[np.float32],
    count: Any,
    channel: Any,
    last: Any,
    floats: NDArray[np.float32],
    magic: Any,
    first: Any,
    codes: Any,
) -> None:
    """Codes of channels `channel` to `last` of `count` tokens from `first`, each token by its own step."""
    for t in range(count):
        scale, inverse, shift = floats[SCALE, t], floats[INVERSE, t], floats[SHIFT, t]
        for c in range(np.uint64(channel), np.uint64(last)):
            steps = np.float32(np.float32(values[t, c] * inverse) - shift)
            rounded = np.float32(steps + magic)
            codes[first + t, c] = np.uint8(np.uint32(rounded.view(np.uint32)) & LOW_BYTE)
            decoded = np.float32(np.float32(np.float32(rounded - magic) + shift) * scale)
            values[t, c] = np.float32(values[t, c] - min(max(decoded, -GREATEST_FLOAT32), GREATEST_FLOAT32))


@jit
def square(value: Any) -> Any:
    """float32 square."""
    return np.float32(value * value)


@jit
def add_squares(values: NDArray[np.float32], count: Any, squares: Any, sums: NDArray[np.float64]) -> None:
    """Add to the sums (dim,) of the channels the squares of up to 16 rows, each in at most 10 float32 roundings.

    squares: float32 scratch (dim,).
    """
    dim = values.shape[1]
    for c in range(dim):
        squares[c] = np.float32(0)
    fours = count // 4 * 4
    for t in range(0, fours, 4):  # four to a pass over the squares
        for c in range(dim):
            low = np.float32(square(values[t, c]) + square(values[t + 1, c]))
            high = np.float32(square(values[t + 2, c]) + square(values[t + 3, c]))
            squares[c] = np.float32(squares[c] + np.float32(low + high))
    for t in range(fours, count):
        for c in range(dim):
            squares[c] = np.float32(squares[c] + square(values[t, c]))
    for c in range(dim):
        sums[c] = np.float64(sums[c] + np.float64(squares[c]))


@jit
def quantize_records(
    rows: NDArray[np.uint16],
    half: Any,
    tokens: Any,
    group: Any,
    grid: Any,
    per_channel: Any,
    symmetric: Any,
    channel_lane: Any,
    body: Any,
    sections: Any,
    scratch: Any,
    figures: NDArray[np.int32],
) -> None:
    """Code records of `tokens` tokens each, 16 tokens at a time, which fit the nearest cache.

    rows: (records * tokens, heads, dim). body: one array, zeroed, as scales uint16, zeros int16 and tiles uint32,
    each (records * heads, head bytes / itemsize). sections: bytes of a head's scales and zeros. figures: (records *
    heads,), Q15 errors or UNDECIDED. scratch: values float32 (16, dim); codes uint8 (padded tokens, padded dim),
    zeroed, and the same as words uint32; joined uint32 (padded dim); keys uint16 (2, lanes) and floats float32
    (5, lanes), lanes being dim and at least 16; squares float32 (dim,) and sums float64 (2, dim).
    """
    values, codes, words, joined, keys, floats, squares, sums = scratch
    scales, zeros, tiles = body
    dim = rows.shape[2]
    magic = np.float32(MAGIC + grid.middle) if symmetric else MAGIC
    start = (sections[0] + sections[1]) // 4
    for i in range(figures.size):
        token, h = i // rows.shape[1] * tokens, i % rows.shape[1]
        sums[:] = np.float64(0)
        for first in range(0, tokens, 16):
            count = min(tokens - first, 16)
            if per_channel and first % group == 0:
                find_channel_extremes(rows, token + first, token + min(first + group, tokens), h, keys)
                choose_steps(keys, dim, half, grid, symmetric, floats)
                at = first // group * codes.shape[1]
                store_steps(floats, dim, grid, symmetric, (scales, zeros), i, at, sections[0] // 2 + at)
            widen_rows(rows, token + first, count, h, half, values)
            add_squares(values, count, squares, sums[0])
            if per_channel:
                round_by_channel(values, count, floats, magic, first, codes)
            else:
                for channel in range(0, dim, group):
                    last = min(channel + group, dim)
                    find_token_extremes(rows, token + first, count, h, channel, last, keys)
                    choose_steps(keys, count, half, grid, symmetric, floats)
                    at = channel // group * codes.shape[0] + first
                    store_steps(floats, count, grid, symmetric, (scales, zeros), i, at, sections[0] // 2 + at)
                    round_by_token(values, count, channel, last, floats, magic, first, codes)
            add_squares(values, count, squares, sums[1])
        figures[i] = estimate_error(sums)
        if channel_lane:
            pack_channel_tiles(codes, grid.bits, joined, tiles, i, start)
        else:
            pack_token_tiles(words, grid.bits, tiles, i, start)
