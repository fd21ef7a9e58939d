"""Product codes of a stream: a static basis, books of centroids, tables of gains and shapes (formats/product.md)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.prediction import NAME_BYTES, GivenCodes, Prediction, check_prediction
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import MIDDLE_SHAPE, Analysis, Analyzer, Transformed, multiply_gains
from kvcodec.codecs.uses import Use
from kvcodec.errors import ShapeError, SpecError
from kvcodec.kernels import prediction as prediction_kernels
from kvcodec.kernels import product as kernels
from kvcodec.kernels._centroids import CENTROIDS
from kvcodec.kernels.projection import tile_atoms
from kvcodec.product_spec import MAX_GROUPS

_BLOCK = 1024  # vectors that are coded at once
MISSING = "V is predicted from the codes of its K, which are not given (given=)"
UNASKED = "codes of K are given, from which nothing is predicted here"


class ProductCodes(NamedTuple):
    """Coded vectors. codes: uint8 (n, groups). gains: uint8 (n,), 0 of a vector of zeros. shapes: uint8 (n,)."""

    codes: NDArray[np.uint8]
    gains: NDArray[np.uint8]
    shapes: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Product(Transformed):
    """How vectors of d channels are coded by groups of components.

    x = scale * (sum of basis rows times what centroids have in them) + gain * mean, turned by `rotation` if that is
    there; a centroid of 256 for each group, a gain of 256 and a shape of 16 for each vector; scale is gain * shape.
    With a `prediction` K's codes add what they tell of V, times the gain: V is coded, and decoded, with them at hand.

    books: int8 (components, 256). ends: (groups,), where each group ends in the components. All else: see Transformed.
    Raises ShapeError, SpecError.
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
    prediction: Prediction | None = None

    def __post_init__(self) -> None:
        components = len(self.basis)
        ends = np.asarray(self.ends, np.int64)
        object.__setattr__(self, "ends", ends)
        self.check_transform("product codes")
        if self.books.shape != (components, 256):
            raise ShapeError(f"basis {self.basis.shape} and books {self.books.shape} of no product codes")
        if not 1 <= len(ends) <= MAX_GROUPS or (np.diff(ends, prepend=0) < 1).any() or ends[-1] != components:
            raise ShapeError(f"groups end at {ends.tolist()}, want {components} components in 1 to {MAX_GROUPS} groups")
        if self.prediction is not None:
            check_prediction(self.prediction, self.dim, self.uses)
            self.check_scales(self.prediction.scale_table)

    @property
    def groups(self) -> int:
        return len(self.ends)

    @property
    def code_bytes(self) -> int:
        """Bytes of a vector's codes."""
        return self.groups

    @cached_property
    def name(self) -> bytes:
        """16 bytes that name what codes say of components, by which a prediction from them knows them."""
        own = np.ascontiguousarray(self.ends, "<u2").tobytes() + np.ascontiguousarray(self.books).tobytes()
        return hashlib.sha256(own).digest()[:NAME_BYTES]

    def to_bytes(self) -> bytes:
        """As files have them (formats/product.md)."""
        from kvcodec.codecs.product_bytes import product_to_bytes

        return product_to_bytes(self)

    def decode_components(self, coded: ProductCodes) -> NDArray[np.float64]:
        """float64 (n, components) in the basis of the analysis, of vectors of length 1 without their mean."""
        groups = np.repeat(np.arange(self.groups), np.diff(self.ends, prepend=0))
        numbers = self.books[np.arange(len(self.books)), coded.codes[:, groups]] * self.analysis.units.astype(float)
        return np.asarray(numbers * (self.shape_table[coded.shapes] / self.shape_table[MIDDLE_SHAPE])[:, None])

    @cached_property
    def _woven(self) -> NDArray[np.int16]:
        return kernels.weave_rows(self.basis)

    @cached_property
    def _coder(self) -> _Coder:
        return _Coder(self)

    def code(self, rows: NDArray[np.float32], given: GivenCodes | None = None) -> ProductCodes:
        """Codes of finite vectors (n, d). A vector's codes do not hang on those beside it.

        given: for a prediction, the codes that it is made from, of each vector. Raises ShapeError, SpecError.
        """
        if rows.shape[1] != self.dim:
            raise ShapeError(f"vectors have {rows.shape[1]} channels, the basis {self.dim}")
        prediction = self._prediction_from(given, len(rows))
        out = ProductCodes(
            np.zeros((len(rows), self.groups), np.uint8), np.zeros(len(rows), np.uint8), np.zeros(len(rows), np.uint8)
        )
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            told = None if given is None or prediction is None else prediction.predict(given.part(part))
            self._coder.code(rows[part], ProductCodes(*(field[part] for field in out)), told)
        return out

    def rebuild(self, coded: ProductCodes, given: GivenCodes | None = None) -> NDArray[np.float32]:
        """float32 (n, d) of codes, not yet turned to their positions. given: as in `code`."""
        out = np.empty((len(coded.gains), self.dim), np.float32)
        scales, gains = self.scale_table[coded.gains, coded.shapes], self.gain_table[coded.gains]
        basis = self._woven
        kernels.rebuild_products(
            np.ascontiguousarray(coded.codes), basis, self.books, self.ends, scales, gains, self.mean,
            np.zeros(2 * len(basis), np.int16), np.empty(basis.shape[1], np.int32), out,
        )  # fmt: skip
        prediction = self._prediction_from(given, len(out))
        if given is None or prediction is None:
            return out
        table = multiply_gains(self.gain_table, prediction.scale_table)
        for start in range(0, len(out), _BLOCK):
            part = slice(start, start + _BLOCK)
            own = given.part(part)
            factors = table[coded.gains[part], own.coded.shapes]
            out[part] += prediction.sums(own).astype(np.float32) * factors[:, None]
        return out

    def _prediction_from(self, given: GivenCodes | None, count: int) -> Prediction | None:
        """Its prediction, if there is one. Raises SpecError, ShapeError for codes that it is not for, or too few."""
        if (given is None) != (self.prediction is None):
            raise SpecError(MISSING if given is None else UNASKED)
        if given is not None and len(given.coded.gains) != count:
            raise ShapeError(f"{count} vectors, and codes of K for {len(given.coded.gains)}")
        return self.prediction


class _Coder:
    """Tables of an encoder."""

    def __init__(self, own: Product) -> None:
        self._own, self._analyzer = own, Analyzer(own)
        self._books = books = own.books.astype(np.float32) * own.analysis.units[:, None]
        self._tiles = np.concatenate([tile_atoms(part.T).reshape(-1) for part in np.split(books, own.ends[:-1])])
        starts = np.concatenate([[0], own.ends[:-1]])
        self._squares = np.add.reduceat(books * books, starts, axis=0)
        self._leans = np.add.reduceat(books * self._analyzer.mean[:, None], starts, axis=0)

    def code(self, rows: NDArray[np.float32], out: ProductCodes, told: NDArray[np.float32] | None = None) -> None:
        """told: float32 (n, d), what is predicted of vectors of length 1."""
        own, tables = self._own, self._analyzer
        found, gains = tables.analyze(rows), np.empty(len(rows), np.float32)
        known = None if told is None else tables.project(told)
        found = found if known is None else found._replace(y=found.y - known)
        kernels.code_products(
            found.y, found.along, found.lengths, own.analysis.spread, tables.borders, self._tiles, own.ends,
            self._squares, self._leans, tables.mean_square, tables.shapes, out.codes, out.shapes, gains,
            np.empty((kernels.BLOCK, own.groups, CENTROIDS), np.float32),
            np.empty(kernels.WORK, np.float32),
        )  # fmt: skip
        if known is not None:
            prediction_kernels.fit_gains(
                found.y, known, found.along, tables.mean, tables.mean_square, self._books, own.ends, out.codes,
                tables.shapes[out.shapes], found.lengths, gains,
            )  # fmt: skip
        out.gains[...] = tables.code_gains(gains, found)
