"""The dictionary codec's kernels against their naive twins, bit for bit, and what coefficients of a few bits lose."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.kernels import atoms as atom_kernels
from kvcodec.kernels import coefficients as coefficient_kernels
from kvcodec.kernels import elias_fano
from kvcodec.kernels.floats import BFLOAT16, FLOAT16, FLOAT32
from tests import dictionary_twin as twin

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
FORMS = {FLOAT32: np.float32, BFLOAT16: ml_dtypes.bfloat16, FLOAT16: np.float16}
ATOMS = [1, 2, 3, 31, 33, 100, 1000, 1023, 1024, 1025, 4095, 32768, 65535, 65536]
seeds = st.integers(0, 2**32 - 1)
thorough = settings(max_examples=10 if INTERPRETED else 100)


def address(array):
    assert array.flags.c_contiguous
    return array.ctypes.data


# -- sets of indices -------------------------------------------------------------------------------------------------


def draw_sets(rows, terms, atoms, low, seed):
    """uint16 (rows, terms): sorted sets, the first rows of them the extreme ones."""
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, atoms, (rows, terms))
    indices[:3] = 0
    indices[1:2] = atoms - 1
    indices[2:3, terms // 2 :] = atoms - 1
    return np.concatenate([np.sort(indices[:, :low]), np.sort(indices[:, low:])], axis=1).astype(np.uint16)


def pack_sets(indices, atoms, low):
    packed = np.full((len(indices), elias_fano.sets_bytes(atoms, indices.shape[1], low)), 0xA5, np.uint8)
    elias_fano.pack_sets(indices, atoms, low, packed)
    return packed


def unpack_sets(packed, atoms, terms, low):
    indices = np.full((len(packed), terms), 0xA5A5, np.uint16)
    return elias_fano.unpack_sets(packed, atoms, low, indices), indices


def lay_planes(packed):
    """uint8 (bytes, 64): 64 rows, of which the last ones may be zeros."""
    planes = np.zeros((packed.shape[1], 64), np.uint8)
    planes[:, : len(packed)] = packed.T
    return planes


def unpack_set_planes(planes, atoms, terms, low):
    indices = np.full((terms, 64), 0xA5A5, np.uint16)
    room = max(elias_fano.planes_bytes(atoms, count) for count in (low, terms - low))
    counts = np.full(room + 64, 0xA5, np.uint8)
    elias_fano.unpack_set_planes(address(planes), atoms, low, terms, address(indices), address(counts))
    assert (counts[room:] == 0xA5).all()
    return indices


def test_sizes_of_sets():
    assert [elias_fano.set_bytes(n, 8) for n in (1024, 2048, 4096, 32768)] == [9, 10, 11, 14]
    assert [elias_fano.sets_bytes(1024, 16, low) for low in (0, 3, 16)] == [16, 4 + 14, 16]
    assert [elias_fano.set_bytes(n, m) for n, m in ((1, 1), (65536, 1), (2, 32), (7, 0))] == [1, 3, 5, 0]


def test_the_bytes_of_a_set():
    """N = 16, m = 4, l = 2. Low bits of 1, 5, 6, 15: 01 01 10 11; ones at 0 + 0, 1 + 1, 1 + 2, 3 + 3."""
    packed = pack_sets(np.array([[1, 5, 6, 15]], np.uint16), 16, 0)
    assert packed.tobytes() == bytes([0b11100101, 0b01001101])


@pytest.mark.parametrize("terms", range(1, 33))
def test_sets_of_every_size_survive(terms):
    rows = 4 if INTERPRETED else 64
    for atoms in ATOMS[:: 5 if INTERPRETED else 1]:
        for low in {0, terms // 3, terms}:
            indices = draw_sets(rows, terms, atoms, low, terms)
            packed = pack_sets(indices, atoms, low)
            for row in range(0, rows, 1 if rows == 4 else 9):
                assert packed[row].tobytes() == twin.pack_sets(indices[row], atoms, low)
            bad, found = unpack_sets(packed, atoms, terms, low)
            assert bad == -1
            assert np.array_equal(found, indices)
            lanes = unpack_set_planes(lay_planes(packed), atoms, terms, low)
            assert np.array_equal(lanes[:, :rows].T, indices)


def flip(packed, row, bit):
    packed = packed.copy()
    packed[row, bit // 8] ^= 1 << bit % 8
    return packed


def test_rows_that_are_no_sets():
    indices = np.array([[1, 500, 700, 999], [0, 0, 0, 0], [3, 400, 900, 900]], np.uint16)  # l = 7: 28 bits, then 4 + 7
    packed = pack_sets(indices, 1000, 0)
    assert packed.shape == (3, 5)
    assert unpack_sets(packed, 1000, 4, 0)[0] == -1
    for row in range(3):
        assert unpack_sets(flip(packed, row, 39), 1000, 4, 0)[0] == row  # padding
        taken = 28 + (int(indices[row, 1]) >> 7) + 1
        assert unpack_sets(flip(packed, row, taken), 1000, 4, 0)[0] == row  # a one too few
        free = next(b for b in range(28, 39) if not packed[row, b // 8] >> b % 8 & 1)
        assert unpack_sets(flip(packed, row, free), 1000, 4, 0)[0] == row  # a one too many
    beyond = pack_sets(np.array([[0, 1, 2, 999], [0, 1, 2, 1000]], np.uint16), 1000, 0)
    assert unpack_sets(beyond, 1000, 4, 0)[0] == 1  # no atom
    assert unpack_sets(flip(flip(packed, 2, 39), 1, 39), 1000, 4, 0)[0] == 1  # the first of two


def test_a_bad_second_set_is_found():
    packed = pack_sets(draw_sets(5, 8, 1024, 3, 0), 1024, 3)
    split = elias_fano.set_bytes(1024, 3)
    assert unpack_sets(packed, 1024, 8, 3)[0] == -1
    packed[4, split:] = 0
    assert unpack_sets(packed, 1024, 8, 3)[0] == 4
    packed[2, :split] = 0xFF
    assert unpack_sets(packed, 1024, 8, 3)[0] == 2


@thorough
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 12), seeds)
def test_any_bytes_are_a_set_or_none_as_for_the_twin(terms, atoms, low, seed):
    low, rng = min(low, terms), np.random.default_rng(seed)
    packed = pack_sets(draw_sets(64, terms, atoms, low, seed), atoms, low)
    for row in rng.integers(0, 64, 40):  # sets with bits that have moved
        for bit in rng.integers(0, 8 * packed.shape[1], 2):
            packed[row, bit // 8] ^= 1 << bit % 8
    lanes = unpack_set_planes(lay_planes(packed), atoms, terms, low)
    assert (lanes < atoms).all()
    for row in range(0, 64, 9 if INTERPRETED else 1):
        want = twin.unpack_sets(packed[row].tobytes(), atoms, terms, low)
        bad, found = unpack_sets(packed[row : row + 1], atoms, terms, low)
        assert bad == (0 if want is None else -1)
        if want is not None:
            assert found[0].tolist() == want
            assert lanes[:, row].tolist() == want


@thorough
@given(st.integers(1, 32), st.integers(0, 32), st.integers(1, 300), seeds)
def test_sets_are_ordered_and_filled(terms, low, atoms, seed):
    low, rng, rows = min(low, terms), np.random.default_rng(seed), 8
    counts = rng.integers(0, terms + 1, rows)
    indices = rng.integers(0, atoms, (rows, terms)).astype(np.uint16)
    codes = rng.integers(-127, 128, (rows, terms)).astype(np.int8)
    for row, used in enumerate(counts):
        indices[row, used:], codes[row, used:] = 0, 0
    want = [twin.order_sets(*row, low) for row in zip(indices, codes, counts, strict=True)]
    coefficient_kernels.order_sets(indices, codes, counts, low)
    assert list(zip(indices.tolist(), codes.tolist(), strict=True)) == want
    assert unpack_sets(pack_sets(indices, atoms, low), atoms, terms, low)[0] == -1


# -- integers of a few bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_codes_of_every_count_survive(bits):
    rng, half = np.random.default_rng(bits), 2 ** (bits - 1)
    for terms in range(1, 33):
        codes = rng.integers(-half, half, (7, terms)).astype(np.int8)
        codes[0], codes[1] = -half, half - 1
        packed = np.full((7, elias_fano.code_bytes(terms, bits)), 0xA5, np.uint8)
        elias_fano.pack_bits(codes, bits, packed)
        assert [row.tobytes() for row in packed] == [twin.pack_bits(row, bits) for row in codes]
        found = np.full_like(codes, 0x5A)
        assert elias_fano.unpack_bits(packed, bits, found) == -1
        assert np.array_equal(found, codes)
        lanes = np.full((terms, 64), 0x5A, np.int8)
        planes = lay_planes(packed)
        elias_fano.unpack_bit_planes(address(planes), bits, terms, address(lanes))
        assert np.array_equal(lanes[:, :7].T, codes)
        assert not lanes[:, 7:].any()
        if terms * bits % 8:
            packed[4, -1] |= 0x80
            assert elias_fano.unpack_bits(packed, bits, found) == 4


# -- coefficients ----------------------------------------------------------------------------------------------------

STYLES = ["normal", "sparse", "zero", "tiny", "minute", "huge", "gigantic", "endless", "twins", "weak", "foreign"]


def make_atoms(count, dim, rng):
    return np.clip(np.rint(40 * rng.standard_normal((count, dim))), -127, 127).astype(np.int8)


def pursue(vectors, atoms, terms, weights=None):
    """What pursuit hands over, in float64: `weights`, of channels, are the metric."""
    weights = np.ones(atoms.shape[1]) if weights is None else weights
    norms = np.sqrt((atoms.astype(np.float64) ** 2 * weights).sum(axis=1))
    units = atoms / norms[:, None]
    gram, projections = (units * weights) @ units.T, (vectors * weights) @ units.T
    indices, coefficients = np.zeros((len(vectors), terms), np.int64), np.zeros((len(vectors), terms))
    for row, along in enumerate(projections):
        left, chosen = along.copy(), []
        for _ in range(terms):
            left[chosen] = 0
            chosen.append(int(abs(left).argmax()))
            own = np.linalg.lstsq(gram[np.ix_(chosen, chosen)], along[chosen], rcond=None)[0]
            left = along - gram[:, chosen] @ own
        indices[row], coefficients[row] = chosen, own
    energies = (vectors**2 * weights).sum(axis=1)
    return indices, coefficients, projections, gram, norms, energies


def narrow(pursued):
    with np.errstate(over="ignore"):
        return pursued[0].astype(np.uint16), *(part.astype(np.float32) for part in pursued[1:])


def make_problem(style, count, dim, terms, rows, seed):
    """(arguments of quantize_coefficients but counts and bits, vectors, atoms)."""
    rng = np.random.default_rng(seed)
    atoms = make_atoms(count, dim, rng)
    if style == "twins":
        atoms[1::2] = atoms[: count // 2 * 2 : 2]
    vectors = rng.standard_normal((rows, dim))
    if style == "sparse":
        vectors = atoms[rng.integers(0, count, rows)] * rng.uniform(-1, 1, (rows, 1))
    sizes = {"zero": 0, "tiny": 1e-37, "minute": 1e-41, "huge": 1e17, "gigantic": 1e30, "endless": 1e38}
    vectors = np.clip(vectors * sizes.get(style, 1), -3e38, 3e38).astype(np.float32).astype(np.float64)
    problem = list(narrow(pursue(vectors, atoms, terms, rng.uniform(0.1, 10, dim) if style == "weak" else None)))
    if style == "foreign":  # coefficients of something else
        problem[1] = rng.standard_normal((rows, terms)).astype(np.float32)
    return problem, vectors, atoms


def quantize(problem, counts, bits):
    rows, terms = problem[0].shape
    codes, scales = np.full((rows, terms), 0x55, np.int8), np.zeros(rows, np.uint16)
    residuals = np.full(rows, np.nan, np.float32)
    room = coefficient_kernels.work_bytes(terms)
    memory = np.full(room + 64, 0xA5, np.uint8)
    indices, coefficients, *rest = problem
    coefficient_kernels.quantize_coefficients(
        indices, coefficients, counts, *rest, bits, codes, scales, residuals, address(memory)
    )
    assert (memory[room:] == 0xA5).all()
    return codes, scales, residuals


@thorough
@given(
    st.sampled_from(STYLES),
    st.sampled_from([4, 5, 6, 8]),
    st.sampled_from([1, 2, 3, 8, 15, 16, 17, 24, 32]),
    seeds,
)
def test_quantize_coefficients_is_its_twin(style, bits, terms, seed):
    rows = 2 if INTERPRETED else 6
    problem, _, _ = make_problem(style, 40, 24, terms, rows, seed)
    counts = np.random.default_rng(seed).integers(0, terms + 1, rows)
    counts[0] = terms
    codes, scales, residuals = quantize(problem, counts, bits)
    indices, coefficients, projections, gram, norms, energies = problem
    for row in range(rows):
        want = twin.quantize_coefficients(
            indices[row], coefficients[row], counts[row], projections[row], gram, norms, energies[row], bits
        )
        assert codes[row].tolist() == want[0].tolist()
        assert scales[row] == want[1]
        assert residuals[row] == want[2]
    assert abs(codes.astype(int)).max() < 2 ** (bits - 1)
    assert np.isfinite(residuals).all()
    assert ((scales >= 0x80) & (scales <= 0x7F7F)).all()


@pytest.mark.parametrize("style", ["normal", "weak", "tiny", "minute", "huge", "gigantic", "twins", "foreign"])
@pytest.mark.parametrize("bits", [4, 6])
def test_the_residual_is_that_of_the_stored_numbers_and_the_scale_the_best(style, bits):
    rows, terms = 10, 8
    problem, vectors, atoms = make_problem(style, 60, 24, terms, rows, 5)
    codes, scales, residuals = quantize(problem, np.full(rows, terms), bits)
    weights = np.random.default_rng(5)
    make_atoms(60, 24, weights)
    weights.standard_normal((rows, 24))
    metric = weights.uniform(0.1, 10, 24) if style == "weak" else np.ones(24)
    for row in range(rows):
        sums = (codes[row, :, None].astype(np.float64) * atoms[problem[0][row]]).sum(axis=0)
        near = [twin.float_of_scale(np.clip(int(scales[row]) + n, 0x80, 0x7F7F)) for n in (0, -1, 1, -2, 2)]
        errors = [((vectors[row] - scale * sums) ** 2 * metric).sum() for scale in near]
        energy = (vectors[row] ** 2 * metric).sum()
        assert residuals[row] == pytest.approx(min(errors[0], twin.F32_MAX), rel=1e-4, abs=max(1e-6 * energy, 1e-45))
        assert errors[0] <= min(errors) + 1e-6 * energy
        assert errors[0] <= energy


def test_what_has_no_coefficients_has_the_least_scale():
    problem, _, _ = make_problem("normal", 40, 24, 4, 3, 0)
    problem[1][1] = 0
    codes, scales, residuals = quantize(problem, np.array([0, 4, 4]), 6)
    assert not codes[:2].any()
    assert codes[2].any()
    assert scales[:2].tolist() == [0x80, 0x80]
    assert residuals[:2].tolist() == problem[5][:2].tolist()
    dead = [part.copy() for part in problem]
    dead[4][:] = 0  # atoms that are nothing
    codes, scales, residuals = quantize(dead, np.full(3, 4), 6)
    assert not codes.any()
    assert residuals.tolist() == problem[5].tolist()
    problem[5][:] = [np.inf, np.nan, 1e-30]  # energies that overflowed; one that float32 errors exceed
    assert quantize(problem, np.full(3, 4), 6)[2].tolist() == [np.float32(twin.F32_MAX)] * 2 + [0]


def test_atoms_that_are_the_same_share_no_code():
    atoms = make_atoms(6, 24, np.random.default_rng(0))
    atoms[3] = atoms[0]
    vectors = atoms[:1].astype(np.float64)
    problem = list(narrow(pursue(vectors, atoms, 2)))
    problem[0][0], problem[1][0] = [0, 3], [1, 1]
    codes, _, residuals = quantize(problem, np.array([2]), 8)
    assert sorted(abs(codes[0].astype(int)) > 0) == [False, True]
    assert residuals[0] < 1e-4 * problem[5][0]


@pytest.mark.skipif(INTERPRETED, reason="thousands of coefficients")
@pytest.mark.parametrize(
    ("terms", "most"), [(8, {4: 0.040, 5: 0.009, 6: 0.002, 8: 0.0003}), (16, {4: 0.065, 5: 0.017, 6: 0.004, 8: 0.0004})]
)
def test_coefficients_of_a_few_bits_lose_little(terms, most):
    """The error, beside that of unquantized coefficients, of vectors that are atoms and a quarter noise."""
    rng, rows = np.random.default_rng(1), 150
    atoms = make_atoms(512, 128, rng)
    chosen = [rng.choice(512, terms, replace=False) for _ in range(rows)]
    vectors = np.array([rng.standard_normal(terms) @ atoms[own] for own in chosen])
    vectors += 0.25 * np.sqrt((vectors**2).mean()) * rng.standard_normal(vectors.shape)
    pursued = pursue(vectors, atoms, terms)
    indices, coefficients, projections, gram, norms, energies = pursued
    spared = energies - (coefficients * np.take_along_axis(projections, indices, 1)).sum(axis=1)
    least = np.sqrt(spared / energies).mean()
    plain = coefficients / norms[indices]
    for bits, bound in most.items():
        _, _, residuals = quantize(list(narrow(pursued)), np.full(rows, terms), bits)
        error = np.sqrt(residuals / energies).mean()
        assert least * 0.9999 < error < least * (1 + bound)
        rounded = np.rint(plain / abs(plain).max(axis=1, keepdims=True) * (2 ** (bits - 1) - 1)) * norms[indices]
        rough = []
        for row, own in enumerate(rounded):
            along = own @ projections[row, indices[row]]
            square = own @ gram[np.ix_(indices[row], indices[row])] @ own
            rough.append(np.sqrt((energies[row] - along**2 / square) / energies[row]))
        assert error <= np.mean(rough) * (1 + 1e-5)


# -- atoms -----------------------------------------------------------------------------------------------------------


def rebuild(atoms, mean, indices, codes, scales, form):
    rows, dim = len(indices), atoms.shape[1]
    out = np.zeros(rows * dim + 8, FORMS[form])
    room = atom_kernels.work_bytes(indices.shape[1])
    work = np.full(room + 64, 0xA5, np.uint8)
    atom_kernels.rebuild_rows(
        address(atoms), address(mean), dim, indices, codes, scales, form, address(out), address(work)
    )
    assert (work[room:] == 0xA5).all()
    assert not out[rows * dim :].any()
    return out[: rows * dim].reshape(rows, dim)


def draw_rows(count, dim, terms, rows, size, seed):
    rng = np.random.default_rng(seed)
    atoms = rng.integers(-128, 128, (count, dim)).astype(np.int8)
    atoms[0] = -128
    indices = rng.integers(0, count, (rows, terms)).astype(np.uint16)
    codes = rng.integers(-128, 128, (rows, terms)).astype(np.int8)
    indices[0], codes[0] = 0, -128
    scales = (size * rng.uniform(0.5, 1, rows)).astype(ml_dtypes.bfloat16).view(np.uint16)
    return atoms, (1e4 * size * rng.standard_normal(dim)).astype(np.float32), indices, codes, scales


@thorough
@given(
    st.sampled_from(list(FORMS)),
    st.sampled_from([1, 2, 7, 8, 15, 16, 17, 24, 64, 80, 96, 100, 128, 250]),
    st.integers(1, 32),
    st.sampled_from([1.2e-38, 1e-12, 1e-7, 1e-3, 1, 1e33, 2e38]),
    seeds,
)
def test_rebuild_rows_is_its_twin(form, dim, terms, size, seed):
    atoms, mean, *rest = draw_rows(50, dim, terms, 3, min(size, 1e33), seed)
    if size > 1e33:
        rest[2][:] = 0x7F7F
    found = rebuild(atoms, mean, *rest, form)
    want = [twin.rebuild_row(atoms, mean, *row, FORMS[form]) for row in zip(*rest, strict=True)]
    assert found.tobytes() == np.array(want).tobytes()


def test_a_row_of_no_codes_is_the_mean():
    atoms, mean, indices, codes, scales = draw_rows(5, 40, 3, 2, 1, 0)
    for form, dtype in FORMS.items():
        assert np.array_equal(rebuild(atoms, mean, indices, codes * 0, scales, form), [mean.astype(dtype)] * 2)


def test_1024_channels_and_products_that_are_not_fused():
    """The sum 131445 times 1 + 2**-7 takes 25 bits: fused, what float32 rounds away would be left over."""
    atoms, scales = np.full((1, 1024), 127, np.int8), np.array([0x3F81], np.uint16)
    indices, codes = np.zeros((1, 32), np.uint16), np.full((1, 32), 33, np.int8)
    codes[0, :7] = 30
    sums = 127 * int(codes.sum())
    product = np.float32(sums * (1 + 2.0**-7))
    assert sums * (1 + 2.0**-7) != float(product)
    assert not rebuild(atoms, np.full(1024, -product), indices, codes, scales, FLOAT32).any()


def test_find_bad_index():
    indices = np.array([[0, 5], [9, 1], [2, 65535], [65535, 0]], np.uint16)
    assert [atom_kernels.find_bad_index(indices, n) for n in (65536, 65535, 10, 9, 5, 1)] == [-1, 2, 2, 1, 0, 0]
    assert atom_kernels.find_bad_index(indices[:0], 1) == -1


# -- SIMD levels -----------------------------------------------------------------------------------------------------


def hash_kernels(every):
    """Of what kernels give: all, or the one that multiplies bytes, in which levels differ."""
    digest = hashlib.sha256()
    for form in FORMS:
        digest.update(rebuild(*draw_rows(50, 72, 7, 3, 0.1, 1), form).tobytes())
    for bits, style, terms in ((4, "normal", 17), (6, "weak", 8), (8, "huge", 3)) if every else ():
        problem, _, _ = make_problem(style, 40, 24, terms, 3, 9)
        codes, scales, residuals = quantize(problem, np.full(3, terms), bits)
        coefficient_kernels.order_sets(problem[0], codes, np.full(3, terms), 2)
        packed = pack_sets(problem[0], 40, 2)
        planes, rows = unpack_set_planes(lay_planes(packed), 40, terms, 2), unpack_sets(packed, 40, terms, 2)[1]
        for part in (codes, scales, residuals, packed, planes, rows):
            digest.update(part.tobytes())
    return digest.hexdigest()


@pytest.mark.skipif(INTERPRETED, reason="there is no machine code")
@pytest.mark.parametrize("other", ["portable", "avx2", "avx512vnni", "interpreted"])
def test_levels_give_the_same_bytes(other):
    every = other == "interpreted" or os.environ.get("KVCODEC_SOAK") == "1"
    chosen = {"NUMBA_DISABLE_JIT": "1"} if other == "interpreted" else {"KVCODEC_SIMD": other}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "KVCODEC_SIMD"))}
    command = [sys.executable, "-c", f"from tests import test_dictionary_kernels as t; print(t.hash_kernels({every}))"]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, env=inherited | chosen, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hash_kernels(every)
