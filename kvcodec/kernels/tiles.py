"""Tiles: codes of 2, 4 or 8 bits in rows of 64 bytes, 16 lanes of 4 bytes, as formats/grouped-integers.md has them.

Byte j of a lane holds 8 / bits codes, four places apart: code j + 4 k from bit k * bits on. So the words of four
codes, one byte each, that make up a lane are shifted by k * bits and joined, whatever the bits are.

Indices are unsigned where LLVM has to vectorise: of a signed sum, which might be negative, numba makes an index
that wraps around.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit

TWO, FOUR, SIX, BYTE, HALF = np.uint32(2), np.uint32(4), np.uint32(6), np.uint32(8), np.uint32(16)
PAIRS, NIBBLES = np.uint32(0x03030303), np.uint32(0x0F0F0F0F)


@jit
def pack_token_tiles(words: NDArray[np.uint32], bits: Any, tiles: NDArray[np.uint32], head: Any, start: Any) -> None:
    """Token-lane tiles into tiles[head, start:] from words of 4 codes, (padded tokens, padded dim / 4)."""
    tokens, columns = words.shape
    at = np.uint64(start)
    for tile in range(tokens // 16):
        for r in range(columns * bits // 8):
            if bits == 8:
                for t in range(16):
                    tiles[head, at + np.uint64(t)] = words[tile * 16 + t, r]
            elif bits == 4:
                for t in range(16):
                    low, high = words[tile * 16 + t, 2 * r], words[tile * 16 + t, 2 * r + 1]
                    tiles[head, at + np.uint64(t)] = np.uint32(low | np.uint32(high << FOUR))
            else:
                for t in range(16):
                    low, next_ = words[tile * 16 + t, 4 * r], words[tile * 16 + t, 4 * r + 1]
                    low = np.uint32(low | np.uint32(next_ << TWO))
                    high, next_ = words[tile * 16 + t, 4 * r + 2], words[tile * 16 + t, 4 * r + 3]
                    high = np.uint32(high | np.uint32(next_ << TWO))
                    tiles[head, at + np.uint64(t)] = np.uint32(low | np.uint32(high << FOUR))
            at = np.uint64(at + np.uint64(16))


@jit
def unpack_token_tiles(tiles: NDArray[np.uint32], head: Any, start: Any, bits: Any, words: NDArray[np.uint32]) -> None:
    """Words of 4 codes, (padded tokens, padded dim / 4), from the token-lane tiles in tiles[head, start:]."""
    tokens, columns = words.shape
    at = np.uint64(start)
    for tile in range(tokens // 16):
        for r in range(columns * bits // 8):
            if bits == 8:
                for t in range(16):
                    words[tile * 16 + t, r] = tiles[head, at + np.uint64(t)]
            elif bits == 4:
                for t in range(16):
                    lane = np.uint32(tiles[head, at + np.uint64(t)])
                    words[tile * 16 + t, 2 * r] = np.uint32(lane & NIBBLES)
                    words[tile * 16 + t, 2 * r + 1] = np.uint32(np.uint32(lane >> FOUR) & NIBBLES)
            else:
                for t in range(16):
                    lane = np.uint32(tiles[head, at + np.uint64(t)])
                    words[tile * 16 + t, 4 * r] = np.uint32(lane & PAIRS)
                    words[tile * 16 + t, 4 * r + 1] = np.uint32(np.uint32(lane >> TWO) & PAIRS)
                    words[tile * 16 + t, 4 * r + 2] = np.uint32(np.uint32(lane >> FOUR) & PAIRS)
                    words[tile * 16 + t, 4 * r + 3] = np.uint32(np.uint32(lane >> SIX) & PAIRS)
            at = np.uint64(at + np.uint64(16))


@jit
def join_planes(codes: NDArray[np.uint8], first: Any, bits: Any, lanes: NDArray[np.uint32]) -> None:
    """lanes: for each channel, the 4 bytes of the codes of 32 / bits tokens from `first`."""
    dim = codes.shape[1]
    for c in range(dim):
        lanes[c] = np.uint32(0)
    for k in range(8 // bits):
        shift = np.uint32(k * bits)
        t = first + 4 * k
        for c in range(dim):
            low = np.uint32(np.uint32(codes[t, c]) | np.uint32(np.uint32(codes[t + 1, c]) << BYTE))
            high = np.uint32(np.uint32(codes[t + 2, c]) | np.uint32(np.uint32(codes[t + 3, c]) << BYTE))
            lanes[c] |= np.uint32(np.uint32(low | np.uint32(high << HALF)) << shift)


@jit
def part_planes(lanes: NDArray[np.uint32], bits: Any, first: Any, codes: NDArray[np.uint8]) -> None:
    """The inverse of join_planes."""
    mask = np.uint32((1 << bits) - 1)
    for k in range(8 // bits):
        for j in range(4):
            shift = np.uint32(k * bits + 8 * j)
            t = first + 4 * k + j
            for c in range(codes.shape[1]):
                codes[t, c] = np.uint8(np.uint32(lanes[c] >> shift) & mask)


@jit
def pack_channel_tiles(
    codes: NDArray[np.uint8], bits: Any, lanes: NDArray[np.uint32], tiles: NDArray[np.uint32], head: Any, start: Any
) -> None:
    """Channel-lane tiles into tiles[head, start:] from codes (padded tokens, padded dim). lanes: scratch (dim,)."""
    tokens, dim = codes.shape
    span = 32 // bits
    for first in range(0, tokens, span):
        join_planes(codes, first, bits, lanes)
        at = np.uint64(start + first // 64 * (dim * 2 * bits) + first % 64 // span * 16)
        for channel in range(np.uint64(0), np.uint64(dim), np.uint64(16)):
            for c in range(np.uint64(16)):
                tiles[head, at + c] = lanes[channel + c]
            at = np.uint64(at + np.uint64(32 * bits))


@jit
def unpack_channel_tiles(
    tiles: NDArray[np.uint32], head: Any, start: Any, bits: Any, lanes: NDArray[np.uint32], codes: NDArray[np.uint8]
) -> None:
    """Codes (padded tokens, padded dim) from the channel-lane tiles in tiles[head, start:]. lanes: scratch (dim,)."""
    tokens, dim = codes.shape
    span = 32 // bits
    for first in range(0, tokens, span):
        at = np.uint64(start + first // 64 * (dim * 2 * bits) + first % 64 // span * 16)
        for channel in range(np.uint64(0), np.uint64(dim), np.uint64(16)):
            for c in range(np.uint64(16)):
                lanes[channel + c] = tiles[head, at + c]
            at = np.uint64(at + np.uint64(32 * bits))
        part_planes(lanes, bits, first, codes)
