"""Atoms that a dictionary lacks: a sample of vectors that it codes badly, and atoms learnt from what it leaves of them.

The old atoms stay as they are: codes over them keep their meaning. New ones begin as the residuals of the worst
vectors. Each round codes all vectors over old and new atoms (pursuit in the loop), and moves the new ones to where they
fit best what the old ones leave (learning.py). They are kept if a half of the sample that did not teach them is coded
better by `GAIN`, with atoms that are rounded to int8: the newer half, since the new atoms are for what comes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.dictionary import Dictionary
from kvcodec.codecs.pursuit import pursue
from kvcodec.codecs.sparse import SparseRows
from kvcodec.dictionary.coder import Coder, Sparse
from kvcodec.dictionary.learning import ALIKE, Moments, choose_new, descend
from kvcodec.dictionary.space import Space
from kvcodec.spec import CodecSpec

GAIN = 0.04  # of the error of held-out vectors: what new atoms must save, as one more atom a vector does about
ROUNDS = 6
_LEAST = 2  # vectors that take an atom, or it is replaced
_CANDIDATES = 4  # for each atom that is missing


class Sample:
    """At most `capacity` of the vectors that a dictionary codes badly, each as likely to be among them as any other.

    Algorithm R (Vitter 1985) with a lot of its own: the same for the same vectors in the same order. A vector is coded
    badly if its relative error is above `bound`, or where that is None above the mean of all that came before it and
    with it.
    """

    def __init__(self, capacity: int, dim: int, seed: tuple[int, ...], bound: float | None) -> None:
        self.rows = np.empty((capacity, dim), np.float32)
        self.bad = self.seen = 0
        self._errors, self._bound = 0.0, bound
        self._lot = np.random.default_rng(list(seed))

    @property
    def count(self) -> int:
        """Vectors that it holds."""
        return min(self.bad, len(self.rows))

    def add(self, rows: NDArray[np.float32], errors: NDArray[np.float64]) -> None:
        """Take what is coded badly of vectors (n, d) with relative errors (n,)."""
        self.seen += len(rows)
        self._errors += float(errors.sum())
        bound = self._errors / max(self.seen, 1) if self._bound is None else self._bound
        for row in rows[errors > bound]:
            self.bad += 1
            place = self.bad - 1
            if place >= len(self.rows):
                place = int(self._lot.integers(self.bad))
            if place < len(self.rows):
                self.rows[place] = row

    def clear(self) -> None:
        """Begin anew; the mean of errors stays."""
        self.bad = 0


def relative_errors(rows: NDArray[np.float32], dictionary: Dictionary, sparsity: int) -> NDArray[np.float64]:
    """float64 (n,): of vectors (n, d) coded over a dictionary with `sparsity` atoms, in its metric; 0 of a zero one."""
    coder = SparseRows(CodecSpec.parse(f"dict/s{sparsity}"), dictionary)
    back = coder.rebuild(pursue(rows, dictionary, coder.codes))
    left, whole = (dictionary.energies(x).astype(np.float64) for x in (rows - back, rows))
    errors: NDArray[np.float64] = np.sqrt(np.divide(left, whole, out=np.zeros_like(left), where=whole > 0))
    return errors


class Learnt(NamedTuple):
    """New atoms: int8 (n, d). before, after: relative error of held-out vectors without and with such atoms."""

    atoms: NDArray[np.int8]
    before: float
    after: float


def learn_atoms(dictionary: Dictionary, rows: NDArray[np.float32], count: int, sparsity: int) -> Learnt | None:
    """At most `count` atoms to go behind those of a dictionary, learnt from vectors (n, d) with `sparsity` atoms each.

    None if those that the first half of the vectors teaches save the other half less than `GAIN` of its error; else all
    vectors teach.
    """
    space = Space(dictionary.mean if dictionary.has_mean else None, dictionary.metric)
    old, length = _unit_atoms(dictionary)
    half, held = len(rows) // 2, np.ascontiguousarray(rows[len(rows) // 2 :])
    inside = space.enter(np.ascontiguousarray(rows))
    atoms = _learn(old, inside[:half], count, sparsity)
    if not len(atoms):
        return None
    both = _unit_atoms(dictionary.grown(_round_atoms(space.leave(atoms), length)))[0]
    before, after = (_error(Coder(own, sparsity), space, held) for own in (old, both))
    if after > before * (1 - GAIN):
        return None
    return Learnt(_round_atoms(space.leave(_learn(old, inside, count, sparsity)), length), before, after)


def _learn(old: NDArray[np.float32], rows: NDArray[np.float32], count: int, sparsity: int) -> NDArray[np.float32]:
    """Unit atoms (n, d), n at most `count`, beside old ones; for vectors in the space of both."""
    atoms = np.concatenate([old, np.zeros((count, old.shape[1]), np.float32)])
    useless, fresh = np.arange(len(old), len(atoms)), slice(len(old), None)
    coder = Coder(old, sparsity)
    codes = coder.code(rows)
    for _ in range(ROUNDS):
        if len(useless):
            worst = np.argsort(-codes.residuals[:, -1], kind="stable")[: _CANDIDATES * count]
            choose_new(atoms, useless, rows[worst] - coder.rebuild(codes, worst))
            coder = Coder(atoms, sparsity)
            codes = coder.code(rows)
        moments = _moments_of_new(rows, codes, atoms, len(old))
        useless = len(old) + _find_useless(coder.gram[fresh], moments.uses, len(old))
        atoms = np.concatenate([old, descend(atoms[fresh], moments)])
        atoms[useless] = 0
        coder = Coder(atoms, sparsity)
        codes = coder.code(rows)
    return np.delete(atoms, useless, axis=0)[fresh]


def _moments_of_new(rows: NDArray[np.float32], codes: Sparse, atoms: NDArray[np.float32], old: int) -> Moments:
    """Moments of the codes over the atoms from number `old` on, of what the atoms before them leave of the vectors."""
    is_new = codes.indices >= old
    left = rows.copy()
    for place in range(codes.indices.shape[1]):
        weights = np.where(is_new[:, place], 0, codes.coefficients[:, place])
        left -= weights[:, None] * atoms[codes.indices[:, place]]
    own = Sparse(
        np.where(is_new, codes.indices - old, 0), np.where(is_new, codes.coefficients, 0).astype(np.float32),
        codes.residuals,
    )  # fmt: skip
    moments = Moments(len(atoms) - old, rows.shape[1])
    moments.add(left, own)
    return moments


def _find_useless(gram: NDArray[np.float32], uses: NDArray[np.int64], old: int) -> NDArray[np.int64]:
    """Which new atoms hardly a vector took, or are like an atom before them. gram: of the new atoms, with all."""
    twins = [bool((np.abs(row[: old + n]) > ALIKE).any()) for n, row in enumerate(gram)]
    return np.flatnonzero((uses < _LEAST) | np.array(twins, bool))


def _unit_atoms(dictionary: Dictionary) -> tuple[NDArray[np.float32], float]:
    """A dictionary's atoms in its space, of unit length; and the length in int8 that is usual among them."""
    wide = dictionary.atoms.astype(np.float32)
    atoms = Space(None, dictionary.metric).enter(wide)
    lengths = np.sqrt(np.einsum("nd,nd->n", atoms, atoms))
    usual = float(np.median(np.sqrt(np.einsum("nd,nd->n", wide, wide))))
    return np.ascontiguousarray(atoms / np.where(lengths > 0, lengths, 1).astype(np.float32)[:, None]), max(usual, 1)


def _round_atoms(atoms: NDArray[np.float32], length: float) -> NDArray[np.int8]:
    """int8 of atoms (n, d) that are made so long, as far as 127 lets them: coefficients are as large as of others."""
    lengths, most = np.sqrt(np.einsum("nd,nd->n", atoms, atoms)), np.abs(atoms).max(axis=1)
    scales = np.minimum(length / lengths, 127 / most)
    rounded: NDArray[np.int8] = np.rint(atoms * scales[:, None]).astype(np.int8)
    return rounded


def _error(coder: Coder, space: Space, rows: NDArray[np.float32]) -> float:
    energy = space.energy(rows)
    left = coder.code(space.enter(rows)).residuals[:, -1].sum(dtype=np.float64)
    return math.sqrt(left / energy) if energy else 0.0
