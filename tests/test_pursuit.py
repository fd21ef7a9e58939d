"""Pursuits: their twins bit for bit, least squares, what they do at the edges, other libraries, machine code."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.bench.peers import Peers, find_peers
from kvcodec.bench.pursuit_peers import enter_pursuits, make_problem
from kvcodec.bench.pursuit_rows import enter_integers, enter_ours, pursuit_rows
from kvcodec.bench.row import Absent, Contender, WrongResult
from kvcodec.bench.scale import QUICK
from kvcodec.kernels.integer_pursuit import choose_fraction, make_reciprocals, mp_integers
from kvcodec.kernels.pursuit import memory_floats, omp, ormp, top_dots
from tests import pursuit_twin as twin
from tests.test_simd import FLOATS, words_of

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
ROOT = Path(__file__).parent.parent
KERNELS = {"omp": omp, "ormp": ormp}
PURSUITS = pytest.mark.parametrize("name", list(KERNELS))
STYLES = ["normal", "twins", "dependent", "nearly", "dead", "sparse", "zero", "ties", "tiny", "small", "huge", "one"]
quick = settings(max_examples=12 if INTERPRETED else 80, deadline=None)


def run(name, projections, gram, energies, bounds, s):
    """What a pursuit finds, in arrays that were full of other things."""
    n, atoms = projections.shape
    indices, counts, memory = (
        np.full((n, s), 7, np.uint16),
        np.full(n, -1),
        np.full(memory_floats(atoms, s), np.nan, "f4"),
    )
    coefficients, residuals = (np.full((n, s), np.nan, np.float32) for _ in range(2))
    KERNELS[name](projections, gram, energies, bounds, indices, coefficients, counts, residuals, memory)
    return indices, coefficients, counts, residuals


def make_dictionary(style, atoms, dim, rng):
    """float32 (atoms, dim), of unit length or 0."""
    rows = rng.standard_normal((atoms, dim))
    if style == "twins":
        rows = rows[rng.integers(0, max(atoms // 3, 1), atoms)]
    elif style in ("dependent", "nearly"):
        rank = max(dim // 2, 1)
        rows = rows[:, :rank] @ rng.standard_normal((rank, dim))
        rows += rng.standard_normal(rows.shape) * (1e-3 if style == "nearly" else 0)
    elif style == "ties":
        rows = np.sign(rows)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    if style == "dead":
        rows[rng.random(atoms) < 0.3] = 0
    return rows.astype(np.float32)


def make_vectors(style, n, rows, rng):
    """float32 (n, dim)."""
    if style == "sparse" and len(rows):
        return np.stack([rng.integers(-3, 4, 2) @ rows[rng.integers(0, len(rows), 2)] for _ in range(n)]).astype("f4")
    x = rng.standard_normal((n, rows.shape[1]))
    if style == "ties":
        x = np.rint(x)
    size = {"zero": 0, "tiny": 1e-44, "small": 1e-25, "huge": 1e30}.get(style, 1)
    return (x * size).astype(np.float32)


def draw_problem(style, atoms, dim, n, seed):
    """(atoms, vectors, projections, gram, energies); energies may be inf, where float32 cannot hold them."""
    rng = np.random.default_rng(seed)
    rows = make_dictionary(style, atoms, dim, rng)
    x = make_vectors(style, n, rows, rng)
    with np.errstate(over="ignore"):
        return rows, x, x @ rows.T, rows @ rows.T, (x * x).sum(axis=1)


@st.composite
def problems(draw):
    style = draw(st.sampled_from(STYLES))
    atoms = 1 if style == "one" else draw(st.sampled_from([2, 5, 16, 63, 64, 65, 130]))
    return draw_problem(
        style, atoms, draw(st.integers(1, 20)), draw(st.integers(1, 3)), draw(st.integers(0, 2**32 - 1))
    )


def same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes() or np.array_equal(one, other)  # -0 is 0


# -- bit for bit -----------------------------------------------------------------------------------------------------


@PURSUITS
@quick
@given(problems(), st.integers(0, 12), st.sampled_from([-1, 0, 0.05, 0.5, 1, np.inf]))
def test_a_pursuit_is_its_twin(name, problem, s, share):
    rows, _, projections, gram, energies = problem
    with np.errstate(invalid="ignore"):
        bounds = (
            np.float32(share) * np.minimum(energies, np.float32(3e38)) if share > 0 else np.full_like(energies, share)
        )
    found = run(name, projections, gram, energies, bounds, s)
    same(found, getattr(twin, name)(projections, gram, energies, bounds, s))
    indices, coefficients, counts, residuals = found
    assert np.isfinite(coefficients).all()
    assert not np.isnan(residuals).any()
    assert (counts <= min(s, len(rows))).all()
    for i, count in enumerate(counts):
        assert len(set(indices[i, :count].tolist())) == count
        assert not indices[i, count:].any()
        assert not coefficients[i, count:].any()
        assert (residuals[i, 1:] <= residuals[i, :-1]).all()
        assert (residuals[i, count:] == (residuals[i, count - 1] if count else max(energies[i], 0))).all()
        assert not (residuals[i, : max(count - 1, 0)] <= bounds[i]).any()


@quick
@given(problems(), st.integers(0, 12), st.booleans())
def test_top_dots_is_its_twin(problem, s, coarse):
    projections = np.rint(problem[2]) if coarse else problem[2]
    n = len(projections)
    out = np.full((n, s), 7, np.uint16), np.full((n, s), np.nan, np.float32), np.full(n, -1)
    top_dots(projections, *out)
    same(out, twin.top_dots(projections, s))


@PURSUITS
@pytest.mark.parametrize("power", [-140, -100, -31, -3, 29, 31, 60, 120])
def test_a_power_of_two_changes_nothing_but_the_exponents(name, power):
    _, _, projections, gram, energies = draw_problem("normal", 65, 12, 4, 5)
    if power < -120:
        projections = projections * np.float32(2.0**-3)  # what becomes subnormal has few bits to begin with
        projections = np.rint(projections * 64).astype(np.float32)
    bounds = np.full(4, -1, np.float32)
    wanted = run(name, projections, gram, energies, bounds, 6)
    scale = np.float32(2.0**power)
    found = run(name, projections * scale, gram, energies, bounds, 6)
    assert np.array_equal(found[0], wanted[0])
    assert np.allclose(
        found[1].astype(np.float64) / np.float64(scale), wanted[1], rtol=1e-6, atol=2.0 ** (-149 - power)
    )


# -- what they are ---------------------------------------------------------------------------------------------------


@PURSUITS
def test_coefficients_are_least_squares(name):
    rows, x, projections, gram, energies = draw_problem("normal", 200, 32, 8 if INTERPRETED else 50, 1)
    indices, coefficients, counts, residuals = run(name, projections, gram, energies, -np.ones_like(energies), 10)
    assert (counts == 10).all()
    for i in range(len(x)):
        chosen = rows[indices[i]].T.astype(np.float64)
        best = np.linalg.lstsq(chosen, x[i].astype(np.float64), rcond=None)[0]
        assert np.abs(coefficients[i] - best).max() <= 1e-5 * np.abs(best).max()
        for k in range(1, 11):
            part = np.linalg.lstsq(chosen[:, :k], x[i].astype(np.float64), rcond=None)[0]
            left = ((x[i] - chosen[:, :k] @ part) ** 2).sum()
            assert abs(residuals[i, k - 1] - left) <= 2e-6 * energies[i]


def planted(atoms, dim, n, seed):
    """Unit atoms and vectors that are 12 of them and noise, float32."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((atoms, dim))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    x = np.stack([rng.standard_normal(12) @ rows[rng.integers(0, atoms, 12)] for _ in range(n)])
    return rows, (x + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)


def errors_of(rows, x, indices, coefficients):
    wide = rows.astype(np.float64)
    return np.linalg.norm(x - np.einsum("is,isd->id", coefficients.astype(np.float64), wide[indices]), axis=1)


def pursue_planted(name, s, n, atoms=256, dim=64):
    rows, x = planted(atoms, dim, n, 2)
    found = run(name, x @ rows.T, rows @ rows.T, (x * x).sum(axis=1), np.full(n, -1, np.float32), s)
    return rows, x, found[0], errors_of(rows, x, *found[:2])


@PURSUITS
def test_pursuits_in_float64_take_the_same_atoms(name):
    rows, x, indices, errors = pursue_planted(name, 8, 10 if INTERPRETED else 200)
    exact = [getattr(twin, f"exact_{name}")(rows.astype(np.float64), one.astype(np.float64), 8) for one in x]
    same_sets = [set(one.tolist()) == set(other) for one, (other, _) in zip(indices, exact, strict=True)]
    assert np.mean(same_sets) >= 0.995
    wanted = np.array([error for _, error in exact])
    assert abs(errors.sum() / wanted.sum() - 1) <= 1e-5
    assert (np.abs(errors / wanted - 1)[same_sets] <= 1e-5).all()


def test_omp_takes_the_atoms_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    rows, x, indices, errors = pursue_planted("omp", 8, 20 if INTERPRETED else 1000)
    wide, wanted_x = rows.astype(np.float64), x.astype(np.float64)
    codes = linear.orthogonal_mp_gram(wide @ wide.T, wide @ wanted_x.T, n_nonzero_coefs=8)
    agree = [set(one.tolist()) == set(np.flatnonzero(code)) for one, code in zip(indices, codes.T, strict=True)]
    assert np.mean(agree) >= 0.999
    wanted = np.linalg.norm(wanted_x.T - wide.T @ codes, axis=0)
    assert abs(errors.sum() / wanted.sum() - 1) <= 1e-5
    assert (np.abs(errors / wanted - 1)[agree] <= 1e-5).all()


@pytest.mark.parametrize("s", [4, 8, 16])
def test_errors_are_those_of_spams(s):
    spams = pytest.importorskip("spams")
    rows, x, _, errors = pursue_planted("ormp", s, 20 if INTERPRETED else 500)
    wide = np.asfortranarray(rows.T.astype(np.float64))
    codes = spams.omp(np.asfortranarray(x.T.astype(np.float64)), wide, L=s, eps=0.0, numThreads=1)
    assert codes.nnz == s * len(x)
    wanted = np.linalg.norm(x.T - wide @ codes.toarray(), axis=0)
    assert errors.mean() <= wanted.mean() * (1 + 1e-5)
    assert pursue_planted("omp", s, len(x))[3].mean() <= 1.02 * wanted.mean()


# -- edges -----------------------------------------------------------------------------------------------------------


@PURSUITS
def test_of_equals_the_first_atom_is_taken(name):
    gram = np.eye(130, dtype=np.float32)
    projections = np.zeros((1, 130), np.float32)
    projections[0, [3, 65, 64, 129]] = [1, -2, 2, -1]
    indices, coefficients, counts, residuals = run(name, projections, gram, np.float32([10]), np.float32([0]), 8)
    assert counts.tolist() == [4]
    assert indices[0].tolist() == [64, 65, 3, 129, 0, 0, 0, 0]
    assert coefficients[0].tolist() == [2, -2, 1, -1, 0, 0, 0, 0]
    assert residuals[0].tolist() == [6, 2, 1, 0, 0, 0, 0, 0]


@PURSUITS
def test_twins_of_an_atom_are_passed_over_for_the_next_best(name):
    rows = np.eye(4, dtype=np.float32)[[0, 0, 0, 1, 1, 2]]
    x = np.float32([[4, 2, 1, 0]])
    indices, _, counts, residuals = run(name, x @ rows.T, rows @ rows.T, np.float32([21]), np.float32([-1]), 6)
    assert counts.tolist() == [3]
    assert indices[0].tolist() == [0, 3, 5, 0, 0, 0]
    assert residuals[0].tolist() == [5, 1, 0, 0, 0, 0]


@PURSUITS
def test_an_atom_in_the_span_of_others_is_passed_over_though_its_projection_is_the_greatest(name):
    near = np.float32([1, 0.01, 0])  # off the first atom by less than 2**-12 of its square
    rows = np.stack([np.float32([1, 0, 0]), near, np.float32([0, 0, 1])])
    x = np.float32([[4, 0.5, 1e-3]])
    energies = (x * x).sum(axis=1)
    indices, coefficients, counts, _ = run(name, x @ rows.T, rows @ rows.T, energies, np.float32([-1]), 3)
    first = int(np.argmax(np.abs(x @ rows.T)))
    assert counts.tolist() == [2]
    assert indices[0].tolist() == [first, 2, 0]
    assert np.abs(coefficients).max() < 4.1


@PURSUITS
def test_no_more_atoms_than_the_rank(name):
    rows, x, projections, gram, energies = draw_problem("normal", 40, 6, 20, 3)
    indices, coefficients, counts, residuals = run(name, projections, gram, energies, -np.ones_like(energies), 30)
    assert (counts <= 6 + (name == "ormp")).all()  # which may give an atom to what rounding left
    assert errors_of(rows, x, indices, coefficients).max() <= 1e-4 * np.sqrt(energies.max())
    assert (residuals[:, -1] <= 1e-6 * energies).all()


@PURSUITS
def test_a_bound_stops_and_a_negative_one_never_does(name):
    _, _, projections, gram, energies = draw_problem("normal", 100, 32, 10, 4)
    full = run(name, projections, gram, energies, -np.ones_like(energies), 16)
    assert (full[2] == 16).all()
    bounds = full[3][:, 7].copy()  # the very residual after 8 atoms
    found = run(name, projections, gram, energies, bounds, 16)
    assert (found[2] == 8).all()
    assert np.array_equal(found[0][:, :8], full[0][:, :8])
    assert np.array_equal(found[3][:, :8], full[3][:, :8])
    assert (run(name, projections, gram, energies, energies, 16)[2] == 0).all()


@PURSUITS
def test_nothing_to_take(name):
    one = np.ones((1, 1), np.float32)
    for projections, gram, s in (
        (np.zeros((2, 5), np.float32), np.eye(5, dtype=np.float32), 3),
        (np.ones((2, 5), np.float32), np.eye(5, dtype=np.float32), 0),
        (np.zeros((2, 0), np.float32), np.zeros((0, 0), np.float32), 3),
        (np.zeros((0, 1), np.float32), one, 3),
        (np.ones((2, 5), np.float32), np.zeros((5, 5), np.float32), 3),
    ):
        energies = np.full(len(projections), 2, np.float32)
        indices, coefficients, counts, residuals = run(name, projections, gram, energies, -energies, s)
        assert not counts.any()
        assert not indices.any()
        assert not coefficients.any()
        assert (residuals == 2).all()


@PURSUITS
def test_arguments_that_contradict_each_other_make_no_nan(name):
    rng = np.random.default_rng(8)
    gram = rng.uniform(-2, 2, (70, 70)).astype(np.float32)
    for size in (1e-44, 1, 1e38):
        projections = (rng.uniform(-3, 3, (20, 70)) * size).astype(np.float32)
        for energy in (0, 1, 3e38, np.inf):
            energies = np.full(20, energy, np.float32)
            found = run(name, projections, gram, energies, np.full(20, -1, np.float32), 8)
            assert np.isfinite(found[1]).all()
            assert not np.isnan(found[3]).any()


# -- integers --------------------------------------------------------------------------------------------------------


def run_integers(vectors, atoms, s, fraction=None, bounds=None):
    n = len(vectors)
    gram = atoms.astype(np.int32) @ atoms.astype(np.int32).T
    fraction = choose_fraction(gram, atoms.shape[1]) if fraction is None else fraction
    out = np.full((n, s), 7, np.uint16), np.full((n, s), 7, np.int32), np.full(n, -1)
    memory, wide = np.empty(len(atoms), np.int32), vectors.astype(np.int64)
    left = (wide * wide).sum(axis=1) << 2 * fraction
    bounds = np.full(n, -1) if bounds is None else bounds
    mp_integers(vectors, atoms, gram, make_reciprocals(gram), fraction, bounds, *out, left, memory)
    return *out, left, memory.astype(np.int64), fraction


@st.composite
def integer_problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dim, count, n = draw(st.integers(1, 40)), draw(st.sampled_from([1, 7, 40])), draw(st.integers(1, 3))
    most, size = draw(st.sampled_from([1, 40, 127])), draw(st.sampled_from([0, 3, 300, 32767]))
    atoms = rng.integers(-most, most + 1, (count, dim)).astype(np.int8)
    if draw(st.booleans()):
        atoms = np.sign(atoms) * np.int8(most)
    return rng.integers(-size - (size > 300), size + 1, (n, dim)).astype(np.int16), atoms


@quick
@given(integer_problems(), st.integers(0, 10))
def test_mp_integers_is_its_twin(problem, s):
    vectors, atoms = problem
    *found, fraction = run_integers(vectors, atoms, s)
    same(found if s else found[:4], twin.mp_integers(vectors, atoms, fraction, s)[: 5 if s else 4])


@pytest.mark.parametrize("dim", [1, 128, 512])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_greatest_integers_do_not_overflow(dim, sign):
    """An atom and a vector of the greatest numbers, beside one that is nearly the same, so it must be corrected."""
    atoms = np.full((3, dim), 127, np.int8)
    atoms[1, dim // 2 :] = 126
    atoms[2, ::2] = -127
    vectors = np.full((2, dim), -32768 * sign if sign > 0 else 32767, np.int16)
    vectors[1, ::2] = 32767
    *found, fraction = run_integers(vectors, atoms, 3)
    wanted = twin.mp_integers(vectors, atoms, fraction, 3)
    same(found, wanted)
    longest = int((atoms[0].astype(np.int64) ** 2).sum())
    assert 4**fraction * longest * dim * 2**30 < 2**62 <= 4 ** (fraction + 1) * longest * dim * 2**30 + 2**60
    assert np.abs(wanted[4]).max() < 2**31


def test_fraction_bits():
    for length, dim, wanted in ((127**2 * 512, 512, 0), (127**2 * 128, 128, 2), (360**2, 128, 4), (512, 1, 11)):
        assert choose_fraction(np.array([[length]], np.int32), dim) == wanted


def test_reciprocals_are_as_good_as_rounding_needs():
    squares = np.unique(np.random.default_rng(0).integers(512, 127**2 * 512, 2000))
    gram = np.diag(squares).astype(np.int32)
    reciprocals = make_reciprocals(gram).tolist()
    for square, reciprocal in zip(squares.tolist(), reciprocals, strict=True):
        assert abs(reciprocal * square - 2**40) * 2**31 <= 2**30 * square * 2  # 2**-10 of a quotient at 2**31
        assert reciprocal * 2**31 < 2**63
    assert make_reciprocals(np.array([[511]], np.int32)).tolist() == [0]


def test_integers_lose_little_against_floats():
    rows, x = planted(256, 64, 10 if INTERPRETED else 200, 6)
    atoms = np.rint(rows * (127 / np.abs(rows).max())).astype(np.int8)
    vectors = np.rint(x * (32767 / np.abs(x).max(axis=1, keepdims=True))).astype(np.int16)
    indices, coefficients, counts, _, _, fraction = run_integers(vectors, atoms, 8)
    assert (counts == 8).all()
    errors = errors_of(atoms, vectors, indices, coefficients / 2**fraction)
    floats = []
    for one in vectors.astype(np.float64):
        residual, taken = one, set()
        for _ in range(16):
            p = atoms @ residual
            k = int(np.argmax(np.abs(p)))
            residual = residual - p[k] / float(atoms[k].astype(np.float64) @ atoms[k]) * atoms[k]
            taken.add(k)
            if len(taken) == 8:
                break
        floats.append(np.linalg.norm(residual))
    assert abs(errors.mean() / np.mean(floats) - 1) <= 2e-3


def test_the_last_of_65536_atoms():
    projections = np.zeros((1, 65536), np.float32)
    projections[0, [65535, 65472]] = [-2, 1]
    out = np.zeros((1, 3), np.uint16), np.zeros((1, 3), np.float32), np.zeros(1, np.int64)
    top_dots(projections, *out)
    assert [a.tolist() for a in out] == [[[65535, 65472, 0]], [[-2, 1, 0]], [2]]


# -- the bench -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(INTERPRETED, reason="only compiled kernels are worth a bench")
@pytest.mark.parametrize("kernel", [omp, ormp])
def test_a_problem_of_the_bench(kernel):
    problem = make_problem(128, 32, 40, 4)
    ours = enter_ours(problem, kernel, 0.02)
    peers = Peers(absent={"spams": "not asked for", "sklearn": "not asked for"})
    assert enter_pursuits(peers, problem) == [
        Absent("SPAMS omp f64", "not asked for"), Absent("scikit-learn f64", "not asked for"),
    ]  # fmt: skip
    for entry in (ours, *enter_pursuits(find_peers(("spams", "sklearn")), problem)):
        if isinstance(entry, Contender):
            entry.run()
            entry.check()
        else:
            assert "pip install" in entry.reason


@pytest.mark.skipif(INTERPRETED, reason="only compiled kernels are worth a bench")
def test_the_integer_problem_of_the_bench():
    entry = enter_integers(make_problem(128, 32, 40, 4))
    entry.run()
    entry.check()


def test_a_wrong_code_is_found_out():
    problem = make_problem(128, 32, 40, 4)
    with pytest.raises(WrongResult, match="peer: the error is off by"):
        problem.check("peer", problem.vectors * np.float32(0.5), np.full(40, 4), 0.02)
    with pytest.raises(WrongResult, match="peer: a code has 0 atoms, want 4"):
        problem.check("peer", problem.vectors, np.zeros(40, int), 0.02)


def test_rows_of_the_bench():
    assert [row.name for row in pursuit_rows(QUICK)] == [
        "omp-1024-s8", "omp-1024-s16", "omp-1024-s24", "omp-4096-s8", "omp-4096-s16", "omp-4096-s24", "ormp-1024-s8",
        "mp-1024-s8",
    ]  # fmt: skip


# -- machine code ----------------------------------------------------------------------------------------------------


def hash_of_problems():
    """Of what all kernels find in some small problems."""
    digest = hashlib.sha256()
    for seed, style in enumerate(STYLES):
        rows, _, projections, gram, energies = draw_problem(style, 1 if style == "one" else 70, 12, 3, seed)
        found = [run(name, projections, gram, energies, np.full(3, -1, np.float32), 8) for name in KERNELS]
        atoms = np.rint(rows * 127).astype(np.int8)
        found.append(
            run_integers(np.rint(projections[:, :1] * 0 + 1000).repeat(12, axis=1).astype(np.int16), atoms, 4)[:5]
        )
        for array in (a for arrays in found for a in arrays):
            digest.update((array + 0).tobytes())
    return digest.hexdigest()


@pytest.mark.skipif(INTERPRETED, reason="there is no machine code")
@pytest.mark.parametrize(
    "environment",
    [
        {"NUMBA_DISABLE_JIT": "1"},
        {"KVCODEC_SIMD": "portable", "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""},
    ],
    ids=["interpreted", "portable"],
)
def test_other_machine_code_gives_the_same_bits(environment):
    if "NUMBA_CPU_NAME" in environment and "x86" not in os.uname().machine:
        pytest.skip("LLVM compiles for this processor's kind alone")
    code = "from tests.test_pursuit import hash_of_problems; print(hash_of_problems())"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "KVCODEC_"))}
    inherited |= {"PYTHONPATH": str(ROOT), "KVCODEC_JIT_CACHE": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=inherited | environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == hash_of_problems()


@pytest.mark.skipif(INTERPRETED, reason="there is no machine code")
def test_mp_integers_is_integer_only():
    fresh = numba.njit(nogil=True, error_model="numpy")(mp_integers.py_func)
    atoms = np.eye(3, 40, dtype=np.int8) * np.int8(100)
    gram = atoms.astype(np.int32) @ atoms.astype(np.int32).T
    out = np.zeros((1, 2), np.uint16), np.zeros((1, 2), np.int32), np.zeros(1, np.int64)
    bounds, left = np.full(1, -1), np.full(1, 40 << 6)
    fresh(np.ones((1, 40), np.int16), atoms, gram, make_reciprocals(gram), 3, bounds, *out, left, np.zeros(3, np.int32))
    (llvm,) = fresh.inspect_llvm().values()
    for part in ("mp_integers", "multiply", "subtract_atom"):
        assert part in llvm
    words = words_of(llvm)
    assert words.count("i32") > 100
    assert FLOATS.findall(words) == []


def test_kernels_are_compiled_for_one_kind_of_arguments():
    module = importlib.import_module("kvcodec.kernels.pursuit")
    if INTERPRETED:
        pytest.skip("nothing is compiled")
    for name in KERNELS:
        assert len(getattr(module, name).signatures) <= 1
