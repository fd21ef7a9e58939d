"""Bits of each component under one budget: whole bits, whole bytes of a vector, where they spare most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.trellis_spec import MAX_CODE_BYTES

LEAST_CODE_BYTES = 1
_BYTE = 8
_ALIKE = 16.0  # times the rest; of 1, 4 and 16 it cost a model least (KL divergence)


def count_losses(distortions: NDArray[np.float64]) -> NDArray[np.float64]:
    """What numbers of variance 1 cost that are coded by 0, 1, … bits and miss so much.

    Of an error of variance D a part is the same share D of the number itself, variance D². Numbers of neighbouring
    tokens are alike, and attention adds them up: that part counts more than the rest, which averages out.
    """
    return distortions * (1 - distortions) + _ALIKE * distortions * distortions


def order_bits(variances: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.int64]:
    """Numbers of components, that of each bit in the order in which bits spare most.

    losses: of numbers of variance 1 coded by 0, 1, … bits; what one bit more spares gets less with each.
    """
    spared = variances[:, None] * (losses[:-1] - losses[1:])
    order = np.argsort(-spared.reshape(-1), kind="stable")
    return np.asarray(order // (len(losses) - 1), np.int64)


def spare_rates(variances: NDArray[np.float64], losses: NDArray[np.float64], count: int) -> NDArray[np.uint8]:
    """uint8 (components,): bits of each, 0 among them, of `count` bytes."""
    bits = order_bits(variances, losses)[: _BYTE * count]
    return np.bincount(bits, minlength=len(variances)).astype(np.uint8)


def share_bytes(
    variances: Sequence[NDArray[np.float64]], losses: NDArray[np.float64], total: float, costs: Sequence[float]
) -> list[int]:
    """Bytes of each stream, `total` in all, counted by cost: where a byte spares most for its cost, one at least."""
    weights = np.asarray(costs, np.float64) / np.mean(costs)
    entries = []
    for stream, (own, weight) in enumerate(zip(variances, weights, strict=True)):
        spared = np.sort((own[:, None] * (losses[:-1] - losses[1:])).reshape(-1))[::-1]
        by_byte = np.add.reduceat(spared, np.arange(0, len(spared), _BYTE))[:MAX_CODE_BYTES]
        entries += [(float(worth) / weight, stream, n) for n, worth in enumerate(by_byte) if n >= LEAST_CODE_BYTES]
    counts = [LEAST_CODE_BYTES] * len(variances)
    left = total - LEAST_CODE_BYTES * float(weights.sum())
    for _, stream, n in sorted(entries, key=lambda entry: (-entry[0], entry[1], entry[2])):
        if n == counts[stream] and weights[stream] <= left + 1e-9:
            counts[stream] += 1
            left -= weights[stream]
    return counts
