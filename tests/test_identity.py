"""A cache is never taken for another model's: fingerprints, and mismatches that name both sides."""

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import kvcodec as kv
from kvcodec.dumps.identity import fingerprint_file, parse_fingerprint
from kvcodec.errors import DumpError, IdentityMismatch
from kvcodec.layout import RopeLayout
from kvcodec.store.identity import differences

BASE = kv.Model((kv.Layer.kv(2, 16, rope_base=1e4), kv.Layer.kv(2, 16, window=32)), name="base", fingerprint=b"a" * 32)
OTHERS = {
    "dtype: 'bfloat16', not 'float16'": kv.Model(BASE.layers, "float16", "base", b"a" * 32),
    "name: 'base', not 'other'": kv.Model(BASE.layers, name="other", fingerprint=b"a" * 32),
    "fingerprint: 6161616161616161, not 6262626262626262": kv.Model(BASE.layers, name="base", fingerprint=b"b" * 32),
    "fingerprint: 6161616161616161, not none": kv.Model(BASE.layers, name="base"),
    "shard: 0, not 1": kv.Model(BASE.layers, name="base", fingerprint=b"a" * 32, shard=1, shards=2),
    "rope layout: 'unknown', not 'halves'": kv.Model(
        BASE.layers, name="base", fingerprint=b"a" * 32, rope_layout=RopeLayout.HALVES
    ),
    "2 layers, not 3": kv.Model((*BASE.layers, kv.Layer()), name="base", fingerprint=b"a" * 32),
    "layer 0: k 2x16 v 2x16 rope 10000/0, not k 1x16 v 1x16": kv.Model(
        (kv.Layer.kv(1, 16), BASE.layers[1]), name="base", fingerprint=b"a" * 32
    ),
    "layer 1: k 2x16 v 2x16 window 32, not k 2x16 v 2x16 window 64": kv.Model(
        (BASE.layers[0], kv.Layer.kv(2, 16, window=64)), name="base", fingerprint=b"a" * 32
    ),
}


@pytest.mark.parametrize("why", OTHERS)
@pytest.mark.parametrize("mode", ["r", "a"])
def test_another_model_is_refused_and_the_difference_named(tmp_path, mode, why):
    with kv.open(tmp_path / "c", "w", model=BASE, device="nor"):
        pass
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(IdentityMismatch) as caught:
        kv.open(tmp_path / "c", mode, model=OTHERS[why])
    assert why in str(caught.value)
    assert BASE.describe() in str(caught.value)
    assert OTHERS[why].describe() in str(caught.value)
    assert (tmp_path / "c").read_bytes() == before
    kv.open(tmp_path / "c", mode, model=BASE).close()


def test_the_same_model_has_no_differences():
    assert differences(BASE, kv.Model(BASE.layers, name="base", fingerprint=b"a" * 32)) == []


# -- fingerprints ---------------------------------------------------------------------------------------------------


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(name="llama", version=3, kind=8, value=None):
    pairs = text("general.name") + struct.pack("<I", kind) + (text(name) if value is None else value)
    tensor = text("blk.0.attn_k.weight") + struct.pack("<I2QIQ", 2, 64, 32, 12, 0)
    return b"GGUF" + struct.pack("<IQQ", version, 1, 1) + pairs + tensor + bytes(100)


def test_a_fingerprint_is_of_the_header_alone(tmp_path):
    def of(name, raw):
        (tmp_path / name).write_bytes(raw)
        return fingerprint_file(tmp_path / name)

    assert of("a.json", b'{"a": 1, "b": [2]}') == of("b.json", b'{"b":[2],"a":1}\n')
    assert of("a.json", b'{"a": 1}') != of("b.json", b'{"a": 2}')
    save_file({"w": np.zeros(4, np.float32)}, tmp_path / "a.safetensors")
    save_file({"w": np.ones(4, np.float32)}, tmp_path / "b.safetensors")
    save_file({"w": np.ones(5, np.float32)}, tmp_path / "c.safetensors")
    a, b, c = (fingerprint_file(tmp_path / f"{n}.safetensors") for n in "abc")
    assert a == b != c
    assert of("a.gguf", gguf()) == of("b.gguf", gguf() + b"weights") != of("c.gguf", gguf("other"))
    array = struct.pack("<IQ", 4, 3) + bytes(12)
    strings = struct.pack("<IQ", 8, 2) + text("x") + text("y")
    assert (
        len({of("a", gguf(kind=9, value=v)) for v in (array, strings)} | {of("b", gguf(kind=10, value=bytes(8)))}) == 3
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b'{"a": ', b"[" * 100_000, struct.pack("<Q", 1 << 62), struct.pack("<Q", 50) + b"{}",
        struct.pack("<Q", 4) + b"nope", gguf()[:40], gguf(version=1), gguf(version=1 << 24), gguf(kind=77),
        gguf(kind=9, value=struct.pack("<IQ", 4, 1 << 60)), gguf(kind=9, value=struct.pack("<IQ", 9, 1) * 9),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60) + text("a"),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("a") + struct.pack("<I", 1 << 30),
    ],
)  # fmt: skip
def test_hostile_model_files_are_refused(tmp_path, raw):
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(DumpError):
        fingerprint_file(tmp_path / "x")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_fingerprint_or_a_dump_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("any") / "x"
    for head in (b"", b"GGUF\3\0\0\0"):
        path.write_bytes(head + raw)
        with contextlib.suppress(DumpError):
            assert len(fingerprint_file(path)) == 32


def test_fingerprints_by_hand():
    assert parse_fingerprint("ab" * 32) == b"\xab" * 32
    for bad in ("", "ab", "zz" * 32, json.dumps({})):
        with pytest.raises(DumpError, match="64 hexadecimal"):
            parse_fingerprint(bad)
