"""Grouped INT4 back to rows: tiles of codes, scales and zeros to float32, bfloat16 or float16.

x = s * (code + z / 16): a scale of 8 significant bits times 16 bits of sixteenths is exact in float32, so there
is no rounding but the last one, to 16 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit

GREATEST_FLOAT32 = np.float32(3.4028234663852886e38)
GREATEST_BFLOAT16 = np.float32(3.3895313892515355e38)
GREATEST_FLOAT16 = np.float32(65504)
LEAST_NORMAL = np.uint16(0x0080)  # 2**-126 as bfloat16: no scale is less
INFINITE = np.uint16(0x7F80)
FLOAT32, BFLOAT16, FLOAT16 = range(3)  # forms of output


@jit
def find_bad_scale(body: NDArray[np.uint8], rows: Any, columns: Any, used: Any) -> Any:
    """Byte position in body of the first scale that is no finite bfloat16 of at least 2**-126, or -1.

    body: (records, heads, head bytes). A head begins with rows x columns scales; the first `used` of a row count.
    """
    scales = body.view(np.uint16)
    for i in range(body.shape[0]):
        for h in range(body.shape[1]):
            for r in range(rows):
                bad = 0
                for c in range(np.uint64(r * columns), np.uint64(r * columns + used)):
                    bits = scales[i, h, c]
                    bad |= (bits < LEAST_NORMAL) | (bits >= INFINITE)
                if bad:
                    for c in range(r * columns, r * columns + used):
                        if scales[i, h, c] < LEAST_NORMAL or scales[i, h, c] >= INFINITE:
                            return (i * body.shape[1] + h) * body.shape[2] + 2 * c
    return -1


@jit
def unpack_token_tiles(tiles: NDArray[np.uint32], words: NDArray[np.uint64]) -> None:
    """Words of 8 codes, (padded tokens, padded dim / 8), from token-lane tiles."""
    tokens, rows = words.shape
    nibbles = np.uint32(0x0F0F0F0F)
    for tile in range(tokens // 16):
        for r in range(rows):
            for t in range(16):
                lane = np.uint32(tiles[(tile * rows + r) * 16 + t])
                low = np.uint64(lane & nibbles)
                high = np.uint64(np.uint32(lane >> np.uint32(4)) & nibbles)
                words[tile * 16 + t, r] = np.uint64(low | np.uint64(high << np.uint64(32)))


@jit
def unpack_channel_tiles(tiles: NDArray[np.uint32], codes: NDArray[np.uint8]) -> None:
    """Codes, (padded tokens, padded dim), from channel-lane tiles."""
    tokens, dim = codes.shape
    for r in range(tokens // 8):
        for j in range(8):
            shift = np.uint32(j % 4 * 8 + j // 4 * 4)
            for first in range(0, dim, 16):
                at = ((r // 8 * (dim // 16) + first // 16) * 8 + r % 8) * 16
                for c in range(16):
                    lane = np.uint32(tiles[at + c])
                    codes[8 * r + j, first + c] = np.uint8(np.uint32(lane >> shift) & np.uint32(15))


@jit
def load_steps(
    scales: NDArray[np.uint16], zeros: NDArray[np.int16], lanes: Any, symmetric: Any, floats: NDArray[np.float32]
) -> None:
    """floats[0]: the scale of each lane; floats[1]: its zero in steps, -8 when symmetric."""
    for c in range(lanes):
        floats[0, c] = np.uint32(np.uint32(scales[c]) << np.uint32(16)).view(np.float32)
    for c in range(lanes):
        floats[1, c] = np.float32(-8) if symmetric else np.float32(np.float32(zeros[c]) * np.float32(0.0625))


@jit
def scale_channel_groups(
    codes: NDArray[np.uint8], first: Any, last: Any, floats: NDArray[np.float32], greatest: Any, values: Any
) -> None:
    """values of tokens first to last, each channel by its own step, clamped to +-greatest."""
    for t in range(first, last):
        for c in range(values.shape[1]):
            value = np.float32(np.float32(np.float32(codes[t, c]) + floats[1, c]) * floats[0, c])
            values[t, c] = min(max(value, -greatest), greatest)


@jit
def scale_token_groups(
    codes: NDArray[np.uint8], first: Any, last: Any, floats: NDArray[np.float32], greatest: Any, values: Any
) -> None:
    """values of channels first to last, each token by its own step, clamped to +-greatest."""
    for t in range(values.shape[0]):
        scale, zero = floats[0, t], floats[1, t]
        for c in range(np.uint64(first), np.uint64(last)):
            value = np.float32(np.float32(np.float32(codes[t, c]) + zero) * scale)
            values[t, c] = min(max(value, -greatest), greatest)


@jit
def narrow_bfloat16(value: Any) -> Any:
    """Bits of the bfloat16 nearest to a finite float32 within its range, ties to even."""
    bits = np.uint32(np.float32(value).view(np.uint32))
    half = np.uint32(np.uint32(0x7FFF) + np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
    return np.uint16(np.uint32(bits + half) >> np.uint32(16))


@jit
def narrow_float16(value: Any) -> Any:
    """Bits of the float16 nearest to a float32 within its range, ties to even.

    Below 2**-14 adding 1/2 leaves the subnormal's bits, rounded by the addition itself, in the low mantissa.
    """
    bits = np.uint32(np.float32(value).view(np.uint32))
    sign = np.uint32(np.uint32(bits & np.uint32(0x80000000)) >> np.uint32(16))
    bits = np.uint32(bits & np.uint32(0x7FFFFFFF))
    half = np.uint32(np.uint32(0xFFF) + np.uint32(np.uint32(bits >> np.uint32(13)) & np.uint32(1)))
    normal = np.uint32(np.uint32(np.uint32(bits + half) >> np.uint32(13)) - np.uint32(0x1C000))
    small = np.float32(bits.view(np.float32) + np.float32(0.5))
    tiny = np.uint32(small.view(np.uint32)) & np.uint32(0x3FFFFF)
    return np.uint16((normal if bits >= np.uint32(0x38800000) else np.uint32(tiny)) | sign)


@jit
def store_rows(
    values: NDArray[np.float32], form: Any, first: Any, head: Any, halves: NDArray[np.uint16], full: Any
) -> None:
    """One head's rows from token `first`: into full as float32, or into halves as 16-bit floats' bits."""
    tokens, dim = values.shape
    for t in range(tokens):
        if form == BFLOAT16:
            for c in range(dim):
                halves[first + t, head, c] = narrow_bfloat16(values[t, c])
        elif form == FLOAT16:
            for c in range(dim):
                halves[first + t, head, c] = narrow_float16(values[t, c])
        else:
            for c in range(dim):
                full[first + t, head, c] = values[t, c]


@jit
def dequantize_records(
    body: NDArray[np.uint8],
    tokens: Any,
    group: Any,
    per_channel: Any,
    symmetric: Any,
    channel_lane: Any,
    sections: Any,
    scratch: Any,
    form: Any,
    halves: NDArray[np.uint16],
    full: NDArray[np.float32],
) -> None:
    """Decode records of `tokens` tokens each.

    body: (records, heads, head bytes). sections: bytes of a head's scales and zeros. form: FLOAT32 fills full,
    BFLOAT16 or FLOAT16 halves, either (records * tokens, heads, dim). scratch: values float32 (tokens, dim);
    codes uint8 (padded tokens, padded dim); floats float32 (2, lanes), lanes being the greater of the padded sizes.
    """
    values, codes, floats = scratch
    scales, zeros, tiles = body.view(np.uint16), body.view(np.int16), body.view(np.uint32)
    words = codes.view(np.uint64)
    lanes, columns, count = tokens, codes.shape[0], values.shape[1]
    if per_channel:
        lanes, columns, count = values.shape[1], codes.shape[1], tokens
    greatest = GREATEST_FLOAT32
    if form == BFLOAT16:
        greatest = GREATEST_BFLOAT16
    elif form == FLOAT16:
        greatest = GREATEST_FLOAT16
    for i in range(body.shape[0]):
        for h in range(body.shape[1]):
            start = (sections[0] + sections[1]) // 4
            if channel_lane:
                unpack_channel_tiles(tiles[i, h, start:], codes)
            else:
                unpack_token_tiles(tiles[i, h, start:], words)
            for first in range(0, count, group):
                last = min(first + group, count)
                at = first // group * columns
                load_steps(scales[i, h, at:], zeros[i, h, sections[0] // 2 + at :], lanes, symmetric, floats)
                if per_channel:
                    scale_channel_groups(codes, first, last, floats, greatest, values)
                else:
                    scale_token_groups(codes, first, last, floats, greatest, values)
            store_rows(values, form, i * tokens, h, halves, full)
