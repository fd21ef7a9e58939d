"""Vectors of which another stream's codes tell a part: that part, and gains of what is coded with it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit
from kvcodec.kernels.product import sum_components


@jit
def predict_rows(
    codes: NDArray[np.uint8], basis: NDArray[np.int16], books: NDArray[np.int8], ends: NDArray[np.int64],
    numbers: NDArray[np.int16], sums: NDArray[np.int32],
) -> None:  # fmt: skip
    """sums (n, d padded to CHANNELS): of codes (n, groups), each as sum_components has it."""
    for n in range(codes.shape[0]):
        sum_components(codes, n, basis, books, ends, numbers, sums[n])


@jit
def fit_gains(
    y: NDArray[np.float32],
    told: NDArray[np.float32],
    along: NDArray[np.float32],
    mean: NDArray[np.float32],
    mean_square: Any,
    books: NDArray[np.float32],
    ends: NDArray[np.int64],
    codes: NDArray[np.uint8],
    sizes: NDArray[np.float32],
    lengths: NDArray[np.float32],
    gains: NDArray[np.float32],
) -> None:
    """gains (n,): by which mean, prediction and coded part together miss the least of vectors, in the metric.

    y (n, components): of x / length - prediction - mean, in the basis; told (n, components): of the predictions; along
    (n,): of x / length, along the mean. Of a prediction what the basis has not counts neither here nor there. mean
    (components,), mean_square: of the mean. books: float32 (components, 256). sizes (n,): what the shapes come to.
    """
    for n in range(y.shape[0]):
        product, square, lean = np.float32(0), np.float32(0), np.float32(0)
        over, under = along[n], np.float32(mean_square)
        begin = np.int64(0)
        for g in range(ends.shape[0]):
            k = codes[n, g]
            for i in range(begin, ends[g]):
                known, number = np.float32(mean[i] + told[n, i]), books[i, k]
                product = np.float32(product + np.float32(number * y[n, i]))
                square = np.float32(square + np.float32(number * number))
                lean = np.float32(lean + np.float32(number * known))
                over = np.float32(over + np.float32(told[n, i] * np.float32(y[n, i] + known)))
                under = np.float32(under + np.float32(told[n, i] * np.float32(mean[i] + known)))
            begin = np.int64(ends[g])
        size = sizes[n]
        over = np.float32(over + np.float32(size * np.float32(product + lean)))
        under = np.float32(under + np.float32(size * np.float32(np.float32(size * square) + np.float32(2) * lean)))
        gains[n] = np.float32(np.float32(lengths[n] * over) / max(under, np.float32(1e-30)))
