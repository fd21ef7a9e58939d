"""Naive twins of kernels/rebuild.py, kept.py and turns.py. Nothing here imports kvcodec."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tests.attention_twin import (
    BIAS,
    add_outputs,
    align_numbers,
    clamp,
    find_exponent,
    fold_numbers,
    mantissa,
    round_half,
    round_weights,
    scale_logit,
    signed,
)

POINTS = [round(math.cos(2 * math.pi * n / 4096) * 2**30) for n in range(4096)]


class Other(NamedTuple):
    """A row kept otherwise: of INT4 scales, zeros and codes; raw the bits of 16-bit floats. Channels not padded."""

    codes: list[int]
    scales: list[int] = []  # noqa: RUF012
    zeros: list[int] = []  # noqa: RUF012
    half: bool = False


def find_turn(angle):
    """Cosine and sine, Q30, of an angle in units of 2**-64 turns."""
    nearest = ((angle + 2**51) % 2**64) >> 52
    small = (signed(angle - (nearest << 52), 64) >> 21) * 1686629713 >> 31
    square = small * small >> 41
    cosine, sine = POINTS[nearest], POINTS[(nearest - 1024) % 4096]
    return (
        cosine - (sine * small >> 40) - (cosine * square >> 40),
        sine + (cosine * small >> 40) - (sine * square >> 40),
    )


def turns_of(steps, position):
    return [find_turn(step * position % 2**64) for step in steps]


def turn_row(numbers, steps, position):
    """A key's numbers turned: cosines and sines in 16 bits, each product rounded."""
    out, pairs = list(numbers), len(steps)
    for c, turn in enumerate(turns_of(steps, position)):
        cosine, sine = (min(round_half(n, 15), 32767) for n in turn)
        x, y = numbers[c], numbers[c + pairs]
        out[c] = round_half(x * cosine, 15) - round_half(y * sine, 15)
        out[c + pairs] = round_half(y * cosine, 15) + round_half(x * sine, 15)
    return out


def turn_query(numbers, steps, position):
    """A query's numbers turned back by position // 64 * 64, in two steps."""
    for back in (position // 4096 * 4096, position // 64 * 64 % 4096):
        out, pairs = list(numbers), len(steps)
        for c, (cosine, sine) in enumerate(turns_of(steps, back)):
            x, y = numbers[c], numbers[c + pairs]
            out[c] = round_half(x * cosine + y * sine, 30)
            out[c + pairs] = round_half(y * cosine - x * sine, 30)
        numbers = out
    return numbers


def rebuild_row(indices, codes, scale, dictionary, steps, position):
    """(numbers, exponent) of a row of codes, turned by `position`."""
    own = (scale >> 7) - 134
    exponent = own if dictionary.mean is None else max(own, dictionary.power - 7)
    sums = (np.array(codes) @ dictionary.atoms[indices]).tolist()
    numbers = [s * mantissa(scale) >> min(exponent - own, 31) for s in sums]
    if dictionary.mean is not None:
        up = dictionary.power - exponent
        mean = [int(m) << up if up >= 0 else round_half(int(m), min(-up, 24)) for m in dictionary.mean]
        numbers = [n + m for n, m in zip(numbers, mean, strict=True)]
    pairs = len(steps)
    turning = [abs(one) + abs(two) for one, two in zip(numbers[:pairs], numbers[pairs : 2 * pairs], strict=True)]
    _, shift = round_weights(turning + numbers[2 * pairs :], 16)
    return turn_row([round_half(n, shift) for n in numbers], steps, position), exponent + shift + 141


def align_other(row, dim):
    """(numbers, exponent) of a row kept otherwise, padded with zeros to `dim` channels."""
    pad = [0] * (dim - len(row.codes))
    if not row.scales:
        exponent = find_exponent(row.codes, row.half)
        return align_numbers(row.codes, exponent, row.half) + pad, exponent + BIAS[False] - BIAS[row.half]
    top, numbers = max(s >> 7 for s in row.scales), []
    for c, code in enumerate(row.codes):
        scale = row.scales[c // 32]
        numbers.append((16 * code + row.zeros[c // 32]) * mantissa(scale) >> min(top - (scale >> 7), 31))
    numbers, shift = round_weights(numbers + pad, 16)
    return numbers, top + shift + 141 - 134 - 4


def rebuild_strip(record, start, tokens, position):
    """[(numbers, exponent)] of a strip's rows. record: see attention_whole.Sparse."""
    rows = []
    for t in range(start, start + tokens):
        if t in record.others:
            rows.append(align_other(record.others[t], record.channels))
        else:
            rows.append(record.rebuild(t, position % 64 + t - start))
    return rows


def score_rebuilt(record, start, tokens, position, query, logits):
    """Logits, of which keys that are turned meet the query turned back, and others the query as it is."""
    dim, steps = record.channels, record.dictionary.steps
    numbers = query.numbers[:dim]
    turned = turn_query(numbers, steps, position) if steps else numbers
    for t, (row, exponent) in enumerate(rebuild_strip(record, start, tokens, position)):
        own = numbers if start + t in record.others else turned
        for at in range(0, dim, 256):
            weights, power = fold_numbers(own[at : at + 256], query.width)
            total = sum(x * w for x, w in zip(row[at : at + 256], weights, strict=True))
            part = scale_logit(total, query.shift + power + 48 + exponent - 141, query.factor)
            logits[t] = clamp(logits[t] + part, -(2**29), 2**29)


def value_rebuilt(record, start, tokens, position, shares, exponent, state):
    rows = rebuild_strip(record, start, tokens, position)
    top = max([0] + [e for (_, e), share in zip(rows, shares, strict=True) if share])
    weights, power = fold_numbers([s << 7 >> clamp(top - e, 0, 31) for s, (_, e) in zip(shares, rows, strict=True)], 16)
    sums = [sum(x * w for x, w in zip(c, weights, strict=True)) for c in zip(*(row for row, _ in rows), strict=True)]
    add_outputs(state, 0, sums, 0, 37, exponent + top + power - 141 - 7 - 16)
