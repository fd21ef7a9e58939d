"""Codes of vectors over atoms that are still learnt: float, without rounding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels.projection import project, tile_atoms
from kvcodec.kernels.pursuit import memory_floats, omp

_BLOCK = 256  # vectors whose products with all atoms are held at once
_NEVER = np.float32(-1)  # a bound that no residual meets


class Sparse(NamedTuple):
    """indices: int64 (n, s). coefficients: float32 (n, s), 0 where no atom was taken. residuals: float32 (n, s),
    energy that is left after each atom.
    """

    indices: NDArray[np.int64]
    coefficients: NDArray[np.float32]
    residuals: NDArray[np.float32]


class Coder:
    """Orthogonal matching pursuit over atoms (N, d) of unit length, s of them a vector. gram: float32 (N, N)."""

    def __init__(self, atoms: NDArray[np.float32], sparsity: int) -> None:
        self.atoms, self._sparsity = atoms, sparsity
        self._tiles = tile_atoms(atoms)
        width = self._tiles.shape[0] * self._tiles.shape[2]
        self._gram = np.zeros((width, width), np.float32)
        project(np.ascontiguousarray(atoms), self._tiles, self._gram[: len(atoms)])
        np.fill_diagonal(self._gram, 1)
        self._memory = np.empty(memory_floats(width, sparsity), np.float32)
        self._products = np.empty((_BLOCK, width), np.float32)

    @property
    def gram(self) -> NDArray[np.float32]:
        return self._gram[: len(self.atoms), : len(self.atoms)]

    def code(self, vectors: NDArray[np.float32]) -> Sparse:
        """Codes of finite vectors (n, d), contiguous."""
        n, s = len(vectors), self._sparsity
        indices, counts = np.zeros((n, s), np.uint16), np.zeros(n, np.int64)
        coefficients, residuals = np.zeros((n, s), np.float32), np.zeros((n, s), np.float32)
        energies = np.einsum("nd,nd->n", vectors, vectors)
        bounds = np.full(n, _NEVER)
        for start in range(0, n, _BLOCK):
            part = slice(start, min(start + _BLOCK, n))
            products = self._products[: part.stop - start]
            project(vectors[part], self._tiles, products)
            omp(
                products, self._gram, energies[part], bounds[part], indices[part], coefficients[part], counts[part],
                residuals[part], self._memory,
            )  # fmt: skip
        return Sparse(indices.astype(np.int64), coefficients, residuals)

    def rebuild(self, codes: Sparse, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Of the vectors with these numbers, what their codes say: float32 (rows, d)."""
        out = np.zeros((len(rows), self.atoms.shape[1]), np.float32)
        for place in range(codes.indices.shape[1]):
            out += codes.coefficients[rows, place, None] * self.atoms[codes.indices[rows, place]]
        return out
