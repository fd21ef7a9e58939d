"""Attention on rows that are rebuilt from codes: keys from before rotation, and records with an error bound."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.attention.arrays import attend_arrays, score_arrays
from kvcodec.codecs.bitmap import row_sizes, unpack_kinds
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.rotation import Rotation
from kvcodec.errors import KvcodecError
from kvcodec.layout import StreamId
from kvcodec.sparse_spec import SparseCodes
from kvcodec.store.reading import load_part
from tests.attention_problems import EXTREME, NORMAL, SUBNORMAL, Kind, make_problem, run, score, solve
from tests.attention_reference import attend, relative_error
from tests.attention_whole import Atoms
from tests.caches import rows
from tests.rebuilt_twin import find_turn, rebuild_row, turn_query
from tests.test_attention import blocks

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
TOKENS = 40 if INTERPRETED else 150
DIMS = [1, 24, 40] if INTERPRETED else [1, 16, 24, 64, 72, 128, 272, 576]
BEGINS = [0, 5, 4090, 2**20 + 77, 2**40 + 1]


@st.composite
def kinds(draw, *styles, turning=False):
    terms = draw(st.integers(1, 5 if INTERPRETED else 32))
    return Kind(
        draw(st.sampled_from([4, 5, 6, 8])), style=draw(st.sampled_from(styles)), terms=terms,
        atoms=draw(st.sampled_from([1, 7, 100])), mean=draw(st.booleans()), sets=draw(st.booleans()),
        low=draw(st.sampled_from([0, terms // 3])), half=draw(st.booleans()), mixed=draw(st.booleans()),
        turning=draw(st.sampled_from([0, 1, 8, 17, 32, 64, 288])) if turning else 0,
    )  # fmt: skip


@st.composite
def problems(draw, styles=(NORMAL, NORMAL, SUBNORMAL, EXTREME)):
    tokens = draw(st.integers(1, TOKENS))
    inside = draw(st.lists(st.integers(1, tokens), max_size=2))
    sizes = np.diff(sorted({0, tokens, *inside})).tolist()
    keys = [draw(st.one_of(kinds(*styles, turning=True), st.just(Kind(16)))) for _ in sizes]
    return make_problem(
        draw(st.integers(0, 2**32 - 1)), [keys, [draw(kinds(*styles))]], [sizes, [tokens]],
        (draw(st.sampled_from(DIMS)), draw(st.sampled_from(DIMS[:5]))), kv_heads=draw(st.integers(1, 2)),
        per_head=draw(st.integers(1, 5)), width=draw(st.sampled_from([16, 8])), latent=draw(st.booleans()),
        spread=draw(st.sampled_from([0.1, 2.0, 5.0])), begin=draw(st.sampled_from(BEGINS)),
    )  # fmt: skip


@settings(max_examples=8 if INTERPRETED else 20)
@given(problems())
def test_any_attention_on_rebuilt_rows_is_its_twins_bit_by_bit(problem):
    assert run(problem)[0] == solve(problem)


@settings(max_examples=4 if INTERPRETED else 8)
@given(problems())
def test_logits_alone_are_their_twins_bit_by_bit(problem):
    found, wanted = score(problem)
    assert found == wanted


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_tiers_of_rebuilt_rows_are_their_twins_bit_by_bit(share):
    kind = Kind(6, terms=5, atoms=40, mean=True, mixed=True)
    kinds = [[kind._replace(turning=5), Kind(16)], [kind, kind._replace(bits=8, terms=3)]]
    problem = make_problem(1, kinds, [[90, 20], [70, 40]], (24, 16), per_head=2, begin=4000)
    assert run(problem, tiers=(2, share))[0] == solve(problem, (2, share))


def test_threads_change_nothing():
    kind = Kind(6, terms=3, atoms=40, mean=True, mixed=True)
    tokens = 100 if INTERPRETED else 4200  # two chunks
    streams = [[kind._replace(turning=8)], [kind]]
    problem = make_problem(1, streams, [[tokens], [tokens]], (16, 16), kv_heads=2, per_head=2)
    states = run(problem)[0]
    assert states == run(problem, threads=2)[0] == run(problem, threads=64)[0]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_turns_are_their_twins(step, position):
    (found,) = Rotation(np.array([step], np.uint64)).turns(np.array([position]))
    assert tuple(found[:, 0].tolist()) == find_turn(step * position % 2**64)
    cosine, sine = np.cos(turn := 2 * np.pi * (step * position % 2**64) / 2**64), np.sin(turn)
    assert np.abs(found[:, 0] / 2.0**30 - (cosine, sine)).max() < 2**-27


def test_the_documents_python_is_the_twins():
    own, rng = blocks()["rebuild"], np.random.default_rng(0)
    for _ in range(200):
        atoms, codes = rng.integers(-128, 128, (3, 16)), rng.integers(-32, 32, 3)
        mean, power = rng.integers(-(2**22), 2**22, 16), int(rng.integers(-60, 20))
        scale, mean = int(rng.integers(0, 0x7F80)), mean if rng.random() < 0.7 else None
        found = own((codes @ atoms).tolist(), scale, None if mean is None else mean.tolist(), power, 0)
        assert (found[0], found[1] + 141) == rebuild_row([0, 1, 2], codes, scale, Atoms(atoms, mean, power), (), 0)


def test_a_query_keeps_its_length():
    steps = [2**64 // 7, 2**60 // 3]
    turned = turn_query([1 << 22, 5, -(1 << 21), 3, 9], steps, 2**30 + 64)
    assert np.hypot(turned[0], turned[2]) == pytest.approx(np.hypot(1 << 22, 1 << 21), rel=1e-6)
    assert turned[4] == 9


# -- against float64 over the decoded rows ---------------------------------------------------------------------------


def learn(x, size, use, rotation=None, *, mean=True):
    """A dictionary of some rows (tokens, heads, dim), turned back if they are keys from before rotation."""
    before = np.asarray(x, np.float32) if rotation is None else rotation.undo(x, np.arange(len(x)))
    flat = before.reshape(-1, x.shape[-1])
    middle = flat.mean(axis=0) if mean else np.zeros(x.shape[-1], np.float32)
    chosen = flat[np.linspace(0, len(flat) - 1, size).astype(int)] - middle
    return Dictionary(quantize_atoms(chosen / np.linalg.norm(chosen, axis=1, keepdims=True)), (use,), middle, rotation)


@pytest.mark.skipif(INTERPRETED, reason="pursuit takes too long")
@pytest.mark.parametrize(
    ("dim", "pairs", "spec"), [(128, 64, "dict/s8/c6/ef"), (80, 20, "dict/s4/c8"), (16, 8, "dict/s3/c4")]
)
def test_arrays(dim, pairs, spec):
    x = rows(0, "k", 200, dim=dim)
    own = learn(x, 60, (0, StreamId.K), Rotation.of_base(10_000.0, 2 * pairs))
    ek, ev = kv.encode_array(x, spec, stream="k", dictionary=own), kv.encode_array(rows(0, "v", 200), "raw", stream="v")
    q = np.random.default_rng(1).standard_normal((6, dim)) * 2
    k, v = (kv.decode_array(e, dtype=np.float32) for e in (ek, ev))
    found, state = attend_arrays(q, ek, ev, return_state=True)
    assert relative_error(found, attend(q, k, v)[0]) <= 1e-3
    assert state.bytes_read == ek.nbytes + ev.nbytes - 2 * 2 * 48  # scales of whole tiles behind the end
    logits = np.einsum("hrd,thd->hrt", q.reshape(2, 3, dim), k).reshape(6, 200) / np.sqrt(dim)
    assert relative_error(score_arrays(q, ek), logits) <= 1e-3


MODEL = kv.Model((kv.Layer.kv(2, 24), kv.Layer.mla(32, 16)), "bfloat16")
SHAPES = (((2, 24), (2, 24)), ((1, 32), (1, 16)))
TURNED = Rotation.of_base(100.0, 16)


def make_rows(layer, first, end):
    return tuple(rows(layer, s, range(first, end), *shape) for s, shape in zip("kv", SHAPES[layer], strict=True))


def make_set():
    uses = (0, StreamId.K), (0, StreamId.V), (1, StreamId.C), (1, StreamId.KR)
    return DictionarySet(
        tuple(
            learn(make_rows(layer, 0, 300)[n % 2], 90, (layer, stream), TURNED if n in (0, 3) else None, mean=n != 1)
            for n, (layer, stream) in enumerate(uses)
        )
    )


def put(sequence, first, end):
    sequence.append_layers({layer: make_rows(layer, first, end) for layer in range(2)})


def check(sequence, **asked):
    """Attention of both layers against float64 over what is read; states."""
    states = []
    for layer, dim in enumerate((24, 48)):
        q = np.random.default_rng(5).standard_normal((4, dim))
        found, state = sequence.attend(layer, q, scale=0.3, return_state=True, **asked)
        end = len(sequence)
        one, two = sequence.read(layer, asked.get("tokens", slice(end - state.tokens, end)), dtype=np.float32)
        k, v = (one, two) if layer == 0 else (np.concatenate([one, two], axis=2), one)
        assert len(k) == state.tokens
        assert relative_error(found, attend(q, k, v, 0.3)[0]) <= 1e-3
        states.append(state)
    return states


@pytest.mark.skipif(INTERPRETED, reason="pursuit takes too long")
@pytest.mark.parametrize("spec", ["dict/s4/c6/ef", "dict/s5/max0.6", "dict/s6/c6/ef/max0.5"])
@pytest.mark.parametrize("residual", [0, 20])
def test_stores(tmp_path, spec, residual):
    path, options = (
        tmp_path / "a",
        dict.fromkeys(("k", "v", "c", "kr"), spec) | {"dictionary": make_set(), "residual": residual, "sinks": 3},
    )
    with kv.open(path, "w", model=MODEL, durability="step", **options) as store:
        put(store.sequence("a"), 0, 150)
        check(store.sequence("a"))
        put(store.sequence("a"), 150, 170)
        check(store.sequence("a"))
    with kv.open(path, "a") as store:
        put(store.sequence("a"), 170, 230)
        check(store.sequence("a"))
    for threads in (1, 3):
        with kv.open(path, threads=threads) as store:
            sequence = store.sequence("a")
            whole = check(sequence)
            parts = [check(sequence, tokens=slice(*span)) for span in ((0, 67), (67, 230))]
            assert check(sequence, window=77)[0].tokens == 77
            for layer in range(2):
                merged = parts[0][layer].merge(parts[1][layer])
                assert relative_error(merged.output(), whole[layer].output()) <= 1e-3
                assert parts[0][layer].bytes_read < whole[layer].bytes_read
            if "ef" not in spec:
                q = np.ones((4, 24))
                assert np.array_equal(sequence.attend(0, q, tiers=(2, 1.0)), sequence.attend(0, q))
                low = sequence.attend(0, q, tiers=(2, 0.0), return_state=True)[1]
                assert low.bytes_read < whole[0].bytes_read


# -- records some of whose rows are kept otherwise ---------------------------------------------------------------------

DIM = 24
PLAIN = kv.Model((kv.Layer.kv(4, DIM),))


def make_mixed(tokens, stream):
    """(dictionary, rows): some rows are atoms, some noise, some both, and some of a size that INT4 errs too much by."""
    rng = np.random.default_rng(int(stream))
    own = Dictionary(quantize_atoms(rng.standard_normal((40, DIM))), ((0, stream),))
    x = own.atoms[rng.integers(0, 40, (tokens, 4))] * rng.uniform(0.01, 0.02, (tokens, 4, 1))
    kind = rng.integers(0, 4, (tokens, 4, 1))
    spiky = rng.standard_normal(x.shape) * np.where(np.arange(DIM) % 16 == 0, 100, 1)
    x = np.where(kind == 0, rng.standard_normal(x.shape), np.where(kind == 1, spiky, x))
    return own, x.astype(np.float32)


def write_mixed(path, tokens, spec="dict/s4/c6/ef/max0.05", **options):
    dictionaries, both = zip(*(make_mixed(tokens, stream) for stream in (StreamId.K, StreamId.V)), strict=True)
    own, sizes = DictionarySet(dictionaries), {"residual": 0, "sinks": 0}
    with kv.open(path, "w", model=PLAIN, k=spec, v=spec, dictionary=own, **sizes, **options) as store:
        store.sequence("a").append(0, *both)


def attend_mixed(store, **asked):
    q = np.random.default_rng(5).standard_normal((8, DIM))
    found, state = store.sequence("a").attend(0, q, scale=0.02, return_state=True, **asked)
    k, v = store.sequence("a").read(0, asked.get("tokens", slice(None)), dtype=np.float32)
    assert relative_error(found, attend(q, k, v, 0.02)[0]) <= 1e-3
    return state


def mixed_records(store):
    """(extent, part, kinds, byte of the file) of records of K with a bitmap."""
    index = next(iter(store.index.sequences.values()))
    for extent in index.maps[0, StreamId.K]:
        for part in extent.coded.parts:
            header, body, at = load_part(store.log, extent.coded, part)
            if part.bitmap:
                yield (
                    extent,
                    int(header["atoms"]),
                    unpack_kinds(body[: part.bitmap], part.heads, extent.coded.tokens),
                    at,
                )


@pytest.mark.skipif(INTERPRETED, reason="pursuit takes too long")
def test_all_kinds_of_rows_in_one_strip(tmp_path):
    write_mixed(tmp_path / "a", 150)
    with kv.open(tmp_path / "a") as store:
        records = list(mixed_records(store))
        assert {0, 1, 2} == set(np.unique(records[0][2][:, :64]).tolist())
        whole = attend_mixed(store)
        some = attend_mixed(store, tokens=slice(70, 90))
        (_, atoms, kinds, _) = records[1]
        inside = kinds[:, 6:26]
        sizes = row_sizes(DIM)[inside].sum()
        spec = SparseCodes.parse(["s4", "c6", "ef"]).bound_to(40, b"").with_atoms(atoms)
        assert some.bytes_read < whole.bytes_read
        keys_alone = 4 * (64 * spec.code_bytes + 2 * 32) + sizes
        assert keys_alone < some.bytes_read < 3 * keys_alone
        sequence = store.sequence("a")
        sequence.attend(0, np.ones((4, DIM)))
        copies = [extent for own in sequence._places.values() for extent, _ in own._copied]
        assert all(extent.coded.step is not None for extent in copies)  # all others are read where they lie


@pytest.mark.skipif(INTERPRETED, reason="pursuit takes too long")
def test_what_changes_under_a_reader_cannot_lead_it_astray(tmp_path):
    path, rng = tmp_path / "a", np.random.default_rng(0)
    write_mixed(path, 130)
    q = np.ones((4, DIM))
    with kv.open(path) as store:
        before = store.sequence("a").attend(0, q)
        records = list(mixed_records(store))
        with path.open("r+b") as file:
            for _, _, kinds, at in records:
                file.seek(at)
                file.write(rng.bytes(-(-kinds.size // 256) * 64))
        assert np.array_equal(store.sequence("a").attend(0, q), before)
        with path.open("r+b") as file:  # now the rest of the file too
            file.seek(records[0][3])
            file.write(rng.bytes(path.stat().st_size - records[0][3] if path.stat().st_size < 1 << 20 else 20_000))
        store.sequence("a").attend(0, q)
    with pytest.raises(KvcodecError), kv.open(path) as store:
        store.sequence("a").attend(0, q)


@pytest.mark.skipif(INTERPRETED, reason="pursuit takes too long")
def test_records_split_by_heads(tmp_path):
    write_mixed(tmp_path / "a", 130, device="page=512,unit=64,block=4096")
    with kv.open(tmp_path / "a") as store:
        assert any(len(e.coded.parts) > 1 for e in next(iter(store.index.sequences.values())).maps[0, StreamId.K])
        attend_mixed(store)
        attend_mixed(store, tokens=slice(31, 100))


@pytest.mark.skipif(INTERPRETED, reason="pursuit takes too long")
def test_records_without_other_rows_are_served_by_tables(tmp_path):
    own = DictionarySet(tuple(learn(rows(0, s, 64, 4, DIM), 64, (0, StreamId[s.upper()]), mean=False) for s in "kv"))
    with kv.open(
        tmp_path / "a", "w", model=PLAIN, k="dict/s2/max0.9", v="dict/s2/max0.9", dictionary=own, residual=0, sinks=0
    ) as store:
        store.sequence("a").append(0, *(own.dictionaries[0].atoms[:64, None].repeat(4, 1).astype(np.float32),) * 2)
        assert not list(mixed_records(store))
        state = attend_mixed(store)
    assert state.tokens == 64
