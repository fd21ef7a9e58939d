"""Training what the codes of K tell of V: a ridge regression on the components that K's codes decode to."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.prediction import GivenCodes, Prediction
from kvcodec.codecs.product import Product
from kvcodec.codecs.transform import MIDDLE_SHAPE
from kvcodec.dictionary.spectrum import Spectrum, find_spectrum, normalize
from kvcodec.dictionary.vectors import Vectors, read_blocks, spread_blocks
from kvcodec.errors import ShapeError, SpecError

_RIDGE = 0.01  # of the components' mean square
_LEAST = 1e-6


class Pairs(NamedTuple):
    """K and V of the same tokens and heads. keys, values: float32 (n, d) each."""

    keys: NDArray[np.float32]
    values: NDArray[np.float32]


class Rest(NamedTuple):
    """What is left of V. spectrum: of that, the metric being that of V. given: codes of the K of the sample."""

    prediction: Prediction
    spectrum: Spectrum
    given: GivenCodes


def take_pairs(keys: Vectors, values: Vectors, most: int) -> Pairs:
    """About `most` pairs at most, spread evenly over all, but those with a vector of zeros. ShapeError, SpecError."""
    if list(keys.counts) != list(values.counts):
        raise ShapeError(f"{sum(keys.counts)} vectors of K and {sum(values.counts)} of V: want a K for each V")
    blocks = spread_blocks(values, most)
    both = Pairs(read_blocks(keys, blocks), read_blocks(values, blocks))
    kept = np.logical_and(*(np.abs(rows).max(axis=1, initial=0) > 0 for rows in both))
    if not kept.any():
        raise SpecError("no vectors but zeros to train on")
    return Pairs(both.keys[kept], both.values[kept])


def find_rest(source: Product, pairs: Pairs, metric: NDArray[np.float32] | None) -> Rest:
    """What `source`'s codes of K tell of V, and what V is like without that."""
    given = GivenCodes(source, source.code(pairs.keys))
    units = normalize(pairs.values)
    prediction = fit_prediction(given, units - units.mean(axis=0))
    return Rest(prediction, find_spectrum(pairs.values, metric, prediction.predict(given)), given)


def fit_prediction(given: GivenCodes, targets: NDArray[np.float64]) -> Prediction:
    """Of targets (n, d): vectors of length 1 without their mean. The least squares hang on no metric of theirs.

    A vector counts the less the larger its K is: the few that are far from all others would else decide.
    """
    source = given.product
    inputs = source.decode_components(given.coded)
    steps = np.sqrt(np.maximum((inputs * inputs).mean(axis=0), 1e-300))
    inputs /= steps
    weighed = inputs / np.maximum((inputs * inputs).mean(axis=1, keepdims=True), _LEAST)
    moments = weighed.T @ inputs
    ridge = _RIDGE * max(float(np.diagonal(moments).mean()), 1e-300)
    found = np.linalg.solve(moments + ridge * np.eye(len(moments)), weighed.T @ targets)
    rows = found * (source.analysis.units / steps)[:, None]  # of what 1 in the books adds, at the unit shape
    step = max(float(np.abs(rows).max()), 1e-12) / 32767
    scales = (source.shape_table / source.shape_table[MIDDLE_SHAPE] * step).astype(ml_dtypes.bfloat16)
    basis = np.clip(np.rint(rows / float(scales[MIDDLE_SHAPE])), -32767, 32767).astype(np.int16)
    return Prediction(np.ascontiguousarray(basis), scales.view(np.uint16), source.name)
