"""Naive twins of attention over product codes: its parts, and one head of a record. Nothing here imports kvcodec."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.attention_twin import (
    EMPTY,
    State,
    add_logit,
    add_totals,
    count_shares,
    mantissa,
    round_half,
    round_weights,
    scale_total,
    shift_left,
)
from tests.rebuilt_twin import Other, turn_row

LARGEST_SUM, ROUNDING = 2**31, 64


class Books(NamedTuple):
    """Product codes of a stream in plain numbers: int basis (components, dim), channels padded to 16, and books
    (components, 256); where groups end; scales (256, 16) and gains (256,), bits of bfloat16; a mean of integers times
    2**power, or None. steps: by which the pairs of its keys turn, in 2**-64 turns.
    """

    basis: np.ndarray
    books: np.ndarray
    ends: tuple[int, ...]
    scales: np.ndarray
    gains: np.ndarray
    mean: np.ndarray | None = None
    power: int = 0
    steps: tuple[int, ...] = ()

    @property
    def group_of(self):
        """The group of each component."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))


class Coded(NamedTuple):
    """One head of a record of product codes; tokens padded to 64. codes (tokens, groups), gains and shapes (tokens,).
    others: rows by token that are kept otherwise.
    """

    codes: np.ndarray
    gains: np.ndarray
    shapes: np.ndarray
    dictionary: Books
    others: dict[int, Other] = {}  # noqa: RUF012
    bits: int = 0

    @property
    def rebuilt(self):
        return bool(self.others or self.dictionary.steps)

    @property
    def channels(self):
        return self.dictionary.basis.shape[1]

    def rebuild(self, token, turned):
        """(numbers, exponent) of a row of codes, turned by so many positions."""
        own, ((scale,), (gain,)) = self.dictionary, self.sides(slice(token, token + 1))
        sums = (own.books[np.arange(len(own.books)), self.codes[token, own.group_of]] @ own.basis).tolist()
        numbers, exponent = put_together(sums, scale, gain, own)
        pairs = len(own.steps)
        joint = [abs(x) + abs(y) for x, y in zip(numbers[:pairs], numbers[pairs : 2 * pairs], strict=True)]
        _, shift = round_weights(joint + numbers[2 * pairs :], 16)
        return turn_row([round_half(n, shift) for n in numbers], own.steps, turned), exponent + shift + 141

    def sides(self, span):
        """Bits of the scales and of the gains of tokens."""
        own = self.dictionary
        return own.scales[self.gains[span], self.shapes[span]].tolist(), own.gains[self.gains[span]].tolist()


def put_together(sums, scale, gain, own, told=(0,), factor=0):
    """(numbers, exponent): sums times a scale, a mean times a gain, and sums of what is predicted times a factor."""
    parts = [weigh_sums(sums, scale)] if scale else []
    if own.mean is not None and gain:
        parts.append(([round_half(int(m) * mantissa(gain), 2) for m in own.mean], (gain >> 7) - 134 + own.power + 2))
    if factor:
        parts.append(weigh_sums(told, factor))
    if not parts:
        return [0] * len(sums), weigh_sums(sums, scale)[1]
    exponent = max(own for _, own in parts)
    rounded = [[round_half(n, min(exponent - own, 31)) for n in numbers] for numbers, own in parts]
    return [sum(column) for column in zip(*rounded, strict=True)], exponent


def weigh_sums(sums, scale):
    """(numbers, exponent): sums of 20 bits and sign times the mantissa of a bfloat16."""
    down = max(max(map(abs, sums)).bit_length() - 20, 0)
    return [round_half(n, down) * mantissa(scale) for n in sums], (scale >> 7) - 134 + down


def multiply_basis(numbers, basis):
    """(a query's components, 16 bits; their exponent)."""
    totals = [sum(n * int(b) for n, b in zip(numbers, row, strict=True)) for row in basis]
    greatest = max(map(abs, totals))
    shift = max((greatest + (greatest >> 7)).bit_length() - 15, 0)
    return [round_half(n, shift) for n in totals], shift


def multiply_mean(numbers, mean):
    """(a query's product with a mean of integers, 31 bits; its exponent)."""
    total = sum(n * int(m) for n, m in zip(numbers, mean, strict=True))
    spare = max(total.bit_length() - 31, 0)
    return total >> spare, spare


def scale_part(total, scale, left, factor):
    """What a total adds to a logit, times a scale."""
    return scale_total(total, scale, left - 134 + 48 + 8, factor) if scale else 0


def score_products(record, span, query, logits):
    """Add what product codes give to logits: first the mean, then the centroids."""
    own = record.dictionary
    numbers = query.numbers[: own.basis.shape[1]]
    components, exponent = multiply_basis(numbers, own.basis)
    mean, power = (0, 0) if own.mean is None else multiply_mean(numbers, own.mean)
    totals = (own.books[np.arange(len(own.books)), record.codes[span][:, own.group_of]] * components).sum(axis=1)
    scales, gains = record.sides(span)
    for t, total in enumerate(totals.tolist()):
        assert abs(total) < 2**31
        logits[t] = add_logit(logits[t], scale_part(mean, gains[t], query.shift + power + own.power, query.factor))
        logits[t] = add_logit(logits[t], scale_part(total, scales[t], query.shift + exponent, query.factor))


class Centroids:
    """What tokens leave of a query head until the centroids are multiplied. total: of the weights."""

    def __init__(self, own):
        self.exponent, self.total, self.shares = EMPTY, 0, State(0)
        self.numbers = np.zeros((len(own.ends), 256), np.int64)


def multiply_shares(shares, scales):
    """(shares times scales, the exponent field that they are relative to)."""
    top = max([0] + [s >> 7 for n, s in zip(shares, scales, strict=True) if n])
    return [s and n * mantissa(s) >> min(max(top - (s >> 7), 0), 31) for n, s in zip(shares, scales, strict=True)], top


def make_room(held, unit, total):
    """How far weights in units of 2**unit are shifted up."""
    up = unit - held.exponent
    if up + total.bit_length() > 31 or shift_left(total, max(up, -31)) >= LARGEST_SUM - ROUNDING - held.total:
        exponent = unit + total.bit_length()
        if held.total:
            exponent = max(exponent, held.exponent + held.total.bit_length())
        down = min(exponent - 27 - held.exponent, 31)
        held.exponent = exponent - 27
        if held.total:
            held.total, held.numbers = round_half(held.total, down), (held.numbers + (1 << down >> 1)) >> down
    return unit - held.exponent


def fill_products(held, record, span, shares, exponent):
    """Add codes, times shares of 2**exponent and scales."""
    scales, gains = record.sides(span)
    if record.dictionary.mean is not None:
        products, top = multiply_shares(shares, gains)
        count_shares(held.shares, exponent + top - 134, sum(products))
    products, top = multiply_shares(shares, scales)
    if not any(products):
        return
    up = make_room(held, exponent + top - 134 - 16, sum(products))
    weights = [n << up if up >= 0 else round_half(n, min(-up, 31)) for n in products]
    held.total += sum(weights)
    assert held.total < 2**31
    for row, weight in zip(record.codes[span], weights, strict=True):
        held.numbers[np.arange(len(row)), row] += weight


def empty_products(held, own, state):
    """Add buckets to outputs: times the centroids and the basis, and the shares times a mean."""
    if held.total:
        assert held.numbers.max() < 2**31
        shift = max(held.total.bit_length() - 29, 0)
        numbers = (held.numbers + (1 << shift >> 1)) >> shift
        components = (numbers[own.group_of] * own.books).sum(axis=1).tolist()
        down = max(max(map(abs, components)).bit_length() - 29, 0)
        rounded = [round_half(n, down) for n in components]
        totals = [sum(n * int(b) for n, b in zip(rounded, column, strict=True)) for column in own.basis.T]
        add_totals(state, totals, held.exponent + shift + down)
    shares = held.shares
    if shares.total and own.mean is not None:
        spare = max(shares.total.bit_length() - 31, 0)
        add_totals(state, [(shares.total >> spare) * int(m) for m in own.mean], shares.top - 36 + spare + own.power)


def lay_product_head(record):
    """Bytes of one head of a GROUP record of product codes."""
    blocks = len(record.codes) // 64
    sides = np.stack([record.gains, record.shapes]).reshape(2, blocks, 64).transpose(1, 0, 2)
    codes = record.codes.reshape(blocks, 64, -1).transpose(0, 2, 1)
    return sides.astype(np.uint8).tobytes() + codes.astype(np.uint8).tobytes()
