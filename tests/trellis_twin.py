"""Naive trellis codes, from formats/trellis.md and, of the encoder, from what it promises: all paths one by one."""

import itertools

import numpy as np

F = np.float32


def read_row(row, rates, window):
    """(gain, shape, windows) of a row's bytes."""
    number = int.from_bytes(bytes(row[2:]), "little")
    starts = [sum(rates[:i]) for i in range(len(rates))]
    return row[0], row[1], [number // 2**start % 2**window for start in starts]


def rebuild_row(row, own):
    """float32 (d,) of a row, by a Trellis's arrays."""
    rates = own.rates.tolist()
    gain, shape, windows = read_row(row, rates, own.tables.shape[1].bit_length() - 1)
    ascending = sorted(set(rates))
    sums = [0] * own.basis.shape[1]
    for i, window in enumerate(windows):
        entry = int(own.tables[ascending.index(rates[i]), window])
        sums = [total + entry * int(number) for total, number in zip(sums, own.basis[i], strict=True)]
    gain, scale = own.gain_table[gain], own.scale_table[gain, shape]
    return np.array([F(F(F(t) * scale) + F(gain * m)) for t, m in zip(sums, own.mean, strict=True)], F)


def best_path(y, units, rates, tables, window):
    """(cost, bits of each component) of the cheapest of all paths, in float64. tables: of each component."""
    best = None
    for bits in itertools.product(*(range(2**rate) for rate in rates)):
        number = sum(own << sum(rates[:i]) for i, own in enumerate(bits))
        cost = 0.0
        for i in range(len(rates)):
            entry = float(tables[i][(number >> sum(rates[:i])) % 2**window])
            cost += (float(y[i]) - entry * float(units[i])) ** 2
        if best is None or cost < best[0]:
            best = cost, list(bits)
    return best
