"""Steps: the scale and the zero of each group, from the extremes of its numbers, and to and from the record.

x = s * (code + z / parts). A group is `group` consecutive tokens of one channel, or `group` consecutive channels of
one token; its *lane* is that channel or token. Steps of 16 lanes are chosen and kept together, as _quads.py has them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._floats_simd import (
    bits_of,
    floats_of,
    greater_float,
    load_parted,
    magnitude,
    splat_float,
    store_floats,
    store_low_halves,
)
from kvcodec.kernels._jit import inline, jit
from kvcodec.kernels._lanes import (
    shift_unsigned,
    splat,
)
from kvcodec.kernels._quads import INVERSE, OFFSET, ROW, SCALE, SHIFT

MAGIC = np.float32(12582912)  # 1.5 * 2**23: added, it rounds to nearest even into the low bits of the mantissa
LEAST = np.float32(2.0**-126)
LEAST_NORMAL = np.uint16(0x0080)  # LEAST as bfloat16: no scale is less
INFINITE = np.uint16(0x7F80)


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


@inline
def choose_steps(
    extremes: Any, half: Any, grid: Any, symmetric: Any, steps: Any, count: Any, scales: Any, zeros: Any
) -> None:
    """From the extremes of 16 lanes their steps, of which the first `count` are stored as scales and zeros.

    A zero is in steps in SHIFT, and 0 when symmetric: that zero is the constant -middle and joins after the rounding.
    Scales are bfloat16 bits; zeros, int16, parts of a step, and not stored when symmetric.
    """
    lo, hi = load_parted(extremes, half), load_parted(extremes + ROW, half)
    if symmetric:
        chosen = greater_float(magnitude(lo), magnitude(hi)) * splat_float(grid.side)
    else:
        span = hi * splat_float(grid.span) - lo * splat_float(grid.span)  # hi - lo could overflow
        chosen = greater_float(span, magnitude(lo) * splat_float(grid.reach))
    up = (bits_of(greater_float(chosen, splat_float(LEAST))) + 0xFFFF) & -0x10000
    scale = floats_of(up)
    inverse = splat_float(np.float32(1)) / scale
    store_low_halves(shift_unsigned(up, splat(np.int32(16))), np.int32(count), scales)
    store_floats(scale, steps + ROW * SCALE)
    store_floats(inverse, steps + ROW * INVERSE)
    if not symmetric:
        parts = lo * inverse * splat_float(grid.parts) + splat_float(MAGIC)
        zero = (parts - splat_float(MAGIC)) * splat_float(grid.part)
        store_low_halves(bits_of(parts), np.int32(count), zeros)
        store_floats(zero, steps + ROW * SHIFT)
        store_floats(zero * scale, steps + ROW * OFFSET)


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
