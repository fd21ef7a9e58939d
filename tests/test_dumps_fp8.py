"""Dumps in 8-bit floats: widened exactly, scaled as the file says."""

import ml_dtypes
import numpy as np
import pytest

import kvcodec as kv
from kvcodec.dumps.fp8 import widening_table
from kvcodec.errors import DumpError, NonFiniteError
from kvcodec.layout import DtypeId
from tests.test_dumps import BF16, TOKENS, K, V, dump, refusal, rows

FP8 = ml_dtypes.float8_e4m3fn


def pair():
    return {"k.0": rows(1).astype(FP8), "v.0": rows(2).astype(FP8)}


def test_every_code_is_widened_exactly():
    codes = np.arange(256, dtype=np.uint8).view(FP8)
    wide = widening_table(None).view(BF16)
    assert np.array_equal(wide.astype(np.float64), codes.astype(np.float64), equal_nan=True)
    assert np.isnan(wide[[0x7F, 0xFF]].astype(float)).all()
    with np.errstate(all="ignore"):
        scaled = (codes.astype(np.float32) * np.float32(0.3)).astype(BF16)
    assert np.array_equal(widening_table(0.3), scaled.view(np.uint16))


def test_rows_are_bfloat16(tmp_path):
    tensors = pair()
    with dump(tmp_path, tensors) as got:
        assert (got.dtype, got.dtype_id) == (BF16, DtypeId.BFLOAT16)
        for stream, array in zip((K, V), tensors.values(), strict=True):
            part = got.rows(0, stream, 2, 6)
            assert part.dtype == BF16
            assert np.array_equal(part, array[2:6].astype(BF16))


@pytest.mark.parametrize("name", ["k.0.scale", "k.0_scale", "k_scale.0"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_scales_in_tensors(tmp_path, name, dtype):
    tensors = pair()
    for shape in ((), (1,), (1, 1)):
        with dump(tmp_path, tensors | {name: np.full(shape, 0.375, dtype)}) as got:
            wanted = (tensors["k.0"].astype(np.float32) * np.float32(0.375)).astype(BF16)
            assert np.array_equal(got.rows(0, K, 0, TOKENS), wanted)
            assert np.array_equal(got.rows(0, V, 0, TOKENS), tensors["v.0"].astype(BF16))


def test_scales_in_metadata(tmp_path):
    tensors = {"layers.3.self_attn.k": pair()["k.0"], "layers.3.self_attn.v": pair()["v.0"]}
    metadata = {"layers.3.self_attn.k_scale": "0.5", "v_scale": "2"}
    with dump(tmp_path, tensors, metadata) as got:
        k, v = (a.astype(np.float32) for a in tensors.values())
        assert np.array_equal(got.rows(3, K, 0, TOKENS), (k / 2).astype(BF16))
        assert np.array_equal(got.rows(3, V, 0, TOKENS), (v * 2).astype(BF16))


def test_scales_refused(tmp_path):
    one = np.ones(1, np.float32)
    assert "several scales" in refusal(tmp_path, pair() | {"k.0.scale": one, "k_scale.0": one})
    assert "several scales" in refusal(tmp_path, pair() | {"k.0.scale": one}, {"k_scale": "1"})
    assert "want one number" in refusal(tmp_path, pair() | {"k.0.scale": np.ones(2, np.float32)})
    assert "want one number" in refusal(tmp_path, pair() | {"k.0.scale": np.ones(1, np.int32)})
    for bad in (0, -1, np.inf, np.nan):
        assert "want a positive number" in refusal(tmp_path, pair() | {"v.0.scale": np.full(1, bad, np.float32)})
    for bad in ("0", "-1", "inf", "nan", "x", ""):
        assert "want a positive number" in refusal(tmp_path, pair(), {"v_scale": bad})


def test_a_nan_or_an_overflow_is_refused_by_the_store(tmp_path):
    tensors = pair()
    tensors["k.0"][3, 1, 2] = np.nan
    dump(tmp_path, tensors).close()
    with pytest.raises(NonFiniteError) as caught:
        kv.encode(tmp_path / "dump.safetensors", tmp_path / "a.kvlog")
    assert (caught.value.token, caught.value.head, caught.value.channel) == (3, 1, 2)
    dump(tmp_path, pair(), {"k_scale": "3e38"}).close()
    with pytest.raises(NonFiniteError):
        kv.encode(tmp_path / "dump.safetensors", tmp_path / "a.kvlog")


def test_an_8_bit_dump_is_encoded(tmp_path):
    dump(tmp_path, pair(), {"model": "tiny"}).close()
    report = kv.encode(tmp_path / "dump.safetensors", tmp_path / "a.kvlog", k="raw", v="raw")
    assert report.tokens == TOKENS
    with kv.open(tmp_path / "a.kvlog") as store:
        assert np.array_equal(store.sequence("dump").read(0)[0], pair()["k.0"].astype(BF16))
    with pytest.raises(DumpError, match="no layer 1 K"), dump(tmp_path, pair()) as got:
        got.rows(1, K, 0, 1)
