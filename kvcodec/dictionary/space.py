"""The space in which atoms are learnt: without the mean, and such that plain lengths are those of the metric."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import SpecError
from kvcodec.kernels.projection import project, tile_atoms


class Space:
    """y = (x - mean) L with L Lᵀ = metric, so that |y|² is the square of x - mean in the metric.

    mean: float32 (d,) or None. metric: float32 (d, d), symmetric, or None. Raises SpecError unless it is positive
    definite.
    """

    def __init__(self, mean: NDArray[np.float32] | None, metric: NDArray[np.float32] | None) -> None:
        self.mean, self.metric = mean, metric
        if metric is not None:
            try:
                self._factor = np.linalg.cholesky(metric.astype(np.float64))
            except np.linalg.LinAlgError:
                raise SpecError("the metric is not positive definite: give it more ridge") from None
            self._tiles = tile_atoms(self._factor.T.astype(np.float32))

    def enter(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 (n, d) of vectors (n, d)."""
        rows = rows if self.mean is None else rows - self.mean
        return rows if self.metric is None else self._measure(rows)

    def leave(self, atoms: NDArray[np.float32]) -> NDArray[np.float32]:
        """Atoms (N, d) of this space as what is added to a vector."""
        if self.metric is None:
            return atoms
        return np.ascontiguousarray(np.linalg.solve(self._factor.T, atoms.T.astype(np.float64)).T, np.float32)

    def energy(self, rows: NDArray[np.float32]) -> float:
        """Sum of squares, in the metric, of vectors with their mean."""
        wide = (rows if self.metric is None else self._measure(rows)).astype(np.float64)
        return float((wide * wide).sum())

    def _measure(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.empty((len(rows), self._tiles.shape[0] * self._tiles.shape[2]), np.float32)
        project(np.ascontiguousarray(rows), self._tiles, out)
        return np.ascontiguousarray(out[:, : rows.shape[1]])
