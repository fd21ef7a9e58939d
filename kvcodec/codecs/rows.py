"""Single rows as codes: what a STEP record holds of a stream with one scale a token (formats/rows.md).

A row stands by itself: scales, zeros, then codes in channel order. Laying 64 of them into the tiles of a GROUP record
moves bits and rounds nothing, so rows that were coded one by one give the bytes that coding them together gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.codec import Encoded, check_turned, codec_for, take_out
from kvcodec.codecs.sections import padded_tokens, scale_shape
from kvcodec.errors import SpecError
from kvcodec.layout import TILE_LANES, TILE_ROW, Axis, CodecId, DtypeId, StreamId, align
from kvcodec.spec import CodecSpec

if TYPE_CHECKING:
    from kvcodec.codecs.codec import Trained
    from kvcodec.codecs.predicted_rows import GivenRows

UNKNOWN_ERROR = 0xFFFF  # the originals are gone when rows are laid
_WORD = 4  # bytes of one lane in a tile row


class RowCodec(Protocol):
    """A codec of rows of one stream one by one. Rows are 16-bit floats as uint16 bits (tokens, heads, dim)."""

    @property
    def spec(self) -> CodecSpec: ...

    def at(self, first: int) -> Self:
        """The codec of rows whose first one is token `first` of its sequence. See `Codec`."""
        ...

    def row_bytes(self, dim: int) -> int:
        """Bytes of one row of one head."""
        ...

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId) -> NDArray[np.uint8]:
        """Coded rows (tokens, heads, row bytes) of finite rows (tokens, heads, dim)."""
        ...

    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int) -> Encoded:
        """GROUP records of `tokens` tokens each for coded rows (records * tokens, heads, row bytes)."""
        ...

    def decode(
        self,
        coded: NDArray[np.uint8],
        dim: int,
        dtype: DtypeId,
        *,
        as_float32: bool = False,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Rows (tokens, heads, dim) of coded rows: 16-bit patterns of dtype, or float32, in `out` if it is given.

        Raises CorruptRecord, and for `out` ShapeError, DtypeError.
        """
        ...


def row_codec_for(
    spec: CodecSpec, stream: StreamId, trained: Trained | None = None, given: GivenRows | None = None
) -> RowCodec:
    """The codec of rows one by one; given: as codec_for takes it. SpecError for a codec without one scale a token."""
    if not spec.is_trained:
        return GroupedRows(spec, stream)
    if not codes_rows(spec):
        raise SpecError(f"{spec} does not code rows one by one: some of them are kept otherwise")
    if trained is not None:
        check_turned(trained, stream)
    return _trained_rows(spec, trained, given)


def _trained_rows(spec: CodecSpec, trained: Trained | None, given: GivenRows | None) -> RowCodec:
    from kvcodec.codecs.dictionary import Dictionary
    from kvcodec.codecs.sparse import SparseRows

    if spec.sparse is not None and isinstance(trained, Dictionary):
        return SparseRows(spec, trained)
    if spec.product is not None:
        from kvcodec.codecs.predicted_rows import PredictedRows
        from kvcodec.codecs.product import Product
        from kvcodec.codecs.product_rows import ProductRows

        if isinstance(trained, Product):
            return ProductRows(spec, trained) if given is None else PredictedRows(spec, trained, given)
    if spec.trellis is not None:
        from kvcodec.codecs.trellis import Trellis
        from kvcodec.codecs.trellis_rows import TrellisRows

        if isinstance(trained, Trellis):
            return TrellisRows(spec, trained)
    raise SpecError(f"{spec} needs {spec.wants}")


class GroupedRows:
    """Rows of grouped integers with one scale a token. See `RowCodec`."""

    def __init__(self, spec: CodecSpec, stream: StreamId) -> None:
        if not codes_rows(spec):
            raise SpecError(f"{spec} does not code rows one by one: want one scale a token, such as int4/token/g64")
        self.spec, self._codec = spec, codec_for(spec, stream)
        self._lane = self._codec.channel_lane
        self._per_byte = 8 // spec.bits

    def at(self, first: int) -> Self:  # noqa: ARG002
        """See `Codec`: rows are coded as they are."""
        return self

    def row_bytes(self, dim: int) -> int:
        """Bytes of one row of one head."""
        groups, padded = -(-dim // self.spec.group), align(dim, TILE_LANES)
        return groups * (2 if self.spec.symmetric else 4) + padded // self._per_byte

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId) -> NDArray[np.uint8]:
        """See `RowCodec`."""
        tokens, heads, dim = rows.shape
        if not tokens:
            return np.empty((0, heads, self.row_bytes(dim)), np.uint8)
        body = self._codec.encode(rows, dtype, tokens).body[0]
        fields, codes = self._split(body, tokens, dim)
        parts = [f.transpose(2, 0, 1).astype("<u2").copy().view(np.uint8) for f in fields]
        return np.concatenate([*parts, self._pack(codes)], axis=2)

    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int) -> Encoded:
        """See `RowCodec`."""
        records, heads = len(coded) // tokens, coded.shape[1]
        sections = self._codec.sections(tokens, dim)
        body = np.zeros((records, heads, sections.total), np.uint8)
        groups, columns = scale_shape(tokens, dim, Axis.TOKEN, self.spec.group, self._lane)
        rows = coded.reshape(records, tokens, heads, -1)
        for n in range(1 if self.spec.symmetric else 2):
            field = np.zeros((records, heads, groups, columns), "<u2")
            stored = np.ascontiguousarray(rows[..., 2 * groups * n : 2 * groups * (n + 1)]).view("<u2")
            field[..., :tokens] = stored.transpose(0, 2, 3, 1)
            start = n * sections.scales
            body[..., start : start + field[0, 0].nbytes] = field.reshape(records, heads, -1).view(np.uint8)
        codes = self._unpack(rows[..., -(align(dim, TILE_LANES) // self._per_byte) :])
        tiles = self._tile(codes.transpose(0, 2, 1, 3), tokens)
        body[..., sections.metadata : sections.metadata + tiles.shape[-1]] = tiles
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
        tokens, heads, _ = coded.shape
        if not tokens:
            return take_out(out, (0, heads, dim), np.float32 if as_float32 else np.uint16)
        body = self.lay(coded, tokens, dim).body
        return self._codec.decode(body, tokens, dim, dtype, as_float32=as_float32, out=out)

    def _split(self, body: NDArray[np.uint8], tokens: int, dim: int) -> tuple[list[NDArray[Any]], NDArray[np.uint8]]:
        """Scales (and zeros) (heads, channel groups, tokens) and codes (tokens, heads, padded channels) of a body."""
        sections = self._codec.sections(tokens, dim)
        groups, columns = scale_shape(tokens, dim, Axis.TOKEN, self.spec.group, self._lane)
        fields = []
        for n in range(1 if self.spec.symmetric else 2):
            raw = body[:, n * sections.scales :][:, : 2 * groups * columns]
            fields.append(np.ascontiguousarray(raw).view("<u2").reshape(len(body), groups, columns)[..., :tokens])
        return fields, self._untile(body[:, sections.metadata :], tokens, dim).transpose(1, 0, 2)

    # A tile row holds for each lane four bytes, each with codes of channels (or tokens) that lie four apart.

    def _tile(self, codes: NDArray[np.uint8], tokens: int) -> NDArray[np.uint8]:
        """Tiles (…, bytes) of codes (records, heads, tokens, padded channels)."""
        records, heads, _, width = codes.shape
        whole = np.zeros((records, heads, padded_tokens(tokens, self._lane), width), np.uint8)
        whole[:, :, :tokens] = codes
        p = self._per_byte
        if self._lane:
            x = whole.reshape(records, heads, -1, 16 // p, p, _WORD, width // TILE_LANES, TILE_LANES)
            x = x.transpose(0, 1, 2, 6, 3, 7, 5, 4)  # …, token block, channel block, row, lane, byte, code
        else:
            x = whole.reshape(records, heads, -1, TILE_LANES, width // (_WORD * p), p, _WORD)
            x = x.transpose(0, 1, 2, 4, 3, 6, 5)  # …, token tile, row, lane, byte, code
        return self._join(x).reshape(records, heads, -1)

    def _untile(self, tiles: NDArray[np.uint8], tokens: int, dim: int) -> NDArray[np.uint8]:
        """Codes (heads, tokens, padded channels) of tiles (heads, bytes)."""
        p, width, heads = self._per_byte, align(dim, TILE_LANES), len(tiles)
        if self._lane:
            x = self._take_apart(tiles.reshape(heads, -1, width // TILE_LANES, 16 // p, TILE_LANES, _WORD))
            x = x.transpose(0, 1, 3, 6, 5, 2, 4)  # heads, token block, row, code, byte, channel block, lane
        else:
            x = self._take_apart(tiles.reshape(heads, -1, width // (_WORD * p), TILE_ROW // _WORD, _WORD))
            x = x.transpose(0, 1, 3, 2, 5, 4)  # heads, token tile, lane, row, code, byte
        return x.reshape(heads, -1, width)[:, :tokens]

    def _pack(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self._join(codes.reshape(*codes.shape[:-1], -1, self._per_byte))

    def _unpack(self, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self._take_apart(packed).reshape(*packed.shape[:-1], -1)

    def _join(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bytes of the codes on the last axis, the first one in the lowest bits."""
        out = codes[..., 0].copy()
        for i in range(1, self._per_byte):
            out |= codes[..., i] << np.uint8(self.spec.bits * i)
        return out

    def _take_apart(self, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        shifts = np.arange(0, 8, self.spec.bits, dtype=np.uint8)
        codes: NDArray[np.uint8] = (packed[..., None] >> shifts) & np.uint8((1 << self.spec.bits) - 1)
        return codes


def codes_rows(spec: CodecSpec) -> bool:
    """Whether a codec gives each row codes of its own, which are all that a record has to hold of it."""
    return spec.codec != CodecId.RAW and spec.axis == Axis.TOKEN and not spec.bounded
