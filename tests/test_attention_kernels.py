"""The parts of the attention kernels against their naive twins, bit for bit."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.kernels import dot, fold, raw_rows, softmax
from kvcodec.kernels._jit import jit
from kvcodec.kernels._simd import (
    load_lanes,
    store_lanes,
)
from kvcodec.kernels.forms import Weights, cut_scratch, scratch_bytes
from tests import attention_twin as twin
from tests import reference
from tests.attention_problems import EXTREME, NORMAL, SUBNORMAL, Kind, make_rows, make_table
from tests.attention_whole import pack_tiles

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
thorough = settings(max_examples=20 if INTERPRETED else 75)
seeds = st.integers(0, 2**32 - 1)
widths = st.sampled_from([8, 16])
bit_sizes = st.sampled_from([8, 4, 2])


# -- parts cannot be called from Python: these can -------------------------------------------------------------------


@jit
def fold_scales(numbers, scales, step, groups, zeros, count, width, bits, memory):
    scratch = cut_scratch(memory, 256)
    fold.fold_scales(numbers, scales, step, groups, zeros, count, width, bits, scratch)
    return scratch.folded, scratch.weights.halves, scratch.weights.bytes


@jit
def fold_numbers(numbers, count, width, halves, bytes_):
    return fold.fold_numbers(numbers, count, width, Weights(halves, bytes_))


@jit
def dot_tiles(place, count, stride, bits, first, end, halves, bytes_, width, sums):
    dot.dot_tiles(place, count, stride, bits, (first, end), Weights(halves, bytes_), width, 0, sums)


@jit
def weigh_tokens(tile, dim, tiles, bits, first, end, bytes_, sums):
    dot.weigh_tokens(tile, dim, tiles, bits, (first, end), bytes_, 0, sums)


@jit
def align_row(row, count, half, numbers):
    exponent = raw_rows.find_exponent(row, count, half)
    for c in range(0, count, 16):
        store_lanes(raw_rows.align_numbers(row + 2 * c, exponent, half), numbers + 4 * c)
    return exponent


@jit
def score_rows(row, stride, tokens, dim, half, numbers, weights, shift, factor, logits, totals):
    raw_rows.align_rows(row, stride, tokens, dim, dim, half, numbers)
    shift = np.int64(shift) - np.int64(raw_rows.BIAS[half])
    raw_rows.score_rows(numbers, dim, tokens, dim, numbers + 128 * dim, 4, weights, (shift, factor), logits, totals)


@jit
def weigh_rows(numbers, tokens, dim, shares, weights, scaled, high, low):
    top = raw_rows.scale_by_rows(tokens, shares, numbers + 128 * dim, scaled)
    raw_rows.weigh_rows(numbers, tokens, dim, weights, high, low)
    return top


@jit
def add_logits(sums, count, zero, room, shift, factor, logits):
    softmax.add_logits(sums, count, zero, room, shift, factor, logits)


@jit
def scale_logit(number, shift, factor):
    return softmax.scale_logit(number, shift, factor)


@jit
def raise_two(below, shares):
    store_lanes(softmax.raise_two(load_lanes(below)), shares)


@jit
def weigh_logits(logits, count, shares, first):
    return softmax.weigh_logits(logits, count, shares, first)


@jit
def add_block(state, exponent, total, sums, count, zero, room, power, outputs, dim, at):
    softmax.count_shares(state, exponent, total)
    softmax.add_outputs(sums, count, zero, room, power, state, (outputs, dim), at)


@jit
def merge_state(state, outputs, other, others, dim):
    softmax.merge_state(state, outputs, other, others, dim)


# -- numbers ---------------------------------------------------------------------------------------------------------


def address(array):
    return array.ctypes.data


def ints(array):
    return [int(n) for n in array.reshape(-1)]


def draw_numbers(rng, count, bits=22):
    """int32 of up to 2**bits, most of them smaller, some of them 0."""
    reach = (2.0 ** rng.uniform(0, bits, count)).astype(np.int64)
    return np.where(rng.random(count) < 0.1, 0, rng.choice([-1, 1], count) * np.minimum(reach, 2**bits)).astype(
        np.int32
    )


def draw_weights(rng, count, width=16):
    """(weights, what kernels take: their halves and bytes)."""
    weights = twin.round_weights(ints(draw_numbers(rng, count, 30)), width)[0]
    return weights, *store_weights(weights, width)


def store_weights(weights, width=16):
    halves, bytes_ = np.zeros(256, np.int16), np.zeros(512, np.int8)
    halves[: len(weights)] = weights
    high, low = twin.split_weights(weights) if width == 16 else (weights, [])
    bytes_[: len(high)], bytes_[256 : 256 + len(low)] = high, low
    return halves, bytes_


# -- folds -----------------------------------------------------------------------------------------------------------


@thorough
@given(seeds, st.integers(1, 16), widths, bit_sizes, st.booleans(), st.sampled_from([NORMAL, SUBNORMAL, EXTREME]))
def test_scales_and_zeros_are_folded_into_numbers(seed, tiles, width, bits, symmetric, style):
    rng, count = np.random.default_rng(seed), 16 * tiles
    groups = int(rng.integers(1, 16 // tiles + 1))
    numbers = draw_numbers(rng, count)
    tables = np.zeros((2, groups, count), np.int16)
    tables[0] = make_table(rng, tables.shape[1:], Kind(bits, style=style))[0]
    tables[1] = rng.integers(-32768, 32768, tables.shape[1:])
    if style == EXTREME:
        tables[1] = np.where(numbers < 0, -32768, 32767)
    memory, to_zeros = np.zeros(scratch_bytes(256, 1), np.uint8), 0 if symmetric else 2 * groups * count
    given_ = address(numbers), address(tables), 2 * count, groups, to_zeros, count, width, bits
    folded, *places = (int(place) - address(memory) for place in fold_scales(*given_, address(memory)))
    found = memory[folded : folded + 16 * groups].view(np.int64).reshape(-1, 2).tolist()
    halves, bytes_ = memory[places[0] :][:512].view(np.int16), memory[places[1] :][:512].view(np.int8)
    for g, (exponent, zero) in enumerate(found):
        weights, wanted = twin.fold_scales(ints(numbers), ints(tables[0, g]), width)
        assert (exponent, ints(halves[g * count :][:count])) == (wanted, weights)
        assert zero == twin.read_zeros(bits, weights, None if symmetric else tables[1, g])
        assert_bytes_are_of(weights, bytes_[g * count :], width)


@thorough
@given(seeds, st.integers(1, 16), widths, st.integers(0, 30))
def test_numbers_become_weights(seed, tiles, width, size):
    rng, count = np.random.default_rng(seed), 16 * tiles
    numbers = draw_numbers(rng, count, size)
    halves, bytes_ = np.zeros(256, np.int16), np.zeros(512, np.int8)
    exponent, total = fold_numbers(address(numbers), count, width, address(halves), address(bytes_))
    weights, wanted = twin.fold_numbers(ints(numbers), width)
    assert (int(exponent), ints(halves[:count])) == (wanted, weights)
    assert total == twin.add_weights(weights)
    assert_bytes_are_of(weights, bytes_, width)


def assert_bytes_are_of(weights, bytes_, width):
    count = len(weights)
    if width == 8:
        assert ints(bytes_[:count]) == weights
        return
    high, low = bytes_[:count].astype(int), bytes_[256 : 256 + count].astype(int)
    assert (high * 256 + low).tolist() == weights
    assert (ints(high), ints(low)) == twin.split_weights(weights)


# -- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("channel_lane", [False, True])
def test_tiles_are_packed_as_the_format_says(bits, channel_lane):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (128, 48))
    pack = reference.pack_channel_tiles if channel_lane else reference.pack_token_tiles
    assert pack_tiles(codes, bits, channel_lane) == pack(codes, bits)


@thorough
@given(seeds, bit_sizes, st.integers(0, 15), st.integers(1, 16), st.integers(1, 4), widths, st.booleans())
def test_dots_of_tiles(seed, bits, first, columns, tiles, width, full):
    rng, first = np.random.default_rng(seed), 16 * min(first, 16 - columns)
    end = first + 16 * columns
    codes = rng.integers(0, 1 << bits, (16 * tiles, 256)) if not full else np.full((16 * tiles, 256), (1 << bits) - 1)
    weights, halves, bytes_ = draw_weights(rng, end - first, width)
    if full:
        most = 32514 if width == 16 else 127
        weights = [most if seed % 2 else -most] * (end - first)
        halves, bytes_ = store_weights(weights, width)
    packed, sums = np.frombuffer(pack_tiles(codes, bits, False), np.uint8), np.zeros(16 * tiles, np.int32)
    places = address(halves), address(bytes_), width, address(sums)
    dot_tiles(address(packed), tiles, 512 * bits, bits, first, end, *places)
    assert ints(sums) == twin.dot_tiles(codes[:, first:end], weights)


@thorough
@given(seeds, bit_sizes, st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_weighted_sums_of_token_lane_tiles(seed, bits, tiles, columns, full):
    rng, dim = np.random.default_rng(seed), 16 * columns
    codes = rng.integers(0, 1 << bits, (16 * tiles, dim)) if not full else np.full((16 * tiles, dim), (1 << bits) - 1)
    weights, _, bytes_ = draw_weights(rng, 16 * tiles)
    if full:
        weights = [32514] * (16 * tiles)
        _, bytes_ = store_weights(weights)
    first = 16 * int(rng.integers(0, columns))
    tile, sums = np.frombuffer(pack_tiles(codes, bits, False), np.uint8), np.full(dim, -7, np.int32)
    weigh_tokens(address(tile), dim, tiles, bits, first, dim, address(bytes_), address(sums))
    assert ints(sums[first:]) == twin.weigh_tokens(codes[:, first:], weights)
    assert (sums[:first] == -7).all()


# -- raw rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True])
def test_every_16_bit_float_is_aligned_as_its_twin_is(half):
    rows = np.arange(0x8000).astype(np.uint16)
    rows = np.concatenate([rows[rows >> (10 if half else 7) != (31 if half else 255)]] * 2).reshape(2, -1)
    rows[1] |= 0x8000
    for row in rows:
        numbers = np.zeros(len(row), np.int32)
        exponent = align_row(address(row), len(row), int(half), address(numbers))
        assert exponent == twin.find_exponent(row, half)
        assert ints(numbers) == twin.align_numbers(row, exponent, half)


@thorough
@given(seeds, st.integers(1, 64), st.integers(1, 16), st.booleans(), st.sampled_from([NORMAL, SUBNORMAL, EXTREME]))
def test_raw_rows(seed, tokens, columns, half, style):
    rng, dim = np.random.default_rng(seed), 16 * columns
    rows = make_rows(rng, (tokens, dim + 16), Kind(16, half=half, style=style)).astype(np.uint16)
    weights, halves, _ = draw_weights(rng, dim)
    shift, factor = int(rng.integers(-150, 150)), int(rng.integers(2**30, 2**31))
    logits = np.zeros(64, np.int32)
    numbers = rng.integers(-(2**15), 2**15, 64 * (dim + 2), np.int16)
    places = address(numbers), address(halves)
    scale, totals = (shift, factor), np.empty(4, np.int64)
    places += *scale, address(logits), address(totals)
    score_rows(address(rows), rows.strides[0], tokens, dim, int(half), *places)
    assert ints(logits[:tokens]) == twin.score_rows(rows[:, :dim], half, weights, shift, factor)
    shares = np.where(rng.random(64) < 0.3, 0, rng.integers(0, 65536, 64)).astype(np.int32)
    weights, halves, _ = draw_weights(rng, 64)
    halves[tokens:] = 0
    scaled, sums = np.full(64, -7, np.int32), np.zeros((2, dim), np.int32)
    top = weigh_rows(address(numbers), tokens, dim, *(address(a) for a in (shares, halves, scaled, *sums)))
    wanted = twin.scale_by_rows(rows[:, :dim], half, ints(shares[:tokens]))
    exponents = numbers[64 * dim :].view(np.int32)[:tokens]
    assert (ints(scaled[:tokens]), ints(exponents), int(top)) == wanted
    assert not scaled[tokens:].any()
    sums = sums.astype(np.int64)
    assert ints(sums[0] * 256 + sums[1]) == twin.weigh_rows(rows[:, :dim], half, weights[:tokens], wanted[1])


# -- softmax ---------------------------------------------------------------------------------------------------------


@thorough
@given(seeds, st.integers(1, 64), bit_sizes, st.integers(-200, 200), st.booleans())
def test_logits_saturate_as_they_should(seed, count, bits, shift, extreme):
    rng, room = np.random.default_rng(seed), bits + 24
    sums, logits = np.zeros(96, np.int32), np.zeros(96, np.int32)
    sums[:count] = draw_numbers(rng, count, min(room, 31) - 1)
    logits[:count] = draw_numbers(rng, count, 29)
    zero = int(draw_numbers(rng, 1, 30)[0]) << int(rng.integers(0, 9))
    if extreme:
        sums[:count], zero = rng.choice([-(2**31), 2**31 - 1], count) if room > 30 else 2**room - 1, 2**38 - 1
    factor = int(rng.integers(2**30, 2**31))
    wanted = twin.add_logits(ints(sums[:count]), zero, room, shift, factor, ints(logits[:count]))
    add_logits(address(sums), count, zero, room, shift, factor, address(logits))
    assert ints(logits[:count]) == wanted


@thorough
@given(st.integers(-(2**60), 2**60), st.integers(0, 60), st.integers(-300, 300), st.integers(2**30, 2**31 - 1))
def test_one_logit(number, down, shift, factor):
    number >>= down
    assert scale_logit(number, shift, factor) == twin.scale_logit(number, shift, factor)


@pytest.mark.parametrize("whole", [0, 1, 15, 16, 17, 30, 31, 32, 1000, 16384])
def test_every_power_of_two_is_its_twins_and_off_by_at_most_2(whole):
    below = (np.arange(0, 65536, 16 if INTERPRETED else 1) + (whole << 16)).astype(np.int32)
    shares = np.zeros(len(below), np.int32)
    for i in range(0, len(below), 16):
        raise_two(address(below[i:]), address(shares[i:]))
    assert ints(shares) == [twin.raise_two(int(b)) for b in below]
    assert np.abs(shares - 2.0 ** (16 - below / 65536)).max() <= 2


@thorough
@given(seeds, st.integers(1, 64), st.sampled_from(["any", "near", "equal", "limits", "masked", "some masked"]))
def test_shares_of_a_block(seed, count, style):
    rng = np.random.default_rng(seed)
    first = int(rng.integers(0, min(15, 64 - count) + 1))
    logits, shares = np.zeros(112, np.int32), np.full(112, -1, np.int32)
    logits[:count] = {
        "any": rng.integers(-(2**29), 2**29 + 1, count),
        "near": rng.integers(-(2**20), 2**20, count),
        "equal": np.full(count, rng.integers(-(2**29), 2**29)),
        "limits": rng.choice([-(2**29), 2**29], count),
        "masked": np.full(count, -(2**30)),
        "some masked": np.where(rng.random(count) < 0.5, -(2**30), rng.integers(-(2**20), 2**20, count)),
    }[style]
    exponent, total = weigh_logits(address(logits), count, address(shares), first)
    wanted, own = twin.weigh_logits(ints(logits[:count]))
    assert (int(exponent), int(total)) == (wanted, sum(own))
    if total:
        assert ints(shares[first : first + count]) == own
        if first or count < 64:
            around = np.concatenate([shares[:first], shares[first + count : (first + count + 15) // 16 * 16]])
            assert not around.any()


class Held:
    """A state as kernels hold it, and its twin."""

    def __init__(self, dim):
        self.twin, self.state, self.outputs = twin.State(dim), np.zeros(3, np.int64), np.zeros(dim, np.int64)
        self.state[:] = [twin.EMPTY, 0, twin.EMPTY]

    def same(self):
        return (ints(self.state), ints(self.outputs)) == self.twin.integers


def add_random_block(rng, held):
    """Enter one block of 16 outputs more of a random size and exponent."""
    at, room = 16 * int(rng.integers(0, len(held.outputs) // 16)), int(rng.choice([23, 25, 29, 31]))
    exponent, power = int(rng.integers(-300, 300)), int(rng.integers(-300, 300))
    if rng.random() < 0.7:  # near what is there
        exponent, power = (int(x % 64) + int(rng.integers(-40, 40)) for x in held.state[[0, 2]])
    sums, zero = draw_numbers(rng, 16, room - 1), int(draw_numbers(rng, 1, 30)[0]) << int(rng.integers(0, 9))
    total = int(rng.integers(1, 64 * 65536))
    twin.count_shares(held.twin, exponent, total)
    twin.add_outputs(held.twin, at, ints(sums), zero, room, power)
    places = address(held.outputs), len(held.outputs), address(held.outputs[at:])
    add_block(address(held.state), exponent, total, address(sums), 16, zero, room, power, *places)


@thorough
@given(seeds, st.integers(1, 3), st.integers(0, 12), st.integers(0, 12))
def test_blocks_add_up_and_states_merge(seed, tiles, blocks, others):
    rng = np.random.default_rng(seed)
    one, other = Held(16 * tiles), Held(16 * tiles)
    for held, count in ((one, blocks), (other, others)):
        for _ in range(count):
            add_random_block(rng, held)
            assert held.same()
    for _ in range(3):  # the third one is merged into what holds it twice
        twin.merge_state(one.twin, other.twin)
        merge_state(*map(address, (one.state, one.outputs, other.state, other.outputs)), 16 * tiles)
        assert one.same()


def test_a_state_holds_2_27_tokens():
    shares = twin.weigh_logits([0] * 64)[1]
    state = twin.State(0)
    twin.count_shares(state, 0, sum(shares))
    assert state.total * (2**27 // 64) < 2**63


def test_outputs_make_room_before_they_overflow():
    one, other = Held(16), Held(16)
    for held, most in ((one, 2**60 - 5), (other, 2**47)):
        held.outputs[:] = held.twin.outputs = [most, -most] * 8
        held.twin.top, held.twin.total, held.twin.scale = 3, 1 << 40, 9
        held.state[:] = 3, 1 << 40, 9
    twin.merge_state(one.twin, other.twin)
    merge_state(*map(address, (one.state, one.outputs, other.state, other.outputs)), 16)
    assert one.same()
    assert one.state[2] == 11
