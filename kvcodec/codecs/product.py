"""Product codes of a stream: a static basis, books of centroids, tables of gains and shapes (formats/product.md)."""

from __future__ import annotations

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
from kvcodec.kernels import product as kernels
from kvcodec.kernels._centroids import CENTROIDS
from kvcodec.kernels.projection import project, tile_atoms
from kvcodec.product_spec import BUDGET_STEPS, MAX_BUDGET, MAX_GROUPS, round_budget

MAX_COMPONENTS = 512  # sums of so many products of int16 and int8 fit an int32
_SUM = 2.0**31  # more than such a sum
_GREATEST = 2.0**125  # of a part of a component: sums of two, turned, are finite
_BLOCK = 1024  # vectors that are coded at once


class ProductCodes(NamedTuple):
    """Coded vectors. codes: uint8 (n, groups). gains: uint8 (n,), 0 of a vector of zeros. shapes: uint8 (n,)."""

    codes: NDArray[np.uint8]
    gains: NDArray[np.uint8]
    shapes: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Analysis:
    """What an encoder, and no decoder, needs. rows: float32 (components + 1, d): the products with them of a vector of
    length 1 are its components and, last, its product with the mean in the metric in which errors are measured.
    units: float32 (components,), what 1 in the books is. spread: float32 (components,), by which the squares of
    components are weighed to tell a vector's shape.
    """

    rows: NDArray[np.float32]
    units: NDArray[np.float32]
    spread: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Product:
    """How vectors of d channels are coded by groups of components.

    x = scale * (sum of basis rows times what centroids have in them) + gain * mean, turned by `rotation` if that is
    there; a centroid of 256 for each group, a gain of 256 and a shape of 16 for each vector; scale is gain * shape.

    basis: int16 (components, d). books: int8 (components, 256). ends: (groups,), where each group ends in the
    components. gains, shapes: bfloat16 (256,), (16,); gains ascend from 0. mean: float32 (d,). budget: bytes of a
    vector, on average over the streams of a model, that they were trained for; 0 if unknown. Raises ShapeError,
    SpecError.
    """

    basis: NDArray[np.int16]
    books: NDArray[np.int8]
    ends: NDArray[Any]
    gains: NDArray[Any]
    shapes: NDArray[Any]
    uses: tuple[Use, ...]
    mean: NDArray[np.float32]
    analysis: Analysis
    rotation: Rotation | None = None
    budget: float = 0.0

    def __post_init__(self) -> None:
        components, dim = self.basis.shape
        ends = np.asarray(self.ends, np.int64)
        object.__setattr__(self, "ends", ends)
        if not (1 <= components <= MAX_COMPONENTS and 1 <= dim <= MAX_DIM and self.books.shape == (components, 256)):
            raise ShapeError(f"basis {self.basis.shape} and books {self.books.shape} of no product codes")
        if not 1 <= len(ends) <= MAX_GROUPS or (np.diff(ends, prepend=0) < 1).any() or ends[-1] != components:
            raise ShapeError(f"groups end at {ends.tolist()}, want {components} components in 1 to {MAX_GROUPS} groups")
        gains, shapes = self.gain_table, self.shape_table
        if gains.shape != (256,) or gains[0] != 0 or (np.diff(gains) <= 0).any() or not np.isfinite(gains).all():
            raise ShapeError("gains: want 256 that ascend from 0")
        if shapes.shape != (16,) or (shapes <= 0).any() or not np.isfinite(shapes).all():
            raise ShapeError("shapes: want 16 positive ones")
        if self.mean.shape != (dim,) or not np.isfinite(self.mean).all():
            raise ShapeError(f"mean: {self.mean.shape}, want ({dim},) finite numbers")
        largest = float(gains[-1]) * max(float(shapes.max()) * _SUM, float(np.abs(self.mean).max()))
        if largest > _GREATEST or self.basis.min() < -32767:
            raise ShapeError("basis, gains, shapes or mean too large: vectors that no float32 holds")
        if not 0 <= self.budget <= MAX_BUDGET or round_budget(self.budget) != self.budget:
            raise SpecError(f"budget: {self.budget:g} bytes, want a multiple of 1/{BUDGET_STEPS} up to {MAX_BUDGET}")
        if not self.uses or len(set(self.uses)) != len(self.uses):
            raise SpecError("product codes are for one or more streams, each named once")
        check_rotation(self.rotation, dim, self.uses)

    @property
    def dim(self) -> int:
        return int(self.basis.shape[1])

    @property
    def groups(self) -> int:
        return len(self.ends)

    @property
    def size(self) -> int:
        """What specs that are bound to them say of them: the groups."""
        return self.groups

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
        exact = np.multiply.outer(self.gain_table, self.shape_table)
        return np.asarray(exact.astype(ml_dtypes.bfloat16).astype(np.float32))

    def to_bytes(self) -> bytes:
        """As files have them (formats/product.md)."""
        from kvcodec.codecs.product_bytes import product_to_bytes

        return product_to_bytes(self)

    @cached_property
    def _woven(self) -> NDArray[np.int16]:
        return kernels.weave_rows(self.basis)

    @cached_property
    def _coder(self) -> _Coder:
        return _Coder(self)

    def code(self, rows: NDArray[np.float32]) -> ProductCodes:
        """Codes of finite vectors (n, d). A vector's codes do not hang on those beside it."""
        if rows.shape[1] != self.dim:
            raise ShapeError(f"vectors have {rows.shape[1]} channels, the basis {self.dim}")
        out = ProductCodes(
            np.zeros((len(rows), self.groups), np.uint8), np.zeros(len(rows), np.uint8), np.zeros(len(rows), np.uint8)
        )
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            self._coder.code(rows[part], ProductCodes(*(field[part] for field in out)))
        return out

    def rebuild(self, coded: ProductCodes) -> NDArray[np.float32]:
        """float32 (n, d) of codes, not yet turned to their positions."""
        out = np.empty((len(coded.gains), self.dim), np.float32)
        scales, gains = self.scale_table[coded.gains, coded.shapes], self.gain_table[coded.gains]
        basis = self._woven
        kernels.rebuild_products(
            np.ascontiguousarray(coded.codes), basis, self.books, self.ends, scales, gains, self.mean,
            np.zeros(2 * len(basis), np.int16), np.empty(basis.shape[1], np.int32), out,
        )  # fmt: skip
        return out


class _Coder:
    """Tables of an encoder."""

    def __init__(self, own: Product) -> None:
        analysis = own.analysis
        if analysis.rows.shape != (len(own.basis) + 1, own.dim):
            raise SpecError(f"analysis {analysis.rows.shape}, want ({len(own.basis) + 1}, {own.dim})")
        self._own, self._analysis = own, tile_atoms(analysis.rows)
        books = own.books.astype(np.float32) * analysis.units[:, None]
        self._tiles = np.concatenate([tile_atoms(part.T).reshape(-1) for part in np.split(books, own.ends[:-1])])
        along = np.add.reduce(analysis.rows * own.mean, axis=1, dtype=np.float64)
        self._mean, self._square = along[:-1].astype(np.float32), np.float32(along[-1])
        starts = np.concatenate([[0], own.ends[:-1]])
        self._squares = np.add.reduceat(books * books, starts, axis=0)
        self._leans = np.add.reduceat(books * self._mean[:, None], starts, axis=0)
        middle = float(own.shape_table[8])
        self._shapes = (own.shape_table / middle).astype(np.float32)
        self._borders = (self._shapes[:-1] * self._shapes[1:]).astype(np.float32)  # of squares
        table = own.gain_table.astype(np.float64)
        self._gains = np.sqrt(table[1:-1] * table[2:]).astype(np.float32)

    def code(self, rows: NDArray[np.float32], out: ProductCodes) -> None:
        own, analysis = self._own, self._own.analysis
        vectors, exponents = normalize_rows(rows)
        lengths = np.sqrt(np.add.reduce((vectors * vectors).T, axis=0))
        units = np.divide(vectors, lengths[:, None], out=np.zeros_like(vectors), where=lengths[:, None] > 0)
        products = np.empty((len(rows), self._analysis.shape[0] * self._analysis.shape[2]), np.float32)
        project(units, self._analysis, products)
        count = len(own.basis)
        y = np.ascontiguousarray(products[:, :count] - self._mean)
        gains, along = np.empty(len(rows), np.float32), np.ascontiguousarray(products[:, count])
        kernels.code_products(
            y, along, lengths, analysis.spread, self._borders, self._tiles, own.ends, self._squares,
            self._leans, self._square, self._shapes, out.codes, out.shapes, gains,
            np.empty((kernels.BLOCK, own.groups, CENTROIDS), np.float32),
            np.empty(kernels.WORK, np.float32),
        )  # fmt: skip
        with np.errstate(over="ignore"):
            gains = np.ldexp(gains, exponents)
        out.gains[...] = np.where(lengths > 0, 1 + np.searchsorted(self._gains, gains), 0)
