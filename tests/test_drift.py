"""kvcodec drift: errors over positions and over texts."""

import json

import ml_dtypes
import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.drift import measure_drift
from kvcodec.cli import main
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.dictionary.artefact import Artefact, write_artefact
from kvcodec.dumps import create_dump
from kvcodec.errors import SpecError
from kvcodec.layout import StreamId

BF16 = np.dtype(ml_dtypes.bfloat16)
DIM, LAYERS = 16, 2


def make_dump(path, tokens, spoilt_from):
    """Rows that are one atom each, and from some token on noise."""
    rng = np.random.default_rng(0)
    rows = own_set().dictionaries[0].atoms[rng.integers(0, 40, (LAYERS, 2, tokens))].astype(np.float32) / 64
    rows[:, :, spoilt_from:] = rng.standard_normal(rows[:, :, spoilt_from:].shape)
    declared = [(f"{s}.{n}", BF16, (tokens, 1, DIM)) for n in range(LAYERS) for s in "kv"]
    with create_dump(path, declared, {}) as writer:
        for n in range(LAYERS):
            for i, s in enumerate("kv"):
                writer.write(f"{s}.{n}", 0, rows[n, i][:, None].astype(BF16))
        writer.commit()
    return path


def own_set():
    atoms = quantize_atoms(np.random.default_rng(1).standard_normal((40, DIM)))
    return DictionarySet((Dictionary(atoms, tuple((n, s) for n in range(LAYERS) for s in (StreamId.K, StreamId.V))),))


def test_errors_rise_where_the_text_changes(tmp_path):
    dump = make_dump(tmp_path / "a.safetensors", 640, 384)
    report = measure_drift([dump], dictionary=own_set(), spec="dict/s2", every=128)
    (text,) = report.texts
    assert set(text.curves) == {"k", "v"}
    errors = [text.curves["k"].error(*stretch) for stretch in text.bins(128)]
    assert max(errors[:3]) < 0.02 < 0.3 < min(errors[3:])
    assert text.drift("v") > 10


def test_a_log_tells_its_own_errors(tmp_path):
    dump, log = make_dump(tmp_path / "a.safetensors", 640, 384), tmp_path / "a.kvlog"
    kv.encode(dump, log, k="dict/s2", v="int4/token/g16", dictionary=own_set(), residual=0, sinks=0)
    (text,) = measure_drift([log], every=128).texts
    (other,) = measure_drift([dump], dictionary=own_set(), spec="dict/s2", every=128).texts
    assert text.codecs == {"k": "dict/s2/c8/g64", "v": "int4/token/g16"}
    for stretch in text.bins(128):
        assert text.curves["k"].error(*stretch) == pytest.approx(other.curves["k"].error(*stretch), abs=1e-4)
        assert 0 < text.curves["v"].error(*stretch) < 0.2


def test_records_of_rows_that_were_coded_one_by_one_say_nothing(tmp_path):
    path = tmp_path / "a.kvlog"
    model = kv.Model.uniform(1, 1, DIM)
    with kv.open(path, "w", model=model, k="dict/s2", v="dict/s2", dictionary=own_set(), residual=0, sinks=0) as store:
        for _ in range(70):
            store.sequence("a").append(0, *np.random.default_rng(2).standard_normal((2, 1, 1, DIM)).astype(np.float32))
    (text,) = measure_drift([path]).texts
    assert text.curves["k"].unknown == 1
    assert np.isnan(text.curves["k"].error())


def test_what_cannot_be_measured(tmp_path):
    dump = make_dump(tmp_path / "a.safetensors", 64, 64)
    with pytest.raises(SpecError, match="dictionary"):
        measure_drift([dump])
    with pytest.raises(SpecError, match="no log or dump"):
        measure_drift([])
    lacking = DictionarySet((Dictionary(own_set().dictionaries[0].atoms, ((9, StreamId.K),)),))
    with pytest.raises(SpecError, match="no dictionary for any"):
        measure_drift([dump], dictionary=lacking)


def test_the_command(tmp_path, capsys, monkeypatch):
    dump, artefact = make_dump(tmp_path / "a.safetensors", 256, 192), tmp_path / "m.kvdict"
    write_artefact(artefact, Artefact(own_set(), {}))
    line = ["kvcodec", "drift", str(dump), "--dictionary", str(artefact), "--spec", "dict/s2"]
    for more, code in (([], 0), (["--json"], 0), (["--every", "0"], 2), (["--spec", "int3"], 2)):
        monkeypatch.setattr("sys.argv", line + more)
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == code
        out, err = capsys.readouterr()
        if more == ["--json"]:
            (text,) = json.loads(out)["texts"]
            assert text["tokens"] == 256
            assert len(text["streams"]["k"]["positions"]) == 4
            assert text["streams"]["k"]["drift"] > 5
        elif code:
            assert err.count("\n") == 1
        else:
            assert "drift" in out
            assert "192-255" in out
    plot = tmp_path / "drift.png"
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("sys.argv", [*line, "--plot", str(plot), "-q"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert plot.read_bytes()[1:4] == b"PNG"


def test_info_of_a_kvdict_file(tmp_path, capsys, monkeypatch):
    artefact = tmp_path / "m.kvdict"
    one = own_set().dictionaries[0]
    errors = np.array([0.5, 0.25, 0.2, 0.1], np.float32)
    write_artefact(artefact, Artefact(DictionarySet((Dictionary(one.atoms, one.uses, errors=errors),)), {}))
    for more, shown in (([], "k 0-1, v 0-1"), (["--json"], '"errors": [0.5, 0.25')):
        monkeypatch.setattr("sys.argv", ["kvcodec", "info", str(artefact), *more])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 0
        assert shown in capsys.readouterr().out
    artefact.write_bytes(artefact.read_bytes()[:-1])
    monkeypatch.setattr("sys.argv", ["kvcodec", "info", str(artefact)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
