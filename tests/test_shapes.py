"""Models of all shapes: latents, sliding windows, layers without a cache, odd head dims, short and empty sequences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.errors import ShapeError
from kvcodec.layout import StreamId
from kvcodec.store.extents import Coded, ExtentMap
from tests.caches import GEOMETRIES, SMALL, rows, same

RAW = {"k": "raw", "v": "raw", "c": "raw", "kr": "raw"}


def arrays(model, layer, span, salt=0):
    """Rows of the streams of a layer for some tokens."""
    return [
        rows(layer, "kv"[n], span, heads=s.heads, dim=s.dim, salt=salt)
        for n, s in enumerate(model.layers[layer].streams)
    ]


def fill(store, until, step=7, salt=0):
    sequence, model = store.sequence("a"), store.model
    while len(sequence) < until:
        span = range(len(sequence), min(until, len(sequence) + step))
        for layer, own in enumerate(model.layers):
            if own.streams:
                sequence.append(layer, *arrays(model, layer, span, salt))
    return sequence


def check(store, n, tolerance=0.0):
    sequence, model = store.sequence("a"), store.model
    assert len(sequence) == n
    for layer, own in enumerate(model.layers):
        if not own.streams:
            continue
        held = sequence.held(layer)
        assert (held.start, held.stop) == (own.held(n), n)
        for got, want in zip(sequence.read(layer), arrays(model, layer, held), strict=True):
            assert got.shape == want.shape
            if tolerance:
                assert np.abs(got.astype(np.float32) - want.astype(np.float32)).max(initial=0) < tolerance
            else:
                assert same(got, want)


MODELS = {
    "mla": kv.Model((kv.Layer.mla(512, 64),) * 2),
    "hybrid": kv.Model((kv.Layer(), kv.Layer.kv(1, 16), kv.Layer(), kv.Layer.kv(2, 8, v_head_dim=24))),
    "windows": kv.Model((kv.Layer.kv(1, 16, window=100), kv.Layer.kv(1, 16), kv.Layer.kv(1, 32, window=30))),
    "mixed": kv.Model((kv.Layer.mla(32, 16, window=70), kv.Layer.kv(3, 72), kv.Layer.kv(1, 96))),
    "dims": kv.Model(tuple(kv.Layer.kv(1, d) for d in (1, 72, 80, 96, 192))),
    "one window": kv.Model((kv.Layer.kv(1, 16, window=64),)),
}


@pytest.mark.parametrize("geometry", ["tlc", "nor", "small"])
@pytest.mark.parametrize("name", MODELS)
def test_any_model_is_written_reopened_appended_and_read(tmp_path, name, geometry):
    model, path = MODELS[name], tmp_path / "c"
    for spec, tolerance in ((RAW, 0.0), ({}, 0.5)):
        kv.open(
            path, "w", model=model, residual=20, sinks=3, device=GEOMETRIES[geometry], overwrite=True, **spec
        ).close()
        for n in (0, 1, 70, 71, 250):
            with kv.open(path, "a") as store:
                fill(store, n, step=31)
                check(store, n, tolerance)
            with kv.open(path) as store:
                if n:
                    check(store, n, tolerance)


def test_a_token_behind_the_window_is_refused_by_name(tmp_path):
    with kv.open(tmp_path / "c", "w", model=MODELS["windows"], residual=8, device=SMALL, **RAW) as store:
        sequence = fill(store, 250)
        assert sequence.held(0) == range(150, 250)
        assert same(sequence.read(0, slice(240, None))[0], rows(0, "k", range(240, 250), heads=1))
        assert same(sequence.read(0, [-1, 150])[0], rows(0, "k", [249, 150], heads=1))
        assert same(sequence.read(0, slice(None, None, -1))[0], rows(0, "k", range(249, 149, -1), heads=1))
        for tokens in ([149], slice(100, 200), 3):
            with pytest.raises(ShapeError, match="holds 150 to 249"):
                sequence.read(0, tokens)
        assert len(sequence.read(1)[0]) == 250
        stats = store.stats()
        assert stats.raw16_bytes == 2 * 2 * (100 * 16 + 250 * 16 + 30 * 32)


def test_what_no_window_will_need_is_not_written(tmp_path):
    """A long prompt appended at once: of a layer with a window of 100 only the groups of the window are coded."""
    model = MODELS["windows"]
    with kv.open(tmp_path / "c", "w", model=model, residual=0, sinks=0, device=SMALL, **RAW) as store:
        sequence = store.sequence("a")
        sequence.append_layers({n: arrays(model, n, range(1000)) for n in range(3)})
        store.sync()
        starts = {n: next(iter(store.index.sequences[1].maps[n, StreamId.K])).first for n in range(3)}
        assert starts == {0: 896, 1: 0, 2: 960}
        check(store, 1000)
    with kv.open(tmp_path / "c") as store:
        check(store, 1000)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_layers_that_a_crash_left_apart_agree_on_tokens_that_all_windows_hold(tmp_path, first):
    model, path = MODELS["windows"], tmp_path / "c"
    store = kv.open(path, "w", model=model, residual=0, sinks=0, device=SMALL, **RAW)
    sequence = fill(store, 320, step=64)
    store.sync()
    sequence.append(first, *arrays(model, first, range(320, 2000)))
    store.sync()
    store.abandon()
    with kv.open(path) as store:
        check(store, 320)
    with kv.open(path, "a") as store:
        check(store, 320)
        fill(store, 500, salt=1)
    with kv.open(path) as store:
        assert len(store.sequence("a")) == 500
        want = arrays(model, 1, range(320, 500), salt=1)
        assert all(same(a[320:], b) for a, b in zip(store.sequence("a").read(1), want, strict=True))


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 15)), max_size=12),
    st.integers(1, 40),
    st.integers(0, 80),
)
def test_the_end_of_a_run_that_fills_a_window(spans, window, bound):
    extents, held = ExtentMap(), set()
    for lsn, (first, n) in enumerate(spans, 1):
        extents.insert(Coded(lsn, None, first, n, ()))
        held |= set(range(first, first + n))
    want = max(n for n in range(bound + 1) if n == 0 or set(range(max(0, n - window), n)) <= held)
    assert extents.run_end(window, bound) == want


def test_gemmas_shapes(tmp_path):
    """18 layers of one KV head of 256, five of six with a window of 512: a long text costs little there."""
    layers = tuple(kv.Layer.kv(1, 256, window=0 if n % 6 == 5 else 512) for n in range(18))
    with kv.open(tmp_path / "c", "w", model=kv.Model(layers), residual=128, sinks=4, threads=2) as store:
        sequence = store.sequence("a")
        for at in range(0, 2048, 512):
            span = range(at, at + 512)
            sequence.append_layers({n: arrays(store.model, n, span) for n in range(18)})
        check(store, 2048, tolerance=0.6)
        per_layer = [sum(len(e.coded.parts) for e in store.index.sequences[1].maps[n, StreamId.K]) for n in (0, 5)]
        assert per_layer[0] <= per_layer[1]


def test_results_do_not_depend_on_the_thread_count(tmp_path):
    model = MODELS["mixed"]
    read = []
    for threads in (1, 3):
        with kv.open(tmp_path / str(threads), "w", model=model, residual=9, device=SMALL, threads=threads) as store:
            for at in range(0, 300, 60):
                store.sequence("a").append_layers({n: arrays(model, n, range(at, at + 60)) for n in range(3)})
            read.append([store.sequence("a").read(n) for n in range(3)])
    for a, b in zip(*read, strict=True):
        assert all(same(x, y) for x, y in zip(a, b, strict=True))
