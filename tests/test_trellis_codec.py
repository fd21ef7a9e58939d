"""Trellis codes as rows and records, and in .kvdict files."""

import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.bulk.drift import measure_drift
from kvcodec.bulk.trial import try_codecs
from kvcodec.codecs import codec_for
from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.sizes import head_sections, step_row_bytes
from kvcodec.codecs.trellis import TrellisCodes
from kvcodec.codecs.trellis_rows import TrellisRows
from kvcodec.dictionary.artefact import Artefact, read_artefact, write_artefact
from kvcodec.dictionary.product import gain_table
from kvcodec.errors import CorruptRecord, ShapeError, SpecError, UnsupportedVersion
from kvcodec.flash.checksum import crc32c
from kvcodec.layout import TRELLIS, DtypeId, KvdictFlag, StreamId
from kvcodec.spec import CodecSpec
from kvcodec.trellis_spec import TrellisSpec
from tests.forged_kvdict import check_damage_is_found, forge_entry
from tests.test_bulk import REAL
from tests.test_cli import invoke
from tests.test_product_codec import product
from tests.trellis_codes import trellis
from tests.trellis_twin import read_row, rebuild_row

K, V = StreamId.K, StreamId.V
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
TYPES = {DtypeId.BFLOAT16: ml_dtypes.bfloat16, DtypeId.FLOAT16: np.float16}
FORMAT = (Path(__file__).resolve().parent.parent / "formats" / "trellis.md").read_text(encoding="utf-8")


# -- rows and records ----------------------------------------------------------------------------------------------


@st.composite
def cases(draw):
    dim = draw(st.integers(4, 12))
    turn = Rotation.of_base(50.0, 4) if draw(st.booleans()) else None
    own = trellis(dim, draw(st.integers(1, 12)), rotation=turn, seed=draw(st.integers(0, 99)), window=8)
    dtype = draw(st.sampled_from(list(TYPES)))
    tokens, heads, records = draw(st.integers(1, 70)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    rows = rng.standard_normal((records * tokens, heads, dim)) * 2.0 ** rng.integers(
        -8, 8, (records * tokens, heads, 1)
    )
    return own, dtype, tokens, np.ascontiguousarray(rows.astype(TYPES[dtype])).view(np.uint16), draw(st.integers(0, 99))


@settings(max_examples=30)
@given(cases(), st.data())
def test_records_hold_the_rows_wherever_they_are_cut(case, data):
    own, dtype, tokens, bits, first = case
    spec, dim, (count, heads) = CodecSpec.parse("tcq"), own.dim, bits.shape[:2]
    rows, codec = TrellisRows(spec, own).at(first), codec_for(spec, K, own).at(first)
    coded = rows.encode(bits, dtype)
    assert coded.shape == (count, heads, rows.row_bytes(dim)) == (count, heads, own.code_bytes + 2)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    assert np.array_equal(TrellisRows(spec, own).at(first + start).encode(bits[start:stop], dtype), coded[start:stop])
    encoded = codec.encode(bits, dtype, tokens)
    assert np.array_equal(rows.lay(coded, tokens, dim).body, encoded.body)
    assert codec.sections(tokens, dim) == head_sections(codec.spec, K, tokens, dim)
    assert step_row_bytes(codec.spec, dim) == rows.row_bytes(dim)
    codec.validate(encoded.body, tokens, dim)
    back = codec.decode(encoded.body, tokens, dim, dtype)
    assert np.array_equal(back, rows.decode(coded, dim, dtype))
    assert np.array_equal(back[start:stop], rows.at(first + start).decode(coded[start:stop], dim, dtype))
    planes = encoded.body[-1, 0, 128 * -(-tokens // 64) :].reshape(-1, own.code_bytes, 64)  # as the format says
    assert np.array_equal(planes.transpose(0, 2, 1).reshape(-1, own.code_bytes)[:tokens], coded[-tokens:, 0, 2:])
    if own.rotation is None:
        wide = codec.decode(encoded.body, tokens, dim, dtype, as_float32=True)
        assert np.array_equal(wide[start, 0], rebuild_row(coded[start, 0], own))


@settings(max_examples=30)
@given(cases(), st.data())
def test_what_no_encoder_writes_is_found_where_it_stands(case, data):
    own, dtype, tokens, bits, _ = case
    codec = codec_for("tcq", K, own)
    encoded = codec.encode(bits, dtype, tokens)
    body, flat, places = encoded.body.copy(), -(-tokens // 64) * 64, []
    spare = 8 * own.code_bytes - own.bits
    for _ in range(data.draw(st.integers(1, 3))):
        strip, token = (data.draw(st.integers(0, n - 1)) for n in (body.shape[0] * body.shape[1], tokens))
        block, place = divmod(token, 64)
        if spare and data.draw(st.booleans()):
            at = 2 * flat + 64 * (own.code_bytes * (block + 1) - 1) + place
            body.reshape(-1)[strip * body.shape[2] + at] |= 1 << data.draw(st.integers(8 - spare, 7))
        else:
            at = 128 * block + 64 + place
            body.reshape(-1)[strip * body.shape[2] + at] = data.draw(st.integers(16, 255))
        places.append((strip, token, at >= 2 * flat, strip * body.shape[2] + at))
    for look in (codec.validate, lambda *given: codec.decode(*given, dtype)):
        with pytest.raises(CorruptRecord, match=r"want one below 16|bits behind the") as error:
            look(body, tokens, own.dim)
        assert error.value.offset == min(places)[3]  # of the first row, its shape before its bits
    with pytest.raises(ShapeError):
        codec.validate(body[..., :-1], tokens, own.dim)


def test_the_example_of_the_format():
    raw, windows, numbers = re.search(r"<!-- row: trellis -->\n.*\n.*\n\| (.*) \| (.*) \| (.*) \|\n", FORMAT).groups()
    entries = (np.arange(256) - 100).astype(np.int16)
    ones = np.array([0x3F80], np.uint16)
    own = trellis(3, 3, rates=(3, 5, 2))
    gains = np.concatenate([[0, 0x3F80], 0x3F80 + np.arange(1, 255)]).astype(np.uint16)
    own = replace(
        own, basis=np.eye(3, dtype=np.int16), tables=np.tile(entries, (3, 1)), mean=np.zeros(3, np.float32),
        gains=gains, shapes=np.repeat(ones, 16),
    )  # fmt: skip
    row = np.concatenate([[1, 0], list(bytes.fromhex(raw))]).astype(np.uint8)
    assert read_row(row, [3, 5, 2], 8)[2] == [int(n) for n in windows.split(",")]
    wanted = np.array([int(n) for n in numbers.split(",")], np.float32)
    assert np.array_equal(rebuild_row(row, own), wanted)
    assert np.array_equal(own.rebuild(TrellisCodes(row[None, 2:], row[None, 0], row[None, 1]))[0], wanted)


GOLDEN = "b1077d18 9309d560 8c08e927 9b090704 8f097459"


def golden_rows():
    """Rows whose numbers are the same everywhere, by codes of the same kind."""
    numbers = (np.arange(5 * 6) * 37 % 61 - 30).reshape(5, 6) / 8
    return numbers.astype(np.float32)


def test_golden_bytes_of_rows():
    own = trellis(6, 5, seed=4, rates=(4, 1, 3, 2, 5))
    coded = own.code(golden_rows())
    rows = np.concatenate([coded.gains[:, None], coded.shapes[:, None], coded.bits], axis=1)
    assert rows.tobytes().hex(" ", 4) == GOLDEN
    assert crc32c(own.rebuild(coded).tobytes()) == 0x362E6CDA


def test_arrays_of_trellis_codes():
    own = trellis(16, 12, rotation=Rotation.of_base(50.0, 16))
    x = np.random.default_rng(1).standard_normal((150, 2, 16)).astype(np.float16)
    coded = kv.encode_array(x, "tcq/B98", dictionary=own, first=70)
    assert coded.nbytes == 3 * 64 * 2 * (own.code_bytes + 2)
    back = kv.decode_array(coded)
    assert np.array_equal(kv.decode_array(coded, np.array([149, 3, 64])), back[[149, 3, 64]])
    assert np.array_equal(kv.decode_array(kv.encode_array(x[80:], "tcq", dictionary=own, first=150)), back[80:])
    for trained, spec in ((None, "tcq"), (product(16), "tcq"), (own, "pq"), (own, "dict/s2")):
        with pytest.raises(SpecError, match="needs"):
            kv.encode_array(x, spec, dictionary=trained)
    with pytest.raises(SpecError, match="B50, and the trellis codes were trained for a budget of 98 bytes"):
        kv.encode_array(x, "tcq/B50", dictionary=own)
    with pytest.raises(SpecError, match="before their rotary"):
        kv.encode_array(x, "tcq", stream="v", dictionary=own)
    with pytest.raises(ShapeError, match="9 channels, the trellis codes 16"):
        kv.encode_array(x[..., :9], "tcq", dictionary=own)


def test_specs():
    spec = CodecSpec.parse("tcq/B98/g128")
    assert (str(spec), spec.group, spec.trellis.budget) == ("tcq/B98/g128", 128, 98.0)
    assert str(CodecSpec.parse("tcq")) == "tcq/g64"
    bound = spec.bound_to(96, b"x" * 16)
    assert (bound.trellis.row_bytes, bound.shaped, bound.trained_as) == (98, bound.trellis, "trellis codes")
    for text, said in (
        ("tcq/s8", "'s8' is unknown, want BN, a budget of bytes such as B98, maxN or gN"),
        ("tcq/B0", "unknown"), ("tcq/B1/B2", "unknown"), ("tcq/g100", "multiple of 64"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=said):
            CodecSpec.parse(text)
    with pytest.raises(SpecError, match="budget of up to"):
        TrellisSpec(2000.0)
    with pytest.raises(SpecError, match="513 bytes"):
        TrellisSpec(size=513)
    with pytest.raises(SpecError, match="tcq has trellis codes, and no other"):
        replace(spec, trellis=None)
    with pytest.raises(SpecError, match="has 5 bytes, its trellis codes"):
        TrellisRows(spec.bound_to(5, b""), trellis())
    with pytest.raises(SpecError, match="takes no trellis codes"):
        TrellisRows(CodecSpec.parse("pq"), trellis())


def hash_of_codes():
    """Of what codes of two windows make of some vectors."""
    rows, digest = np.random.default_rng(0).standard_normal((9, 9)).astype(np.float32), hashlib.sha256()
    for window in (8, 10):
        own = trellis(9, 8, window=window, seed=window)
        coded = own.code(rows)
        for part in (*coded, own.rebuild(coded)):
            digest.update(part.tobytes())
    return digest.hexdigest()


@pytest.mark.skipif(INTERPRETED, reason="there is no machine code")
@pytest.mark.parametrize("environment", [{"NUMBA_DISABLE_JIT": "1"}, {"KVCODEC_SIMD": "portable"}], ids=str)
def test_other_machine_code_gives_the_same_bits(environment):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "KVCODEC_SIMD"))}
    command = [sys.executable, "-c", "from tests.test_trellis_codec import hash_of_codes; print(hash_of_codes())"]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, env=inherited | environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == hash_of_codes()


def test_threads_give_the_same_codes():
    own, rows = trellis(9, 8), np.random.default_rng(0).standard_normal((60, 9)).astype(np.float32)
    whole = own.code(rows)
    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(own.code, np.array_split(rows, 7)))
    for n, field in enumerate(whole):
        assert np.array_equal(np.concatenate([part[n] for part in parts]), field)


# -- .kvdict files -------------------------------------------------------------------------------------------------


def write_three(path):
    """A dictionary, product codes, and two trellis codes, of which the first turns."""
    one = Dictionary(np.arange(1, 25, dtype=np.int8).reshape(3, 8), ((5, V),))
    codes = (
        trellis(rotation=Rotation.of_base(50.0, 8), rates=(3, 1, 2, 5, 1, 1)),
        trellis(uses=((0, V), (1, V)), seed=1),
    )
    own = DictionarySet((one,), (product(uses=((7, K),)),), codes)
    write_artefact(path, Artefact(own, {"trellises": [{"error": 0.25}, 3]}), overwrite=True)
    return own


def test_a_file_holds_them_beside_others(tmp_path):
    own = write_three(tmp_path / "m.kvdict")
    back = read_artefact(tmp_path / "m.kvdict").dictionaries
    assert back.hash == own.hash
    assert [one.to_bytes() for one in back.trellises] == [one.to_bytes() for one in own.trellises]
    assert back.find_trellis(1, V) is back.trellises[1] is back.find_for(CodecSpec.parse("tcq"), 1, V)
    assert back.find_trellis(7, K) is None
    assert back.find_product(7, K) is back.products[0]
    assert back.uses() == [(0, K), (0, V), (1, V), (5, V), (7, K)]
    assert back.with_pursuit("mp").trellises == back.trellises
    assert "2 trellis codes" in back.describe()
    assert DictionarySet(trellises=own.trellises[:1]).hash != DictionarySet(trellises=own.trellises[1:]).hash
    with pytest.raises(SpecError, match="no stream two"):
        DictionarySet(products=(product(),), trellises=(trellis(),))


def test_every_flip_and_truncation_is_refused(tmp_path):
    path = tmp_path / "m.kvdict"
    write_three(path)
    check_damage_is_found(path, 131, 997)


def forge(path, change, entries=None):
    """A file with another body of its first trellis codes, or another table, whose checksums are right."""
    write_three(path)
    return forge_entry(path, 2, change, entries)


def places():
    """Where the arrays of the first trellis codes of the file begin."""
    sizes = {
        "uses": 4, "steps": 8 * 4, "mean": 4 * 8, "rows": 4 * 7 * 8, "units": 24, "spread": 24, "gains": 512,
        "shapes": 32, "basis": 2 * 6 * 8, "tables": 2 * 4 * 256, "rates": 6,
    }  # fmt: skip
    starts = TRELLIS.itemsize + np.concatenate([[0], np.cumsum(list(sizes.values()))])
    return dict(zip(sizes, starts.tolist(), strict=False))


def put(place, *numbers, kind="<u2"):
    raw = np.array(numbers, kind).tobytes()

    def change(body):
        body[place : place + len(raw)] = raw

    return change


AT = places()
NAN = np.float32(np.nan)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (put(AT["gains"], 1), CorruptRecord, "ascend"),
        (put(AT["gains"] + 510, 0x7F7F), CorruptRecord, "too large"),
        (put(AT["shapes"], 0), CorruptRecord, "positive"),
        (put(AT["basis"], 0x8000), CorruptRecord, "too large"),
        (put(AT["basis"], *[32767] * (48 + 4 * 256)), CorruptRecord, "sums of products above"),
        (put(AT["tables"], 0x8000, 0x7FFF, 1), CorruptRecord, "hash"),
        (put(AT["rates"], 0, kind="u1"), CorruptRecord, "rates: want 6 of 1 to 5 bits"),
        (put(AT["rates"], 6, kind="u1"), CorruptRecord, "rates: want 6 of 1 to 5 bits"),
        (put(AT["rates"], 4, kind="u1"), CorruptRecord, "hash"),
        (put(AT["rates"], 1, kind="u1"), CorruptRecord, "4 tables, want one for each of 3 rates"),
        (put(AT["mean"], NAN, kind="<f4"), CorruptRecord, "finite"),
        (put(AT["rows"], NAN, kind="<f4"), CorruptRecord, "finite"),
        (put(AT["units"], 0, kind="<f4"), CorruptRecord, "positive"),
        (put(AT["uses"] + 2, V, kind="u1"), CorruptRecord, "rotary"),
        (put(AT["uses"] + 2, 99, kind="u1"), CorruptRecord, "99 is not a valid StreamId"),
        (put(AT["uses"] + 3, 1, kind="u1"), UnsupportedVersion, "reserved"),
        (put(0, 513), CorruptRecord, "components"),
        (put(0, 5), CorruptRecord, "bytes, want"),
        (put(2, 0), CorruptRecord, "components"),
        (put(4, 0), CorruptRecord, "components"),
        (put(6, 0xFFFF), CorruptRecord, "bytes, want"),
        (put(8, 16_001), CorruptRecord, "budget"),
        (put(10, 7, kind="u1"), CorruptRecord, "window of 7"),
        (put(10, 13, kind="u1"), CorruptRecord, "window of 13"),
        (put(11, 9, kind="u1"), CorruptRecord, "9 tables"),
        (put(11, 0, kind="u1"), CorruptRecord, "0 tables"),
        (put(15, 1, kind="u1"), UnsupportedVersion, "reserved"),
    ],
)
def test_hostile_trellis_codes_of_right_checksums(tmp_path, change, error, said):
    at = forge(tmp_path / "m.kvdict", change)
    with pytest.raises(error, match=said) as found:
        read_artefact(tmp_path / "m.kvdict")
    if error is CorruptRecord and said != "hash":
        assert found.value.offset == at


def test_hostile_tables_of_trellis_codes(tmp_path):
    path = tmp_path / "m.kvdict"
    for field, value, error, said in (
        ("flags", KvdictFlag.TRELLIS | KvdictFlag.MEAN, UnsupportedVersion, "of trellis codes"),
        ("flags", KvdictFlag.TRELLIS | KvdictFlag.PRODUCT, UnsupportedVersion, "of product codes"),
        ("flags", KvdictFlag.PRODUCT, CorruptRecord, "product codes in"),
        ("head_dim", 8, UnsupportedVersion, "another field"),
        ("crc", 1, CorruptRecord, "checksum"),
    ):

        def change(table, field=field, value=value):
            table[field][2] = value

        forge(path, lambda body: None, change)
        with pytest.raises(error, match=said):
            read_artefact(path)


# -- commands ------------------------------------------------------------------------------------------------------


def test_info_shows_them(tmp_path):
    write_three(tmp_path / "m.kvdict")
    out = invoke("info", tmp_path / "m.kvdict").stdout
    assert "1 dictionaries, 1 product codes, 2 trellis codes" in out
    first, second = (line.split() for line in out.splitlines()[-2:])
    assert first == ["k", "0", "4", "13", "8", "6", "8", "before", "rotation", "0.2500"]
    assert second[:2] == ["v", "0-1"]
    assert "trained for B98" in out
    told = json.loads(invoke("info", tmp_path / "m.kvdict", "--json").stdout)
    assert told["trellises"][0] == {
        "uses": [{"layer": 0, "stream": "k"}], "bytes": 4, "bits": 13, "window": 8, "budget": 98.0, "components": 6,
        "channels": 8, "before_rotation": True, "error": 0.25,
    }  # fmt: skip
    assert told["trellises"][1]["error"] is None


def wide_set():
    """Trellis codes of two layers of the dump."""
    uses = [(layer, stream) for layer in (5, 8) for stream in (K, V)]
    made = (trellis(256, 8, (use,), seed=n, rates=(5, 4, 3, 3, 2, 2, 1, 1)) for n, use in enumerate(uses))
    return DictionarySet(trellises=tuple(replace(one, gains=gain_table(1e-6, 1e-3)) for one in made))


def test_diff_and_drift_try_them(tmp_path):
    own, path = wide_set(), tmp_path / "m.kvdict"
    write_artefact(path, Artefact(own, {}))
    (row,) = try_codecs(REAL, ["tcq/B98"], dictionary=path, layers="8").rows
    assert (row.codec, row.atoms, row.pursuit, row.bytes_a_vector) == ("tcq/B98", "m.kvdict", "", 5 * 512 / 508)
    with pytest.raises(SpecError, match="tcq needs trellis codes: pass dictionary="):
        try_codecs(REAL, ["tcq"])
    with pytest.raises(SpecError, match="layer 17 K: no trellis codes for it; choose layers of 5,8"):
        try_codecs(REAL, ["tcq"], dictionary=own, layers="17")
    (text,) = measure_drift([REAL], dictionary=own, spec="tcq").texts
    assert sorted(text.curves) == ["k", "v"]
    with pytest.raises(SpecError, match="has no product codes for any"):
        measure_drift([REAL], dictionary=own, spec="pq")
