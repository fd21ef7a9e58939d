"""Vectors from atoms: x = scale * (sum of code * atom) + mean.

The sum is an exact int32 of less than 2**24 for up to 1024 terms, so there are two float32 roundings, of the product
and of the sum with the mean, and for 16-bit floats a third one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._atoms import copy_bytes, store_form, weigh_atoms
from kvcodec.kernels._floats_simd import floats_of, load_floats
from kvcodec.kernels._jit import inline, jit, part
from kvcodec.kernels._lanes import splat
from kvcodec.kernels._scaling import to_floats
from kvcodec.kernels._simd import load_long, load_word, store_long, store_word
from kvcodec.kernels.dequantize import GREATEST
from kvcodec.kernels.floats import FLOAT32

ROW = 64  # bytes
LANES = 16
ZERO = np.int32(0)


def work_bytes(terms: int) -> int:
    """Bytes of the work space of rebuild_rows."""
    return 2 * ROW + (terms + 1) * (8 + 4 + LANES)


@jit
def find_bad_index(indices: NDArray[np.uint16], atoms: Any) -> Any:
    """Number of the first row, of uint16 (rows, terms), with an index that is none of so many atoms, or -1."""
    for i in range(indices.shape[0]):
        most = np.uint16(0)
        for j in range(indices.shape[1]):
            most = max(most, indices[i, j])
        if most >= atoms:
            return i
    return -1


@inline
def rebuild_block(
    places: Any, pairs: Any, terms: Any, channel: Any, scale: Any, mean: Any, form: Any, out: Any
) -> None:
    """16 channels of a row. places: addresses of the atoms; pairs: their codes, as int16."""
    sums = splat(ZERO)
    for j in range(0, terms, 2):
        one, two = load_long(places + 8 * j) + channel, load_long(places + 8 * j + 8) + channel
        sums = weigh_atoms(sums, one, two, load_word(pairs + 2 * j))
    numbers = to_floats(sums) * scale + load_floats(mean)
    store_form(numbers, GREATEST[form], form, out)


@part
def place_atoms(atoms: Any, dim: Any, indices: Any, codes: Any, i: Any, places: Any, pairs: Any, padded: Any) -> None:
    """Addresses and codes of row i's atoms, an even number; of those of less than 16 channels, of copies of them."""
    terms = indices.shape[1]
    for j in range(0, terms, 2):
        pair = np.int32(np.int32(codes[i, j]) & np.int32(0xFFFF))
        if j + 1 < terms:
            pair = np.int32(pair | np.int32(np.int32(codes[i, j + 1]) << np.int32(16)))
        store_word(pair, pairs + 2 * j)
    for j in range((terms + 1) & -2):
        place = atoms + dim * np.int64(indices[i, min(j, terms - 1)])
        if dim < LANES:
            copy_bytes(place, dim, padded + LANES * j)
            place = padded + LANES * j
        store_long(np.int64(place), places + 8 * j)


@jit
def rebuild_rows(
    atoms: Any, mean: Any, dim: Any, indices: Any, codes: Any, scales: Any, form: Any, out: Any, work: Any
) -> None:
    """Rows of `dim` numbers in a form, saturated, that may be any but STREAMED.

    indices, codes: uint16 and int8 (rows, terms), at least one term; no index is checked. scales: uint16 (rows,),
    finite bfloat16. Addresses. atoms: int8 (N, dim). mean: float32 (dim,). out: (rows, dim) in the form. work:
    work_bytes(terms).
    """
    rows, terms = indices.shape
    size = 4 if form == FLOAT32 else 2
    places = work + 2 * ROW
    pairs = places + 8 * (terms + 1)
    padded = pairs + 4 * (terms + 1)
    if dim < LANES:
        copy_bytes(mean, 4 * dim, work)
    for i in range(rows):
        place_atoms(atoms, dim, indices, codes, i, places, pairs, padded)
        scale, row = floats_of(splat(np.int32(scales[i])) << 16), out + i * dim * size
        if dim < LANES:
            rebuild_block(places, pairs, terms, 0, scale, work, form, work + ROW)
            copy_bytes(work + ROW, size * dim, row)
        else:
            for c in range(0, dim, LANES):  # the last channels may be some of those before them
                at = min(c, dim - LANES)
                rebuild_block(places, pairs, terms, at, scale, mean + 4 * at, form, row + size * at)
