"""Attention over the caches of a store, wherever the tokens lie; tests/test_attention_refused.py has what is not."""

from __future__ import annotations

import threading
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import kvcodec as kv
from kvcodec.dumps import open_dump
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import StreamId
from tests.attention_reference import attend, relative_error, worst_error
from tests.caches import SMALL, TINY, rows
from tests.test_attention import GEMMA, LAYERS

ERROR = 5e-4
RAW = {"k": "raw", "v": "raw"}
COARSE = kv.Geometry.parse("page=512,unit=64,block=4096")  # records of many heads are split


def queries(heads=4, dim=16, seed=0, n=None):
    shape = (heads, dim) if n is None else (n, heads, dim)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make(path, *, model=None, device=SMALL, **options):
    model = model or kv.Model.uniform(layers=1, kv_heads=2, head_dim=16)
    return kv.open(path, "w", model=model, device=device, **options)


def put(store, first, end, name="a", layer=0, salt=0):
    layout = store.model.layers[layer].streams
    arrays = [
        rows(layer, "kv"[n], range(first, end), heads=s.heads, dim=s.dim, salt=salt) for n, s in enumerate(layout)
    ]
    store.sequence(name).append(layer, *arrays)


def check(sequence, layer=0, q=None, tokens=None, **options):
    """Attention is that of the rows that `read` gives; and its state."""
    streams = sequence.layer(layer).streams
    q = queries(2 * streams[0].heads, streams[0].dim) if q is None else q
    y, state = sequence.attend(layer, q, tokens=tokens, return_state=True, **options)
    k, v = sequence.read(layer, tokens, dtype=np.float32)
    assert state.tokens == len(k)
    assert relative_error(y, attend(q, k, v, options.get("scale"))[0]) <= ERROR
    return y, state


# -- wherever the tokens lie -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"residual": 0, "sinks": 0},
        {"residual": 0},
        {"residual": 32, "sinks": 20},
        {"residual": {"k": 128, "v": 32}, "sinks": {"k": 4, "v": 0}},
        {"k": "int8/token/g16", "v": "int2/channel/g128/sym", "residual": 16},
        {"k": "int4/channel/g96", "v": "int8/token/g48", "residual": 40, "sinks": 3},
        RAW,
        {"durability": "step", "residual": 32},
        {"durability": "step", "journal": "int4/token/g16", "residual": 32, "k": "int4/token/g16"},
        {"device": TINY, "residual": 8},
        {"device": COARSE, "residual": 8, **RAW},
        {"device": "nor", "residual": 8},
    ],
    ids=lambda options: " ".join(map(str, options.values())) or "default",
)
def test_a_writer_and_a_reader_at_any_length(tmp_path, options):
    path, first = tmp_path / "c", 0
    with make(path, **options) as store:
        for end in (1, 5, 63, 70, 200, 201, 390):
            put(store, first, end)
            first = end
            y, state = check(store.sequence("a"))
            check(store.sequence("a"), tokens=slice(end // 3, None))
            if end in (70, 390):
                store.sync()
                assert np.array_equal(check(store.sequence("a"))[0], y)
                with kv.open(path) as reader:
                    again, other = check(reader.sequence("a"))
                    assert other.tokens == state.tokens
                    if "journal" not in options:  # which rounds rows that the writer still has whole
                        assert relative_error(again, y) <= 1e-4
    with kv.open(path, "a") as store:  # open rows taken up
        check(store.sequence("a"))
        put(store, 390, 420)
        check(store.sequence("a"))
        assert len(store.sequence("a")) == 420


@pytest.mark.parametrize("dim", [1, 72, 80, 192, 576])
@pytest.mark.parametrize(
    "options", [{"residual": 20}, RAW, {"durability": "step", "residual": 20}], ids=["coded", "raw", "step"]
)
def test_head_dims(tmp_path, dim, options):
    with make(tmp_path / "c", model=kv.Model((kv.Layer.kv(2, dim, v_head_dim=40),)), **options) as store:
        put(store, 0, 150)
        check(store.sequence("a"))
    with kv.open(tmp_path / "c") as store:
        check(store.sequence("a"))


def test_heads_that_were_split_over_records(tmp_path):
    model = kv.Model.uniform(layers=1, kv_heads=32, head_dim=128)
    with make(tmp_path / "c", model=model, device="nor", residual=0, sinks=0) as store:
        put(store, 0, 192)
        sequence = store.sequence("a")
        extents = sequence._index.maps[0, StreamId.K].covering(0, 192)
        assert any(len(extent.coded.parts) > 1 for extent in extents)
        check(sequence)
    with kv.open(tmp_path / "c") as store:
        check(store.sequence("a"), tokens=slice(70, 130))


def test_float16_caches(tmp_path):
    model = kv.Model.uniform(layers=1, kv_heads=2, head_dim=32, dtype="float16")
    with make(tmp_path / "c", model=model, residual=50) as store:
        k, v = (rows(0, s, 300, dim=32, dtype=np.float16) * np.float16(0.01) for s in "kv")
        store.sequence("a").append(0, k, v)
        check(store.sequence("a"), q=100 * queries(4, 32))


def test_a_sliding_window_and_a_window_that_was_asked_for(tmp_path):
    model = kv.Model((kv.Layer.kv(2, 16, window=100), kv.Layer.kv(2, 16)))
    with make(tmp_path / "c", model=model, residual=32) as store:
        for first in range(0, 500, 50):
            for layer in range(2):
                put(store, first, first + 50, layer=layer)
            sequence = store.sequence("a")
            check(sequence, 0)
            for window in (1, 17, 100, 10_000):
                y, state = sequence.attend(1, queries(), window=window, return_state=True)
                assert state.tokens == min(window, first + 50)
                k, v = sequence.read(1, slice(max(0, first + 50 - window), None), dtype=np.float32)
                assert relative_error(y, attend(queries(), k, v)[0]) <= ERROR
        assert np.array_equal(
            sequence.attend(1, queries(), window=7), sequence.attend(1, queries(), tokens=slice(493, 500))
        )


@pytest.mark.parametrize(
    "options", [{}, {"c": "raw", "kr": "raw"}, {"c": "int8/token/g64", "residual": 16}], ids=["default", "raw", "int8"]
)
def test_latent_layers(tmp_path, options):
    model = kv.Model((kv.Layer.mla(144, 40),))
    random = np.random.default_rng(0)
    c, kr = (random.standard_normal((300, 1, dim)).astype(ml_dtypes.bfloat16) for dim in (144, 40))
    q = queries(8, 184)
    for mode in "wr":
        with make(tmp_path / "c", model=model, **options) if mode == "w" else kv.open(tmp_path / "c") as store:
            sequence = store.sequence("a")
            if mode == "w":
                sequence.append(0, c, kr)
            found = sequence.attend(0, q, scale=0.07)
            known = sequence.read(0, dtype=np.float32)
            assert found.shape == (8, 144)
            assert relative_error(found, attend(q, np.concatenate(known, axis=2), known[0], 0.07)[0]) <= ERROR
            with pytest.raises(SpecError, match="latent attention needs scale"):
                sequence.attend(0, q)
            with pytest.raises(ShapeError, match=r"want \(heads, 184\)"):
                sequence.attend(0, q[:, :144], scale=0.07)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_real_cache(tmp_path, layer):
    kv.encode(GEMMA, tmp_path / "c")
    with open_dump(GEMMA) as dump:
        asked = dump.queries(layer)
    with kv.open(tmp_path / "c") as store:
        (sequence,) = store
        found, wanted = [], []
        for n, position in enumerate(asked.positions.tolist()):
            seen = slice(0 if asked.window is None else max(0, position + 1 - asked.window), position + 1)
            found.append(sequence.attend(layer, asked.q[:, n], scale=asked.scale, tokens=seen))
            k, v = sequence.read(layer, seen, dtype=np.float32)
            wanted.append(attend(asked.q[:, n], k, v, asked.scale)[0])
    assert relative_error(np.concatenate(found), np.concatenate(wanted)) <= ERROR
    assert worst_error(np.concatenate(found), np.concatenate(wanted)) <= 5e-3


# -- chosen tokens ---------------------------------------------------------------------------------------------------


def tiles_of(chosen, held):
    return sorted({t for c in chosen for t in range(c // 16 * 16, c // 16 * 16 + 16) if t < held})


def test_chosen_tokens_stand_for_their_tiles(tmp_path):
    with make(tmp_path / "c", residual=0, sinks=0) as store:
        put(store, 0, 512)
        store.sync()
        sequence = store.sequence("a")
        whole = sequence.attend(0, queries(), return_state=True)[1]
        for chosen in ([3], [511, 0, 17], np.arange(0, 512, 100), [-1], np.array([], int), list(range(512))):
            y, state = sequence.attend(0, queries(), tokens=chosen, return_state=True)
            tiles = tiles_of([int(c) % 512 for c in chosen], 512)
            assert state.tokens == len(tiles)
            if tiles:
                k, v = sequence.read(0, tiles, dtype=np.float32)
                assert relative_error(y, attend(queries(), k, v)[0]) <= ERROR
            else:
                assert not y.any()
            assert (state.bytes_read < whole.bytes_read) == (len(tiles) < 512)
        assert np.array_equal(sequence.attend(0, queries(), tokens=range(512)), whole.output())
        part = sequence.attend(0, queries(), tokens=slice(64, 128), return_state=True)[1]
        assert part.bytes_read * 8 == whole.bytes_read


# The bounds of chosen tokens are not those of their tiles yet, which may lie beyond in one stream or the window.


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("options", [{"k": 16, "v": 128}, {"k": 128, "v": 16}, {"k": 40, "v": 40}], ids=str)
def test_chosen_tokens_where_streams_lie_differently(tmp_path, options, synced):
    with make(tmp_path / "c", residual=options, sinks=5) as store:
        put(store, 0, 300)
        if synced:
            store.sync()
        sequence = store.sequence("a")
        for chosen in ([20], [299], [0, 150, 280], [2, 100, 200], range(10, 300, 7)):
            y, state = sequence.attend(0, queries(), tokens=chosen, return_state=True)
            assert len(chosen) <= state.tokens <= 16 * len(chosen)
            assert np.isfinite(y).all()


def test_tiles_of_chosen_tokens_end_at_the_window(tmp_path):
    with make(tmp_path / "c", model=kv.Model((kv.Layer.kv(2, 16, window=50),)), residual=0, sinks=0) as store:
        put(store, 0, 200)
        y, state = store.sequence("a").attend(0, queries(), tokens=[152], return_state=True)
        k, v = store.sequence("a").read(0, slice(150, 160), dtype=np.float32)
        assert state.tokens == 10
        assert relative_error(y, attend(queries(), k, v)[0]) <= ERROR


# -- batches, threads, states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_batches_and_threads_change_no_bit(tmp_path, threads):
    lengths = [1, 700, 64, 4500, 33]
    with make(tmp_path / "c") as store:
        for n, length in enumerate(lengths):
            put(store, 0, length, name=str(n), salt=n)
    with kv.open(tmp_path / "c", threads=threads) as store:
        sequences = [store.sequence(str(n)) for n in range(len(lengths))]
        q = queries(n=len(lengths))
        together = store.attend(0, sequences, q)
        assert together.shape == (5, 4, 16)
        for n, sequence in enumerate(sequences):
            assert np.array_equal(together[n], check(sequence, q=q[n])[0])
        states = store.attend(0, sequences, q, window=100, query_bits=8, return_state=True)
        assert [state.tokens for state in states] == [min(100, length) for length in lengths]
        again = store.attend(0, [sequences[1]] * 2, np.stack([q[1]] * 2))
        assert np.array_equal(again[0], together[1])
        assert np.array_equal(again[1], together[1])
    with kv.open(tmp_path / "c") as store:
        assert np.array_equal(store.attend(0, [store.sequence(str(n)) for n in range(5)], q), together)


def test_many_threads_may_attend_while_one_appends(tmp_path):
    with make(tmp_path / "c", residual=32, threads=2) as store:
        put(store, 0, 100)
        sequence, failures = store.sequence("a"), []

        def look():
            try:
                for _ in range(40):
                    y, state = sequence.attend(0, queries(), return_state=True)
                    k, v = sequence.read(0, slice(0, state.tokens), dtype=np.float32)
                    if relative_error(y, attend(queries(), k, v)[0]) > 0.2:  # rows are coded in between
                        failures.append(state.tokens)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        for first in range(100, 500, 10):
            put(store, first, first + 10)
        for thread in threads:
            thread.join()
        assert failures == []


def test_a_live_reader_follows(tmp_path):
    with make(tmp_path / "c", durability="step", residual=48) as store, kv.open(tmp_path / "c") as reader:
        for first in range(0, 300, 25):
            put(store, first, first + 25)
            y, state = check(reader.sequence("a"))
            assert state.tokens == first + 25
            assert relative_error(y, store.sequence("a").attend(0, queries())) <= 1e-4


def test_states_of_ranges_of_tokens_merge_to_the_whole(tmp_path):
    with make(tmp_path / "c", residual=50) as store:
        put(store, 0, 777)
        sequence = store.sequence("a")
        whole = check(sequence)[1]
        cuts = [0, 3, 64, 70, 500, 745, 777]
        parts = [sequence.attend(0, queries(), tokens=slice(a, b), return_state=True)[1] for a, b in pairwise(cuts)]
        for order in (parts, parts[::-1]):
            merged = order[0]
            for part in order[1:]:
                merged = merged.merge(part)
            assert relative_error(merged.output(), whole.output()) <= 1e-4
            assert merged.tokens == 777
        blocks = [
            sequence.attend(0, queries(), tokens=slice(a, b), return_state=True)[1] for a, b in ((0, 68), (68, 777))
        ]
        assert relative_error(blocks[0].merge(blocks[1]).output(), whole.output()) <= 1e-6  # at a record's border


def test_empty_sequences(tmp_path):
    with make(tmp_path / "c") as store:
        put(store, 0, 10, name="b")
        empty = store.sequence("a")
        assert not empty.attend(0, queries()).any()
        assert empty.attend(0, queries(), return_state=True)[1].log_sum_exp().tolist() == [-np.inf] * 4
        y = store.attend(0, [empty, store.sequence("b")], queries(n=2))
        assert not y[0].any()
        assert np.array_equal(y[1], store.sequence("b").attend(0, queries(n=2)[1]))
