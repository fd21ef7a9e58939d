"""The store: what is appended is read back, from memory, from the log, after closing, and by other stores."""

import errno
import os
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.errors import (
    CorruptRecord,
    DeviceBusy,
    DeviceError,
    DtypeError,
    IdentityMismatch,
    LogExists,
    NonFiniteError,
    NoSpace,
    ShapeError,
    SpecError,
    StoreClosed,
    UnknownSequence,
)
from kvcodec.flash import image as image_module
from kvcodec.layout import RopeLayout
from kvcodec.store.model import Layer, Model, Stream
from kvcodec.store.window import leaving
from tests.caches import GEOMETRIES, SMALL, TINY, bits, rows, same, tiny_model

RAW = {"k": "raw", "v": "raw"}


@pytest.fixture(params=GEOMETRIES.values(), ids=GEOMETRIES)
def geometry(request):
    return request.param


def fill(sequence, tokens, layers=2, step=7, **options):
    """Append tokens up to `tokens` to all layers, a few at a time."""
    while len(sequence) < tokens:
        at = range(len(sequence), min(len(sequence) + step, tokens))
        for layer in range(layers):
            sequence.append(layer, rows(layer, "k", at, **options), rows(layer, "v", at, **options))


def close_to(got, want, tolerance=0.3):
    error = np.abs(got.astype(np.float32) - want.astype(np.float32))
    return got.shape == want.shape and (error.max() if error.size else 0) <= tolerance


@pytest.mark.parametrize(
    "spec", ["raw", "int4/channel/g64", "int4/token/g16", "int4/channel/g32/sym", "int4/token/g64/sym"]
)
def test_tokens_come_back(tmp_path, geometry, spec):
    path, n = tmp_path / "c.kvlog", 201
    tolerance = 0 if spec == "raw" else 0.4
    with kv.open(path, "w", model=tiny_model(), k=spec, v=spec, residual=20, sinks=3, device=geometry) as store:
        fill(store.sequence("a"), n)
        before = store.sequence("a").read(1)
        for stream, got in zip("kv", before, strict=True):
            assert close_to(got, rows(1, stream, n), tolerance)
            assert same(got[-20:], rows(1, stream, n)[-20:])
            assert same(got[:3], rows(1, stream, n)[:3])
    for _ in range(2):
        with kv.open(path) as store:
            sequence = store.sequence("a")
            assert len(sequence) == n
            for got, was in zip(sequence.read(1), before, strict=True):
                assert same(got, was)
        (tmp_path / "c.kvlog.idx").unlink(missing_ok=True)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_raw_is_bit_exact_and_floats_are_rounded_to_the_models_dtype(tmp_path, dtype):
    want = "float16" if dtype == np.float16 else "bfloat16"
    k = rows(0, "k", 30, dtype=np.float32) * 1e-3
    k[0, 0, :3] = [-0.0, 1e-39, 3e38 if want == "bfloat16" else 65504]
    with kv.open(tmp_path / "c", "w", model=tiny_model(1, dtype=want), residual=0, device=TINY, **RAW) as store:
        store.sequence("a").append(0, k.astype(dtype), k.astype(dtype))
    with kv.open(tmp_path / "c") as store:
        assert same(store.sequence("a").read(0)[0], k.astype(dtype).astype(store.model.numpy_dtype))


def test_chosen_tokens_in_any_order(tmp_path):
    with kv.open(tmp_path / "c", "w", model=tiny_model(), residual=10, device=SMALL) as store:
        sequence = store.sequence("a")
        fill(sequence, 300)
        everything = sequence.read(0)
        for tokens in (
            [299, 0, 5, 5, -1, 130],
            slice(60, 140),
            slice(None, None, -7),
            17,
            [],
            np.array([28], np.int8),
        ):
            index = np.arange(300)[tokens] if not isinstance(tokens, list) else np.array(tokens, int)
            for got, want in zip(sequence.read(0, tokens), everything, strict=True):
                assert same(got, want[np.atleast_1d(index)])
        for tokens in (300, [-301], [0.5], [[1]], [True, False]):
            with pytest.raises(ShapeError):
                sequence.read(0, tokens)
        assert sequence.read(0, slice(0, 3), dtype=np.float32)[0].dtype == np.float32
        with pytest.raises(ShapeError, match="dtype"):
            sequence.read(0, dtype=np.float64)


def test_reading_decodes_only_the_token_groups_it_needs(tmp_path, monkeypatch):
    with kv.open(tmp_path / "c", "w", model=tiny_model(1), residual=0, sinks=0, device=SMALL) as store:
        sequence = store.sequence("a")
        fill(sequence, 640, layers=1, step=64)
        read = []
        load = store.log.load
        monkeypatch.setattr(store.log, "load", lambda place: read.append(place) or load(place))
        sequence.read(0, [3, 70, 71, 600])
        assert len(read) == 2 * 3


def test_many_sequences_do_not_meet(tmp_path, geometry):
    names = [f"chat {n}" for n in range(5)]
    with kv.open(tmp_path / "c", "w", model=tiny_model(), residual=4, device=geometry, **RAW) as store:
        for at in range(0, 90, 10):
            for n, name in enumerate(names):
                for layer in range(2):
                    span = range(at, at + 10)
                    store.sequence(name).append(layer, rows(layer, "k", span, salt=n), rows(layer, "v", span, salt=n))
        assert store.sequences() == names
    with kv.open(tmp_path / "c") as store:
        assert [s.name for s in store] == names
        for n, name in enumerate(names):
            assert same(store.sequence(name).read(1)[1], rows(1, "v", 90, salt=n))
        with pytest.raises(UnknownSequence, match="chat 9"):
            store.sequence("chat 9")


def test_append_step_takes_all_layers_or_none(tmp_path):
    model = Model((Layer.kv(2, 16), Layer(), Layer.kv(1, 8)))
    with kv.open(tmp_path / "c", "w", model=model, residual=3, device=TINY, **RAW) as store:
        sequence = store.sequence("a")

        def step(stream, t):
            return [rows(0, stream, [t])[0], None, rows(2, stream, [t], heads=1, dim=8)]

        for t in range(100):
            sequence.append_step(step("k", t), step("v", t))
        assert same(sequence.read(2)[1], rows(2, "v", 100, heads=1, dim=8))
        bad = step("k", 100)
        bad[2] = np.full((1, 1, 8), np.nan, ml_dtypes.bfloat16)
        for k in (bad, step("k", 100)[:2], [rows(0, "k", 2), None, bad[2]]):
            with pytest.raises((NonFiniteError, ShapeError)):
                sequence.append_step(k, step("v", 100))
        with pytest.raises(ShapeError, match="layers differ"):
            sequence.append_step([rows(0, "k", 2), None, rows(2, "k", [1], heads=1, dim=8)], step("v", 100))
        with pytest.raises(ShapeError, match="keeps no cache"):
            sequence.append(1, rows(1, "k", 1), rows(1, "v", 1))
        assert len(sequence) == 100


def test_a_token_exists_when_every_layer_has_it(tmp_path):
    with kv.open(tmp_path / "c", "w", model=tiny_model(), device=TINY, **RAW) as store:
        sequence = store.sequence("a")
        sequence.append(0, rows(0, "k", 5), rows(0, "v", 5))
        assert len(sequence) == 0
        assert same(sequence.read(0)[0], rows(0, "k", 5))  # the layer itself may attend to them
        sequence.append(1, rows(1, "k", 3), rows(1, "v", 3))
        assert len(sequence) == 3
        store.sync()
        with kv.open(tmp_path / "c") as reader:
            assert len(reader.sequence("a")) == 3
            assert len(reader.sequence("a").read(0)[0]) == 3


# -- refusals ----------------------------------------------------------------------------------------------------


def test_a_refused_append_names_its_place_and_changes_nothing(tmp_path):
    path = tmp_path / "c"
    with kv.open(path, "w", model=tiny_model(), residual=0, device=TINY) as store:
        sequence = store.sequence("a")
        fill(sequence, 100)
        store.sync()
        before, was = path.read_bytes(), sequence.read(0)
        good = rows(0, "k", 70)
        for value in (np.nan, np.inf, -np.inf):
            bad = rows(0, "v", 70)
            bad[69, 1, 15] = value
            with pytest.raises(NonFiniteError) as caught:
                sequence.append(1, good, bad)
            e = caught.value
            assert (e.layer, e.stream, e.token, e.head, e.channel) == (1, "v", 169, 1, 15)
        overflow = good.astype(np.float32)
        overflow[3, 0, 2] = 3.4e38  # finite, but not as bfloat16
        with pytest.raises(NonFiniteError, match="layer 0, stream k, token 103, head 0, channel 2"):
            sequence.append(0, overflow, good)
        for k, v, layer, error in [
            (good, good[:3], 0, ShapeError),
            (good[:, :1], good[:, :1], 0, ShapeError),
            (good[0], good[0], 0, ShapeError),
            (good, good, 2, ShapeError),
            (good, good, -1, ShapeError),
            (good.astype(np.float64), good, 0, DtypeError),
            (good.astype(np.float16), good, 0, DtypeError),
            (good.tolist(), good.tolist(), 0, DtypeError),
        ]:
            with pytest.raises(error):
                sequence.append(layer, k, v)
        store.sync()
        assert path.read_bytes() == before
        assert all(same(a, b) for a, b in zip(sequence.read(0), was, strict=True))


def test_a_full_device_refuses_and_everything_stays_as_it_was(tmp_path):
    path = tmp_path / "c"
    with kv.open(path, "w", model=tiny_model(1), residual=0, sinks=0, device=TINY, capacity=4 * 8192, **RAW) as store:
        sequence = store.sequence("a")
        with pytest.raises(NoSpace):
            sequence.append(0, rows(0, "k", 640), rows(0, "v", 640))
        assert len(sequence) == 0
        fill(sequence, 128, layers=1, step=64)
        before, length = path.read_bytes(), len(sequence)
        with pytest.raises(NoSpace):
            sequence.append(0, rows(0, "k", 320), rows(0, "v", 320))
        assert path.read_bytes() == before
        assert len(sequence) == length == 128
        assert same(sequence.read(0)[0], rows(0, "k", 128))
    with kv.open(path) as store:
        assert same(store.sequence("a").read(0)[0], rows(0, "k", 128))


def test_a_write_that_fails_in_the_middle_is_loud_until_the_log_is_opened_again(tmp_path, monkeypatch):
    path = tmp_path / "c"
    store = kv.open(path, "w", model=tiny_model(1), residual=0, sinks=0, device=TINY, **RAW)
    sequence = store.sequence("a")
    fill(sequence, 64, layers=1, step=64)
    store.sync()
    real, calls = os.pwrite, []

    def fail(fd, data, offset):
        calls.append(offset)
        if len(calls) >= 2:
            raise OSError(errno.EIO, "broken")
        return real(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(image_module.os, "pwrite", fail)
        with pytest.raises(DeviceError, match="broken"):
            sequence.append(0, rows(0, "k", range(64, 128)), rows(0, "v", range(64, 128)))
    assert len(sequence) == 64
    for again in (store.sync, lambda: sequence.append(0, rows(0, "k", 64), rows(0, "v", 64))):
        with pytest.raises(DeviceError, match="open the log again"):
            again()
    store.abandon()
    with kv.open(path, "a") as store:
        sequence = store.sequence("a")
        assert same(sequence.read(0)[0], rows(0, "k", 64))
        fill(sequence, 200, layers=1, step=64)
    with kv.open(path) as store:
        assert same(store.sequence("a").read(0)[1], rows(0, "v", 200))


def test_modes_and_identities(tmp_path):
    path, model = tmp_path / "c", tiny_model()
    with pytest.raises(SpecError, match="mode"):
        kv.open(path, "x")
    with pytest.raises(SpecError, match="needs model"):
        kv.open(path, "w")
    with pytest.raises(SpecError, match="recovery"):
        kv.open(path, recovery="hope")
    with pytest.raises(FileNotFoundError):
        kv.open(path, "a")
    with kv.open(path, "w", model=model, device=TINY) as store:
        with pytest.raises(DeviceBusy):
            kv.open(path, "a")
        assert store.writable
    with pytest.raises(LogExists):
        kv.open(path, "w", model=model, device=TINY)
    kv.open(path, model=model).close()
    for mode in "ra":
        with pytest.raises(IdentityMismatch, match=r"3 layers.*not to|2 layers.*3 layers"):
            kv.open(path, mode, model=tiny_model(3))
    with kv.open(path, "a", model=model) as store, pytest.raises(SpecError, match="name"):
        store.sequence("")
    with kv.open(path) as store:
        with pytest.raises(StoreClosed, match="reading only"):
            store.sync()
        reader = store
    for use in (reader.refresh, reader.sync, lambda: reader.sequence("a")):
        with pytest.raises(StoreClosed):
            use()
    reader.close()
    with kv.open(path, "w", model=model, device=SMALL, overwrite=True) as store:
        assert store.device.geometry == SMALL


def test_a_device_too_small_for_one_head_is_refused(tmp_path):
    for layer, spec in ((Layer.kv(1, 256), "int4/channel/g64"), (Layer.kv(1, 16), "int8/channel/g1024")):
        with pytest.raises(SpecError, match=f"layer 0, stream k: {spec} .* fits no erase block of 8192 bytes"):
            kv.open(tmp_path / "c", "w", model=Model((layer,)), k=spec, device=TINY)
        assert not (tmp_path / "c").exists()
    with kv.open(tmp_path / "c", "w", model=Model((Layer.kv(1, 192),)), residual=0, sinks=0, device=TINY) as store:
        store.sequence("a").append(0, *(rows(0, stream, 64, heads=1, dim=192) for stream in "kv"))


@pytest.mark.parametrize("how", ["append", "sync", "compact", "close"])
def test_of_a_device_that_fails_the_first_error_is_told(tmp_path, monkeypatch, how):
    """Not that an earlier write has failed, which is what all come to that follow."""
    store = kv.open(tmp_path / "c", "w", model=tiny_model(1), residual=8, sinks=0, device=TINY)
    pair = [rows(0, stream, 5) for stream in "kv"]
    store.sequence("a").append(0, *pair)
    store.sync()

    def fail(_image, offset, _data):
        raise NoSpace(errno.EFBIG, f"write at byte {offset}: File too large", "c")

    work = {
        "append": lambda: store.sequence("a").append(0, *(rows(0, stream, 3000) for stream in "kv")),
        "sync": store.sync,
        "compact": store.compact,
        "close": lambda: None,
    }[how]
    store.sequence("a").append(0, *pair)
    monkeypatch.setattr(image_module.Image, "write", fail)
    with pytest.raises(NoSpace, match="File too large"), store:
        work()
    monkeypatch.undo()
    with kv.open(tmp_path / "c") as store:
        assert len(store.sequence("a")) == 5


@pytest.mark.parametrize("how", ["append", "sync", "close"])
def test_no_room_does_not_hide_that_a_device_fails(tmp_path, monkeypatch, how):
    store = kv.open(tmp_path / "c", "w", model=tiny_model(1), residual=8, sinks=0, device=TINY, capacity=16 * 8192)
    store.sequence("a").append(0, *(rows(0, stream, 5) for stream in "kv"))
    full = NoSpace(errno.ENOSPC, "no room", "c")

    def fail(*_):
        raise DeviceError(errno.EIO, "fsync failed", "c")

    monkeypatch.setattr(image_module.Image, "sync", fail)
    if how != "append":
        monkeypatch.setattr(type(store), "_log_open_rows", lambda _: (_ for _ in ()).throw(full))
    work = {
        "append": lambda: store.sequence("b").append(0, *(rows(0, stream, 9000) for stream in "kv")),
        "sync": store.sync,
        "close": lambda: None,
    }[how]
    with pytest.raises(DeviceError, match="fsync failed"), store:
        work()


# -- taking up ---------------------------------------------------------------------------------------------------


def test_a_log_is_taken_up_where_it_ended(tmp_path, geometry):
    path = tmp_path / "c"
    reference = tmp_path / "once"
    options = {"model": tiny_model(), "residual": 10, "device": geometry}
    kv.open(path, "w", **options).close()
    for n in (5, 30, 31, 100, 101, 240):
        with kv.open(path, "a") as store:
            fill(store.sequence("a"), n)
    with kv.open(reference, "w", **options) as store:
        fill(store.sequence("a"), 240)
    with kv.open(path) as a, kv.open(reference) as b:
        for layer in range(2):
            for x, y in zip(a.sequence("a").read(layer), b.sequence("a").read(layer), strict=True):
                assert same(x, y)


def test_layers_that_a_crash_left_apart_start_again_together(tmp_path):
    path = tmp_path / "c"
    store = kv.open(path, "w", model=tiny_model(), residual=0, sinks=0, device=TINY, **RAW)
    sequence = store.sequence("a")
    fill(sequence, 64, step=64)
    sequence.append(0, rows(0, "k", range(64, 256)), rows(0, "v", range(64, 256)))
    store.sync()
    store.abandon()
    with kv.open(path, "a") as store:
        sequence = store.sequence("a")
        assert len(sequence) == 64
        for layer in (1, 0):  # other tokens than layer 0 had before the crash
            span = range(64, 200)
            sequence.append(layer, rows(layer, "k", span, salt=9), rows(layer, "v", span, salt=9))
            with kv.open(path) as reader:
                assert len(reader.sequence("a")) in (64, 128, 192)
    with kv.open(path) as store:
        for layer in range(2):
            got = store.sequence("a").read(layer)[0]
            assert same(got[:64], rows(layer, "k", 64))
            assert same(got[64:], rows(layer, "k", range(64, 200), salt=9))


def test_what_a_sequence_was_begun_with_stays(tmp_path):
    path = tmp_path / "c"
    with kv.open(
        path, "w", model=tiny_model(), k="int4/channel/g32", v="raw", residual=7, sinks=1, device=TINY
    ) as store:
        fill(store.sequence("a"), 10)
    with kv.open(path, "a", k="raw") as store:
        store.sequence("b")
        policies = [
            [(str(r.policy.spec), r.policy.residual, r.policy.sinks) for r in index.info.policy.rules]
            for index in store.index.sequences.values()
        ]
    assert policies == [[("int4/channel/g32", 7, 1), ("raw", 7, 1)], [("raw", 7, 1), ("raw", 7, 1)]]


def test_threads_share_a_store(tmp_path):
    with kv.open(tmp_path / "c", "w", model=tiny_model(), residual=8, device=SMALL, **RAW) as store:
        failures = []

        def work(n):
            try:
                sequence = store.sequence(f"s{n}")
                for at in range(0, 120, 10):
                    for layer in range(2):
                        span = range(at, at + 10)
                        sequence.append(layer, rows(layer, "k", span, salt=n), rows(layer, "v", span, salt=n))
                    if not same(sequence.read(1)[0], rows(1, "k", at + 10, salt=n)):
                        failures.append((n, at))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert failures == []


# -- models, policies, windows -------------------------------------------------------------------------------------


def test_models_are_kept_whole(tmp_path):
    layers = (
        Layer.kv(4, 80, v_head_dim=96, window=512, rope_base=1e4),
        Layer(),
        Layer((Stream(kv.StreamId.C, 1, 512), Stream(kv.StreamId.KR, 1, 64)), rope_scale=8.0),
    )
    model = Model(layers, "float16", "náme", bytes(range(32)), 3, 8, RopeLayout.HALVES)
    with kv.open(tmp_path / "c", "w", model=model, device=SMALL):
        pass
    with kv.open(tmp_path / "c") as store:
        assert store.model == model
        assert store.model.hash == model.hash
        assert "shard 3 of 8" in model.describe()
    assert model.hash != Model(layers, "float16", "name", bytes(range(32)), 3, 8, RopeLayout.HALVES).hash
    for bad in (
        lambda: Model(()), lambda: Model((Layer(),)), lambda: Model(layers, "int8"),
        lambda: Model(layers, name="x" * 256),
        lambda: Model(layers, shard=2, shards=2), lambda: Layer.kv(0, 8), lambda: Layer.kv(1, 99999),
        lambda: Layer(window=-1), lambda: Layer((Stream(kv.StreamId.K, 1, 1),) * 2),
        lambda: Model(layers, fingerprint=b"x"),
    ):  # fmt: skip
        with pytest.raises(SpecError):
            bad()


@given(st.integers(0, 50), st.integers(0, 9), st.sampled_from([16, 64]), st.lists(st.integers(0, 90), max_size=12))
def test_what_leaves_a_window(residual, sinks, group, appends):
    first = end = 0
    gone = []
    for n in appends:
        end += n
        for item in leaving(first, end, residual=residual, sinks=sinks, token_group=group):
            assert item.first == first
            assert item.tokens == (min(sinks - first, 64) if item.sink else group)
            first += item.tokens
            gone.append(item)
        assert end - first >= min(residual, end)
        assert end - first < residual + max(group, sinks)
    assert all(item.sink == (n == 0 and sinks > 0) for n, item in enumerate(gone))


@settings(max_examples=30)
@given(st.data())
def test_any_history_of_appends_and_syncs_reads_back(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("history") / "c"
    options = {
        "residual": data.draw(st.integers(0, 70)),
        "sinks": data.draw(st.integers(0, 5)),
        "device": data.draw(st.sampled_from(list(GEOMETRIES.values()))),
    }
    with kv.open(path, "w", model=tiny_model(1), **options, **RAW) as store:
        sequence, n = store.sequence("a"), 0
        for action in data.draw(st.lists(st.one_of(st.integers(0, 150), st.just("sync")), max_size=12)):
            if action == "sync":
                store.sync()
                continue
            sequence.append(0, rows(0, "k", range(n, n + action)), rows(0, "v", range(n, n + action)))
            n += action
            assert same(sequence.read(0)[1], rows(0, "v", n))
    with kv.open(path, recovery="absolute") as store:
        assert same(store.sequence("a").read(0)[0], rows(0, "k", n))


def test_lost_tokens_are_an_error_not_a_guess(tmp_path):
    path = tmp_path / "c"
    with kv.open(path, "w", model=tiny_model(1), residual=0, sinks=0, device=TINY, **RAW) as store:
        for at in range(0, 640, 64):
            store.sequence("a").append(0, rows(0, "k", range(at, at + 64)), rows(0, "v", range(at, at + 64)))
            store.sync()
        extent = store.index.sequences[1].maps[0, kv.StreamId.K].covering(200, 201)[0]
        place = extent.coded.parts[0].place
        at = store.device.file_offset(place.block, place.offset + 300)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    for mode in ("torn-tail", "absolute"):
        (tmp_path / "c.idx").unlink(missing_ok=True)
        with pytest.raises(CorruptRecord, match="damage"):
            kv.open(path, recovery=mode)
    with pytest.raises(CorruptRecord):
        kv.open(path, "a")
    with kv.open(path, recovery="point-in-time") as store:
        assert same(store.sequence("a").read(0)[0], rows(0, "k", len(store.sequence("a"))))
        assert 64 <= len(store.sequence("a")) <= 192
        assert len(store.log.report.damage) == 1
    with kv.open(path, recovery="skip-damaged") as store:
        sequence = store.sequence("a")
        assert len(sequence) == 640
        assert same(sequence.read(0, slice(320, 640))[0], rows(0, "k", range(320, 640)))
        with pytest.raises(CorruptRecord, match="lost"):
            sequence.read(0, 200)
    with pytest.raises(SpecError, match="only be read"):
        kv.open(path, "a", recovery="skip-damaged")


def test_stats_count_what_was_programmed(tmp_path, geometry):
    path = tmp_path / "c"
    with kv.open(path, "w", model=tiny_model(2, 2, 64), residual=16, sinks=4, device=geometry) as store:
        fill(store.sequence("a"), 150, dim=64)
        store.sync()
        before = store.stats()
    with kv.open(path, "a") as store:
        writer = store.stats()
    with kv.open(path) as store:
        reader = store.stats()
    assert reader == writer
    assert (before.frames + 1, before.host_bytes) == (reader.frames, reader.host_bytes)  # the witness carries no rows
    assert reader.sequences[0].tokens == 150
    groups, open_rows, sinks = 2, 150 - 4 - 128, 4
    coded = 2 * 2 * groups * (64 * 2 * 64 * 9 // 16)
    assert reader.coded_bytes == coded
    assert reader.payload_bytes == coded + 2 * 2 * (open_rows + sinks) * 2 * 64 * 2
    assert reader.coded_ratio == pytest.approx(32 / 9)
    assert reader.host_bytes <= reader.framed_bytes < reader.programmed_bytes < reader.file_bytes
    assert reader.file_bytes <= reader.programmed_bytes + 65536 * reader.blocks_used
    assert reader.as_dict()["write_amplification"] >= 1
    assert bits(np.zeros(1, np.uint16)).size == 1


def test_padding_that_is_no_longer_zeros_loses_no_row(tmp_path):
    path = tmp_path / "c"
    with kv.open(path, "w", model=tiny_model(1), device="slc", **RAW) as store:
        fill(store.sequence("a"), 10, layers=1)
        store.sync()
        padding = store.device.file_offset(0, 2 * 512 - 8)
        fill(store.sequence("a"), 20, layers=1)
    raw = bytearray(path.read_bytes())
    assert raw[padding] == 0
    raw[padding] = 1
    path.write_bytes(raw)
    (tmp_path / "c.idx").unlink()
    with kv.open(path) as store:
        assert same(store.sequence("a").read(0)[0], rows(0, "k", 20))
        assert [gap.kind for gap in store.log.report.gaps] == ["padding"]
    with pytest.raises(CorruptRecord, match="padding"):
        kv.open(path, recovery="absolute")
