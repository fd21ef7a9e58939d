"""Lots that are drawn from a seed and a place, the same at every run, for many places at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STEP = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def draw_lots(first: int, count: int, *keys: int) -> NDArray[np.float64]:
    """A number from 0 to below 1 for each of the places first … first + count - 1, float64 (count,).

    keys: a seed, what the lots are for, and whatever else they depend on. By the finalizer of SplitMix64 (Steele, Lea,
    Flood: Fast splittable pseudorandom number generators, 2014).
    """
    seed = 0
    for key in keys:
        seed = int(_mix(np.array([seed + _STEP * (key + 1) & _WORD], np.uint64))[0])
    places = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    return (_mix(places * np.uint64(_STEP) + np.uint64(seed)) >> np.uint64(11)).astype(np.float64) / (1 << 53)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
