"""Trellis codes: which paths the encoder finds, what the decoder makes of them, and how they are trained."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.codecs.product import Product
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.trellis_bytes import trellis_from_bytes
from kvcodec.dictionary.product import fit_product
from kvcodec.dictionary.products import Stream, train_products
from kvcodec.dictionary.rates import count_losses, order_bits, share_bytes, spare_rates
from kvcodec.dictionary.spectrum import find_spectrum
from kvcodec.dictionary.trellis import fit_trellis, plan_bytes, spread_out
from kvcodec.dictionary.trellis_tables import MOST_RATE, WINDOW, normal_tables, walk
from kvcodec.dictionary.vectors import ArrayVectors
from kvcodec.errors import ShapeError, SpecError, UnsupportedVersion
from kvcodec.kernels import _paths
from kvcodec.kernels._jit import jit
from kvcodec.layout import StreamId
from tests.test_product import backwards, relative, vectors
from tests.trellis_codes import trellis
from tests.trellis_twin import best_path, rebuild_row

USES = ((0, StreamId.K),)


def fit(rows, code_bytes, metric=None):
    return fit_trellis(find_spectrum(rows, metric), rows, code_bytes, USES)


@pytest.fixture(name="trained", scope="module")
def trained_fixture():
    return fit(vectors(3000), 8)


# -- paths ---------------------------------------------------------------------------------------------------------


@jit
def step(costs, to, back, table, number, ratio, bits, window):
    """One step, compiled."""
    places = (np.int64(costs.ctypes.data), np.int64(to.ctypes.data), np.int64(back.ctypes.data))
    _paths.step_paths(*places, np.int64(table.ctypes.data), number, ratio, bits, window)


@settings(max_examples=40)
@given(st.integers(8, 12), st.data())
def test_a_step_is_that_of_its_twin(window, data):
    bits = data.draw(st.integers(1, min(8, window - 3)))
    lot = np.random.default_rng(data.draw(st.integers(0, 99)))
    costs = lot.integers(0, 4, 1 << window).astype(np.float32)  # many alike
    costs[lot.random(1 << window) < 0.3] = 1e30
    table, number, ratio = (x.astype(np.float32) for x in (lot.standard_normal(1 << window), *lot.random((2, 1)) + 0.5))
    found = []
    for run in (step, _paths.step_paths):
        to, back = np.zeros(1 << window, np.float32), np.zeros(1 << (window - bits), np.uint8)
        arrays = (costs, to, back, table)
        given_ = arrays if run is step else [x.ctypes.data for x in arrays]
        run(*given_, number[0], ratio[0], np.int64(bits), np.int64(window))
        found.append((to, back))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize(("rates", "window"), [((2, 1, 3, 2), 8), ((5, 4), 8), ((1,) * 9, 8), ((3, 5, 1), 9)])
def test_no_path_of_all_misses_less(rates, window):
    own = trellis(len(rates) + 1, len(rates), window=window, rates=rates, seed=len(rates))
    rows = np.random.default_rng(3).standard_normal((6, own.dim)).astype(np.float32)
    coded = own.code(rows)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    exact = (rows / lengths - own.mean) @ own.analysis.rows[:-1].astype(np.float64).T
    shapes = own.shape_table.astype(np.float64) / own.shape_table[8]
    tables = [own.tables[place] for place in own.places]
    for n, y in enumerate(exact):
        size = float((y * y) @ own.analysis.spread)
        first = int((size > shapes[:-1] * shapes[1:]).sum())
        costs = []
        for j in range(first, 16):  # upwards, as long as it helps
            cost, bits = best_path(y / shapes[j], own.analysis.units, rates, tables, window)
            costs.append((cost * shapes[j] ** 2, bits, j))
            if len(costs) > 1 and costs[-1][0] >= costs[-2][0]:
                costs.pop()
                break
        assert coded.shapes[n] == costs[-1][2]
        number = sum(own_bits << sum(rates[:i]) for i, own_bits in enumerate(costs[-1][1]))
        assert int.from_bytes(coded.bits[n].tobytes(), "little") == number


def test_a_decoded_vector_is_that_of_the_format(trained):
    for own in (trained, trellis(5, 4, window=12, rates=(8, 1, 8, 3))):
        lot = np.random.default_rng(0)
        coded = own.code(lot.standard_normal((12, own.dim)).astype(np.float32))
        rows = np.concatenate([coded.gains[:, None], coded.shapes[:, None], coded.bits], axis=1)
        back = own.rebuild(coded)
        for row, one in zip(rows, back, strict=True):
            assert np.array_equal(rebuild_row(row, own), one)


def test_a_vector_does_not_hang_on_its_neighbours(trained):
    rows = vectors(70, seed=8)
    whole = trained.code(rows)
    assert whole.bits.shape == (70, trained.code_bytes)
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
    assert trained.code(rows[:0]).bits.shape == (0, 8)


def test_sums_of_the_greatest_numbers_are_exact():
    own = trellis(1, 3, rates=(1, 1, 1))
    tables = np.full((1, 256), -32768, np.int16)
    with pytest.raises(ShapeError, match=r"channel 0: sums of products above 2\*\*31"):
        replace(own, tables=tables, basis=np.array([[32767], [-32767], [2]], np.int16))
    near = replace(own, tables=tables, basis=np.array([[32767], [-32767], [1]], np.int16))
    assert near.largest_sums.tolist() == [2**31 - 32768]
    coded = near.code(np.ones((1, 1), np.float32))
    rows = np.concatenate([coded.gains[:, None], coded.shapes[:, None], coded.bits], axis=1)
    assert np.array_equal(near.rebuild(coded)[0], rebuild_row(rows[0], near))


def test_what_is_no_trellis_is_refused(trained):
    for name, value in {
        "rates": trained.rates[:-1], "tables": trained.tables[:-1], "gains": trained.gains[::-1].copy(),
        "shapes": trained.shapes * 0, "mean": trained.mean[:-1],
    }.items():  # fmt: skip
        with pytest.raises(ShapeError):
            replace(trained, **{name: value})
    for change, said in (
        ({"rates": np.full(len(trained.rates), 8, np.uint8), "tables": trained.tables[:1]}, "1 to 7 bits"),
        ({"tables": trained.tables[:, :128]}, "window"),
    ):
        with pytest.raises(ShapeError, match=said):
            replace(trained, **change)
    with pytest.raises(ShapeError, match="9 channels"):
        trained.code(np.zeros((1, 9), np.float32))
    short = replace(trained.analysis, rows=trained.analysis.rows[:-1])
    with pytest.raises(SpecError, match="analysis"):
        replace(trained, analysis=short).code(np.zeros((1, 24), np.float32))


def test_bytes_hold_all_of_a_trellis(trained):
    for own in (trained, replace(trained, rotation=Rotation.of_base(100.0, 16))):
        data = np.frombuffer(own.to_bytes(), np.uint8)
        back = trellis_from_bytes(data)
        assert (back.rotation, back.uses, back.budget) == (own.rotation, own.uses, 0)
        assert back.to_bytes() == data.tobytes()
        rows = vectors(20, seed=3)
        assert all(np.array_equal(a, b) for a, b in zip(back.code(rows), own.code(rows), strict=True))
        assert np.array_equal(back.rebuild(back.code(rows)), own.rebuild(own.code(rows)))
    for end in (0, 10, len(data) - 1):
        with pytest.raises(ShapeError, match="trellis codes"):
            trellis_from_bytes(data[:end])
    for place, error in ((0, ShapeError), (10, ShapeError), (12, UnsupportedVersion), (18, SpecError)):
        bad = data.copy()
        bad[place] = 99
        with pytest.raises(error):
            trellis_from_bytes(bad)


# -- training ------------------------------------------------------------------------------------------------------


def test_tables_come_within_a_few_tenths_of_a_bit_of_what_is_possible():
    own = normal_tables()
    assert own.tables.shape == (MOST_RATE, 1 << WINDOW)
    lost = np.log2(own.distortions * 4.0 ** np.arange(MOST_RATE + 1)) / 2  # bits against the rate-distortion bound
    assert (np.diff(lost) > 0).all()
    assert lost[1] < 0.1
    assert lost[4] < 0.23  # one number at a time loses 0.64
    assert lost[MOST_RATE] < 0.4
    assert (np.diff(own.distortions, 2) > 0).all()  # each bit more spares less: what rates are chosen by
    fresh = np.random.default_rng(77).standard_normal((60, 128)).astype(np.float32)
    found = own.tables[2][walk(fresh, 3, own.tables[2])]
    assert np.square(fresh - found).mean() == pytest.approx(own.distortions[3], rel=0.05)


def test_training_beats_product_codes_of_as_many_bytes(trained):
    """At 4 bits a component."""
    rows, held = vectors(3000), vectors(600, seed=11)
    product = fit_product(find_spectrum(rows, None), rows, 12, USES)
    more = fit(rows, 12)
    assert isinstance(product, Product)
    assert product.code_bytes == more.code_bytes == 12
    less, own, other = (relative(held, one.rebuild(one.code(held))) for one in (trained, more, product))
    assert own < 0.9 * other
    assert own < 0.5 * less < 0.02
    assert fit(rows, 8).to_bytes() == trained.to_bytes()


def test_bits_go_where_they_spare_most():
    distortions = np.array([1.0, 0.3, 0.08, 0.02])
    variances = np.array([10.0, 1.0, 0.1])
    # what the 1st, 2nd and 3rd bit spares: 7, 2.2, .6 of the first; .7, .22, .06; .07, .022, .006
    assert order_bits(variances, distortions).tolist() == [0, 0, 1, 0, 1, 2, 1, 2, 2]
    assert spare_rates(variances, distortions, 1).tolist() == [3, 3, 2]
    assert spare_rates(variances, distortions, 9).tolist() == [3, 3, 3]
    lots = [0.9 ** np.arange(64) * scale for scale in (1.0, 8.0, 0.1)]
    counts = share_bytes(lots, distortions, 30, [1, 1, 1])
    assert sum(counts) == 30
    assert counts[1] > counts[0] > counts[2] >= 1
    uneven = share_bytes(lots, distortions, 30, [4, 4, 1])
    assert np.average(uneven, weights=[4, 4, 1]) <= 10
    assert uneven[2] > counts[2]  # a byte of few tokens costs little
    assert share_bytes(lots, distortions, 1000, [1, 1, 1]) == [24, 24, 24]  # 3 bits for each of 64 components


def test_what_is_missed_alike_counts_more():
    losses = count_losses(normal_tables().distortions)
    assert losses[0] == 16
    assert losses[-1] == pytest.approx(normal_tables().distortions[-1], rel=0.01)
    assert (np.diff(losses, 2) > 0).all()  # each bit more spares less
    variances = 0.5 ** np.arange(24)
    used = [np.count_nonzero(spare_rates(variances, own, 6)) for own in (losses, normal_tables().distortions)]
    assert used[0] > used[1]


def test_many_bits_stand_among_few():
    order = spread_out(np.arange(100))
    assert sorted(order.tolist()) == list(range(100))
    assert np.abs(np.diff(order)).min() > 15
    assert spread_out(np.array([7])).tolist() == [7]


def test_one_budget_for_all_streams():
    streams = []
    for n, (scale, tokens) in enumerate(((1.0, 4), (9.0, 4), (1.0, 1))):
        metric, rows = np.eye(24, dtype=np.float32) * scale, vectors(1500, seed=n)
        streams.append(Stream(((n, StreamId.K),), ArrayVectors(rows), ArrayVectors(rows[:300]), metric, tokens=tokens))
    trained = train_products(streams, 10.0, alike=False, codec="tcq")
    sizes = [own.product.code_bytes + 2 for own in trained]
    assert 9.7 <= np.average(sizes, weights=[4, 4, 1]) <= 10
    assert sizes[2] > sizes[0] < sizes[1]
    assert trained[1].error < trained[0].error < 0.2
    assert [own.product.budget for own in trained] == [10.0] * 3
    again = train_products(streams, 10.0, alike=False, codec="tcq", map_=backwards)
    assert [own.product.to_bytes() for own in again] == [own.product.to_bytes() for own in trained]
    assert {own.product.code_bytes for own in train_products(streams, 10.0, alike=True, codec="tcq")} == {8}
    spectra = [find_spectrum(vectors(500), None)]
    assert plan_bytes(spectra, 100.0, [1.0], alike=True) == [21]  # 7 bits for each of 24 components
    with pytest.raises(SpecError, match="budget of 2 bytes, want 3 to 514"):
        plan_bytes(spectra, 2.0, [1.0], alike=True)
