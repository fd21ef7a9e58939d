"""Dumps: every name and shape that is accepted, every refusal, hostile headers, and the writer."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from kvcodec.dumps import open_dump
from kvcodec.dumps.names import recognise
from kvcodec.dumps.safetensors import SafetensorsDump, SafetensorsWriter
from kvcodec.errors import DtypeError, DumpError, KvcodecError, ShapeError
from kvcodec.layout import DtypeId, StreamId

GEMMA = Path(__file__).parent / "data" / "gemma3_270m_512_3layers.safetensors"
K, V = StreamId.K, StreamId.V
BF16 = np.dtype(ml_dtypes.bfloat16)
TOKENS, HEADS, DIM = 7, 3, 4


def rows(seed, dtype=np.float32, tokens=TOKENS):
    return np.random.default_rng(seed).standard_normal((tokens, HEADS, DIM)).astype(dtype)


def dump(tmp_path, tensors, metadata=None, **options):
    path = tmp_path / "dump.safetensors"
    save_file(tensors, path, metadata)
    return open_dump(path, **options)


def refusal(tmp_path, tensors, metadata=None, error=DumpError, **options):
    with pytest.raises(error) as caught:
        dump(tmp_path, tensors, metadata, **options)
    text = str(caught.value)
    assert str(tmp_path / "dump.safetensors") in text
    return text


# ---- names

NAMES = [
    ("k.12", "v.12"), ("k_12", "v_12"), ("k/12", "v/12"), ("keys.12", "values.12"), ("key_cache.12", "value_cache.12"),
    ("k_cache_12", "v_cache_12"), ("cache_k.12", "cache_v.12"), ("key_states.12", "value_states.12"),
    ("12.key", "12.value"), ("12.k", "12.v"), ("12_keys", "12_values"),
    ("layers.12.k", "layers.12.v"), ("layers.12.key", "layers.12.value"), ("layer_12_k", "layer_12_v"),
    ("layer.12.k_cache", "layer.12.v_cache"), ("model.layers.12.key_cache", "model.layers.12.value_cache"),
    ("model.layers.12.self_attn.k", "model.layers.12.self_attn.v"),
    ("language_model.model.layers.12.attn.key", "layers.12.attention.value"),
    ("past_key_values.12.key", "past_key_values.12.value"), ("past_key_values.12.0", "past_key_values.12.1"),
    ("past.12.k", "past.12.v"), ("present.12.key", "present.12.value"),
    ("decoder.past_key_value.12.0", "kv_cache.12.1"),
]  # fmt: skip


@pytest.mark.parametrize(("k_name", "v_name"), NAMES)
def test_names_that_are_known(tmp_path, k_name, v_name):
    k, v = rows(1), rows(2)
    with dump(tmp_path, {v_name: v, "q.12": rows(3), k_name: k}) as got:
        assert got.layers == (12,)
        np.testing.assert_array_equal(got.rows(12, K, 0, TOKENS), k)
        np.testing.assert_array_equal(got.rows(12, V, 0, TOKENS), v)


@pytest.mark.parametrize(
    "name",
    ["q.0", "q_pos", "ids", "k_pre.0", "k", "v.", "k.x", "k.-1", "k.123456", "k.0.weight", "xk.0", "k.٣", "k.0\n", "",
     "layers.0.self_attn.k_proj.weight", "layers.0.self_attn.k_norm", "layers.0.mlp.k", "0.0", "0.1", "layers.0.q",
     "past_key_values.0.2"],
)  # fmt: skip
def test_names_that_are_neither(name):
    assert recognise(name) is None


def test_recognising_a_hostile_name_takes_no_time():
    assert recognise("a." * 200_000 + "layers.") is None


def test_mapping(tmp_path):
    k, v = rows(1), rows(2)
    tensors = {"a+b.3.key": k, "foo.3.val": v, "k.0": rows(3), "v.0": rows(4)}
    with dump(tmp_path, tensors, mapping=("k=a+b.{layer}.key", "v=foo.{layer}.val")) as got:
        assert got.layers == (3,)
        np.testing.assert_array_equal(got.rows(3, K, 0, TOKENS), k)
        np.testing.assert_array_equal(got.rows(3, V, 0, TOKENS), v)
    with dump(
        tmp_path,
        {"a.0": k, "b.0": v, "c.1": v, "d.1": k},
        mapping=("k=a.{layer}", "v=b.{layer}", "v=c.{layer}", "k=d.{layer}"),
    ) as got:
        assert got.layers == (0, 1)
        np.testing.assert_array_equal(got.rows(1, K, 0, TOKENS), k)


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (("k=a.{layer}",), 'names k but not v: add --map "v='),
        (("v=a.{layer}",), "names v but not k"),
        (("q=a.{layer}",), "q=a.{layer}"),
        (("a.{layer}",), 'want "k=..."'),
        (("k=a", "v=b.{layer}"), "{layer} once"),
        (("k={layer}.{layer}", "v=b.{layer}"), "{layer} once"),
        (("k=a.{layer}", "v=b.{layer}"), "no tensor is known as K or V"),
        (("k=k.{layer}", "v=k.{layer}"), None),
        ("k=k.{layer}", "one text"),
    ],
)
def test_mapping_refused(tmp_path, mapping, text):
    tensors = {"k.0": rows(1), "v.0": rows(2)}
    if text is None:  # one tensor may be both: the user says so
        with dump(tmp_path, tensors, mapping=mapping) as got:
            assert got.shape(0, K) == got.shape(0, V)
    else:
        assert text in refusal(tmp_path, tensors, mapping=mapping)


def test_nothing_fits(tmp_path):
    text = refusal(tmp_path, {f"weight{i:02}": rows(i) for i in range(25)})
    assert "'weight00'" in text
    assert "'weight19' and 5 more" in text
    assert "weight20" not in text
    assert '--map "k=model.{layer}.key"' in text
    text = refusal(tmp_path, {"a\nb\x1b": rows(1), "n" * 500: rows(2)})
    assert "'a\\nb\\x1b'" in text
    assert "\n" not in text
    assert len(text) < 500 + len(str(tmp_path))
    assert "no tensors at all" in refusal(tmp_path, {})


def test_incomplete_and_repeated_layers(tmp_path):
    assert "layer 1 has K ('k.1') but no V" in refusal(tmp_path, {"k.0": rows(1), "v.0": rows(2), "k.1": rows(3)})
    assert "layer 4 has V ('v.4') but no K" in refusal(tmp_path, {"v.4": rows(2)})
    text = refusal(tmp_path, {"k.0": rows(1), "v.0": rows(2), "layers.0.k": rows(3)})
    assert "layer 0 K is there twice" in text
    assert "'k.0'" in text
    assert "'layers.0.k'" in text
    assert "twice" in refusal(tmp_path, {"k.0": rows(1), "v.0": rows(2), "k.00": rows(3)})
    assert "layer 65535" in refusal(tmp_path, {"k.65535": rows(1), "v.65535": rows(2)})


def test_token_counts_differ(tmp_path):
    text = refusal(tmp_path, {"k.0": rows(1), "v.0": rows(2, tokens=5)})
    assert "layer 0 K ('k.0') has 7 tokens, layer 0 V ('v.0') has 5" in text
    text = refusal(tmp_path, {"k.0": rows(1), "v.0": rows(2), "k.1": rows(1, tokens=6), "v.1": rows(2, tokens=6)})
    assert "layer 1 K ('k.1') has 6" in text


# ---- shapes


def as_shape(form, array):
    return {
        "3-D": lambda a: a,
        "2-D": lambda a: a.reshape(len(a), -1),
        "4-D": lambda a: np.ascontiguousarray(a.transpose(1, 0, 2)[None]),
    }[form](array)


@pytest.mark.parametrize("form", ["3-D", "2-D", "4-D"])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_shapes_and_dtypes_by_slices(tmp_path, form, dtype):
    k, v = rows(1, dtype), rows(2, dtype)
    tensors = {"k.0": as_shape(form, k), "v.0": as_shape(form, v)}
    with dump(tmp_path, tensors, {"kv_heads": "3", "x": "é"}) as got:
        assert got.dtype == np.dtype(dtype)
        assert got.dtype_id == {BF16: DtypeId.BFLOAT16, np.dtype(np.float16): DtypeId.FLOAT16}.get(got.dtype)
        assert got.metadata == {"kv_heads": "3", "x": "é"}
        for stream, whole in ((K, k), (V, v)):
            assert got.shape(0, stream) == (TOKENS, HEADS, DIM)
            for start in range(TOKENS + 1):
                for stop in range(start, TOKENS + 1):
                    part = got.rows(0, stream, start, stop)
                    assert part.dtype == np.dtype(dtype)
                    assert part.shape == (stop - start, HEADS, DIM)
                    assert part.flags.c_contiguous
                    assert part.flags.writeable
                    assert part.tobytes() == whole[start:stop].tobytes()


def test_stacked(tmp_path):
    layers = [(rows(2 * i), rows(2 * i + 1)) for i in range(3)]
    stacked = np.ascontiguousarray([[a.transpose(1, 0, 2) for a in pair] for pair in layers])
    assert stacked.shape == (3, 2, HEADS, TOKENS, DIM)
    with dump(tmp_path, {"anything": stacked, "other": rows(1), "ints": stacked.astype(np.int32)}) as got:
        assert got.layers == (0, 1, 2)
        for layer, pair in enumerate(layers):
            for stream, whole in zip((K, V), pair, strict=True):
                np.testing.assert_array_equal(got.rows(layer, stream, 2, 6), whole[2:6])
    assert "no tensor is known" in refusal(tmp_path, {"a": stacked, "b": stacked})
    assert "no tensor is known" in refusal(tmp_path, {"a": stacked[:0]})
    assert "no tensor is known" in refusal(tmp_path, {"a": stacked[:, :1]})
    with dump(tmp_path, {"a": stacked, "k.7": rows(1), "v.7": rows(2)}) as got:
        assert got.layers == (7,)
    assert "65536 layers" in refusal(tmp_path, {"a": np.zeros((65536, 2, 0, 0, 0), np.float32)})


@pytest.mark.parametrize(
    ("options", "metadata"),
    [
        ({"kv_heads": 3}, None),
        ({"head_dim": 4}, None),
        ({"kv_heads": 3, "head_dim": 4}, None),
        ({"head_dim": 4}, {"kv_heads": "1", "head_dim": "12"}),
        ({}, {"kv_heads": "3"}),
        ({}, {"head_dim": "4"}),
    ],
)
def test_geometry_of_two_axes(tmp_path, options, metadata):
    k = rows(1)
    with dump(tmp_path, {"k.0": as_shape("2-D", k), "v.0": k}, metadata, **options) as got:
        np.testing.assert_array_equal(got.rows(0, K, 0, TOKENS), k)


def test_shapes_refused(tmp_path):
    k = rows(1)
    flat = as_shape("2-D", k)
    assert "Give --heads or --head-dim" in refusal(tmp_path, {"k.0": flat, "v.0": flat})
    assert "12 numbers a token are not 5 heads" in refusal(tmp_path, {"k.0": flat, "v.0": flat}, kv_heads=5)
    assert "not 5 channels" in refusal(tmp_path, {"k.0": flat, "v.0": flat}, head_dim=5)
    assert "not 3 heads and 5" in refusal(tmp_path, {"k.0": flat, "v.0": flat}, kv_heads=3, head_dim=5)
    assert "kv_heads is 0" in refusal(tmp_path, {"k.0": flat, "v.0": flat}, kv_heads=0)
    assert "kv_heads is 0" in refusal(tmp_path, {"k.0": flat, "v.0": flat}, {"kv_heads": "0"})
    assert "metadata head_dim is 'x'" in refusal(tmp_path, {"k.0": flat, "v.0": flat}, {"head_dim": "x"})
    assert "3 heads, want 4" in refusal(tmp_path, {"k.0": k, "v.0": k}, kv_heads=4)
    assert "4 channels a head, want 8" in refusal(tmp_path, {"k.0": k, "v.0": k}, head_dim=8)
    assert "batch is 2, want 1" in refusal(tmp_path, {"k.0": np.stack([k, k]), "v.0": k})
    assert "'k.0' of shape [12]: want (tokens" in refusal(tmp_path, {"k.0": k[0].reshape(-1), "v.0": k})
    assert "'k.0' of shape [1, 1, 7, 3, 4]: want" in refusal(tmp_path, {"k.0": k[None, None], "v.0": k})
    assert "0 heads" in refusal(tmp_path, {"k.0": k[:, :0], "v.0": k})
    assert "65536 channels" in refusal(tmp_path, {"k.0": np.zeros((0, 1, 65536), np.float32), "v.0": k})


def test_dtypes_refused(tmp_path):
    k = rows(1)
    for dtype, code in ((np.float64, "F64"), (np.int8, "I8"), (ml_dtypes.float8_e4m3fn, "F8_E4M3")):
        text = refusal(tmp_path, {"k.0": k.astype(dtype), "v.0": k}, error=DtypeError)
        assert f"'k.0' is {code}, want BF16, F16 or F32" in text
    text = refusal(tmp_path, {"k.0": k, "v.0": k.astype(np.float16)}, error=DtypeError)
    assert "'k.0' is F32" in text
    assert "'v.0' is F16" in text


def test_ranges_and_layers_refused(tmp_path):
    got = dump(tmp_path, {"k.0": rows(1), "v.0": rows(2)})
    for start, stop in ((-1, 2), (3, 2), (0, 8), (8, 8)):
        with pytest.raises(ShapeError, match=f"layer 0 K: tokens {start}:{stop}, want a range in 0:7"):
            got.rows(0, K, start, stop)
    with pytest.raises(DumpError, match="no layer 1 K"):
        got.rows(1, K, 0, 1)
    with pytest.raises(DumpError, match="no layer 0 KR"):
        got.shape(0, StreamId.KR)
    got.close()
    got.close()
    with pytest.raises(DumpError, match="was closed"):
        got.rows(0, K, 0, 1)


def test_only_the_slice_is_read(tmp_path, monkeypatch):
    asked = []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, into, at: asked.append(sum(map(len, into))) or real(file, into, at))
    for form in ("3-D", "4-D"):
        with dump(tmp_path, {"k.0": as_shape(form, rows(1)), "v.0": as_shape(form, rows(2))}) as got:
            got.rows(0, K, 2, 4)
        assert sum(asked) == 2 * HEADS * DIM * 4
        asked.clear()


def test_short_reads_and_a_file_that_shrinks(tmp_path, monkeypatch):
    k = rows(1)
    with dump(tmp_path, {"k.0": k, "v.0": rows(2)}) as got:
        real = os.preadv
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", lambda file, into, at: real(file, [into[0][:3]], at))
            np.testing.assert_array_equal(got.rows(0, K, 0, TOKENS), k)
        os.truncate(tmp_path / "dump.safetensors", os.path.getsize(tmp_path / "dump.safetensors") - 5)
        with pytest.raises(DumpError, match="the file shrank"):
            [got.rows(0, stream, 0, TOKENS) for stream in (K, V)]


def test_many_threads(tmp_path):
    k = rows(1, BF16, 500)
    with dump(tmp_path, {"k.0": k, "v.0": rows(2, BF16, 500)}) as got:
        bad = []

        def work(seed):
            for start in np.random.default_rng(seed).integers(0, 400, 50).tolist():
                same = got.rows(0, K, start, start + 100).tobytes() == k[start : start + 100].tobytes()
                bad.extend([] if same else [start])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    assert bad == []


# ---- queries


def test_the_real_dump():
    with open_dump(GEMMA) as got, safe_open(GEMMA, "numpy") as library:
        assert got.layers == (5, 8, 17)
        assert got.dtype == BF16
        assert got.dtype_id == DtypeId.BFLOAT16
        for layer in got.layers:
            for stream, letter in ((K, "k"), (V, "v")):
                assert got.shape(layer, stream) == (512, 1, 256)
                part = library.get_slice(f"{letter}.{layer}")[100:300]
                assert got.rows(layer, stream, 100, 300).tobytes() == part.tobytes()
            queries = got.queries(layer)
            np.testing.assert_array_equal(queries.q, library.get_tensor(f"q.{layer}").astype(np.float32))
            np.testing.assert_array_equal(queries.positions, library.get_tensor("q_pos"))
            assert (queries.q.dtype, queries.positions.dtype) == (np.float32, np.int64)
            assert queries.scale == 0.0625
            assert queries.window == (512 if layer == 8 else None)


QUERIES = {"k.0": rows(1), "v.0": rows(2), "q.0": np.ones((6, 2, 4), np.float16), "q_pos": np.array([3, 6])}


@pytest.mark.parametrize(
    ("metadata", "window"),
    [({}, None), ({"sliding_window": "9"}, None), ({"global_layers": "1"}, None),
     ({"sliding_window": "9", "global_layers": "1,2"}, 9), ({"sliding_window": "9", "global_layers": " 0, 2"}, None),
     ({"sliding_window": "9", "global_layers": ""}, 9)],
)  # fmt: skip
def test_queries_and_windows(tmp_path, metadata, window):
    with dump(tmp_path, QUERIES, {"logit_scale": "0.5"} | metadata) as got:
        queries = got.queries(0)
        assert (queries.q.shape, queries.positions.tolist(), queries.scale) == ((6, 2, 4), [3, 6], 0.5)
        assert queries.window == window


def test_no_queries(tmp_path):
    for missing in ("q.0", "q_pos"):
        with dump(tmp_path, {name: a for name, a in QUERIES.items() if name != missing}) as got:
            assert got.queries(0) is None


@pytest.mark.parametrize(
    ("change", "metadata", "error", "text"),
    [
        ({}, {}, DumpError, "no metadata logit_scale"),
        ({}, {"logit_scale": "x"}, DumpError, "logit_scale is 'x'"),
        ({}, {"logit_scale": "nan"}, DumpError, "logit_scale is 'nan'"),
        ({}, {"logit_scale": "-1"}, DumpError, "logit_scale"),
        ({}, {"logit_scale": "1", "sliding_window": "0", "global_layers": ""}, DumpError, "sliding_window is 0"),
        ({}, {"logit_scale": "1", "sliding_window": "4", "global_layers": "a"}, DumpError, "global_layers is 'a'"),
        ({"q.0": np.ones((6, 2, 5), np.float32)}, {"logit_scale": "1"}, DumpError, "'q.0' of shape"),
        ({"q.0": np.ones((5, 2, 4), np.float32)}, {"logit_scale": "1"}, DumpError, "a multiple of 3 heads"),
        ({"q.0": np.ones((6, 2, 4), np.int32)}, {"logit_scale": "1"}, DtypeError, "'q.0' is I32"),
        ({"q_pos": np.ones(2, np.float32)}, {"logit_scale": "1"}, DumpError, "'q_pos' is F32"),
        ({"q_pos": np.ones((1, 2), np.int32)}, {"logit_scale": "1"}, DumpError, "'q_pos' is I32"),
    ],
)
def test_queries_refused(tmp_path, change, metadata, error, text):
    with dump(tmp_path, QUERIES | change, metadata) as got, pytest.raises(error, match=text) as caught:
        got.queries(0)
    assert "dump.safetensors" in str(caught.value)


# ---- files


def test_what_is_no_dump(tmp_path):
    with pytest.raises(DumpError, match="cannot open: No such file"):
        open_dump(tmp_path / "none.safetensors")
    with pytest.raises(DumpError, match="null"):
        SafetensorsDump("a\0b")
    fifo = tmp_path / "fifo.safetensors"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path / "fifo", tmp_path / "directory.safetensors", tmp_path):
        if path.name == "fifo":
            os.mkfifo(path)
        if path.name.startswith("directory"):
            path.mkdir()
        with pytest.raises(DumpError, match=r"not a regular file|Is a directory"):
            open_dump(path)
    (tmp_path / "cache.npz").write_bytes(b"PK\3\4" + bytes(50))
    with pytest.raises(DumpError, match=r"\.npz files are not read, want safetensors"):
        open_dump(tmp_path / "cache.npz")
    (tmp_path / "cache.kvlog").write_bytes(b"\x89KVLOG\r\n" + bytes(50))
    with pytest.raises(DumpError, match="a kvcodec log, not a dump"):
        open_dump(tmp_path / "cache.kvlog")
    save_file({"k.0": rows(1), "v.0": rows(2)}, tmp_path / "odd_name")
    with open_dump(tmp_path / "odd_name") as got:
        assert got.layers == (0,)


def test_nothing_leaks(tmp_path):
    """A dump that is opened, read, refused and closed leaves no file or map open, and no warning."""
    code = """
import gc, os, sys
from pathlib import Path
from kvcodec.dumps import open_dump
from kvcodec.errors import KvcodecError
before = len(os.listdir("/proc/self/fd"))
for mapping in ((), ("k=no.{layer}", "v=no.{layer}"), ("bad",)):
    try:
        with open_dump(sys.argv[1], mapping=mapping) as dump:
            rows = dump.rows(5, 1, 0, 512)
            dump.queries(5)
    except KvcodecError:
        pass
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert sys.argv[1] not in Path("/proc/self/maps").read_text()
assert "safetensors" not in sys.modules
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, str(GEMMA)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ---- hostile headers


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


# ---- writer

DECLARED = [
    ("k.0", np.float16, (TOKENS, 3)),
    ("q_pos", np.int64, (2,)),
    ("v.0", BF16, (TOKENS, 5, 1)),
    ("none", np.float32, (0, 9)),
]


def filled():
    return {name: (np.arange(np.prod(shape)).reshape(shape) * 7 % 50).astype(dtype) for name, dtype, shape in DECLARED}


def test_the_library_reads_what_is_written(tmp_path):
    path, arrays = tmp_path / "out.safetensors", filled()
    with SafetensorsWriter(path, DECLARED, {"a": "ü", "kv_heads": "1"}) as writer:
        for start in (4, 0, 2, 6):
            for name in ("k.0", "v.0"):
                writer.write(name, start, arrays[name][start : start + 2])
        writer.write("q_pos", 0, arrays["q_pos"][::-1][::-1])
        assert not path.exists()
        writer.commit()
    assert os.listdir(tmp_path) == ["out.safetensors"]
    with safe_open(path, "numpy") as library:
        assert library.metadata() == {"a": "ü", "kv_heads": "1"}
        assert set(library.keys()) == set(arrays)
        for name, array in arrays.items():
            got = library.get_tensor(name)
            assert (got.dtype, got.shape) == (array.dtype, array.shape)
            assert got.tobytes() == array.tobytes()
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0
    assert content[8 : 8 + length].rstrip(b" ").endswith(b"}")
    begins = [
        fields["data_offsets"][0]
        for name, fields in json.loads(content[8 : 8 + length]).items()
        if name != "__metadata__"
    ]
    assert begins == sorted(begins)
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_dump_round_trips(tmp_path):
    path = tmp_path / "copy.safetensors"
    with open_dump(GEMMA) as source:
        places = [(f"{s.name.lower()}.{layer}", layer, s) for layer in source.layers for s in (K, V)]
        declared = [(name, source.dtype, source.shape(layer, s)) for name, layer, s in places]
        with SafetensorsWriter(path, declared, source.metadata) as writer:
            for name, layer, s in places:
                for start in range(0, 512, 200):
                    writer.write(name, start, source.rows(layer, s, start, min(start + 200, 512)))
            writer.commit()
        with open_dump(path) as copy:
            assert (copy.layers, copy.dtype, copy.metadata) == (source.layers, source.dtype, source.metadata)
            for _, layer, s in places:
                assert copy.rows(layer, s, 0, 512).tobytes() == source.rows(layer, s, 0, 512).tobytes()


def written(path, value, **options):
    writer = SafetensorsWriter(path, [("a", np.float32, (2, 3))], {}, **options)
    writer.write("a", 0, np.full((2, 3), value, np.float32))
    return writer


def test_an_existing_file_is_not_overwritten_unless_asked(tmp_path):
    path = tmp_path / "out.safetensors"
    written(path, 1).commit()
    before = path.read_bytes()
    with pytest.raises(DumpError, match=r"out\.safetensors: exists"):
        written(path, 2)
    assert path.read_bytes() == before
    (tmp_path / "link").symlink_to(path)
    written(tmp_path / "link", 3, overwrite=True).commit()
    assert (tmp_path / "link").is_symlink()
    assert path.read_bytes() != before
    assert sorted(os.listdir(tmp_path)) == ["link", "out.safetensors"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path):
    path = tmp_path / "out.safetensors"
    with written(path, 1) as writer:
        path.write_bytes(b"another's")
        with pytest.raises(DumpError, match="exists"):
            writer.commit()
    assert path.read_bytes() == b"another's"
    assert os.listdir(tmp_path) == ["out.safetensors"]


def test_without_commit_nothing_is_left(tmp_path):
    path = tmp_path / "out.safetensors"
    with written(path, 1):
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []
    with pytest.raises(ZeroDivisionError), written(path, 1):
        1 / 0  # noqa: B018
    assert os.listdir(tmp_path) == []
    writer = written(path, 1)
    writer.abort()
    writer.abort()
    for call in (writer.commit, lambda: writer.write("a", 0, np.zeros((1, 3), np.float32))):
        with pytest.raises(DumpError, match="has finished"):
            call()
    written(path, 1).commit()
    assert os.listdir(tmp_path) == ["out.safetensors"]


def test_killed_before_commit_leaves_nothing_under_the_name(tmp_path):
    code = """
import os, signal, sys
import numpy as np
from kvcodec.dumps.safetensors import SafetensorsWriter
writer = SafetensorsWriter(sys.argv[1], [("a", np.float32, (2, 3))], {})
writer.write("a", 0, np.zeros((2, 3), np.float32))
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "out.safetensors"
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=Path(__file__).parents[1], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    written(path, 1).commit()
    assert path.exists()


@pytest.mark.parametrize(
    ("ranges", "missing"), [([], 0), ([(0, 3)], 3), ([(1, 7)], 0), ([(4, 7), (0, 3)], 3), ([(0, 5), (1, 2)], 5)]
)
def test_missing_rows(tmp_path, ranges, missing):
    with SafetensorsWriter(tmp_path / "out.safetensors", [("a", np.float32, (7, 2))], {}) as writer:
        for start, stop in ranges:
            writer.write("a", start, np.zeros((stop - start, 2), np.float32))
        with pytest.raises(DumpError, match=f"row {missing} of tensor 'a' was not written"):
            writer.commit()
    assert os.listdir(tmp_path) == []


def test_rows_written_in_any_order_and_twice(tmp_path):
    with SafetensorsWriter(tmp_path / "out.safetensors", [("a", np.float32, (7, 2))], {}) as writer:
        for start, stop in ((4, 6), (0, 5), (6, 7), (6, 6)):
            writer.write("a", start, np.full((stop - start, 2), start, np.float32))
        writer.commit()
    with safe_open(tmp_path / "out.safetensors", "numpy") as library:
        assert library.get_tensor("a")[:, 0].tolist() == [0, 0, 0, 0, 0, 4, 6]


def test_writer_refuses(tmp_path):
    path = tmp_path / "out.safetensors"
    for declared, error, text in (
        ([("a", np.float32, ())], ShapeError, "'a' has shape \\[\\]"),
        ([("a", np.float32, (2, -1))], ShapeError, "'a' has shape"),
        ([("a", np.complex128, (2,))], DtypeError, "'a': safetensors has no dtype complex128"),
        ([("a", np.float32, (2,)), ("a", np.float32, (2,))], DumpError, "'a' is there twice"),
        ([("__metadata__", np.float32, (2,))], DumpError, "reserved"),
    ):
        with pytest.raises(error, match=text):
            SafetensorsWriter(path, declared, {})
    with written(path, 1) as writer:
        for name, start, array, error, text in (
            ("b", 0, np.zeros((1, 3), np.float32), DumpError, "no tensor 'b' was declared"),
            ("a", 0, np.zeros((1, 3), np.float64), DtypeError, "rows are float64, want float32"),
            ("a", 0, np.zeros((1, 4), np.float32), ShapeError, r"rows have shape \[1, 4\]"),
            ("a", 0, np.zeros(3, np.float32), ShapeError, "rows have shape"),
            ("a", 1, np.zeros((2, 3), np.float32), ShapeError, "rows 1:3, want a range in 0:2"),
            ("a", -1, np.zeros((1, 3), np.float32), ShapeError, "rows -1:0"),
        ):
            with pytest.raises(error, match=text):
                writer.write(name, start, array)
    for bad, text in ((tmp_path, "not a regular file"), (Path("/dev/null"), "not a regular file"),
                      (tmp_path / "no" / "out", "cannot create"), (Path("a\0b"), "null")):  # fmt: skip
        with pytest.raises(DumpError, match=text):
            written(bad, 1, overwrite=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["pwrite", "fsync", "link"])
def test_a_disk_that_fails(tmp_path, monkeypatch, call):
    """A full disk is one error of ours, and nothing is left."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "out.safetensors"
    with written(path, 1) as writer:
        monkeypatch.setattr(os, call, fail)
        with pytest.raises(DumpError, match=r"out\.safetensors: cannot write: No space left on device"):
            writer.write("a", 0, np.zeros((2, 3), np.float32)) if call == "pwrite" else writer.commit()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_header_that_cannot_be_written_or_read(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    wanted = DumpError if isinstance(error, OSError) else KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(wanted):
            written(tmp_path / "out.safetensors", 1)
    assert os.listdir(tmp_path) == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(wanted):
            open_dump(GEMMA)
    with open_dump(GEMMA) as got, monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        with pytest.raises(wanted):
            got.rows(5, K, 0, 1)


def test_short_writes(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:1], at))
    written(tmp_path / "out.safetensors", 5).commit()
    with safe_open(tmp_path / "out.safetensors", "numpy") as library:
        np.testing.assert_array_equal(library.get_tensor("a"), np.full((2, 3), 5, np.float32))
