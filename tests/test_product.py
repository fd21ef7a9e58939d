"""Product codes: what the encoder chooses, what the decoder makes of it, and how they are trained."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from kvcodec.codecs.product import Product
from kvcodec.codecs.product_bytes import product_from_bytes, product_to_bytes
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import Analysis
from kvcodec.codecs.vectors import SIDE_BYTES
from kvcodec.dictionary.budget import count_groups, fill_rates, split_components
from kvcodec.dictionary.product import find_means, fit_product, gain_table, nearest
from kvcodec.dictionary.products import Stream, train_products
from kvcodec.dictionary.spectrum import find_spectrum, take_sample
from kvcodec.dictionary.vectors import ArrayVectors
from kvcodec.errors import ShapeError, SpecError, UnsupportedVersion
from kvcodec.layout import StreamId
from tests.product_twin import code_vector, rebuild_vector

USES = ((0, StreamId.K),)


def vectors(count, dim=24, seed=0, decay=0.8, sinks=0.01):
    """Correlated ones with a mean, of lengths around 5, some far from the mean."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).standard_normal((dim, dim))
    turn = np.linalg.qr(mix)[0]
    rows = rng.standard_normal((count, dim)) * decay ** np.arange(dim) @ turn.T
    rows *= np.where(rng.random(count) < sinks, 6, 1)[:, None]
    rows += 0.7 * turn[0] * np.sqrt(dim)
    return (rows * rng.uniform(3, 8, (count, 1)) / np.linalg.norm(rows, axis=1).mean()).astype(np.float32)


def fit(rows, groups, metric=None):
    return fit_product(find_spectrum(rows, metric), rows, groups, USES)


@pytest.fixture(name="trained", scope="module")
def trained_fixture():
    return fit(vectors(6000), 6)


def relative(rows, back):
    return np.linalg.norm(rows - back) / np.linalg.norm(rows)


# -- coding --------------------------------------------------------------------------------------------------------


def test_codes_are_those_of_the_twin(trained):
    rows = vectors(40, seed=5)
    coded = trained.code(rows)
    books = trained.books.astype(np.float32) * trained.analysis.units[:, None]
    shapes = (trained.shape_table / trained.shape_table[8]).astype(np.float32)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    exact = (rows / lengths - trained.mean) @ trained.analysis.rows[:-1].astype(np.float64).T
    for n, y in enumerate(exact.astype(np.float32)):
        size = float((y * y) @ trained.analysis.spread)
        first = int(np.clip((size > shapes[:-1] * shapes[1:]).sum() - 1, 0, 12))
        codes, shape = code_vector(y, books, trained.ends.tolist(), shapes, range(first, first + 4))
        assert (coded.shapes[n], coded.codes[n].tolist()) == (shape, codes)


def test_a_decoded_vector_is_that_of_the_twin(trained):
    coded = trained.code(vectors(30, seed=6))
    back = trained.rebuild(coded)
    for n in range(30):
        gain = trained.gain_table[coded.gains[n]]
        scale = (gain * trained.shape_table[coded.shapes[n]]).astype(ml_dtypes.bfloat16).astype(np.float32)
        own = coded.codes[n], trained.basis, trained.books, trained.ends.tolist(), scale, gain, trained.mean
        assert np.array_equal(back[n], rebuild_vector(*own))


def test_no_other_code_shape_or_gain_misses_less(trained):
    """The gain is the best one of the table for the codes; of the codes no single one can be better."""
    rows = vectors(50, seed=7)
    coded = trained.code(rows)
    base = np.square(trained.rebuild(coded) - rows, dtype=np.float64).sum(axis=1)
    better = 0
    rng = np.random.default_rng(0)
    for _ in range(60):
        codes, gains = coded.codes.copy(), coded.gains.copy()
        if rng.random() < 0.5:
            codes[np.arange(50), rng.integers(0, trained.groups, 50)] = rng.integers(0, 256, 50)
        else:
            gains = np.clip(gains.astype(int) + rng.choice([-2, -1, 1, 2], 50), 1, 255).astype(np.uint8)
        missed = np.square(trained.rebuild(coded._replace(codes=codes, gains=gains)) - rows, dtype=np.float64).sum(
            axis=1
        )
        better += int((missed < base * (1 - 1e-4)).sum())
    assert better <= 30  # of 3,000: rounding, and codes were chosen before the gain was


def test_a_vector_does_not_hang_on_its_neighbours(trained):
    rows = vectors(70, seed=8)
    whole = trained.code(rows)
    for part in (slice(3, 4), slice(10, 23), slice(0, 70)):
        for one, all_ in zip(trained.code(rows[part]), whole, strict=True):
            assert np.array_equal(one, all_[part])


def test_zeros_huge_and_tiny_vectors(trained):
    rows = np.stack([np.zeros(24), np.full(24, 1e38), np.full(24, 1e-38), vectors(1)[0]]).astype(np.float32)
    coded = trained.code(rows)
    assert coded.gains.tolist()[:3] == [0, 255, 1]
    back = trained.rebuild(coded)
    assert not back[0].any()
    assert np.isfinite(back).all()
    assert trained.code(rows[:0]).codes.shape == (0, 6)


def test_what_is_no_product_is_refused(trained):
    own = {n: getattr(trained, n) for n in ("basis", "books", "ends", "gains", "shapes", "uses", "mean", "analysis")}
    for name, value in {
        "books": trained.books[:-1], "ends": trained.ends[:-1], "gains": trained.gains[::-1].copy(),
        "shapes": trained.shapes * 0, "mean": trained.mean[:-1],
    }.items():  # fmt: skip
        with pytest.raises(ShapeError):
            Product(**(own | {name: value}))
    with pytest.raises(ShapeError, match="9 channels"):
        trained.code(np.zeros((1, 9), np.float32))
    short = Analysis(trained.analysis.rows[:-1], trained.analysis.units, trained.analysis.spread)
    with pytest.raises(SpecError, match="analysis"):
        Product(**(own | {"analysis": short})).code(np.zeros((1, 24), np.float32))


# -- training ------------------------------------------------------------------------------------------------------


def test_training_beats_what_one_number_a_component_can(trained):
    held = vectors(1000, seed=11)
    error = relative(held, trained.rebuild(trained.code(held)))
    more = fit(vectors(6000), 10)
    assert relative(held, more.rebuild(more.code(held))) < 0.6 * error < 0.1


def test_the_same_sample_gives_the_same_product(trained):
    again = fit(vectors(6000), 6)
    for name in ("basis", "books", "gains", "shapes", "mean"):
        assert np.array_equal(getattr(again, name), getattr(trained, name))


def test_a_metric_moves_the_error_where_it_costs_less():
    rows, held = vectors(6000), vectors(1000, seed=12)
    heavy = np.diag(np.where(np.arange(24) < 12, 30.0, 0.3)).astype(np.float32)
    plain, weighed = (fit(rows, 5, m) for m in (None, heavy))
    missed = [np.square(own.rebuild(own.code(held)) - held).sum(axis=0) for own in (plain, weighed)]
    assert missed[1][:12].sum() < 0.5 * missed[0][:12].sum()
    assert missed[1][12:].sum() > missed[0][12:].sum()
    with pytest.raises(SpecError, match="positive definite"):
        find_spectrum(rows, np.diag(np.arange(24) - 1.0))


def test_spectrum_is_a_basis_without_correlation():
    own = find_spectrum(vectors(6000), np.diag(np.linspace(1, 4, 24)).astype(np.float32))
    assert np.allclose(own.analysis.T @ own.synthesis, np.eye(24), atol=1e-9)
    assert np.allclose(own.synthesis.T @ own.metric @ own.synthesis, np.eye(24), atol=1e-9)
    assert (np.diff(own.variances) <= 0).all()
    assert own.energy > 1.005  # the few that are far from the mean


def test_sample_is_spread_and_without_zeros():
    rows = np.arange(1000, dtype=np.float32)[:, None] * np.ones(4, np.float32)
    taken = take_sample(ArrayVectors(rows, 10), 200)
    assert 190 <= len(taken) <= 200
    assert taken.min() == 1
    assert taken.max() == 999
    with pytest.raises(SpecError, match="zeros"):
        take_sample(ArrayVectors(rows[:1]), 10)


def test_rates_fill_up_what_there_is():
    lots = [np.array([16.0, 4, 1, 0.25]), np.array([1.0, 1, 1e-3, 1e-6])]
    rates = fill_rates(lots, 4.0)
    assert np.isclose(sum(own.sum() for own in rates) / 2, 4.0, atol=1e-6)
    left = [np.where(own > 0, lot * 4.0**-own, np.nan) for lot, own in zip(lots, rates, strict=True)]
    assert np.nanmax(left) - np.nanmin(left) < 1e-6  # all that have bits are as deep under water
    uneven = fill_rates(lots, 4.0, [9, 1])
    assert uneven[1].sum() > rates[1].sum()  # a bit of few tokens costs little
    assert np.isclose((9 * uneven[0].sum() + uneven[1].sum()) / 10, 4.0, atol=1e-6)


def test_groups_are_whole_and_as_many_as_the_budget_has():
    lots = [0.9 ** np.arange(64) * scale for scale in (1.0, 8.0, 0.1)]
    rates = fill_rates(lots, 8 * 10)
    counts = count_groups(rates, 30, [1, 1, 1], 64)
    assert sum(counts) == 30
    assert counts[1] > counts[0] > counts[2] >= 2
    parts = split_components(lots[1], counts[1])
    assert len(parts) == counts[1]
    assert len(np.unique(np.concatenate(parts))) == sum(len(part) for part in parts)
    (own,) = fill_rates([lots[1]], 8 * counts[1])
    worth = [own[part].sum() for part in parts]
    assert max(worth) - min(worth) < 2


def test_one_budget_for_all_streams():
    streams = []
    for n, (scale, tokens) in enumerate(((1.0, 4), (9.0, 4), (1.0, 1))):
        metric = np.eye(24, dtype=np.float32) * scale
        rows = vectors(3000, seed=n)
        streams.append(Stream(((n, StreamId.K),), ArrayVectors(rows), ArrayVectors(rows[:500]), metric, tokens=tokens))
    lines = []
    trained = train_products(streams, 10.0, alike=False, tell=lines.append)
    sizes = [own.product.groups + SIDE_BYTES for own in trained]
    assert 9.5 <= np.average(sizes, weights=[4, 4, 1]) <= 10
    assert sizes[2] > sizes[0] < sizes[1]
    assert trained[1].error < trained[0].error < 0.3
    assert len(lines) == 6
    again = train_products(streams, 10.0, alike=False, map_=backwards)
    assert [product_to_bytes(own.product) for own in again] == [product_to_bytes(own.product) for own in trained]
    assert {own.product.groups for own in train_products(streams, 10.0, alike=True)} == {8}
    with pytest.raises(SpecError, match="budget of 3"):
        train_products(streams, 3.0, alike=True)


def backwards(work, keys):
    return [work(key) for key in reversed(keys)][::-1]


def test_bytes_hold_all_of_a_product(trained):
    turned = replace(trained, rotation=Rotation.of_base(100.0, 16))
    for own in (trained, turned):
        data = np.frombuffer(product_to_bytes(own), np.uint8)
        back = product_from_bytes(data)
        assert back.rotation == own.rotation
        assert back.uses == own.uses
        rows = vectors(20, seed=3)
        assert all(np.array_equal(a, b) for a, b in zip(back.code(rows), own.code(rows), strict=True))
        assert np.array_equal(back.rebuild(back.code(rows)), own.rebuild(own.code(rows)))
    for end in (0, 10, len(data) - 1):
        with pytest.raises(ShapeError, match="product codes"):
            product_from_bytes(data[:end])
    for place, error in (
        (0, ShapeError),
        (4, ShapeError),
        (11, SpecError),  # a budget
        (12, ShapeError),  # components of a prediction
        (14, UnsupportedVersion),
        (18, SpecError),
        (19, UnsupportedVersion),
    ):
        bad = data.copy()
        bad[place] = 99
        with pytest.raises(error):
            product_from_bytes(bad)


def test_means_are_where_vectors_are():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((256, 3)).astype(np.float32) * 10
    rows = (points[rng.integers(0, 256, 5000)] + 0.01 * rng.standard_normal((5000, 3))).astype(np.float32)
    means = find_means(rows, rng)
    assert np.median(np.linalg.norm(rows - means[nearest(rows, means)], axis=1)) < 0.03
    assert find_means(rows[:5], rng).shape == (256, 3)


def test_gains_ascend_however_close_they_are():
    for least, most in ((1.0, 1.0), (0.9, 1.1), (1e-3, 50.0)):
        table = gain_table(least, most).view(ml_dtypes.bfloat16).astype(np.float32)
        assert table[0] == 0
        assert (np.diff(table) > 0).all()
        assert table[1] <= least <= most <= table[-1]
