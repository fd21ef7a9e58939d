"""What a stream's vectors are like: the basis in which their components are apart, and how much is in each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.dictionary.vectors import Vectors, read_blocks, spread_blocks
from kvcodec.errors import SpecError

_ROUNDS = 3  # of weighing vectors by their size
_SIZED = 160  # components, at most, that a vector's size is told from
_LEAST = 1e-14


class Spectrum(NamedTuple):
    """Of vectors x / |x| - mean, in a metric M: y = (x / |x| - mean) analysis, whose components are uncorrelated, and
    x / |x| = y synthesisᵀ + mean; |y|² is the square in M.

    mean (d,); analysis, synthesis (d, d); variances (d,), descending, of vectors that were made equally large; energy:
    mean square of the sizes they had.
    """

    mean: NDArray[np.float64]
    metric: NDArray[np.float64]
    analysis: NDArray[np.float64]
    synthesis: NDArray[np.float64]
    variances: NDArray[np.float64]
    energy: float


def take_sample(vectors: Vectors, most: int) -> NDArray[np.float32]:
    """Of about `most` vectors at most those that are not zero, in blocks that are spread evenly over all. SpecError."""
    rows: NDArray[np.float32] = read_blocks(vectors, spread_blocks(vectors, most))
    rows = rows[np.abs(rows).max(axis=1, initial=0) > 0]
    if not len(rows):
        raise SpecError("no vectors but zeros to train on")
    return rows


def find_spectrum(
    sample: NDArray[np.float32], metric: NDArray[np.float32] | None, told: NDArray[np.float32] | None = None
) -> Spectrum:
    """The spectrum of vectors (n, d) in a metric (d, d), or the plain one. Raises SpecError for a metric that is none.

    told: (n, d), what is known of x / |x| beforehand; the spectrum is that of the rest.

    Some vectors are many times as large as most, once the mean is gone (tokens in mid-text that act as sinks): each is
    weighed by its size, which is told from its greatest components, so that these few do not make the basis.
    """
    dim = sample.shape[1]
    units = normalize(sample) if told is None else normalize(sample) - told
    mean = units.mean(axis=0)
    own = np.eye(dim) if metric is None else metric.astype(np.float64)
    powers, vectors = np.linalg.eigh(own)
    if powers.min() <= 0:
        raise SpecError("the metric is not positive definite: give it more ridge")
    root, inverse = (vectors * np.sqrt(powers)) @ vectors.T, (vectors / np.sqrt(powers)) @ vectors.T
    z = (units - mean) @ root
    moments, energy = z.T @ z / len(z), 1.0
    for _ in range(_ROUNDS):
        variances, turn = np.linalg.eigh(moments)
        y = (z @ turn[:, -_SIZED:]) / np.sqrt(np.maximum(variances[-_SIZED:], _LEAST))
        squares = np.maximum((y * y).mean(axis=1), _LEAST)
        moments, energy = (z / squares[:, None]).T @ z / len(z), float(squares.mean())
    variances, turn = np.linalg.eigh(moments)
    turn = turn[:, ::-1]
    return Spectrum(mean, own, root @ turn, inverse @ turn, np.maximum(variances[::-1], _LEAST), energy)


def normalize(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Vectors (n, d), none of them zero, of length 1."""
    wide = rows.astype(np.float64)
    return np.asarray(wide / np.linalg.norm(wide, axis=1, keepdims=True))
