"""Trellis codes: for all components of a vector the path through a trellis, and one shape, that miss the least.

A component's entry of its table is named by the last bits of its path, of which only the lowest are its own
(formats/trellis.md). The path begins with the last component, so that the first one's bits come out lowest. What paths
cost is counted in the weight of the component that they have come to. Every number is a chain of rounded products and
sums, the same on every processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import inline, jit
from kvcodec.kernels._paths import step_paths
from kvcodec.kernels._sums import scale_sums

SHAPES = 16
PADDING = 3  # bytes that decoders may read behind a row's bits
_NO_PATH = np.float32(1e30)
_NONE = np.float32(3e38)


@inline
def find_paths(
    y: NDArray[np.float32], v: Any, shape: Any, units: NDArray[np.float32], rates: NDArray[np.int64],
    places: NDArray[np.int64], tables: NDArray[np.float32], ratios: NDArray[np.float32], window: Any,
    costs: NDArray[np.float32], back: NDArray[np.uint8],
) -> Any:  # fmt: skip
    """The state, of 2**window, that the best path of vector y[v] ends in, the least of equal ones.

    Its cost is in costs[components % 2]; back (components, 2**(window - 1)) leads along it. See code_trellis.
    """
    count, states = y.shape[1], costs.shape[1]
    for n in range(states):
        costs[0, n] = _NO_PATH
    costs[0, 0] = np.float32(0)
    at, to = np.int64(costs.ctypes.data), np.int64(costs.ctypes.data + 4 * states)
    for i in range(count - 1, -1, -1):
        number = np.float32(y[v, i] / np.float32(units[i] * shape))
        step_paths(
            at, to, np.int64(back.ctypes.data + i * back.shape[1]),
            np.int64(tables.ctypes.data + 4 * states * places[i]), number, ratios[i], rates[i], np.int64(window),
        )  # fmt: skip
        at, to = to, at
    best, own = np.int64(0), count % 2
    for n in range(states):
        if costs[own, n] < costs[own, best]:
            best = np.int64(n)
    return best


@inline
def put_path(
    state: Any, back: NDArray[np.uint8], rates: NDArray[np.int64], window: Any, path: NDArray[np.int64],
    bits: NDArray[np.uint8], v: Any,
) -> None:  # fmt: skip
    """The states (components,) of the path that ends in one, and in bits[v] what of them is each component's own."""
    for n in range(bits.shape[1]):
        bits[v, n] = np.uint8(0)
    at = np.int64(0)
    for i in range(rates.shape[0]):
        path[i] = state
        own = np.int64((state & ((np.int64(1) << rates[i]) - 1)) << (at & 7))
        bits[v, at >> 3] = np.uint8(np.int64(bits[v, at >> 3]) | (own & 255))
        if own > 255:
            bits[v, (at >> 3) + 1] = np.uint8(own >> 8)
        at += rates[i]
        before = state >> rates[i]
        state = np.int64(before | (np.int64(back[i, before]) << (np.int64(window) - rates[i])))


@inline
def refit_gain(
    y: NDArray[np.float32], v: Any, along: Any, shape: Any, path: NDArray[np.int64], places: NDArray[np.int64],
    tables: NDArray[np.float32], units: NDArray[np.float32], means: NDArray[np.float32], mean_square: Any,
) -> Any:  # fmt: skip
    """Of a vector of length 1 the gain at which the path's numbers miss least."""
    product, square, lean = np.float32(0), np.float32(0), np.float32(0)
    for i in range(path.shape[0]):
        number = np.float32(tables[places[i], path[i]] * units[i])
        product = np.float32(product + np.float32(number * y[v, i]))
        square = np.float32(square + np.float32(number * number))
        lean = np.float32(lean + np.float32(number * means[i]))
    over = np.float32(np.float32(shape * np.float32(product + lean)) + along)
    under = np.float32(np.float32(shape * np.float32(shape * square + np.float32(2) * lean)) + mean_square)
    return np.float32(over / max(under, np.float32(1e-30)))


@inline
def suggest_shape(
    y: NDArray[np.float32], v: Any, spread: NDArray[np.float32], borders: NDArray[np.float32]
) -> Any:  # fmt: skip
    """The shape that is nearest to a vector's size."""
    size, found = np.float32(0), np.int64(0)
    for c in range(y.shape[1]):
        size = np.float32(size + np.float32(np.float32(y[v, c] * y[v, c]) * spread[c]))
    for j in range(SHAPES - 1):
        found += np.int64(size > borders[j])
    return found


@jit
def code_trellis(
    y: NDArray[np.float32],
    along: NDArray[np.float32],
    lengths: NDArray[np.float32],
    spread: NDArray[np.float32],
    borders: NDArray[np.float32],
    units: NDArray[np.float32],
    rates: NDArray[np.int64],
    places: NDArray[np.int64],
    tables: NDArray[np.float32],
    ratios: NDArray[np.float32],
    means: NDArray[np.float32],
    mean_square: Any,
    shapes: NDArray[np.float32],
    window: Any,
    bits: NDArray[np.uint8],
    chosen: NDArray[np.uint8],
    gains: NDArray[np.float32],
    costs: NDArray[np.float32],
    back: NDArray[np.uint8],
    path: NDArray[np.int64],
) -> None:
    """Bits (n, code bytes), shapes (n,) and best gains (n,) of vectors y (n, components).

    y, along, lengths, spread, borders, mean_square, shapes: see code_products. Shapes are tried from the one that is
    nearest to a vector's size upwards, as long as each misses less than the one before. units, rates, places, means
    (components,): what 1 in the tables is, bits, number of the table, the mean in the basis. tables: of integers
    (tables, 2**window). ratios: the weight, units squared, of the next component over that of this one, 1 of the last.
    costs (2, 2**window), back (components, 2**(window - 1)) and path (components,): work space.
    """
    own = y.shape[1] % 2
    for v in range(y.shape[0]):
        lowest = _NONE
        for j in range(suggest_shape(y, v, spread, borders), SHAPES):
            state = find_paths(y, v, shapes[j], units, rates, places, tables, ratios, window, costs, back)
            total = np.float32(np.float32(shapes[j] * shapes[j]) * costs[own, state])
            if not total < lowest:
                break
            lowest = total
            chosen[v] = np.uint8(j)
            put_path(state, back, rates, window, path, bits, v)
            gain = refit_gain(y, v, along[v], shapes[j], path, places, tables, units, means, mean_square)
            gains[v] = np.float32(lengths[v] * gain)


@jit
def walk_trellis(
    y: NDArray[np.float32],
    rates: NDArray[np.int64],
    places: NDArray[np.int64],
    tables: NDArray[np.float32],
    ones: NDArray[np.float32],
    window: Any,
    bits: NDArray[np.uint8],
    costs: NDArray[np.float32],
    back: NDArray[np.uint8],
    states: NDArray[np.int64],
) -> None:
    """States (n, components) of the best paths of numbers y (n, components) in the tables' own units.

    ones: float32 (components,). bits (1, code bytes): work space. See code_trellis.
    """
    for v in range(y.shape[0]):
        state = find_paths(y, v, np.float32(1), ones, rates, places, tables, ones, window, costs, back)
        put_path(state, back, rates, window, states[v], bits, 0)


@jit
def rebuild_trellis(
    bits: NDArray[np.uint8],
    basis: NDArray[np.int16],
    rates: NDArray[np.int64],
    places: NDArray[np.int64],
    tables: NDArray[np.int16],
    window: Any,
    scales: NDArray[np.float32],
    gains: NDArray[np.float32],
    mean: NDArray[np.float32],
    sums: NDArray[np.int32],
    out: NDArray[np.float32],
) -> None:
    """out (n, d) = scale * (sum of basis rows times entries of tables, exact) + gain * mean.

    bits (n, code bytes + PADDING); basis (components, d); rates, places, tables: see code_trellis. scales, gains: (n,).
    sums: (d,), work space.
    """
    mask = np.int64((np.int64(1) << np.int64(window)) - 1)
    for n in range(bits.shape[0]):
        for c in range(sums.shape[0]):
            sums[c] = np.int32(0)
        at = np.int64(0)
        for i in range(basis.shape[0]):
            byte = at >> 3
            near = np.int64(bits[n, byte]) | np.int64(bits[n, byte + 1]) << 8 | np.int64(bits[n, byte + 2]) << 16
            state = np.int64((near >> (at & 7)) & mask)
            number = np.int32(tables[places[i], state])
            for c in range(sums.shape[0]):
                sums[c] = np.int32(sums[c] + np.int32(number * np.int32(basis[i, c])))
            at += rates[i]
        scale_sums(sums, scales[n], gains[n], mean, out, n)
