"""Matching pursuit with integers alone: what a device without floats can encode with.

x is about sum of coefficient * atom / 2**fraction, with an int8 atom and an int16 vector, which block floating point
has made as long as fits. Projections are int32 with `fraction` bits behind the point: the products of the vector with
the atoms, shifted, then less coefficient * gram a turn. Nothing but the coefficient is ever rounded, and the pursuit
goes on from the residual that the rounded one leaves, so errors do not add up.

Bounds, for `dim` channels up to 512: a product with an atom is at most 127 * 32768 * 512 < 2**31; for up to 1024
channels vectors have a bit less. All later projections are 2**fraction times products of the residual with atoms, and
the residual does not grow: below 2**fraction * |longest atom| * |vector| < 2**31, which choose_fraction sees to (its
margin takes the 2**-10 by which a coefficient's rounding can be off, for 64 places). A coefficient is below
2**31 / 512, and what is between is modulo 2**32. So 32 bits hold all, but for the 62 bits of one product a turn and
the squared length of what is left, which is known exactly: (2**fraction * |vector|)**2 < 2**62.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit, part
from kvcodec.kernels._pursuit_products import STEP, multiply_words

RECIPROCAL_BITS = np.int64(40)
SHORTEST = 512  # squared length of atoms: 2**31 * 2**40 / 512 fits an int64
WIDE = 512  # channels
TURNS = 2  # a place
BLOCK = 64  # atoms


def vector_bits(dim: int) -> int:
    """Bits of the greatest magnitude of a vector's numbers, which may reach 2**bits."""
    return 15 if dim <= WIDE else 14


def choose_fraction(gram: NDArray[np.int32], dim: int) -> int:
    """Bits behind the point that coefficients of any vector of so many bits can have."""
    square = 2 * vector_bits(dim)
    room = (1 << 62 - square) - (1 << 46 - square)  # 4**fraction * longest**2 * dim * 2**square < 2**62
    fraction, longest = 0, int(gram.diagonal().max(initial=1))
    while longest * dim << 2 * (fraction + 1) <= room:
        fraction += 1
    return fraction


def make_reciprocals(gram: NDArray[np.int32]) -> NDArray[np.int64]:
    """2**40 / squared length of each atom, rounded; 0 for those whose square is below 512, which are not taken."""
    squares = gram.diagonal().astype(np.int64)
    long = np.maximum(squares, SHORTEST)
    return np.where(squares < SHORTEST, 0, ((1 << int(RECIPROCAL_BITS)) + (long >> 1)) // long)


@jit
def mp_integers(
    vectors: NDArray[np.int16], atoms: NDArray[np.int8], gram: NDArray[np.int32], reciprocals: NDArray[np.int64],
    fraction: Any, bounds: NDArray[np.int64], indices: NDArray[np.uint16], coefficients: NDArray[np.int32],
    counts: NDArray[np.int64], left: NDArray[np.int64], memory: NDArray[np.int32],
) -> None:  # fmt: skip
    """Take, time and again, the atom whose product with the residual is the greatest, and subtract it.

    vectors: int16 (n, dim). atoms: int8 (N, dim), -127 to 127, of nearly the same length, at most 65536. gram: int32
    (N, N), their products. All C-contiguous. reciprocals, fraction: of this gram, see above. bounds: int64 (n,), times
    4**fraction, squared lengths of a residual that is small enough; negative for never. indices: out, uint16 (n, s), s
    at most 64. coefficients: out, int32 (n, s), with `fraction` bits behind the point. counts: out, int64 (n,). Places
    without an atom have index 0 and coefficient 0. left: int64 (n,), times 4**fraction, in: the squared lengths of the
    vectors, out: of the residuals. memory: int32, N numbers.

    Of equals the first atom is taken. One that was taken before takes no new place: its coefficient is corrected. A
    vector is done when its residual is small enough, when it has s atoms, after 2 * s turns, or when the coefficient
    would round (halves up) to 0.
    """
    s = indices.shape[1]
    for i in range(vectors.shape[0]):
        for j in range(s):
            indices[i, j], coefficients[i, j] = np.uint16(0), np.int32(0)
        most = multiply(vectors[i], atoms, np.int32(fraction), memory)
        count, rest, bound = np.int64(0), np.int64(left[i]), np.int64(bounds[i])
        for _ in range(TURNS * s):
            if count == s or most == np.int32(0) or rest <= bound:
                break
            atom = find_magnitude(memory, most)
            product = np.int64(np.int64(memory[atom]) * np.int64(reciprocals[atom]))
            coefficient = np.int32((product + (np.int64(1) << (RECIPROCAL_BITS - 1))) >> RECIPROCAL_BITS)
            if coefficient == np.int32(0):
                break
            count = add_coefficient(atom, coefficient, count, indices[i], coefficients[i])
            rest = np.int64(rest + change_energy(coefficient, memory[atom], gram[atom, atom]))
            most = subtract_atom(coefficient, gram[atom], memory)
        counts[i], left[i] = count, rest


@part
def change_energy(coefficient: Any, projection: Any, square: Any) -> Any:
    """What taking an atom of that squared length adds to the squared length of the residual, times 4**fraction."""
    after = np.int64(np.int64(coefficient) * np.int64(square) - np.int64(2) * np.int64(projection))
    return np.int64(np.int64(coefficient) * after)


@part
def multiply(vector: Any, atoms: Any, fraction: Any, projections: Any) -> Any:
    """Projections of a vector. The greatest magnitude."""
    most, dim = np.int32(0), np.int64(vector.shape[0])
    whole = np.int64(dim & -STEP)
    at, atom = np.int64(vector.ctypes.data), np.int64(atoms.ctypes.data)
    for n in range(atoms.shape[0]):
        total = np.int32(multiply_words(at, atom + n * dim, whole))
        for c in range(whole, dim):
            total = np.int32(total + np.int32(np.int32(vector[c]) * np.int32(atoms[n, c])))
        total = np.int32(total << fraction)
        projections[n] = total
        most = max(most, np.int32(abs(total)))
    return most


@part
def subtract_atom(coefficient: Any, line: Any, projections: Any) -> Any:
    """Take from the projections those of an atom, times its coefficient. The greatest magnitude then."""
    most = np.int32(0)
    for n in range(line.shape[0]):
        number = np.int32(np.int32(projections[n]) - np.int32(coefficient * np.int32(line[n])))
        projections[n] = number
        most = max(most, np.int32(abs(number)))
    return most


@part
def find_magnitude(projections: Any, most: Any) -> Any:
    """The first atom whose projection has this magnitude; it is there."""
    atom = np.int64(0)
    for start in range(0, projections.shape[0] - (BLOCK - 1), BLOCK):
        block, greatest = projections[start : start + BLOCK], np.int32(0)
        for n in range(block.shape[0]):
            greatest = max(greatest, np.int32(abs(np.int32(block[n]))))
        if greatest == most:
            break
        atom = np.int64(start + BLOCK)
    while np.int32(abs(np.int32(projections[atom]))) != most:
        atom = np.int64(atom + 1)
    return atom


@part
def add_coefficient(atom: Any, coefficient: Any, count: Any, indices: Any, coefficients: Any) -> Any:
    """Add to an atom's coefficient, if it has a place, else give it one. Atoms then."""
    at = np.int64(0)
    while at < count and np.int64(indices[at]) != atom:
        at = np.int64(at + 1)
    indices[at] = np.uint16(atom)
    coefficients[at] = np.int32(np.int32(coefficients[at]) + coefficient)
    return np.int64(max(count, at + 1))
