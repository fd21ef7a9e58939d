"""Kernels against their naive twins, bit for bit, and the promises of grouped integers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.codecs.grouped import GroupedCodec
from kvcodec.codecs.sections import scale_shape
from kvcodec.errors import CorruptRecord
from kvcodec.kernels import _floats_simd, _scaling, floats
from kvcodec.kernels._jit import jit
from kvcodec.kernels._simd import (
    load_bytes,
)
from kvcodec.layout import Axis, CodecId, DtypeId, StreamId
from kvcodec.spec import CodecSpec
from tests import reference

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
DIMS = [1, 8, 16, 24] if INTERPRETED else [1, 8, 16, 72, 80, 96, 128, 256]
TOKENS = 40 if INTERPRETED else 200
BITS = {False: np.dtype(ml_dtypes.bfloat16), True: np.dtype(np.float16)}
STYLES = ["normal", "bits", "subnormal", "constant", "zero", "outlier", "huge", "offset", "ties"]

thorough = settings(max_examples=10 if INTERPRETED else 60, deadline=None)
specs = st.builds(
    CodecSpec,
    st.sampled_from([CodecId.INT8, CodecId.INT4, CodecId.INT2]),
    st.sampled_from([Axis.CHANNEL, Axis.TOKEN]),
    st.sampled_from([16, 32, 48, 64, 80, 128]),
    st.booleans(),
)
streams = st.sampled_from([StreamId.K, StreamId.V])


def make_rows(style: str, shape: tuple[int, ...], half: bool, seed: int) -> np.ndarray:
    """Finite 16-bit floats' bits."""
    rng = np.random.default_rng(seed)
    dtype = BITS[half]
    most = float(ml_dtypes.finfo(dtype).max)
    normal = rng.standard_normal(shape)
    sign = np.where(rng.random(shape) < 0.5, 0x8000, 0).astype(np.uint16)
    if style == "bits":
        return rng.integers(0, 0x7C00 if half else 0x7F80, shape, np.uint16) | sign
    if style == "subnormal":
        return rng.integers(0, 0x400 if half else 0x80, shape, np.uint16) | sign
    values = {
        "normal": normal,
        "constant": np.broadcast_to(normal[..., :1], shape) * 100,
        "zero": normal * 0,
        "outlier": np.where(rng.random(shape) < 0.01, 3e4, normal),
        "huge": np.sign(normal) * most * np.where(rng.random(shape) < 0.5, 1, 0.99),
        "offset": 1000 + normal,
        "ties": rng.integers(-14, 15, shape) / 2,
    }[style]
    return np.clip(values, -most, most).astype(dtype).view(np.uint16)


@st.composite
def heads_of_rows(draw):
    """(spec, stream, half, rows (tokens, heads, dim))."""
    shape = draw(st.integers(1, TOKENS)), draw(st.integers(1, 2)), draw(st.sampled_from(DIMS))
    half = draw(st.booleans())
    rows = make_rows(draw(st.sampled_from(STYLES)), shape, half, draw(st.integers(0, 2**32 - 1)))
    return draw(specs), draw(streams), half, rows


def dtype_of(half: bool) -> DtypeId:
    return DtypeId.FLOAT16 if half else DtypeId.BFLOAT16


def twin_arguments(spec: CodecSpec, stream: StreamId) -> dict:
    return {
        "group": spec.group,
        "per_channel": spec.axis == Axis.CHANNEL,
        "symmetric": spec.symmetric,
        "channel_lane": stream == StreamId.V,
        "bits": spec.bits,
    }


def scales_of_values(body: np.ndarray, spec: CodecSpec, stream: StreamId, tokens: int, dim: int) -> np.ndarray:
    """float64 scale of every number of one head, (tokens, dim)."""
    table = scale_shape(tokens, dim, spec.axis, spec.group, stream == StreamId.V)
    scales = body[: 2 * table[0] * table[1]].view(ml_dtypes.bfloat16).reshape(table).astype(np.float64)
    if spec.axis == Axis.CHANNEL:
        return np.repeat(scales[:, :dim], spec.group, axis=0)[:tokens]
    return np.repeat(scales[:, :tokens], spec.group, axis=0)[:dim].T


@thorough
@given(heads_of_rows())
def test_quantize_records_is_its_twin(case):
    spec, stream, half, rows = case
    tokens, heads, _ = rows.shape
    codec = GroupedCodec(spec, stream)
    encoded = codec.encode(rows, dtype_of(half), tokens)
    for h in range(heads):
        body, error = reference.quantize_records(rows[:, h], half, **twin_arguments(spec, stream))
        assert encoded.body[0, h].tobytes() == body
        assert encoded.errors[0, h] == error


@pytest.mark.parametrize("style", ["normal", "zero", "outlier", "huge", "subnormal"])
@pytest.mark.parametrize("half", [False, True])
def test_figures_from_float32_sums_are_the_exact_ones(style, half):
    records, tokens, dim = 20 if INTERPRETED else 400, 22, 24
    rows = make_rows(style, (records * tokens, 1, dim), half, 3)
    codec = GroupedCodec(CodecSpec.parse("int2/channel/g16"), StreamId.K)
    encoded = codec.encode(rows, dtype_of(half), tokens)
    decoded = codec.decode(encoded.body, tokens, dim, dtype_of(half), as_float32=True)
    x = reference.widen_rows(rows, half).reshape(records, tokens, dim)
    missed = x - decoded.reshape(x.shape)
    for record in range(records):
        exact = reference.relate_error(*map(reference.sum_squares, (missed[record], x[record])))
        assert encoded.errors[record, 0] == exact


@thorough
@given(heads_of_rows(), st.sampled_from([ml_dtypes.bfloat16, np.float16, np.float32]), st.booleans())
def test_dequantize_records_is_its_twin(case, form, scrambled):
    spec, stream, half, rows = case
    tokens, heads, dim = rows.shape
    codec = GroupedCodec(spec, stream)
    body = codec.encode(rows, dtype_of(half), tokens).body
    if scrambled:  # any zeros and codes, not only those that the quantizer makes
        sections = codec.sections(tokens, dim)
        rest = body[:, :, sections.scales :]
        rest[...] = np.random.default_rng(tokens).integers(0, 256, rest.shape, np.uint8)
    decoded = codec.decode(body, tokens, dim, dtype_of(form == np.float16), as_float32=form == np.float32)
    for h in range(heads):
        twin = reference.dequantize_records(body[0, h].tobytes(), tokens, dim, form, **twin_arguments(spec, stream))
        assert decoded[:, h].tobytes() == twin.tobytes()


@thorough
@given(heads_of_rows())
def test_error_is_within_half_a_step(case):
    spec, stream, half, rows = case
    tokens, heads, dim = rows.shape
    codec = GroupedCodec(spec, stream)
    body = codec.encode(rows, dtype_of(half), tokens).body
    decoded = codec.decode(body, tokens, dim, dtype_of(half), as_float32=True).astype(np.float64)
    x = reference.widen_rows(rows, half).astype(np.float64)
    most = 2**spec.bits - 1
    reach = most // 2 if spec.symmetric else reference.REACH[spec.bits] + most
    bound = 0.5 + reach * 2.0**-23 + 2.0**-15  # 1 / s and x / s are each rounded to 24 bits, steps to 2**-17
    for h in range(heads):
        scales = scales_of_values(body[0, h], spec, stream, tokens, dim)
        assert (np.abs(x[:, h] - decoded[:, h]) <= bound * scales).all()


@thorough
@given(specs.filter(lambda spec: not spec.symmetric), streams, st.integers(0, 0x7F7F), st.booleans(), st.booleans())
def test_constant_group_is_exact(spec, stream, bits, negative, half):
    finest = 0x0380 if spec.codec == CodecId.INT8 else 0x0200  # bfloat16 below is finer than any part of a step
    least, most = (0x0001, 0x7BFF) if half else (finest, 0x7F7F)
    bits = 0 if bits < least else min(bits, most)
    rows = np.full((20, 1, 20), bits | (0x8000 if negative and bits else 0), np.uint16)
    codec = GroupedCodec(spec, stream)
    body = codec.encode(rows, dtype_of(half), 20).body
    np.testing.assert_array_equal(codec.decode(body, 20, 20, dtype_of(half)), rows)


@pytest.mark.parametrize(("name", "finest"), [("int8", 0x0380), ("int4", 0x0200), ("int2", 0x0200)])
def test_the_finest_constant_that_is_exact(name, finest):
    codec = GroupedCodec(CodecSpec.parse(f"{name}/channel/g16"), StreamId.K)
    for bits, exact in [(finest, True), (finest - 1, False)]:  # the one below is odd: half of the finest part
        rows = np.full((1, 1, 1), bits, np.uint16)
        body = codec.encode(rows, DtypeId.BFLOAT16, 1).body
        assert (codec.decode(body, 1, 1, DtypeId.BFLOAT16) == rows).all() == exact


@pytest.mark.parametrize("name", ["int8", "int4", "int2"])
@pytest.mark.parametrize("half", [False, True])
def test_far_from_zero_no_code_leaves_its_range(name, half):
    """Numbers as far from zero as zeros reach, and spans of all codes from zeros off by half a part: no clamp."""
    spec = CodecSpec.parse(f"{name}/token/g16")
    rng = np.random.default_rng(5)
    count = 20 if INTERPRETED else 4000
    most = 2**spec.bits - 1
    reach = reference.REACH[spec.bits]
    offset = rng.choice([-1, 1], (count, 1)) * rng.uniform(0, 1.2, (count, 1)) ** 8 * reach
    steps = offset + most * rng.choice([0, 1, rng.random()], (count, 16)) + rng.random((count, 1)) / 16
    x = (steps * 2.0 ** rng.integers(-14, -1 if half else 100, (count, 1))).astype(BITS[half])
    codec = GroupedCodec(spec, StreamId.K)
    body = codec.encode(x.view(np.uint16)[:, None], dtype_of(half), count).body
    twin, _ = reference.quantize_records(x.view(np.uint16), half, **twin_arguments(spec, StreamId.K))
    assert body.tobytes() == twin
    wide = x.astype(np.float32)
    for row in wide:
        scale, zero = reference.choose_steps(row, False, spec.bits)
        inverse = np.float32(1) / scale
        exact = row * inverse - np.float32(zero) / np.float32(reference.PARTS[spec.bits])
        slack = 0.5 / reference.PARTS[spec.bits] + (0.01 if spec.bits == 8 else 0.001)
        assert -slack <= exact.min()
        assert exact.max() <= most + slack


@pytest.mark.parametrize(
    ("name", "side", "want"),
    [("int8", 128, [-126, -25, 38, 126]), ("int4", 8, [-7, -1, 2, 7]), ("int2", 2, [-1, 0, 0, 1])],
)
def test_symmetric_codes_of_the_textbook(name, side, want):
    rows = np.array([-1, -0.2, 0.3, 1], ml_dtypes.bfloat16).view(np.uint16).reshape(1, 1, 4)
    codec = GroupedCodec(CodecSpec.parse(f"{name}/token/g32/sym"), StreamId.K)
    body = codec.encode(rows, DtypeId.BFLOAT16, 1).body
    codes = reference.unpack_token_tiles(body[0, 0, 64:], 16, 16, codec.spec.bits)[0, :4].astype(int)
    assert (codes - side).tolist() == want


@jit
def widen_floats(halves, half, count, out):
    for n in range(0, count, 16):
        _floats_simd.store_floats(_floats_simd.load_parted(halves + 2 * n, half), out + 4 * n)


@jit
def narrow_floats(values, count, form, steps, codes, out):
    """Of codes of 0, shifts are what is stored."""
    for n in range(0, count, 16):
        _floats_simd.store_floats(_floats_simd.splat_float(np.float32(1)), steps)
        _floats_simd.store_floats(_floats_simd.load_floats(values + 4 * n), steps + 64)
        _scaling.scale_by_channel(load_bytes(codes), steps, False, np.float32(0), form, out + 2 * n, 0)


def narrow(values, form):
    out, steps, codes = np.zeros(values.shape, np.uint16), np.zeros(32, np.float32), np.zeros(64, np.uint8)
    narrow_floats(values.ctypes.data, values.size, form, steps.ctypes.data, codes.ctypes.data, out.ctypes.data)
    return out


def test_every_float16_and_bfloat16_widens_and_narrows():
    bits = np.arange(0x10000, dtype=np.uint32)[:: 97 if INTERPRETED else 1].astype(np.uint16)
    for half, exponent in [(False, 0x7F80), (True, 0x7C00)]:
        finite = np.resize(bits[bits & exponent != exponent], 0x10000 // (64 if INTERPRETED else 1))
        values = np.zeros(finite.shape, np.float32)
        widen_floats(finite.ctypes.data, half, finite.size, values.ctypes.data)
        values = values.reshape(-1, 16)[:, _floats_simd.WOVEN].reshape(-1).copy()
        assert values.tobytes() == reference.widen_rows(finite, half).tobytes()
        narrowed = narrow(values, floats.FLOAT16 if half else floats.BFLOAT16)
        np.testing.assert_array_equal(narrowed, np.where(finite == 0x8000, 0, finite))  # 0 + -0 is 0


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=5, deadline=None)
def test_narrowing_rounds_to_nearest_even(seed):
    rng = np.random.default_rng(seed)
    count = 512 if INTERPRETED else 20480
    ties = rng.integers(1, 0x7BFF, count).astype(np.uint16).view(np.float16).astype(np.float32)
    values = np.concatenate([ties + np.spacing(ties.astype(np.float16)).astype(np.float32) / 2, -ties * 1.0003])
    values = np.clip(np.concatenate([values, values * np.float32(1e-5)]), -65504, 65504)
    for form, dtype in [(floats.FLOAT16, np.float16), (floats.BFLOAT16, ml_dtypes.bfloat16)]:
        assert narrow(values, form).tobytes() == values.astype(dtype).tobytes()


WITHOUT_CONVERSION = """
import hashlib, sys
import numpy as np
from kvcodec.kernels import _vectors
_vectors.FEATURES.update(f16c=False, avx2=False)
from kvcodec.codecs import decode_array, encode_array
bits = np.random.default_rng(0).integers(0, 0x7C00, (70, 2, 80), np.uint16)
bits[::3] &= 0x83FF
encoded = encode_array(bits.view(np.float16), sys.argv[1])
print(hashlib.md5(encoded.full.tobytes() + encoded.tail.tobytes() + decode_array(encoded).tobytes()).hexdigest())
"""


@pytest.mark.skipif(INTERPRETED, reason="compiled kernels only")
def test_without_instructions_for_float16_the_bytes_are_the_same(tmp_path):
    """Also without what keeps vectors in registers."""
    with_ = WITHOUT_CONVERSION.replace("_vectors.FEATURES.update(f16c=False, avx2=False)\n", "")
    assert with_ != WITHOUT_CONVERSION
    hashes = {
        subprocess.run(
            [sys.executable, "-c", text, "int4/token/g32"], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for text, environment in ((WITHOUT_CONVERSION, {**os.environ, "KVCODEC_JIT_CACHE": "0"}), (with_, None))
    }
    assert len(hashes) == 1


@pytest.mark.parametrize("spec", ["int4/channel/g64", "int8/token/g64/sym", "int2/token/g16"])
@pytest.mark.parametrize("stream", [StreamId.K, StreamId.V])
def test_streamed_rows_are_the_same(spec, stream, monkeypatch):
    codec = GroupedCodec(CodecSpec.parse(spec), stream)
    rows = make_rows("normal", (128, 2, 48), False, 4)
    body = codec.encode(rows, DtypeId.BFLOAT16, 64).body
    want = codec.decode(body, 64, 48, DtypeId.BFLOAT16, as_float32=True)
    monkeypatch.setattr("kvcodec.codecs.grouped._STREAMED_BYTES", 0)
    np.testing.assert_array_equal(codec.decode(body, 64, 48, DtypeId.BFLOAT16, as_float32=True), want)


@given(st.integers(1, 9), st.integers(1, 70), st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_find_nonfinite_is_its_twin(tokens, width, half, seed):
    rng = np.random.default_rng(seed)
    rows = make_rows("bits", (tokens, width), half, seed)
    for _ in range(rng.integers(0, 3)):
        rows[rng.integers(tokens), rng.integers(width)] = rng.choice([0x7F80, 0xFF80, 0x7FC0, 0xFFFF])
    mask = np.uint16(0x7C00 if half else 0x7F80)
    assert floats.find_nonfinite(rows, mask) == reference.find_nonfinite(rows, half)


@given(specs, streams, st.integers(1, 70), st.sampled_from([1, 20, 40]), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_find_bad_scale_is_its_twin(spec, stream, tokens, dim, seed):
    rng = np.random.default_rng(seed)
    codec = GroupedCodec(spec, stream)
    rows, columns = scale_shape(tokens, dim, spec.axis, spec.group, stream == StreamId.V)
    used = dim if spec.axis == Axis.CHANNEL else tokens
    body = np.zeros((2, 3, codec.sections(tokens, dim).total), np.uint8)
    table = np.zeros((2, 3, rows, columns), np.uint16)
    table[..., :used] = rng.choice([0x0080, 0x3F80, 0x7F7F], (2, 3, rows, used))
    if rng.random() < 0.8:
        at = tuple(rng.integers(n) for n in (2, 3, rows, used))
        table[at] = rng.choice([0, 1, 0x007F, 0x7F80, 0x7FC0, 0x8000, 0xBF80, 0xFFFF])
    body.view(np.uint16)[:, :, : rows * columns] = table.reshape(2, 3, -1)
    index = reference.find_bad_scale(table[..., :used].reshape(-1))
    if index < 0:
        codec.validate(body, tokens, dim)
        return
    head, row, column = index // (rows * used), index // used % rows, index % used
    with pytest.raises(CorruptRecord) as caught:
        codec.decode(body, tokens, dim, DtypeId.BFLOAT16)
    assert caught.value.offset == head * body.shape[2] + 2 * (row * columns + column)


USE_KERNELS = """
import json
import numpy as np
from kvcodec.codecs import decode_array, encode_array
from kvcodec.kernels import dequantize, floats, quantize, steps
for tokens, heads, dim, dtype in [(70, 1, 8, "float16"), (200, 2, 80, "float32"), (64, 3, 128, "float16")]:
    for spec in ["int4/channel/g64", "int8/token/g32/sym", "int2/token/g16"]:
        for stream in "kv":
            x = np.ones((tokens, 2 * heads, dim), dtype)[:, ::2]
            x.flags.writeable = False
            e = encode_array(x, spec, stream=stream)
            decode_array(e)
            e.full.flags.writeable = False
            decode_array(e, np.array([1, tokens - 1]), np.float32)
kernels = [quantize.quantize_records, dequantize.dequantize_records, steps.find_bad_scale, floats.find_nonfinite]
print(json.dumps([len(k.signatures) for k in kernels]))
"""


@pytest.mark.skipif(INTERPRETED, reason="compiled kernels only")
def test_one_machine_code_a_kernel():
    run = subprocess.run([sys.executable, "-c", USE_KERNELS], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == [1] * 4


FIND_NONFINITE = """
import numpy as np
from kvcodec.kernels._jit import find_cache
from kvcodec.kernels.floats import find_nonfinite
print(find_nonfinite(np.full((1, 1), 0x7F80, np.uint16), np.uint16(0x7F80)))
print(len(find_nonfinite.signatures), sum(find_nonfinite.stats.cache_hits.values()), find_cache().parent)
"""


@pytest.mark.skipif(INTERPRETED, reason="compiled kernels only")
def test_a_second_process_finds_the_machine_code(tmp_path):
    environment = os.environ | {"KVCODEC_CACHE_DIR": str(tmp_path)}
    found = [
        subprocess.run(
            [sys.executable, "-c", FIND_NONFINITE], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert found == [["0", "1", hits, str(tmp_path)] for hits in "01"]


@pytest.mark.parametrize("environment", [{"KVCODEC_JIT_CACHE": "0"}, {"KVCODEC_CACHE_DIR": "/proc/nowhere"}])
def test_kernels_work_without_a_cache(environment):
    code = (
        "import numpy as np; from kvcodec.kernels.floats import find_nonfinite;"
        "print(find_nonfinite(np.full((1, 1), 0x7F80, np.uint16), np.uint16(0x7F80)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "0"


def test_importing_kvcodec_does_not_import_numba():
    code = "import sys, kvcodec, kvcodec.codecs; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
