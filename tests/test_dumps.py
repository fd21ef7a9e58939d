"""Dumps: every name and shape that is accepted, every refusal."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from kvcodec.dumps import open_dump
from kvcodec.dumps.names import recognise
from kvcodec.errors import DtypeError, DumpError, ShapeError
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
    for dtype, code in ((np.float64, "F64"), (np.int8, "I8"), (ml_dtypes.float8_e5m2, "F8_E5M2")):
        text = refusal(tmp_path, {"k.0": k.astype(dtype), "v.0": k}, error=DtypeError)
        assert f"'k.0' is {code}, want BF16, F16, F32 or F8_E4M3" in text
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
