"""Vectors as a gain, a shape and bytes of codes: rows and GROUP records of product codes and trellis codes alike.

See `RowCodec`, `Codec`, and formats/product.md for where the bytes of a record stand.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.codec import Encoded
from kvcodec.codecs.planes import turn_blocks, turn_blocks_back
from kvcodec.codecs.vectors import SIDE_BYTES, UNKNOWN_ERROR, VectorCodec, VectorRows
from kvcodec.errors import CorruptRecord
from kvcodec.kernels.product import SHAPES
from kvcodec.layout import CHANNEL_LANE_TOKENS as BLOCK
from kvcodec.layout import align


class Flaw(NamedTuple):
    """The first row that no encoder writes, which of its bytes, and what is wrong with it."""

    row: int
    field: int
    said: str


class ShapedRows(VectorRows):
    """Such vectors, one by one. See `RowCodec`, and VectorRows for what a reader gets."""

    @property
    @abstractmethod
    def code_bytes(self) -> int:
        """Bytes of codes of a row."""

    @property
    def width(self) -> int:
        """See VectorRows."""
        return self.code_bytes + SIDE_BYTES

    def find_flaw(self, coded: NDArray[np.uint8]) -> Flaw | None:
        """Of rows (n, width) the first that no encoder writes."""
        bad = np.flatnonzero(coded[:, 1] >= SHAPES)
        return Flaw(int(bad[0]), 1, f"shape {int(coded[bad[0], 1])}, want one below {SHAPES}") if len(bad) else None

    def check_rows(self, coded: NDArray[np.uint8]) -> None:
        """Raise CorruptRecord with the number of the first such row."""
        if flaw := self.find_flaw(coded):
            raise CorruptRecord(flaw.row, flaw.said)

    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int) -> Encoded:
        """See `RowCodec`."""
        self.check_dim(dim)
        planes = turn_blocks(coded, tokens)
        records, heads, blocks = planes.shape[:3]
        parts = [planes[:, :, :, :SIDE_BYTES], planes[:, :, :, SIDE_BYTES:]]
        flat = [part.reshape(records, heads, blocks * BLOCK * part.shape[3]) for part in parts]
        return Encoded(np.concatenate(flat, axis=2), np.full((records, heads), UNKNOWN_ERROR, np.uint16))


class ShapedCodec(VectorCodec):
    """Records of such rows. See `Codec`."""

    @property
    @abstractmethod
    def rows(self) -> ShapedRows:
        """See VectorCodec."""

    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int, *, alike: bool) -> Encoded:  # noqa: ARG002
        """See VectorCodec."""
        return self.rows.lay(coded, tokens, dim)

    def rebuild(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See VectorCodec."""
        return self.rows.rebuild_vectors(codes)

    def take_codes(self, body: NDArray[np.uint8], tokens: int) -> NDArray[np.uint8]:
        """See VectorCodec: coded rows (n, row bytes), of which one that no encoder writes is found."""
        rows = self._take_rows(body, tokens)
        self._check(rows, tokens)
        return rows.reshape(-1, rows.shape[2])

    def _check(self, rows: NDArray[np.uint8], tokens: int) -> None:
        """Raise CorruptRecord with the byte of the first flaw of rows (records * tokens, heads, …)."""
        heads, width = rows.shape[1:]
        by_head = rows.reshape(-1, tokens, heads, width).transpose(0, 2, 1, 3).reshape(-1, width)
        flaw = self.rows.find_flaw(by_head)
        if flaw is None:
            return
        strip, token = divmod(flaw.row, tokens)
        block, place = divmod(token, BLOCK)
        codes = self.rows.code_bytes
        at = strip * width * align(tokens, BLOCK) + place
        if flaw.field < SIDE_BYTES:
            at += BLOCK * (SIDE_BYTES * block + flaw.field)
        else:
            at += SIDE_BYTES * align(tokens, BLOCK) + BLOCK * (codes * block + flaw.field - SIDE_BYTES)
        raise CorruptRecord(at, f"row {token} of a head: {flaw.said}")

    def _take_rows(self, body: NDArray[np.uint8], tokens: int) -> NDArray[np.uint8]:
        """Rows (records * tokens, heads, row bytes) of sections (records, heads, bytes)."""
        records, heads, _ = body.shape
        blocks = align(tokens, BLOCK) // BLOCK
        side = SIDE_BYTES * BLOCK * blocks
        parts = [
            own.reshape(records, heads, blocks, fields, BLOCK)
            for own, fields in ((body[..., :side], SIDE_BYTES), (body[..., side:], self.rows.code_bytes))
        ]
        return turn_blocks_back(np.concatenate(parts, axis=3), tokens)
