"""Bytes for each stream, and components for each code: reverse water-filling over all streams at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.transform import MAX_COMPONENTS

CODE_BITS = 8
LEAST_GROUPS = 2
_ROUNDS = 100
_NEGLIGIBLE = 0.02  # bits of a component that is left out


def fill_rates(
    variances: Sequence[NDArray[np.float64]], bits: float, costs: Sequence[float] | None = None
) -> list[NDArray[np.float64]]:
    """Bits of each component of streams such that their mean over streams, weighted by costs, is `bits` a vector.

    costs: how many tokens a stream holds; a bit in one that holds more has to do more. The rate of a component is half
    the log2 of how far its variance is above the water, which is as high as its stream's cost.
    """
    weights = np.ones(len(variances)) if costs is None else np.asarray(costs, np.float64) / np.mean(costs)
    low, high = -200.0, 200.0  # of the water, log2

    def rates(water: float) -> list[NDArray[np.float64]]:
        return [
            np.maximum(0.0, 0.5 * (np.log2(own) - np.log2(weight) - water))
            for own, weight in zip(variances, weights, strict=True)
        ]

    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        mean = sum(weight * own.sum() for own, weight in zip(rates(middle), weights, strict=True)) / weights.sum()
        low, high = (middle, high) if mean > bits else (low, middle)
    return rates(high)


def count_groups(
    rates: Sequence[NDArray[np.float64]], total: float, costs: Sequence[float], most: int | Sequence[int]
) -> list[int]:
    """Codes of each stream: whole ones, 2 at least, `most` of it at most, `total` in all, counted by cost."""
    limits = np.broadcast_to(np.asarray(most), len(rates))
    exact = np.array([own.sum() / CODE_BITS for own in rates])
    weights = np.asarray(costs, np.float64) / np.mean(costs)
    counts = np.clip(np.floor(exact), LEAST_GROUPS, limits).astype(int)
    order = sorted(range(len(exact)), key=lambda n: counts[n] - exact[n])
    left = total - float((counts * weights).sum())
    for n in [*order, *order, *order]:
        if weights[n] <= left + 1e-9 and counts[n] < limits[n]:
            counts[n] += 1
            left -= weights[n]
    return [int(count) for count in counts]


def split_components(variances: NDArray[np.float64], groups: int) -> list[NDArray[np.int64]]:
    """Components of each group: all that are worth bits, the groups being worth about as many. Variances descend."""
    (rates,) = fill_rates([variances], CODE_BITS * groups)
    used = np.flatnonzero(rates > _NEGLIGIBLE)[:MAX_COMPONENTS]
    if len(used) < groups:
        used = np.arange(min(groups, len(rates)))
    sums, found = np.zeros(groups), [list[int]() for _ in range(groups)]
    for n in used[np.argsort(-rates[used], kind="stable")]:
        least = int(np.argmin(sums + 1e-6 * np.array([len(own) for own in found])))
        found[least].append(int(n))
        sums[least] += rates[n]
    return [np.array(own, np.int64) for own in found if own]
