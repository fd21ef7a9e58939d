"""Dumps: hostile safetensors headers."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from kvcodec.dumps import open_dump
from kvcodec.dumps.safetensors import SafetensorsDump
from kvcodec.errors import DumpError, KvcodecError
from tests.test_dumps import K, V


def packed(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensor(begin, end, dtype="F32", shape=(1, 1, 1)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


ONE = b'"k.0":{"dtype":"F32","shape":[1,1,1],"data_offsets":[0,4]}'
TWO = b'"v.0":{"dtype":"F32","shape":[1,1,1],"data_offsets":[4,8]}'
HOSTILE = [
    (b"", "shorter than its header's length"),
    (b"\0" * 7, "shorter"),
    (b"\0" * 8, "does not begin with {"),
    (struct.pack("<Q", 1 << 63) + b"{}", "header of 9223372036854775808 bytes"),
    (struct.pack("<Q", (1 << 64) - 1) + b"{}", "header of 18446744073709551615 bytes"),
    (struct.pack("<Q", 100_000_001) + b"{}", "header of 100000001 bytes, want 100000000"),
    (struct.pack("<Q", 3) + b"{}", "truncated: header of 3"),
    (packed(b'{"k.0\xff":1}'), "not UTF-8"),
    (packed(b"\xef\xbb\xbf{}"), "does not begin with {"),
    (packed(b" {}"), "does not begin with {"),
    (packed(b"[]"), "does not begin with {"),
    (packed(b"{" + ONE), "not JSON"),
    (packed(b"{" + ONE + b"}x", b"1234"), "not JSON"),
    (packed(b"{" + ONE + b"}\0", b"1234"), "not JSON"),
    (packed(b'{"a":NaN}'), "not JSON: NaN"),
    (packed(b'{"a\n":1}'), "not JSON"),
    (packed(b'{"a":' + b"[" * 100_000), "not JSON"),
    (packed(b'{"a":' + b"9" * 5000 + b"}"), "not JSON"),
    (packed(b'{"\\ud800":1}'), "lone surrogate"),
    (packed(b'{"__metadata__":{"a":"\\udfff"}}'), "lone surrogate"),
    (packed(b"{" + ONE + b"," + ONE + b"}", b"1234"), "'k.0' is there twice"),
    (packed(b"{" + ONE + b"," + TWO.replace(b"v.0", b"k.0") + b"}", b"12341234"), "'k.0' is there twice"),
    (packed(b'{"k\\u002e0":1,' + ONE + b"}", b"1234"), "'k.0' is there twice"),
    (packed(b'{"__metadata__":{"a":"1","a":"2"},' + ONE + b"}", b"1234"), "'a' is there twice"),
    (packed(b'{"__metadata__":{},"__metadata__":{}}'), "'__metadata__' is there twice"),
    (packed(b'{"a":{"dtype":"F32","dtype":"I32"}}'), "'dtype' is there twice"),
    (packed({"__metadata__": []}), "table of texts"),
    (packed({"__metadata__": {"a": 1}}), "table of texts"),
    (packed({"k.0": 1}), "want dtype, shape and data_offsets"),
    (packed({"k.0": {"dtype": "F32", "shape": [1]}}), "want dtype, shape and data_offsets"),
    (packed({"k.0": tensor(0, 4, "F31")}, b"1234"), "dtype 'F31' is unknown"),
    (packed({"k.0": tensor(0, 4, 32)}, b"1234"), "dtype '32' is unknown"),
    (packed({"k.0": tensor(0, 4, shape=(-1, -1))}, b"1234"), "shape is not a list"),
    (packed({"k.0": tensor(0, 4, shape=(1.0,))}, b"1234"), "shape is not a list"),
    (packed({"k.0": tensor(0, 4, shape=(True,))}, b"1234"), "shape is not a list"),
    (packed({"k.0": tensor(0, 4, shape=(1,) * 65)}, b"1234"), "shape is not a list"),
    (packed({"k.0": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}}, b"1234"), "shape is not a list"),
    (packed({"k.0": tensor(4, 0)}, b"1234"), "data_offsets are not"),
    (packed({"k.0": tensor(-4, 0)}, b"1234"), "data_offsets are not"),
    (packed({"k.0": tensor(0, 1 << 64)}, b"1234"), "data_offsets are not"),
    (packed({"k.0": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, b"1234"), "data_offsets are not"),
    (packed({"k.0": tensor(0, 8)}, b"12341234"), "8 bytes, but F32 [1, 1, 1] is 32 bits"),
    (packed({"k.0": tensor(0, 4, shape=(1 << 62, 1 << 2, 1))}, b"1234"), "but F32"),
    (packed({"k.0": tensor(0, 4), "v.0": tensor(0, 4)}, b"1234"), "'v.0': overlaps the one before"),
    (packed({"k.0": tensor(0, 4), "v.0": tensor(2, 6)}, b"123456"), "'v.0': overlaps"),
    (packed({"k.0": tensor(0, 4), "v.0": tensor(8, 12)}, b"1234" * 3), "'v.0': leaves a hole of 4 bytes"),
    (packed({"k.0": tensor(4, 8)}, b"12341234"), "'k.0': leaves a hole"),
    (packed({"k.0": tensor(0, 4), "v.0": tensor(4, 8)}, b"1234123"), "truncated: the tensors need"),
    (packed({"k.0": tensor(0, 4), "v.0": tensor(4, 8)}, b"123412341"), "1 bytes follow the last tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "text"), HOSTILE)
def test_hostile_headers(tmp_path, content, text):
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(content)
    with pytest.raises(DumpError) as caught:
        open_dump(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


GOOD = packed(b'{"__metadata__":{"a":"b"},' + ONE + b"," + TWO + b"}  ", b"12345678")


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(GOOD)
    open_dump(path).close()
    for length in range(len(GOOD)):
        path.write_bytes(GOOD[:length])
        with pytest.raises(DumpError):
            open_dump(path)


@settings(max_examples=400, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.binary(max_size=3), st.integers(0, 3)), max_size=4))
def test_mutants_are_refused_where_the_library_refuses(tmp_path_factory, changes):
    """Whatever the reference library refuses is refused here, and only by an error of ours."""
    content = bytearray(GOOD)
    for at, new, removed in changes:
        content[at : at + removed] = new
    path = tmp_path_factory.getbasetemp() / "mutant.safetensors"
    path.write_bytes(content)
    try:
        with safe_open(path, "numpy") as library:
            names = set(library.keys())
    except SafetensorError:
        names = None
    try:
        with SafetensorsDump(path) as got:
            assert names is not None
            assert {f"{s.name.lower()}.{layer}" for layer in got.layers for s in (K, V)} <= names
            [got.rows(layer, s, 0, got.shape(layer, s)[0]) for layer in got.layers for s in (K, V)]
    except KvcodecError:
        pass
