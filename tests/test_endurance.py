"""Arithmetic of wear: check values from data sheets and papers, and the price of a sync on every preset."""

import math

import pytest

from kvcodec.errors import SpecError
from kvcodec.flash.geometry import PRESETS
from kvcodec.flash.timing import Chips, Work, estimate, program_work, read_work
from kvcodec.measure.endurance import (
    Amplification,
    Life,
    bytes_until_death,
    drive_writes_a_day,
    sync_padding,
    tokens_until_death,
    years_at,
)

TIB = 1 << 40
STEP, FRAME = 9216, 100  # K and V of 32 layers of 8 heads of 18 bytes, and about what a frame adds


def test_tokens_until_death_of_four_drives():
    life = bytes_until_death(4 * 2 * TIB, 3000)
    assert tokens_until_death(life, 819_200) == pytest.approx(3.22e10, rel=1e-3)


def test_years_of_eight_drives_that_are_written_without_a_pause():
    life = bytes_until_death(8 * 375e9, 1e5)
    assert years_at(life, 6.69e12 / 10_419) == pytest.approx(14.8, abs=0.05)


def test_bytes_of_a_day_of_tokens():
    life = Life(1e12, 3000, 1.0, STEP, tokens_a_second=50, years=5)
    assert life.programmed_a_day == pytest.approx(39.8e9, rel=1e-3)
    assert life.years_of_life == pytest.approx(3e15 / (50 * STEP) / 86400 / 365)


@pytest.mark.parametrize(
    ("preset", "both", "one"), [("slc", 1.06, 1.11), ("mlc", 1.78, 1.78), ("tlc", 1.78, 3.56), ("nor", 1.01, 1.03)]
)
def test_price_of_a_sync(preset, both, one):
    """Of a step of K and V, and of one stream alone; over the step's own bytes, the frame's being what pads it."""
    unit = PRESETS[preset].unit_bytes
    for size, price in ((STEP, both), (STEP // 2, one)):
        framed = size + FRAME
        factors = Amplification(size, framed, round(sync_padding(framed, unit) * framed))
        assert factors.total == pytest.approx(-(-framed // unit) * unit / size)
        assert factors.total == pytest.approx(price, abs=0.011)


def test_factors_multiply_to_the_whole():
    own = Amplification(1000, 1100, 1500, copied=300, compacted=200, spare=64)
    assert own.programmed == 2000
    assert own.total == 2.0
    assert own.format * own.padding * own.cleaning * own.compaction == pytest.approx(own.total)
    assert (own.format, own.cleaning, own.compaction) == (1.1, 1.2, pytest.approx(2000 / 1800))
    assert own.as_dict()["spare_bytes"] == 64


def test_nothing_written_has_no_amplification():
    own = Amplification(0, 0, 0)
    assert math.isnan(own.total)
    assert own.as_dict()["total"] is None


def test_drive_writes_a_day_over_its_years():
    life = bytes_until_death(1e12, 3000, amplification=2)
    assert drive_writes_a_day(life, 1e12, years=5) == pytest.approx(1500 / (365 * 5))
    assert years_at(life, 0) == math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: bytes_until_death(0, 1), lambda: bytes_until_death(1, 1, 0), lambda: drive_writes_a_day(1, 1, 0),
        lambda: years_at(1, -1), lambda: tokens_until_death(1, 0), lambda: sync_padding(0, 4), lambda: Chips(dies=0),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(SpecError, match="want"):
        wrong()


def test_estimated_time_is_that_of_the_slower_of_array_and_bus():
    tlc = PRESETS["tlc"]
    one = estimate(tlc, Chips(), program_work(tlc, tlc.page_bytes))
    assert one.seconds == pytest.approx(500e-6)
    many = estimate(tlc, Chips(channels=2, dies=4, planes=2), program_work(tlc, 160 * tlc.page_bytes))
    assert many.seconds == pytest.approx(160 * 500e-6 / 16)
    reads = estimate(tlc, Chips(dies=8, planes=4), read_work(tlc, 1 << 30))
    assert reads.seconds == pytest.approx((1 << 30) / 800e6)  # 32 planes outrun a bus
    assert estimate(tlc, Chips(), Work(erases=2) + Work(erases=1)).seconds == pytest.approx(3 * 3.5e-3)
    assert estimate(tlc, Chips(), Work(erases=2)).joules > 0


def test_nor_programs_a_page_in_its_time():
    nor = PRESETS["nor"]
    assert estimate(nor, Chips(), program_work(nor, 1024)).seconds == pytest.approx(4 * 400e-6)
