"""What OMP and its order-recursive kin share: the memory of one vector, passes over all atoms, the solution.

The Gram matrix of the atoms taken is factored as it grows, without roots: gram = L diag(pivots) L'. Each atom taken
has a *row*, its products with all atoms once the atoms before it are projected out of it; the factor's entries are
numbers of these rows, and a step takes one multiple of one row from the projections. Rows lie block by block of BLOCK
atoms: at a stride of whole rows, often a power of two, all of them would meet in a few sets of the first cache.

Loops run on addresses: 4 * 64 bytes are a block. What is shorter than whole blocks is copied and padded with zeros.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvcodec.kernels._floats_simd import (
    bits_of,
    floats_of,
    greater_float,
    load_floats,
    magnitude,
    splat_float,
    store_floats,
)
from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._lanes import greater, greatest_lane, smaller, splat
from kvcodec.kernels._simd import load_word

BLOCK = 64  # atoms
BYTES = 4 * BLOCK
MAGNITUDE = np.int32(0x7FFFFFFF)
DEPENDENT = np.float32(2.0**-12)  # the square, or less, of what of an atom is not in the span of those taken
DEPENDENT_BITS = np.int32((127 - 12) << 23)
NOISE = np.float32(2.0**-18)  # of the first projection: one that is no greater is what float32 missed
LEAST_BITS, MOST_BITS = np.int32((127 - 30) << 23), np.int32((127 + 30) << 23)
HUGE = np.float64(np.finfo(np.float32).max)


class Places(NamedTuple):
    """What lies where in work memory, counted in float32, for atoms padded to `width` and s places.

    line: a row of the Gram matrix, padded. diagonal: its own. left: what of it is not in the span of the atoms taken.
    factors: of one row of L. lower: L. inverses: 1 / pivots. steps: multiples of rows. The projections come first.
    """

    width: Any
    line: Any
    diagonal: Any
    left: Any
    scores: Any
    factors: Any
    lower: Any
    inverses: Any
    steps: Any
    rows: Any


@inline
def lay_out(atoms: Any, s: Any) -> Any:
    """Places, but for `rows` and what is read one by one all of them whole blocks."""
    width = np.int64((atoms + (BLOCK - 1)) & -BLOCK)
    rows = np.int64(5 * width)
    factors = np.int64(rows + s * width)
    lower = np.int64(factors + s)
    inverses = np.int64(lower + s * s)
    return Places(width, width, 2 * width, 3 * width, 4 * width, factors, lower, inverses, inverses + s, rows)


def memory_floats(atoms: int, s: int) -> int:
    """float32 numbers of the work memory of omp and ormp, 16 of them to begin with a cache line."""
    return 16 + (5 + s) * ((atoms + BLOCK - 1) & -BLOCK) + s * s + 3 * s


@inline
def row_place(places: Any, s: Any, j: Any, atom: Any) -> Any:
    """Of an atom's number in row j."""
    return np.int64(places.rows + (atom & -BLOCK) * s + BLOCK * j + (atom & (BLOCK - 1)))


@inline
def number_at(address: Any) -> Any:
    """One float32."""
    return np.int32(load_word(address)).view(np.float32)


@inline
def load_block(at: Any) -> Any:
    """The atoms' numbers of a block."""
    return load_floats(at), load_floats(at + 64), load_floats(at + 128), load_floats(at + 192)


@inline
def subtract(block: Any, factor: Any, other: Any) -> Any:
    """A block less `factor` times another."""
    return (
        block[0] - factor * other[0],
        block[1] - factor * other[1],
        block[2] - factor * other[2],
        block[3] - factor * other[3],
    )


@inline
def store_block(block: Any, at: Any) -> None:
    """The atoms' numbers of a block."""
    store_floats(block[0], at)
    store_floats(block[1], at + 64)
    store_floats(block[2], at + 128)
    store_floats(block[3], at + 192)


@inline
def greatest_of(block: Any) -> Any:
    """Lanes of the bits of the greatest magnitudes: as integers they are in the same order."""
    one = greater(bits_of(magnitude(block[0])), bits_of(magnitude(block[1])))
    return greater(one, greater(bits_of(magnitude(block[2])), bits_of(magnitude(block[3]))))


@inline
def difference(floats: Any, key: Any) -> Any:
    """Lanes that are 0 where the magnitude's bits are the key, else positive."""
    return bits_of(magnitude(floats)) ^ key


@part
def find_greatest(at: Any, width: Any) -> Any:
    """Bits of the greatest magnitude of `width` float32."""
    most = splat(np.int32(0))
    for n in range(at, at + 4 * width, BYTES):
        most = greater(most, greatest_of(load_block(n)))
    return np.int32(greatest_lane(most))


@part
def find_bits(at: Any, width: Any, bits: Any) -> Any:
    """The first of `width` float32 whose magnitude has these bits; it is there."""
    key, zero = splat(bits), splat(np.int32(0))
    atom = np.int64(0)
    for n in range(0, width, BLOCK):
        atom = np.int64(n)
        block = load_block(at + 4 * atom)
        one = smaller(difference(block[0], key), difference(block[1], key))
        two = smaller(difference(block[2], key), difference(block[3], key))
        if np.int32(greatest_lane(zero - smaller(one, two))) == np.int32(0):
            break
    while np.int32(load_word(at + 4 * atom) & MAGNITUDE) != bits:
        atom = np.int64(atom + 1)
    return atom


@part
def copy_scaled(source: Any, count: Any, scale: Any, numbers: Any) -> None:
    """`count` float32 at an address, scaled, and zeros up to the end of `numbers`."""
    for n in range(numbers.shape[0]):
        number = np.float32(0)
        if n < count:
            number = np.float32(number_at(source + 4 * n) * scale)
        numbers[n] = number


@part
def advance(source: Any, target: Any, line: Any, rows: Any, s: Any, factors: Any, k: Any, width: Any, step: Any) -> Any:
    """Make row k and take `step` times it from the projections. Bits of the greatest projection then.

    line: of the Gram matrix, the atom's; factors: of L, the atom's; source, target: of projections, before and after.
    """
    most, multiple = splat(np.int32(0)), splat_float(step)
    for b in range(0, 4 * width, BYTES):
        row = rows + b * s
        block = load_block(line + b)
        for j in range(k):
            block = subtract(block, splat_float(np.float32(factors[j])), load_block(row))
            row += BYTES
        store_block(block, row)
        block = subtract(load_block(source + b), multiple, block)
        store_block(block, target + b)
        most = greater(most, greatest_of(block))
    return np.int32(greatest_lane(most))


@inline
def gain_of(projection: Any, left: Any) -> Any:
    """Floats of projection**2 / left; 0 of atoms in the span of those taken."""
    bits = greater(bits_of(left), splat(np.int32(0)))
    independent = (splat(DEPENDENT_BITS) - bits) >> 31
    gain = projection * projection / greater_float(left, splat_float(DEPENDENT))
    return floats_of(bits_of(gain) & independent)


@part
def rate(projections: Any, left: Any, scores: Any, width: Any) -> Any:
    """What the residual's energy would lose by each atom into `scores`. Bits of the most."""
    most = splat(np.int32(0))
    for n in range(0, 4 * width, 64):
        gain = gain_of(load_floats(projections + n), load_floats(left + n))
        store_floats(gain, scores + n)
        most = greater(most, bits_of(gain))
    return np.int32(greatest_lane(most))


@part
def shorten(source: Any, target: Any, row: Any, s: Any, inverse: Any, width: Any) -> None:
    """Take from what is left of all atoms, squared, the part along the atom of a row. inverse: of its pivot."""
    factor = splat_float(inverse)
    for n in range(0, 4 * width, BYTES):
        at = row + n * s
        for m in range(0, BYTES, 64):
            number = load_floats(at + m)
            store_floats(load_floats(source + n + m) - number * factor * number, target + n + m)


@part
def measure_left(numbers: Any, places: Any, s: Any, k: Any, atom: Any) -> Any:
    """Squared length of what of an atom the k atoms taken leave; the factors on the way, as a row of L."""
    left = np.float32(numbers[places.diagonal + atom])
    for j in range(k):
        number = np.float32(numbers[row_place(places, s, j, atom)])
        factor = np.float32(number * np.float32(numbers[places.inverses + j]))
        numbers[places.factors + j] = factor
        left = np.float32(left - np.float32(factor * number))
    return left


@part
def drop_dependent(numbers: Any, places: Any, s: Any, k: Any, atoms: Any) -> None:
    """No projection for atoms in the span of those taken."""
    for n in range(atoms):
        if not measure_left(numbers, places, s, k, np.int64(n)) > DEPENDENT:
            numbers[n] = np.float32(0)


@part
def solve(numbers: Any, places: Any, s: Any, count: Any, unscale: Any, coefficients: Any) -> None:
    """Least squares: L' coefficients = steps, then what scaling took; 0 for the places without an atom."""
    steps = numbers[places.steps : places.steps + s]
    for r in range(count - 1, -1, -1):
        number = np.float64(steps[r])
        for c in range(r + 1, count):
            number = np.float64(number - np.float64(numbers[places.lower + c * s + r]) * np.float64(steps[c]))
        steps[r] = np.float32(number)
        coefficients[r] = np.float32(min(max(np.float64(number * unscale), -HUGE), HUGE))
    for r in range(count, s):
        coefficients[r] = np.float32(0)
