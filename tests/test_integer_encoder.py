"""The encoder without floats: its kernels' twins bit for bit, errors beside the other pursuits, machine code."""

from __future__ import annotations

import json
import os

import ml_dtypes
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.pursuit import pursue
from kvcodec.dictionary.artefact import Artefact, write_artefact
from kvcodec.dumps import create_dump
from kvcodec.errors import SpecError
from kvcodec.kernels.integer_codes import codes_words, fix_rows, quantize_integers
from kvcodec.kernels.integer_pursuit import choose_fraction, make_reciprocals, mp_integers, vector_bits
from kvcodec.layout import StreamId
from kvcodec.sparse_spec import SparseCodes
from tests import pursuit_twin as twin
from tests.test_cli import invoke
from tests.test_simd import FLOATS, words_of

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
quick = settings(max_examples=10 if INTERPRETED else 15, deadline=None)


def fix(rows, mean, bits=15):
    vectors, exponents = np.full(rows.shape, 7, np.int16), np.full(len(rows), 7, np.int32)
    fix_rows(rows.view(np.uint32), mean.view(np.uint32), np.int64(bits), vectors, exponents)
    return vectors, exponents


def take(vectors, atoms, s, bounds=None):
    """(indices, coefficients, counts, fraction, gram) of mp_integers."""
    n, gram = len(vectors), atoms.astype(np.int32) @ atoms.astype(np.int32).T
    fraction = choose_fraction(gram, atoms.shape[1])
    out = np.zeros((n, s), np.uint16), np.zeros((n, s), np.int32), np.zeros(n, np.int64)
    left = (vectors.astype(np.int64) ** 2).sum(axis=1) << 2 * fraction
    bounds, memory = np.full(n, -1) if bounds is None else bounds, np.empty(len(atoms), np.int32)
    mp_integers(vectors, atoms, gram, make_reciprocals(gram), fraction, bounds, *out, left, memory)
    return *out, fraction, gram


def quantize(vectors, exponents, atoms, gram, fraction, taken, bits):
    codes, scales = np.full(taken[0].shape, 7, np.int8), np.full(len(vectors), 7, np.uint16)
    work = np.empty(codes_words(codes.shape[1]), np.int64)
    quantize_integers(vectors, exponents, atoms, gram, np.int64(fraction), *taken, np.int64(bits), codes, scales, work)
    return codes, scales


@st.composite
def rows_and_mean(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dim, n = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    rows = rng.standard_normal((n, dim)) * 2.0 ** rng.integers(
        *draw(st.sampled_from([(-3, 3), (-149, -120), (60, 99)]))
    )
    rows *= rng.random((n, dim)) < draw(st.sampled_from([0, 0.5, 1]))
    mean = draw(st.sampled_from([0, 1, 1e-3])) * (rows[0] + draw(st.sampled_from([0, 1e-4])) * rng.standard_normal(dim))
    return rows.astype(np.float32), mean.astype(np.float32)


@quick
@given(rows_and_mean(), st.sampled_from([14, 15]))
def test_fix_rows_is_its_twin(problem, bits):
    found, wanted = fix(*problem, bits), twin.fix_rows(*problem, bits)
    assert np.array_equal(found[0], wanted[0])
    assert np.array_equal(found[1], wanted[1])
    difference = problem[0].astype(np.float64) - problem[1]
    assert np.abs(np.ldexp(found[0].astype(float), found[1][:, None]) - difference).max() <= max(
        np.abs(difference).max() * 2.0 ** (1 - bits), np.abs(problem[0]).max() * 2.0**-50, 2.0**-170
    )


@quick
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([4, 5, 6, 8]), st.sampled_from([1, 5, 12]),
    st.sampled_from([-160, -140, -20, 0, 100, 130]), st.sampled_from(["normal", "twins", "ties", "short"]),
)  # fmt: skip
def test_quantize_integers_is_its_twin(seed, bits, s, exponent, style):
    rng = np.random.default_rng(seed)
    atoms = rng.integers(-127, 128, (20, 9)).astype(np.int8)
    if style == "twins":
        atoms[10:] = atoms[:10] + (rng.random((10, 9)) < 0.1)
    vectors = rng.integers(-32768, 32768, (3, 9)).astype(np.int16)
    vectors = np.sign(vectors) * np.int16(5) if style == "ties" else vectors
    vectors = vectors // np.int16(8000) if style == "short" else vectors
    *taken, fraction, gram = take(vectors, atoms, s)
    exponents = np.full(3, exponent, np.int32)
    found = quantize(vectors, exponents, atoms, gram, fraction, taken, bits)
    wanted = twin.quantize_integers(vectors, atoms, fraction, *taken, exponents, bits)
    assert np.array_equal(found[0], wanted[0])
    assert np.array_equal(found[1], wanted[1])
    assert np.abs(found[0]).max() < 2 ** (bits - 1)
    assert (found[1] <= 0x7F7F).all()


@pytest.mark.parametrize(("dim", "bits"), [(512, 15), (513, 14), (1024, 14)])
def test_the_greatest_vectors_do_not_overflow(dim, bits):
    assert vector_bits(dim) == bits
    atoms = np.full((3, dim), 127, np.int8)
    atoms[1, dim // 2 :] = 126
    atoms[2, ::2] = -127
    vectors = np.full((2, dim), -(2**bits), np.int16)
    vectors[1, ::2] = 2**bits - 1
    *taken, fraction, gram = take(vectors, atoms, 3)
    for found, wanted in zip(taken, twin.mp_integers(vectors, atoms, fraction, 3)[:3], strict=True):
        assert np.array_equal(found, wanted)
    exponents = np.zeros(2, np.int32)
    codes, scales = quantize(vectors, exponents, atoms, gram, fraction, taken, 8)
    wanted = twin.quantize_integers(vectors, atoms, fraction, *taken, exponents, 8)
    assert np.array_equal(codes, wanted[0])
    assert np.array_equal(scales, wanted[1])


def make_set(dim=32, atoms=256, mean=0.0):
    """A dictionary that vectors of `make_rows` are sparse over, up to noise, with atoms as far from one another as
    those of a trained one.
    """
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((atoms, dim)) + 0.4 * rng.standard_normal(dim)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    own = Dictionary(quantize_atoms(rows), ((0, StreamId.K), (0, StreamId.V)), np.full(dim, mean, np.float32))
    return DictionarySet((own,))


def make_rows(own, n, seed=0):
    """bfloat16 values as float32 (n, dim)."""
    rng = np.random.default_rng(seed)
    one = own.dictionaries[0]
    x = np.stack([rng.standard_normal(10) @ (one.atoms[rng.integers(0, one.size, 10)] / 60.0) for _ in range(n)])
    return (x + one.mean + 0.15 * rng.standard_normal(x.shape)).astype(ml_dtypes.bfloat16).astype(np.float32)


def error_of(own, rows, codes, found):
    one = own.dictionaries[0]
    scales = found.scales.view(ml_dtypes.bfloat16).astype(np.float64)
    back = np.einsum("is,isd->id", found.coefficients.astype(float), one.atoms.astype(float)[found.indices])
    return np.linalg.norm(rows - one.mean - scales[:, None] * back) / np.linalg.norm(rows - one.mean)


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("mean", [0.0, 0.75])
def test_pursuits_err_in_this_order_and_integers_not_by_much_more(bits, mean):
    own = make_set(mean=mean)
    rows = make_rows(own, 30 if INTERPRETED else 600)
    codes = SparseCodes(8, bits, size=256)
    errors = {}
    for name in ("omp", "ormp", "mp"):
        one = own.with_pursuit(name)
        errors[name] = error_of(one, rows, codes, pursue(rows, one.dictionaries[0], codes))
    assert errors["ormp"] < errors["omp"] < errors["mp"] < 1.25 * errors["omp"]


def test_a_vector_stops_where_its_error_is_met():
    own = make_set(mean=0.5).with_pursuit("mp")
    one, rows = own.dictionaries[0], make_rows(own, 60)
    whole = pursue(rows, one, SparseCodes(16, 8, size=256))
    assert (whole.counts == 16).all()
    found = pursue(rows, one, SparseCodes(16, 8, error=16384, size=256))
    assert 1 <= found.counts.min() < found.counts.max() <= 16
    for i in range(len(rows)):
        count = found.counts[i]
        assert np.array_equal(found.indices[i, :count], whole.indices[i, :count])
    squares = (rows.astype(float) - one.mean) ** 2
    told = pursue(rows, one, SparseCodes(16, 8, size=256), targets=squares.sum(axis=1) / 4)
    assert np.array_equal(told.counts, found.counts)
    assert not pursue(rows, one, SparseCodes(16, 8, size=256), targets=squares.sum(axis=1) * 1.01).counts.any()
    assert (pursue(rows, one, SparseCodes(16, 8, size=256), targets=np.full(60, -1.0)).counts == 16).all()


def test_rows_of_zeros_and_rows_alone_are_coded_as_beside_others():
    own = make_set().with_pursuit("mp")
    rows = make_rows(own, 5)
    rows[2] = 0
    found = pursue(rows, own.dictionaries[0], SparseCodes(6, 6, size=256))
    assert not found.counts[2] and not found.scales[2] and not found.coefficients[2].any()  # noqa: PT018
    for i in range(5):
        alone = pursue(rows[i : i + 1], own.dictionaries[0], SparseCodes(6, 6, size=256))
        assert all(np.array_equal(a[0], b[i]) for a, b in zip(alone, found, strict=True))


def test_a_pursuit_does_not_name_a_set():
    own = make_set()
    assert own.with_pursuit("mp").hash == own.hash
    assert own.with_pursuit(None) is own
    assert own.with_pursuit("omp") is own
    with pytest.raises(SpecError, match="pursuit is 'lasso', want omp, ormp, mp"):
        own.with_pursuit("lasso")


@pytest.mark.skipif(INTERPRETED, reason="there is no machine code")
def test_kernels_are_integer_only():
    atoms = np.eye(3, 40, dtype=np.int8) * np.int8(100)
    vectors, exponents = np.ones((1, 40), np.int16), np.zeros(1, np.int32)
    *taken, fraction, gram = take(vectors, atoms, 2)
    codes, scales, work = np.zeros((1, 2), np.int8), np.zeros(1, np.uint16), np.zeros(4, np.int64)
    rows, mean = np.ones((1, 40), np.uint32), np.ones(40, np.uint32)
    for kernel, arguments in (
        (fix_rows, (rows, mean, 15, vectors, exponents)),
        (quantize_integers, (vectors, exponents, atoms, gram, fraction, *taken, 6, codes, scales, work)),
    ):
        fresh = numba.njit(nogil=True, error_model="numpy")(kernel.py_func)
        fresh(*arguments)
        (llvm,) = fresh.inspect_llvm().values()
        words = words_of(llvm)
        assert words.count("i64") > 100
        assert FLOATS.findall(words) == []


@pytest.mark.parametrize("spec", ["dict/s8/c6/ef", "dict/s12/c6/max0.4"])
def test_a_log_is_read_alike_whatever_encoder_wrote_it(tmp_path, spec):
    own = make_set()
    rows = make_rows(own, 200).reshape(200, 1, 32)
    model, errors = kv.Model.uniform(layers=1, kv_heads=1, head_dim=32), {}
    for name in ("omp", "mp"):
        path = tmp_path / f"{name}.kvlog"
        options = {"k": spec, "v": "raw", "residual": 0, "sinks": 0, "dictionary": own, "pursuit": name}
        with kv.open(path, "w", model=model, **options) as store:
            store.sequence("one").append(0, rows, rows)
        with kv.open(path, "a", pursuit=name) as store:  # the set is the log's own now
            store.sequence("two").append(0, rows, rows)
        with kv.open(path) as store:
            first, second = (store.sequence(n).read(0)[0].astype(np.float32) for n in ("one", "two"))
        assert np.array_equal(first, second)
        errors[name] = np.linalg.norm(first - rows) / np.linalg.norm(rows)
        if "max" in spec:
            assert (np.linalg.norm(first - rows, axis=2) <= 0.4 * np.linalg.norm(rows, axis=2)).all()
        else:
            array = kv.encode_array(rows, spec, dictionary=own.dictionaries[0], pursuit=name)
            assert np.array_equal(kv.decode_array(array).astype(np.float32), first)
    assert errors["omp"] != errors["mp"]
    assert "max" in spec or errors["omp"] < errors["mp"]


def test_dumps_are_coded_by_a_pursuit_and_resumed_by_the_same(tmp_path):
    own = make_set()
    rows = make_rows(own, 300).reshape(300, 1, 32).astype(ml_dtypes.bfloat16)
    write_artefact(tmp_path / "a.kvdict", Artefact(own, {}))
    for name, tokens in (("part", 200), ("whole", 300)):
        with create_dump(tmp_path / name, [(f"{s}.0", rows.dtype, (tokens, 1, 32)) for s in "kv"], {}) as dump:
            for s in "kv":
                dump.write(f"{s}.0", 0, rows[:tokens])
            dump.commit()
    options = {"k": "dict/s8/c6", "v": "raw", "dictionary": tmp_path / "a.kvdict", "sequence": "a"}
    options |= {"residual": 0, "sinks": 0, "pursuit": "mp"}
    kv.encode(tmp_path / "part", tmp_path / "log", **options)
    with pytest.raises(SpecError, match="not of this dump"):
        kv.encode(tmp_path / "whole", tmp_path / "log", append=True, resume=True, **options | {"pursuit": "ormp"})
    kv.encode(tmp_path / "whole", tmp_path / "log", append=True, resume=True, **options)
    arguments = ["encode", tmp_path / "whole", tmp_path / "other", "--k", "dict/s8/c6", "--v", "raw", "--residual", 0]
    invoke(*arguments, "--sinks", 0, "--dictionary", tmp_path / "a.kvdict", "--pursuit", "mp", "--sequence", "a")
    read = []
    for name in ("log", "other"):
        with kv.open(tmp_path / name) as store:
            read.append(store.sequence("a").read(0)[0])
    assert read[0].tobytes() == read[1].tobytes()
    drift = ["drift", tmp_path / "whole", "--dictionary", tmp_path / "a.kvdict", "--json", "--pursuit"]
    errors = [json.loads(invoke(*drift, name).stdout)["texts"][0]["streams"]["k"]["error"] for name in ("omp", "mp")]
    assert errors[0] < errors[1] < 1.25 * errors[0]
    assert "pursuit is 'lars', want omp, ormp, mp" in invoke(*drift, "lars", code=2).stderr
