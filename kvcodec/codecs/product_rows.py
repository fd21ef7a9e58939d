"""Product codes as rows and as GROUP records: see `RowCodec`, `Codec` and formats/product.md."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.codec import Encoded
from kvcodec.codecs.planes import turn_blocks, turn_blocks_back
from kvcodec.codecs.product import Product, ProductCodes
from kvcodec.codecs.vectors import SIDE_BYTES, UNKNOWN_ERROR, VectorCodec, VectorRows
from kvcodec.errors import CorruptRecord, SpecError
from kvcodec.kernels.product import SHAPES
from kvcodec.layout import CHANNEL_LANE_TOKENS as BLOCK
from kvcodec.layout import align
from kvcodec.spec import CodecSpec


class ProductRows(VectorRows):
    """Vectors in product codes, one by one. See `RowCodec`, and VectorRows for what a reader gets."""

    trained_as = "product codes"

    def __init__(self, spec: CodecSpec, product: Product, first: int = 0) -> None:
        if spec.product is None:
            raise SpecError(f"{spec} takes no product codes")
        if spec.product.groups not in (0, product.groups):
            raise SpecError(f"{spec} has {spec.product.groups} groups, its product codes {product.groups}")
        spec.product.check_budget(product.budget)
        self.product = product
        super().__init__(spec.bound_to(product.groups, spec.product.basis), product, first)

    def at(self, first: int) -> Self:
        """See `RowCodec`."""
        return type(self)(self.spec, self.product, first)

    @property
    def width(self) -> int:
        """See VectorRows."""
        return self.product.groups + SIDE_BYTES

    def code_vectors(self, vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
        """See VectorRows."""
        coded = self.product.code(vectors)
        return np.concatenate([coded.gains[:, None], coded.shapes[:, None], coded.codes], axis=1)

    def rebuild_vectors(self, coded: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See VectorRows."""
        bad = np.flatnonzero(coded[:, 1] >= SHAPES)
        if len(bad):
            raise CorruptRecord(int(bad[0]), f"shape {int(coded[bad[0], 1])}, want one below {SHAPES}")
        return self.product.rebuild(ProductCodes(coded[:, SIDE_BYTES:], coded[:, 0], coded[:, 1]))

    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int) -> Encoded:
        """See `RowCodec`."""
        self.check_dim(dim)
        planes = turn_blocks(coded, tokens)
        records, heads, blocks = planes.shape[:3]
        parts = [planes[:, :, :, :SIDE_BYTES], planes[:, :, :, SIDE_BYTES:]]
        flat = [part.reshape(records, heads, blocks * BLOCK * part.shape[3]) for part in parts]
        return Encoded(np.concatenate(flat, axis=2), np.full((records, heads), UNKNOWN_ERROR, np.uint16))


class ProductCodec(VectorCodec):
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

    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int, *, alike: bool) -> Encoded:  # noqa: ARG002
        """See VectorCodec."""
        return self._rows.lay(coded, tokens, dim)

    def rebuild(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See VectorCodec."""
        return self._rows.rebuild_vectors(codes)

    def take_codes(self, body: NDArray[np.uint8], tokens: int) -> NDArray[np.uint8]:
        """See VectorCodec: coded rows (n, row bytes), of which a shape that is none is found."""
        rows = self._take_rows(body, tokens)
        self._check(rows, tokens)
        return rows.reshape(-1, rows.shape[2])

    def _check(self, rows: NDArray[np.uint8], tokens: int) -> None:
        """Raise CorruptRecord with the byte of the first shape that is none, of rows (records * tokens, heads, …)."""
        heads = rows.shape[1]
        shapes = rows[:, :, 1].reshape(-1, tokens, heads).transpose(0, 2, 1).reshape(-1)
        bad = np.flatnonzero(shapes >= SHAPES)
        if not len(bad):
            return
        strip, token = divmod(int(bad[0]), tokens)
        total = self.sections(tokens, self._rows.product.dim).total
        at = strip * total + SIDE_BYTES * (token // BLOCK * BLOCK) + BLOCK + token % BLOCK
        raise CorruptRecord(at, f"row {token} of a head: shape {int(shapes[bad[0]])}, want one below {SHAPES}")

    def _take_rows(self, body: NDArray[np.uint8], tokens: int) -> NDArray[np.uint8]:
        """Rows (records * tokens, heads, row bytes) of sections (records, heads, bytes)."""
        records, heads, _ = body.shape
        blocks = align(tokens, BLOCK) // BLOCK
        side = SIDE_BYTES * BLOCK * blocks
        parts = [
            own.reshape(records, heads, blocks, fields, BLOCK)
            for own, fields in ((body[..., :side], SIDE_BYTES), (body[..., side:], self._rows.product.groups))
        ]
        return turn_blocks_back(np.concatenate(parts, axis=3), tokens)
