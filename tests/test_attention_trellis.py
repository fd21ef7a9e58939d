"""Attention on trellis codes: bit by bit that on product codes of the same vectors, and against float64."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.attention.arrays import attend_arrays, score_arrays
from kvcodec.codecs import EncodedArray
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.trellis_rows import TrellisCodec
from kvcodec.errors import CorruptRecord, SpecError
from kvcodec.layout import DtypeId, StreamId
from kvcodec.spec import CodecSpec
from tests.attention_reference import attend, relative_error
from tests.test_attention_product import choose_scale, decoded
from tests.test_attention_product import coded as coded_by_product
from tests.test_product_codec import product
from tests.trellis_codes import trellis

K, V = StreamId.K, StreamId.V
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
TURN = Rotation.of_base(50.0, 16)


def coded(own, tokens, heads, stream, seed=0, gains=(150, 256), shapes=(5, 12), dtype=DtypeId.BFLOAT16):
    """Any bits of so many tokens, by trellis codes, of vectors that differ in length as those of caches do."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (tokens, heads, own.code_bytes + 2)).astype(np.uint8)
    rows[..., 0], rows[..., 1] = rng.integers(*gains, (tokens, heads)), rng.integers(*shapes, (tokens, heads))
    rows[..., -1] &= 0xFF >> -own.bits % 8
    codec, split = TrellisCodec(CodecSpec.parse("tcq"), own), tokens // 64 * 64
    full, tail = (
        codec.lay(part, size, own.dim, alike=False).body if len(part) else np.empty((0, heads, 0), np.uint8)
        for part, size in ((rows[:split], 64), (rows[split:], tokens - split))
    )
    errors = np.zeros((len(full) + len(tail), heads), np.uint16)
    return EncodedArray(codec.spec, stream, dtype, tokens, heads, own.dim, full, tail, errors, own)


@pytest.mark.parametrize("components", [1, 12, 33])
def test_keys_are_bit_by_bit_those_of_product_codes_that_say_the_same(components):
    """Trellis codes of 8 bits a component whose entries do not hang on the bits behind: a byte names a number."""
    by_bytes = product(24, components, components, rotation=TURN)
    book = by_bytes.books[0]
    by_bytes = replace(by_bytes, books=np.tile(book, (components, 1)))
    by_bits = replace(
        trellis(24, components, rotation=TURN, window=11, rates=(8,) * components), basis=by_bytes.basis,
        tables=book[None, np.arange(1 << 11) & 255].astype(np.int16), gains=by_bytes.gains, shapes=by_bytes.shapes,
        mean=by_bytes.mean,
    )  # fmt: skip
    keys = coded(by_bits, 150, 2, K, gains=(0, 256), shapes=(0, 16)), coded_by_product(
        by_bytes, 150, 2, K, gains=(0, 256), shapes=(0, 16)
    )  # fmt: skip
    assert np.array_equal(keys[0].full, keys[1].full)
    assert np.array_equal(decoded(keys[0]), decoded(keys[1]))
    q, scale = np.random.default_rng(3).standard_normal((4, 24)), choose_scale(np.ones((1, 24)), keys[0])
    v = kv.encode_array(np.random.default_rng(4).standard_normal((150, 2, 8)).astype(np.float32), "raw", stream="v")
    for first in (0, 5000):
        one, two = (replace(k, first=first) for k in keys)
        assert np.array_equal(score_arrays(q, one, scale=scale), score_arrays(q, two, scale=scale))
        assert np.array_equal(attend_arrays(q, one, v, scale=scale), attend_arrays(q, two, v, scale=scale))


@st.composite
def problems(draw):
    window, most = draw(st.sampled_from([8, 10, 12])), 5 if INTERPRETED else 40
    rates = draw(st.lists(st.integers(1, min(8, window - 3)), min_size=1, max_size=most))
    dims, turned = [draw(st.sampled_from([16, 24, 72])) for _ in range(2)], draw(st.booleans())
    own = [
        trellis(dim, len(rates), rotation=turn, rates=rates, window=window, seed=n)
        for n, (dim, turn) in enumerate(zip(dims, (TURN if turned else None, None), strict=True))
    ]
    tokens, heads = draw(st.integers(1, 30 if INTERPRETED else 200)), draw(st.integers(1, 2))
    return own, tokens, heads, draw(st.integers(1, 5)), draw(st.sampled_from(list(DtypeId))), draw(st.integers(0, 99))


@settings(max_examples=4 if INTERPRETED else 20)
@given(problems())
def test_outputs_are_within_a_thousandth(problem):
    own, tokens, heads, per_head, dtype, first = problem
    k, v = (coded(t, tokens, heads, s, n, dtype=dtype) for n, (t, s) in enumerate(zip(own, (K, V), strict=True)))
    k = replace(k, first=first if own[0].rotation else 0)
    q = np.random.default_rng(3).standard_normal((heads * per_head, own[0].dim))
    scale = choose_scale(q, k)
    y, state = attend_arrays(q, k, v, scale=scale, return_state=True)
    wanted, whole = (attend(q, decoded(k), values, scale)[0] for values in (decoded(v), np.abs(decoded(v))))
    assert np.linalg.norm(y - wanted) <= 1e-3 * np.linalg.norm(whole)  # values may cancel
    padding = -tokens % 64 - -tokens % 16  # rows behind the last tile, whose gains and shapes are not read
    assert (state.tokens, state.bytes_read) == (tokens, k.nbytes + v.nbytes - 2 * 2 * heads * padding)
    logits = np.einsum("hrd,thd->hrt", q.reshape(heads, per_head, -1), decoded(k)).reshape(len(q), tokens) * scale
    assert np.abs(score_arrays(q, k, scale=scale) - logits).max() <= 1e-3 * np.abs(logits).max()


def test_the_largest_sums_gains_and_shapes():
    """Sums that an int32 just holds, and vectors that a float32 just holds."""
    basis, tables = np.array([[32767] * 16, [-32767] * 16, [1] * 16], np.int16), np.full((1, 256), -32768, np.int16)
    own = replace(trellis(16, 3, rates=(1, 1, 1)), basis=basis, tables=tables)
    assert own.largest_sums.tolist() == [2**31 - 2**15] * 16
    uneven = replace(own, basis=basis * np.array([1, -1] * 8, np.int16)[None] * np.array([[1], [-1], [1]], np.int16))
    for codes in (own, uneven):
        k, v = (coded(codes, 70, 1, s, gains=(255, 256), shapes=(15, 16)) for s in (K, V))
        q = np.random.default_rng(3).standard_normal((2, 16))
        scale = choose_scale(q, k)
        assert relative_error(attend_arrays(q, k, v, scale=scale), attend(q, decoded(k), decoded(v), scale)[0]) <= 1e-3


def test_beside_other_codes_and_without_any():
    own, q = trellis(24, 20, seed=1), np.random.default_rng(3).standard_normal((4, 24))
    k, v = (coded(own, 200, 2, s, n) for n, s in enumerate((K, V)))
    scale = choose_scale(q, k)
    for other in ("int4/token/g64", "raw"):
        pairs = (k, kv.encode_array(decoded(v), other, stream="v")), (kv.encode_array(decoded(k), other, stream="k"), v)
        for one, two in pairs:
            wanted = attend(q, decoded(one), decoded(two), scale)[0]
            assert relative_error(attend_arrays(q, one, two, scale=scale), wanted) <= 1e-3
    assert np.array_equal(attend_arrays(q, k, v, tiers=(2, 0.1)), attend_arrays(q, k, v))
    zeros = [coded(own, 70, 2, s, gains=(0, 1)) for s in (K, V)]
    assert not score_arrays(q, zeros[0]).any()
    assert not attend_arrays(q, *zeros).any()


def test_damaged_codes_are_refused():
    own, q = trellis(16, 5, rates=(1, 2, 3, 1, 2)), np.ones((2, 16))
    k, v = (coded(own, 64, 1, s) for s in (K, V))
    v.full[0, 0, 128 + 64 + 9] |= 0x80
    with pytest.raises(CorruptRecord, match="row 9 of a head: bits behind the 9"):
        attend_arrays(q, k, v)
    with pytest.raises(SpecError, match="needs trellis codes"):
        attend_arrays(q, k, replace(v, dictionary=None))
