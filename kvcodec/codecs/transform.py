"""What product codes and trellis codes have in common: a static basis, tables of gains and shapes, a mean.

A vector is scale * (sum of basis rows times the integers that its codes stand for) + gain * mean, turned by a rotation
if there is one; a gain of 256 and a shape of 16 for each vector; scale is gain * shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.dictionary import MAX_DIM
from kvcodec.codecs.pursuit import normalize_rows
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.uses import Use, check_rotation
from kvcodec.errors import ShapeError, SpecError
from kvcodec.kernels.projection import project, tile_atoms
from kvcodec.shaped_spec import BUDGET_STEPS, MAX_BUDGET, round_budget

MAX_COMPONENTS = 512  # sums of so many products of int16 and int8 fit an int32
MIDDLE_SHAPE = 8  # of vectors as large as most
_TOO_LARGE = "basis, gains, shapes or mean too large: vectors that no float32 holds"
_SUM = 2.0**31  # more than such a sum
_GREATEST = 2.0**125  # of a part of a component: sums of two, turned, are finite, and of three, which never turn


@dataclass(frozen=True, eq=False)
class Analysis:
    """What an encoder, and no decoder, needs. rows: float32 (components + 1, d): the products with them of a vector of
    length 1 are its components and, last, its product with the mean in the metric in which errors are measured.
    units: float32 (components,), what 1 in the books, or in the tables, is. spread: float32 (components,), by which the
    squares of components are weighed to tell a vector's shape.
    """

    rows: NDArray[np.float32]
    units: NDArray[np.float32]
    spread: NDArray[np.float32]


class Transformed(ABC):
    """Of such codes what decoders have in common.

    basis: int16 (components, d). gains, shapes: bfloat16 (256,), (16,); gains ascend from 0. mean: float32 (d,).
    budget: bytes of a vector, on average over the streams of a model, that they were trained for; 0 if unknown.
    """

    basis: NDArray[np.int16]
    gains: NDArray[Any]
    shapes: NDArray[Any]
    uses: tuple[Use, ...]
    mean: NDArray[np.float32]
    analysis: Analysis
    rotation: Rotation | None
    budget: float

    def check_transform(self, name: str) -> None:
        """Raises ShapeError, SpecError for a part that is none."""
        components, dim = self.basis.shape
        if not (1 <= components <= MAX_COMPONENTS and 1 <= dim <= MAX_DIM):
            raise ShapeError(f"basis {self.basis.shape} of no {name}")
        gains, shapes = self.gain_table, self.shape_table
        if gains.shape != (256,) or not np.isfinite(gains).all() or gains[0] != 0 or (np.diff(gains) <= 0).any():
            raise ShapeError("gains: want 256 that ascend from 0")
        if shapes.shape != (16,) or (shapes <= 0).any() or not np.isfinite(shapes).all():
            raise ShapeError("shapes: want 16 positive ones")
        if self.mean.shape != (dim,) or not np.isfinite(self.mean).all():
            raise ShapeError(f"mean: {self.mean.shape}, want ({dim},) finite numbers")
        self.check_scales(shapes)
        if float(gains[-1]) * float(np.abs(self.mean).max()) > _GREATEST or self.basis.min() < -32767:
            raise ShapeError(_TOO_LARGE)
        if not 0 <= self.budget <= MAX_BUDGET or round_budget(self.budget) != self.budget:
            raise SpecError(f"budget: {self.budget:g} bytes, want a multiple of 1/{BUDGET_STEPS} up to {MAX_BUDGET}")
        if not self.uses or len(set(self.uses)) != len(self.uses):
            raise SpecError(f"{name} are for one or more streams, each named once")
        check_rotation(self.rotation, dim, self.uses)

    def check_scales(self, scales: NDArray[np.float32]) -> None:
        """Raises ShapeError for scales of sums that no float32 holds once they are multiplied by a gain."""
        if float(self.gain_table[-1]) * float(scales.max()) * _SUM > _GREATEST:
            raise ShapeError(_TOO_LARGE)

    @property
    def dim(self) -> int:
        return int(self.basis.shape[1])

    @property
    @abstractmethod
    def code_bytes(self) -> int:
        """Bytes of a vector's codes."""

    @property
    def size(self) -> int:
        """What specs that are bound to them say of them."""
        return self.code_bytes

    @cached_property
    def gain_table(self) -> NDArray[np.float32]:
        """float32 of the gains."""
        return np.asarray(self.gains.view(ml_dtypes.bfloat16).astype(np.float32))

    @cached_property
    def shape_table(self) -> NDArray[np.float32]:
        """float32 of the shapes."""
        return np.asarray(self.shapes.view(ml_dtypes.bfloat16).astype(np.float32))

    @cached_property
    def scale_table(self) -> NDArray[np.float32]:
        """float32 (256, 16): gain times shape, rounded to bfloat16."""
        return multiply_gains(self.gain_table, self.shape_table)


def multiply_gains(gains: NDArray[np.float32], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 (256, 16): products of all with all, rounded to bfloat16."""
    exact = np.multiply.outer(gains, scales)
    return np.asarray(exact.astype(ml_dtypes.bfloat16).astype(np.float32))


class Analyzed(NamedTuple):
    """Vectors in a basis. y: float32 (n, components), of x / length - mean. along: (n,), x / length along the mean.
    lengths: (n,), of vectors that were scaled by 2**exponents, (n,).
    """

    y: NDArray[np.float32]
    along: NDArray[np.float32]
    lengths: NDArray[np.float32]
    exponents: NDArray[np.int32]


class Analyzer:
    """Tables of an encoder. mean: float32 (components,), of the mean in the basis. mean_square: float32, its square.
    shapes: float32 (16,), relative to the middle one. borders: float32 (15,), of squares between them.
    """

    def __init__(self, own: Transformed) -> None:
        rows = own.analysis.rows
        if rows.shape != (len(own.basis) + 1, own.dim):
            raise SpecError(f"analysis {rows.shape}, want ({len(own.basis) + 1}, {own.dim})")
        self._count, self._tiles = len(own.basis), tile_atoms(rows)
        along = np.add.reduce(rows * own.mean, axis=1, dtype=np.float64)
        self.mean, self.mean_square = along[:-1].astype(np.float32), np.float32(along[-1])
        self.shapes = (own.shape_table / float(own.shape_table[MIDDLE_SHAPE])).astype(np.float32)
        self.borders = (self.shapes[:-1] * self.shapes[1:]).astype(np.float32)
        table = own.gain_table.astype(np.float64)
        self._gains = np.sqrt(table[1:-1] * table[2:]).astype(np.float32)

    def analyze(self, rows: NDArray[np.float32]) -> Analyzed:
        """Vectors (n, d) in the basis."""
        vectors, exponents = normalize_rows(rows)
        lengths = np.sqrt(np.add.reduce((vectors * vectors).T, axis=0))
        units = np.divide(vectors, lengths[:, None], out=np.zeros_like(vectors), where=lengths[:, None] > 0)
        products = self._multiply(units)
        y = np.ascontiguousarray(products[:, : self._count] - self.mean)
        return Analyzed(y, np.ascontiguousarray(products[:, self._count]), lengths, exponents)

    def project(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 (n, components): of vectors (n, d), the mean being part of them."""
        return np.ascontiguousarray(self._multiply(vectors)[:, : self._count])

    def _multiply(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Products of vectors (n, d) with the rows of the analysis, and padding behind them."""
        products = np.empty((len(vectors), self._tiles.shape[0] * self._tiles.shape[2]), np.float32)
        project(vectors, self._tiles, products)
        return products

    def code_gains(self, gains: NDArray[np.float32], own: Analyzed) -> NDArray[np.int64]:
        """Numbers of the gains that are nearest to those of scaled vectors; 0 of zeros."""
        with np.errstate(over="ignore"):
            gains = np.ldexp(gains, own.exponents)
        return np.where(own.lengths > 0, 1 + np.searchsorted(self._gains, gains), 0)
