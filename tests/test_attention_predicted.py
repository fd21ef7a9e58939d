"""Attention on V that is predicted from the codes of its K, against float64 over what is decoded."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import kvcodec as kv
from kvcodec.attention.arrays import attend_arrays
from kvcodec.attention.columns import FORM, KEPT, place_column
from kvcodec.attention.headers import round_mean
from kvcodec.attention.predicted import pair_predictions
from kvcodec.attention.strips import product_form, raw_form
from kvcodec.attention.trained import header_of
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import multiply_gains
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import DtypeId, StreamId
from tests.attention_product_twin import Books, put_together
from tests.attention_reference import attend, relative_error
from tests.attention_twin import round_half, round_weights
from tests.test_predicted_logs import LAYERS, OPTIONS, SINKS, PowerLoss, Torn, fill, forgetful
from tests.test_predicted_logs import OWN as SET
from tests.test_prediction import predicted
from tests.test_product_codec import product

K, V, BF16 = StreamId.K, StreamId.V, DtypeId.BFLOAT16


def rows(tokens, heads, dim, seed, size=1.0):
    return (size * np.random.default_rng(seed).standard_normal((tokens, heads, dim))).astype(np.float32)


def coded_pair(dims, tokens=150, *, rotation=None, first=0, size=1.0, spec="pq", heads=2):
    """K and V that is predicted from it, of random rows, coded by random product codes of uneven groups."""
    source = product(dims[0], 6, 3, ((0, K),), rotation)
    own = predicted(source, 5, dims[1])
    keys = kv.encode_array(rows(tokens, heads, dims[0], 1), spec, dictionary=source, first=first)
    values = kv.encode_array(
        rows(tokens, heads, dims[1], 2, size), spec, stream="v", dictionary=own, first=first, given=keys
    )
    return keys, values


def check(q, keys, values, within=1e-3):
    k, v = (kv.decode_array(one, dtype=np.float32) for one in (keys, values))
    found, state = attend_arrays(q, keys, values, return_state=True)
    assert relative_error(found, attend(q, k, v)[0]) <= within
    assert state.tokens == keys.tokens
    return found


@pytest.mark.parametrize(("dims", "turned", "options"), [
    ((24, 24), 0, {}), ((24, 40), 16, {"first": 70}), ((8, 17), 0, {"spec": "pq/g256"}),
    ((72, 24), 72, {"size": 1e4, "heads": 1}), ((24, 24), 0, {"size": 0.05}),
], ids=str)  # fmt: skip
def test_arrays(dims, turned, options):
    """turned: channels of K that are rotated."""
    keys, values = coded_pair(dims, rotation=Rotation.of_base(50.0, turned) if turned else None, **options)
    q = np.random.default_rng(3).standard_normal((6, dims[0]))
    found = check(q, keys, values)
    plain = replace(values, dictionary=replace(values.dictionary, prediction=None), given=None)
    assert relative_error(found, attend_arrays(q, keys, plain)) > 0.1


def test_a_row_is_its_twins_to_the_last_bit():
    """Attention over one token is its row. Codes, gains and shapes are any bytes, and so are K's."""
    keys, values = coded_pair((24, 40), 1, heads=1)
    source, own, rng = keys.dictionary, values.dictionary, np.random.default_rng(6)
    mean, power = round_mean(own.mean, 48)
    tables = own.scale_table, multiply_gains(own.gain_table, own.prediction.scale_table), own.gain_table
    scales, factors, gains = ((table.view(np.uint32) >> 16).astype(int) for table in tables)
    for gain in (0, 1, 40, 255, *rng.integers(0, 256, 20).tolist()):
        told, codes = (np.array(rng.integers(0, 256, 3)) for _ in range(2))
        shapes = rng.integers(0, 16, 2).tolist()
        k, v = keys.tail.copy(), values.tail.copy()
        for body, shape, number, own_codes in ((k, shapes[0], 7, told), (v, shapes[1], gain, codes)):
            body[0, 0, [0, 64]], body[0, 0, 128::64] = (number, shape), own_codes
        given = replace(keys, tail=k)
        found = attend_arrays(np.ones((1, 24)), given, replace(values, tail=v, given=given))
        sums = sum_centroids(own, codes, own.basis), sum_centroids(source, told, own.prediction.basis)
        books = Books(*[None] * 5, mean[:40], power)
        numbers, exponent = put_together(
            sums[0], int(scales[gain, shapes[1]]), int(gains[gain]), books, sums[1], int(factors[gain, shapes[0]])
        )
        _, shift = round_weights(numbers, 16)
        row = np.array([round_half(n, shift) for n in numbers])
        assert row.any() == (gain > 0)
        bare = found[0] / 2.0 ** (exponent + shift)
        if not gain:
            assert not bare.any()
            continue
        weight = bare @ row / (row @ row)  # as 16 bits have it
        assert abs(weight - 1) < 1e-4
        assert np.abs(bare - weight * row).max() < 0.1


def sum_centroids(own, codes, basis):
    """Exact sums of a token's centroids times a basis."""
    groups = np.repeat(np.arange(own.groups), np.diff(own.ends, prepend=0))
    return (own.books[np.arange(len(own.books)), codes[groups]].astype(int) @ basis.astype(int)).tolist()


def test_k_may_be_in_any_codes_as_long_as_those_of_v_are_with_it():
    """V keeps the K that it is predicted from: of more tokens, and of others than are scored."""
    keys, values = coded_pair((24, 24), 200, first=10)
    q = np.random.default_rng(3).standard_normal((4, 24))
    later = kv.encode_array(
        rows(90, 2, 24, 4), "pq/g256", stream="v", dictionary=values.dictionary, first=47, given=keys
    )
    for own in ("raw", "int4/token/g32"):
        check(q, kv.encode_array(rows(90, 2, 24, 5), own, first=3), later)
    codes = kv.encode_array(rows(90, 2, 24, 5), "pq", dictionary=keys.dictionary, first=47)
    check(q, codes, later)


def test_what_v_stands_on_has_to_be_there():
    keys, values = coded_pair((24, 24), 70)
    q, raw = np.ones((2, 24)), kv.encode_array(rows(70, 2, 24, 1), "raw")
    other = product(24, 6, 3, ((0, K),), seed=9)
    for changed, error, said in (
        ({"given": None}, SpecError, "V is predicted from the codes of its K, which are not given"),
        ({"first": 1}, ShapeError, "tokens 1 to 71 of 2 heads, and codes of K for 0 to 70 of 2"),
        ({"given": replace(keys, dictionary=other)}, SpecError, "in other codes than those that V is predicted from"),
        ({"given": raw}, SpecError, "want k in product codes"),
    ):
        with pytest.raises(error, match=said):
            attend_arrays(q, raw, replace(values, **changed))


def test_strips_whose_k_is_of_other_codes_are_refused():
    """No array and no sound log has such; kernels would look them up all the same."""
    source, other = product(24, 6, 3, ((0, K),)), product(24, 6, 3, ((0, K),), seed=9)
    headers = [header_of(own) for own in (predicted(source, 5, 24), source, other)]
    forms = [product_form(64, headers[0], 1), *(product_form(64, own) for own in headers[1:]), raw_form(48, 48, BF16)]
    strips = np.zeros((2, place_column(2)), np.int64)
    strips[:, place_column(0) + FORM] = 1
    pair_predictions(strips, forms, 2)
    for form, kept in ((2, 0), (3, 0), (0, 0), (1, 64)):
        strips[1, place_column(0) + FORM], strips[1, place_column(0) + KEPT] = form, kept
        with pytest.raises(SpecError, match="v is predicted from the codes of its K, and k is not in those"):
            pair_predictions(strips, forms, 2)


# -- logs --------------------------------------------------------------------------------------------------------------


def attend_log(store, **asked):
    """Attention of all layers over what is read; states."""
    sequence, states = store.sequence("a"), []
    for layer in range(LAYERS):
        q = np.random.default_rng(layer).standard_normal((4, 8))
        found, state = sequence.attend(layer, q, return_state=True, **asked)
        k, v = sequence.read(layer, asked.get("tokens"), dtype=np.float32)
        assert len(k) == state.tokens
        assert relative_error(found, attend(q, k, v)[0]) <= 1e-3
        states.append(state)
    return states


@pytest.mark.parametrize("options", [
    {"residual": 9}, {"residual": 0, "durability": "step"}, {"residual": 0, "k": "pq/g128", "v": "pq/g128"},
], ids=str)  # fmt: skip
def test_logs(tmp_path, options):
    """Sinks, records, rows coded one by one, in the log and open, and rows of the residual window."""
    path = tmp_path / "a.kvlog"
    with kv.open(path, "w", sinks=SINKS, **OPTIONS | options) as store:
        for first, end in ((0, 50), (50, 200), (200, 207)):
            fill(store, first, end)
            attend_log(store)
    for threads in (1, 2):
        with kv.open(path, threads=threads) as store:
            whole = attend_log(store)
            parts = [attend_log(store, tokens=slice(*span)) for span in ((0, 77), (77, 207))]
            for one, two, all_ in zip(*parts, whole, strict=True):
                assert relative_error(one.merge(two).output(), all_.output()) <= 1e-3
            sequence, q = store.sequence("a"), np.ones((4, 8))
            found, some = sequence.attend(1, q, tokens=[5, 90, 200], return_state=True)
            last = 200 if "durability" in options else 195  # rows of the last append are a record of their own
            tiles = np.concatenate([np.arange(at, min(at + 16, 207)) for at in (SINKS, SINKS + 80, last)])
            assert relative_error(found, attend(q, *sequence.read(1, tiles, dtype=np.float32))[0]) <= 1e-3
            assert some.bytes_read < whole[1].bytes_read
            assert np.array_equal(sequence.attend(1, q, tiers=(2, 0.1)), sequence.attend(1, q))


@pytest.mark.parametrize(("residual", "window"), [(0, 0), (5, 75)])
def test_groups_that_begin_at_other_tokens(tmp_path, residual, window):
    """A crash leaves K in groups that those of V do not meet, and a sliding window forgets some."""
    path = tmp_path / "a.kvlog"
    store = kv.open(path, "w", sinks=SINKS, residual=residual, **OPTIONS | {"model": forgetful(window)})
    fill(store, 0, 40)
    store.sync()
    Torn(store).armed = True
    with pytest.raises(PowerLoss):
        fill(store, 40, 110)
    store.abandon()
    with kv.open(path, "a") as store:
        assert store.sequence("a")._open[0, K].first > store.sequence("a")._open[0, V].first
        attend_log(store)
        for first, end in ((40, 95), (95, 230)):
            fill(store, first, end)
            attend_log(store)
    with kv.open(path) as store:
        attend_log(store)


def test_heads_in_several_records(tmp_path):
    path, model, own = tmp_path / "a.kvlog", kv.Model.uniform(1, 8, 8), SET
    spec = {"k": "pq/g256", "v": "pq/g256", "residual": 0, "sinks": 0, "model": model, "dictionary": own}
    with kv.open(path, "w", **OPTIONS | spec) as store:
        store.sequence("a").append(0, *(rows(520, 8, 8, seed).astype(ml_dtypes.bfloat16) for seed in (3, 4)))
    with kv.open(path) as store:
        maps = store.index.sequences[1].maps
        assert max(len(extent.coded.parts) for extent in maps[0, V]) > 1
        q = np.random.default_rng(1).standard_normal((16, 8))
        k, v = store.sequence("a").read(0, dtype=np.float32)
        assert relative_error(store.sequence("a").attend(0, q), attend(q, k, v)[0]) <= 1e-3
