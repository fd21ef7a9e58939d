"""The error figure of a head of a record: from float32 sums of squares where they settle it, else from exact ones.

It is a whole number, so it takes sums only as exact as that number is far from the next. Sums of squares that go
through at most 10 float32 roundings are off by less than a part in 2**20, which settles all but some heads in a
thousand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit
from kvcodec.kernels.floats import widen_bfloat16, widen_float16

UNDECIDED = np.int32(-1)
MORE, LESS = np.float64(1 + 2.0**-20), np.float64(1 - 2.0**-20)
UNDERFLOW = np.float64(2.0**-100)  # what 2**40 squares that float32 cannot hold may come to


@jit
def relate_error(error: Any, total: Any) -> Any:
    """Q15 of the root of error / total, at most 65535; 0 of nothing."""
    if total == np.float64(0):
        return np.int32(0)
    return np.int32(np.rint(min(np.float64(32768) * np.sqrt(error / total), np.float64(65535))))


@jit
def estimate_error(sums: NDArray[np.float64]) -> Any:
    """The figure, if it is the same wherever in their bounds the sums of squares are, else UNDECIDED.

    sums: (2, dim), of the numbers, and of what their codes miss.
    """
    total, error = np.float64(0), np.float64(0)
    for c in range(sums.shape[1]):
        total = np.float64(total + sums[0, c])
        error = np.float64(error + sums[1, c])
    if not (total < np.inf and error < np.inf and total > np.float64(2.0**-60)):
        return UNDECIDED
    least = relate_error(max(error * LESS - UNDERFLOW, np.float64(0)), total * MORE + UNDERFLOW)
    greatest = relate_error(error * MORE + UNDERFLOW, total * LESS - UNDERFLOW)
    return least if least == greatest else UNDECIDED


@jit
def measure_errors(
    rows: NDArray[np.uint16],
    half: Any,
    tokens: Any,
    chosen: NDArray[np.int64],
    decoded: NDArray[np.float32],
    sums: NDArray[np.float64],
    figures: NDArray[np.int32],
) -> None:
    """figures of the chosen of (records * heads,), exactly: float64 sums down each channel, then over the channels.

    rows: (records * tokens, heads, dim). decoded: (chosen * tokens, 1, dim). sums: scratch (2, dim).
    """
    heads, dim = rows.shape[1], rows.shape[2]
    for n in range(chosen.size):
        sums[:] = np.float64(0)
        for t in range(tokens):
            row = rows[chosen[n] // heads * tokens + t, chosen[n] % heads]
            back = decoded[n * tokens + t, 0]
            for c in range(dim):
                x = widen_float16(row[c]) if half else widen_bfloat16(row[c])
                missed = np.float64(np.float32(x - back[c]))
                sums[0, c] = np.float64(sums[0, c] + np.float64(np.float64(x) * np.float64(x)))
                sums[1, c] = np.float64(sums[1, c] + np.float64(missed * missed))
        total, error = np.float64(0), np.float64(0)
        for c in range(dim):
            total = np.float64(total + sums[0, c])
            error = np.float64(error + sums[1, c])
        figures[chosen[n]] = relate_error(error, total)
