"""Sparse codes by SPAMS and scikit-learn, float64 on one thread, each checked before it is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.bench.peers import Peers
from kvcodec.bench.row import Contender, Entry, WrongResult

_FEW = 32  # vectors that are coded exactly
_SLOW = 1 << 16  # atoms times vectors of a run of scikit-learn
_PLANTED = 12


@dataclass(frozen=True)
class Problem:
    """Unit atoms float32 (N, dim), vectors float32 (n, dim), s atoms for each of them."""

    atoms: NDArray[np.float32]
    vectors: NDArray[np.float32]
    s: int

    @cached_property
    def errors(self) -> NDArray[np.float64]:
        """Length of the residual of the first vectors by orthogonal matching pursuit: float64, a refit by lstsq."""
        wide = self.atoms.astype(np.float64)
        found = []
        for x in self.vectors[:_FEW].astype(np.float64):
            taken: list[int] = []
            residual = x
            for _ in range(self.s):
                dots = np.abs(wide @ residual)
                dots[taken] = 0
                taken.append(int(np.argmax(dots)))
                residual = x - wide[taken].T @ np.linalg.lstsq(wide[taken].T, x, rcond=None)[0]
            found.append(np.linalg.norm(residual))
        return np.array(found)

    def check(self, name: str, decoded: NDArray[Any], atoms: NDArray[Any], tolerance: float) -> None:
        """Raise WrongResult unless a code has s atoms and decodes as well as the pursuit in float64, on the whole.

        decoded: (some, dim), of the first vectors; atoms: how many each has. tolerance: relative.
        """
        if not (atoms == self.s).all():
            raise WrongResult(f"{name}: a code has {int(atoms.min())} atoms, want {self.s}")
        few = min(len(decoded), _FEW)
        error = float(np.linalg.norm(self.vectors[:few] - decoded[:few].astype(np.float64), axis=1).sum())
        off = error / float(self.errors[:few].sum()) - 1
        if not abs(off) <= tolerance:
            raise WrongResult(f"{name}: the error is off by {off:.2g} of what it should be, want {tolerance:.2g}")


def make_problem(atoms: int, dim: int, vectors: int, s: int) -> Problem:
    """Random atoms; vectors that are a few of them and noise."""
    rng = np.random.default_rng(atoms)
    wide = rng.standard_normal((atoms, dim))
    rows = (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)
    x = 0.1 * rng.standard_normal((vectors, dim))
    for i in range(vectors):
        x[i] += rng.standard_normal(_PLANTED) @ rows[rng.integers(0, atoms, _PLANTED)]
    return Problem(rows, x.astype(np.float32), s)


def enter_pursuits(peers: Peers, problem: Problem) -> Sequence[Entry]:
    """SPAMS and scikit-learn; the unit is a vector."""
    return [
        peers.enter("spams", "SPAMS omp f64", lambda library: _by_spams(library, "SPAMS omp f64", problem)),
        peers.enter("sklearn", "scikit-learn f64", lambda library: _by_sklearn(library, "scikit-learn f64", problem)),
    ]


def _by_spams(spams: Any, name: str, problem: Problem) -> Contender:
    """Order-recursive: it picks the atom that leaves the least, so its error is a little below plain OMP's."""
    vectors, atoms = (np.asfortranarray(a.T.astype(np.float64)) for a in (problem.vectors, problem.atoms))

    found: list[Any] = [None]

    def run() -> None:
        found[0] = spams.omp(vectors, atoms, L=problem.s, eps=0.0, numThreads=1)

    def check() -> None:
        codes = found[0]
        problem.check(name, (atoms @ codes[:, :_FEW].toarray()).T, np.diff(codes.indptr), 0.02)

    return Contender(name, run, len(problem.vectors), check=check)


def _by_sklearn(linear_model: Any, name: str, problem: Problem) -> Contender:
    """Fewer vectors, and a Gram matrix that it need not make: it would take most of the time of so few."""
    few = max(min(len(problem.vectors), _SLOW // len(problem.atoms)), 1)
    vectors, atoms = problem.vectors[:few].astype(np.float64), problem.atoms.astype(np.float64)
    gram = atoms @ atoms.T
    found: list[Any] = [None]

    def run() -> None:
        found[0] = linear_model.orthogonal_mp_gram(gram, atoms @ vectors.T, n_nonzero_coefs=problem.s)

    def check() -> None:
        codes = found[0].reshape(-1, few)
        problem.check(name, codes.T @ atoms, (codes != 0).sum(axis=0), 1e-4)

    return Contender(name, run, few, check=check)
