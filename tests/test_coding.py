"""Codecs by stream and layer: arguments, TOML spec files, and the policies that come of them."""

import re
from pathlib import Path

import pytest

import kvcodec as kv
from kvcodec.errors import SpecError
from kvcodec.store.coding import parse_layers, read_spec_file
from tests.caches import TINY, rows, same, tiny_model

SPEC = """
k = "int4/channel/g32"
residual = 16
sinks = { k = 2, v = 0 }

[[layer]]
layers = "0,2-3"
v = "raw"

[[layer]]
layers = [3]
k = "raw"
residual = { v = 5 }
"""


def policies(store):
    return [
        [f"{p.spec} {p.residual} {p.sinks}" for p in (store.index.default.at(n, s.id) for s in layer.streams)]
        for n, layer in enumerate(store.model.layers)
    ]


def test_a_spec_file_says_it_by_layer(tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    with kv.open(tmp_path / "c", "w", model=tiny_model(4), spec=tmp_path / "spec.toml", device=TINY) as store:
        assert policies(store) == [
            ["int4/channel/g32 16 2", "raw 16 0"],
            ["int4/channel/g32 16 2", "int4/token/g64 16 0"],
            ["int4/channel/g32 16 2", "raw 16 0"],
            ["raw 16 2", "raw 5 0"],
        ]
        sequence = store.sequence("a")
        for layer in range(4):
            sequence.append(layer, rows(layer, "k", 150), rows(layer, "v", 150))
    with kv.open(tmp_path / "c", "a", v="int4/token/g32") as store:
        assert policies(store)[0] == ["int4/channel/g32 16 2", "int4/token/g32 16 0"]
        assert same(store.sequence("a").read(3)[0], rows(3, "k", 150))
        assert same(store.sequence("a").read(2)[1], rows(2, "v", 150))
        assert not same(store.sequence("a").read(2)[0], rows(2, "k", 150))
    with kv.open(tmp_path / "c", "a") as store:
        assert policies(store)[3] == ["raw 16 2", "int4/token/g32 5 0"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("k = 3", "codec spec"),
        ('k = "int5"', "unknown"),
        ("q = 1", "'q' is unknown"),
        ("residual = -1", "0 or more"),
        ("residual = 1.5", "whole number"),
        ("residual = true", "whole number"),
        ("layer = 3", r"\[\[layer\]\]"),
        ("[[layer]]\nk = 'raw'", "which layers"),
        ("[[layer]]\nlayers = '4-3'", "layers"),
        ("[[layer]]\nlayers = 'a'", "layers"),
        ("[[layer]]\nlayers = '7'", "layer 7"),
        ("[[layer]]\nlayers = '0'\nlayer = 1", "unknown"),
        ("k = ", "spec.toml"),
        ("k = " + "[" * 20_000, "recursion"),
        ("k = " + "9" * 5000, "4300 digits"),
        ("k = 0x" + "f" * 5000, "4300 digits"),
        ("layer = [{ layers = 0x" + "f" * 5000 + " }]", "4300 digits"),
        ("residual = 0xffffffffffffffffff", "whole number"),
    ],
)
def test_a_spec_file_that_is_wrong_says_where(tmp_path, text, why):
    (tmp_path / "spec.toml").write_text(text)
    with pytest.raises(SpecError, match=why):
        kv.open(tmp_path / "c", "w", model=tiny_model(4), spec=tmp_path / "spec.toml")
    assert not (tmp_path / "c").exists()


def test_layers():
    assert parse_layers("0-2, 5", "x") == {0, 1, 2, 5}
    assert parse_layers(3, "x") == {3}
    assert parse_layers([1, 4], "x") == {1, 4}


def test_an_empty_file_asks_for_nothing(tmp_path):
    (tmp_path / "spec.toml").write_text("")
    with kv.open(tmp_path / "c", "w", model=tiny_model(1), spec=read_spec_file(tmp_path / "spec.toml")) as store:
        assert policies(store) == [["int4/channel/g64 128 4", "int4/token/g64 128 4"]]


def test_the_readmes_spec_file_is_one(tmp_path):
    text = (Path(__file__).parent.parent / "README.md").read_text()
    (tmp_path / "spec.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.S).group(1))
    with kv.open(tmp_path / "c", "w", model=tiny_model(18), spec=tmp_path / "spec.toml") as store:
        assert policies(store)[0] == ["int4/channel/g64 128 4", "int8/token/g64 64 4"]
        assert policies(store)[1] == ["int4/channel/g64 128 4", "int4/token/g64 64 4"]
