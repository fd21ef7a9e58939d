"""kvcodec train --codec tcq."""

import json

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.codecs.rotation import Rotation
from kvcodec.dictionary.artefact import read_artefact
from kvcodec.dumps import open_dump
from kvcodec.errors import SpecError
from kvcodec.layout import StreamId
from tests.test_cli import invoke
from tests.test_product_training import DIM, make_dump

K, V = StreamId.K, StreamId.V
TCQ = {"codec": "tcq", "budget": 6, "sample": 700}


@pytest.fixture(name="dumps", scope="module")
def dumps_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    return [make_dump(folder / f"{n}.safetensors", n) for n in range(2)]


def test_codes_of_each_stream_and_what_is_said_of_them(dumps, tmp_path):
    out, lines = tmp_path / "m.kvdict", []
    report = kv.train(dumps, out, **TCQ, metric="gradient", threads=1, tell=lines.append)
    found = read_artefact(out)
    own = found.dictionaries
    assert [one.uses for one in own.trellises] == [((layer, stream),) for layer in (0, 1) for stream in (K, V)]
    assert {one.budget for one in own.trellises} == {6.0}
    assert (report.trained_as, report.hash, report.nbytes) == ("trellis codes", own.hash.hex(), own.nbytes)
    assert 5.5 <= report.bytes_a_vector <= 6
    assert own.trellises[2].code_bytes > own.trellises[0].code_bytes  # gradients of layer 1 are 41 times layer 0's
    told = found.information
    assert told["settings"] == {
        "codec": "tcq",
        "budget": 6,
        "sample": 700,
        "context": None,
        "seed": 0,
        "predict": False,
    }
    entry, one = told["trellises"][1], own.trellises[1]
    assert (entry["layers"], entry["bytes"], entry["bits"]) == ([0], one.code_bytes + 2, one.bits)
    assert report.as_dict()["trellises"][1] == {"name": "layer 0 V", **entry}
    assert lines[-1].startswith("layer 1 V: ")
    with open_dump(dumps[0]) as a, open_dump(dumps[1]) as b:
        rows = np.concatenate([dump.rows(0, V, 360, 400) for dump in (a, b)]).reshape(-1, DIM)
    wrong = np.linalg.norm(one.rebuild(one.code(rows)) - rows) / np.linalg.norm(rows)
    assert entry["error"] == pytest.approx(wrong, abs=1e-5)
    kv.train(dumps, tmp_path / "two.kvdict", **TCQ, metric="gradient", threads=3)
    assert (tmp_path / "two.kvdict").read_bytes() == out.read_bytes()


def test_keys_from_before_their_rotation(dumps, tmp_path):
    kv.train(dumps, tmp_path / "m.kvdict", **TCQ, rope="pre", metric="query", layers="0", streams="k")
    (k,) = read_artefact(tmp_path / "m.kvdict").dictionaries.trellises
    assert k.rotation == Rotation.of_base(100.0, DIM)
    with open_dump(dumps[0]) as dump:
        rows = dump.rows(0, K, 300, 400)
    errors = {}
    for first in (300, 0):
        coded = kv.encode_array(rows, "tcq/B6", dictionary=k, first=first)
        errors[first] = np.linalg.norm(kv.decode_array(coded, dtype=np.float32) - rows) / np.linalg.norm(rows)
    assert errors[300] < 0.75 * errors[0]


def test_what_cannot_be_meant_is_refused(dumps, tmp_path):
    for wrong, said in (
        ({"time": 5.0}, "codec tcq takes no time; it is a matter of minutes"),
        ({"atoms": 8}, "atoms is for dictionaries, not for codec tcq"),
        ({"budget": 2}, "budget is 2 bytes of a vector, want 3 to 514"),
        ({"context": 4096}, "context is for metric gradient"),
        ({"metric": "x"}, "metric is 'x', want none or query or gradient"),
    ):
        with pytest.raises(SpecError, match=said):
            kv.train(dumps, tmp_path / "m.kvdict", **(TCQ | wrong))
    assert not list(tmp_path.iterdir())


def test_the_command(dumps, tmp_path):
    out = tmp_path / "m.kvdict"
    line = ("train", *dumps, "-o", out, "--codec", "tcq", "--sample", 500, "--layers", "1")
    shown = invoke(*line).stdout
    assert "2 trellis codes, 13.00 bytes a vector, " in shown  # of 98: 7 bits for each of 12 components
    rows = [row.split() for row in shown.splitlines()[-3:-1]]
    assert [row[:6] for row in rows] == [["layer", "1", s, "13", "8.667", "12"] for s in "KV"]
    assert "trained for B98" in invoke("info", out).stdout
    tried = invoke("diff", dumps[0], "--codec", "tcq/B98", "--dictionary", out, "--layers", "1", "--json").stdout
    (row,) = json.loads(tried)["codecs"]
    assert 13 <= row["bytes_a_vector"] < 16
    assert row["k"] < 0.05
