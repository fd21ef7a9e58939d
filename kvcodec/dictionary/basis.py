"""A spectrum's components as what product codes and trellis codes are made of: integers of a basis, shapes, weights."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.transform import MIDDLE_SHAPE
from kvcodec.dictionary.spectrum import Spectrum
from kvcodec.kernels.product import SHAPES

_SHAPE_STEP = 0.25  # log2
_SIZED = 160


def weigh_squares(variances: NDArray[np.float64]) -> NDArray[np.float32]:
    """float32 (components,): by what squares of components are weighed, the greatest ones, to tell a vector's size."""
    spread = np.zeros(len(variances), np.float32)
    sized = np.argsort(-variances, kind="stable")[:_SIZED]
    spread[sized] = 1 / (variances[sized] * len(sized))
    return spread


def quantize_basis(rows: NDArray[np.float64], step: float) -> tuple[NDArray[np.int16], NDArray[np.uint16]]:
    """int16 (components, d) of rows in units of about `step`, and shapes, bfloat16 bits (16,), the middle one of which
    is that unit.
    """
    shapes = (2.0 ** (_SHAPE_STEP * (np.arange(SHAPES) - MIDDLE_SHAPE)) * step).astype(ml_dtypes.bfloat16)
    basis = np.clip(np.rint(rows / float(shapes[MIDDLE_SHAPE])), -32767, 32767).astype(np.int16)
    return np.ascontiguousarray(basis), shapes.view(np.uint16)


def analysis_rows(spectrum: Spectrum, order: NDArray[np.int64]) -> NDArray[np.float32]:
    """float32 (components + 1, d): see Analysis. order: numbers of the spectrum's components."""
    along = spectrum.metric @ spectrum.mean
    return np.concatenate([spectrum.analysis[:, order].T, along[None]]).astype(np.float32)
