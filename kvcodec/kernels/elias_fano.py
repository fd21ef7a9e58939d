"""Sets of atoms in Elias-Fano code, and integers of a few bits: from and to rows of bytes, and from planes.

A set is m nondecreasing indices below N. With l = floor(log2(N / m)), or 0, the low l bits of index j lie from bit
j * l on. Behind them is a unary part of m + ((N - 1) >> l) bits, in which bit (index >> l) + j is set: m ones, and as
many zeros before the j-th of them as its index has above its low bits. Bits count from the lowest of byte 0.

With tiers the first `low` atoms are one set and the others a second one, each of whole bytes.

Planes are bytes of 64 rows: byte k of all of them lies together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._elias_fano import (
    add_bytes,
    count_below,
    mask_bytes,
    splat_byte,
    store_bytes,
    store_indices,
    store_wide_indices,
    take_codes,
)
from kvcodec.kernels._jit import inline, jit, part
from kvcodec.kernels._lanes import bit_length
from kvcodec.kernels._products import plane
from kvcodec.kernels._simd import load_bytes

ROW = 64  # bytes of a plane
FIRST, ZERO, ONE = np.int64(0), np.int32(0), np.int32(1)


def count_low_bits(atoms: Any, terms: Any) -> Any:
    """floor(log2(atoms / terms)), or 0."""
    return max(bit_length(np.int64(atoms // max(terms, 1))) - 1, 0)


def set_bytes(atoms: int, terms: int) -> int:
    """Bytes of a set of `terms` of `atoms` atoms."""
    low = int(count_low_bits(atoms, terms))
    return (terms * low + terms + (atoms - 1 >> low) + 7) // 8 if terms else 0


def sets_bytes(atoms: int, terms: int, low: int = 0) -> int:
    """Bytes of the indices of a row: one set, or, if low > 0, the first `low` and the others."""
    return set_bytes(atoms, low) + set_bytes(atoms, terms - low)


def code_bytes(terms: int, bits: int) -> int:
    """Bytes of `terms` integers of so many bits."""
    return (terms * bits + 7) // 8


def planes_bytes(atoms: int, terms: int) -> int:
    """Bytes of the work space of unpack_set_planes."""
    return ROW * (14 + terms + (atoms - 1 >> int(count_low_bits(atoms, terms)))) if terms else 0


_count_low_bits = part(count_low_bits)


@part
def _set_bytes(atoms: Any, terms: Any, bits: Any) -> Any:
    return (terms * bits + terms + ((atoms - 1) >> bits) + 7) >> 3 if terms else 0


# -- rows ------------------------------------------------------------------------------------------------------------


@part
def pack_set(indices: Any, i: Any, first: Any, last: Any, zeros: Any, bits: Any, out: Any, at: Any) -> None:
    """Indices number first to last of row i, into its bytes from `at` on. zeros: of the unary part; bits: low ones."""
    mask, held, fill = np.int64((1 << bits) - 1), np.int64(0), np.int64(0)
    for j in range(first, last):
        held = np.int64(held | (np.int64(indices[i, j]) & mask) << fill)
        fill += bits
        while fill >= 8:
            out[i, at] = np.uint8(held & 255)
            held, fill, at = np.int64(held >> 8), fill - 8, at + 1
    before = np.int64(0)
    for j in range(first, last + 1):
        high = np.int64(indices[i, j]) >> bits if j < last else np.int64(zeros)
        fill, before = fill + high - before, high
        if j < last:
            while fill >= 8:
                out[i, at] = np.uint8(held & 255)
                held, fill, at = np.int64(held >> 8), fill - 8, at + 1
            held = np.int64(held | np.int64(1) << fill)
            fill += 1
    while fill > 0:
        out[i, at] = np.uint8(held & 255)
        held, fill, at = np.int64(held >> 8), fill - 8, at + 1


@jit
def pack_sets(indices: Any, atoms: Any, low: Any, out: Any) -> None:
    """Elias-Fano codes of sorted sets. indices: uint16 (rows, terms). out: uint8 (rows, sets_bytes)."""
    rows, terms = indices.shape
    few, many = _count_low_bits(atoms, low), _count_low_bits(atoms, terms - low)
    behind = _set_bytes(atoms, low, few)
    for i in range(rows):
        if low:
            pack_set(indices, i, FIRST, low, (atoms - 1) >> few, few, out, FIRST)
        if terms > low:
            pack_set(indices, i, low, terms, (atoms - 1) >> many, many, out, behind)


@part
def unpack_set(packed: Any, i: Any, at: Any, atoms: Any, bits: Any, indices: Any, first: Any, last: Any) -> Any:
    """Whether row i has a set in its bytes from `at` on. It becomes the indices number first to last."""
    mask, held, fill = np.int64((1 << bits) - 1), np.int64(0), np.int64(0)
    for j in range(first, last):
        while fill < bits:
            held = np.int64(held | np.int64(packed[i, at]) << fill)
            fill, at = fill + 8, at + 1
        indices[i, j] = np.uint16(held & mask)
        held, fill = np.int64(held >> bits), fill - bits
    base, j = np.int64(0), first
    good: Any = True
    end = np.int64(last - first + ((atoms - 1) >> bits))
    while base < end and good:
        if fill == 0:
            held, fill, at = np.int64(packed[i, at]), np.int64(8), at + 1
        while held != 0 and good:
            place = np.int64(base + bit_length(np.int64(held & -held)) - 1)
            held = np.int64(held & (held - 1))
            good = j < last and place < end
            if good:
                index = np.int64(np.int64(place - (j - first)) << bits | np.int64(indices[i, j]))
                indices[i, j] = np.uint16(index)
                good = index < atoms
                j += 1
        base, fill = base + fill, np.int64(0)
    return good and j == last


@jit
def unpack_sets(packed: Any, atoms: Any, low: Any, indices: Any) -> Any:
    """Indices, uint16 (rows, terms), of the sets in uint8 (rows, sets_bytes). -1, or the number of the first bad row.

    In a bad row some unary part has not exactly as many ones as terms, an index is no atom, or a padding bit is set.
    """
    rows, terms = indices.shape
    few, many = _count_low_bits(atoms, low), _count_low_bits(atoms, terms - low)
    behind = _set_bytes(atoms, low, few)
    for i in range(rows):
        if low and not unpack_set(packed, i, FIRST, atoms, few, indices, FIRST, low):
            return i
        if terms > low and not unpack_set(packed, i, behind, atoms, many, indices, low, terms):
            return i
    return -1


@jit
def pack_bits(codes: Any, bits: Any, out: Any) -> None:
    """Codes, int8 (rows, terms), in `bits` bits of two's complement each. out: uint8 (rows, code_bytes)."""
    mask = np.int64((1 << bits) - 1)
    for i in range(codes.shape[0]):
        held, fill, at = np.int64(0), 0, 0
        for j in range(codes.shape[1]):
            held = np.int64(held | (np.int64(codes[i, j]) & mask) << np.int64(fill))
            fill += bits
            if fill >= 8:
                out[i, at] = np.uint8(held & 255)
                held, fill, at = np.int64(held >> 8), fill - 8, at + 1
        if fill:
            out[i, at] = np.uint8(held)


@jit
def unpack_bits(packed: Any, bits: Any, codes: Any) -> Any:
    """Undo pack_bits. -1, or the number of the first row that has a padding bit set."""
    mask, half = np.int64((1 << bits) - 1), np.int64(1 << (bits - 1))
    for i in range(codes.shape[0]):
        held, fill, at = np.int64(0), 0, 0
        for j in range(codes.shape[1]):
            if fill < bits:
                held = np.int64(held | np.int64(packed[i, at]) << np.int64(fill))
                fill, at = fill + 8, at + 1
            codes[i, j] = np.int8(((held & mask) ^ half) - half)
            held, fill = np.int64(held >> bits), fill - bits
        if held:
            return i
    return -1


# -- planes ----------------------------------------------------------------------------------------------------------


@inline
def count_ones(planes: Any, start: Any, end: Any, counts: Any) -> Any:
    """Address of rows, one for each bit from `start` to `end`: how many of these are set up to there, of each 64."""
    ones = splat_byte(ZERO)
    here = load_bytes(planes + ROW * (start >> 3))
    here = mask_bytes(here, np.int32(0xFF << (start & 7)))
    out = counts
    for k in range((start >> 3) + 1, ((end + 7) >> 3) + 1):
        for p in range(8):
            ones = add_bytes(ones, plane(here, np.int32(p), ONE))
            store_bytes(ones, out + ROW * p)
        out += 8 * ROW
        here = load_bytes(planes + ROW * min(k, (end - 1) >> 3))
    return counts + ROW * (start & 7)


@part
def unpack_planes(planes: Any, atoms: Any, terms: Any, indices: Any, counts: Any) -> None:
    """One set of 64 rows. What its high bits are is counted: in how many places j to j + zeros - 1 of the unary part
    there are at most j ones up to there.
    """
    bits = np.int64(_count_low_bits(atoms, terms))
    zeros, start = (atoms - 1) >> bits, terms * bits
    end = start + terms + zeros
    ones, last, width = count_ones(planes, start, end, counts), np.int32(atoms - 1), np.int32(bits)
    for j in range(terms):
        high, limit = splat_byte(ZERO), splat_byte(np.int32(j + 1))
        for z in range(j, j + zeros):
            high = count_below(high, load_bytes(ones + ROW * z), limit)
        at, shift = planes + ROW * ((j * bits) >> 3), np.int32((j * bits) & 7)
        one, two = load_bytes(at), load_bytes(min(at + ROW, planes + ROW * ((end - 1) >> 3)))
        if shift + bits > 16:
            three = load_bytes(at + 2 * ROW)
            store_wide_indices(one, two, three, high, shift, width, last, indices + 2 * ROW * j)
        else:
            store_indices(one, two, high, shift, width, last, indices + 2 * ROW * j)


@jit
def unpack_set_planes(planes: Any, atoms: Any, low: Any, terms: Any, indices: Any, counts: Any) -> None:
    """Indices of 64 rows, of which any bytes may be read: what is no set gives some indices below `atoms`.

    Addresses. planes: uint8 (sets_bytes, 64). indices: uint16 (terms, 64). counts: planes_bytes of the larger set.
    """
    if low:
        unpack_planes(planes, atoms, low, indices, counts)
    if terms > low:
        behind = ROW * _set_bytes(atoms, low, _count_low_bits(atoms, low))
        unpack_planes(planes + behind, atoms, terms - low, indices + 2 * ROW * low, counts)


@jit
def unpack_bit_planes(planes: Any, bits: Any, terms: Any, codes: Any) -> None:
    """Integers of `bits` bits of 64 rows. Addresses. planes: uint8 (code_bytes, 64). codes: int8 (terms, 64)."""
    width, final = np.int32(bits), ((terms * bits + 7) >> 3) - 1
    for j in range(terms):
        at = j * bits >> 3
        one, two = load_bytes(planes + ROW * at), load_bytes(planes + ROW * min(at + 1, final))
        store_bytes(take_codes(one, two, np.int32(j * bits & 7), width), codes + ROW * j)
