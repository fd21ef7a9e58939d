"""Whole dumps and logs: encode and decode."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.bulk import chunks
from kvcodec.bulk.compare import compare
from kvcodec.bulk.decode import decode_log
from kvcodec.bulk.encode import encode_dump
from kvcodec.bulk.verify import verify_log
from kvcodec.dumps import open_dump
from kvcodec.dumps.safetensors import SafetensorsWriter
from kvcodec.errors import (
    DumpError,
    NonFiniteError,
    SpecError,
)
from kvcodec.layout import StreamId
from kvcodec.store.model import Layer, Stream
from tests.caches import rows, same

REAL = Path(__file__).parent / "data" / "gemma3_270m_512_3layers.safetensors"
TINY = "page=512,unit=64,block=8192"
BF16 = ml_dtypes.bfloat16


def write_dump(path, tensors, **metadata):
    declared = [(name, array.dtype, array.shape) for name, array in tensors.items()]
    with SafetensorsWriter(path, declared, metadata, overwrite=True) as writer:
        for name, array in tensors.items():
            writer.write(name, 0, array)
        writer.commit()
    return path


def make_dump(path, tokens=300, layers=(0, 1), dtype=BF16, heads=2, dim=16, **metadata):
    tensors = {f"{s}.{n}": rows(n, s, tokens, heads, dim, dtype) for n in layers for s in "kv"}
    return write_dump(path, tensors, **metadata)


@pytest.fixture(name="dump")
def dump_fixture(tmp_path):
    return make_dump(tmp_path / "chat.safetensors")


@pytest.fixture(name="log")
def log_fixture(tmp_path, dump):
    encode_dump(dump, tmp_path / "a.kvlog", residual=16)
    return tmp_path / "a.kvlog"


def names(path):
    return sorted(p.name for p in Path(path).iterdir())


def test_raw_rows_come_back_bit_for_bit(tmp_path, dump):
    report = encode_dump(dump, tmp_path / "a.kvlog", k="raw", v="raw")
    assert (report.sequence, report.tokens, report.layers) == ("chat", 300, 2)
    assert report.own.payload_bytes == report.own.raw16_bytes == 300 * 2 * 2 * 2 * 16 * 2
    decoded = decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors")
    assert (decoded.tokens, decoded.dtype, decoded.lost) == (300, "bfloat16", ())
    assert decoded.dump_bytes == (tmp_path / "b.safetensors").stat().st_size
    with open_dump(dump) as a, open_dump(tmp_path / "b.safetensors") as b:
        assert b.metadata["kv_heads"] == "2"
        assert b.metadata["head_dim"] == "16"
        assert b.metadata["source"] == "a.kvlog"
        for layer in a.layers:
            for stream in (StreamId.K, StreamId.V):
                assert same(a.rows(layer, stream, 0, 300), b.rows(layer, stream, 0, 300))


def test_decoding_gives_what_a_sequence_reads(tmp_path, log):
    kv.decode(log, tmp_path / "b.safetensors")
    kv.decode(log, tmp_path / "wide.safetensors", dtype="float32")
    kv.decode(log, tmp_path / "half.safetensors", dtype="float16")
    with kv.open(log) as store, open_dump(tmp_path / "b.safetensors") as b:
        narrow, wide = store.sequence("chat").read(1), store.sequence("chat").read(1, dtype=np.float32)
        assert same(b.rows(1, StreamId.V, 0, 300), narrow[1])
    with open_dump(tmp_path / "wide.safetensors") as w, open_dump(tmp_path / "half.safetensors") as h:
        assert np.array_equal(w.rows(1, StreamId.V, 0, 300), wide[1])
        assert same(h.rows(1, StreamId.V, 0, 300), wide[1].astype(np.float16))


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 14])
def test_the_chunks_change_nothing(tmp_path, dump, monkeypatch, chunk_bytes):
    encode_dump(dump, tmp_path / "a.kvlog")
    decode_log(tmp_path / "a.kvlog", tmp_path / "a.safetensors")
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
    told = []
    encode_dump(dump, tmp_path / "b.kvlog", progress=lambda *at: told.append(at))
    assert told[-1] == (600, 600)
    assert len(told) > 2
    assert told == sorted(told)
    decode_log(tmp_path / "b.kvlog", tmp_path / "b.safetensors", progress=lambda *at: told.append(at))
    assert told[-1] == (600, 600)
    left, right = (compare(dump, tmp_path / f"{n}.safetensors").as_dict()["layers"] for n in "ab")
    assert left == right
    with open_dump(tmp_path / "a.safetensors") as a, open_dump(tmp_path / "b.safetensors") as b:
        assert same(a.rows(1, StreamId.K, 0, 300), b.rows(1, StreamId.K, 0, 300))


@given(st.integers(0, 1000), st.integers(0, 1 << 24))
def test_chunks_cover_all_tokens_in_order(tokens, token_bytes):
    ranges = list(chunks.token_chunks(tokens, token_bytes))
    assert [t for start, stop in ranges for t in range(start, stop)] == list(range(tokens))
    assert all(
        start % 64 == 0 and (stop - start) * token_bytes <= max(64 * token_bytes, 32 << 20) for start, stop in ranges
    )


def test_layers_keep_their_numbers_windows_and_name(tmp_path):
    metadata = {"sliding_window": "512", "global_layers": "2", "model": "m" * 300}
    dump = make_dump(tmp_path / "d.safetensors", 70, (2, 5), **metadata)
    encode_dump(dump, tmp_path / "a.kvlog")
    with kv.open(tmp_path / "a.kvlog") as store:
        model = store.model
    assert [bool(layer.streams) for layer in model.layers] == [False, False, True, False, False, True]
    assert [model.layers[n].window for n in (2, 5)] == [0, 512]
    assert model.name == "m" * 255
    decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors")
    with open_dump(tmp_path / "b.safetensors") as b:
        assert b.layers == (2, 5)
        assert (b.metadata["sliding_window"], b.metadata["global_layers"]) == ("512", "2")


def test_k_and_v_may_differ_in_shape(tmp_path):
    tensors = {"k.0": rows(0, "k", 90, 2, 32), "v.0": rows(0, "v", 90, 4, 16)}
    dump = write_dump(tmp_path / "d.safetensors", tensors)
    encode_dump(dump, tmp_path / "a.kvlog", residual=0)
    with kv.open(tmp_path / "a.kvlog") as store:
        assert store.model.layers == (Layer((Stream(StreamId.K, 2, 32), Stream(StreamId.V, 4, 16))),)
    decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors")
    with open_dump(tmp_path / "b.safetensors") as b:
        assert "kv_heads" not in b.metadata
    assert compare(dump, tmp_path / "b.safetensors").largest_relative < 0.2


def test_float32_is_rounded_to_the_dtype_asked_for(tmp_path):
    dump = make_dump(tmp_path / "d.safetensors", 70, dtype=np.float32)
    for dtype, wanted in ((None, "bfloat16"), ("float16", "float16")):
        encode_dump(dump, tmp_path / "a.kvlog", dtype=dtype, k="raw", v="raw", overwrite=True)
        with kv.open(tmp_path / "a.kvlog") as store:
            assert store.model.dtype == wanted
            got = store.sequence("d").read(0)[0]
        assert same(got, rows(0, "k", 70, dtype=np.float32).astype(got.dtype))


def test_the_dtype_of_a_16_bit_dump_is_its_own(tmp_path, dump):
    with pytest.raises(SpecError, match="the dump holds bfloat16"):
        encode_dump(dump, tmp_path / "a.kvlog", dtype="float16")
    encode_dump(dump, tmp_path / "a.kvlog", dtype="bfloat16")


def test_names_and_shapes_of_others(tmp_path):
    tensors = {f"m.{n}.{s}": rows(0, s[0], 70).reshape(70, 32) for n in range(2) for s in ("key", "value")}
    dump = write_dump(tmp_path / "d.safetensors", tensors)
    mapping = ("k=m.{layer}.key", "v=m.{layer}.value")
    report = encode_dump(dump, tmp_path / "a.kvlog", mapping=mapping, kv_heads=2, sequence="x")
    assert (report.sequence, report.layers) == ("x", 2)
    result = compare(dump, tmp_path / "a.kvlog", mapping=mapping, head_dim=16)
    assert result.sequence == "x"
    assert result.largest_relative < 0.2
    with pytest.raises(DumpError, match="no tensor is known"):
        compare(dump, dump, mapping=mapping, head_dim=16)


def test_an_empty_dump_is_a_sequence_without_tokens(tmp_path):
    dump = make_dump(tmp_path / "d.safetensors", 0)
    assert encode_dump(dump, tmp_path / "a.kvlog").tokens == 0
    assert decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors").tokens == 0
    assert verify_log(tmp_path / "a.kvlog").verdict == "clean"
    assert compare(dump, tmp_path / "a.kvlog").largest_relative == 0


def test_a_number_beyond_float16_is_refused(tmp_path):
    big = np.full((70, 1, 16), 1e6, BF16)
    dump = write_dump(tmp_path / "d.safetensors", {"k.0": big, "v.0": big})
    encode_dump(dump, tmp_path / "a.kvlog")
    with pytest.raises(NonFiniteError, match="as float16"):
        decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors", dtype="float16")
    with pytest.raises(SpecError, match="dtype is 'int8'"):
        decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors", dtype="int8")
    assert not (tmp_path / "b.safetensors").exists()
