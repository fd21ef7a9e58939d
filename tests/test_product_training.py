"""kvcodec train --codec pq: metrics, budgets, the job and the command."""

import contextlib
import json
import threading

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import kvcodec as kv
from kvcodec.bulk.train_metrics import find_metrics, output_metric
from kvcodec.bulk.train_options import ProductSettings, TrainOptions, plan_units
from kvcodec.bulk.train_rows import query_metric
from kvcodec.codecs.rotation import Rotation
from kvcodec.dictionary.artefact import read_artefact
from kvcodec.dumps import open_dump
from kvcodec.errors import DumpError, LogExists, SpecError
from kvcodec.layout import StreamId
from tests.test_cli import invoke, refused

K, V = StreamId.K, StreamId.V
DIM, TOKENS = 12, 400
PQ = {"codec": "pq", "budget": 6, "sample": 700}


def moment(lot, heads, scale=1.0):
    half = lot.standard_normal((heads, DIM, DIM)) * np.geomspace(3, 0.1, DIM)
    return (scale * half @ half.transpose(0, 2, 1)).astype(np.float32)


def make_dump(path, seed=0, heads=2, leave_out=(), gradients=1.0, **metadata):
    """Two layers: rows with a mean, K turned, and every tensor that metrics are made of but those left out."""
    lot, turn = np.random.default_rng(seed), np.linalg.qr(np.random.default_rng(9).standard_normal((DIM, DIM)))[0]
    tensors = {}
    for layer in (0, 1):
        for stream in "kv":
            rows = (lot.standard_normal((TOKENS, heads, DIM)) * 0.8 ** np.arange(DIM) @ turn + turn[0]).astype(
                np.float32
            )
            if stream == "k":
                tensors[f"k_pre.{layer}"] = rows
                rows = Rotation.of_base(100.0, DIM).turn(rows, np.arange(TOKENS))
            tensors[f"{stream}.{layer}"] = rows
        for name in ("q_cov", "q_cov_pre", "o_cov"):
            tensors[f"{name}.{layer}"] = moment(lot, heads)
        for name in ("k_grad", "k_grad_pre", "v_grad"):
            tensors[f"{name}.{layer}"] = moment(lot, heads, gradients * (1 + 40 * layer))
    own = {name: tensor for name, tensor in tensors.items() if name not in leave_out}
    save_file(own, path, {"rope_bases": "100", "sliding_window": "100", "global_layers": "1"} | metadata)
    return path


@pytest.fixture(name="dumps", scope="module")
def dumps_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    return [make_dump(folder / f"{n}.safetensors", n) for n in range(2)]


def options(**changed):
    given = {
        "streams": (K, V), "layers": None, "share": "none", "rope": "post", "rope_base": None, "metric": "none",
        "ridge": 0.1, "fraction": 0.1, "sinks": 4, "codec": "pq",
    }  # fmt: skip
    return TrainOptions(**(given | changed))


def metrics_of(paths, **changed):
    asked = options(**changed)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_dump(path)) for path in paths]
        return find_metrics(opened, plan_units(asked, opened), asked)


# -- metrics -------------------------------------------------------------------------------------------------------


def test_gradients_are_averaged_over_the_dumps_that_have_them(dumps, tmp_path):
    without = make_dump(tmp_path / "a", 5, leave_out=[f"{n}_grad.{layer}" for n in "kv" for layer in (0, 1)])
    found = metrics_of([without, *dumps], metric="gradient")
    wanted = []
    for name in ("k_grad.0", "v_grad.0", "k_grad.1", "v_grad.1"):
        total = np.zeros((DIM, DIM))
        for path in dumps:
            with open_dump(path) as dump:
                total += dump.numbers(name).astype(np.float64).sum(axis=0) / 2
        share = 2 if name[0] == "v" else 1
        wanted.append(share * (total + 0.2 * np.trace(total) / DIM * np.eye(DIM)))
    common = np.mean([np.trace(own) / DIM for own in wanted])
    for own, exact in zip(found, wanted, strict=True):
        assert np.allclose(own, exact / common, rtol=1e-5)
    pre = metrics_of(dumps, metric="gradient", rope="pre")
    assert not np.allclose(pre[0] / np.trace(pre[0]), found[0] / np.trace(found[0]), rtol=0.01)
    (shared,) = metrics_of(dumps, metric="gradient", share="layers", streams=(V,))
    both = wanted[1] + wanted[3]  # the plain part is one of the sum
    assert np.allclose(shared / np.trace(shared), both / np.trace(both), rtol=1e-5)


def test_a_layer_without_gradients_is_named(dumps, tmp_path):
    bare = [make_dump(tmp_path / str(n), n, leave_out=("v_grad.1",)) for n in range(2)]
    with pytest.raises(DumpError, match=r"no v_grad\.1 in it or any other: .*layer 1 V"):
        metrics_of(bare, metric="gradient")
    assert metrics_of(bare, metric="gradient", layers="0")[0] is not None
    with pytest.raises(DumpError, match=r"no k_grad\.0"):
        metrics_of([make_dump(tmp_path / "zero", gradients=0.0)], metric="gradient")
    with pytest.raises(DumpError, match=r"no v_grad\.1"):
        kv.train(bare, tmp_path / "m.kvdict", **PQ, metric="gradient")
    assert not (tmp_path / "m.kvdict").exists()


def test_queries_measure_k_and_the_output_projection_v(dumps, tmp_path):
    found = metrics_of(dumps, metric="query", ridge=0.3)
    with open_dump(dumps[0]) as a, open_dump(dumps[1]) as b:
        assert np.array_equal(found[2], query_metric([a, b], [1], 0.3))
        assert np.array_equal(found[3], output_metric([a, b], [1], 0.3))
        moments = [d.numbers("o_cov.1").astype(np.float64).sum(axis=0) for d in (a, b)]
        wanted = sum(own / np.trace(own) for own in moments) / 2 * DIM + 0.3 * np.eye(DIM)
        assert np.allclose(found[3], wanted, rtol=1e-4)
    plain = metrics_of([make_dump(tmp_path / "a", leave_out=("o_cov.1",))], metric="query")
    assert [own is None for own in plain] == [False, False, False, True]
    assert metrics_of(dumps) == [None] * 4


# -- the job -------------------------------------------------------------------------------------------------------


def test_codes_of_each_stream_and_what_is_said_of_them(dumps, tmp_path):
    lines, steps, out = [], [], tmp_path / "m.kvdict"
    report = kv.train(dumps, out, **PQ, threads=1, tell=lines.append, progress=lambda *done: steps.append(done))
    found = read_artefact(out)
    own = found.dictionaries
    assert [one.uses for one in own.products] == [((layer, stream),) for layer in (0, 1) for stream in (K, V)]
    assert {one.groups for one in own.products} == {4}
    assert (report.tokens, report.held_out, report.units) == (2 * 356, 80, ())
    assert (report.hash, report.nbytes) == (own.hash.hex(), own.nbytes)
    told = found.information
    assert told["settings"] == {"codec": "pq", "budget": 6, "sample": 700, "context": None, "seed": 0, "predict": False}
    assert [dump["trained"] for dump in told["dumps"]] == [356, 356]
    entry = told["products"][1]
    assert (entry["layers"], entry["streams"], entry["bytes"], entry["bits_a_number"]) == ([0], ["v"], 6, 4.0)
    assert 550 <= entry["vectors"] <= 700
    assert report.as_dict()["products"][1] == {"name": "layer 0 V", **entry}
    assert steps == sorted(steps)
    assert steps[-1] == (4000, 4000)
    assert lines[-1].startswith("layer 1 V: 6 bytes, held-out error 0.")
    with open_dump(dumps[1]) as dump:  # the error is that of the codec on what was held out
        parts = [dump.rows(0, V, 360, 400)]
    with open_dump(dumps[0]) as dump:
        rows = np.concatenate([dump.rows(0, V, 360, 400), *parts]).reshape(-1, DIM)
    codes = own.find_product(0, V)
    wrong = np.linalg.norm(codes.rebuild(codes.code(rows)) - rows) / np.linalg.norm(rows)
    assert entry["error"] == pytest.approx(wrong, abs=1e-5)
    with pytest.raises(LogExists):
        kv.train(dumps, out, **PQ)


def test_one_budget_by_what_errors_cost_and_what_layers_hold(dumps, tmp_path):
    def sizes(**changed):
        report = kv.train(dumps, tmp_path / "m.kvdict", **(PQ | changed), metric="gradient", overwrite=True)
        bytes_ = [unit.about["bytes"] for unit in report.products]
        assert report.bytes_a_vector == pytest.approx(np.average(bytes_, weights=[u.vectors for u in report.products]))
        return bytes_

    alike = sizes()
    assert 5.5 <= np.mean(alike) <= 6
    assert alike[2] > alike[0]  # the gradients of layer 1 are 41 times those of layer 0
    longer = sizes(context=100_000)  # of which layer 0, with its window, holds 100
    assert longer[0] > alike[0]
    assert 5.5 <= np.average(longer, weights=[100, 100, 100_000, 100_000]) <= 6.01
    assert sizes(context=50) == alike  # within the window


def test_keys_from_before_their_rotation(dumps, tmp_path):
    kv.train(dumps, tmp_path / "m.kvdict", **PQ, rope="pre", metric="query", layers="0")
    k, v = read_artefact(tmp_path / "m.kvdict").dictionaries.products
    assert k.rotation == Rotation.of_base(100.0, DIM)
    assert v.rotation is None
    with open_dump(dumps[0]) as dump:
        rows = dump.rows(0, K, 300, 400)
    errors = {}
    for first in (300, 0):
        coded = kv.encode_array(rows, "pq", dictionary=k, first=first)
        errors[first] = np.linalg.norm(kv.decode_array(coded, dtype=np.float32) - rows) / np.linalg.norm(rows)
    assert errors[300] < 0.75 * errors[0]


def test_the_file_does_not_hang_on_threads(dumps, tmp_path):
    one, two, other = (tmp_path / f"{name}.kvdict" for name in "abc")
    for out, threads, seed in ((one, 1, 0), (two, 3, 0), (other, 1, 1)):
        kv.train(dumps, out, **PQ, threads=threads, share="layers", metric="gradient", seed=seed)
    assert one.read_bytes() == two.read_bytes()
    assert read_artefact(one).dictionaries.hash != read_artefact(other).dictionaries.hash


class InterruptedHere(BaseException):
    """As KeyboardInterrupt is, which pytest itself would take."""


def test_an_interrupt_ends_all_and_leaves_nothing(dumps, tmp_path):
    for threads in (1, 2):

        def interrupt(line):
            if line.startswith("layer 0 V") and "bytes" in line:
                raise InterruptedHere

        with pytest.raises(InterruptedHere):
            kv.train(dumps, tmp_path / "m.kvdict", **PQ, threads=threads, tell=interrupt)
        assert not list(tmp_path.iterdir())
        assert not [t for t in threading.enumerate() if t.name.startswith("kvcodec")]


def test_what_cannot_be_meant_is_refused(dumps, tmp_path):
    out = tmp_path / "m.kvdict"
    for wrong, said in (
        ({"codec": "x"}, "codec is 'x', want dict or pq"),
        ({"time": 5.0}, "codec pq takes no time; it is a matter of minutes"),
        ({"resume": True}, "codec pq takes no resume: its training keeps nothing"),
        ({"atoms": 8}, "atoms is for dictionaries, not for codec pq"),
        ({"mean": False}, "mean is for dictionaries"),
        ({"budget": 3}, "budget is 3 bytes of a vector, want 4 to 130"),
        ({"budget": float("nan")}, "budget is nan"),
        ({"sample": 10}, "sample is 10, want 256 or more"),
        ({"metric": "gradient", "context": 0}, "context is 0"),
        ({"context": 4096}, "context is for metric gradient"),
        ({"metric": "x"}, "metric is 'x', want none or query or gradient"),
        ({"metric": "gradient", "share": "all"}, "metric gradient is another one for K than for V"),
        ({"rope": "pre", "streams": "v"}, "rope pre is for K, and K is not among the streams"),
        ({"metric": "query", "streams": "c,kr"}, "metric query is for K and V, not for latents"),
    ):
        with pytest.raises(SpecError, match=said):
            kv.train(dumps, out, **(PQ | wrong))
    for wrong in ({"budget": 32}, {"sample": 1000}, {"context": 1}):
        with pytest.raises(SpecError, match=f"{next(iter(wrong))} is for codec pq"):
            kv.train(dumps, out, **wrong)
    with pytest.raises(SpecError, match="metric is 'gradient', want none or query"):
        kv.train(dumps, out, metric="gradient")
    assert not list(tmp_path.iterdir())
    assert ProductSettings().budget == 32


def test_more_bytes_than_components_have_use_for(dumps, tmp_path):
    report = kv.train(dumps, tmp_path / "m.kvdict", codec="pq", layers="0", streams="v", sample=300, metric="gradient")
    (unit,) = report.products
    assert (unit.about["bytes"], unit.product.groups) == (DIM + 2, DIM)


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command(dumps, tmp_path, capsys):
    out = tmp_path / "m.kvdict"
    line = ("train", *dumps, "-o", out, "--codec", "pq", "--budget", 6, "--sample", 500, "--layers", "1")
    shown = invoke(*line).stdout
    assert "2 product codes, 6.00 bytes a vector, " in shown
    rows = [row.split() for row in shown.splitlines()[-3:-1]]
    told = json.loads(invoke(*line, "--force", "--json", "--metric", "gradient", "--context", 4096).stdout)
    assert [row[:6] for row in rows] == [["layer", "1", s, "6", "4.000", "12"] for s in "KV"]
    assert [one["name"] for one in told["products"]] == ["layer 1 K", "layer 1 V"]
    assert told["dictionaries"] == []
    assert 5.5 <= told["bytes_a_vector"] <= 6
    assert told["hash"] == read_artefact(out).dictionaries.hash.hex()
    assert f"{told['products'][0]['error']:.4f}" in invoke("info", out).stdout
    assert "resume" in refused(capsys, *line, "--force", "--resume")
    assert "codec pq takes no time" in refused(capsys, *line, "--force", "--time", "5")
    tried = json.loads(invoke("diff", dumps[0], "--codec", "pq", "--dictionary", out, "--layers", "1", "--json").stdout)
    assert 6 <= tried["codecs"][0]["bytes_a_vector"] < 8
    assert tried["codecs"][0]["k"] < 0.5


def test_bfloat16_dumps_of_one_head(tmp_path):
    rows = np.random.default_rng(0).standard_normal((300, 1, 8)).astype(ml_dtypes.bfloat16)
    save_file({"k.0": rows, "v.0": rows}, tmp_path / "a.safetensors")
    report = kv.train(tmp_path / "a.safetensors", tmp_path / "m.kvdict", **PQ, held_out=tmp_path / "a.safetensors")
    assert [unit.product.dim for unit in report.products] == [8, 8]
    with pytest.raises(DumpError, match="no metric"):
        kv.train(tmp_path / "a.safetensors", tmp_path / "n.kvdict", **PQ, metric="query")
