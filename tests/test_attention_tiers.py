"""Attention in two tiers: against naive twins bit by bit, against float64 over mixed rows, and what is read for it."""

from __future__ import annotations

import math
import os
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.attention.arrays import attend_arrays, prepare_arrays
from kvcodec.attention.columns import PLACE, START, place_column
from kvcodec.attention.strips import sparse_form
from kvcodec.attention.tiers import _choose_blocks, take_tiers
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.planes import take_rows, unpack_rows
from kvcodec.codecs.sparse import SparseRows
from kvcodec.errors import SpecError
from kvcodec.layout import StreamId
from kvcodec.sparse_spec import SparseCodes
from tests.attention_problems import NORMAL, SUBNORMAL, Kind, choose_top, make_problem, run, solve
from tests.attention_reference import attend, relative_error
from tests.caches import rows
from tests.test_attention import blocks
from tests.test_attention_dictionary import MODEL, encode, learn, make_set, other_kinds, put

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
TOKENS = 60 if INTERPRETED else 300
SLOW = pytest.mark.skipif(INTERPRETED, reason="pursuit takes too long")
SHARES = [0, 0.05, 0.1, 0.3, 0.5, 1]


# -- bit by bit ------------------------------------------------------------------------------------------------------


@st.composite
def problems(draw):
    """(problem, low)"""
    low, tokens, latent = draw(st.integers(1, 5)), draw(st.integers(1, TOKENS)), draw(st.booleans())
    terms = st.integers(1, 8)
    sparse = st.builds(
        lambda bits, n, mean, sets: Kind(bits, terms=n, atoms=70, mean=mean, sets=sets, low=low if n > low else 0),
        st.sampled_from([4, 6, 8]), terms, st.booleans(), st.booleans(),
    )  # fmt: skip
    kinds = st.one_of(sparse, sparse, sparse, other_kinds(NORMAL, SUBNORMAL))
    sizes = []
    for _ in range(2):
        inside = draw(st.lists(st.integers(1, tokens), max_size=2))
        sizes.append(np.diff(sorted({0, tokens, *inside})).tolist())
    problem = make_problem(
        draw(st.integers(0, 2**32 - 1)), [[draw(kinds) for _ in own] for own in sizes], sizes, (16, 24),
        kv_heads=draw(st.integers(1, 2)), per_head=draw(st.sampled_from([1, 3, 5])),
        width=draw(st.sampled_from([16, 8])), latent=latent,
    )  # fmt: skip
    return problem, low


@settings(max_examples=8 if INTERPRETED else 30)
@given(problems(), st.sampled_from(SHARES))
def test_any_attention_in_tiers_is_its_twins_bit_by_bit(drawn, share):
    problem, low = drawn
    assert run(problem, tiers=(low, share))[0] == solve(problem, (low, share))


@settings(max_examples=5 if INTERPRETED else 20)
@given(problems())
def test_all_blocks_or_all_atoms_are_plain_attention(drawn):
    problem, low = drawn
    whole, state = run(problem)
    for tiers in ((low, 1), (8, 0)):
        again, other = run(problem, tiers=tiers)
        assert again == whole
        assert (other.tokens, other.bytes_read) == (state.tokens, state.bytes_read)


def coded_problem(tokens, seed=1, **options):
    kind = Kind(6, terms=6, atoms=70, mean=True)
    return make_problem(seed, [[kind], [kind]], [[tokens], [tokens]], (16, 16), **options)


def test_what_is_chosen_is_between_all_and_none():
    problem = coded_problem(160, kv_heads=2, per_head=2)
    counts = [len(choose_top(problem, 2, share)) for share in (0, 0.3, 0.6, 1)]
    assert counts[0] == 0 < counts[1] < counts[2] < counts[3] == 160
    results = [run(problem, tiers=(2, share))[0] for share in (0, 0.3, 0.6, 1)]
    assert all(a != b for n, a in enumerate(results) for b in results[:n])


def test_threads_change_nothing():
    problem = coded_problem(150 if INTERPRETED else 5000, kv_heads=2, per_head=3)
    wanted = run(problem, tiers=(2, 0.1))[0]
    assert wanted == run(problem, threads=2, tiers=(2, 0.1))[0] == run(problem, threads=64, tiers=(2, 0.1))[0]


@pytest.mark.parametrize("share", ["0", "0.1", "0.5", "1"])
def test_the_documents_choice_is_that_of_blocks(share):
    rng, count, heads = np.random.default_rng(0), 60, 3
    owners = np.sort(rng.integers(0, 40, count))  # blocks of some strips, of records of 4 blocks
    strips = np.zeros((count, place_column(1)), np.int64)
    strips[:, place_column(0) + PLACE], strips[:, place_column(0) + START] = owners // 4, owners % 4 * 64 + range(count)
    peaks = rng.integers(-5, 5, (heads, count)).astype(np.int32)  # with equals
    tiered = rng.random(count) < 0.8
    top = _choose_blocks(strips, peaks, tiered, Fraction(share))
    own = np.unique(owners[tiered])
    of = [peaks[:, tiered & (owners == n)].max(axis=1).tolist() for n in own]
    wanted = own[blocks()["choose_blocks"](of, peaks.max(axis=1).tolist(), Fraction(share))]
    assert top.tolist() == (~tiered | np.isin(owners, wanted)).tolist()


def test_shares_are_the_decimal_numbers_that_they_look_like():
    peaks, strips = np.zeros((1, 30), np.int32), np.zeros((30, place_column(1)), np.int64)
    strips[:, place_column(0) + START] = 64 * np.arange(30)
    share = take_tiers((2, 0.1), []).share  # 0.1 * 30 is more than 3 as floats have it
    assert _choose_blocks(strips, peaks, np.ones(30, bool), share).tolist() == 3 * [True] + 27 * [False]


# -- arrays: float64 over mixed rows, and bytes -----------------------------------------------------------------------


def first_atoms(encoded, low):
    """Rows of the first `low` atoms, float32 (tokens, heads, dim)."""
    codec = SparseRows(encoded.spec, encoded.dictionary)
    parts = []
    for body, tokens in ((encoded.full, encoded.spec.group), (encoded.tail, encoded.tokens % encoded.spec.group)):
        if len(body):
            coded = take_rows(body, tokens, codec.codes)
            codes = unpack_rows(coded.reshape(-1, coded.shape[-1]), codec.codes)
            codes.coefficients[:, low:] = 0
            parts.append(codec.rebuild(codes).reshape(len(coded), encoded.heads, encoded.dim))
    return np.concatenate(parts)


def like_blocks(q, low_keys, share, coded):
    """Tokens of the share of blocks that query heads like best. coded: range of tokens that have tiers."""
    heads = low_keys.shape[1]
    logits = np.stack([low_keys[:, h * heads // len(q)] @ q[h] for h in range(len(q))]) * q.shape[1] ** -0.5
    liked = (logits - logits.max(axis=1, keepdims=True)).max(axis=0)
    blocks_ = [range(t, min(t + 64, coded.stop)) for t in range(coded.start, coded.stop, 64)]
    order = sorted(blocks_, key=lambda block: -liked[block.start : block.stop].max())
    return np.array([t for block in order[: math.ceil(share * len(blocks_))] for t in block], int)


def mix(full, low, top, coded):
    out = full.astype(np.float64)
    out[coded.start : coded.stop] = low[coded.start : coded.stop]
    out[top] = full[top]
    return out


def arrays(spec, tokens=300):
    rng = np.random.default_rng(3)
    k, v = (rng.standard_normal((tokens, 2, 16)).astype(ml_dtypes.bfloat16) for _ in range(2))
    return [encode(x, spec, s, learn(x, 100)) for x, s in ((k, "k"), (v, "v"))]


def q_of(heads=4, dim=16, seed=5):
    return np.random.default_rng(seed).standard_normal((heads, dim)) * 2


@SLOW
@pytest.mark.parametrize(("spec", "first", "whole"), [("dict/s8/c6", 6 + 3, 16 + 6), ("dict/s8/c5/ef/low3", 3 + 2, 10)])
@pytest.mark.parametrize("share", [0, 0.2, 1])
def test_arrays_are_float64_over_mixed_rows_and_count_what_is_read(spec, first, whole, share):
    k, v = arrays(spec)
    if "ef" in spec:  # 3 of 100 atoms: 3 * 5 + 3 + 3 bits; 5 of them: 5 * 4 + 5 + 6
        assert (k.spec.sparse.first_bytes(3), k.spec.sparse.index_bytes) == (3, 7)
        whole, first = 3 + 4 + 5, 3 + 2
    q = q_of()
    y, state = attend_arrays(q, k, v, tiers=(3, share), return_state=True)
    decoded = [kv.decode_array(x, dtype=np.float32) for x in (k, v)]
    low, everything = [first_atoms(x, 3) for x in (k, v)], range(300)
    top = like_blocks(q, low[0], share, everything)
    mixed = [mix(x, few, top, everything) for x, few in zip(decoded, low, strict=True)]
    assert relative_error(y, attend(q, *mixed)[0]) <= 1e-3
    assert state.tokens == 300
    assert state.bytes_read == 2 * 2 * (64 * (5 * first + math.ceil(5 * share) * (whole - first)) + 2 * 304)


@SLOW
def test_grouped_values_are_read_in_full_and_grouped_keys_are_not_tiered():
    k, v = arrays("dict/s8/c6")
    own = kv.encode_array(kv.decode_array(v, dtype=np.float32), "int4/token/g16", stream="v")
    q, plain = q_of(), attend_arrays(q_of(), k, own, return_state=True)[1]
    _, state = attend_arrays(q, k, own, tiers=(3, 0), return_state=True)
    assert plain.bytes_read - state.bytes_read == 2 * 5 * 64 * (22 - 9)  # of the keys
    rows_ = kv.encode_array(kv.decode_array(k, dtype=np.float32), "int4/channel/g64", stream="k")
    assert np.array_equal(attend_arrays(q, rows_, v, tiers=(3, 0)), attend_arrays(q, rows_, v))


@SLOW
@pytest.mark.parametrize(
    ("tiers", "words"),
    [
        ((0, 0.1), "the first 0 atoms, want 1 to 8"),
        ((9, 0.1), "the first 9 atoms, want 1 to 8"),
        ((3, -0.1), "a share of -0.1, want 0 to 1"),
        ((3, 1.5), "a share of 1.5, want 0 to 1"),
        ((3, math.nan), "a share of nan"),
        ((3,), "want .atoms, share"),
        ((3, 0.1, 4), "want .atoms, share"),
        ((3.0, 0.1), "want .atoms, share"),
        (3, "want .atoms, share"),
        ("ab", "want .atoms, share"),
        ((2, 0.1), "cannot be read for their first 2 atoms: want low2 in the spec, or u16"),
    ],
)
def test_what_is_refused(tiers, words):
    k, v = arrays("dict/s8/c5/ef/low3", 70)
    with pytest.raises(SpecError, match=words):
        prepare_arrays(q_of(), k, v, tiers=tiers)


def test_no_plane_is_asked_for_that_is_not_read(monkeypatch):
    from kvcodec.kernels import lookup

    class Atoms:
        size, address = 1024, 0

    asked = []
    monkeypatch.setattr(lookup, "prefetch", asked.append)
    ask = getattr(lookup.ask_for_codes, "py_func", lookup.ask_for_codes)
    whole = sparse_form(SparseCodes(16, 6, size=1024), 64, Atoms)
    for form, indices, coefficients in ((whole, 32, 12), (whole._replace(terms=3, read=6), 6, 3)):
        asked.clear()
        ask(form, 6400)
        planes = [*range(indices), *range(32, 32 + coefficients)]
        assert asked == [6400 + 64 * plane for plane in planes]
        assert form.bytes_read(64, 128) == 64 * len(planes) + 128


# -- stores ----------------------------------------------------------------------------------------------------------

SINKS, WINDOW = 3, 20
SPECS = [("dict/s8/c6", "dict/s6/c8"), ("dict/s8/c6/ef/low3", "dict/s7/ef/low3")]


def make_log(path, specs, tokens=600, **options):
    own, given = make_set(), {"residual": WINDOW, "sinks": SINKS, **options}
    with kv.open(path, "w", model=MODEL, dictionary=own, k=specs[0], v=specs[1], **given) as store:
        for name in "ab":
            put(store, 0, tokens, name)
        store.sync()
        states = store.attend(1, [store.sequence(n) for n in "ab"], batch(), tiers=(3, 0.1), return_state=True)
        assert all(state.tokens == tokens for state in states)
    return own


def batch():
    return np.stack([q_of(seed=n) for n in range(2)])


@SLOW
@pytest.mark.parametrize("specs", SPECS, ids=str)
def test_stores(tmp_path, specs):
    make_log(tmp_path / "a", specs)
    with kv.open(tmp_path / "a") as store:
        sequence, q = store.sequence("a"), q_of()
        coded = range(SINKS, SINKS + (600 - SINKS - WINDOW) // 64 * 64)
        full = [x.astype(np.float64) for x in sequence.read(1, dtype=np.float32)]
        own = [store.index.dictionaries.find(sequence.sparse_codes(1)[0].basis).find(1, StreamId(n)) for n in (1, 2)]
        low = []
        for x, dictionary, name, spec in zip(full, own, "kv", specs, strict=True):
            few = first_atoms(encode(rows(1, name, 600), spec, name, dictionary), 3)
            low.append(x.copy())
            low[-1][coded.start : coded.stop] = few[coded.start : coded.stop]
        for share in (0, 0.1, 0.4):
            y, state = sequence.attend(1, q, tiers=(3, share), return_state=True)
            top = like_blocks(q, low[0], share, coded)
            assert (
                relative_error(y, attend(q, *(mix(f, w, top, coded) for f, w in zip(full, low, strict=True)))[0]) < 1e-3
            )
            assert state.tokens == 600
        plain = sequence.attend(1, q, return_state=True)[1]
        whole = sequence.attend(1, q, tiers=(3, 1), return_state=True)[1]
        assert (whole.outputs == plain.outputs).all()
        assert (whole.bytes_read, whole.tokens) == (plain.bytes_read, plain.tokens)


@SLOW
def test_batches_threads_windows_and_chosen_tokens(tmp_path):
    path = tmp_path / "a"
    make_log(path, SPECS[0])
    asked = [{}, {"window": 333}, {"tokens": slice(50, 500)}, {"tokens": [5, 100, 101, 350, 590]}]
    found = []
    for threads in (1, 3):
        with kv.open(path, threads=threads) as store:
            sequences = [store.sequence(name) for name in "ab"]
            for options in asked:
                tiers = {"tiers": (3, 0.2), **options}
                states = store.attend(1, sequences, batch(), return_state=True, **tiers)
                for state, sequence, q in zip(states, sequences, batch(), strict=True):
                    _, alone = sequence.attend(1, q, return_state=True, **tiers)
                    assert (alone.outputs == state.outputs).all()
                    assert (alone.bytes_read, alone.tokens) == (state.bytes_read, state.tokens)
                    plain = sequence.attend(1, q, return_state=True, **options)[1]
                    assert alone.tokens == plain.tokens
                    assert alone.bytes_read < plain.bytes_read
                found.append([state.outputs.tolist() for state in states])
    assert found[: len(asked)] == found[len(asked) :]


@SLOW
def test_copies_of_records_in_memory_are_read_in_full(tmp_path):
    model = kv.Model((kv.Layer.kv(16, 16),))
    own = DictionarySet((learn(rows(0, "k", 100), 40, 0, StreamId.K), learn(rows(0, "v", 100), 40, 0, StreamId.V)))
    geometry = kv.Geometry.parse("page=512,unit=64,block=4096")  # heads of a record lie in several places
    options = {"k": "dict/s8", "v": "dict/s8", "dictionary": own, "residual": 0, "device": geometry}
    with kv.open(tmp_path / "a", "w", model=model, **options) as store:
        store.sequence("a").append(0, *(rows(0, s, 130, heads=16) for s in "kv"))
        store.sync()
        q = q_of(32)
        whole, tiered = (store.sequence("a").attend(0, q, tiers=t) for t in (None, (2, 0)))
        assert np.array_equal(whole, tiered)


@SLOW
def test_a_store_refuses_sets_without_the_tier(tmp_path):
    path, options = tmp_path / "a", {"k": "dict/s8/ef", "v": "dict/s8", "dictionary": make_set()}
    with kv.open(path, "w", model=MODEL, **options) as store:
        put(store, 0, 10)
        with pytest.raises(SpecError, match="want low3 in the spec, or u16"):
            store.sequence("a").attend(0, q_of(), tiers=(3, 0.1))
        assert np.isfinite(store.sequence("a").attend(0, q_of(), tiers=(8, 0.1))).all()


@SLOW
def test_latent_layers(tmp_path):
    c, kr = (rows(0, "k", 300, heads=1, dim=dim, salt=dim) for dim in (32, 16))
    own = DictionarySet((learn(c, 90, 0, StreamId.C),))
    options = {"c": "dict/s8/c6", "kr": "raw", "dictionary": own, "residual": 0, "sinks": 0}
    with kv.open(tmp_path / "a", "w", model=kv.Model((kv.Layer.mla(32, 16),)), **options) as store:
        store.sequence("a").append(0, c, kr)
    with kv.open(tmp_path / "a") as store:
        sequence, q = store.sequence("a"), q_of(dim=48)
        full, key = (x.astype(np.float64) for x in sequence.read(0, dtype=np.float32))
        few = first_atoms(encode(c, "dict/s8/c6", "c", own.dictionaries[0]), 3)
        coded, wide = range(256), [np.concatenate([x[:, 0], key[:, 0]], axis=1)[:, None] for x in (full, few)]
        low_keys = mix(wide[0], wide[1], [], coded)
        for share in (0, 0.1, 0.3):
            y, state = sequence.attend(0, q, scale=0.1, tiers=(3, share), return_state=True)
            top = like_blocks(q * 0.1 * 48**0.5, low_keys, share, coded)
            mixed = mix(full, few, top, coded), mix(wide[0], wide[1], top, coded)
            assert relative_error(y, attend(q, mixed[1], mixed[0], 0.1)[0]) <= 1e-3
            copied, raw = 64 * 22 + 2 * 48, 300 * 2 * 16  # c of 44 rows that fill no record; kr
            assert state.bytes_read == 64 * (4 * 9 + math.ceil(4 * share) * 13) + 2 * 256 + copied + raw
