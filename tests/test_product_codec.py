"""Product codes as rows and records, in .kvdict files, and in commands that try them."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.bulk.drift import measure_drift
from kvcodec.bulk.trial import try_codecs
from kvcodec.codecs import codec_for
from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.codecs.product import Product
from kvcodec.codecs.product_bytes import product_from_bytes
from kvcodec.codecs.product_rows import ProductRows
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.sizes import head_sections, step_row_bytes
from kvcodec.codecs.transform import Analysis
from kvcodec.dictionary.artefact import Artefact, read_artefact, write_artefact
from kvcodec.dictionary.product import gain_table
from kvcodec.dumps import open_dump
from kvcodec.errors import CorruptRecord, ShapeError, SpecError, TruncatedLog, UnsupportedVersion
from kvcodec.layout import PRODUCT, DtypeId, KvdictFlag, StreamId
from kvcodec.spec import CodecSpec
from tests.forged_kvdict import check_damage_is_found, forge_entry
from tests.test_bulk import REAL
from tests.test_cli import invoke

K, V = StreamId.K, StreamId.V
TYPES = {DtypeId.BFLOAT16: ml_dtypes.bfloat16, DtypeId.FLOAT16: np.float16}


def product(dim=8, components=6, groups=3, uses=((0, K),), rotation=None, seed=0):
    """Of random numbers: what its codes are like does not matter."""
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.choice(np.arange(1, components), groups - 1, replace=False)).tolist()
    shapes = (2.0 ** np.arange(-4, 4, 0.5) * 1e-6).astype(ml_dtypes.bfloat16).view(np.uint16)
    analysis = Analysis(
        rng.standard_normal((components + 1, dim)).astype(np.float32), np.full(components, 0.02, np.float32),
        np.full(components, 1 / components, np.float32),
    )  # fmt: skip
    return Product(
        rng.integers(-9000, 9000, (components, dim)).astype(np.int16),
        rng.integers(-127, 128, (components, 256)).astype(np.int8), [*ends, components], gain_table(0.1, 50.0), shapes,
        uses, (0.1 * rng.standard_normal(dim)).astype(np.float32), analysis, rotation,
    )  # fmt: skip


# -- rows and records ----------------------------------------------------------------------------------------------


@st.composite
def cases(draw):
    dim = draw(st.integers(4, 20))
    components = draw(st.integers(1, dim))
    turn = Rotation.of_base(50.0, 4) if draw(st.booleans()) else None
    own = product(dim, components, draw(st.integers(1, components)), rotation=turn, seed=draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from(list(TYPES)))
    tokens, heads, records = draw(st.integers(1, 140)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    rows = rng.standard_normal((records * tokens, heads, dim)) * 2.0 ** rng.integers(
        -8, 8, (records * tokens, heads, 1)
    )
    return (
        own,
        dtype,
        tokens,
        np.ascontiguousarray(rows.astype(TYPES[dtype])).view(np.uint16),
        draw(st.integers(0, 999)),
    )


@given(cases(), st.data())
def test_records_hold_the_rows_wherever_they_are_cut(case, data):
    own, dtype, tokens, bits, first = case
    spec, dim, (count, heads) = CodecSpec.parse("pq"), own.dim, bits.shape[:2]
    rows, codec = ProductRows(spec, own).at(first), codec_for(spec, K, own).at(first)
    coded = rows.encode(bits, dtype)
    assert coded.shape == (count, heads, rows.row_bytes(dim)) == (count, heads, own.groups + 2)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    assert np.array_equal(ProductRows(spec, own).at(first + start).encode(bits[start:stop], dtype), coded[start:stop])
    encoded = codec.encode(bits, dtype, tokens)
    assert np.array_equal(rows.lay(coded, tokens, dim).body, encoded.body)
    assert encoded.body.shape == (count // tokens, heads, codec.sections(tokens, dim).total)
    assert codec.sections(tokens, dim) == head_sections(codec.spec, K, tokens, dim)
    assert step_row_bytes(codec.spec, dim) == rows.row_bytes(dim)
    codec.validate(encoded.body, tokens, dim)
    back = codec.decode(encoded.body, tokens, dim, dtype)
    assert np.array_equal(back, rows.decode(coded, dim, dtype))
    assert np.array_equal(back[start:stop], rows.at(first + start).decode(coded[start:stop], dim, dtype))
    head = data.draw(st.integers(0, heads - 1))
    assert np.array_equal(codec.decode(encoded.body[:, head : head + 1], tokens, dim, dtype), back[:, head : head + 1])
    wide = codec.decode(encoded.body, tokens, dim, dtype, as_float32=True)
    assert np.array_equal(wide.astype(TYPES[dtype]).view(np.uint16), back)
    planes = encoded.body[-1, head, 128 * -(-tokens // 64) :].reshape(-1, own.groups, 64)  # as the format says
    by_token = planes.transpose(0, 2, 1).reshape(-1, own.groups)
    assert np.array_equal(by_token[:tokens], coded[-tokens:, head, 2:])
    assert not by_token[tokens:].any()


@given(cases(), st.data())
def test_a_shape_that_is_none_is_found_where_it_stands(case, data):
    own, dtype, tokens, bits, _ = case
    codec = codec_for("pq", K, own)
    encoded = codec.encode(bits, dtype, tokens)
    body, places = encoded.body.copy(), []
    for _ in range(data.draw(st.integers(1, 3))):
        strip, token = (data.draw(st.integers(0, n - 1)) for n in (body.shape[0] * body.shape[1], tokens))
        places.append(strip * body.shape[2] + 128 * (token // 64) + 64 + token % 64)
        body.reshape(-1)[places[-1]] = data.draw(st.integers(16, 255))
    for look in (codec.validate, lambda *given: codec.decode(*given, dtype)):
        with pytest.raises(CorruptRecord, match="want one below 16") as error:
            look(body, tokens, own.dim)
        assert error.value.offset == min(places)
    with pytest.raises(ShapeError):
        codec.validate(body[..., :-1], tokens, own.dim)


def test_what_is_too_large_for_a_dtype_is_clamped():
    own = replace(product(rotation=Rotation.of_base(50.0, 8)), gains=gain_table(1.0, 1e30))
    bits = np.full((3, 1, 8), 1e30).astype(ml_dtypes.bfloat16).view(np.uint16)
    codec = codec_for("pq", K, own)
    body = codec.encode(bits, DtypeId.BFLOAT16, 3).body
    for dtype in TYPES:
        assert np.isfinite(codec.decode(body, 3, 8, dtype).view(TYPES[dtype]).astype(np.float32)).all()


def test_arrays_of_product_codes():
    own = product(16, 12, 5, rotation=Rotation.of_base(50.0, 16))
    x = np.random.default_rng(1).standard_normal((150, 2, 16)).astype(np.float16)
    coded = kv.encode_array(x, "pq", dictionary=own, first=70)
    assert coded.nbytes == 3 * 64 * 2 * (own.groups + 2)
    back = kv.decode_array(coded)
    assert back.dtype == np.float16
    assert np.array_equal(kv.decode_array(coded, np.array([149, 3, 64])), back[[149, 3, 64]])
    later = kv.encode_array(x[80:], "pq", dictionary=own, first=150)
    assert np.array_equal(kv.decode_array(later), back[80:])
    wrong = np.linalg.norm((back.astype(float) - x)[128:, 0]) / np.linalg.norm(x[128:, 0].astype(float))
    assert coded.errors[2, 0] == pytest.approx(min(wrong * 32768, 65535), abs=1)
    for trained, spec in ((None, "pq"), (Dictionary(np.ones((3, 16), np.int8), ((0, K),)), "pq"), (own, "dict/s2")):
        with pytest.raises(SpecError, match="needs"):
            kv.encode_array(x, spec, dictionary=trained)
    with pytest.raises(SpecError, match="before their rotary"):
        kv.encode_array(x, "pq", stream="v", dictionary=own)
    with pytest.raises(ShapeError, match="9 channels, the product codes 16"):
        kv.encode_array(x[..., :9], "pq", dictionary=own)


# -- .kvdict files -------------------------------------------------------------------------------------------------


def write_two(path, *, overwrite=True):
    """A dictionary and two product codes, of which the first turns."""
    one = Dictionary(np.arange(1, 25, dtype=np.int8).reshape(3, 8), ((5, V),))
    own = product(rotation=Rotation.of_base(50.0, 8)), product(uses=((0, V), (1, V)), seed=1)
    write_artefact(path, Artefact(DictionarySet((one,), own), {"products": [{"error": 0.25}, 3]}), overwrite=overwrite)
    return DictionarySet((one,), own)


def test_a_file_holds_product_codes_beside_dictionaries(tmp_path):
    own = write_two(tmp_path / "m.kvdict")
    back = read_artefact(tmp_path / "m.kvdict").dictionaries
    assert back.hash == own.hash
    assert [one.to_bytes() for one in back.products] == [one.to_bytes() for one in own.products]
    assert back.find_product(1, V) is back.products[1]
    assert back.find_product(5, V) is None
    assert back.find(5, V) is back.find_for(CodecSpec.parse("dict/s2"), 5, V)
    assert back.uses() == [(0, K), (0, V), (1, V), (5, V)]


def test_every_flip_and_truncation_is_refused(tmp_path):
    path = tmp_path / "m.kvdict"
    write_two(path)
    check_damage_is_found(path, 83, 511)


def forge(path, change, entries=None):
    """A file with another body of its first product codes, or another table, whose checksums are right."""
    write_two(path)
    return forge_entry(path, 1, change, entries)


def places():
    """Where the arrays of the first product codes of the file begin."""
    sizes = {
        "uses": 4, "steps": 8 * 4, "mean": 4 * 8, "rows": 4 * 7 * 8, "units": 24, "spread": 24, "gains": 512,
        "shapes": 32, "ends": 6, "basis": 2 * 6 * 8, "books": 6 * 256,
    }  # fmt: skip
    starts = PRODUCT.itemsize + np.concatenate([[0], np.cumsum(list(sizes.values()))])
    return dict(zip(sizes, starts.tolist(), strict=False))


def put(place, number, kind="<u2"):
    raw = np.array([number], kind).tobytes()

    def change(body):
        body[place : place + len(raw)] = raw

    return change


AT = places()
NAN = np.float32(np.nan)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (put(AT["gains"], 1), CorruptRecord, "ascend"),
        (put(AT["gains"] + 100, 0), CorruptRecord, "ascend"),
        (put(AT["gains"] + 510, 0x7F80), CorruptRecord, "ascend"),
        (put(AT["gains"] + 508, 0x7F807F80, "<u4"), CorruptRecord, "ascend"),
        (put(AT["gains"] + 510, 0x7F7F), CorruptRecord, "too large"),
        (put(AT["shapes"], 0), CorruptRecord, "positive"),
        (put(AT["shapes"], 0x7FC0), CorruptRecord, "positive"),
        (put(AT["shapes"], 0x7000), CorruptRecord, "too large"),
        (put(AT["ends"], 0), CorruptRecord, "groups end"),
        (put(AT["ends"] + 4, 7), CorruptRecord, "groups end"),
        (put(AT["basis"], 0x8000), CorruptRecord, "too large"),
        (put(AT["mean"], NAN, "<f4"), CorruptRecord, "finite"),
        (put(AT["mean"], 1e37, "<f4"), CorruptRecord, "too large"),
        (put(AT["rows"], NAN, "<f4"), CorruptRecord, "finite"),
        (put(AT["mean"], 0.5, "<f4"), CorruptRecord, "hash"),
        (put(AT["uses"] + 2, V, "u1"), CorruptRecord, "rotary"),
        (put(AT["uses"] + 2, 99, "u1"), CorruptRecord, "99 is not a valid StreamId"),
        (put(AT["uses"] + 3, 1, "u1"), UnsupportedVersion, "reserved"),
        (put(0, 513), CorruptRecord, "components"),
        (put(0, 5), CorruptRecord, "bytes, want"),
        (put(2, 0), CorruptRecord, "components"),
        (put(4, 0), CorruptRecord, "groups"),
        (put(6, 0), CorruptRecord, "groups"),
        (put(8, 0xFFFF), CorruptRecord, "bytes, want"),
        (put(14, 1), UnsupportedVersion, "reserved"),
        (put(12, 1), CorruptRecord, "bytes, want"),
        (put(12, 513), CorruptRecord, "predicted from 513"),
    ],
)
def test_hostile_product_codes_of_right_checksums(tmp_path, change, error, said):
    forge(tmp_path / "m.kvdict", change)
    with pytest.raises(error, match=said) as found:
        read_artefact(tmp_path / "m.kvdict")
    if error is CorruptRecord and said != "hash":
        assert found.value.offset == 320  # of the product codes


def test_hostile_tables_of_product_codes(tmp_path):
    path = tmp_path / "m.kvdict"
    for field, value, error, said in (
        ("flags", KvdictFlag.PRODUCT | KvdictFlag.MEAN, UnsupportedVersion, "flags"),
        ("flags", 16, UnsupportedVersion, "flags"),
        ("atoms", 1, UnsupportedVersion, "another field"),
        ("uses", 1, UnsupportedVersion, "another field"),
        ("crc", 1, CorruptRecord, "checksum"),
        ("offset", 64, CorruptRecord, "overlaps"),
        ("bytes", 1 << 31, CorruptRecord, "overlaps"),
        ("bytes", 7, CorruptRecord, "checksum"),
    ):

        def change(table, field=field, value=value):
            table[field][1] = value

        forge(path, lambda body: None, change)
        with pytest.raises(error, match=said):
            read_artefact(path)
    write_two(path)
    data = path.read_bytes()
    path.write_bytes(data[:-64])
    with pytest.raises(TruncatedLog):
        read_artefact(path)


def test_a_set_has_no_stream_twice():
    with pytest.raises(SpecError, match="no stream two"):
        DictionarySet((Dictionary(np.ones((3, 8), np.int8), ((0, K),)),), (product(),))
    with pytest.raises(SpecError, match="named once"):
        product(uses=((0, K), (0, K)))
    with pytest.raises(ShapeError, match="pairs of channels"):
        product(rotation=Rotation.of_base(50.0, 10))
    data = np.frombuffer(product().to_bytes(), np.uint8)
    assert product_from_bytes(data).to_bytes() == data.tobytes()


# -- commands --------------------------------------------------------------------------------------------------------


def test_info_shows_them(tmp_path):
    write_two(tmp_path / "m.kvdict")
    out = invoke("info", tmp_path / "m.kvdict").stdout
    assert "1 dictionaries, 2 product codes" in out
    lines = [line.split() for line in out.splitlines()[-2:]]
    assert lines == [
        ["k", "0", "5", "3", "6", "8", "before", "rotation", "0.2500"],
        ["v", "0-1", "5", "3", "6", "8", "-"],
    ]
    told = json.loads(invoke("info", tmp_path / "m.kvdict", "--json").stdout)
    assert told["products"][0] == {
        "uses": [{"layer": 0, "stream": "k"}], "bytes": 5, "groups": 3, "components": 6, "channels": 8,
        "before_rotation": True, "predicted": False, "budget": None, "error": 0.25,
    }  # fmt: skip
    assert told["products"][1]["error"] is None
    assert len(told["dictionaries"]) == 1


def wide_set():
    """Product codes of all streams of the dump."""
    uses = [(layer, stream) for layer in (5, 8, 17) for stream in (K, V)]
    made = (product(256, 8, 4, (use,), seed=n) for n, use in enumerate(uses))
    return DictionarySet(products=tuple(replace(one, gains=gain_table(1e-6, 1e-3)) for one in made))


def test_diff_and_drift_try_them(tmp_path):
    own, path = wide_set(), tmp_path / "m.kvdict"
    write_artefact(path, Artefact(own, {}))
    (row,) = try_codecs(REAL, ["pq"], dictionary=path, layers="8").rows
    assert (row.codec, row.atoms, row.pursuit, row.bytes_a_vector) == ("pq", "m.kvdict", "", 6 * 512 / 508)
    with open_dump(REAL) as dump:
        x = dump.rows(8, K, 4, 512)
    back = kv.decode_array(kv.encode_array(x, "pq", dictionary=own.find_product(8, K)), dtype=np.float32)
    wide = x.astype(np.float32)
    assert row.k.relative == pytest.approx(np.linalg.norm(back - wide) / np.linalg.norm(wide), rel=1e-4)
    with pytest.raises(SpecError, match="needs product codes: pass dictionary="):
        try_codecs(REAL, ["pq"])
    with pytest.raises(SpecError, match="layer 5 K: no dictionary for it; the set has none at all"):
        try_codecs(REAL, ["dict/s2"], dictionary=own)
    some = DictionarySet(products=own.products[2:4])
    with pytest.raises(SpecError, match="layer 5 K: no product codes for it; choose layers of 8"):
        try_codecs(REAL, ["pq"], dictionary=some)
    (text,) = measure_drift([REAL], dictionary=some, spec="pq").texts
    assert sorted(text.curves) == ["k", "v"]
    assert len(text.curves["k"].spans) == 8
    with pytest.raises(SpecError, match="has no dictionary for any"):
        measure_drift([REAL], dictionary=own)
