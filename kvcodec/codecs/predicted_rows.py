"""V as rows and as GROUP records where it is predicted from the codes of its K: see ProductRows, ProductCodec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.codec import Encoded, take_body
from kvcodec.codecs.prediction import GivenCodes
from kvcodec.codecs.product import Product, ProductCodes
from kvcodec.codecs.product_rows import ProductCodec, ProductRows
from kvcodec.codecs.vectors import SIDE_BYTES, VectorCodec
from kvcodec.errors import ShapeError
from kvcodec.layout import DtypeId
from kvcodec.spec import CodecSpec


@dataclass(frozen=True, eq=False)
class GivenRows:
    """Coded rows of K, uint8 (tokens, heads, groups + 2), the first one that of token `first`, and what they are codes
    of. All that a decoder of V wants of K. No shape is above 15.
    """

    product: Product
    coded: NDArray[np.uint8]
    first: int = 0

    @property
    def end(self) -> int:
        """The token behind the last one."""
        return self.first + len(self.coded)

    def heads(self, low: int, high: int) -> GivenRows:
        """Those of some heads."""
        return GivenRows(self.product, self.coded[:, low:high], self.first)

    def take(self, first: int, tokens: int, heads: int) -> GivenCodes:
        """Of some tokens, head by head of each. Raises ShapeError for tokens or heads that are not there."""
        own, stop = self.coded, self.end
        if not self.first <= first <= first + tokens <= stop or own.shape[1] != heads:
            raise ShapeError(
                f"tokens {first} to {first + tokens} of {heads} heads, and codes of K for {self.first} to {stop} of "
                f"{own.shape[1]}"
            )
        rows = own[first - self.first : first - self.first + tokens].reshape(tokens * heads, own.shape[2])
        return GivenCodes(self.product, ProductCodes(rows[:, SIDE_BYTES:], rows[:, 0], rows[:, 1]))


class PredictedRows(ProductRows):
    """Vectors that K's codes tell a part of, all heads of each token. See `RowCodec`.

    Rows are those from token `first` on, and so are the codes of K that they stand on.
    """

    predicted = True

    def __init__(self, spec: CodecSpec, product: Product, given: GivenRows, first: int = 0) -> None:
        super().__init__(spec, product, first)
        self.given = given
        if product.prediction is not None:
            product.prediction.check(given.product)

    def at(self, first: int) -> Self:
        """See `RowCodec`."""
        return type(self)(self.spec, self.product, self.given, first)

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId) -> NDArray[np.uint8]:
        """See `RowCodec`."""
        self.take(*rows.shape[:2])
        return super().encode(rows, dtype)

    def decode(
        self,
        coded: NDArray[np.uint8],
        dim: int,
        dtype: DtypeId,
        *,
        as_float32: bool = False,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """See `RowCodec`."""
        self.take(*coded.shape[:2])
        return super().decode(coded, dim, dtype, as_float32=as_float32, out=out)

    def take(self, tokens: int, heads: int) -> GivenCodes:
        """The codes of K for the first so many rows. Raises ShapeError."""
        return self.given.take(self.first, tokens, heads)

    def codes_for(self, vectors: int) -> GivenCodes:
        """See ProductRows."""
        heads = self.given.coded.shape[1]
        return self.take(vectors // heads, heads)


class PredictedCodec(ProductCodec):
    """Records of such rows, of all heads. See `Codec`."""

    def __init__(self, spec: CodecSpec, product: Product, given: GivenRows, first: int = 0) -> None:
        self._rows: PredictedRows = PredictedRows(spec, product, given, first)
        VectorCodec.__init__(self, self._rows)

    def at(self, first: int) -> Self:
        """See `Codec`."""
        return type(self)(self.spec, self._rows.product, self._rows.given, first)

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId, tokens: int, *, alike: bool = False) -> Encoded:
        """See `Codec`."""
        self._rows.take(*rows.shape[:2])
        return super().encode(rows, dtype, tokens, alike=alike)

    def decode(
        self,
        body: NDArray[np.uint8],
        tokens: int,
        dim: int,
        dtype: DtypeId,
        *,
        as_float32: bool = False,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """See `Codec`. Raises ShapeError for tokens or heads of which there are no codes of K."""
        own = take_body(body, self.sections(tokens, dim).total)
        self._rows.take(len(own) * tokens, own.shape[1])
        return super().decode(own, tokens, dim, dtype, as_float32=as_float32, out=out)
