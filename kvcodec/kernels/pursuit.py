"""Sparse codes of vectors over a dictionary: orthogonal matching pursuit, its order-recursive kin, the greatest dots.

Batch-OMP (Rubinstein, Zibulevsky, Elad 2008): atoms are chosen from projections of the residual that follow from the
Gram matrix, and the residual itself is never made. Everything is a fixed order of float32 operations.

Both pursuits have these arguments, for n vectors, N atoms of unit length (at most 65536) and s places, any of which
may be 0 or less than another:

projections: float32 (n, N), products of the vectors with the atoms. gram: float32 (N, N), products of the atoms, below
    2 in magnitude. energies: float32 (n,), squared lengths of the vectors. All of them are C-contiguous.
bounds: float32 (n,). A vector takes no more atoms once the energy of its residual is no more than this.
indices: out, uint16 (n, s), atoms in the order in which they were taken. coefficients: out, float32 (n, s), least
    squares over them all. counts: out, int64 (n,), atoms taken. residuals: out, float32 (n, s), energy of the residual
    after each atom. Places without an atom have index 0, coefficient 0 and the last residual.
memory: float32, memory_floats(N, s) numbers.

Of equals the first atom is taken. An atom of which all but a 2**-12th of the square lies in the span of those taken
(within .9 degrees; so also a twin of one, and one of length 0) is passed over for the next best: what it adds would
take coefficients of 64 times its size that cancel each other. A vector takes no more atoms when the projection of the
next is not over 2**-18 of the first one's: that much float32 may have missed. So a vector of zeros takes none, one that
is the sum of fewer than s atoms takes those, and where s is more than the rank the error that is left is float32's.

Projections of any size are scaled: of finite ones nothing becomes NaN, whatever else is passed, and coefficients that
float32 cannot hold become its greatest. Energies that float32 cannot hold may be infinite, and so are residuals then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import inline, jit, part
from kvcodec.kernels._pursuit import (
    BLOCK,
    DEPENDENT,
    LEAST_BITS,
    MAGNITUDE,
    MOST_BITS,
    NOISE,
    advance,
    copy_scaled,
    drop_dependent,
    find_bits,
    find_greatest,
    lay_out,
    measure_left,
    memory_floats,
    number_at,
    rate,
    row_place,
    shorten,
    solve,
)
from kvcodec.kernels._simd import load_word

__all__ = ["memory_floats", "omp", "ormp", "top_dots"]


@jit
def omp(
    projections: NDArray[np.float32], gram: NDArray[np.float32], energies: NDArray[np.float32],
    bounds: NDArray[np.float32], indices: NDArray[np.uint16], coefficients: NDArray[np.float32],
    counts: NDArray[np.int64], residuals: NDArray[np.float32], memory: NDArray[np.float32],
) -> None:  # fmt: skip
    """Take, time and again, the atom whose product with the residual is the greatest; refit all. See the module."""
    atoms, s = np.int64(gram.shape[0]), np.int64(indices.shape[1])
    places, numbers, base = begin(gram, s, memory)
    for i in range(projections.shape[0]):
        row = np.int64(projections.ctypes.data) + 4 * atoms * i
        source, bits, unscale = begin_vector(row, atoms, places, numbers, base)
        noise, energy, k = np.int32(0), np.float64(energies[i]), np.int64(0)
        while k < s and not np.float32(energy) <= np.float32(bounds[i]) and bits > noise:
            atom = np.int64(find_bits(source, places.width, bits))
            projection = np.float32(number_at(source + 4 * atom))
            if noise == np.int32(0):
                noise = noise_of(projection)
            pivot = np.float32(measure_left(numbers, places, s, k, atom))
            if not pivot > DEPENDENT:
                if source != base:
                    copy_scaled(source, atoms, np.float32(1), numbers[: places.width])
                    source = base
                drop_dependent(numbers, places, s, k, atoms)
                bits = np.int32(find_greatest(base, places.width))
                continue
            step = enter_atom(numbers, places, s, k, pivot, projection)
            energy = lower(energy, projection, step, unscale)
            indices[i, k], residuals[i, k] = atom, energy
            k = np.int64(k + 1)
            if k < s:
                bits = take(gram, atom, source, places, s, numbers, base, k - 1, step)
                source = base
        finish(numbers, places, s, k, unscale, energy, indices[i], coefficients[i], residuals[i])
        counts[i] = k


@jit
def ormp(
    projections: NDArray[np.float32], gram: NDArray[np.float32], energies: NDArray[np.float32],
    bounds: NDArray[np.float32], indices: NDArray[np.uint16], coefficients: NDArray[np.float32],
    counts: NDArray[np.int64], residuals: NDArray[np.float32], memory: NDArray[np.float32],
) -> None:  # fmt: skip
    """Take, time and again, the atom with which the refit leaves the least residual. See the module."""
    atoms, s = np.int64(gram.shape[0]), np.int64(indices.shape[1])
    places, numbers, base = begin(gram, s, memory)
    scores = base + 4 * places.scores
    for i in range(projections.shape[0]):
        row = np.int64(projections.ctypes.data) + 4 * atoms * i
        source, _, unscale = begin_vector(row, atoms, places, numbers, base)
        left = base + 4 * places.diagonal
        noise, energy, k = np.int32(0), np.float64(energies[i]), np.int64(0)
        while k < s and not np.float32(energy) <= np.float32(bounds[i]):
            bits = np.int32(rate(source, left, scores, places.width))
            if bits == np.int32(0):
                break
            atom = np.int64(find_bits(scores, places.width, bits))
            projection = np.float32(number_at(source + 4 * atom))
            if np.int32(load_word(source + 4 * atom) & MAGNITUDE) <= noise:
                break
            if noise == np.int32(0):
                noise = noise_of(projection)
            measure_left(numbers, places, s, k, atom)
            step = enter_atom(numbers, places, s, k, np.float32(number_at(left + 4 * atom)), projection)
            energy = lower(energy, projection, step, unscale)
            indices[i, k], residuals[i, k] = atom, energy
            k = np.int64(k + 1)
            if k < s:
                take(gram, atom, source, places, s, numbers, base, k - 1, step)
                inverse, own = np.float32(numbers[places.inverses + k - 1]), base + 4 * places.left
                shorten(left, own, base + 4 * row_place(places, s, k - 1, 0), s, inverse, places.width)
                source, left = base, own
        finish(numbers, places, s, k, unscale, energy, indices[i], coefficients[i], residuals[i])
        counts[i] = k


@inline
def begin(gram: Any, s: Any, memory: Any) -> Any:
    """Places, the work memory from a cache line on, its address; the diagonal is in it."""
    atoms = np.int64(gram.shape[0])
    places = lay_out(atoms, s)
    start = np.int64(memory.ctypes.data)
    numbers = memory[(-start & 63) >> 2 :]
    for n in range(places.width):
        numbers[places.diagonal + n] = gram[n, n] if n < atoms else np.float32(0)
    return places, numbers, np.int64(numbers.ctypes.data)


@part
def begin_vector(row: Any, atoms: Any, places: Any, numbers: Any, base: Any) -> Any:
    """Address of a vector's projections, bits of the greatest, and what to multiply with what comes of them.

    They are read where they are, unless they are padded, or scaled: by powers of two, so that squares fit float32.
    """
    source = np.int64(row)
    if atoms != places.width:
        copy_scaled(source, atoms, np.float32(1), numbers[: places.width])
        source = np.int64(base)
    bits, unscale = np.int32(find_greatest(source, places.width)), np.float64(1)
    if bits != np.int32(0) and (bits < LEAST_BITS or bits > MOST_BITS):
        exponent = np.int32(254) - np.int32(bits >> np.int32(23))
        scale = np.int32(max(np.int32(1), min(exponent, np.int32(253))) << np.int32(23)).view(np.float32)
        copy_scaled(source, atoms, scale, numbers[: places.width])
        source, unscale = np.int64(base), np.float64(np.float64(1) / np.float64(scale))
        bits = np.int32(find_greatest(source, places.width))
    return source, bits, unscale


@inline
def noise_of(projection: Any) -> Any:
    """Bits of what is noise beside the first projection."""
    return np.int32(np.float32(abs(projection) * NOISE).view(np.int32))


@part
def enter_atom(numbers: Any, places: Any, s: Any, k: Any, pivot: Any, projection: Any) -> Any:
    """Add the factors as row k to L, with its pivot. The step."""
    inverse = np.float32(np.float32(1) / pivot)
    step = np.float32(projection * inverse)
    numbers[places.inverses + k] = inverse
    numbers[places.steps + k] = step
    for j in range(k):
        numbers[places.lower + k * s + j] = numbers[places.factors + j]
    return step


@inline
def lower(energy: Any, projection: Any, step: Any, unscale: Any) -> Any:
    """The residual's energy after a step."""
    gain = np.float64(np.float64(projection) * np.float64(step) * unscale * unscale)
    return np.float64(max(np.float64(energy - gain), np.float64(0)))


@part
def take(gram: Any, atom: Any, source: Any, places: Any, s: Any, numbers: Any, base: Any, k: Any, step: Any) -> Any:
    """Make the atom's row, row k, and take it from the projections. Bits of the greatest then."""
    atoms = np.int64(gram.shape[0])
    line = np.int64(gram.ctypes.data) + 4 * atoms * atom
    if atoms != places.width:
        copy_scaled(line, atoms, np.float32(1), numbers[places.line : places.line + places.width])
        line = np.int64(base + 4 * places.line)
    factors = numbers[places.factors : places.factors + s]
    return np.int32(advance(source, base, line, base + 4 * places.rows, s, factors, k, places.width, step))


@part
def finish(
    numbers: Any, places: Any, s: Any, count: Any, unscale: Any, energy: Any, indices: Any, coefficients: Any,
    residuals: Any,
) -> None:  # fmt: skip
    """The coefficients, and what stands where no atom is."""
    solve(numbers, places, s, count, unscale, coefficients)
    for j in range(count, s):
        indices[j] = np.uint16(0)
        residuals[j] = np.float32(energy)


@jit
def top_dots(
    projections: NDArray[np.float32], indices: NDArray[np.uint16], coefficients: NDArray[np.float32],
    counts: NDArray[np.int64],
) -> None:  # fmt: skip
    """The atoms with the greatest products: what a pursuit is better than.

    projections: float32 (n, N), finite. indices: out, uint16 (n, s), by falling magnitude; of equals the first one
    first. coefficients: out, float32 (n, s), the projections. counts: out, int64 (n,), how many there are: projections
    of 0 are none, and their places have index 0 and coefficient 0.
    """
    atoms, s = projections.shape[1], indices.shape[1]
    for i in range(projections.shape[0]):
        count, bar = np.int64(0), np.float32(0)
        for start in range(0, atoms, BLOCK):
            stop = min(start + BLOCK, atoms)
            most = np.float32(0)
            for n in range(start, stop):
                most = max(most, np.float32(abs(np.float32(projections[i, n]))))
            if s > 0 and most > bar:
                for n in range(start, stop):
                    number = np.float32(projections[i, n])
                    if np.float32(abs(number)) > bar:
                        count = insert(number, n, count, indices[i], coefficients[i])
                        if count == s:
                            bar = np.float32(abs(np.float32(coefficients[i, s - 1])))
        for j in range(count, s):
            indices[i, j], coefficients[i, j] = np.uint16(0), np.float32(0)
        counts[i] = count


@part
def insert(number: Any, atom: Any, count: Any, indices: Any, coefficients: Any) -> Any:
    """Put an atom behind all that are not less, and drop what has no place. Atoms then."""
    at = np.int64(min(count, indices.shape[0] - 1))
    while at > 0 and np.float32(abs(np.float32(coefficients[at - 1]))) < np.float32(abs(number)):
        indices[at], coefficients[at] = indices[at - 1], coefficients[at - 1]
        at = np.int64(at - 1)
    indices[at], coefficients[at] = np.uint16(atom), number
    return np.int64(min(count + 1, indices.shape[0]))
