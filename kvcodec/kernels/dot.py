"""Integer products straight on the bytes of tiles: 16 lanes at once, a row of 64 bytes at a time.

A token-lane tile times a query gives the scores of 16 tokens; a channel-lane tile times weights gives 16 channels of
the weighted sum: one loop for both. Token-lane tiles serve weighted sums too, their bytes turned in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import (
    splat,
)
from kvcodec.kernels._products import dot, join_bytes, plane, spread_words, store_quads, turn_quads
from kvcodec.kernels._simd import (
    load_bytes,
    prefetch,
)
from kvcodec.kernels._tiles import LOW, dot_int2, dot_int2_bytes, dot_int4, dot_int4_bytes, dot_int8

ZERO, FOUR, NIBBLE = np.int32(0), np.int32(4), np.int32(15)


@part
def dot_tiles(
    place: Any, count: Any, stride: Any, bits: Any, span: Any, weights: Any, width: Any, ahead: Any, sums: Any
) -> None:
    """sums, 16 int32 a tile: the codes span[0] to span[1], multiples of 16, of each lane of tiles times the weights.

    place: the first of `count` tiles, `stride` bytes apart. width: bits of the weights, 8 or 16. ahead: bytes to what
    is needed next, which is asked for meanwhile.
    """
    rows = (span[1] - span[0]) * bits >> 5
    for t in range(count):
        tile = place + t * stride + 2 * bits * span[0]
        for r in range(rows):
            prefetch(tile + 64 * r + ahead)
        if bits == 4 and width == 16:
            dot_int4(tile, rows, weights.bytes, sums + 64 * t)
        elif bits == 4:
            dot_int4_bytes(tile, rows, weights.bytes, sums + 64 * t)
        elif bits == 2 and width == 16:
            dot_int2(tile, rows, weights.bytes, sums + 64 * t)
        elif bits == 2:
            dot_int2_bytes(tile, rows, weights.bytes, sums + 64 * t)
        else:
            dot_int8(tile, rows, weights.halves, sums + 64 * t)


@inline
def weigh_plane(row: Any, step: Any, tiles: Any, shift: Any, mask: Any, weights: Any) -> Any:
    """Lanes: one plane of bits of a row of `tiles` tiles, `step` bytes apart, times a weight each token.

    A quarter of a row is 4 tokens with a byte of 4 channels each: turned, 4 channels with the 4 tokens that a word of
    weights is for.
    """
    high, low = splat(ZERO), splat(ZERO)
    for t in range(tiles):
        codes = plane(turn_quads(load_bytes(row + t * step)), shift, mask)
        high = dot(high, codes, spread_words(weights + 16 * t))
        low = dot(low, codes, spread_words(weights + LOW + 16 * t))
    return join_bytes(high, low)


@part
def weigh_tokens(tile: Any, dim: Any, tiles: Any, bits: Any, span: Any, weights: Any, ahead: Any, sums: Any) -> None:
    """sums, int32: channels span[0] to span[1] of token-lane tiles that follow each other, times a weight each token.

    tile: the first one; dim: its channels; all multiples of 16. The products of 8-bit codes would
    overflow: they go in halves.
    """
    planes = 1 if bits == 8 else 2 if bits == 4 else 4
    mask = NIBBLE if bits == 8 else np.int32((1 << bits) - 1)
    step = 2 * dim * bits
    for r in range(span[0] * bits >> 5, span[1] * bits >> 5):
        for t in range(tiles):
            prefetch(tile + 64 * r + t * step + ahead)
        for p in range(planes):
            total = weigh_plane(tile + 64 * r, step, tiles, np.int32(p * bits), mask, weights)
            if bits == 8:
                total = total + (weigh_plane(tile + 64 * r, step, tiles, FOUR, mask, weights) << 4)
            store_quads(total, sums + 16 * (planes * r + p))
