"""Rotary embedding with integer angles: what turns K forth and back is the same number on every machine.

An angle is a uint64 in units of 2**-64 turns, so that position times step wraps as angles do. Cosine and sine are Q30,
from 4,096 points of the circle and two terms of Taylor's series: off by less than 2**-28.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import inline, jit

POINT_BITS = 12
POINTS = 1 << POINT_BITS
UNIT_BITS = 30
_BELOW = np.uint64(64 - POINT_BITS)
_HALF = np.uint64(1 << (63 - POINT_BITS))
_MASK = np.uint64(POINTS - 1)
_QUARTER = np.int64(POINTS // 4)
_TWO_PI = np.int64(1686629713)  # 2 * pi in Q28
_ONE = np.float32(2.0**-UNIT_BITS)


def make_points() -> NDArray[np.int32]:
    """int32 (4096,): cosines of the circle's points, Q30, rounded. None lies near a half: any libm gives these."""
    angles = np.arange(POINTS) * (2 * np.pi / POINTS)
    points: NDArray[np.int32] = np.rint(np.cos(angles) * (1 << UNIT_BITS)).astype(np.int32)
    return points


@inline
def find_turn(angle: Any, points: Any) -> Any:
    """Cosine and sine of an angle, int64 in Q30."""
    nearest = np.int64((np.uint64(angle + _HALF) >> _BELOW) & _MASK)
    rest = np.int64(np.uint64(angle - np.uint64(np.uint64(nearest) << _BELOW)))
    small = np.int64(np.int64(np.int64(rest >> 21) * _TWO_PI) >> 31)  # radians in Q40
    square = np.int64(np.int64(small * small) >> 41)  # half of it
    cosine = np.int64(points[nearest])
    sine = np.int64(points[np.int64(np.int64(nearest - _QUARTER) & np.int64(POINTS - 1))])
    return (
        np.int64(cosine - np.int64(np.int64(sine * small) >> 40) - np.int64(np.int64(cosine * square) >> 40)),
        np.int64(sine + np.int64(np.int64(cosine * small) >> 40) - np.int64(np.int64(sine * square) >> 40)),
    )


@jit
def find_turns(
    positions: NDArray[np.int64], steps: NDArray[np.uint64], points: NDArray[np.int32], turns: NDArray[np.int32]
) -> None:
    """turns (positions, 2, pairs): cosines and sines, Q30, by which positions turn the pairs."""
    for n in range(positions.shape[0]):
        for c in range(steps.shape[0]):
            cosine, sine = find_turn(np.uint64(np.uint64(positions[n]) * steps[c]), points)
            turns[n, 0, c], turns[n, 1, c] = np.int32(cosine), np.int32(sine)


@jit
def turn_rows(
    rows: NDArray[np.float32],
    positions: NDArray[np.int64],
    steps: NDArray[np.uint64],
    points: NDArray[np.int32],
    back: Any,
    work: NDArray[np.float32],
) -> None:
    """Turn rows (tokens, heads, dim) in place to their positions, or back from them.

    steps: uint64 (pairs,), the angle of one position; channels c and c + pairs are a pair. Each product, and each sum
    of two, is rounded to float32. work: (2, pairs).
    """
    pairs = steps.shape[0]
    for t in range(rows.shape[0]):
        position = np.uint64(positions[t])
        for c in range(pairs):
            cosine, sine = find_turn(np.uint64(position * steps[c]), points)
            work[0, c] = np.float32(np.float32(cosine) * _ONE)
            work[1, c] = np.float32(np.float32(-sine if back else sine) * _ONE)
        for h in range(rows.shape[1]):
            for c in range(pairs):
                one, two, cosine_, sine_ = rows[t, h, c], rows[t, h, c + pairs], work[0, c], work[1, c]
                rows[t, h, c] = np.float32(np.float32(one * cosine_) - np.float32(two * sine_))
                rows[t, h, c + pairs] = np.float32(np.float32(two * cosine_) + np.float32(one * sine_))
