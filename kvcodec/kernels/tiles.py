"""Tiles: codes of 2, 4 or 8 bits in rows of 64 bytes, 16 lanes of 4 bytes, as formats/grouped-integers.md has them.

Byte j of a lane holds 8 / bits codes, four places apart: code j + 4 k from bit k * bits on. Tiles are coded 4 tokens
and 16 channels at a time; where there are fewer, rows are padded in the work space, and the codes of the padding
cleared.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._simd import (
    load_half,
    load_word,
    store_half,
    store_word,
)

ROW = 64  # bytes


class Head(NamedTuple):
    """One head of a record: `tokens` rows of `dim` channels, coded with `bits`, by groups of `group`.

    columns: scales of one row of them. heads, total: of a record, and bytes of one head in it; scales, zeros: bytes
    of these.
    """

    tokens: int
    dim: int
    bits: int
    group: int
    per_channel: bool
    symmetric: bool
    channel_lane: bool
    columns: int
    heads: int
    scales: int
    zeros: int
    total: int


@part
def copy_rows(source: Any, step: Any, rows: Any, stride: Any, count: Any, size: Any) -> None:
    """Copy `count` rows of `size` bytes, an even number."""
    for t in range(count):
        for n in range(0, size, 2):
            store_half(load_half(source + t * step + n), rows + t * stride + n)


@inline
def place_tile(tiles: Any, head: Any, token: Any, channel: Any) -> Any:
    """Address of the codes of 16 tokens and 16 channels from these on, multiples of 16.

    In token-lane tiles it is of the first of their rows, in channel-lane tiles of the one that the first token is in.
    """
    width, bits = (head.dim + 15) & -16, head.bits
    if head.channel_lane:
        block = tiles + (token >> 6) * (width * 8 * bits) + (channel >> 4) * (128 * bits)
        return block + ((token & 63) * bits >> 5 << 6)
    return tiles + (token >> 4) * (width * 2 * bits) + (channel * bits >> 5 << 6)


@part
def pad_rows(row: Any, stride: Any, tokens: Any, dim: Any, padded: Any) -> None:
    """Rows of 16-bit floats padded to 4 tokens and 16 channels: the last ones again, which changes no extreme."""
    width = (dim + 15) & -16
    for t in range((tokens + 3) & -4):
        source = row + min(t, tokens - 1) * stride
        for c in range(width):
            store_half(load_half(source + 2 * min(c, dim - 1)), padded + 2 * (t * width + c))


@part
def clear_padding(tiles: Any, head: Any) -> None:
    """Set the codes to 0 with which pad_rows has padded a head."""
    width, mask = (head.dim + 15) & -16, np.int64((1 << head.bits) - 1)
    for t in range((head.tokens + 3) & -4):
        for c in range(0 if t >= head.tokens else head.dim, width):
            lane, code = (c & 15, t & 15) if head.channel_lane else (t & 15, c & 15)
            at = place_tile(tiles, head, t & -16, c & -16) + ROW * (code * head.bits >> 5) + 4 * lane
            shift = 8 * (code & 3) + ((code >> 2) * head.bits & 7)
            store_word(np.int32(load_word(at) & np.int32(~(mask << shift))), at)
