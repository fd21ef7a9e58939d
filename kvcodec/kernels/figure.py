"""The error figure of a head of a record: from float32 sums of squares where they settle it, else from exact ones.

It is a whole number, so it takes sums only as exact as that number is far from the next. Sums of squares that go
through at most 14 float32 roundings are off by less than a part in 2**20, which settles all but some heads in a
thousand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._floats_simd import add_squares, load_double, store_doubles, sum_doubles
from kvcodec.kernels._jit import part
from kvcodec.kernels.dequantize import scale_head, work_bytes
from kvcodec.kernels.floats import FLOAT32

UNDECIDED = np.int32(-1)
MORE, LESS = np.float64(1 + 2.0**-20), np.float64(1 - 2.0**-20)
UNDERFLOW = np.float64(2.0**-100)  # what 2**40 squares that float32 cannot hold may come to


@part
def relate_error(error: Any, total: Any) -> Any:
    """Q15 of the root of error / total, at most 65535; 0 of nothing."""
    if total == np.float64(0):
        return np.int32(0)
    return np.int32(np.rint(min(np.float64(32768) * np.sqrt(error / total), np.float64(65535))))


@part
def estimate_error(squares: Any) -> Any:
    """The figure, if it is the same wherever in their bounds the sums of squares are, else UNDECIDED.

    squares: address of 4 float64, sums of what the codes miss, and 4, of the numbers.
    """
    error, total = sum_doubles(squares), sum_doubles(squares + 32)
    if not (total < np.inf and error < np.inf and total > np.float64(2.0**-60)):
        return UNDECIDED
    least = relate_error(max(error * LESS - UNDERFLOW, np.float64(0)), total * MORE + UNDERFLOW)
    greatest = relate_error(error * MORE + UNDERFLOW, total * LESS - UNDERFLOW)
    return least if least == greatest else UNDECIDED


def measuring_bytes(tokens: int, dim: int) -> int:
    """Bytes of the work space of measure_error."""
    width = (dim + 15) & -16
    return work_bytes(dim) + 16 * width + 4 * ((tokens + 3) & -4) * width


@part
def measure_error(row: Any, stride: Any, half: Any, body: Any, head: Any, grid: Any, work: Any) -> Any:
    """The figure of a coded head, exactly: float64 sums down each channel, then over the channels.

    row: of rows of 16-bit floats, which 16 channels at a time can be read of; body: the first bytes of the head.
    """
    width = (head.dim + 15) & -16
    errors = work + 8 * width
    totals, back = errors + 8 * width, errors + 16 * width
    scale_head(body, head, grid, FLOAT32, back, 4 * width, work)
    for c in range(0, 2 * width, 4):
        store_doubles(np.float64(0), errors + 8 * c)
    for t in range(head.tokens):
        for c in range(0, width, 16):
            add_squares(row + t * stride + 2 * c, half, back + 4 * (t * width + c), errors + 8 * c, totals + 8 * c)
    error, total = np.float64(0), np.float64(0)
    for c in range(head.dim):
        error = np.float64(error + load_double(errors + 8 * c))
        total = np.float64(total + load_double(totals + 8 * c))
    return relate_error(error, total)
