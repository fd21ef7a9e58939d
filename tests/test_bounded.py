"""An error bound on every vector over a dictionary: it holds, whatever the rows, and what is kept to make it hold."""

import json
import re
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import kvcodec as kv
from kvcodec.bulk.encode import encode_dump
from kvcodec.bulk.verify import verify_log
from kvcodec.cli.app import app
from kvcodec.cli.info_report import gather_info, print_info
from kvcodec.codecs.bitmap import CODES, INT4, RAW, Mixed, bitmap_bytes, join_rows, pack_kinds, take_mixed, unpack_kinds
from kvcodec.codecs.bounded_sparse import BoundedSparse
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.pursuit import pursue
from kvcodec.codecs.rows import GroupedRows, row_codec_for
from kvcodec.dictionary.artefact import Artefact, write_artefact
from kvcodec.dumps import create_dump, open_dump
from kvcodec.errors import CorruptRecord, SpecError
from kvcodec.layout import DtypeId, StreamId
from kvcodec.sparse_spec import ERROR_STEPS
from kvcodec.spec import CodecSpec
from kvcodec.store.dictionaries import StreamCodecs
from kvcodec.store.reading import read_extent, rows_of_bounded
from kvcodec.store.records import group_records

ROOT = Path(__file__).parent
REAL = ROOT / "data" / "gemma3_270m_512_3layers.safetensors"
BF16 = ml_dtypes.bfloat16
TYPES = {DtypeId.BFLOAT16: BF16, DtypeId.FLOAT16: np.float16}
DIM, HEADS = 64, 2
NOWHERE = np.arange(200)  # positions, of which a dictionary without a rotation asks nothing
SMALL = "page=512,unit=64,block=8192"


def make_dictionary(size=96, dim=DIM, seed=0, mean=0.0, uses=((0, StreamId.K),), metric=None):
    atoms = quantize_atoms(np.random.default_rng(seed).standard_normal((size, dim)))
    return Dictionary(atoms, uses, np.full(dim, mean, np.float32) if mean else np.zeros(0), metric=metric)


def make_set(mean=0.0, metric=None):
    both = ((0, StreamId.K), (0, StreamId.V))
    return DictionarySet((make_dictionary(mean=mean, uses=both, metric=metric),))


def relative(rows, back):
    """Errors of vectors in float64; of a vector of zeros 0 if it came back as such, else infinite."""
    wide = np.asarray(rows).astype(np.float64)
    missed = np.linalg.norm(np.asarray(back).astype(np.float64) - wide, axis=-1)
    lengths = np.linalg.norm(wide, axis=-1)
    return np.divide(missed, lengths, out=np.where(missed > 0, np.inf, 0.0), where=lengths > 0)


KINDS = ("noise", "atoms", "zeros", "outlier", "huge", "tiny", "near the mean", "subnormal", "flat")


def adversarial(kinds, dictionary, kind16, seed):
    """Rows (n, d) of each of some kinds."""
    rng = np.random.default_rng(seed)
    most = float(ml_dtypes.finfo(kind16).max)
    rows = []
    for kind in kinds:
        x = rng.standard_normal(dictionary.dim)
        if kind == "atoms":
            x = rng.uniform(-1, 1, 3) @ dictionary.atoms[rng.integers(0, dictionary.size, 3)]
        elif kind == "zeros":
            x = np.zeros(dictionary.dim)
        elif kind == "outlier":
            x[rng.integers(dictionary.dim)] = 10.0 ** rng.integers(1, 4)
        elif kind == "huge":
            x = np.clip(x * most, -most, most)
        elif kind == "tiny":
            x = x * float(ml_dtypes.finfo(kind16).smallest_normal) * 8
        elif kind == "subnormal":
            x = rng.integers(-3, 4, dictionary.dim) * float(ml_dtypes.finfo(kind16).smallest_subnormal)
        elif kind == "near the mean":
            x = dictionary.mean * (1 + rng.uniform(-1, 1) / 100)
        elif kind == "flat":
            x = np.full(dictionary.dim, rng.uniform(-100, 100))
        rows.append(x)
    return np.array(rows).reshape(len(rows), dictionary.dim).astype(np.float32).astype(kind16)


# -- specs ---------------------------------------------------------------------------------------------------------


def test_a_spec_says_the_bound():
    spec = CodecSpec.parse("dict/s24/c6/max0.3")
    assert (spec.sparse.bounded, spec.sparse.error, spec.flags) == (True, int(0.3 * ERROR_STEPS), 4)
    assert str(spec) == "dict/s24/c6/max0.3/g64"
    assert CodecSpec.parse("dict/max0.1/ef").sparse.atoms == 24
    assert not CodecSpec.parse("dict/e0.3").sparse.bounded
    assert spec.sparse.error / ERROR_STEPS <= 0.3


@pytest.mark.parametrize(
    "part", ["max", "max0", "max1", "max-0.1", "maxnan", "max0.00001", "e0.1/max0.2", "max0.1/max0.1"]
)
def test_specs_of_no_bound(part):
    with pytest.raises(SpecError, match="dict/s8"):
        CodecSpec.parse(f"dict/s8/{part}")


@pytest.mark.parametrize("prefix", ["e", "max"])
def test_every_bound_is_told_as_it_is_parsed(prefix):
    for error in [*range(1, ERROR_STEPS, 37), ERROR_STEPS - 1]:
        spec = CodecSpec.parse(f"dict/{prefix}0.5")
        spec = CodecSpec(
            spec.codec, spec.axis, spec.group, sparse=type(spec.sparse)(24, error=error, bounded=prefix == "max")
        )
        assert CodecSpec.parse(str(spec)) == spec


def test_rows_of_a_bound_are_not_coded_one_by_one():
    spec = CodecSpec.parse("dict/max0.3")
    with pytest.raises(SpecError, match="one by one"):
        row_codec_for(spec, StreamId.K, make_dictionary())
    with pytest.raises(SpecError, match="only a log"):
        kv.encode_array(np.zeros((64, 1, DIM), BF16), spec, dictionary=make_dictionary())


# -- bitmaps -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 70), st.integers(0, 1 << 30), st.integers(1, 40))
def test_a_body_holds_its_parts(heads, tokens, seed, dim):
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, (heads, tokens)).astype(np.uint8)
    kinds[rng.integers(heads), rng.integers(tokens)] = rng.integers(1, 3)
    small = GroupedRows(CodecSpec.parse("int4/token/g32"), StreamId.V).row_bytes(dim)
    rows = [
        rng.integers(0, 256, (int((kinds == k).sum()), n)).astype(np.uint8) for k, n in ((INT4, small), (RAW, 2 * dim))
    ]
    mixed = Mixed(kinds, rng.integers(0, 256, (heads, 7)).astype(np.uint8), join_rows(kinds, *rows, dim))
    body = mixed.join()
    assert mixed.bitmap_bytes == bitmap_bytes(heads, tokens) == -(-heads * -(-tokens // 4) // 64) * 64
    back = take_mixed(body, mixed.bitmap_bytes, heads, tokens, 7, dim)
    assert all(np.array_equal(a, b) for a, b in zip(back, mixed, strict=True))
    assert np.array_equal(back.rows(INT4, dim), rows[0])
    assert np.array_equal(back.rows(RAW, dim), rows[1])
    cut = rng.integers(0, heads + 1)
    low, high = mixed.heads(0, cut, dim), mixed.heads(cut, heads, dim)
    for a, b, whole in zip(low, high, mixed, strict=True):
        assert np.array_equal(np.concatenate([a, b]), whole)
    for size in (len(body) - 1, len(body) + 1, mixed.bitmap_bytes - 1, 0):
        with pytest.raises(CorruptRecord):
            take_mixed(np.resize(body, size), mixed.bitmap_bytes, heads, tokens, 7, dim)


def test_the_documented_bitmap():
    text = (ROOT.parent / "formats" / "dictionary.md").read_text(encoding="utf-8")
    kinds, shown = re.search(r"```bitmap kinds=(\S+)\n(.*?)\n```", text).groups()
    wanted = np.array([[int(n) for n in head.split(",")] for head in kinds.split("|")], np.uint8)
    packed = pack_kinds(wanted)
    assert packed.tobytes() == bytes.fromhex(shown).ljust(64, b"\0")
    assert np.array_equal(unpack_kinds(packed, *wanted.shape), wanted)
    table = re.findall(r"^\| (\d) \| (\w+) \| (\d+) \|$", text, re.M)
    small = GroupedRows(CodecSpec.parse("int4/token/g32"), StreamId.V).row_bytes(128)
    assert table == [(str(CODES), "codes", "0"), (str(INT4), "INT4", str(small)), (str(RAW), "raw", "256")]


# -- the bound -----------------------------------------------------------------------------------------------------


@st.composite
def problems(draw):
    dtype = draw(st.sampled_from(list(TYPES)))
    dictionary = make_dictionary(
        draw(st.sampled_from([3, 48, 200])), draw(st.sampled_from([4, DIM, 40])), draw(st.integers(0, 9)),
        draw(st.sampled_from([0.0, 3.0])),
    )  # fmt: skip
    atoms, heads = draw(st.sampled_from([2, 8, 24])), draw(st.integers(1, 3))
    low = draw(st.sampled_from(["", "/low1"]))
    form = f"dict/s{atoms}/c{draw(st.sampled_from([4, 6, 8]))}{draw(st.sampled_from(['', '/ef']))}{low}"
    spec = f"{form}/max{draw(st.floats(0.02, 0.9)):.4f}"
    tokens = draw(st.sampled_from([1, 30, 64]))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    kinds = np.resize(kinds, 2 * tokens * heads)
    rows = adversarial(kinds, dictionary, TYPES[dtype], draw(st.integers(0, 1 << 30)))
    return CodecSpec.parse(spec), dictionary, dtype, rows.reshape(2 * tokens, heads, -1), tokens


def decode_record(one, dictionary, tokens, heads, dim, dtype, *, wide=False):
    codec = BoundedSparse(one.spec, dictionary)
    body, stored = one.mixed.join(), one.mixed.bitmap_bytes
    if stored:
        return codec.decode_mixed(body, stored, tokens, dim, dtype, heads, wide=wide)
    return codec.decode(body.reshape(heads, -1), tokens, dim, dtype, as_float32=wide)


@settings(max_examples=80)
@given(problems())
def test_every_vector_meets_the_bound(problem):
    spec, dictionary, dtype, rows, tokens = problem
    heads, dim = rows.shape[1:]
    codec = BoundedSparse(spec, dictionary)
    made = codec.encode_records(rows.view(np.uint16), dtype, tokens)
    for one, own in zip(made, np.split(rows, 2), strict=True):
        back = decode_record(one, dictionary, tokens, heads, dim, dtype).view(TYPES[dtype])
        assert relative(own, back).max() <= spec.sparse.error / ERROR_STEPS
        assert np.array_equal(codec.recode(own.view(np.uint16), dtype), back.view(np.uint16))
        raw = one.mixed.kinds.T == RAW
        assert np.array_equal(back.view(np.uint16)[raw], own.view(np.uint16)[raw])
        wide = decode_record(one, dictionary, tokens, heads, dim, dtype, wide=True).astype(np.float64)
        exact = own.astype(np.float64)
        for head in range(heads):
            missed, length = np.linalg.norm(wide[:, head] - exact[:, head]), np.linalg.norm(exact[:, head])
            figure = min(32768 * missed / length, 65535) if length else 0
            assert abs(int(one.errors[head]) - figure) <= 0.51
        assert spec.sparse.low < one.spec.sparse.atoms <= spec.sparse.atoms


def test_a_vector_takes_no_more_atoms_than_it_needs():
    dictionary, rng = make_dictionary(200, 32), np.random.default_rng(1)
    picked = [np.array([rng.choice(200, n, replace=False) for _ in range(64)]) for n in (1, 2, 4)]
    rows = np.concatenate([(dictionary.atoms[p].sum(axis=1)) for p in picked]).astype(BF16).view(np.uint16)
    met = BoundedSparse(CodecSpec.parse("dict/s24/c8/max0.15"), dictionary)._meet(
        rows[:, None], DtypeId.BFLOAT16, NOWHERE
    )
    means = [part.mean() for part in np.split(met.tried.need, 3)]
    assert 1 <= means[0] < 1.1 < means[1] < 3 < means[2] < 7


def test_a_record_has_the_atoms_that_make_it_smallest():
    dictionary, rng = make_dictionary(300, 64), np.random.default_rng(2)
    rows = rng.standard_normal((64, 2, 64))
    rows[:, 0] = dictionary.atoms[:64]  # one atom each
    bits = rows.astype(BF16).view(np.uint16)
    codec = BoundedSparse(CodecSpec.parse("dict/s24/c6/max0.3"), dictionary)
    one = codec.encode_records(bits, DtypeId.BFLOAT16, 64)[0]
    assert not one.mixed.kinds[0].any()
    met = codec._meet(bits, DtypeId.BFLOAT16, NOWHERE)
    small = GroupedRows(CodecSpec.parse("int4/token/g32"), StreamId.V).row_bytes(64)
    sizes = {
        n: 128 * codec.rooms[n] + small * int((met.tried.need > n).sum()) + 64 * bool((met.tried.need > n).any())
        for n in range(1, 25)
    }
    assert len(one.mixed.join()) == min(sizes.values()) == sizes[one.spec.sparse.atoms]
    assert (met.kinds == INT4).all()


def test_codes_that_nothing_is_kept_beside_are_as_any_other():
    dictionary = make_dictionary()
    rows = dictionary.atoms[np.arange(64) % 48][:, None].astype(BF16).view(np.uint16)
    one = BoundedSparse(CodecSpec.parse("dict/s4/max0.5"), dictionary).encode_records(rows, DtypeId.BFLOAT16, 64)[0]
    assert one.mixed.bitmap_bytes == 0
    assert one.spec.sparse.atoms == 1
    assert len(one.mixed.join()) == 64 * one.spec.sparse.row_bytes


def test_a_metric_and_a_mean_leave_the_bound():
    metric = np.diag(np.where(np.arange(DIM) < 3, 50.0, 1.0)).astype(np.float32)
    plain, weighed = (make_dictionary(200, mean=3.0, metric=m) for m in (None, metric))
    picked = np.random.default_rng(3).integers(0, 200, (64, 2, 3))
    rows = (plain.atoms[picked].sum(axis=2) / 50 + 3).astype(BF16)
    for dictionary in (plain, weighed):
        codec = BoundedSparse(CodecSpec.parse("dict/s12/c6/max0.1"), dictionary)
        one = codec.encode_records(rows.view(np.uint16), DtypeId.BFLOAT16, 64)[0]
        back = decode_record(one, dictionary, 64, 2, DIM, DtypeId.BFLOAT16).view(BF16)
        assert relative(rows, back).max() <= 0.1
        assert (one.mixed.kinds == CODES).any()


def test_targets_are_in_the_units_of_the_rows():
    dictionary = make_dictionary(200)
    rows = np.random.default_rng(4).standard_normal((50, DIM)).astype(np.float32) * 2.0 ** np.arange(-25, 25)[:, None]
    spec = CodecSpec.parse("dict/s16/c8/e0.3").sparse
    squares = (rows.astype(np.float64) ** 2).sum(axis=1)
    told = pursue(rows, dictionary, spec, targets=squares * (spec.error / ERROR_STEPS) ** 2)
    assert np.array_equal(told.counts, pursue(rows, dictionary, spec).counts)
    assert (pursue(rows, dictionary, spec, targets=np.full(50, -1.0)).counts == 16).all()
    assert not pursue(rows, dictionary, spec, targets=squares * 1.01).counts.any()


# -- logs ----------------------------------------------------------------------------------------------------------

ROWS_TOKENS = 150


def mixed_rows(dtype, seed=0, tokens=ROWS_TOKENS, heads=HEADS):
    kinds = list(np.random.default_rng(seed).choice(KINDS, tokens * heads))
    return adversarial(kinds, make_set(2.0).dictionaries[0], dtype, seed).reshape(tokens, heads, DIM)


def write(path, x, spec, *, cuts=(), mean=2.0, **options):
    model = kv.Model.uniform(1, x.shape[1], DIM, dtype=x.dtype.name)
    settings_ = {"residual": 5, "sinks": 2, "device": SMALL, "capacity": 1 << 21, **options}
    with kv.open(path, "w", model=model, k=spec, v=spec, dictionary=make_set(mean), **settings_) as store:
        sequence = store.sequence("a")
        for first, end in pairwise([0, *cuts, len(x)]):
            sequence.append(0, x[first:end], x[first:end, ::-1])


def check(path, x, spec):
    """Every vector of a log meets the bound, in whatever way it is read."""
    bound = CodecSpec.parse(spec).sparse.error / ERROR_STEPS
    with kv.open(path) as store:
        sequence = store.sequence("a")
        assert len(sequence) == len(x)
        k, v = sequence.read(0)
        for got, was in ((k, x), (v, x[:, ::-1])):
            assert got.dtype == x.dtype
            assert relative(was, got).max() <= bound
        return k, v, store.stats().sequences[0].vectors


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("form", ["dict/s2/c8", "dict/s8/c6/ef/low2", "dict/s24/c4/ef/g128"])
@pytest.mark.parametrize("error", [0.02, 0.1, 0.3, 0.9])
def test_the_bound_holds_through_a_log(tmp_path, dtype, form, error):
    x, spec, path = mixed_rows(dtype), f"{form}/max{error}", tmp_path / "a.kvlog"
    write(path, x, spec, cuts=(7, 90))
    _, _, vectors = check(path, x, spec)
    assert vectors.codes + vectors.int4 + vectors.raw == 2 * HEADS * 128
    assert vectors.raw or dtype is np.float16
    assert verify_log(path).verdict == "clean"


@pytest.mark.parametrize("residual", [0, 5])
def test_how_rows_come_changes_nothing(tmp_path, residual):
    x, spec = mixed_rows(BF16), "dict/s6/c6/ef/max0.15"
    read = []
    for name, cuts in (("a", ()), ("b", (1, 2, 64, 65, 149)), ("c", (100,))):
        write(tmp_path / name, x, spec, cuts=cuts, residual=residual)
        read.append(check(tmp_path / name, x, spec))
    for other in read[1:]:
        assert all(
            np.array_equal(a.view(np.uint16), b.view(np.uint16)) for a, b in zip(other[:2], read[0], strict=False)
        )
        assert other[2] == read[0][2]


@pytest.mark.parametrize("journal", ["raw", "int4/token/g16"])
def test_a_second_writer_and_a_journal_keep_the_bound(tmp_path, journal):
    x, spec, path = mixed_rows(BF16, 5), "dict/s6/c6/ef/max0.15", tmp_path / "a.kvlog"
    model = kv.Model.uniform(1, HEADS, DIM)
    options = {"durability": "step", "journal": journal}
    sizes = {"residual": 0, "sinks": 0}
    with kv.open(path, "w", model=model, k=spec, v=spec, dictionary=make_set(2.0), **sizes, **options) as store:
        for n in range(5):
            store.sequence("a").append(0, x[20 * n : 20 * n + 20], x[20 * n : 20 * n + 20, ::-1])
        store.abandon()  # as a crash does
    with kv.open(path, "a", **options) as store:
        assert len(store.sequence("a")) == 100
        store.sequence("a").append(0, x[100:], x[100:, ::-1])
    check(path, x, spec)
    with kv.open(path) as store:
        index = next(iter(store.index.sequences.values()))
        steps = [e.coded.step for extents in index.maps.values() for e in extents if e.coded.step is not None]
    assert {str(step) for step in steps} == {"raw"}


def parts_of(path):
    """(extent, stream's codecs) of all records of K with a bitmap."""
    with kv.open(path) as store:
        index = next(iter(store.index.sequences.values()))
        for (layer, id_), extents in index.maps.items():
            stream = next(s for s in index.model.layers[layer].streams if s.id == id_)
            codecs = StreamCodecs(store.index.dictionaries, layer, stream, index.model.dtype_id)
            for extent in extents:
                yield store, extent, codecs


def test_records_are_split_by_heads(tmp_path):
    spec, path = "dict/s6/c6/ef/max0.1", tmp_path / "a.kvlog"
    x = mixed_rows(BF16, 6, 128, 5)
    x[:64, 0] = make_set(2.0).dictionaries[0].atoms[:1]  # a head that is all codes
    write(path, x, spec, residual=0, sinks=0, device="page=512,unit=64,block=4096")
    check(path, x, spec)
    assert verify_log(path).verdict == "clean"
    parts = [extent.coded.parts for _, extent, _ in parts_of(path)]
    assert any(len(own) > 1 for own in parts)
    assert {bool(part.bitmap) for own in parts for part in own} >= {True}


def test_every_split_of_a_record_is_that_record():
    dictionary, dtype = make_set(2.0).dictionaries[0], DtypeId.BFLOAT16
    x = mixed_rows(BF16, 7, 64, 4)
    x[:, 2] = dictionary.atoms[:1]
    spec = CodecSpec.parse("dict/s6/c6/max0.1").bound_to(dictionary.size, b"x" * 16)
    codec = BoundedSparse(spec, dictionary)
    stream = kv.Model.uniform(1, 4, DIM).layers[0].streams[0]
    record = group_records(1, 0, stream, 0, x.view(np.uint16), codec, dtype, 64)[0]
    whole = codec.recode(x.view(np.uint16), dtype)
    assert record.pieces == 4
    for cut in (1, 2, 3):
        for part in record.split(cut):
            for own in [part, *(part.split(1) if part.pieces > 1 else ())]:
                h = own.header
                first, heads, stored = (int(h[f]) for f in ("first_head", "heads", "bitmap_bytes"))
                made = BoundedSparse(spec.with_atoms(int(h["atoms"])), dictionary)
                body = np.asarray(own.body)[int(h["error_bytes"]) :]
                if stored:
                    back = made.decode_mixed(body, stored, 64, DIM, dtype, heads, wide=False)
                else:
                    assert first <= 2 < first + heads == 3
                    back = made.decode(body.reshape(heads, -1), 64, DIM, dtype)
                assert np.array_equal(back, whole[:, first : first + heads])
                errors = np.asarray(own.body)[: 2 * heads].view("<u2")
                assert np.array_equal(errors, np.asarray(record.body)[2 * first : 2 * (first + heads)].view("<u2"))


def test_what_attention_is_given(tmp_path):
    spec, path = "dict/s6/c6/ef/max0.1", tmp_path / "a.kvlog"
    write(path, mixed_rows(BF16), spec)
    seen = set()
    for store, extent, codecs in parts_of(path):
        rows = rows_of_bounded(store.log, extent, codecs)
        seen.add(rows is None)
        if rows is not None:
            whole = read_extent(store.log, extent, codecs, as_float32=False)
            assert np.array_equal(rows, whole[extent.first - extent.coded.first :][: extent.end - extent.first])
    assert seen == {True, False}


def test_every_flipped_byte_of_a_record_is_found_or_harmless(tmp_path):
    """Without its checksum: nothing but CorruptRecord, and what is decoded has the shape that was asked for."""
    dictionary, dtype = make_set(2.0).dictionaries[0], DtypeId.BFLOAT16
    x = mixed_rows(BF16, 8, 30, 2)
    codec = BoundedSparse(CodecSpec.parse("dict/s4/c6/ef/max0.1"), dictionary)
    one = codec.encode_records(x.view(np.uint16), dtype, 30)[0]
    body, own = one.mixed.join(), BoundedSparse(one.spec, dictionary)
    found = []
    for at in range(0, len(body), 3):
        bad = body.copy()
        bad[at] ^= 1 << at % 8
        try:
            assert own.decode_mixed(bad, 64, 30, DIM, dtype, 2, wide=bool(at % 2)).shape == (30, 2, DIM)
        except CorruptRecord as error:
            found.append(error.offset)
    assert len(found) > 20
    assert 0 <= min(found) <= max(found) <= len(body)


# -- wishes and figures --------------------------------------------------------------------------------------------


def test_max_error_puts_a_bound_on_what_has_none(tmp_path):
    x = mixed_rows(BF16)
    model = kv.Model.uniform(1, HEADS, DIM)
    for specs, wanted in (
        ({"k": "dict/s8", "v": "dict/s4/e0.5"}, ["k=dict/s8/c8/max0.2/g64", "v=dict/s4/c8/e0.5/g64"]),
        ({"k": "dict/s8/max0.7"}, ["k=dict/s8/c8/max0.7/g64", "v=int4/token/g64"]),
    ):
        path = tmp_path / f"{len(specs)}.kvlog"
        with kv.open(path, "w", model=model, **specs, dictionary=make_set(2.0), max_error=0.2) as store:
            store.sequence("a").append(0, x, x)
            assert list(store.stats().sequences[0].codecs) == wanted
    with pytest.raises(SpecError, match=r"max_error is 0\.2, and no stream has trained codes"):
        kv.open(tmp_path / "b", "w", model=model, max_error=0.2)
    for bad in (0, 1, 1e-9, float("nan"), "0.2", True):
        with pytest.raises(SpecError, match=r"max_error|error bound"):
            kv.open(tmp_path / "b", "w", model=model, k="dict/s8", dictionary=make_set(), max_error=bad)


def test_layers_without_a_stream_need_no_dictionary(tmp_path):
    layer = kv.Model.uniform(1, HEADS, DIM).layers[0]
    model = kv.Model((type(layer)(), type(layer)(), layer, type(layer)()))
    own = DictionarySet((make_dictionary(uses=((2, StreamId.K),)),))
    x = mixed_rows(BF16)
    with kv.open(tmp_path / "a", "w", model=model, k="dict/s8/max0.2", dictionary=own) as store:
        store.sequence("a").append(2, x, x)
    with kv.open(tmp_path / "a") as store:
        assert relative(x, store.sequence("a").read(2)[0]).max() <= 0.2


def test_info_tells_what_vectors_are_kept_as(tmp_path, capsys):
    x, spec, path = mixed_rows(BF16), "dict/s6/c6/ef/max0.1", tmp_path / "a.kvlog"
    write(path, x, spec)
    _, _, vectors = check(path, x, spec)
    assert min(vectors.codes, vectors.int4, vectors.raw) > 0
    assert 0 < vectors.mean_room <= 6
    with kv.open(path) as store:
        parts = [part for _, extent, _ in parts_of(path) for part in extent.coded.parts]
        assert store.stats().payload_bytes == sum(part.size for part in parts)
        raw = [part.size for part in parts if not part.coded]
        assert sum(raw) == 2 * (len(x) - 128) * 2 * DIM * HEADS
    print_info(gather_info(path), json=False)
    shown = capsys.readouterr().out
    assert re.search(rf"\b{vectors.codes}\s+{vectors.mean_room:.2f}\s+{vectors.int4}\s+{vectors.raw}\b", shown)
    assert "INT4" in shown


def test_counting_passes_over_damage(tmp_path):
    x, spec, path = mixed_rows(BF16), "dict/s6/c6/ef/max0.1", tmp_path / "a.kvlog"
    write(path, x, spec)
    _, _, before = check(path, x, spec)
    with kv.open(path) as store:
        extents = next(iter(next(iter(store.index.sequences.values())).maps.values()))
        place = next(part.place for extent in extents for part in extent.coded.parts if part.bitmap)
        at = store.device.file_offset(place.block, place.offset) + 128 + 64
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with kv.open(path) as store:
        after = store.stats().sequences[0].vectors
        with pytest.raises(CorruptRecord):
            store.sequence("a").read(0)
    assert after.codes + after.int4 + after.raw == before.codes + before.int4 + before.raw
    assert after.codes > before.codes
    assert verify_log(path).verdict == "damaged"


# -- the real model ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="real")
def real_fixture():
    """Rows of the real dump by (layer, stream), and dictionaries of some of them."""
    rng, rows, found = np.random.default_rng(0), {}, []
    with open_dump(REAL) as dump:
        for layer in dump.layers:
            for stream in (StreamId.K, StreamId.V):
                x = np.array(dump.rows(layer, stream, 0, dump.tokens))
                rows[layer, stream] = x
                wide = x.astype(np.float32).reshape(-1, x.shape[2])
                some = wide[rng.choice(len(wide), 256, replace=False)]
                atoms = quantize_atoms(some / np.linalg.norm(some, axis=1, keepdims=True))
                found.append(Dictionary(atoms, ((layer, stream),)))
    return rows, DictionarySet(tuple(found))


@pytest.mark.parametrize("error", [0.1, 0.3, 0.5])
def test_every_vector_of_the_real_model(tmp_path, real, error):
    rows, own = real
    path, spec = tmp_path / "a.kvlog", "dict/s24/c6/ef"
    encode_dump(REAL, path, k=spec, v=spec, max_error=error, dictionary=own, sequence="a", residual=32)
    with kv.open(path) as store:
        worst = 0.0
        for layer in sorted({n for n, _ in rows}):
            for stream, got in zip((StreamId.K, StreamId.V), store.sequence("a").read(layer), strict=True):
                worst = max(worst, float(relative(rows[layer, stream], got).max()))
        vectors = store.stats().sequences[0].vectors
    assert 0.9 * error < worst <= error
    assert vectors.codes > 256 * 3 - 32 * 6
    assert vectors.int4
    assert (vectors.raw > 0) == (error == 0.1)
    assert verify_log(path).verdict == "clean"


def test_the_command_line_takes_a_bound(tmp_path, real):
    log, path = tmp_path / "a.kvlog", tmp_path / "m.kvdict"
    write_artefact(path, Artefact(real[1], {}))
    arguments = ["encode", REAL, log, "--k", "dict/s24/c6/ef", "--dictionary", path, "--max-error", "0.25", "--quiet"]
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    shown = json.loads(CliRunner().invoke(app, ["info", str(log), "--json"]).stdout)["sequences"][0]
    assert shown["codecs"] == ["k=dict/s24/c6/ef/max0.25/g64", "v=int4/token/g64"]
    assert set(shown["vectors"]) == {"codes", "int4", "raw", "mean_room"}


def write_dump(path, rows, tokens):
    named = {f"{stream.name.lower()}.{layer}": x[:tokens] for (layer, stream), x in rows.items()}
    with create_dump(path, [(name, BF16, x.shape) for name, x in named.items()], {}) as dump:
        for name, x in named.items():
            dump.write(name, 0, x)
        dump.commit()


def test_an_encode_goes_on_where_it_was_interrupted(tmp_path, real):
    rows, own = real
    rows = {key: x for key, x in rows.items() if key[0] == 5}
    own = DictionarySet(tuple(d for d in own.dictionaries if d.uses[0][0] == 5))
    options = {"k": "dict/s24/c6/ef/max0.2", "v": "dict/s24/c6/max0.15", "dictionary": own, "sequence": "a"}
    write_dump(tmp_path / "part.safetensors", rows, 250)
    write_dump(tmp_path / "whole.safetensors", rows, 512)
    for name, dumps in (("a", ("part", "whole")), ("b", ("whole",))):
        for n, dump in enumerate(dumps):
            encode_dump(
                tmp_path / f"{dump}.safetensors", tmp_path / name, append=bool(n), resume=bool(n), residual=8, **options
            )
    logs = []
    for name in "ab":
        with kv.open(tmp_path / name) as store:
            logs.append([array.tobytes() for array in store.sequence("a").read(5)])
            assert store.stats().sequences[0].vectors.int4
    assert logs[0] == logs[1]
    other = {key: np.where(np.arange(512)[:, None, None] == 70, -x, x) for key, x in rows.items()}
    write_dump(tmp_path / "other.safetensors", other, 512)
    encode_dump(tmp_path / "part.safetensors", tmp_path / "c", residual=8, **options)
    with pytest.raises(SpecError, match="not of this dump"):
        encode_dump(tmp_path / "other.safetensors", tmp_path / "c", append=True, resume=True, residual=8, **options)


# -- golden logs ---------------------------------------------------------------------------------------------------


def test_the_golden_log_has_rows_of_all_kinds_and_split_records():
    path = ROOT / "golden" / "dictionary-max.kvlog"
    with kv.open(path) as store:
        vectors = store.stats().sequences[0].vectors
        assert min(vectors.codes, vectors.int4, vectors.raw) > 0
    assert any(len(extent.coded.parts) > 1 for _, extent, _ in parts_of(path))
