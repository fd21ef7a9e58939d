"""From vectors to codes over a dictionary with integers alone, but for what says when to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.dictionary import Dictionary
from kvcodec.kernels.integer_codes import codes_words, fix_rows, quantize_integers
from kvcodec.kernels.integer_pursuit import choose_fraction, make_reciprocals, mp_integers, vector_bits
from kvcodec.sparse_spec import ERROR_STEPS, SparseCodes

if TYPE_CHECKING:
    from kvcodec.codecs.pursuit import Codes

_SHARE_BITS = 30  # of a bound's part of an energy: ERROR_STEPS**2
_MOST = float((1 << 63) - 1024)  # the greatest float64 below 2**63


class IntegerSpace:
    """Memory for one block of at most `count` vectors, and the tables of a dictionary.

    Errors are plain ones: a device without floats does not know a dictionary's metric.
    """

    def __init__(self, dictionary: Dictionary, codes: SparseCodes, count: int) -> None:
        self._dictionary, self._codes = dictionary, codes
        self._gram = dictionary.products
        self._reciprocals, self._bits = make_reciprocals(self._gram), vector_bits(dictionary.dim)
        self._fraction = choose_fraction(self._gram, dictionary.dim)
        self._vectors = np.empty((count, dictionary.dim), np.int16)
        self._exponents = np.empty(count, np.int32)
        self._coefficients = np.empty((count, codes.atoms), np.int32)
        self._projections = np.empty(dictionary.size, np.int32)
        self._work = np.empty(codes_words(codes.atoms), np.int64)

    def code(self, rows: NDArray[np.float32], out: Codes, targets: NDArray[np.float64] | None = None) -> None:
        """Fill `out` with the codes of vectors. targets: squared errors, see `pursue`."""
        own, part = self._dictionary, slice(len(rows))
        vectors, exponents, coefficients = self._vectors[part], self._exponents[part], self._coefficients[part]
        mean = own.mean.view(np.uint32)
        fix_rows(np.ascontiguousarray(rows).view(np.uint32), mean, np.int64(self._bits), vectors, exponents)
        wide = vectors.astype(np.int64)
        left = np.add.reduce(wide * wide, axis=1) << 2 * self._fraction
        bounds = self._find_bounds(left) if targets is None else self._scale_targets(targets, exponents)
        fraction = np.int64(self._fraction)
        mp_integers(
            vectors, own.atoms, self._gram, self._reciprocals, fraction, bounds, out.indices, coefficients, out.counts,
            left, self._projections,
        )  # fmt: skip
        quantize_integers(
            vectors, exponents, own.atoms, self._gram, fraction, out.indices, coefficients, out.counts,
            np.int64(self._codes.bits), out.coefficients, out.scales, self._work,
        )  # fmt: skip

    def _find_bounds(self, energies: NDArray[np.int64]) -> NDArray[np.int64]:
        """The spec's error, squared, of energies below 2**62, rounded down."""
        share = self._codes.error**2
        if not share:
            return np.full(len(energies), -1)
        low = energies & ERROR_STEPS**2 - 1
        bounds: NDArray[np.int64] = (energies >> _SHARE_BITS) * share + (low * share >> _SHARE_BITS)
        return bounds

    def _scale_targets(self, targets: NDArray[np.float64], exponents: NDArray[np.int32]) -> NDArray[np.int64]:
        """Squared errors in units of the vectors, rounded down."""
        scaled = np.ldexp(targets, 2 * (self._fraction - exponents.astype(np.int64)))
        bounds: NDArray[np.int64] = np.floor(np.clip(scaled, -1, _MOST)).astype(np.int64)
        return bounds
