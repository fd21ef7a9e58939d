"""Training product codes: k-means for each group of components, then rounds with the encoder itself in the loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.prediction import GivenCodes, Prediction
from kvcodec.codecs.product import Product, ProductCodes
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import MIDDLE_SHAPE, Analysis
from kvcodec.codecs.uses import Use
from kvcodec.dictionary.basis import analysis_rows, quantize_basis, weigh_squares
from kvcodec.dictionary.budget import split_components
from kvcodec.dictionary.spectrum import Spectrum
from kvcodec.kernels._centroids import CENTROIDS
from kvcodec.kernels.projection import project, tile_atoms

_MEANS_ROUNDS, _MEANS_SAMPLE = 10, 12_000
_LOOP_ROUNDS = 3
_GAIN_ROOM = 1.25


class _Plan(NamedTuple):
    """What training does not change. order: components of the spectrum, group by group; ends: of the groups."""

    spectrum: Spectrum
    order: NDArray[np.int64]
    ends: NDArray[np.int64]
    spread: NDArray[np.float32]
    gains: NDArray[np.uint16]
    uses: tuple[Use, ...]
    rotation: Rotation | None
    prediction: Prediction | None


def fit_product(
    spectrum: Spectrum,
    sample: NDArray[np.float32],
    groups: int,
    uses: tuple[Use, ...],
    *,
    rotation: Rotation | None = None,
    prediction: Prediction | None = None,
    given: GivenCodes | None = None,
    seed: int = 0,
    step: Callable[[float], None] = lambda _share: None,
) -> Product:
    """Product codes of `groups` codes for vectors like those of the sample (n, d), whose spectrum is given.

    prediction, given: of V, what is predicted, and codes of K of the sample; the spectrum is that of the rest. step:
    called with the share of the work that is done; what it raises ends the work.
    """
    lot = np.random.default_rng(seed)
    parts = split_components(spectrum.variances, groups)
    order, ends = np.concatenate(parts), np.cumsum([len(part) for part in parts])
    lengths = np.linalg.norm(sample.astype(np.float64), axis=1)
    told = 0 if prediction is None or given is None else prediction.predict(given)
    y = ((sample / lengths[:, None] - spectrum.mean - told) @ spectrum.analysis[:, order]).astype(np.float32)
    spread = weigh_squares(spectrum.variances[order])
    plan = _Plan(spectrum, order, ends, spread, gain_table(lengths.min(), lengths.max()), uses, rotation, prediction)
    sizes = np.sqrt(np.maximum((y * y) @ spread, 1e-12))
    shown = lot.permutation(len(y))[:_MEANS_SAMPLE]
    scaled = np.split(y[shown] / sizes[shown, None], ends[:-1], axis=1)
    means = []
    for n, part in enumerate(scaled):
        means.append(find_means(np.ascontiguousarray(part), lot).T)
        step((n + 1) / len(scaled) / 2)
    books = np.concatenate(means)
    for n in range(_LOOP_ROUNDS):
        own = _assemble(plan, books)
        _move_means(own, own.code(sample, given), y, books)
        step((1 + (n + 1) / _LOOP_ROUNDS) / 2)
    return _assemble(plan, books)


def find_means(vectors: NDArray[np.float32], lot: np.random.Generator) -> NDArray[np.float32]:
    """float32 (256, d): k-means of vectors (n, d)."""
    drawn = lot.choice(len(vectors), CENTROIDS, replace=len(vectors) < CENTROIDS)
    means = vectors[drawn].copy()
    for _ in range(_MEANS_ROUNDS):
        own = nearest(vectors, means)
        counts = np.bincount(own, minlength=CENTROIDS)
        sums = np.stack([np.bincount(own, column, CENTROIDS) for column in vectors.T], axis=1)
        used = counts > 0
        means[used] = sums[used] / counts[used, None]
        if not used.all():
            means[~used] = vectors[lot.choice(len(vectors), int((~used).sum()))]
    return means


def nearest(vectors: NDArray[np.float32], means: NDArray[np.float32]) -> NDArray[np.int64]:
    """Number of the mean that is nearest to each vector."""
    dots = np.empty((len(vectors), CENTROIDS), np.float32)
    project(vectors, tile_atoms(means), dots)
    dots *= np.float32(-2)
    dots += (means * means).sum(axis=1)
    found: NDArray[np.int64] = np.argmin(dots, axis=1)
    return found


def _move_means(own: Product, coded: ProductCodes, y: NDArray[np.float32], books: NDArray[np.float32]) -> None:
    """Put centroids, books (components, 256), where they miss least of the vectors that the encoder codes by them."""
    sizes = own.shape_table[coded.shapes] / own.shape_table[MIDDLE_SHAPE]
    for g, (first, end) in enumerate(itertools.pairwise([0, *own.ends.tolist()])):
        codes = coded.codes[:, g]
        weights = np.bincount(codes, sizes * sizes, CENTROIDS)
        used = weights > 0
        for c in range(first, end):
            books[c, used] = np.bincount(codes, sizes * y[:, c], CENTROIDS)[used] / weights[used]


def _assemble(plan: _Plan, books: NDArray[np.float32]) -> Product:
    """A basis and books (components, 256) as integers."""
    spectrum, order = plan.spectrum, plan.order
    units = np.maximum(np.abs(books).max(axis=1), 1e-12) / 127
    rows = spectrum.synthesis[:, order].T * units[:, None]
    basis, shapes = quantize_basis(rows, float(np.abs(rows).max()) / 32767)
    return Product(
        basis, np.ascontiguousarray(np.rint(books / units[:, None]).astype(np.int8)), plan.ends,
        plan.gains, shapes, plan.uses, spectrum.mean.astype(np.float32),
        Analysis(analysis_rows(spectrum, order), units.astype(np.float32), plan.spread), plan.rotation,
        prediction=plan.prediction,
    )  # fmt: skip


def gain_table(least: float, most: float) -> NDArray[np.uint16]:
    """bfloat16 bits (256,): 0, and gains that ascend evenly in their logs, or as finely as bfloat16 can."""
    logs = np.linspace(np.log2(least / _GAIN_ROOM), np.log2(most * _GAIN_ROOM), 255)
    bits = (2.0**logs).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.int64)
    bits[0] = max(bits[0], 1)
    for n in range(1, 255):
        bits[n] = max(bits[n], bits[n - 1] + 1)
    return np.concatenate([[0], bits]).astype(np.uint16)
