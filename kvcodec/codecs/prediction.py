"""V predicted from the codes of its K: what those tell of a vector before its own codes (formats/product.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.uses import Use
from kvcodec.errors import ShapeError, SpecError
from kvcodec.kernels.prediction import predict_rows
from kvcodec.kernels.product import weave_rows
from kvcodec.layout import StreamId

if TYPE_CHECKING:
    from kvcodec.codecs.product import Product, ProductCodes

NAME_BYTES = 16
SHAPES = 16


class GivenCodes(NamedTuple):
    """Codes of the K that belongs to each of n vectors, and what they are codes of."""

    product: Product
    coded: ProductCodes

    def part(self, rows: slice) -> GivenCodes:
        """Those of some of the vectors."""
        return GivenCodes(self.product, type(self.coded)(*(field[rows] for field in self.coded)))


@dataclass(frozen=True, eq=False)
class Prediction:
    """What K's codes tell of V: times V's gain, scale * (sum of basis rows times what K's centroids have in them).

    basis: int16 (components of K, d). scales: bfloat16 (16,), for each shape of K. source: 16 bytes, the name of the
    books that K is coded by. Raises ShapeError.
    """

    basis: NDArray[np.int16]
    scales: NDArray[np.uint16]
    source: bytes

    def __post_init__(self) -> None:
        scales = self.scale_table
        if scales.shape != (SHAPES,) or (scales <= 0).any() or not np.isfinite(scales).all():
            raise ShapeError(f"scales of a prediction: want {SHAPES} positive ones")
        if self.basis.ndim != 2 or not self.basis.size or self.basis.min() < -32767:
            raise ShapeError(f"basis of a prediction: {self.basis.shape}, want (components, d) from -32767 to 32767")
        if len(self.source) != NAME_BYTES:
            raise ShapeError(f"a prediction from books that {len(self.source)} bytes name, want {NAME_BYTES}")

    @cached_property
    def scale_table(self) -> NDArray[np.float32]:
        """float32 of the scales."""
        return np.asarray(self.scales.view(ml_dtypes.bfloat16).astype(np.float32))

    @cached_property
    def _woven(self) -> NDArray[np.int16]:
        return weave_rows(self.basis)

    def is_from(self, product: Product) -> bool:
        """Whether it was made for codes of that K."""
        return self.is_of(product.name, len(product.basis))

    def is_of(self, name: bytes, components: int) -> bool:
        """Whether it was made for codes of that name, of as many components."""
        return name == self.source and components == len(self.basis)

    def check(self, product: Product) -> None:
        """Raise SpecError for a K of other codes."""
        if not self.is_from(product):
            raise SpecError("given: K is in other codes than those that V is predicted from")

    def sums(self, given: GivenCodes) -> NDArray[np.int32]:
        """int32 (n, d), exact. Raises SpecError."""
        self.check(given.product)
        basis, source = self._woven, given.product
        out = np.empty((len(given.coded.gains), basis.shape[1]), np.int32)
        codes, numbers = np.ascontiguousarray(given.coded.codes), np.zeros(2 * len(basis), np.int16)
        predict_rows(codes, basis, source.books, source.ends, numbers, out)
        return out[:, : self.basis.shape[1]]

    def predict(self, given: GivenCodes) -> NDArray[np.float32]:
        """float32 (n, d): of vectors of gain 1, without their mean."""
        return np.asarray(self.sums(given).astype(np.float32) * self.scale_table[given.coded.shapes, None])


def check_prediction(prediction: Prediction | None, dim: int, uses: Sequence[Use]) -> None:
    """Raises ShapeError, SpecError for one that vectors of `dim` channels, or their streams, cannot have."""
    if prediction is None:
        return
    if prediction.basis.shape[1] != dim:
        raise ShapeError(f"a prediction of {prediction.basis.shape[1]} channels, the vectors have {dim}")
    if others := [stream.name.lower() for _, stream in uses if stream != StreamId.V]:
        raise SpecError(f"stream {others[0]} is predicted from no other: want v")
