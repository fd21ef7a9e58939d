"""What stands before and behind matching pursuit with integers: rows to int16, and its coefficients to stored codes.

Nothing here is a float: rows, means and scales are the bits of floats. Together with integer_pursuit.py this is an
encoder for a device without floats.

Codes are whole numbers of steps, all of one width. Some widths are tried: the codes that round the coefficients are
corrected one after the other, in the order of the pursuit, each to the best it can be beside the others, some times
over. That is a descent, so it also makes up for what matching pursuit, which never fits its atoms anew, leaves behind.
Of the widths that whose codes come nearest at their best scale is kept: with c the codes' sum of atoms and x the
vector, the scale is x . c / c . c, and (x . c)**2 / c . c is what it takes from the squared length.

Bounds: 32 codes of at most 127, products with atoms below 2**31 and of atoms with one another below 2**24 make x . c
less than 2**43 and c . c less than 2**48. (x . c)**2 / c . c is at most (2**fraction * |x|)**2 < 2**62.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit, part

FRACTION_BITS = np.int64(23)  # of a float32
GUARD = np.int64(30)  # bits below the last one of a row's greatest number, while the mean is taken away
WIDTHS = 8
SWEEPS = 3
STEP_BITS = np.int64(8)  # of a step, behind those of a coefficient
ONE = np.int64(1)
GREATEST = np.int64(0x7F7F)  # bfloat16
BIAS = np.int64(134)  # of a bfloat16 whose fraction is a whole number


def codes_words(terms: int) -> int:
    """int64 of the work space of quantize_integers."""
    return 2 * terms


@jit
def fix_rows(
    rows: NDArray[np.uint32], mean: NDArray[np.uint32], bits: Any, vectors: NDArray[np.int16],
    exponents: NDArray[np.int32],
) -> None:  # fmt: skip
    """Rows less a mean in block floating point: a row is vector * 2**exponent, its greatest magnitude of `bits` bits.

    rows: (n, dim), bits of finite float32. mean: (dim,), the same. bits: 15 at most. vectors: out, int16 (n, dim),
    rounded, halves up. exponents: out, int32 (n,).
    """
    most = np.int64((ONE << bits) - ONE)
    for i in range(rows.shape[0]):
        peak = ONE
        for c in range(rows.shape[1]):
            peak = max(peak, find_exponent(rows[i, c]), find_exponent(mean[c]))
        greatest = np.int64(0)
        for c in range(rows.shape[1]):
            greatest = max(greatest, np.int64(abs(np.int64(fix(rows[i, c], peak) - fix(mean[c], peak)))))
        shift = np.int64(count_bits(greatest) - bits)
        for c in range(rows.shape[1]):
            number = np.int64(fix(rows[i, c], peak) - fix(mean[c], peak))
            vectors[i, c] = np.int16(min(shift_rounded(number, shift), most))
        exponents[i] = np.int32(peak - np.int64(127) - FRACTION_BITS - GUARD + shift)


@part
def find_exponent(word: Any) -> Any:
    """The biased exponent of a float32; 1 of subnormals, whose unit it is."""
    return np.int64(max(np.int64((np.int64(word) >> FRACTION_BITS) & np.int64(255)), ONE))


@part
def fix(word: Any, peak: Any) -> Any:
    """A float32 in units of 2**-GUARD of the last bit that one with the exponent `peak` has, rounded down."""
    field = np.int64((np.int64(word) >> FRACTION_BITS) & np.int64(255))
    number = np.int64(np.int64(word) & np.int64((ONE << FRACTION_BITS) - ONE))
    if field > 0:
        number = np.int64(number + (ONE << FRACTION_BITS))
    number = np.int64(number << GUARD)
    if np.int64(word) >> np.int64(31):
        number = np.int64(-number)
    return np.int64(number >> min(np.int64(peak - max(field, ONE)), np.int64(63)))


@part
def count_bits(number: Any) -> Any:
    """Bits of a number that is not negative."""
    count = np.int64(0)
    while np.int64(number) >> count:
        count = np.int64(count + ONE)
    return count


@part
def shift_rounded(number: Any, shift: Any) -> Any:
    """number / 2**shift, rounded, halves up."""
    if shift <= 0:
        return np.int64(number << np.int64(-shift))
    return np.int64(np.int64(number + (ONE << np.int64(shift - ONE))) >> shift)


@jit
def quantize_integers(
    vectors: NDArray[np.int16], exponents: NDArray[np.int32], atoms: NDArray[np.int8], gram: NDArray[np.int32],
    fraction: Any, indices: NDArray[np.uint16], coefficients: NDArray[np.int32], counts: NDArray[np.int64], bits: Any,
    codes: NDArray[np.int8], scales: NDArray[np.uint16], memory: NDArray[np.int64],
) -> None:  # fmt: skip
    """Codes of `bits` bits of what mp_integers found, and one scale a vector.

    vectors, exponents: of fix_rows. atoms, gram, fraction, indices, coefficients, counts: of mp_integers, s at most 32.
    codes: out, int8 (n, s), within +-(2**(bits - 1) - 1). scales: out, uint16 (n,), bits of finite bfloat16, 0 where no
    codes are better than none. memory: codes_words(s).
    """
    for i in range(vectors.shape[0]):
        for j in range(codes.shape[1]):
            codes[i, j] = np.int8(0)
        used, peak, scale = np.int64(counts[i]), np.int64(0), np.int64(0)
        for j in range(used):
            peak = max(peak, np.int64(abs(np.int64(coefficients[i, j]))))
            memory[j] = np.int64(multiply(vectors[i], atoms[indices[i, j]]) << np.int64(fraction))
        best, most = np.int64(0), np.int64((ONE << np.int64(bits - 1)) - ONE)
        for n in range(WIDTHS if peak > 0 else 0):
            steps = np.int64(16 * most + 8 - n * most)
            step = max(np.int64((peak << np.int64(STEP_BITS + 4)) // steps), ONE)
            descend(indices[i], coefficients[i], used, gram, step, most, memory)
            along, square = project_codes(indices[i], used, gram, memory)
            gain = divide_square(along, square)
            if gain > best:
                best = gain
                scale = round_scale(along, square, np.int64(np.int64(exponents[i]) - np.int64(fraction)))
                for j in range(used):
                    codes[i, j] = np.int8(memory[used + j])
        scales[i] = np.uint16(scale)


@part
def multiply(vector: Any, atom: Any) -> Any:
    """Product of a vector with an atom."""
    total = np.int64(0)
    for c in range(vector.shape[0]):
        total = np.int64(total + np.int64(np.int64(vector[c]) * np.int64(atom[c])))
    return total


@part
def descend(indices: Any, coefficients: Any, used: Any, gram: Any, step: Any, most: Any, memory: Any) -> None:
    """Codes in steps of this width, behind the `used` products of the vector with the atoms in memory."""
    for j in range(used):
        number = np.int64(np.int64(coefficients[j]) << STEP_BITS)
        memory[used + j] = min(max(divide_rounded(number, step), np.int64(-most)), most)
    for _ in range(SWEEPS):
        for j in range(used):
            atom, taken = indices[j], np.int64(0)
            for k in range(used):
                taken = np.int64(taken + np.int64(memory[used + k]) * np.int64(gram[atom, indices[k]]))
            rest = np.int64((np.int64(memory[j]) << STEP_BITS) - step * taken)
            more = divide_rounded(rest, np.int64(step * np.int64(gram[atom, atom])))
            memory[used + j] = min(max(np.int64(np.int64(memory[used + j]) + more), np.int64(-most)), most)


@part
def divide_rounded(number: Any, divisor: Any) -> Any:
    """The nearest whole number, halves up, of a quotient whose divisor is positive."""
    return np.int64(np.int64(2 * number + divisor) // np.int64(2 * divisor))


@part
def project_codes(indices: Any, used: Any, gram: Any, memory: Any) -> Any:
    """(with the vector, with itself): products of the codes' sum of atoms."""
    along, square = np.int64(0), np.int64(0)
    for j in range(used):
        code = np.int64(memory[used + j])
        along = np.int64(along + code * np.int64(memory[j]))
        for k in range(used):
            product = np.int64(np.int64(memory[used + k]) * np.int64(gram[indices[j], indices[k]]))
            square = np.int64(square + code * product)
    return along, square


@part
def divide_square(along: Any, square: Any) -> Any:
    """along**2 / square, rounded down twice; 0 where codes point away from the vector."""
    if along <= 0 or square <= 0:
        return np.int64(0)
    whole = np.int64(along // square)
    rest = np.int64(np.int64(np.int64(along - whole * square) << np.int64(15)) // square)
    return np.int64(np.int64(whole * along) + (np.int64(rest * along) >> np.int64(15)))


@part
def round_scale(along: Any, square: Any, exponent: Any) -> Any:
    """bfloat16 bits of along / square * 2**exponent, nearest, halves up; both are positive."""
    up = np.int64(0)
    while along >= np.int64(square << np.int64(9)):
        square, up = np.int64(square << ONE), np.int64(up - ONE)
    while along < np.int64(square << np.int64(8)):
        along, up = np.int64(along << ONE), np.int64(up + ONE)
    whole = np.int64(np.int64(along // square + ONE) >> ONE)  # 128 to 256
    biased = np.int64(exponent - up + ONE + BIAS)
    if biased <= 0:
        return shift_rounded(whole, min(np.int64(ONE - biased), np.int64(31)))
    return min(np.int64(np.int64(biased << np.int64(7)) + whole - np.int64(128)), GREATEST)
