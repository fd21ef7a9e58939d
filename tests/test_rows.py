"""Rows coded one by one: the bytes and numbers that coding whole groups gives."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.codecs import codec_for
from kvcodec.codecs.rows import GroupedRows, codes_rows
from kvcodec.errors import SpecError
from kvcodec.layout import DtypeId, StreamId
from kvcodec.spec import GROUPED_CODECS, CodecSpec

BF16 = DtypeId.BFLOAT16
specs = st.builds(
    CodecSpec,
    st.sampled_from(GROUPED_CODECS),
    st.just(CodecSpec.parse("int4/token/g64").axis),
    st.sampled_from([16, 32, 48, 64, 128]),
    st.booleans(),
)


def noise(tokens, heads, dim, seed=0):
    rows = np.random.default_rng(seed).standard_normal((tokens, heads, dim), np.float32)
    return rows.astype(ml_dtypes.bfloat16).view(np.uint16)


@settings(max_examples=60)
@given(
    specs,
    st.sampled_from([StreamId.K, StreamId.V]),
    st.integers(1, 3),
    st.sampled_from([1, 16, 72, 80, 128]),
    st.data(),
)
def test_rows_laid_together_are_the_group_that_was_coded_at_once(spec, stream, heads, dim, data):
    tokens = data.draw(st.sampled_from([1, 16, 63, 64]))
    rows = noise(2 * tokens, heads, dim, dim)
    codec, one = codec_for(spec, stream), GroupedRows(spec, stream)
    cuts = sorted(data.draw(st.sets(st.integers(0, 2 * tokens), max_size=4)) | {0, 2 * tokens})
    coded = np.concatenate([one.encode(rows[a:b], BF16) for a, b in itertools.pairwise(cuts)])
    assert coded.shape == (2 * tokens, heads, one.row_bytes(dim))
    whole = codec.encode(rows, BF16, tokens)
    laid = one.lay(coded, tokens, dim)
    assert np.array_equal(laid.body, whole.body)
    assert (laid.errors == 0xFFFF).all()
    for wide in (False, True):
        want = codec.decode(whole.body, tokens, dim, BF16, as_float32=wide)
        assert np.array_equal(one.decode(coded, dim, BF16, as_float32=wide), want)


def test_the_bytes_of_a_row():
    """[-1, -0.2, 0.3, 1] symmetric: s = 1/7 rounded up to bfloat16 0x3E13, codes q + 8 of q = [-7, -1, 2, 7]."""
    rows = np.zeros((1, 1, 16), ml_dtypes.bfloat16)
    rows[0, 0, :4] = [-1, -0.2, 0.3, 1]
    coded = GroupedRows(CodecSpec.parse("int4/token/g16/sym"), StreamId.V).encode(rows.view(np.uint16), BF16)
    assert coded.tobytes().hex(" ") == "13 3e 71 fa 88 88 88 88 88 88"
    assert GroupedRows(CodecSpec.parse("int4/token/g64"), StreamId.K).row_bytes(128) == 72


def test_none_is_none_and_a_scale_a_channel_is_refused():
    codec = GroupedRows(CodecSpec.parse("int4/token/g64"), StreamId.V)
    assert codec.decode(codec.encode(noise(0, 2, 16), BF16), 16, BF16).shape == (0, 2, 16)
    for text in ("raw", "int4/channel/g64"):
        assert not codes_rows(CodecSpec.parse(text))
        with pytest.raises(SpecError, match="one by one"):
            GroupedRows(CodecSpec.parse(text), StreamId.V)
