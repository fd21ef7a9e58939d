"""Rows of sparse coding: from atoms and vectors to codes, with the Gram matrix and all products on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvcodec.bench.peers import Peers
from kvcodec.bench.pursuit_peers import Problem, enter_pursuits, make_problem
from kvcodec.bench.row import OURS, Contender, Entry, Row
from kvcodec.bench.scale import HEAD_DIM, Scale
from kvcodec.codecs.dictionary import Dictionary, quantize_atoms
from kvcodec.kernels.integer_codes import fix_rows
from kvcodec.kernels.integer_pursuit import choose_fraction, make_reciprocals, mp_integers, vector_bits
from kvcodec.kernels.projection import project, tile_atoms
from kvcodec.kernels.pursuit import memory_floats, omp, ormp
from kvcodec.layout import StreamId

_AT_ONCE = 256  # vectors whose projections stay in a cache
_OMP, _ORMP = "orthogonal matching pursuit", "the order-recursive one"
_MP_WORSE = 0.1  # than OMP
_KERNELS: dict[str, tuple[Callable[..., None], float]] = {_OMP: (omp, 1e-4), _ORMP: (ormp, 0.02)}


def pursuit_rows(scale: Scale) -> list[Row]:
    """Two sizes of dictionaries, three of codes, and one with the pursuit that SPAMS has."""
    n = scale.cached_tokens
    rows = [_row("omp", _OMP, atoms, s, n) for atoms in (1024, 4096) for s in (8, 16, 24)]
    return [*rows, _row("ormp", _ORMP, 1024, 8, n), _integer_row(1024, 8, n)]


def _row(name: str, what: str, atoms: int, s: int, n: int) -> Row:
    shape = f"{n} vectors x {HEAD_DIM}, {s} of {atoms} atoms"

    def prepare(peers: Peers, _: Any) -> Sequence[Entry]:
        problem = make_problem(atoms, HEAD_DIM, n, s)
        return [enter_ours(problem, *_KERNELS[what]), *enter_pursuits(peers, problem)]

    return Row(f"{name}-{atoms}-s{s}", what, shape, "vector", prepare, slow=atoms > 1024)


def _integer_row(atoms: int, s: int, n: int) -> Row:
    shape = f"{n} vectors x {HEAD_DIM}, {s} of {atoms} atoms"

    def prepare(_peers: Peers, _: Any) -> Sequence[Entry]:
        problem = make_problem(atoms, HEAD_DIM, n, s)
        return [enter_integers(problem), enter_ours(problem, *_KERNELS[_OMP], "kvcodec omp")]

    return Row(f"mp-{atoms}-s{s}", "matching pursuit with integers alone", shape, "vector", prepare)


def enter_ours(problem: Problem, kernel: Callable[..., None], tolerance: float, name: str = OURS) -> Entry:
    """One of the kernels. tolerance: of its error, relative, against plain OMP in float64."""
    n, atoms, s = len(problem.vectors), problem.atoms, problem.s
    indices, coefficients = np.zeros((n, s), np.uint16), np.zeros((n, s), np.float32)
    counts, residuals = np.zeros(n, np.int64), np.zeros((n, s), np.float32)
    memory, products = np.zeros(memory_floats(len(atoms), s), np.float32), np.empty((_AT_ONCE, len(atoms)), np.float32)
    never, gram = np.full(n, -1, np.float32), np.empty((len(atoms), len(atoms)), np.float32)

    def run() -> None:
        tiles = tile_atoms(atoms)
        project(atoms, tiles, gram)
        for start in range(0, n, _AT_ONCE):
            now = slice(start, start + _AT_ONCE)
            x = problem.vectors[now]
            projections, energies = products[: len(x)], np.einsum("id,id->i", x, x)
            project(x, tiles, projections)
            kernel(
                projections, gram, energies, never[now], indices[now], coefficients[now], counts[now], residuals[now],
                memory,
            )  # fmt: skip

    def check() -> None:
        problem.check(name, np.einsum("is,isd->id", coefficients, atoms[indices]), counts, tolerance)

    return Contender(name, run, n, check=check)


def enter_integers(problem: Problem) -> Entry:
    """Matching pursuit over int8 atoms, from float rows to coefficients before they are rounded to a few bits."""
    n, s, dim = len(problem.vectors), problem.s, problem.vectors.shape[1]
    atoms = quantize_atoms(problem.atoms)
    vectors, exponents = np.empty((n, dim), np.int16), np.empty(n, np.int32)
    indices, coefficients = np.zeros((n, s), np.uint16), np.zeros((n, s), np.int32)
    counts, memory, never = np.zeros(n, np.int64), np.empty(len(atoms), np.int32), np.full(n, -1)
    own = Dictionary(atoms, ((0, StreamId.K),))
    fraction, bits = choose_fraction(own.products, dim), vector_bits(dim)

    def run() -> None:
        gram = Dictionary(atoms, own.uses).products
        fix_rows(problem.vectors.view(np.uint32), own.mean.view(np.uint32), bits, vectors, exponents)
        left = np.einsum("id,id->i", vectors, vectors, dtype=np.int64) << 2 * fraction
        mp_integers(
            vectors, atoms, gram, make_reciprocals(gram), fraction, never, indices, coefficients, counts, left, memory
        )

    def check() -> None:
        wide = np.ldexp(coefficients.astype(np.float64), exponents[:, None] - fraction)
        problem.check(OURS, np.einsum("is,isd->id", wide, atoms[indices].astype(np.float64)), counts, _MP_WORSE)

    return Contender(OURS, run, n, check=check)
