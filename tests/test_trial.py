"""kvcodec diff without a second file: codecs side by side on a dump."""

import json

import ml_dtypes
import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.compare import compare
from kvcodec.bulk.trial import try_codecs
from kvcodec.bulk.trial_coder import SpecCoder
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.rotation import Rotation
from kvcodec.dictionary import baseline
from kvcodec.dictionary.artefact import Artefact, write_artefact
from kvcodec.dumps import create_dump, open_dump
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import StreamId
from tests.test_bulk import REAL
from tests.test_cli import invoke

KV = (StreamId.K, StreamId.V)


@pytest.fixture(name="own", scope="module")
def own_fixture():
    """Vectors of the dump as atoms: they know it better than random ones."""
    made = []
    with open_dump(REAL) as dump:
        for layer in dump.layers:
            for stream in KV:
                rows = dump.rows(layer, stream, 4, 512)[::2, 0].astype(np.float32)
                rows /= np.linalg.norm(rows, axis=1, keepdims=True)
                made.append(Dictionary(quantize_atoms(rows), ((layer, stream),)))
    return DictionarySet(tuple(made))


def test_the_article_takes_18_bytes_and_errs_as_its_coder_does():
    (row,) = try_codecs(REAL, ["article"]).rows
    assert (row.bytes_a_vector, row.vectors) == (18, 508 * 3 * 2)
    missed = energy = 0.0
    with open_dump(REAL) as dump:
        codebook = baseline.random_codebook(dump.shape(5, StreamId.K)[2])
        for layer in dump.layers:
            x = dump.rows(layer, StreamId.K, 4, 512)[:, 0].astype(np.float32)
            back = baseline.decode_vectors(baseline.encode_vectors(x, codebook), codebook)
            missed, energy = missed + np.linalg.norm(x - back) ** 2, energy + np.linalg.norm(x) ** 2
    assert row.k.relative == pytest.approx(np.sqrt(missed / energy), rel=1e-6)


def test_omp_and_training_buy_what_the_article_leaves_behind(own):
    rows = try_codecs(REAL, ["article", "dict/s8/c6/ef"], dictionary=own, layers="5").rows
    assert [(row.atoms, row.pursuit) for row in rows] == [
        ("random", "products"), ("random", "omp"), ("a set", "omp"), ("a set", "ormp"), ("a set", "mp"),
    ]  # fmt: skip
    article, random, omp, ormp, mp = rows
    assert 18 <= random.bytes_a_vector < 18.2 > omp.bytes_a_vector
    for name in "kv":
        errors = [getattr(row, name).relative for row in (ormp, omp, mp, random, article)]
        assert errors == sorted(errors)
    assert omp.attention.both < random.attention.both < article.attention.both


def test_a_log_errs_as_much(tmp_path, own):
    spec = "dict/s6/c6/ef"
    kv.encode(REAL, tmp_path / "log", k=spec, v=spec, dictionary=own, residual=0, sinks=4, pursuit="mp")
    row = try_codecs(REAL, [spec], dictionary=own, pursuits=["mp"]).rows[-1]
    found = compare(REAL, tmp_path / "log").attention
    assert (found.k_only, found.v_only, found.both) == pytest.approx(
        (row.attention.k_only, row.attention.v_only, row.attention.both), rel=1e-9
    )


def test_what_cannot_be_tried_is_said(tmp_path, own):
    some = DictionarySet(tuple(one for one in own.dictionaries if one.uses[0][0] == 8))
    with pytest.raises(SpecError, match=r"layer 5 K: no dictionary for it; choose layers of 8"):
        try_codecs(REAL, dictionary=some)
    assert try_codecs(REAL, dictionary=some, layers="8", pursuits=["omp"]).layers == (8,)
    with pytest.raises(SpecError, match="no codec to try"):
        try_codecs(REAL, [])
    with pytest.raises(SpecError, match="sinks is 512"):
        try_codecs(REAL, sinks=512)
    narrow = np.ones((3, 8), np.int8)
    uses = tuple((layer, stream) for layer in (5, 8, 17) for stream in KV)
    with pytest.raises(ShapeError, match="256 channels, its dictionary's atoms have 8"):
        try_codecs(REAL, dictionary=DictionarySet((Dictionary(narrow, uses),)))


@pytest.mark.parametrize("spec", ["dict/s4", "dict/s4/max0.9"])
def test_rows_are_tried_at_their_positions(spec):
    """Over a dictionary of keys from before their rotary embedding."""
    rng = np.random.default_rng(0)
    atoms = rng.integers(-127, 128, (50, 16)).astype(np.int8)
    own = DictionarySet((Dictionary(atoms, ((0, StreamId.K),), rotation=Rotation.of_base(100.0, 16)),))
    rows, coder = rng.standard_normal((200, 2, 16)).astype(np.float32), SpecCoder(spec, own)
    whole = coder.code(rows, 0, StreamId.K, 0).rows
    assert np.array_equal(coder.code(rows[64:], 0, StreamId.K, 64).rows, whole[64:])
    assert not np.array_equal(coder.code(rows[64:], 0, StreamId.K, 0).rows, whole[64:])


def test_the_command(tmp_path, own):
    path = tmp_path / "m.kvdict"
    write_artefact(path, Artefact(own, {}))
    arguments = ["diff", REAL, "--dictionary", path, "--pursuit", "mp", "--layers", "8"]
    table = invoke(*arguments).stdout
    assert table.splitlines()[1].split() == ["codec", "atoms", "pursuit", "bytes", "K", "V", "outputs"]
    shown = json.loads(invoke(*arguments, "--json").stdout)
    assert shown["layers"] == [8]
    names = [(row["codec"], row["atoms"], row["pursuit"]) for row in shown["codecs"]]
    assert names == [
        ("article", "random", "products"), ("dict/s8/c6/ef", "random", "omp"), ("dict/s8/c6/ef", "m.kvdict", "mp"),
    ]  # fmt: skip
    for row in shown["codecs"]:
        line = f"{row['bytes_a_vector']:.2f} {row['k']:.4f} {row['v']:.4f} {row['attention']['both']:.4f}"
        assert line in " ".join(table.split())
    assert "need OTHER" in invoke(*arguments, "--max-error", 0.1, code=2).stderr
    assert "leave OTHER out" in invoke("diff", REAL, REAL, "--codec", "int4", code=2).stderr
    assert "lars" in invoke("diff", REAL, "--dictionary", path, "--pursuit", "lars", code=2).stderr


def test_rows_without_queries_and_of_float32(tmp_path):
    rows = np.random.default_rng(0).standard_normal((70, 2, 16)).astype(np.float32)
    for kind in (np.float32, ml_dtypes.bfloat16):
        with create_dump(tmp_path / kind.__name__, [(f"{s}.0", np.dtype(kind), rows.shape) for s in "kv"], {}) as dump:
            for s in "kv":
                dump.write(f"{s}.0", 0, rows.astype(kind))
            dump.commit()
    wide, narrow = (
        try_codecs(tmp_path / name, ["article", "int8/token/g16", "dict/s4/max0.9"]).rows
        for name in ("float32", "bfloat16")
    )
    assert {row.attention for row in (*wide, *narrow)} == {None}
    for one, other in zip(wide, narrow, strict=True):
        assert one.k.relative == pytest.approx(other.k.relative, abs=0.01)
        assert one.nbytes == pytest.approx(other.nbytes, rel=0.1)
