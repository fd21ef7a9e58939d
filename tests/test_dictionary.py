"""Codes over dictionaries: rows and records, sets in a log and in files, sequences through a store."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.codecs import codec_for
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.planes import lay_planes, pack_rows, take_rows, unpack_rows
from kvcodec.codecs.pursuit import Codes, normalize_rows, pursue, scale_back
from kvcodec.codecs.rows import row_codec_for
from kvcodec.dictionary.artefact import Artefact, read_artefact, write_artefact
from kvcodec.errors import CorruptRecord, FormatError, LogExists, MissingDictionary, ShapeError, SpecError
from kvcodec.flash.checksum import crc32c
from kvcodec.kernels import elias_fano
from kvcodec.layout import KVDICT, KVDICT_ENTRY, DtypeId, StreamId
from kvcodec.sparse_spec import SparseCodes, set_bytes
from kvcodec.spec import CodecSpec
from kvcodec.store.set_records import dictionary_records
from tools.golden.dictionaries import forged_group, forged_policy, forged_set
from tools.golden.forge import Forge
from tools.golden.forged import forged_model

BF16 = ml_dtypes.bfloat16
DIM = 32


def make_atoms(size, dim=DIM, seed=0):
    return quantize_atoms(np.random.default_rng(seed).standard_normal((size, dim)))


def make_set(layers=2, size=96, dim=DIM, mean=0.0):
    uses = [((n, s),) for n in range(layers) for s in (StreamId.K, StreamId.V)]
    return DictionarySet(
        tuple(Dictionary(make_atoms(size, dim, n), use, np.full(dim, mean, np.float32)) for n, use in enumerate(uses))
    )


def planted(dictionary, count, atoms, seed=1):
    """Vectors that are a few atoms, about."""
    rng = np.random.default_rng(seed)
    unit = dictionary.atoms / np.linalg.norm(dictionary.atoms.astype(float), axis=1, keepdims=True)
    chosen = np.stack([rng.choice(dictionary.size, atoms, replace=False) for _ in range(count)])
    weights = rng.choice([-1, 1], (count, atoms)) * rng.uniform(1, 2, (count, atoms))
    return (np.einsum("na,nad->nd", weights, unit[chosen])).astype(np.float32), chosen


def bits(x):
    return x.astype(BF16).view(np.uint16)


# -- specs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size", "row"),
    [("dict/s8", 1024, 26), ("dict/s8/c6/ef", 1024, 17), ("dict/s8/c6/ef", 4096, 19), ("dict/s8/c6/ef", 32768, 22),
     ("dict/s16/c6/ef", 1024, 30), ("dict/s16/low3", 2048, 50), ("dict/s4/c4/ef", 100, 2 + 4 + 2)],
)  # fmt: skip
def test_bytes_of_a_row(text, size, row):
    spec = CodecSpec.parse(text).bound_to(size, b"x" * 16)
    assert spec.sparse.row_bytes == row
    assert CodecSpec.parse(str(spec)).bound_to(size, b"x" * 16) == spec


NOT_SPECS = [
    "dict/s0", "dict/s33", "dict/c7", "dict/s4/low4", "dict/e0", "dict/e1", "dict/s8/s9", "dict/x", "dict/g48",
    "dict/s8/channel", "dict/sym", "dict/enan", "raw/s8", "int4/token/ef",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_SPECS)
def test_specs_that_are_none(text):
    with pytest.raises(SpecError, match=text.split("/")[0]):
        CodecSpec.parse(text)


def test_a_set_has_no_size_before_its_dictionary_is_known():
    with pytest.raises(SpecError, match="dictionary"):
        _ = CodecSpec.parse("dict/s8/ef").sparse.row_bytes
    assert set_bytes(1024, 8) == 9
    for size in (1, 7, 8, 100, 1000, 1024, 4096, 65536):
        for count in range(1, 33):  # told without a kernel, and as the kernel has it
            assert set_bytes(size, count) == elias_fano.set_bytes(size, count)


# -- rows and planes -----------------------------------------------------------------------------------------------


@st.composite
def coded(draw):
    size, atoms = draw(st.integers(1, 3000)), draw(st.integers(1, 32))
    low = draw(st.integers(0, atoms - 1))
    spec = SparseCodes(atoms, draw(st.sampled_from([4, 5, 6, 8])), draw(st.booleans()), low, 0, size, b"x" * 16)
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    count, most = draw(st.integers(1, 5)), (1 << (spec.bits - 1)) - 1
    counts = rng.integers(0, atoms + 1, count)
    used = np.arange(atoms) < counts[:, None]
    codes = Codes(
        np.where(used, rng.integers(0, size, (count, atoms)), 0).astype(np.uint16),
        np.where(used, rng.integers(1, most + 1, (count, atoms)), 0).astype(np.int8),
        rng.integers(0x80, 0x7F80, count).astype(np.uint16),
        counts.astype(np.int64),
    )
    return spec, codes


def total(codes, size):
    """What a vector is, whatever the order of its atoms: coefficients by atom."""
    out = np.zeros((len(codes.scales), size), np.int64)
    for row, (indices, coefficients) in enumerate(zip(codes.indices, codes.coefficients, strict=True)):
        np.add.at(out[row], indices, coefficients)
    return out


@given(coded())
def test_rows_hold_what_was_packed(case):
    spec, codes = case
    before = total(codes, spec.size)
    rows = pack_rows(codes, spec)
    assert rows.shape == (len(codes.scales), spec.row_bytes)
    back = unpack_rows(rows, spec)
    assert np.array_equal(back.scales, codes.scales)
    assert np.array_equal(total(back, spec.size), before)
    if not spec.sets:
        assert np.array_equal(back.indices, codes.indices)
        assert np.array_equal(back.counts, codes.counts)


@given(coded(), st.integers(1, 130), st.integers(1, 3))
def test_planes_hold_the_rows(case, tokens, heads):
    spec, codes = case
    rows = np.resize(pack_rows(codes, spec), (2 * tokens, heads, spec.row_bytes))
    body = lay_planes(rows, tokens, spec)
    assert np.array_equal(take_rows(body, tokens, spec), rows)
    scales = body[1, 0].view("<u2")[:tokens]
    assert np.array_equal(scales, rows[tokens:, 0, :2].copy().view("<u2")[:, 0])
    if not spec.sets:
        blocks = -(-tokens // 64)
        planes = body[0, heads - 1, 128 * blocks :].reshape(blocks, -1)[:, : 128 * spec.atoms].copy().view("<u2")
        by_token = planes.reshape(blocks, spec.atoms, 64).transpose(0, 2, 1).reshape(-1, spec.atoms)[:tokens]
        assert np.array_equal(by_token, rows[:tokens, heads - 1, 2 : 2 + 2 * spec.atoms].copy().view("<u2"))


def test_rows_that_no_encoder_writes():
    spec = SparseCodes(4, 6, size=100, basis=b"x" * 16)
    rows = pack_rows(Codes(np.zeros((3, 4), np.uint16), np.ones((3, 4), np.int8), np.full(3, 0x3F80, np.uint16),
                           np.full(3, 4)), spec)  # fmt: skip
    for place, value, why in ((2, 100, "index 100"), (0, 0x7F80, "scale"), (0, 0x8000, "scale")):
        bad = rows.copy()
        bad[1, place : place + 2] = np.array([value], "<u2").view(np.uint8)
        with pytest.raises(CorruptRecord, match=why) as error:
            unpack_rows(bad, spec)
        assert error.value.offset == 1
    sets = dataclasses.replace(spec, sets=True)
    bad = np.zeros((2, sets.row_bytes), np.uint8)
    with pytest.raises(CorruptRecord, match="no set of 4"):
        unpack_rows(bad, sets)


# -- vectors -------------------------------------------------------------------------------------------------------


def test_planted_atoms_are_found_and_come_back():
    own = Dictionary(make_atoms(200), ((0, StreamId.K),))
    rows, chosen = planted(own, 64, 3)
    found = pursue(rows, own, SparseCodes(3, 8, size=200))
    hits = [len(set(a) & set(b)) for a, b in zip(found.indices.tolist(), chosen.tolist(), strict=True)]
    assert np.mean(hits) > 2.8
    codec = codec_for("dict/s6/g64", StreamId.K, own)
    body = codec.encode(bits(rows)[:, None], DtypeId.BFLOAT16, 64).body
    back = codec.decode(body, 64, DIM, DtypeId.BFLOAT16, as_float32=True)[:, 0]
    assert np.linalg.norm(back - rows) < 0.05 * np.linalg.norm(rows)


def steep_metric():
    """A metric of condition 10**6."""
    turn = np.linalg.qr(np.random.default_rng(5).standard_normal((DIM, DIM)))[0]
    metric = (turn * np.geomspace(1e-6, 1, DIM)) @ turn.T
    return ((metric + metric.T) / 2).astype(np.float32)


@pytest.mark.parametrize("text", ["dict/s5", "dict/s5/c6/ef", "dict/s9/c5/ef/low2/g128", "dict/s12/e0.5"])
@pytest.mark.parametrize("metric", [None, steep_metric()], ids=["plain", "metric"])
def test_a_vector_is_coded_alike_wherever_it_stands(text, metric):
    own = Dictionary(make_atoms(150), ((0, StreamId.K),), np.full(DIM, 0.3, np.float32), metric=metric)
    rows = bits(np.random.default_rng(3).standard_normal((200, 2, DIM)) + 0.3)
    codec = row_codec_for(CodecSpec.parse(text), StreamId.K, own)
    whole = codec.encode(rows, DtypeId.BFLOAT16)
    for first, end in ((0, 1), (7, 8), (3, 160), (199, 200)):
        assert np.array_equal(codec.encode(rows[first:end], DtypeId.BFLOAT16), whole[first:end])
    record = codec_for(text, StreamId.K, own)
    tokens = record.token_group
    at_once = record.encode(rows[:tokens], DtypeId.BFLOAT16, tokens)
    laid = codec.lay(whole[:tokens], tokens, DIM)
    assert np.array_equal(laid.body, at_once.body)
    assert laid.spec == at_once.spec
    again = codec_for(at_once.spec, StreamId.K, own)
    one, other = again.decode(at_once.body, tokens, DIM, DtypeId.BFLOAT16), codec.decode(whole, DIM, DtypeId.BFLOAT16)
    assert np.array_equal(one, other[:tokens])


def test_the_error_figure_is_the_error():
    own = Dictionary(make_atoms(100), ((0, StreamId.V),))
    rows = bits(np.random.default_rng(4).standard_normal((128, 3, DIM)))
    codec = codec_for("dict/s4", StreamId.V, own)
    encoded = codec.encode(rows, DtypeId.BFLOAT16, 64)
    back = codec.decode(encoded.body, 64, DIM, DtypeId.BFLOAT16, as_float32=True).astype(np.float64)
    wide = rows.view(BF16).astype(np.float64)
    for record in range(2):
        part = slice(64 * record, 64 * record + 64)
        for head in range(3):
            error = np.linalg.norm(back[part, head] - wide[part, head]) / np.linalg.norm(wide[part, head])
            assert abs(int(encoded.errors[record, head]) - 32768 * error) < 1


def test_an_error_bound_takes_as_many_atoms_as_it_needs():
    own = Dictionary(make_atoms(300), ((0, StreamId.K),))
    easy, _ = planted(own, 64, 2)
    hard = np.random.default_rng(5).standard_normal((64, DIM)).astype(np.float32)
    codec = codec_for("dict/s20/e0.3", StreamId.K, own)
    few, many = (codec.encode(bits(x)[:, None], DtypeId.BFLOAT16, 64) for x in (easy, hard))
    assert few.spec.sparse.atoms < 6 < many.spec.sparse.atoms <= 20
    for encoded, rows in ((few, easy), (many, hard)):
        back = codec_for(encoded.spec, StreamId.K, own).decode(encoded.body, 64, DIM, DtypeId.BFLOAT16, as_float32=True)
        wide = rows.astype(BF16).astype(np.float32)
        errors = np.linalg.norm(back[:, 0] - wide, axis=1) / np.linalg.norm(wide, axis=1)
        assert errors.max() < 0.31


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("power", [-130, -60, -20, 0, 14, 100])
def test_vectors_of_any_size(dtype, power):
    if dtype == np.float16 and not -20 <= power <= 14:
        return
    own = Dictionary(make_atoms(200), ((0, StreamId.K),))
    rows = (planted(own, 64, 3)[0] * 2.0**power).astype(dtype)
    rows[5] = 0
    id_ = DtypeId.FLOAT16 if dtype == np.float16 else DtypeId.BFLOAT16
    codec = codec_for("dict/s6", StreamId.K, own)
    body = codec.encode(rows.view(np.uint16)[:, None], id_, 64).body
    back = codec.decode(body, 64, DIM, id_)[:, 0].view(dtype).astype(np.float64)
    assert np.isfinite(back).all()
    assert not back[5].any()
    if power > -110:
        wide = rows.astype(np.float64)
        assert np.linalg.norm(back - wide) < 0.06 * np.linalg.norm(wide)


def test_scales_go_back_to_the_size_of_their_rows():
    rows = np.array([[3.0, -1.0], [0.0, 0.0], [2.0**-126, 0.0], [2.0**120, 2.0**119]], np.float32)
    unit, exponents = normalize_rows(rows)
    assert np.abs(unit).max(axis=1).tolist() == [0.75, 0.0, 0.5, 0.5]
    assert np.array_equal(np.ldexp(unit, exponents[:, None]), rows)
    one = np.array([0x3F80, 0x3F80], np.uint16)
    assert scale_back(one, np.array([3, 500])).tolist() == [0x4100, 0x7F7F]


def test_a_mean_is_removed_and_added():
    rows = bits(np.random.default_rng(6).standard_normal((64, 1, DIM)) * 0.2 + 4)
    plain, centred = (Dictionary(make_atoms(100), ((0, StreamId.K),), np.full(DIM, m, np.float32)) for m in (0, 4))
    errors = [
        int(codec_for("dict/s4", StreamId.K, d).encode(rows, DtypeId.BFLOAT16, 64).errors[0, 0])
        for d in (plain, centred)
    ]
    assert errors[1] * 5 < errors[0]


def test_a_metric_changes_which_error_is_least():
    rng = np.random.default_rng(7)
    metric = np.diag(np.where(np.arange(DIM) < 4, 100, 1)).astype(np.float32)
    rows = bits(rng.standard_normal((256, 1, DIM)))
    missed = []
    for m in (None, metric):
        own = Dictionary(make_atoms(100), ((0, StreamId.K),), metric=m)
        codec = codec_for("dict/s4", StreamId.K, own)
        back = codec.decode(codec.encode(rows, DtypeId.BFLOAT16, 64).body, 64, DIM, DtypeId.BFLOAT16, as_float32=True)
        error = (back - rows.view(BF16).astype(np.float32))[:, 0]
        missed.append(((error @ metric) * error).sum())
    assert missed[1] < 0.7 * missed[0]


def test_arrays_over_a_dictionary():
    own = Dictionary(make_atoms(100), ((0, StreamId.K),))
    x = np.random.default_rng(8).standard_normal((150, 2, DIM)).astype(BF16)
    coded = kv.encode_array(x, "dict/s4/c6/ef", dictionary=own)
    assert coded.nbytes == 3 * 2 * 64 * coded.spec.sparse.row_bytes
    back = kv.decode_array(coded)
    assert np.array_equal(kv.decode_array(coded, np.array([149, 3])), back[[149, 3]])
    bounded = kv.encode_array(x, "dict/s12/e0.6", dictionary=own)
    assert np.linalg.norm(kv.decode_array(bounded, dtype=np.float32) - x.astype(np.float32)) < np.linalg.norm(
        x.astype(np.float32)
    )
    with pytest.raises(SpecError, match="needs a dictionary"):
        kv.encode_array(x, "dict/s4")
    with pytest.raises(ShapeError, match="32"):
        kv.encode_array(x[..., :16], "dict/s4", dictionary=own)


# -- sets in a log -------------------------------------------------------------------------------------------------

MODEL = kv.Model.uniform(2, 2, DIM)
SPECS = {"k": "dict/s4/c6/ef", "v": "dict/s5/low2"}


def rows_of(tokens, seed=0):
    return np.random.default_rng(seed).standard_normal((tokens, 2, DIM)).astype(BF16)


def fill(store, first, end, name="a"):
    sequence = store.sequence(name)
    for n in range(2):
        x = rows_of(400, n)[first:end]
        sequence.append(n, x, x[:, ::-1])


@pytest.mark.parametrize("residual", [0, 10])
@pytest.mark.parametrize("device", ["tlc", "nor"])
def test_a_sequence_over_dictionaries(tmp_path, residual, device):
    path, own = tmp_path / "a.kvlog", make_set()
    with kv.open(path, "w", model=MODEL, **SPECS, dictionary=own, residual=residual, sinks=3, device=device) as store:
        fill(store, 0, 150)
        store.sync()
        fill(store, 150, 151)
    with kv.open(path, "a") as store:  # the log has its dictionaries
        fill(store, 151, 300)
        live = [store.sequence("a").read(n) for n in range(2)]
    with kv.open(path) as store:
        sequence = store.sequence("a")
        assert len(sequence) == 300
        for n in range(2):
            for stream, (got, was) in enumerate(zip(sequence.read(n), live[n], strict=True)):
                assert np.array_equal(got.view(np.uint16), was.view(np.uint16))
                x = np.ascontiguousarray(rows_of(400, n)[:300][:, ::-1]) if stream else rows_of(400, n)[:300]
                coder = row_codec_for(
                    CodecSpec.parse(SPECS["kv"[stream]]), StreamId(1 + stream), own.find(n, StreamId(1 + stream))
                )
                coded = coder.decode(coder.encode(x.view(np.uint16), DtypeId.BFLOAT16), DIM, DtypeId.BFLOAT16)
                assert np.array_equal(got[:3].view(np.uint16), x[:3].view(np.uint16))
                assert np.array_equal(got[3:195].view(np.uint16), coded[3:195])
        stats = store.stats()
        assert stats.dictionaries == (own.hash.hex(),)
        assert own.nbytes < stats.dictionary_bytes < own.nbytes * 1.2 + 4096
        assert len(store.log.poll()) == 0
    assert verify_log(path).verdict == "clean"


def test_chunks_of_a_dictionary_fit_small_blocks(tmp_path):
    own, path = make_set(size=2000), tmp_path / "a.kvlog"
    with kv.open(path, "w", model=MODEL, **SPECS, dictionary=own, device="page=512,unit=64,block=8192") as store:
        fill(store, 0, 200)
    with kv.open(path) as store:
        assert store.index.dictionaries.find(own.hash).hash == own.hash


def test_a_second_writer_adds_another_set_and_never_the_same_twice(tmp_path):
    path, one, two = tmp_path / "a.kvlog", make_set(size=64), make_set(size=96)
    with kv.open(path, "w", model=MODEL, **SPECS, dictionary=one) as store:
        fill(store, 0, 250)
    with kv.open(path) as store:
        once = store.stats().dictionary_bytes
    for _ in range(2):
        with kv.open(path, "a", dictionary=one):
            pass
    with kv.open(path) as store:
        assert store.stats().dictionary_bytes == once > one.nbytes
    with kv.open(path, "a", **SPECS, dictionary=two) as store:
        fill(store, 0, 250, "b")
    with kv.open(path) as store:
        assert store.stats().dictionaries == (one.hash.hex(), two.hash.hex())
        assert once + two.nbytes < store.stats().dictionary_bytes < once + 2 * two.nbytes
        a, b = (store.sequence(n).read(0)[0][10:].astype(np.float32) for n in "ab")
        assert not np.array_equal(a, b)


def test_a_log_that_only_names_its_dictionaries(tmp_path):
    """Its writer had them, and left them out: DICTIONARY records are not needed by whoever has the set."""
    path, own = tmp_path / "a.kvlog", make_set()
    with kv.open(path, "w", model=MODEL, **SPECS, dictionary=own, embed=False, residual=0) as store:
        fill(store, 0, 200)
    with kv.open(path) as store:
        assert store.stats().dictionaries == ()
        with pytest.raises(MissingDictionary, match=own.hash.hex()) as error:
            store.sequence("a").read(0)
        assert error.value.basis == own.hash
    with kv.open(path, dictionary=own) as store:
        assert len(store.sequence("a").read(1)[0]) == 200
    with pytest.raises(MissingDictionary, match=own.hash.hex()), kv.open(path, dictionary=make_set(size=50)) as store:
        store.sequence("a").read(0)
    assert "dictionary" in verify_log(path).error
    assert verify_log(path, dictionary=own).verdict == "clean"


def test_programmed_bytes_of_17_byte_vectors(tmp_path):
    """14 times fewer than 16 bits, every overhead but the dictionaries counted: d = 128, no residual window, tlc."""
    model, path, rng = kv.Model.uniform(2, 8, 128), tmp_path / "a.kvlog", np.random.default_rng(0)
    own = make_set(size=1024, dim=128)
    spec = "dict/s8/c6/ef/g256"
    with kv.open(path, "w", model=model, k=spec, v=spec, residual=0, sinks=0, dictionary=own, device="tlc") as store:
        for n in range(2):
            rows = rng.standard_normal((2048, 8, 128), dtype=np.float32)
            store.sequence("a").append(n, rows, rows)
    with kv.open(path) as store:
        stats = store.stats().as_dict()
    assert stats["bytes_per_number"] == 17 / 128
    assert stats["ratio_programmed_without_dictionaries"] >= 14
    assert stats["dictionary_bytes"] >= own.nbytes == 4 * 1024 * 128


def test_a_writer_without_its_dictionaries_is_refused_before_the_log_is_touched(tmp_path):
    path = tmp_path / "a.kvlog"
    with kv.open(path, "w", model=MODEL, **SPECS, dictionary=make_set(), embed=False, residual=0) as store:
        fill(store, 0, 20)
    before = path.read_bytes()
    with pytest.raises(MissingDictionary):
        kv.open(path, "a")
    assert path.read_bytes() == before
    with kv.open(path, "a", dictionary=make_set()) as store:
        fill(store, 0, 20, "b")
        assert store.sequences() == ["a", "b"]


def rewrite(path, change):
    """Change DICTIONARY records of a log, every checksum made right again: `change` takes header and body."""
    forge = Forge(path, "forged")
    first, *others = dictionary_records(forged_set(), 1 << 16)
    forge.frame(forge.seal(forged_model().record()))
    forge.frame(*(forge.seal(one, **change.get(n, {})) for n, one in enumerate([first, *others])))
    forge.frame(forge.seal(forged_policy().record()))
    forge.frame(forge.seal(forged_group()), forge.seal(forged_group(StreamId.V)))
    forge.device.close()


@pytest.mark.parametrize(
    "change", [{1: {"matrices": 3}}, {1: {"matrix": 0, "head_dim": 8}}, {1: {"matrix": 0, "uses": 2}},
               {1: {"matrix": 0, "mean": 1}}, {1: {"matrix": 0, "atoms": 21}}],
)  # fmt: skip
def test_chunks_that_contradict_each_other(tmp_path, change):
    path = tmp_path / "a.kvlog"
    rewrite(path, change)
    with pytest.raises(FormatError), kv.open(path) as store:
        store.sequence("a").read(0)


def test_a_record_over_another_dictionary_than_its_own(tmp_path):
    """The set is what its hash says, and has another size than the record's header."""
    path, own = tmp_path / "a.kvlog", make_set(size=96)
    with kv.open(path, "w", model=MODEL, **SPECS, dictionary=own, residual=0, sinks=0, embed=False) as store:
        fill(store, 0, 70)
    other = make_set(size=50)
    other.__dict__["hash"] = own.hash
    with kv.open(path, dictionary=other) as store, pytest.raises(CorruptRecord, match="96 atoms"):
        store.sequence("a").read(0)
    assert verify_log(path, dictionary=other).verdict == "damaged"


def test_refused_dictionaries():
    atoms, use = make_atoms(10), ((0, StreamId.K),)
    for mean in (np.nan, np.inf, 2e30, -2e30):
        with pytest.raises(ShapeError, match="mean"):
            Dictionary(atoms, use, np.full(DIM, mean, np.float32))
    for metric in (-np.eye(DIM), np.zeros((DIM, DIM)), np.triu(np.ones((DIM, DIM))), 1e7 * np.eye(DIM), np.eye(3)):
        with pytest.raises(ShapeError, match="metric"):
            Dictionary(atoms, use, metric=metric.astype(np.float32))
    with pytest.raises(ShapeError, match="errors"):
        Dictionary(atoms, use, errors=np.array([np.nan], np.float32))
    turned = Dictionary(np.asfortranarray(atoms), use)
    assert turned.atoms.flags.c_contiguous


def test_refused_bindings(tmp_path):
    path = tmp_path / "a.kvlog"
    wide = make_set(dim=48)
    lacking = DictionarySet((Dictionary(make_atoms(40), ((0, StreamId.K),)),))
    for why, options in (
        ("needs a dictionary", {}),
        ("has no dictionary", {"dictionary": lacking}),
        ("48", {"dictionary": wide}),
    ):
        with pytest.raises(SpecError, match=why):
            kv.open(path, "w", model=MODEL, **SPECS, **options)
        assert not path.exists()


# -- .kvdict files -------------------------------------------------------------------------------------------------


def make_artefact():
    rng = np.random.default_rng(9)
    factor = rng.standard_normal((DIM, DIM)).astype(np.float32)
    one = Dictionary(make_atoms(40), ((0, StreamId.K), (1, StreamId.K)), rng.standard_normal(DIM).astype(np.float32),
                     metric=factor @ factor.T, errors=np.array([0.5, 0.25], np.float32))  # fmt: skip
    return Artefact(DictionarySet((one, Dictionary(make_atoms(30), ((0, StreamId.V),)))), {"dumps": ["a"], "seed": 3})


def test_a_file_holds_a_set(tmp_path):
    path, own = tmp_path / "m.kvdict", make_artefact()
    write_artefact(path, own)
    assert [p.name for p in tmp_path.iterdir()] == ["m.kvdict"]
    back = read_artefact(path)
    assert back.information == own.information
    assert back.dictionaries.hash == own.dictionaries.hash
    for a, b in zip(back.dictionaries.dictionaries, own.dictionaries.dictionaries, strict=True):
        for name in ("atoms", "mean", "errors", "metric"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
        assert a.uses == b.uses
    with pytest.raises(LogExists):
        write_artefact(path, own)
    write_artefact(path, own, overwrite=True)


def test_a_file_whose_dictionaries_overlap_takes_no_memory(tmp_path):
    path = tmp_path / "m.kvdict"
    write_artefact(path, make_artefact())
    data = bytearray(path.read_bytes())
    head, table = np.frombuffer(data, KVDICT, 1), np.frombuffer(data, KVDICT_ENTRY, 2, KVDICT.itemsize)
    table["offset"][1] = table["offset"][0]
    end = KVDICT.itemsize + table.nbytes + int(head["information_bytes"][0])
    head["crc"] = crc32c(bytes(data[: KVDICT.itemsize - 4]) + bytes(data[KVDICT.itemsize : end]))
    path.write_bytes(data)
    with pytest.raises(CorruptRecord, match="overlaps"):
        read_artefact(path)


def test_information_that_is_a_bomb(tmp_path, monkeypatch):
    path = tmp_path / "m.kvdict"
    monkeypatch.setattr(json, "dumps", lambda *_, **__: "[" * 100_000)
    write_artefact(path, make_artefact())
    monkeypatch.undo()
    with pytest.raises(CorruptRecord):
        read_artefact(path)


def test_every_flip_and_truncation_of_a_file_is_refused(tmp_path):
    path = tmp_path / "m.kvdict"
    write_artefact(path, make_artefact())
    data = path.read_bytes()
    zeros = [i for i in range(len(data)) if not data[i]]
    for at in [*range(200), *range(200, len(data), 41)]:
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            read_artefact(path)
        except FormatError:
            continue
        assert at in zeros, at  # padding between dictionaries, which nothing covers
        assert not any(data[at - at % 64 : at - at % 64 + 64][at % 64 :]), at
    for size in [*range(0, 200, 7), *range(200, len(data), 301), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(FormatError):
            read_artefact(path)
