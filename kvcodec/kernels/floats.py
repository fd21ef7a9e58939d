"""16-bit floats as bits: widening to float32, narrowing from it, and the search for what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit

FLOAT32, BFLOAT16, FLOAT16 = range(3)  # forms of rows
GREATEST_FLOAT32 = np.float32(3.4028234663852886e38)
GREATEST_BFLOAT16 = np.float32(3.3895313892515355e38)
GREATEST_FLOAT16 = np.float32(65504)


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
def widen_rows(
    rows: NDArray[np.uint16], first: Any, count: Any, head: Any, half: Any, values: NDArray[np.float32]
) -> None:
    """values (count, dim): float32 of one head's rows from token `first`; half: they are float16, else bfloat16."""
    dim = values.shape[1]
    if half:
        for t in range(count):
            for c in range(dim):
                values[t, c] = widen_float16(rows[first + t, head, c])
    else:
        for t in range(count):
            for c in range(dim):
                values[t, c] = widen_bfloat16(rows[first + t, head, c])


@jit
def store_rows(
    values: NDArray[np.float32], count: Any, form: Any, first: Any, head: Any, halves: NDArray[np.uint16], full: Any
) -> None:
    """One head's `count` rows from token `first`: into full as float32, or into halves as 16-bit floats' bits."""
    dim = values.shape[1]
    for t in range(count):
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
