"""Product codes as rows and as GROUP records: see `RowCodec`, `Codec` and formats/product.md."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.prediction import GivenCodes
from kvcodec.codecs.product import MISSING, UNASKED, Product, ProductCodes
from kvcodec.codecs.shaped import ShapedCodec, ShapedRows
from kvcodec.codecs.vectors import SIDE_BYTES
from kvcodec.errors import SpecError
from kvcodec.spec import CodecSpec


class ProductRows(ShapedRows):
    """Vectors in product codes, one by one. See `RowCodec`, and VectorRows for what a reader gets."""

    trained_as = "product codes"
    predicted: ClassVar[bool] = False  # from codes of another stream

    def __init__(self, spec: CodecSpec, product: Product, first: int = 0) -> None:
        if spec.product is None:
            raise SpecError(f"{spec} takes no product codes")
        if spec.product.size not in (0, product.groups):
            raise SpecError(f"{spec} has {spec.product.size} groups, its product codes {product.groups}")
        spec.product.check_budget(product.budget)
        if product.prediction is not None and spec.bounded:
            raise SpecError(f"{spec}: V that is predicted from the codes of its K has no bound on errors")
        if (product.prediction is not None) != self.predicted:
            raise SpecError(UNASKED if self.predicted else MISSING)
        self.product = product
        super().__init__(spec.bound_to(product.groups, spec.product.basis), product, first)

    def at(self, first: int) -> Self:
        """See `RowCodec`."""
        return type(self)(self.spec, self.product, first)

    @property
    def code_bytes(self) -> int:
        """See ShapedRows."""
        return self.product.groups

    def code_vectors(self, vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
        """See VectorRows."""
        coded = self.product.code(vectors, self.codes_for(len(vectors)))
        return np.concatenate([coded.gains[:, None], coded.shapes[:, None], coded.codes], axis=1)

    def rebuild_vectors(self, coded: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See VectorRows."""
        self.check_rows(coded)
        own = ProductCodes(coded[:, SIDE_BYTES:], coded[:, 0], coded[:, 1])
        return self.product.rebuild(own, self.codes_for(len(coded)))

    def codes_for(self, vectors: int) -> GivenCodes | None:  # noqa: ARG002
        """Codes of another stream that so many vectors stand on: none."""
        return None


class ProductCodec(ShapedCodec):
    """Records of product codes. See `Codec`."""

    def __init__(self, spec: CodecSpec, product: Product, first: int = 0) -> None:
        self._rows = ProductRows(spec, product, first)
        super().__init__(self._rows)

    @property
    def rows(self) -> ProductRows:
        """See VectorCodec."""
        return self._rows

    def at(self, first: int) -> Self:
        """See `Codec`."""
        return type(self)(self.spec, self._rows.product, first)
