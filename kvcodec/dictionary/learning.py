"""Online dictionary learning (Mairal, Bach, Ponce, Sapiro 2010): atoms from the moments of their codes.

With codes Γ of vectors X, A = Σ ΓᵀΓ and B = ΣΓᵀX hold all that the atoms D that fit X best depend on: AD = B. Moments
of older mini-batches, whose codes belong to older atoms, fade. D follows by block coordinate descent, atom by atom,
which is exact within each atom and needs A to have no rank. Every product is that of kernels/projection.py, so that
what is learnt hangs neither on a BLAS nor on its threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvcodec.dictionary.coder import Coder, Sparse
from kvcodec.kernels._projection_tiles import COLUMNS
from kvcodec.kernels.projection import project

ALIKE = 0.99  # two atoms whose product is over this are one
_TOGETHER = 32  # atoms whose products with all others are made at once
_CHUNK = 1024  # vectors whose pairs of coefficients are held at once
_TINY = 1e-12


class Moments:
    """A: float32 (N, N). B: float32 (N, d). uses: int64 (N,), vectors of this epoch that took each atom."""

    def __init__(self, atoms: int, dim: int) -> None:
        self.a = np.zeros((atoms, atoms), np.float32)
        self.b = np.zeros((atoms, dim), np.float32)
        self.uses = np.zeros(atoms, np.int64)

    def fade(self, factor: float) -> None:
        """Let what there is count for less."""
        self.a *= np.float32(factor)
        self.b *= np.float32(factor)

    def add(self, vectors: NDArray[np.float32], codes: Sparse) -> None:
        """Add those of vectors (n, d) with these codes."""
        flat, size = self.a.reshape(-1), len(self.a)
        for start in range(0, len(vectors), _CHUNK):
            own, held = codes.indices[start : start + _CHUNK], codes.coefficients[start : start + _CHUNK]
            np.add.at(
                flat,
                (own[:, :, None] * size + own[:, None]).reshape(-1),
                (held[:, :, None] * held[:, None]).reshape(-1),
            )
            self._add_products(vectors[start : start + _CHUNK], own, held)
        self.uses += np.bincount(codes.indices[codes.coefficients != 0], minlength=size)

    def _add_products(self, rows: NDArray[np.float32], own: NDArray[np.int64], held: NDArray[np.float32]) -> None:
        order = np.argsort(own, axis=None, kind="stable")
        atoms = own.reshape(-1)[order]
        starts = np.flatnonzero(np.diff(atoms, prepend=-1))
        products = held.reshape(-1)[order, None] * rows[order // own.shape[1]]
        self.b[atoms[starts]] += np.add.reduceat(products, starts, axis=0)

    def forget(self, atoms: NDArray[np.int64]) -> None:
        """Atoms that are new: nothing is known of them."""
        self.a[atoms], self.a[:, atoms], self.b[atoms] = 0, 0, 0

    def rescale(self, lengths: NDArray[np.float32]) -> None:
        """Atoms were divided by their lengths, and their coefficients multiplied with them."""
        self.a *= lengths[:, None]
        self.a *= lengths
        self.b *= lengths[:, None]


def descend(atoms: NDArray[np.float32], moments: Moments) -> NDArray[np.float32]:
    """One pass over all atoms: unit atoms (N, d), the moments rescaled to them. Atoms without uses stay."""
    size, dim = atoms.shape
    columns = -(-dim // COLUMNS)
    tiles = np.zeros((columns, size, COLUMNS), np.float32)  # the atoms' channels, as `project` takes atoms
    wide = np.zeros((size, columns * COLUMNS), np.float32)
    wide[:, :dim] = atoms
    tiles[...] = wide.reshape(size, columns, COLUMNS).transpose(1, 0, 2)
    told = np.empty((_TOGETHER, wide.shape[1]), np.float32)
    for start in range(0, size, _TOGETHER):
        part = slice(start, min(start + _TOGETHER, size))
        project(moments.a[part], tiles, told[: part.stop - start])
        wide[part, :dim] += _improve(moments.b[part] - told[: part.stop - start, :dim], moments.a[part, part])
        tiles[:, part] = wide[part].reshape(-1, columns, COLUMNS).transpose(1, 0, 2)
    moved = wide[:, :dim]
    lengths = np.sqrt(np.einsum("nd,nd->n", moved, moved))
    lengths = np.where(lengths > _TINY, lengths, 1).astype(np.float32)
    moments.rescale(lengths)
    return np.ascontiguousarray(moved / lengths[:, None])


def _improve(missing: NDArray[np.float32], a: NDArray[np.float32]) -> NDArray[np.float32]:
    """What some atoms (m, d) are to be moved by, each after those before it. missing: (m, d), B - AD before."""
    moves = np.zeros_like(missing)
    for n in range(len(missing)):
        if a[n, n] > _TINY:
            moves[n] = missing[n] / a[n, n]
            missing[n + 1 :] -= a[n + 1 :, n, None] * moves[n]
    return moves


def find_useless(coder: Coder, uses: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """Atoms that fewer than `least` vectors took, and of two that are alike the one with fewer uses."""
    useless = uses < least
    first, second = np.nonzero(np.triu(np.abs(coder.gram) > ALIKE, 1))
    for one, other in zip(first, second, strict=True):
        if not (useless[one] or useless[other]):
            useless[one if uses[one] < uses[other] else other] = True
    return np.flatnonzero(useless)


def choose_new(
    atoms: NDArray[np.float32], useless: NDArray[np.int64], candidates: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Put candidates (m, d), best first, in the place of useless atoms (changed in place): each of them that is like
    none that is kept. Returns the atoms that are new; candidates may be too few.
    """
    keep = np.ones(len(atoms), bool)
    keep[useless] = False
    new: list[int] = []
    for candidate in candidates:
        if len(new) == len(useless):
            break
        length = float(np.sqrt((candidate * candidate).sum(dtype=np.float64)))
        if length <= _TINY:
            continue
        unit = (candidate / np.float32(length)).astype(np.float32)
        if np.abs(np.einsum("nd,d->n", atoms, unit))[keep].max(initial=0) <= ALIKE:
            place = int(useless[len(new)])
            atoms[place], keep[place] = unit, True
            new.append(place)
    return np.array(new, np.int64)
