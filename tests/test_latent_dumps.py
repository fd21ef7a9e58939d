"""Dumps of multi-head latent attention: the latent c and the position key kr of every layer, one row a token."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import kvcodec as kv
from kvcodec.bulk.train import train_dumps
from kvcodec.dumps import open_dump
from kvcodec.dumps.names import PAIRS, recognise
from kvcodec.errors import DumpError, ShapeError, SpecError
from kvcodec.layout import StreamId
from tests.test_cli import invoke

LATENT = (StreamId.C, StreamId.KR)
DIMS = {"c": 24, "kr": 8}
TOKENS, LAYERS = 330, 2


def make_rows(seed=0):
    """Sums of two of a few directions each, and noise: {"c.0": (tokens, 24), …}, bfloat16."""
    directions, lot = np.random.default_rng(9), np.random.default_rng(seed)
    rows = {}
    for layer in range(LAYERS):
        for name, dim in DIMS.items():
            atoms, shape = directions.standard_normal((12, dim)), (TOKENS, 2)
            x = (lot.choice([-1, 1], (*shape, 1)) * atoms[lot.integers(0, 12, shape)]).sum(axis=1)
            rows[f"{name}.{layer}"] = (x + 0.02 * lot.standard_normal(x.shape)).astype(ml_dtypes.bfloat16)
    return rows


@pytest.fixture(name="dump")
def dump_fixture(tmp_path):
    save_file(make_rows(), tmp_path / "mla.safetensors")
    return tmp_path / "mla.safetensors"


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("c.3", (3, StreamId.C)), ("kr_3", (3, StreamId.KR)), ("0.k_pe", (0, StreamId.KR)),
        ("model.layers.7.self_attn.compressed_kv", (7, StreamId.C)), ("layer_0_latent", (0, StreamId.C)),
        ("past_key_values.1.k_rope", (1, StreamId.KR)), ("past_key_values.1.0", None), ("k.1", None),
        ("c_proj.0", None),
    ],
)  # fmt: skip
def test_names(name, place):
    assert recognise(name, PAIRS[1]) == place
    assert place is None or recognise(name) is None


def test_rows_are_one_a_token_whatever_their_shape(tmp_path):
    rows = make_rows()
    shapes = {"c.0": (TOKENS, 24), "kr.0": (TOKENS, 1, 8), "c.1": (1, 1, TOKENS, 24), "kr.1": (TOKENS, 8)}
    save_file(
        {name: rows[name].reshape(shape) for name, shape in shapes.items()},
        tmp_path / "a.safetensors", {"kv_heads": "16", "head_dim": "3"},
    )  # fmt: skip
    with open_dump(tmp_path / "a.safetensors") as dump:
        assert (dump.streams, dump.layers, dump.tokens) == (LATENT, (0, 1), TOKENS)
        for layer in range(LAYERS):
            for stream in LATENT:
                found = dump.rows(layer, stream, 5, 70)
                assert np.array_equal(found[:, 0], rows[f"{stream.name.lower()}.{layer}"][5:70])
        assert dump.queries(0) is None


def test_what_is_no_dump_of_latents_is_said(tmp_path):
    rows, path = make_rows(), tmp_path / "a.safetensors"
    save_file({name: x for name, x in rows.items() if name != "kr.1"}, path)
    with pytest.raises(DumpError, match=r"layer 1 has C \('c.1'\) but no KR"):
        open_dump(path)
    save_file({"c.0": rows["c.0"].reshape(TOKENS, 4, 6), "kr.0": rows["kr.0"]}, path)
    with pytest.raises(DumpError, match="4 heads, want 1"):
        open_dump(path)
    both = {"k.0": rows["c.0"][:, None], "v.0": rows["c.0"][:, None], "c.0": rows["c.0"][:9].astype(np.float32)}
    save_file(both, path)
    with open_dump(path) as dump:  # what else it holds is neither
        assert dump.streams == (StreamId.K, StreamId.V)
    save_file({"x.0.a": rows["c.0"], "x.0.b": rows["kr.0"]}, path)
    with open_dump(path, mapping=["c=x.{layer}.a", "kr=x.{layer}.b"]) as dump:
        assert dump.streams == LATENT
    for mapping, why in (
        (["c=x.{layer}.a"], "names c but not kr"),
        (["c=x.{layer}.a", "k=x.{layer}.b"], "want k and v"),
    ):
        with pytest.raises(DumpError, match=why):
            open_dump(path, mapping=mapping)


def test_dictionaries_of_latents_are_trained_and_code_a_log(tmp_path, dump):
    out = tmp_path / "m.kvdict"
    options = {"atoms": 24, "sparsity": 2, "epochs": 8}
    report = train_dumps(dump, out, **options)
    own = kv.read_dictionary(out)
    assert own.uses() == [(layer, stream) for layer in range(LAYERS) for stream in LATENT]
    for layer in range(LAYERS):
        for stream in LATENT:
            one = own.find(layer, stream)
            assert one.dim == DIMS[stream.name.lower()]
            assert one.errors[-1] < 0.35 < one.errors[0]
    assert (report.tokens, report.held_out) == (TOKENS - 4 - 33, 33)
    kv.encode(dump, tmp_path / "log", c="dict/s2", kr="dict/s2", dictionary=out, residual=0)
    rows = make_rows()
    with kv.open(tmp_path / "log") as store:
        assert store.model.layers[1] == kv.Layer.mla(24, 8)
        found = store.sequence("mla").read(1)
        for stream, back in zip(["c", "kr"], found, strict=True):
            x = rows[f"{stream}.1"].astype(np.float32)
            assert np.linalg.norm(back[:, 0] - x) < 0.35 * np.linalg.norm(x)
    shown = json.loads(invoke("drift", dump, "--dictionary", out, "--spec", "dict/s2", "--json").stdout)["texts"][0]
    assert {name: found["error"] < 0.35 for name, found in shown["streams"].items()} == {"c": True, "kr": True}


def test_the_commands(tmp_path, dump):
    arguments = ["train", dump, "-o", tmp_path / "m.kvdict", "--atoms", 16, "--sparsity", 2, "--epochs", 1]
    invoke(*arguments, "--streams", "kr", "--share", "layers")
    (one,) = kv.read_dictionary(tmp_path / "m.kvdict").dictionaries
    assert one.uses == ((0, StreamId.KR), (1, StreamId.KR))
    invoke("encode", dump, tmp_path / "log", "--c", "int8/token/g16", "--kr", "int8/token/g16/sym", "--residual", 0)
    shown = json.loads(invoke("info", tmp_path / "log", "--json").stdout)["sequences"][0]
    assert shown["codecs"] == ["c=int8/token/g16", "kr=int8/token/g16/sym"]
    invoke("decode", tmp_path / "log", tmp_path / "back.safetensors")
    with open_dump(tmp_path / "back.safetensors") as back, kv.open(tmp_path / "log") as store:
        assert back.streams == LATENT
        for layer in range(LAYERS):
            for stream, rows in zip(LATENT, store.sequence("mla").read(layer), strict=True):
                assert np.array_equal(back.rows(layer, stream, 0, TOKENS), rows)
    assert "other streams than K and V" in invoke("diff", dump, tmp_path / "log", code=2).stderr
    assert "no layer 0 K" in invoke("diff", dump, code=2).stderr


def test_what_cannot_be_trained_is_refused(tmp_path, dump):
    out = tmp_path / "m.kvdict"
    for options, error, why in (
        ({"streams": "k,v"}, DumpError, "no layer 0 K"),
        ({"streams": "c,k"}, SpecError, "want k, v or k,v, or of latents"),
        ({"share": "all"}, ShapeError, "has 8 channels, others 24"),
        ({"streams": "c", "metric": "query"}, SpecError, "K is not among the streams"),
        ({"metric": "query"}, SpecError, "K is not among the streams"),
    ):
        with pytest.raises(error, match=why):
            train_dumps(dump, out, **{"atoms": 8, "sparsity": 2, "epochs": 1} | options)


@pytest.mark.parametrize(("name", "options"), [("k", {"k": "int4/channel/g64"}), ("v", {"v": "raw", "c": "raw"})])
def test_a_codec_of_a_stream_that_is_not_there_is_refused(name, options, dump, tmp_path):
    with pytest.raises(SpecError, match=f"{name} is to be .*, and there is no such stream in it"):
        kv.encode(dump, tmp_path / "a.kvlog", **options)
    assert not (tmp_path / "a.kvlog").exists()
