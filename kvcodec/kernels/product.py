"""Product codes: for each group of components the centroid, and for all of them one shape, that miss the least.

With a component's books B (what 256 centroids have in it) a vector y is coded as s * B[k], a code k for each group. For
every s the square of what is missed is |y|² + Σ (s² |B[k]|² - 2 s B[k] · y): products with all centroids are made once
and serve all shapes. Every number is a chain of rounded products and sums, the same on every processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._centroids import (
    CENTROIDS,
    TRIES,
    find_least,
    load_float,
    store_float,
    store_least_of_four,
    sum_woven,
)
from kvcodec.kernels._jit import inline, jit
from kvcodec.kernels._projection_tiles import COLUMNS
from kvcodec.kernels._sums import scale_sums
from kvcodec.kernels.projection import project_tile

BLOCK = 12  # vectors whose products are held at once
CHANNELS = 16  # of a row that are summed at once
WORK = 3 * TRIES  # float32
SHAPES = 16
_TILES = CENTROIDS // COLUMNS
_NONE = np.float32(3e38)


@jit
def multiply_books(
    y: NDArray[np.float32], tiles: NDArray[np.float32], ends: NDArray[np.int64], first: Any, count: Any,
    dots: NDArray[np.float32],
) -> None:  # fmt: skip
    """dots (count, groups, 256): vectors y (n, components) from number `first` on times each group's centroids.

    tiles: of each group, one behind the other, (256 / COLUMNS, its components, COLUMNS).
    """
    stride, width = np.int64(4 * y.shape[1]), np.int64(4 * dots.shape[1] * CENTROIDS)
    begin, place = np.int64(0), np.int64(tiles.ctypes.data)
    for g in range(ends.shape[0]):
        size = np.int64(ends[g] - begin)
        for tile in range(_TILES):
            atoms = np.int64(place + 4 * COLUMNS * tile * size)
            source = np.int64(y.ctypes.data + first * stride + 4 * begin)
            sink = np.int64(dots.ctypes.data + 4 * (g * CENTROIDS + tile * COLUMNS))
            project_tile(source, stride, count, atoms, np.int64(4 * COLUMNS), size, sink, width)
        place += 4 * CENTROIDS * size
        begin = np.int64(ends[g])


@inline
def choose_shape(dots: Any, squares: Any, groups: Any, shapes: NDArray[np.float32], first: Any, work: Any) -> Any:
    """Which of TRIES shapes from `first` on misses least. dots, squares: addresses of (groups, 256) of a vector.

    work: address of TRIES factors, as many sums and as many float32 more.
    """
    sums, least = work + 4 * TRIES, work + 8 * TRIES
    for j in range(TRIES):
        store_float(np.float32(np.float32(2) / shapes[first + j]), work + 4 * j)
        store_float(np.float32(0), sums + 4 * j)
    for g in range(groups):
        at = 4 * CENTROIDS * g
        store_least_of_four(squares + at, dots + at, work, least)
        for j in range(TRIES):
            store_float(np.float32(load_float(sums + 4 * j) + load_float(least + 4 * j)), sums + 4 * j)
    best, lowest = np.int64(first), _NONE
    for j in range(TRIES):
        shape = shapes[first + j]
        total = np.float32(np.float32(shape * shape) * load_float(sums + 4 * j))
        if total < lowest:
            best, lowest = np.int64(first + j), total
    return best


@inline
def choose_codes(dots: Any, squares: Any, groups: Any, shape: Any, codes: NDArray[np.uint8], v: Any, work: Any) -> None:
    """codes[v]: the centroids that miss least with a shape, the first of equal ones. As choose_shape."""
    for j in range(TRIES):
        store_float(np.float32(np.float32(2) / shape), work + 4 * j)
    for g in range(groups):
        at = 4 * CENTROIDS * g
        store_least_of_four(squares + at, dots + at, work, work + 8 * TRIES)
        codes[v, g] = np.uint8(find_least(squares + at, dots + at, work, work + 8 * TRIES))


@jit
def code_products(
    y: NDArray[np.float32],
    along: NDArray[np.float32],
    lengths: NDArray[np.float32],
    spread: NDArray[np.float32],
    borders: NDArray[np.float32],
    tiles: NDArray[np.float32],
    ends: NDArray[np.int64],
    squares: NDArray[np.float32],
    leans: NDArray[np.float32],
    mean_square: Any,
    shapes: NDArray[np.float32],
    codes: NDArray[np.uint8],
    chosen: NDArray[np.uint8],
    gains: NDArray[np.float32],
    dots: NDArray[np.float32],
    work: NDArray[np.float32],
) -> None:
    """Codes (n, groups), shapes (n,) and best gains (n,) of vectors y (n, components).

    y: of x / length - mean, in the basis; along: of x / length, along the mean. lengths: of x. spread (components,): by
    which squares of y are weighed for the size of a vector; borders (15,): of those sizes, between the shapes that are
    tried first. squares, leans (groups, 256): of centroids, their squares and their products with
    the mean in the basis. mean_square: of the mean. shapes: float32 (16,). dots: (BLOCK, groups, 256), work space, as
    is work, (WORK,).
    """
    count, groups = y.shape[0], np.int64(ends.shape[0])
    for first in range(0, count, BLOCK):
        held = min(np.int64(BLOCK), np.int64(count - first))
        multiply_books(y, tiles, ends, np.int64(first), held, dots)
        for n in range(held):
            v, size = first + n, np.float32(0)
            for c in range(y.shape[1]):
                size = np.float32(size + np.float32(np.float32(y[v, c] * y[v, c]) * spread[c]))
            begin = np.int64(0)
            for j in range(SHAPES - 1):
                begin += np.int64(size > borders[j])
            begin = min(max(begin - 1, np.int64(0)), np.int64(SHAPES - TRIES))
            own = np.int64(dots.ctypes.data + 4 * CENTROIDS * groups * n)
            best = choose_shape(own, np.int64(squares.ctypes.data), groups, shapes, begin, np.int64(work.ctypes.data))
            shape = shapes[best]
            choose_codes(own, np.int64(squares.ctypes.data), groups, shape, codes, v, np.int64(work.ctypes.data))
            product, square, lean = np.float32(0), np.float32(0), np.float32(0)
            for g in range(ends.shape[0]):
                k = codes[v, g]
                product = np.float32(product + dots[n, g, k])
                square = np.float32(square + squares[g, k])
                lean = np.float32(lean + leans[g, k])
            over = np.float32(np.float32(shape * np.float32(product + lean)) + along[v])
            under = np.float32(np.float32(shape * np.float32(shape * square + np.float32(2) * lean)) + mean_square)
            chosen[v] = np.uint8(best)
            gains[v] = np.float32(np.float32(lengths[v] * over) / max(under, np.float32(1e-30)))


def weave_rows(basis: NDArray[np.int16]) -> NDArray[np.int16]:
    """A basis (components, d) for rebuild_products: (ceil(components / 2), d padded to CHANNELS, 2), padding 0."""
    count, dim = basis.shape
    woven = np.zeros(((count + 1) // 2, -(-dim // CHANNELS) * CHANNELS, 2), np.int16)
    woven[:, :dim, 0] = basis[::2]
    woven[: count // 2, :dim, 1] = basis[1::2]
    return woven


@inline
def sum_components(
    codes: NDArray[np.uint8], n: Any, basis: NDArray[np.int16], books: NDArray[np.int8], ends: NDArray[np.int64],
    numbers: NDArray[np.int16], sums: NDArray[np.int32],
) -> None:  # fmt: skip
    """sums (d padded to CHANNELS,): of basis rows times what the centroids of codes[n] have in them, exact.

    basis: see weave_rows. books (components, 256). numbers: zeros (components, and one more if they are odd), work
    space.
    """
    begin = np.int64(0)
    for g in range(ends.shape[0]):
        k = codes[n, g]
        for i in range(begin, ends[g]):
            numbers[i] = np.int16(books[i, k])
        begin = np.int64(ends[g])
    stride, half = np.int64(4 * basis.shape[1]), np.int64(basis.shape[0])
    for c in range(0, basis.shape[1], CHANNELS):
        place = np.int64(basis.ctypes.data + 4 * c)
        sum_woven(place, stride, np.int64(numbers.ctypes.data), half, np.int64(sums.ctypes.data + 4 * c))


@jit
def rebuild_products(
    codes: NDArray[np.uint8],
    basis: NDArray[np.int16],
    books: NDArray[np.int8],
    ends: NDArray[np.int64],
    scales: NDArray[np.float32],
    gains: NDArray[np.float32],
    mean: NDArray[np.float32],
    numbers: NDArray[np.int16],
    sums: NDArray[np.int32],
    out: NDArray[np.float32],
) -> None:
    """out (n, d) = scale * (sum of basis rows times what the coded centroids have in them, exact) + gain * mean.

    scales, gains: (n,). basis, books, numbers, sums: see sum_components.
    """
    for n in range(codes.shape[0]):
        sum_components(codes, n, basis, books, ends, numbers, sums)
        scale_sums(sums, scales[n], gains[n], mean, out, n)
