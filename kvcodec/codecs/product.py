"""Product codes of a stream: a static basis, books of centroids, tables of gains and shapes (formats/product.md)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import Analysis, Analyzer, Transformed
from kvcodec.codecs.uses import Use
from kvcodec.errors import ShapeError
from kvcodec.kernels import product as kernels
from kvcodec.kernels._centroids import CENTROIDS
from kvcodec.kernels.projection import tile_atoms
from kvcodec.product_spec import MAX_GROUPS

_BLOCK = 1024  # vectors that are coded at once


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

    def __post_init__(self) -> None:
        components = len(self.basis)
        ends = np.asarray(self.ends, np.int64)
        object.__setattr__(self, "ends", ends)
        self.check_transform("product codes")
        if self.books.shape != (components, 256):
            raise ShapeError(f"basis {self.basis.shape} and books {self.books.shape} of no product codes")
        if not 1 <= len(ends) <= MAX_GROUPS or (np.diff(ends, prepend=0) < 1).any() or ends[-1] != components:
            raise ShapeError(f"groups end at {ends.tolist()}, want {components} components in 1 to {MAX_GROUPS} groups")

    @property
    def groups(self) -> int:
        return len(self.ends)

    @property
    def code_bytes(self) -> int:
        """Bytes of a vector's codes."""
        return self.groups

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
        self._own, self._analyzer = own, Analyzer(own)
        books = own.books.astype(np.float32) * own.analysis.units[:, None]
        self._tiles = np.concatenate([tile_atoms(part.T).reshape(-1) for part in np.split(books, own.ends[:-1])])
        starts = np.concatenate([[0], own.ends[:-1]])
        self._squares = np.add.reduceat(books * books, starts, axis=0)
        self._leans = np.add.reduceat(books * self._analyzer.mean[:, None], starts, axis=0)

    def code(self, rows: NDArray[np.float32], out: ProductCodes) -> None:
        own, tables = self._own, self._analyzer
        found, gains = tables.analyze(rows), np.empty(len(rows), np.float32)
        kernels.code_products(
            found.y, found.along, found.lengths, own.analysis.spread, tables.borders, self._tiles, own.ends,
            self._squares, self._leans, tables.mean_square, tables.shapes, out.codes, out.shapes, gains,
            np.empty((kernels.BLOCK, own.groups, CENTROIDS), np.float32),
            np.empty(kernels.WORK, np.float32),
        )  # fmt: skip
        out.gains[...] = tables.code_gains(gains, found)
