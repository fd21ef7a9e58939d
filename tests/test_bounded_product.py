"""An error bound on all vectors in product or trellis codes: it holds, and what is kept otherwise, codes would miss."""

from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.bulk.drift import measure_drift
from kvcodec.bulk.trial import try_codecs
from kvcodec.codecs import codec_for
from kvcodec.codecs.bitmap import CODES, INT4, INT4_SPEC, RAW, greatest_head, pack_kinds
from kvcodec.codecs.bounded_shaped import BoundedProduct
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.product import Product, ProductCodes
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.rows import GroupedRows, codes_rows, row_codec_for
from kvcodec.codecs.transform import Analysis
from kvcodec.dictionary.product import fit_product
from kvcodec.dictionary.spectrum import find_spectrum
from kvcodec.dictionary.trellis import fit_trellis
from kvcodec.errors import CorruptRecord, SpecError
from kvcodec.flash.checksum import crc32c
from kvcodec.layout import DtypeId, GroupFlag, StreamId
from kvcodec.sparse_spec import ERROR_STEPS
from kvcodec.spec import CodecSpec
from tests.test_bounded import KINDS, TYPES, adversarial, relative
from tests.test_bulk import REAL
from tests.test_product_codec import product, wide_set

BF16, K, V = ml_dtypes.bfloat16, StreamId.K, StreamId.V
DIM, TURN = 32, Rotation.of_base(50.0, 16)
TURNS = (None, TURN)


# -- specs ---------------------------------------------------------------------------------------------------------


def test_a_spec_says_the_bound():
    spec = CodecSpec.parse("pq/B32/max0.3")
    assert (spec.bounded, spec.error, spec.product.budget) == (True, int(0.3 * ERROR_STEPS), 32)
    assert spec.flags == GroupFlag.BOUNDED
    assert str(spec) == "pq/B32/max0.3/g64"
    assert CodecSpec.parse("pq/max0.3").with_bound(0.1).error == spec.error
    assert not codes_rows(spec)
    for text in ("pq", "pq/B32", "int4/token", "raw", "dict/e0.3"):
        assert not CodecSpec.parse(text).bounded
    assert CodecSpec.parse("pq/B32").with_bound(0.3) == spec
    assert CodecSpec.parse("dict/e0.3").error == spec.error


def test_every_bound_is_told_as_it_is_parsed():
    for error in [*range(1, ERROR_STEPS, 97), ERROR_STEPS - 1]:
        spec = CodecSpec.parse("pq/B8").with_bound(error / ERROR_STEPS)
        assert spec.error == error
        assert CodecSpec.parse(str(spec)) == spec


@pytest.mark.parametrize("part", ["max", "max0", "max1", "max-0.1", "maxnan", "max0.00001", "max0.1/max0.1", "e0.1"])
def test_specs_of_no_bound(part):
    with pytest.raises(SpecError, match="pq/B8"):
        CodecSpec.parse(f"pq/B8/{part}")


def test_arrays_do_not_take_them():
    with pytest.raises(SpecError, match=r"pq/max0\.3/g64 makes records of different sizes: only a log holds them"):
        kv.encode_array(np.zeros((64, 1, 8), BF16), "pq/max0.3", dictionary=product())


# -- the bound -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="trained")
def trained_fixture():
    """Codes that miss vectors like those of its sample by about a fifth, with a mean, and those of rotated keys: first
    product codes, then trellis codes.
    """
    rng = np.random.default_rng(0)
    sample = (rng.standard_normal((3000, DIM)) * 0.8 ** np.arange(DIM) + 0.3).astype(np.float32)
    spectrum = find_spectrum(sample, None)
    return [fit(spectrum, sample, 6, ((0, K),), rotation=turn) for fit in (fit_product, fit_trellis) for turn in TURNS]


def rows_like(own, kinds, dtype, seed):
    """Rows (n, d) of each of some kinds; "atoms" are rows that codes give."""
    rng = np.random.default_rng(seed)
    if isinstance(own, Product):
        codes = rng.integers(0, 256, (64, own.groups)).astype(np.uint8)
        coded = own.rebuild(ProductCodes(codes, np.full(64, 128, np.uint8), np.full(64, 8, np.uint8)))
    else:  # of a path that the encoder finds again, as good as
        coded = own.rebuild(own.code(rng.standard_normal((64, own.dim)).astype(np.float32)))
    stand_in = SimpleNamespace(dim=own.dim, size=64, atoms=coded, mean=own.mean)
    rows = adversarial(kinds, stand_in, TYPES[dtype], seed)
    own_rows = np.array([kind == "atoms" for kind in kinds])
    rows[own_rows] = coded[rng.integers(0, 64, int(own_rows.sum()))].astype(rows.dtype)
    return rows


@st.composite
def problems(draw):
    dtype, which = draw(st.sampled_from(list(TYPES))), draw(st.integers(0, 3))
    heads, tokens, records = draw(st.integers(1, 3)), draw(st.sampled_from([1, 30, 64, 70])), draw(st.integers(1, 2))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    spec = CodecSpec.parse(f"{['pq', 'tcq'][which // 2]}/max{draw(st.floats(0.02, 0.9)):.4f}")
    return (
        spec,
        which,
        dtype,
        kinds,
        (records, tokens, heads),
        draw(st.integers(0, 999)),
        draw(st.integers(0, 1 << 30)),
    )


@settings(max_examples=40)
@given(problem=problems())
def test_every_vector_meets_the_bound_as_codes_where_these_do(trained, problem):
    spec, which, dtype, kinds, (records, tokens, heads), first, seed = problem
    own = trained[which]
    kinds = np.resize(kinds, records * tokens * heads)
    rows = rows_like(own, kinds, dtype, seed).reshape(records * tokens, heads, DIM)
    if own.rotation is not None:
        wide = own.rotation.turn(rows.astype(np.float32), first + np.arange(len(rows)))
        rows = np.clip(wide, -3e4, 3e4).astype(rows.dtype)
    codec, bound = codec_for(spec, K, own).at(first), spec.error / ERROR_STEPS
    by_row = row_codec_for(CodecSpec.parse(str(spec).split("/")[0]), K, own).at(first)
    small = GroupedRows(INT4_SPEC, V)
    bits = rows.view(np.uint16)
    coded, coarse = by_row.encode(bits, dtype), small.encode(bits, dtype)
    as_codes = relative(rows, by_row.decode(coded, DIM, dtype).view(rows.dtype)) <= bound
    as_int4 = relative(rows, small.decode(coarse, DIM, dtype).view(rows.dtype)) <= bound
    wanted = np.where(as_codes, CODES, np.where(as_int4, INT4, RAW)).astype(np.uint8)
    for n, one in enumerate(codec.encode_records(bits, dtype, tokens)):
        part = slice(n * tokens, (n + 1) * tokens)
        here = codec.at(first + n * tokens)
        back = here.decode_record(one, tokens, dtype).view(rows.dtype)
        assert relative(rows[part], back).max() <= bound
        assert np.array_equal(one.mixed.kinds, wanted[part].T)
        assert np.array_equal(here.recode(bits[part], dtype), back.view(np.uint16))
        kept = by_row.lay(coded[part] * (wanted[part] == CODES)[..., None], tokens, DIM).body[0]
        others = [
            (coarse if kind == INT4 else bits.view(np.uint8).reshape(*bits.shape[:2], -1))[part][token, head].tobytes()
            for head in range(heads) for token, kind in enumerate(wanted[part][:, head]) if kind != CODES
        ]  # fmt: skip
        bitmap = pack_kinds(wanted[part].T.copy()).tobytes() if wanted[part].any() else b""
        assert one.mixed.join().tobytes() == bitmap + kept.tobytes() + b"".join(others)
        assert len(one.mixed.join()) <= heads * greatest_head(one.spec.shaped, tokens, DIM)
        figures = np.minimum(32768 * heads_of(here, one, tokens, dtype, rows[part]), 65535)
        assert np.abs(one.errors - figures).max() <= 0.51


def heads_of(codec, one, tokens, dtype, rows):
    """Relative error (heads,) of a record's rows as float32, in float64; 0 of zeros."""
    body, stored, heads = one.mixed.join(), one.mixed.bitmap_bytes, rows.shape[1]
    if stored:
        wide = codec.decode_mixed(body, stored, tokens, DIM, dtype, heads, wide=True)
    else:
        wide = codec.decode(body.reshape(heads, -1), tokens, DIM, dtype, as_float32=True)
    exact = rows.astype(np.float64)
    missed, lengths = (np.linalg.norm(x, axis=(0, 2)) for x in (wide - exact, exact))
    return np.divide(missed, lengths, out=np.zeros(heads), where=lengths > 0)


def mixed_record(own, tokens=30, heads=2, first=3):
    """A record with rows of all kinds, the codec that made it, and the rows (tokens, heads, dim)."""
    kinds = np.resize(["atoms", "noise", "outlier", "atoms", "zeros"], tokens * heads)
    rows = rows_like(own, kinds, DtypeId.BFLOAT16, 5).reshape(tokens, heads, DIM)
    codec = BoundedProduct(CodecSpec.parse("pq/max0.1"), own, first)
    (one,) = codec.encode_records(rows.view(np.uint16), DtypeId.BFLOAT16, tokens)
    assert set(one.mixed.kinds.reshape(-1)) == {CODES, INT4, RAW}
    return one, codec, rows


def test_frozen_bytes_of_a_record():
    """Of a basis and books of small whole numbers: nothing in them hangs on who trains."""
    rng, plain = np.random.default_rng(1), product(DIM, 12, 4)
    basis = np.eye(12, DIM, dtype=np.int16) * np.int16(8192)
    step = float(plain.shape_table[8]) * 8192
    analysis = Analysis(np.eye(13, DIM, dtype=np.float32), np.full(12, step, np.float32), plain.analysis.spread)
    own = replace(plain, basis=basis, mean=np.zeros(DIM, np.float32), analysis=analysis)
    codes = ProductCodes(
        rng.integers(0, 256, (10, 4)).astype(np.uint8), np.full(10, 90, np.uint8), np.full(10, 8, np.uint8)
    )
    rows = own.rebuild(codes).reshape(5, 2, DIM)
    rows[1, 0], rows[2, 1], rows[3, 1] = 0, rng.integers(-64, 65, DIM), 1000.0 * np.eye(DIM)[20]
    rows[3, 1, :16] = 0.001 * np.arange(16)
    codec = BoundedProduct(CodecSpec.parse("pq/max0.05"), own)
    (one,) = codec.encode_records(rows.astype(BF16).view(np.uint16), DtypeId.BFLOAT16, 5)
    body = one.mixed.join()
    assert one.mixed.kinds.tolist() == [[CODES, CODES, CODES, RAW, CODES], [CODES, CODES, RAW, INT4, CODES]]
    assert (len(body), crc32c(body.tobytes())) == (980, 454983713)


def test_every_flipped_byte_of_a_record_is_found_or_harmless(trained):
    """Without its checksum: nothing but CorruptRecord, and what is decoded has the shape that was asked for."""
    one, codec, _ = mixed_record(trained[0])
    body, found = one.mixed.join(), []
    for at in range(0, len(body), 2):
        bad = body.copy()
        bad[at] ^= 1 << at % 8
        try:
            back = codec.decode_mixed(bad, 64, 30, DIM, DtypeId.BFLOAT16, 2, wide=bool(at % 4))
            assert back.shape == (30, 2, DIM)
        except CorruptRecord as error:
            found.append(error.offset)
    assert len(found) > 40
    assert 0 <= min(found) <= max(found) <= len(body)
    head = codec.sections(30, DIM).total
    token, which = np.argwhere(one.mixed.kinds.T != CODES)[0]
    for byte, said in ((which * head + token, "codes beside another row"), (64 + token, "shape 16, want one below 16")):
        bad = body.copy()
        bad[64 + byte] = 16
        with pytest.raises(CorruptRecord, match=said) as error:
            codec.check_mixed(bad, 64, 30, DIM, 2)
        assert error.value.offset in (64 + byte, 64 + which * head)


def test_heads_of_a_record_can_be_parted(trained):
    one, codec, _ = mixed_record(trained[1])
    whole = codec.decode_record(one, 30, DtypeId.BFLOAT16)
    for head in range(2):
        part = one.mixed.heads(head, head + 1, DIM)
        own = one._replace(mixed=part, errors=one.errors[head : head + 1])
        assert np.array_equal(codec.decode_record(own, 30, DtypeId.BFLOAT16), whole[:, head : head + 1])


# -- commands ------------------------------------------------------------------------------------------------------


def test_diff_and_drift_keep_the_bound():
    own = wide_set()
    (row,) = try_codecs(REAL, ["pq/max0.2"], dictionary=own, layers="8").rows
    assert 0.01 < row.k.relative < 0.2
    assert 0.01 < row.v.relative < 0.2
    assert 160 < row.bytes_a_vector < 200  # those of random books meet no bound
    some = DictionarySet(products=own.products[2:4])
    (text,) = measure_drift([REAL], dictionary=some, spec="pq/max0.2").texts
    assert all(0 < curve.error() < 0.2 for curve in text.curves.values())
    assert text.codecs == {"k": "pq/max0.2/g64", "v": "pq/max0.2/g64"}
