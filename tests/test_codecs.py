"""Codecs and encode_array / decode_array: sizes, tails, chosen tokens, refusals, frozen bytes."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.codecs import codec_for, decode_array, encode_array, find_nonfinite
from kvcodec.errors import CorruptRecord, DtypeError, NonFiniteError, ShapeError, SpecError
from kvcodec.layout import DtypeId, StreamId

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
SPECS = [
    "raw",
    "int4/channel/g64",
    "int4/channel/g48/sym",
    "int4/token/g32",
    "int4/token/g16/sym",
    "int8/channel/g32",
    "int8/token/g16/sym",
    "int2/channel/g16/sym",
    "int2/token/g48",
]
brief = settings(max_examples=4 if INTERPRETED else 40, deadline=None)
dtypes = st.sampled_from([np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)])


def make_array(shape, dtype=ml_dtypes.bfloat16, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


TOKEN_GROUPS = {
    "raw": 64,
    "int4/token/g16": 64,
    "int4/token/g128": 64,
    "int4/channel/g16": 64,
    "int4/channel/g48": 96,
    "int4/channel/g64": 64,
    "int4/channel/g80": 80,
    "int4/channel/g128": 128,
    "int8/channel/g48": 96,
    "int8/token/g64": 64,
    "int2/channel/g128": 128,
    "int2/token/g16": 64,
}


@pytest.mark.parametrize(("spec", "token_group"), TOKEN_GROUPS.items())
def test_token_group(spec, token_group):
    for stream in StreamId:
        codec = codec_for(spec, stream)
        assert codec.token_group == token_group
        assert codec.channel_lane == (stream == StreamId.V)
        assert str(codec.spec) == spec


@brief
@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from([1, 7, 72, 128]), st.integers(0, 2**32 - 1))
def test_raw_is_bit_exact(records, heads, dim, seed):
    rows = np.random.default_rng(seed).integers(0, 0x10000, (records * 5, heads, dim), np.uint16)
    rows[0, 0, 0] = 0x8000
    codec = codec_for("raw", StreamId.K)
    body, errors, _ = codec.encode(rows, DtypeId.BFLOAT16, 5)
    assert body.shape == (records, heads, codec.sections(5, dim).total)
    assert not errors.any()
    codec.validate(body, 5, dim)
    np.testing.assert_array_equal(codec.decode(body, 5, dim, DtypeId.BFLOAT16), rows)
    np.testing.assert_array_equal(codec.decode(body[0], 5, dim, DtypeId.BFLOAT16), rows[:5])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_raw_array_keeps_negative_zero_and_subnormals(dtype):
    x = np.array([0x8000, 0x0001, 0x8001, 0x007F, 0x03FF, 0x7BFF], np.uint16).reshape(6, 1, 1).view(dtype)
    encoded = encode_array(x, "raw")
    assert decode_array(encoded).tobytes() == x.tobytes()
    assert decode_array(encoded, dtype=np.float32).tobytes() == x.astype(np.float32).tobytes()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("stream", ["k", "v"])
def test_heads_and_records_decode_alone(spec, stream):
    codec = codec_for(spec, StreamId[stream.upper()])
    rows = make_array((3 * 20, 4, 24)).view(np.uint16)
    body, errors, _ = codec.encode(rows, DtypeId.BFLOAT16, 20)
    assert errors.shape == (3, 4)
    decoded = codec.decode(body, 20, 24, DtypeId.BFLOAT16)
    np.testing.assert_array_equal(codec.decode(body[1, 2:], 20, 24, DtypeId.BFLOAT16), decoded[20:40, 2:])
    np.testing.assert_array_equal(codec.decode(body[1:, ::2], 20, 24, DtypeId.BFLOAT16), decoded[20:, ::2])
    alone = codec.encode(rows[20:40, 1:2], DtypeId.BFLOAT16, 20)
    np.testing.assert_array_equal(alone.body[0, 0], body[1, 1])
    unaligned = np.frombuffer(b"\0" + body.tobytes(), np.uint8)[1:].reshape(body.shape)
    np.testing.assert_array_equal(codec.decode(unaligned, 20, 24, DtypeId.BFLOAT16), decoded)


@brief
@given(
    st.sampled_from(SPECS),
    st.sampled_from(["k", "v", "c", "kr"]),
    st.integers(0, 30 if INTERPRETED else 300),
    st.sampled_from([(1, 1), (2, 8), (1, 20)]),
    dtypes,
    st.data(),
)
def test_chosen_tokens_equal_the_slice_of_all(spec, stream, tokens, shape, dtype, data):
    x = make_array((tokens, *shape), dtype)
    encoded = encode_array(x, spec, stream=stream)
    every = decode_array(encoded)
    assert every.shape == x.shape
    assert every.dtype == dtype
    start, stop, step = (data.draw(st.integers(-310, 310)) for _ in range(3))
    chosen = slice(start, stop, step or None)
    np.testing.assert_array_equal(decode_array(encoded, chosen), every[chosen])
    indices = np.array(data.draw(st.lists(st.integers(0, max(tokens - 1, 0)), max_size=9 if tokens else 0)), np.int64)
    np.testing.assert_array_equal(decode_array(encoded, indices), every[indices])
    wide = decode_array(encoded, indices, np.float32)
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide.astype(dtype), every[indices])


@pytest.mark.parametrize("spec", ["raw", "int4/channel/g64", "int8/token/g16/sym"])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_decoding_into_memory(spec, dtype):
    encoded = encode_array(make_array((64 * 3 + 5, 2, 24)), spec)
    for tokens in (None, slice(64, 192), slice(3, 100), slice(None, None, -1), np.array([5, 194, 0])):
        want = decode_array(encoded, tokens, dtype)
        out = np.full(want.shape, 7, dtype)
        assert decode_array(encoded, tokens, dtype, out=out) is out
        assert out.tobytes() == want.tobytes()
    codec, float32 = codec_for(spec, StreamId.K), dtype is np.float32
    want = codec.decode(encoded.full, 64, 24, DtypeId.BFLOAT16, as_float32=float32)
    out = np.empty_like(want)
    assert codec.decode(encoded.full, 64, 24, DtypeId.BFLOAT16, as_float32=float32, out=out) is out
    np.testing.assert_array_equal(out, want)


def test_memory_that_does_not_fit_is_refused():
    encoded = encode_array(make_array((64, 2, 24)), "int4/token/g16")
    frozen = np.zeros((64, 2, 24), np.float32)
    frozen.flags.writeable = False
    for out in (np.zeros((64, 2, 25), np.float32), np.zeros((64, 2, 48), np.float32)[:, :, ::2], frozen):
        with pytest.raises(ShapeError, match="out: shape is"):
            decode_array(encoded, dtype=np.float32, out=out)
    with pytest.raises(DtypeError, match="out: dtype is float64, want float32"):
        decode_array(encoded, dtype=np.float32, out=np.zeros((64, 2, 24)))


def test_only_needed_records_are_decoded():
    encoded = encode_array(make_array((64 * 4 + 3, 1, 16)), "int4/token/g16")
    encoded.full[2, :, 1] = 0xFF
    decode_array(encoded, np.array([0, 70, 200, 258]))
    with pytest.raises(CorruptRecord):
        decode_array(encoded, np.array([130]))


@pytest.mark.skipif(INTERPRETED, reason="too many numbers")
@pytest.mark.parametrize(
    ("spec", "nbytes"),
    [
        ("int4/channel/g64", 589824),
        ("int4/token/g64", 589824),
        ("int4/channel/g32", 655360),
        ("int4/channel/g128/sym", 540672),
        ("int8/channel/g64", 1114112),
        ("int8/token/g128/sym", 1064960),
        ("int2/channel/g64", 327680),
        ("int2/token/g32", 393216),
        ("raw", 2 * 1048576),
    ],
)
def test_bytes_of_a_mebi_of_numbers(spec, nbytes):
    encoded = encode_array(make_array((1024, 8, 128)), spec)
    assert encoded.nbytes == nbytes
    assert encoded.ratio == 2 * 1048576 / nbytes


def test_error_figure_is_the_relative_error():
    x = make_array((100, 2, 16), np.float16)
    encoded = encode_array(x, "int4/channel/g64")
    for record, tokens in enumerate([slice(0, 64), slice(64, 100)]):
        missed = (decode_array(encoded, tokens, np.float32) - x[tokens]).astype(np.float64)
        relative = np.sqrt((missed**2).sum((0, 2)) / (x[tokens].astype(np.float64) ** 2).sum((0, 2)))
        np.testing.assert_allclose(encoded.errors[record] / 32768, relative, atol=1 / 32768)


def test_float32_is_rounded_first():
    x = make_array((10, 1, 16), np.float32)
    for dtype in (ml_dtypes.bfloat16, np.float16):
        np.testing.assert_array_equal(
            decode_array(encode_array(x, "int4/token/g16", dtype=dtype)),
            decode_array(encode_array(x.astype(dtype), "int4/token/g16")),
        )
    assert decode_array(encode_array(x, "raw")).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.nan, np.float16), (np.inf, ml_dtypes.bfloat16), (-np.inf, np.float32), (3.4028e38, np.float32)],
)
def test_nonfinite_is_refused_with_its_place(value, dtype):
    x = make_array((70, 3, 20), dtype)
    x[66, 1, 9] = value
    with pytest.raises(NonFiniteError, match="stream v, token 66, head 1, channel 9") as caught:
        encode_array(x, "int4/channel/g64", stream="v")
    assert (caught.value.token, caught.value.head, caught.value.channel) == (66, 1, 9)
    with pytest.raises(NonFiniteError):
        encode_array(x, "raw")


def test_float32_beyond_float16_is_refused():
    x = np.full((1, 1, 1), 65520, np.float32)
    with pytest.raises(NonFiniteError):
        encode_array(x, "raw", dtype=np.float16)


def test_find_nonfinite_of_finite_rows_is_none():
    assert find_nonfinite(np.full((3, 2, 5), 0x7F7F, np.uint16), DtypeId.BFLOAT16) is None
    assert find_nonfinite(np.full((3, 2, 5), 0x7C00, np.uint16), DtypeId.FLOAT16) == (0, 0, 0)
    assert find_nonfinite(np.zeros((0, 2, 5), np.uint16), DtypeId.FLOAT16) is None


def test_refusals_name_argument_got_and_wanted():
    x = make_array((4, 1, 16))
    encoded = encode_array(x, "int4/token/g16")
    with pytest.raises(DtypeError, match="x: dtype is float64, want"):
        encode_array(x.astype(np.float64), "raw")
    with pytest.raises(DtypeError, match="x: dtype is bfloat16, want float16"):
        encode_array(x, "raw", dtype=np.float16)
    with pytest.raises(DtypeError, match="dtype is float64, want bfloat16 or float16"):
        encode_array(x.astype(np.float32), "raw", dtype=np.float64)
    with pytest.raises(DtypeError, match="x: type is list"):
        encode_array([1.0], "raw")
    for bad in (x[0], x[:, :0], x[:, :, :0]):
        with pytest.raises(ShapeError, match=r"x: shape is \(.*\), want \(tokens, heads, dim\)"):
            encode_array(bad, "raw")
    with pytest.raises(SpecError, match="stream is 'q'"):
        encode_array(x, "raw", stream="q")
    with pytest.raises(SpecError):
        encode_array(x, "int4/g16")
    for indices, worst in [([0, 4], 4), ([-1], -1)]:
        with pytest.raises(ShapeError, match=f"tokens: {worst} is out of range, want 0 to 3"):
            decode_array(encoded, np.array(indices))
    with pytest.raises(ShapeError, match="tokens: shape"):
        decode_array(encoded, np.zeros((1, 1), np.int64))
    with pytest.raises(DtypeError, match="tokens: dtype is bool"):
        decode_array(encoded, np.array([True]))
    with pytest.raises(DtypeError, match="dtype is float16, want bfloat16 or float32"):
        decode_array(encoded, dtype=np.float16)


@pytest.mark.parametrize("spec", ["raw", "int4/token/g16"])
def test_codecs_refuse_wrong_shapes(spec):
    codec = codec_for(spec, StreamId.K)
    for rows, tokens in [((7, 1, 4), 2), ((4, 4), 2), ((4, 0, 4), 2), ((4, 1, 4), 0)]:
        with pytest.raises(ShapeError, match="rows: shape is"):
            codec.encode(np.zeros(rows, np.uint16), DtypeId.FLOAT16, tokens)
    with pytest.raises(ShapeError, match="body: shape is"):
        codec.decode(np.zeros((1, 1, 65), np.uint8), 2, 4, DtypeId.FLOAT16)
    with pytest.raises(ShapeError, match="body: shape is"):
        codec.validate(np.zeros(64, np.uint8), 2, 4)


def test_corrupt_scale_is_named():
    codec = codec_for("int4/channel/g64", StreamId.K)
    body = codec.encode(np.ones((10, 2, 20), np.float16).view(np.uint16), DtypeId.FLOAT16, 10).body
    codec.validate(body, 10, 20)
    body[0, 1].view(np.uint16)[19] = 0x7FC0
    with pytest.raises(CorruptRecord, match="scale 0x7fc0 is not a finite bfloat16") as caught:
        codec.validate(body, 10, 20)
    assert caught.value.offset == body.shape[2] + 38


# Frozen bytes. Four tokens (channel) or channels (token). 0, 1, 2, 15 take a step of 1 = 0x3f80, no zero and
# themselves as codes; 1, 2, 3, 16 the same with a zero of one step = 16 sixteenths; the textbook's -1, -0.2, 0.3, 1
# symmetric a step of 1/7, rounded up to 0x3e13, and the codes -7, -1, 2, 7 plus 8. INT8 has steps of 1/127, rounded
# up to 0x3c02, and codes plus 128; INT2 steps of 1 and codes plus 2. Zeros of INT8 are halves of a step.
FROZEN = [
    ("int4/channel/g16", "k", [0, 1, 2, 15], 0x3F80, 0, {0: "00", 4: "01", 8: "02", 12: "0f"}),
    ("int4/channel/g16", "v", [1, 2, 3, 16], 0x3F80, 16, {0: "000102", 3: "0f"}),
    ("int4/token/g16", "k", [-8, -7, -6, 7], 0x3F80, -128, {0: "0001020f"}),
    ("int4/token/g16", "v", [0, 1, 2, 15], 0x3F80, 0, {0: "00", 4: "01", 8: "02", 12: "0f"}),
    ("int4/channel/g16/sym", "k", [-1, -0.2, 0.3, 1], 0x3E13, None, {0: "01", 4: "07", 8: "0a", 12: "0f"}),
    ("int4/channel/g16/sym", "v", [-1, -0.2, 0.3, 1], 0x3E13, None, {0: "01070a0f"}),
    ("int4/token/g16/sym", "k", [-1, -0.2, 0.3, 1], 0x3E13, None, {0: "01070a0f"}),
    ("int4/token/g16/sym", "v", [-1, -0.2, 0.3, 1], 0x3E13, None, {0: "01", 4: "07", 8: "0a", 12: "0f"}),
    ("int8/channel/g16", "k", [0, 1, 2, 255], 0x3F80, 0, {0: "00", 4: "01", 8: "02", 12: "ff"}),
    ("int8/channel/g16", "v", [1, 2, 3, 256], 0x3F80, 2, {0: "000102ff"}),
    ("int8/token/g16", "k", [-128, -127, -126, 127], 0x3F80, -256, {0: "000102ff"}),
    ("int8/token/g16", "v", [-0.5, 0.5, 1.5, 254], 0x3F80, -1, {0: "00", 4: "01", 8: "02", 12: "fe"}),
    ("int8/channel/g16/sym", "k", [-1, -0.2, 0.3, 1], 0x3C02, None, {0: "02", 4: "67", 8: "a6", 12: "fe"}),
    ("int8/token/g16/sym", "v", [-1, -0.2, 0.3, 1], 0x3C02, None, {0: "02", 4: "67", 8: "a6", 12: "fe"}),
    ("int2/channel/g16", "k", [0, 1, 2, 3], 0x3F80, 0, {0: "00", 4: "01", 8: "02", 12: "03"}),
    ("int2/channel/g16", "v", [1, 2, 3, 4], 0x3F80, 16, {0: "00010203"}),
    ("int2/token/g16", "k", [-2, -1, 0, 1], 0x3F80, -32, {0: "00010203"}),
    ("int2/token/g16", "v", [0, 1, 2, 3], 0x3F80, 0, {0: "00", 4: "01", 8: "02", 12: "03"}),
    ("int2/channel/g16/sym", "v", [-1, -0.2, 0.3, 1], 0x3F80, None, {0: "01020203"}),
    ("int2/token/g16/sym", "k", [-1, -0.2, 0.3, 1], 0x3F80, None, {0: "01020203"}),
]


@pytest.mark.parametrize(("spec", "stream", "numbers", "scale", "zero", "codes"), FROZEN)
def test_frozen_bytes(spec, stream, numbers, scale, zero, codes):
    x = np.array(numbers, ml_dtypes.bfloat16).reshape((4, 1, 1) if "channel" in spec else (1, 1, 4))
    table = 64 if "channel" in spec or stream == "k" else 128
    body = scale.to_bytes(2, "little") + bytes(table - 2)
    if zero is not None:
        body += zero.to_bytes(2, "little", signed=True) + bytes(table - 2)
    tile = bytearray((16 if stream == "k" else 64) * 16 * int(spec[3]) // 8)
    for at, text in codes.items():
        tile[at : at + len(text) // 2] = bytes.fromhex(text)
    encoded = encode_array(x, spec, stream=stream)
    assert encoded.tail.tobytes().hex() == (body + bytes(tile)).hex()


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("int8", ["00112233", "44556677", "8899aabb", "ccddeeff"]),
        ("int4", ["40516273", "c8d9eafb"]),
        ("int2", ["e4e4e4e4"]),
    ],
)
def test_rows_of_one_lane(name, rows):
    """Sixteen channels (k) or tokens (v): byte j of a row holds j, j + 4 and so on, the first in its lowest bits."""
    numbers = {
        "int8": np.arange(16) * 17,
        "int4": np.arange(16),
        "int2": np.arange(16) // 4,
    }[name].astype(ml_dtypes.bfloat16)
    k = encode_array(numbers.reshape(1, 1, 16), f"{name}/token/g16", stream="k").tail[0, 0, 128:]
    v = encode_array(numbers.reshape(16, 1, 1), f"{name}/channel/g16", stream="v").tail[0, 0, 128:]
    for row, text in enumerate(rows):
        assert k[64 * row :][:4].tobytes().hex() == text
        assert v[64 * row :][:4].tobytes().hex() == text
