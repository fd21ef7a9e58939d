"""Forms of rows, and the search for 16-bit floats that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit

FLOAT32, STREAMED, BFLOAT16, FLOAT16 = range(4)  # forms of rows; streamed: float32 that passes the caches by


@jit
def find_nonfinite(rows: NDArray[np.uint16], exponent: Any) -> Any:
    """Flat position of the first NaN or Inf in (tokens, width) 16-bit floats, or -1. exponent: uint16 mask."""
    tokens, width = rows.shape
    mask = np.uint16(exponent)
    for t in range(tokens):
        most = np.uint16(0)
        for c in range(width):
            bits = np.uint16(rows[t, c] & mask)
            most = max(most, bits)
        if most == mask:
            for c in range(width):
                if np.uint16(rows[t, c] & mask) == mask:
                    return t * width + c
    return -1
