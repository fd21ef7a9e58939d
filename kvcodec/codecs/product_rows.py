"""Product codes as rows and as GROUP records: see `RowCodec`, `Codec` and formats/product.md."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.codec import Encoded, split_records, take_body, take_out
from kvcodec.codecs.product import Product, ProductCodes
from kvcodec.codecs.sections import HeadSections, sparse_sections
from kvcodec.codecs.sparse import UNKNOWN_ERROR, figures_of, narrow, widen
from kvcodec.errors import CorruptRecord, ShapeError, SpecError
from kvcodec.kernels.product import SHAPES
from kvcodec.layout import CHANNEL_LANE_TOKENS as BLOCK
from kvcodec.layout import DtypeId, align
from kvcodec.spec import CodecSpec

_SIDE = 2  # bytes: gain and shape


class ProductRows:
    """Vectors in product codes, one by one. See `RowCodec`."""

    def __init__(self, spec: CodecSpec, product: Product, first: int = 0) -> None:
        if spec.product is None:
            raise SpecError(f"{spec} takes no product codes")
        if spec.product.groups not in (0, product.groups):
            raise SpecError(f"{spec} has {spec.product.groups} groups, its product codes {product.groups}")
        self.spec = spec if spec.product.groups else spec.bound_to(product.groups, spec.product.basis)
        self.product, self._first = product, first

    def at(self, first: int) -> Self:
        """See `RowCodec`."""
        return type(self)(self.spec, self.product, first)

    def row_bytes(self, dim: int) -> int:
        """Bytes of one row of one head."""
        self.check_dim(dim)
        return self.product.groups + _SIDE

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId) -> NDArray[np.uint8]:
        """See `RowCodec`."""
        tokens, heads, dim = rows.shape
        self.check_dim(dim)
        wide, rotation = widen(rows, dtype), self.product.rotation
        if rotation is not None:
            wide = rotation.undo(wide, self._first + np.arange(tokens))
        coded = self.product.code(wide.reshape(tokens * heads, dim))
        packed = np.concatenate([coded.gains[:, None], coded.shapes[:, None], coded.codes], axis=1)
        return packed.reshape(tokens, heads, self.product.groups + _SIDE)

    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int) -> Encoded:
        """See `RowCodec`."""
        self.check_dim(dim)
        records, heads = len(coded) // max(1, tokens), coded.shape[1]
        blocks = align(tokens, BLOCK) // BLOCK
        padded = np.zeros((records, blocks * BLOCK, heads, coded.shape[2]), np.uint8)
        padded[:, :tokens] = coded.reshape(records, tokens, heads, coded.shape[2])
        planes = padded.reshape(records, blocks, BLOCK, heads, coded.shape[2]).transpose(0, 3, 1, 4, 2)
        parts = [planes[:, :, :, :_SIDE], planes[:, :, :, _SIDE:]]
        size = BLOCK * blocks
        body = np.concatenate([part.reshape(records, heads, size * part.shape[3]) for part in parts], axis=2)
        return Encoded(body, np.full((records, heads), UNKNOWN_ERROR, np.uint16))

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
        self.check_dim(dim)
        tokens, heads, size = coded.shape
        taken = take_out(out, (tokens, heads, dim), np.float32 if as_float32 else np.uint16)
        flat = coded.reshape(tokens * heads, size)
        bad = np.flatnonzero(flat[:, 1] >= SHAPES)
        if len(bad):
            raise CorruptRecord(int(bad[0]), f"shape {int(flat[bad[0], 1])}, want one below {SHAPES}")
        rows = self.product.rebuild(ProductCodes(flat[:, _SIDE:], flat[:, 0], flat[:, 1])).reshape(taken.shape)
        if self.product.rotation is not None:
            rows = self.product.rotation.turn(rows, self._first + np.arange(tokens))
        taken[...] = rows if as_float32 else narrow(rows, dtype)
        return taken

    def check_dim(self, dim: int) -> None:
        if dim != self.product.dim:
            raise ShapeError(f"rows have {dim} channels, the product codes {self.product.dim}")


class ProductCodec:
    """Records of product codes. See `Codec`."""

    channel_lane = False

    def __init__(self, spec: CodecSpec, product: Product, first: int = 0) -> None:
        self._rows = ProductRows(spec, product, first)
        self.spec, self.token_group = self._rows.spec, spec.group

    def at(self, first: int) -> Self:
        """See `Codec`."""
        return type(self)(self.spec, self._rows.product, first)

    def sections(self, tokens: int, dim: int) -> HeadSections:
        """Bytes of one head's sections in a record of `tokens` rows of `dim` channels."""
        self._rows.check_dim(dim)
        return sparse_sections(tokens, self._rows.product.groups)

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId, tokens: int, *, alike: bool = False) -> Encoded:  # noqa: ARG002
        """See `Codec`."""
        records = split_records(rows, tokens)
        coded = self._rows.encode(rows, dtype)
        laid = self._rows.lay(coded, tokens, rows.shape[2])
        if not records:
            return laid
        back = self._rows.decode(coded, rows.shape[2], dtype, as_float32=True)
        return laid._replace(errors=figures_of(widen(rows, dtype), back, records))

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
        """See `Codec`."""
        rows = self._take_rows(take_body(body, self.sections(tokens, dim).total), tokens)
        self._check(rows, tokens)
        return self._rows.decode(rows, dim, dtype, as_float32=as_float32, out=out)

    def validate(self, body: NDArray[np.uint8], tokens: int, dim: int) -> None:
        """Raise CorruptRecord where a shape is none; ShapeError."""
        self._check(self._take_rows(take_body(body, self.sections(tokens, dim).total), tokens), tokens)

    def _check(self, rows: NDArray[np.uint8], tokens: int) -> None:
        """Raise CorruptRecord with the byte of the first shape that is none, of rows (records * tokens, heads, …)."""
        heads = rows.shape[1]
        shapes = rows[:, :, 1].reshape(-1, tokens, heads).transpose(0, 2, 1).reshape(-1)
        bad = np.flatnonzero(shapes >= SHAPES)
        if not len(bad):
            return
        strip, token = divmod(int(bad[0]), tokens)
        total = self.sections(tokens, self._rows.product.dim).total
        at = strip * total + _SIDE * (token // BLOCK * BLOCK) + BLOCK + token % BLOCK
        raise CorruptRecord(at, f"row {token} of a head: shape {int(shapes[bad[0]])}, want one below {SHAPES}")

    def _take_rows(self, body: NDArray[np.uint8], tokens: int) -> NDArray[np.uint8]:
        """Rows (records * tokens, heads, row bytes) of sections (records, heads, bytes)."""
        records, heads, _ = body.shape
        blocks, groups = align(tokens, BLOCK) // BLOCK, self._rows.product.groups
        side = _SIDE * BLOCK * blocks
        parts = [
            own.reshape(records, heads, blocks, fields, BLOCK)
            for own, fields in ((body[..., :side], _SIDE), (body[..., side:], groups))
        ]
        planes = np.concatenate(parts, axis=3)
        rows = planes.transpose(0, 2, 4, 1, 3).reshape(records, blocks * BLOCK, heads, groups + _SIDE)[:, :tokens]
        return np.ascontiguousarray(rows).reshape(records * tokens, heads, groups + _SIDE)
