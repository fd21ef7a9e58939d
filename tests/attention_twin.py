"""Naive twins of the parts of the attention kernels, under the kernels' names. Nothing here imports kvcodec.

Numbers are Python's, without bounds, or int64 where every sum fits one; where a kernel drops bits, rounds, saturates or
wraps, it is written out. docs/attention.md says it in words, tests/attention_whole.py puts the parts together.
"""

from __future__ import annotations

import math

import numpy as np

LIMIT = 2**29
MASKED = -(2**30)
EMPTY = -(2**40)
PART_BITS = {2: 4, 4: 4, 8: 1}
FRACTION = {False: 7, True: 10}
BIAS = {False: 141, True: 29}


class State:
    """What strips leave of a query head."""

    def __init__(self, dim):
        self.top, self.total, self.scale = EMPTY, 0, EMPTY
        self.outputs = [0] * dim

    @property
    def integers(self):
        return [self.top, self.total, self.scale], self.outputs


def clamp(number, least, most):
    return min(max(number, least), most)


def signed(number, bits):
    """A number modulo 2**bits, as a signed one."""
    return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def shift_left(number, by):
    """number * 2**by, rounded down."""
    return number << by if by >= 0 else number >> -by


def round_half(number, by):
    """number / 2**by to the nearest integer, halves up."""
    return (number + (1 << by >> 1)) >> by


def mantissa(scale):
    return scale % 128 + 128


# -- queries ---------------------------------------------------------------------------------------------------------


def quantize_queries(q, dims, scale):
    """(numbers, shift, factor) of one query head: float64 channels of streams of `dims`, one behind the other."""
    greatest = max(abs(x) for x in q)
    up = 22 - math.frexp(greatest)[1] if greatest else 0
    numbers, at = [], 0
    for dim in dims:
        numbers += [round(math.ldexp(float(x), up)) for x in q[at : at + dim]] + [0] * (-dim % 16)
        at += dim
    fraction, exponent = math.frexp(scale * math.log2(math.e))
    return numbers, exponent - 31 - up, min(round(fraction * 2**31), 2**31 - 1)


# -- folds -----------------------------------------------------------------------------------------------------------


def scale_numbers(numbers, scales):
    """(numbers times scales, exponent)."""
    exponent = max([0] + [s >> 7 for n, s in zip(numbers, scales, strict=True) if n])
    scaled = [n and n * mantissa(s) >> min(exponent - (s >> 7), 31) for n, s in zip(numbers, scales, strict=True)]
    return scaled, exponent


def round_weights(scaled, width):
    """(weights, shift)."""
    greatest = max(abs(n) for n in scaled)
    shift = max((greatest + (greatest >> 7)).bit_length() - (width - 1), 0)
    return [round_half(n, shift) for n in scaled], shift


def split_weights(weights):
    """(high bytes, low bytes): high * 256 + low, both signed."""
    return [(w + 128) >> 8 for w in weights], [signed(w, 8) for w in weights]


def fold_scales(numbers, scales, width):
    """(weights, exponent)."""
    scaled, exponent = scale_numbers(numbers, scales)
    weights, shift = round_weights(scaled, width)
    return weights, exponent + shift


def fold_numbers(numbers, width):
    """(weights, exponent)."""
    return round_weights(numbers, width)


def add_zeros(weights, zeros, part):
    return round_half(sum(w * int(z) for w, z in zip(weights, zeros, strict=True)), part)


def add_weights(weights):
    return sum(weights)


def read_zeros(bits, weights, zeros):
    """Sum of weights times zeros, in steps; without zeros, times the constant one of symmetric codes."""
    if zeros is None:
        return -add_weights(weights) << bits - 1
    return add_zeros(weights, zeros, PART_BITS[bits])


# -- products --------------------------------------------------------------------------------------------------------


def dot_tiles(codes, weights):
    """Sums of codes (lanes, n) times n weights, int32."""
    return [signed(int(s), 32) for s in codes.astype(np.int64) @ np.array(weights, np.int64)]


def weigh_tokens(codes, weights):
    """Sums of codes (tokens, channels) times a weight each token, int32."""
    return dot_tiles(codes.T, weights)


# -- raw rows --------------------------------------------------------------------------------------------------------


def find_exponent(row, half):
    return max(1, *(int(x) % 0x8000 >> FRACTION[half] for x in row))


def align_numbers(row, exponent, half):
    """Numbers of 15 bits and sign at a row's exponent, rounded, halves away from 0."""
    fraction, aligned = FRACTION[half], []
    for x in map(int, row):
        field = x % 0x8000 >> fraction
        number = x % (1 << fraction) + (1 << fraction if field else 0)
        number = ((number << 15 - fraction >> min(exponent - max(field, 1), 31)) + 1) >> 1
        aligned.append(-number if x & 0x8000 else number)
    return aligned


def score_rows(rows, half, weights, shift, factor):
    """What raw rows (tokens, n) times n weights add to logits."""
    logits = []
    for row in rows:
        exponent = find_exponent(row, half)
        total = sum(a * w for a, w in zip(align_numbers(row, exponent, half), weights, strict=True))
        logits.append(scale_logit(total, shift + exponent - BIAS[half], factor))
    return logits


def scale_by_rows(rows, half, shares):
    """(shares times 2**7 and their rows' exponents, exponents, the one that they are relative to)."""
    exponents = [find_exponent(row, half) for row in rows]
    top = max([0] + [e for e, share in zip(exponents, shares, strict=True) if share])
    return [s << 7 >> clamp(top - e, 0, 31) for s, e in zip(shares, exponents, strict=True)], exponents, top


def weigh_rows(rows, half, weights, exponents):
    """Channels of raw rows times a weight each."""
    aligned = [align_numbers(row, e, half) for row, e in zip(rows, exponents, strict=True)]
    return [sum(x * w for x, w in zip(column, weights, strict=True)) for column in zip(*aligned, strict=True)]


# -- codes over a dictionary ------------------------------------------------------------------------------------------


def quantize_mean(mean):
    """(a mean's channels as integers, the power of two that they are multiplied by)."""
    power = math.frexp(max(abs(x) for x in mean))[1] - 22
    return [round(math.ldexp(x, -power)) for x in mean], power


def multiply_atoms(numbers, atoms):
    """(a query's products with atoms (N, dim), 16 bits; their exponent)."""
    weights, exponent = fold_numbers(numbers, 15 if len(numbers) > 512 else 16)
    products, shift = round_weights([int(n) for n in atoms.astype(np.int64) @ np.array(weights)], 16)
    return products, exponent + shift


def score_mean(numbers, mean, shift, factor):
    """What a mean of integers adds to each logit."""
    return scale_logit(sum(n * int(m) for n, m in zip(numbers, mean, strict=True)), shift, factor)


def look_up(products, indices, coefficients):
    """Sums of coefficients (tokens, terms) times products, int32."""
    rows = zip(indices.tolist(), coefficients.tolist(), strict=True)
    return [signed(sum(c * products[i] for i, c in zip(*row, strict=True)), 32) for row in rows]


def scale_total(total, scale, left, factor):
    """What a token's sum of products adds to its logit."""
    multiplier, left = mantissa(scale) * (factor >> 8), clamp(left, -1024, 1024) + (scale >> 7)
    if multiplier < 2**30:
        multiplier, left = 2 * multiplier, left - 1
    left = clamp(left, -31, 30)
    if left >= 0:
        total = clamp(total, -(2**31 - 1 >> left), 2**31 - 1 >> left)
    return clamp(shift_left(total, left) * multiplier >> 32, -LIMIT, LIMIT)


class Buckets:
    """What tokens leave of a query head until the atoms are multiplied."""

    def __init__(self, atoms):
        self.exponent, self.numbers, self.shares = EMPTY, [0] * atoms, State(0)


def fill_buckets(buckets, indices, coefficients, scales, shares, exponent):
    """Add codes (tokens, terms), times shares of 2**exponent and scales."""
    weights, power = fold_scales(shares, scales, 16)
    unit = exponent + power - 134 - 16
    if unit > buckets.exponent:
        if buckets.exponent > EMPTY:
            buckets.numbers = [n >> min(unit + 4 - buckets.exponent, 63) for n in buckets.numbers]
        buckets.exponent = unit + 4
    for weight, row, codes in zip(weights, indices.tolist(), coefficients.tolist(), strict=True):
        for i, code in zip(row, codes, strict=True):
            buckets.numbers[i] += (weight << 16 >> min(buckets.exponent - unit, 31)) * code
    count_shares(buckets.shares, exponent, sum(shares))


def empty_buckets(buckets, atoms, mean, power, state):
    """Add buckets to outputs: times the atoms, and the shares times a mean of integers times 2**power."""
    shares = buckets.shares
    if not shares.total:
        return
    shift = max(max(max(n, ~n) for n in buckets.numbers).bit_length() - 29, 0)
    numbers = [round_half(n, shift) for n in buckets.numbers]
    totals = [sum(n * int(a) for n, a in zip(numbers, column, strict=True) if n) for column in atoms.T]
    add_totals(state, totals, buckets.exponent - 16 + shift)
    if mean is not None:
        spare = max(shares.total.bit_length() - 31, 0)
        add_totals(state, [(shares.total >> spare) * int(m) for m in mean], shares.top - 36 + spare + power)


def add_totals(state, totals, exponent):
    """Add totals * 2**exponent to all outputs."""
    if any(totals):
        raise_outputs(state, exponent + max(abs(t) for t in totals).bit_length())
        left = max(47 - state.scale + exponent, -63)
        state.outputs = [x + shift_left(t, left) for x, t in zip(state.outputs, totals, strict=True)]


# -- softmax ---------------------------------------------------------------------------------------------------------


def add_logits(sums, zero, room, shift, factor, logits):
    """Logits, to each of which (sum + zero) * 2**shift * factor / 2**32 was added."""
    spare = max(zero.bit_length(), room, 30) - 30
    left = clamp(shift + spare, -31, 30)
    most = 2**31 - 1 >> max(left, 0)
    added = []
    for logit, total in zip(logits, sums, strict=True):
        number = (total >> spare) + (zero >> spare)
        if left >= 0:
            number = clamp(number, -most, most)
        added.append(clamp(logit + (shift_left(number, left) * factor >> 32), -LIMIT, LIMIT))
    return added


def scale_logit(number, shift, factor):
    """number * 2**shift * factor / 2**32, saturating."""
    spare = max(number.bit_length() - 31, 0)
    left = clamp(shift + spare, -31, 30)
    number >>= spare
    if left >= 0:
        number = clamp(number, -(2**31 - 1 >> left), 2**31 - 1 >> left)
    return clamp(shift_left(number, left) * factor >> 32, -LIMIT, LIMIT)


def add_logit(logit, more):
    return clamp(logit + more, -LIMIT, LIMIT)


def raise_two(below):
    """2**-below as Q16."""
    fraction, whole = below % 65536, min(below >> 16, 31)
    number = 3482 - (fraction * 443 >> 16)
    number = 15691 - (number * fraction >> 16)
    number = 45419 - (number * fraction >> 16)
    number = 65535 - (number * fraction >> 16)
    return round_half(number, whole)


def weigh_logits(logits):
    """(exponent, shares)."""
    if max(logits) == MASKED:
        return 0, [0] * len(logits)
    exponent = -(-max(logits) >> 16)
    return exponent, [raise_two((exponent << 16) - logit) for logit in logits]


def count_shares(state, exponent, total):
    if exponent > state.top:
        state.total >>= min(exponent - state.top, 63)
        state.top = exponent
    state.total += total << 20 >> min(state.top - exponent, 63)


def raise_outputs(state, exponent):
    if exponent > state.scale:
        state.outputs = [x >> min(exponent - state.scale, 63) for x in state.outputs]
        state.scale = exponent


def add_outputs(state, at, sums, zero, room, exponent):
    """Add (sum + zero) * 2**exponent to the outputs from number `at` on."""
    raise_outputs(state, exponent + max(zero.bit_length(), room) + 1)
    left = max(47 - state.scale + exponent, -63)
    for c, total in enumerate(sums, at):
        state.outputs[c] += shift_left(total + zero, left)


def merge_state(state, other):
    if not other.total:
        return
    raise_outputs(state, other.scale)
    down = min(state.scale - other.scale, 63)
    state.outputs = [x + (y >> down) for x, y in zip(state.outputs, other.outputs, strict=True)]
    if max(map(abs, state.outputs)) >= 2**60:
        raise_outputs(state, state.scale + 2)
    top = max(state.top, other.top)
    state.total = (state.total >> min(top - state.top, 63)) + (other.total >> min(top - other.top, 63))
    state.top = top
