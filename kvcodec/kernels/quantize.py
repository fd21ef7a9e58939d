"""Rows of 16-bit floats to grouped INT4: scales, zeros, tiles of codes, and the error that was made.

x = s * (code + z / 16). A group is `group` consecutive tokens of one channel, or `group` consecutive channels of
one token; its *lane* is that channel or token.

Two facts spare the inner loops a clamp. A scale is rounded up and at least 2**-126, so 1 / scale is finite and
normal. And no zero is further than 2047 steps away, so float32 misses the real-valued code by less than 1/1000:
it lies between -1/16 and 15 + 1/16 (symmetric: within 7 + 1/16 of 8), and rounds into a nibble.

Inner loops that do not start at 0 count unsigned: of a start that might be negative numba makes an index that
wraps around, which LLVM does not vectorise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit

MAGIC = np.float32(12582912)  # 1.5 * 2**23: added, it rounds to nearest even into the low bits of the mantissa
FIFTEENTH = np.float32(1 / 15)
SEVENTH = np.float32(1 / 7)
ZERO_REACH = np.float32(1 / 2047)  # zeros are int16 sixteenths of a step
LEAST = np.float32(2.0**-126)
GREATEST = np.float32(3.4028234663852886e38)
LO, HI, SCALE, INVERSE, SHIFT = range(5)  # rows of the float32 scratch of the lanes


@jit
def widen_bfloat16(bits: Any) -> Any:
    """float32 of one bfloat16's bits."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@jit
def widen_float16(bits: Any) -> Any:
    """float32 of one finite float16's bits. Subnormals take a subtraction that is exact and has normal operands."""
    low = np.uint32(np.uint32(bits & np.uint16(0x7FFF)) << np.uint32(13))
    sign = np.uint32(np.uint32(bits & np.uint16(0x8000)) << np.uint32(16))
    normal = np.uint32(low + np.uint32(0x38000000))
    scaled = np.float32(np.uint32(low | np.uint32(0x38800000)).view(np.float32) - np.float32(2.0**-14))
    magnitude = normal if low >= np.uint32(0x800000) else np.uint32(scaled.view(np.uint32))
    return np.uint32(magnitude | sign).view(np.float32)


@jit
def widen_rows(rows: NDArray[np.uint16], first: Any, head: Any, half: Any, values: NDArray[np.float32]) -> None:
    """values (tokens, dim): float32 of one head's rows from token `first`; half: they are float16, else bfloat16."""
    tokens, dim = values.shape
    if half:
        for t in range(tokens):
            for c in range(dim):
                values[t, c] = widen_float16(rows[first + t, head, c])
    else:
        for t in range(tokens):
            for c in range(dim):
                values[t, c] = widen_bfloat16(rows[first + t, head, c])


@jit
def order_key(bits: Any) -> Any:
    """uint16 whose unsigned order is the order of the floats; -0 sorts below 0."""
    return np.uint16(bits ^ (np.uint16(0xFFFF) if bits > np.uint16(0x7FFF) else np.uint16(0x8000)))


@jit
def find_channel_extremes(rows: NDArray[np.uint16], first: Any, last: Any, head: Any, keys: NDArray[np.uint16]) -> None:
    """keys[0] and keys[1]: order keys of the least and greatest of each channel among tokens first to last."""
    dim = rows.shape[2]
    for c in range(dim):
        keys[0, c] = np.uint16(0xFFFF)
        keys[1, c] = np.uint16(0)
    for t in range(first, last):
        for c in range(dim):
            key = order_key(rows[t, head, c])
            keys[0, c] = min(keys[0, c], key)
            keys[1, c] = max(keys[1, c], key)


@jit
def find_token_extremes(
    rows: NDArray[np.uint16], token: Any, tokens: Any, head: Any, first: Any, last: Any, keys: NDArray[np.uint16]
) -> None:
    """keys[0] and keys[1]: order keys of the least and greatest of each token among channels first to last."""
    for t in range(tokens):
        least = np.uint16(0xFFFF)
        greatest = np.uint16(0)
        for c in range(np.uint64(first), np.uint64(last)):
            key = order_key(rows[token + t, head, c])
            least = min(least, key)
            greatest = max(greatest, key)
        keys[0, t] = least
        keys[1, t] = greatest


@jit
def widen_keys(keys: NDArray[np.uint16], lanes: Any, half: Any, floats: NDArray[np.float32]) -> None:
    """LO and HI of each lane from its order keys."""
    for k in range(2):
        for c in range(lanes):
            key = keys[k, c]
            bits = np.uint16(key ^ (np.uint16(0x8000) if key > np.uint16(0x7FFF) else np.uint16(0xFFFF)))
            floats[LO + k, c] = widen_float16(bits) if half else widen_bfloat16(bits)


@jit
def choose_steps(floats: NDArray[np.float32], lanes: Any, symmetric: Any) -> None:
    """From LO and HI of each lane: SCALE, INVERSE = 1 / scale, and SHIFT, which is subtracted before rounding.

    SHIFT is the zero in steps, or 0 when symmetric: that zero is the constant -8 and joins after the rounding.
    """
    for c in range(lanes):
        lo, hi = floats[LO, c], floats[HI, c]
        span = np.float32(np.float32(hi * FIFTEENTH) - np.float32(lo * FIFTEENTH))  # hi - lo could overflow
        asymmetric = max(span, np.float32(abs(lo) * ZERO_REACH))
        chosen = np.float32(max(abs(lo), abs(hi)) * SEVENTH) if symmetric else asymmetric
        up = np.uint32(np.uint32(np.float32(max(chosen, LEAST)).view(np.uint32)) + np.uint32(0xFFFF))
        scale = np.uint32(up & np.uint32(0xFFFF0000)).view(np.float32)
        inverse = np.float32(np.float32(1) / scale)
        sixteenths = np.float32(np.float32(np.float32(lo * inverse) * np.float32(16)) + MAGIC)
        zero = np.float32(np.float32(sixteenths - MAGIC) * np.float32(0.0625))
        floats[SCALE, c] = scale
        floats[INVERSE, c] = inverse
        floats[SHIFT, c] = np.float32(0) if symmetric else zero


@jit
def store_steps(
    floats: NDArray[np.float32], lanes: Any, symmetric: Any, scales: NDArray[np.uint16], zeros: NDArray[np.int16]
) -> None:
    """Scales as bfloat16 bits; zeros, none when symmetric, in sixteenths of a step."""
    for c in range(lanes):
        scales[c] = np.uint16(np.uint32(np.float32(floats[SCALE, c]).view(np.uint32)) >> np.uint32(16))
    if not symmetric:
        for c in range(lanes):
            zeros[c] = np.int16(np.float32(floats[SHIFT, c] * np.float32(16)))


@jit
def round_channel_groups(
    values: NDArray[np.float32], first: Any, last: Any, floats: NDArray[np.float32], magic: Any, codes: Any
) -> None:
    """Codes of tokens first to last, each channel by its own step; values become what the codes miss."""
    for t in range(first, last):
        for c in range(values.shape[1]):
            steps = np.float32(np.float32(values[t, c] * floats[INVERSE, c]) - floats[SHIFT, c])
            rounded = np.float32(steps + magic)
            codes[t, c] = np.uint8(np.uint32(rounded.view(np.uint32)) & np.uint32(15))
            decoded = np.float32(np.float32(np.float32(rounded - magic) + floats[SHIFT, c]) * floats[SCALE, c])
            values[t, c] = np.float32(values[t, c] - min(max(decoded, -GREATEST), GREATEST))


@jit
def round_token_groups(
    values: NDArray[np.float32], first: Any, last: Any, floats: NDArray[np.float32], magic: Any, codes: Any
) -> None:
    """Codes of channels first to last, each token by its own step; values become what the codes miss."""
    for t in range(values.shape[0]):
        scale, inverse, shift = floats[SCALE, t], floats[INVERSE, t], floats[SHIFT, t]
        for c in range(np.uint64(first), np.uint64(last)):
            steps = np.float32(np.float32(values[t, c] * inverse) - shift)
            rounded = np.float32(steps + magic)
            codes[t, c] = np.uint8(np.uint32(rounded.view(np.uint32)) & np.uint32(15))
            decoded = np.float32(np.float32(np.float32(rounded - magic) + shift) * scale)
            values[t, c] = np.float32(values[t, c] - min(max(decoded, -GREATEST), GREATEST))


@jit
def sum_squares(values: NDArray[np.float32], sums: NDArray[np.float64]) -> Any:
    """Sum of squares in float64: down each channel, then over the channels. sums: scratch (dim,)."""
    tokens, dim = values.shape
    sums[:] = np.float64(0)
    for t in range(tokens):
        for c in range(dim):
            sums[c] = np.float64(sums[c] + np.float64(values[t, c]) * np.float64(values[t, c]))
    total = np.float64(0)
    for c in range(dim):
        total = np.float64(total + sums[c])
    return total


@jit
def relate_error(error: Any, square: Any) -> Any:
    """Q15 of sqrt(error / square), at most 65535; 0 of nothing."""
    if square == np.float64(0):
        return np.uint16(0)
    return np.uint16(np.rint(min(np.float64(32768) * np.sqrt(error / square), np.float64(65535))))


@jit
def pack_token_tiles(words: NDArray[np.uint64], tiles: NDArray[np.uint32]) -> None:
    """Token-lane tiles of (padded tokens, padded dim / 8) words of 8 codes: lane t of row r is token t's word r."""
    tokens, rows = words.shape
    for tile in range(tokens // 16):
        for r in range(rows):
            for t in range(16):
                word = np.uint64(words[tile * 16 + t, r])
                high = np.uint32(np.uint32(word >> np.uint64(32)) << np.uint32(4))
                tiles[(tile * rows + r) * 16 + t] = np.uint32(np.uint32(word & np.uint64(0xFFFFFFFF)) | high)


@jit
def pack_channel_tiles(words: NDArray[np.uint64], tiles: NDArray[np.uint32]) -> None:
    """Channel-lane tiles of (padded tokens, padded dim / 8) words: lane c of row r is tokens 8r to 8r + 7."""
    tokens, columns = words.shape
    byte = np.uint64(255)
    for r in range(tokens // 8):
        for k in range(columns):
            pairs0 = np.uint64(words[8 * r, k] | np.uint64(words[8 * r + 4, k] << np.uint64(4)))
            pairs1 = np.uint64(words[8 * r + 1, k] | np.uint64(words[8 * r + 5, k] << np.uint64(4)))
            pairs2 = np.uint64(words[8 * r + 2, k] | np.uint64(words[8 * r + 6, k] << np.uint64(4)))
            pairs3 = np.uint64(words[8 * r + 3, k] | np.uint64(words[8 * r + 7, k] << np.uint64(4)))
            at = ((r // 8 * (columns // 2) + k // 2) * 8 + r % 8) * 16 + k % 2 * 8
            for c in range(8):
                shift = np.uint64(8 * c)
                low = np.uint32((pairs0 >> shift) & byte) | np.uint32((pairs1 >> shift) & byte) << 8
                high = np.uint32((pairs2 >> shift) & byte) | np.uint32((pairs3 >> shift) & byte) << 8
                tiles[at + c] = np.uint32(low | np.uint32(high << 16))


@jit
def quantize_records(
    rows: NDArray[np.uint16],
    half: Any,
    tokens: Any,
    group: Any,
    per_channel: Any,
    symmetric: Any,
    channel_lane: Any,
    body: NDArray[np.uint8],
    sections: Any,
    scratch: Any,
    errors: NDArray[np.uint16],
) -> None:
    """Code records of `tokens` tokens each.

    rows: (records * tokens, heads, dim). body: (records, heads, head bytes), zeroed. sections: bytes of a head's
    scales and zeros. errors: (records, heads), Q15. scratch: values float32 (tokens, dim); codes uint8 (padded
    tokens, padded dim), zeroed; keys uint16 (2, lanes) and floats float32 (5, lanes), lanes being the greater of
    the padded sizes; sums float64 (dim,).
    """
    values, codes, keys, floats, sums = scratch
    scales, zeros, tiles = body.view(np.uint16), body.view(np.int16), body.view(np.uint32)
    words = codes.view(np.uint64)
    lanes, columns, count = tokens, codes.shape[0], rows.shape[2]
    if per_channel:
        lanes, columns, count = rows.shape[2], codes.shape[1], tokens
    magic = np.float32(MAGIC + np.float32(8)) if symmetric else MAGIC
    for i in range(body.shape[0]):
        for h in range(body.shape[1]):
            widen_rows(rows, i * tokens, h, half, values)
            square = sum_squares(values, sums)
            for first in range(0, count, group):
                last = min(first + group, count)
                if per_channel:
                    find_channel_extremes(rows, i * tokens + first, i * tokens + last, h, keys)
                else:
                    find_token_extremes(rows, i * tokens, tokens, h, first, last, keys)
                widen_keys(keys, lanes, half, floats)
                choose_steps(floats, lanes, symmetric)
                at = first // group * columns
                store_steps(floats, lanes, symmetric, scales[i, h, at:], zeros[i, h, sections[0] // 2 + at :])
                if per_channel:
                    round_channel_groups(values, first, last, floats, magic, codes)
                else:
                    round_token_groups(values, first, last, floats, magic, codes)
            errors[i, h] = relate_error(sum_squares(values, sums), square)
            at = (sections[0] + sections[1]) // 4
            if channel_lane:
                pack_channel_tiles(words, tiles[i, h, at:])
            else:
                pack_token_tiles(words, tiles[i, h, at:])
