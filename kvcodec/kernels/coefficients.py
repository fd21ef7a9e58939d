"""Coefficients of atoms to integers of a few bits and a bfloat16 scale, and the order in which they are stored.

x = scale * sum of code * atom. 16 step widths are tried at once, a lane each. For each of them codes are rounded one
after the other, those of the greatest coefficients first, and what a rounding misses is made up for by the atoms that
are left: with the Cholesky factor R of the atoms' Gram matrix and z = R'^-1 projections, the error is that of the
vectors sum of squares(z - scale * R code), which is triangular. The best width is that with the least error at its
best scale, (z . R code) / (R code . R code). The scale and the error are then computed anew in float64.

All float32 operations are those of one vector of 16 lanes each, and no order of additions is left open.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvcodec.kernels._coefficients import float_of_scale, load_float, round_codes, splat_at, store_float
from kvcodec.kernels._floats_simd import greater_float, load_floats, magnitude, splat_float, store_floats
from kvcodec.kernels._jit import inline, jit, part
from kvcodec.kernels._simd import load_long, load_word, store_long

ROW = 64  # bytes
LANES = 16
# By bits: how many steps the greatest coefficient has in the first lane, and how many fewer in each next one.
FIRSTS = tuple(np.float32(n) for n in (0, 0, 0, 0, 7.9, 15.7, 31.7, 0, 127.5))
FEWER = tuple(np.float32(n) for n in (0, 0, 0, 0, 0.2, 0.4, 0.8, 0, 2))
TINY = np.float32(2.0**-100)
DEPENDENT = np.float32(2.0**-16)  # of an atom's square, outside the atoms before it: less is float32's own error
LEAST, GREATEST = np.int32(0x0080), np.int32(0x7F7F)  # bfloat16 bits of scales
F32_MAX = np.float64(3.4028234663852886e38)
ZERO, ONE = np.float64(0), np.float32(1)


class Space(NamedTuple):
    """The work space, as addresses of what there is for each atom in its order, float32 but `order`.

    widths: 16 greatest codes, in steps. sizes: norms, of the last atom's. targets: z. trials: 16 codes times norms.
    codes: 16 of them. matrix: rows, `stride` bytes apart, of the Gram matrix that become R. sides: projections.
    """

    widths: Any
    order: Any
    sizes: Any
    inverses: Any
    targets: Any
    trials: Any
    codes: Any
    matrix: Any
    sides: Any
    stride: Any


def work_bytes(terms: int) -> int:
    """Bytes of the work space of quantize_coefficients."""
    return ROW + (8 + 3 * 4 + 2 * ROW) * terms + 4 * (terms + 1) * (terms + 15 & -16)


@inline
def cut_space(memory: Any, terms: Any) -> Any:
    """Space in memory."""
    order, stride = memory + ROW, 4 * ((terms + 15) & -16)
    sizes = order + 8 * terms
    inverses, targets, trials = sizes + 4 * terms, sizes + 8 * terms, sizes + 12 * terms
    codes = trials + ROW * terms
    matrix = codes + ROW * terms
    return Space(memory, order, sizes, inverses, targets, trials, codes, matrix, matrix + stride * terms, stride)


@part
def rank_atoms(indices: Any, coefficients: Any, norms: Any, i: Any, used: Any, order: Any) -> Any:
    """order, int64: ranks of the atoms, small coefficients first. The greatest code that a scale of 1 would take."""
    most = ZERO
    for j in range(used):
        size = np.float32(abs(coefficients[i, j]))
        norm = np.float64(norms[indices[i, j]])
        most = max(most, np.float64(np.float64(size) / norm) if norm > ZERO else ZERO)
        k = j
        while k > 0:
            rank = load_long(order + 8 * (k - 1))
            if np.float32(abs(coefficients[i, np.uint64(rank)])) <= size:
                break
            store_long(np.int64(rank), order + 8 * k)
            k -= 1
        store_long(np.int64(j), order + 8 * k)
    return most


@part
def gather_atoms(
    indices: Any, projections: Any, gram: Any, norms: Any, i: Any, used: Any, most: Any, space: Any
) -> Any:
    """Sizes, matrix and sides of row i's atoms; sides in parts of `most` codes of the last one. Whether all of it is
    finite, and no atom nothing.
    """
    norm = np.float64(norms[indices[i, load_long(space.order + 8 * (used - 1))]])
    total, unit = ZERO, np.float64(most * norm)
    for c in range(0, space.stride, ROW):
        store_floats(splat_float(np.float32(0)), space.sides + c)
    for a in range(used):
        atom = indices[i, load_long(space.order + 8 * a)]
        size, side = np.float32(np.float64(norms[atom]) / norm), np.float32(np.float64(projections[i, atom]) / unit)
        total = np.float64(total + np.float64(abs(side)) + np.float64(size + ONE / size))
        store_float(size, space.sizes + 4 * a)
        store_float(side, space.sides + 4 * a)
        for c in range(0, space.stride, ROW):
            store_floats(splat_float(np.float32(0)), space.matrix + a * space.stride + c)
        for b in range(a + 1):
            number = np.float32(gram[atom, indices[i, load_long(space.order + 8 * b)]])
            store_float(number, space.matrix + a * space.stride + 4 * b)
            store_float(number, space.matrix + b * space.stride + 4 * a)
    return total < np.inf


@part
def factor_matrix(used: Any, space: Any) -> None:
    """R in the matrix's place, 1 / its diagonal, and z. An atom that depends on those before it has a row of 0."""
    for k in range(used):
        row = space.matrix + k * space.stride
        square = load_float(row + 4 * k)
        inverse = np.float32(ONE / np.sqrt(square)) if square > DEPENDENT else np.float32(0)
        target = np.float32(load_float(space.sides + 4 * k) * inverse)
        store_float(inverse, space.inverses + 4 * k)
        store_float(target, space.targets + 4 * k)
        for c in range(0, space.stride, ROW):
            own = load_floats(row + c) * splat_float(inverse)
            store_floats(own, row + c)
            store_floats(load_floats(space.sides + c) - splat_float(target) * own, space.sides + c)
        for a in range(k + 1, used):
            factor = splat_at(row + 4 * a)
            for c in range(0, space.stride, ROW):
                here = space.matrix + a * space.stride + c
                store_floats(load_floats(here) - factor * load_floats(row + c), here)


@part
def try_widths(used: Any, most: Any, space: Any) -> Any:
    """Codes for each of the widths. The lane of the best ones."""
    widths = load_floats(space.widths)
    along, square = splat_float(np.float32(0)), splat_float(np.float32(0))
    for n in range(used):
        k = used - 1 - n
        row = space.matrix + k * space.stride
        target, inverse = splat_at(space.targets + 4 * k), load_float(space.inverses + 4 * k)
        size = load_float(space.sizes + 4 * k)
        sums = splat_float(np.float32(0))
        for a in range(k + 1, used):
            sums = sums + splat_at(row + 4 * a) * load_floats(space.trials + ROW * a)
        rest = (target * widths - sums) * splat_float(np.float32(inverse / size))
        codes = round_codes(rest, most)
        trials = codes * splat_float(size)
        store_floats(codes, space.codes + ROW * k)
        store_floats(trials, space.trials + ROW * k)
        sums = sums + trials * splat_at(row + 4 * k)
        along, square = along + target * sums, square + sums * sums
    gains = along * magnitude(along) / greater_float(square, splat_float(TINY))
    store_floats(gains, space.trials)
    best = 0
    for lane in range(1, LANES):
        if load_float(space.trials + 4 * lane) > load_float(space.trials + 4 * best):
            best = lane
    return best


@part
def project_codes(indices: Any, codes: Any, projections: Any, gram: Any, norms: Any, i: Any, used: Any) -> Any:
    """(with x, with itself): inner products of the sum of codes times atoms."""
    along, square = ZERO, ZERO
    for j in range(used):
        if codes[i, j] != 0:
            atom, inner = indices[i, j], ZERO
            length = np.float64(np.float64(codes[i, j]) * np.float64(norms[atom]))
            for k in range(j):
                other = indices[i, k]
                against = np.float64(np.float64(codes[i, k]) * np.float64(norms[other]))
                inner = np.float64(inner + np.float64(against * np.float64(gram[atom, other])))
            own = np.float64(length * np.float64(gram[atom, atom]))
            along = np.float64(along + length * np.float64(projections[i, atom]))
            square = np.float64(square + length * np.float64(own + np.float64(2) * inner))
    return along, square


@inline
def change_energy(scale: Any, along: Any, square: Any) -> Any:
    """What a scale, bfloat16 bits, adds to the energy."""
    number = np.float64(float_of_scale(scale))
    return np.float64(number * np.float64(number * square - np.float64(2) * along))


@part
def choose_scale(along: Any, square: Any, space: Any) -> Any:
    """(bfloat16 bits, change of the energy) of the better of the scales next to the best number."""
    best = min(max(np.float64(along / square), np.float64(2.0**-126)), F32_MAX)
    store_float(np.float32(best), space.sizes)
    low = np.int32(min(load_word(space.sizes) >> np.int32(16), GREATEST))
    high = np.int32(min(low + np.int32(1), GREATEST))
    one, two = change_energy(low, along, square), change_energy(high, along, square)
    return (high, two) if two < one else (low, one)


@part
def clear_codes(codes: Any, i: Any) -> None:
    """Set the codes of row i to 0."""
    for j in range(codes.shape[1]):
        codes[i, j] = np.int8(0)


@inline
def try_codes(
    indices: Any, coefficients: Any, projections: Any, gram: Any, norms: Any, i: Any, used: Any, most: Any, codes: Any,
    space: Any,
) -> Any:  # fmt: skip
    """The codes of row i: (with x, with itself), inner products of their sum of atoms; 0 without codes."""
    peak = rank_atoms(indices, coefficients, norms, i, used, space.order)
    if not (peak > ZERO and peak < np.inf):
        return ZERO, ZERO
    if not gather_atoms(indices, projections, gram, norms, i, used, peak, space):
        return ZERO, ZERO
    factor_matrix(used, space)
    best = try_widths(used, most, space)
    for k in range(used):
        codes[i, load_long(space.order + 8 * k)] = np.int8(load_float(space.codes + ROW * k + 4 * best))
    return project_codes(indices, codes, projections, gram, norms, i, used)


@part
def code_row(
    indices: Any, coefficients: Any, projections: Any, gram: Any, norms: Any, i: Any, used: Any, most: Any, codes: Any,
    space: Any,
) -> Any:  # fmt: skip
    """Codes of row i: its scale and the change of its energy. Where that does not fall, codes are 0."""
    clear_codes(codes, i)
    along, square = try_codes(indices, coefficients, projections, gram, norms, i, used, most, codes, space)
    scale, change = LEAST, ZERO
    if along > ZERO and square > ZERO:
        scale, change = choose_scale(along, square, space)
    if not change < ZERO:
        clear_codes(codes, i)
        return LEAST, ZERO
    return scale, change


@jit
def quantize_coefficients(
    indices: Any, coefficients: Any, counts: Any, projections: Any, gram: Any, norms: Any, energies: Any, bits: Any,
    codes: Any, scales: Any, residuals: Any, memory: Any,
) -> None:  # fmt: skip
    """Codes of `bits` bits of pursued atoms, one scale a row, and the energy that the row then lacks.

    indices: uint16 (rows, terms). coefficients: float32, same shape, of unit atoms: only the order and the widths come
    from them. counts: int64 (rows,), atoms used, the first ones. projections: float32 (rows, N), on unit atoms. gram:
    float32 (N, N), of these. norms, energies: float32 (N,), (rows,). codes: int8 (rows, terms), within
    +-(2**(bits - 1) - 1). scales: uint16 (rows,), bfloat16 bits, finite and at least 2**-126. residuals: float32
    (rows,). memory: address of work_bytes(terms).
    """
    space = cut_space(memory, indices.shape[1])
    most = np.float32((1 << (bits - 1)) - 1)
    first, fewer = FIRSTS[bits], FEWER[bits]
    for lane in range(LANES):
        store_float(np.float32(first - np.float32(lane) * fewer), space.widths + 4 * lane)
    for i in range(indices.shape[0]):
        scale, change = code_row(indices, coefficients, projections, gram, norms, i, counts[i], most, codes, space)
        scales[i] = np.uint16(scale)
        left = np.float64(np.float64(energies[i]) + change)
        residuals[i] = np.float32(max(left, ZERO) if left <= F32_MAX else F32_MAX)


@part
def sort_set(indices: Any, codes: Any, i: Any, first: Any, used: Any, last: Any) -> None:
    """Sort the atoms number first to used of row i; those up to last become the greatest of them, or atom 0."""
    for j in range(first + 1, used):
        index, code, k = indices[i, j], codes[i, j], j
        while k > first and indices[i, k - 1] > index:
            indices[i, k], codes[i, k] = indices[i, k - 1], codes[i, k - 1]
            k -= 1
        indices[i, k], codes[i, k] = index, code
    greatest = indices[i, used - 1] if used > first else np.uint16(0)
    for j in range(used, last):
        indices[i, j], codes[i, j] = greatest, np.int8(0)


@jit
def order_sets(indices: Any, codes: Any, counts: Any, low: Any) -> None:
    """Sort each row's atoms by index, as one set, or, if low > 0, the first `low` and the others apart, in place.

    indices, codes: uint16 and int8 (rows, terms). counts: int64 (rows,), atoms used. Those that are not stand behind
    the used ones of their set, have code 0, and repeat the greatest of these, or atom 0.
    """
    terms = indices.shape[1]
    for i in range(indices.shape[0]):
        used = min(counts[i], terms)
        sort_set(indices, codes, i, np.int64(0), min(used, low), low)
        sort_set(indices, codes, i, low, max(used, low), terms)
