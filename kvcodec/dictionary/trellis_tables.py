"""Tables of trellis codes: entries for windows of a path's bits, trained on normal numbers.

Entries begin as quantiles, such that a state's branches lie evenly apart, each state's at an offset of its own and in
an order of its own; then each moves to the mean of the numbers that are coded by it.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels import trellis as kernels

WINDOW = 10
MOST_RATE = 7
_WIDEN = 0.06  # the more bits, the farther out entries begin
_ROUNDS, _VECTORS, _LENGTH = 8, 600, 128
_SEED = 0


class NormalTables(NamedTuple):
    """float64 tables (MOST_RATE, 2**WINDOW), that of k bits at k - 1, for numbers of variance 1; distortions
    (MOST_RATE + 1,): mean squared errors of such numbers coded by 0, 1, … bits each.
    """

    tables: NDArray[np.float64]
    distortions: NDArray[np.float64]


@cache
def normal_tables() -> NormalTables:
    """The same ones whenever they are asked for."""
    found = [_train(rate) for rate in range(1, MOST_RATE + 1)]
    return NormalTables(np.stack([own for own, _ in found]), np.array([1.0, *(error for _, error in found)]))


def _train(rate: int) -> tuple[NDArray[np.float64], float]:
    lot = np.random.default_rng([_SEED, rate])
    table, error = _begin(rate, lot), 1.0
    for _ in range(_ROUNDS):
        numbers = lot.standard_normal((_VECTORS, _LENGTH)).astype(np.float32)
        states = walk(numbers, rate, table)
        error = float(np.square(numbers - table[states]).mean())
        counts = np.bincount(states.ravel(), minlength=len(table))
        sums = np.bincount(states.ravel(), numbers.ravel(), len(table))
        table = np.where(counts > 2, sums / np.maximum(counts, 1), table)
    return table, error


def _begin(rate: int, lot: np.random.Generator) -> NDArray[np.float64]:
    others = WINDOW - rate
    before, own = np.divmod(np.arange(1 << WINDOW), 1 << rate)
    offsets, orders = lot.permutation(1 << others), lot.integers(0, 1 << rate, 1 << others)
    ranks = ((own ^ orders[before]) << others) + offsets[before]
    normal = NormalDist(sigma=1 + _WIDEN * (rate - 1))
    quantiles = np.array([normal.inv_cdf((n + 0.5) / (1 << WINDOW)) for n in range(1 << WINDOW)])
    return np.asarray(quantiles[ranks])


def walk(numbers: NDArray[np.float32], rate: int, table: NDArray[np.float64]) -> NDArray[np.int64]:
    """int64 (n, length): entries that stand for numbers (n, length) on the best paths."""
    length, states = numbers.shape[1], len(table)
    found = np.empty(numbers.shape, np.int64)
    kernels.walk_trellis(
        numbers, np.full(length, rate, np.int64), np.zeros(length, np.int64), table[None].astype(np.float32),
        np.ones(length, np.float32), np.int64(states.bit_length() - 1), np.empty((1, -(-length * rate // 8)), np.uint8),
        np.empty((2, states), np.float32), np.empty((length, states // 2), np.uint8), found,
    )  # fmt: skip
    return found
