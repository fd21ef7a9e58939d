"""From vectors to codes over a dictionary: scaling, projection, pursuit, integer coefficients."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.dictionary import Dictionary
from kvcodec.codecs.integer_pursuit import IntegerSpace
from kvcodec.kernels import coefficients as coefficient_kernels
from kvcodec.kernels import pursuit as pursuit_kernels
from kvcodec.kernels.projection import project
from kvcodec.sparse_spec import ERROR_STEPS, Pursuit, SparseCodes

BLOCK = 192  # vectors whose projections are held at once
GREATEST = float(np.uint32(0x7F7F0000).view(np.float32))  # bfloat16
NEVER = np.float32(-1)  # a bound that no residual meets


class Codes(NamedTuple):
    """Coded vectors. indices: uint16 (n, s), in the order in which pursuit took them. coefficients: int8 (n, s).
    scales: uint16 (n,), bits of bfloat16. counts: int64 (n,), atoms taken; the others are index 0, coefficient 0.
    """

    indices: NDArray[np.uint16]
    coefficients: NDArray[np.int8]
    scales: NDArray[np.uint16]
    counts: NDArray[np.int64]


def empty_codes(count: int, atoms: int) -> Codes:
    """Memory for the codes of `count` vectors."""
    return Codes(
        np.zeros((count, atoms), np.uint16),
        np.zeros((count, atoms), np.int8),
        np.zeros(count, np.uint16),
        np.zeros(count, np.int64),
    )


def pursue(
    rows: NDArray[np.float32],
    dictionary: Dictionary,
    codes: SparseCodes,
    targets: NDArray[np.float64] | None = None,
) -> Codes:
    """Codes of finite vectors (n, d), by the dictionary's pursuit. A vector's codes do not hang on those beside it.

    targets: (n,), squared errors at which a vector takes no more atoms, negative for never; without them the spec's
    error says so. In a dictionary's metric they are as large a part of the vector as in the plain one.
    """
    out = empty_codes(len(rows), codes.atoms)
    kind = IntegerSpace if dictionary.pursuit == Pursuit.MP else _Space
    space = kind(dictionary, codes, min(len(rows), BLOCK))
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        own = Codes(out.indices[part], out.coefficients[part], out.scales[part], out.counts[part])
        space.code(rows[part], own, None if targets is None else targets[part])
    return out


class _Space:
    """Memory for one block of vectors."""

    def __init__(self, dictionary: Dictionary, codes: SparseCodes, count: int) -> None:
        self._dictionary, self._codes = dictionary, codes
        self._projections = np.empty((count, dictionary.padded_size), np.float32)
        self._coefficients = np.empty((count, codes.atoms), np.float32)
        self._residuals = np.empty((count, codes.atoms), np.float32)
        self._left = np.empty(count, np.float32)
        size, atoms = dictionary.padded_size, codes.atoms
        self._pursuit = np.empty(pursuit_kernels.memory_floats(size, atoms), np.float32)
        self._rounding = np.empty(coefficient_kernels.work_bytes(atoms), np.uint8)

    def code(self, rows: NDArray[np.float32], out: Codes, targets: NDArray[np.float64] | None = None) -> None:
        """Fill `out` with the codes of vectors."""
        own, codes, count = self._dictionary, self._codes, len(rows)
        vectors, exponents = normalize_rows(rows - own.mean if own.has_mean else rows)
        energies = own.energies(vectors)
        projections = self._projections[:count]
        project(vectors, own.tiles, projections)
        bound = np.float32((codes.error / ERROR_STEPS) ** 2)
        bounds = energies * bound if codes.error else np.full(count, NEVER)
        if targets is not None:
            bounds = scale_targets(targets, exponents, vectors, energies)
        kernel = pursuit_kernels.ormp if own.pursuit == Pursuit.ORMP else pursuit_kernels.omp
        floats = self._coefficients[:count]
        kernel(
            projections, own.gram, energies, bounds, out.indices, floats, out.counts, self._residuals[:count],
            self._pursuit,
        )  # fmt: skip
        coefficient_kernels.quantize_coefficients(
            out.indices, floats, out.counts, projections, own.gram, own.norms, energies, np.int64(codes.bits),
            out.coefficients, out.scales, self._left[:count], self._rounding.ctypes.data,
        )  # fmt: skip
        out.scales[...] = scale_back(out.scales, exponents)


def normalize_rows(rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Rows times a power of two each, such that their greatest magnitude is from 0.5 to 1; and the exponents."""
    exponents = np.frexp(np.abs(rows).max(axis=1, initial=0))[1].astype(np.int32)
    return np.ldexp(rows, -exponents[:, None]), exponents


def scale_targets(
    targets: NDArray[np.float64],
    exponents: NDArray[np.int32],
    vectors: NDArray[np.float32],
    energies: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Squared errors in units of normalized vectors, as parts of their energies."""
    plain = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)
    share = np.divide(energies, plain, out=np.ones_like(plain), where=plain > 0)
    scaled: NDArray[np.float32] = np.clip(np.ldexp(targets, -2 * exponents) * share, NEVER, GREATEST).astype(np.float32)
    return scaled


def scale_back(scales: NDArray[np.uint16], exponents: NDArray[np.int32]) -> NDArray[np.uint16]:
    """bfloat16 bits of scales times powers of two, at most the greatest finite number."""
    numbers = np.ldexp(scales.view(ml_dtypes.bfloat16).astype(np.float64), exponents)
    bits: NDArray[np.uint16] = np.minimum(numbers, GREATEST).astype(ml_dtypes.bfloat16).view(np.uint16)
    return bits
