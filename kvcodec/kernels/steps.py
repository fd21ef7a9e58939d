"""Steps: the scale and the zero of each group, from the extremes of its numbers, and to and from the record.

x = s * (code + z / parts). A group is `group` consecutive tokens of one channel, or `group` consecutive channels of
one token; its *lane* is that channel or token.

Inner loops that do not start at 0 count unsigned: of a start that might be negative numba makes an index that
wraps around, which LLVM does not vectorise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit
from kvcodec.kernels.floats import widen_bfloat16, widen_float16

MAGIC = np.float32(12582912)  # 1.5 * 2**23: added, it rounds to nearest even into the low bits of the mantissa
LEAST = np.float32(2.0**-126)
LEAST_NORMAL = np.uint16(0x0080)  # LEAST as bfloat16: no scale is less
INFINITE = np.uint16(0x7F80)
SCALE, SHIFT, INVERSE, LO, HI = range(5)  # rows of the float32 scratch of the lanes; reading takes the first two


class Grid(NamedTuple):
    """The integers of one width.

    parts: of a step, in which zeros are counted. span: 1 / greatest code. reach: 1 / steps that a zero may be away.
    side, middle: symmetric, 1 / steps to either side and the code of 0.
    """

    bits: int
    parts: np.float32
    part: np.float32
    span: np.float32
    reach: np.float32
    side: np.float32
    middle: np.float32


def make_grid(bits: int, parts: int) -> Grid:
    """The grid of codes of `bits` bits whose zeros, int16, count 1 / parts of a step."""
    f, half = np.float32, 2 ** (bits - 1)
    span, reach = f(1 / (2 * half - 1)), f(1 / (32768 // parts - 1))
    return Grid(bits, f(parts), f(1 / parts), span, reach, f(1 / (half - 1)), f(half))


GRIDS = {2: make_grid(2, 16), 4: make_grid(4, 16), 8: make_grid(8, 2)}


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
def choose_steps(
    keys: NDArray[np.uint16], lanes: Any, half: Any, grid: Any, symmetric: Any, floats: NDArray[np.float32]
) -> None:
    """From the extremes' keys of each lane: SCALE, INVERSE = 1 / scale, and SHIFT, subtracted before rounding.

    SHIFT is the zero in steps, or 0 when symmetric: that zero is the constant -middle and joins after the rounding.
    """
    widen_keys(keys, lanes, half, floats)
    for c in range(lanes):
        lo, hi = floats[LO, c], floats[HI, c]
        span = np.float32(np.float32(hi * grid.span) - np.float32(lo * grid.span))  # hi - lo could overflow
        asymmetric = max(span, np.float32(abs(lo) * grid.reach))
        chosen = np.float32(max(abs(lo), abs(hi)) * grid.side) if symmetric else asymmetric
        up = np.uint32(np.uint32(np.float32(max(chosen, LEAST)).view(np.uint32)) + np.uint32(0xFFFF))
        scale = np.uint32(up & np.uint32(0xFFFF0000)).view(np.float32)
        inverse = np.float32(np.float32(1) / scale)
        parts = np.float32(np.float32(np.float32(lo * inverse) * grid.parts) + MAGIC)
        zero = np.float32(np.float32(parts - MAGIC) * grid.part)
        floats[SCALE, c] = scale
        floats[INVERSE, c] = inverse
        floats[SHIFT, c] = np.float32(0) if symmetric else zero


@jit
def store_steps(
    floats: NDArray[np.float32], lanes: Any, grid: Any, symmetric: Any, metadata: Any, head: Any, start: Any, zero: Any
) -> None:
    """Scales as bfloat16 bits from `start` on; zeros, none when symmetric, in parts of a step from `zero` on."""
    scales, zeros = metadata
    for c in range(np.uint64(lanes)):
        bits = np.uint32(np.uint32(np.float32(floats[SCALE, c]).view(np.uint32)) >> np.uint32(16))
        scales[head, np.uint64(start) + c] = np.uint16(bits)
    if not symmetric:
        for c in range(np.uint64(lanes)):
            zeros[head, np.uint64(zero) + c] = np.int16(np.float32(floats[SHIFT, c] * grid.parts))


@jit
def load_steps(
    metadata: Any, head: Any, start: Any, zero: Any, lanes: Any, grid: Any, symmetric: Any, floats: NDArray[np.float32]
) -> None:
    """SCALE of each lane from scales[head, start:]; SHIFT, its zero in steps, from zeros[head, zero:] or symmetric."""
    scales, zeros = metadata
    for c in range(np.uint64(lanes)):
        floats[SCALE, c] = widen_bfloat16(scales[head, np.uint64(start) + c])
    for c in range(np.uint64(lanes)):
        stored = np.float32(np.float32(zeros[head, np.uint64(zero) + c]) * grid.part)
        floats[SHIFT, c] = np.float32(-grid.middle) if symmetric else stored


@jit
def find_bad_scale(scales: NDArray[np.uint16], rows: Any, columns: Any, used: Any) -> Any:
    """Row of the first scale that is no finite bfloat16 of at least 2**-126, counted over all heads; or -1.

    scales: a row each head, that begins with rows x columns scales; the first `used` of a row count.
    """
    for i in range(scales.shape[0]):
        for r in range(rows):
            bad = 0
            for c in range(np.uint64(r * columns), np.uint64(r * columns + used)):
                bits = scales[i, c]
                bad |= (bits < LEAST_NORMAL) | (bits >= INFINITE)
            if bad:
                return i * rows + r
    return -1
