"""What codecs of whole vectors share, whatever is trained for them: positions, 16-bit rows, error figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.codec import Encoded, split_records, take_body, take_out
from kvcodec.codecs.sections import HeadSections, sparse_sections
from kvcodec.errors import ShapeError
from kvcodec.layout import DtypeId
from kvcodec.spec import CodecSpec

if TYPE_CHECKING:
    from kvcodec.codecs.codec import Trained

SIDE_BYTES = 2  # of a vector beside its codes: a scale, or a gain and a shape
UNKNOWN_ERROR = 0xFFFF  # the originals are gone when rows are laid
_GREATEST = {DtypeId.BFLOAT16: np.uint32(0x7F7F0000).view(np.float32), DtypeId.FLOAT16: np.float32(65504)}
_TYPES: dict[DtypeId, Any] = {DtypeId.BFLOAT16: ml_dtypes.bfloat16, DtypeId.FLOAT16: np.float16}


class VectorRows(ABC):
    """Vectors one by one, by what was trained for their stream. See `RowCodec`.

    A decoded vector is float32, turned to its position where what was trained has a rotation, clamped to the dtype's
    greatest finite number and rounded to it. first: position of the first row.
    """

    trained_as: ClassVar[str]  # in errors

    def __init__(self, spec: CodecSpec, trained: Trained, first: int) -> None:
        self.spec, self.first, self._trained = spec, first, trained

    @abstractmethod
    def at(self, first: int) -> Self:
        """See `RowCodec`."""

    @property
    def dim(self) -> int:
        """Channels of a vector."""
        return self._trained.dim

    @property
    @abstractmethod
    def width(self) -> int:
        """Bytes of one row of one head."""

    @abstractmethod
    def code_vectors(self, vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Coded rows (n, width) of vectors (n, dim)."""

    @abstractmethod
    def rebuild_vectors(self, coded: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Vectors (n, dim) of coded rows, not yet turned. Raises CorruptRecord with the number of the first bad row."""

    def row_bytes(self, dim: int) -> int:
        """See `RowCodec`."""
        self.check_dim(dim)
        return self.width

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId) -> NDArray[np.uint8]:
        """See `RowCodec`."""
        tokens, heads, dim = rows.shape
        self.check_dim(dim)
        vectors = self.turn_back(widen(rows, dtype), self.positions(tokens)).reshape(tokens * heads, dim)
        return self.code_vectors(vectors).reshape(tokens, heads, self.width)

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
        tokens, heads, width = coded.shape
        vectors = self.rebuild_vectors(coded.reshape(tokens * heads, width))
        return self.finish(vectors.reshape(tokens, heads, dim), dtype, as_float32=as_float32, out=out)

    def finish(
        self, rows: NDArray[np.float32], dtype: DtypeId, *, as_float32: bool, out: NDArray[Any] | None
    ) -> NDArray[Any]:
        """Rebuilt rows (tokens, heads, dim) as a reader wants them, in `out` if it is given."""
        taken = take_out(out, rows.shape, np.float32 if as_float32 else np.uint16)
        turned = self.turn(rows, self.positions(len(rows)))
        taken[...] = turned if as_float32 else narrow(turned, dtype)
        return taken

    def check_dim(self, dim: int) -> None:
        if dim != self.dim:
            raise ShapeError(f"rows have {dim} channels, the {self.trained_as} {self.dim}")

    def positions(self, tokens: int) -> NDArray[np.int64]:
        """int64 (tokens,): where the tokens of rows stand in their sequence."""
        return self.first + np.arange(tokens)

    def turn(self, rows: NDArray[np.float32], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rebuilt rows (n, ..., dim) as the model has them at positions (n,)."""
        rotation = self._trained.rotation
        return rows if rotation is None else rotation.turn(rows, positions)

    def turn_back(self, rows: NDArray[np.float32], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """The model's rows as they are coded."""
        rotation = self._trained.rotation
        return rows if rotation is None else rotation.undo(rows, positions)


class VectorCodec(ABC):
    """Records of such rows. See `Codec`."""

    channel_lane = False

    def __init__(self, rows: VectorRows) -> None:
        self.spec, self.token_group, self.first = rows.spec, rows.spec.group, rows.first

    @property
    @abstractmethod
    def rows(self) -> VectorRows:
        """The codec of rows one by one."""

    @abstractmethod
    def at(self, first: int) -> Self:
        """See `Codec`."""

    @abstractmethod
    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int, *, alike: bool) -> Encoded:
        """Records of coded rows; `alike` as in `encode`."""

    @abstractmethod
    def take_codes(self, body: NDArray[np.uint8], tokens: int) -> Any:
        """Codes, token by token, of sections (records, heads, bytes), as `rebuild` takes them. Raises CorruptRecord
        with a byte of these.
        """

    @abstractmethod
    def rebuild(self, codes: Any) -> NDArray[np.float32]:
        """Vectors (n, dim) of such codes, not yet turned."""

    def sections(self, tokens: int, dim: int) -> HeadSections:
        """Bytes of one head's sections in a record of `tokens` rows of `dim` channels."""
        return sparse_sections(tokens, self.rows.row_bytes(dim) - SIDE_BYTES)

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId, tokens: int, *, alike: bool = False) -> Encoded:
        """See `Codec`."""
        records, (_, heads, dim) = split_records(rows, tokens), rows.shape
        if not records:
            body = np.zeros((0, heads, self.sections(tokens, dim).total), np.uint8)
            return Encoded(body, np.zeros((0, heads), np.uint16))
        coded = self.rows.encode(rows, dtype)
        back = self.rows.decode(coded, dim, dtype, as_float32=True)
        laid = self.lay(coded, tokens, dim, alike=alike)
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
        body = take_body(body, self.sections(tokens, dim).total)
        vectors = self.rebuild(self.take_codes(body, tokens)).reshape(len(body) * tokens, body.shape[1], dim)
        return self.rows.finish(vectors, dtype, as_float32=as_float32, out=out)

    def validate(self, body: NDArray[np.uint8], tokens: int, dim: int) -> None:
        """Raise CorruptRecord where a field of a row is one that no encoder writes; ShapeError."""
        self.take_codes(take_body(body, self.sections(tokens, dim).total), tokens)


def widen(rows: NDArray[np.uint16], dtype: DtypeId) -> NDArray[np.float32]:
    """float32 of 16-bit floats' bits."""
    wide: NDArray[np.float32] = rows.view(_TYPES[dtype]).astype(np.float32)
    return wide


def narrow(rows: NDArray[np.float32], dtype: DtypeId) -> NDArray[np.uint16]:
    """Bits of rows, clamped to the greatest finite number of the dtype."""
    kind = _TYPES[dtype]
    most = _GREATEST[dtype]
    bits: NDArray[np.uint16] = np.clip(rows, -most, most).astype(kind).view(np.uint16)
    return bits


def figures_of(rows: NDArray[np.float32], back: NDArray[np.float32], records: int) -> NDArray[np.uint16]:
    """Q15 of the root of sum of squared errors / sum of squares, of each record and head (formats/record.md)."""
    wide = rows.astype(np.float64).reshape(records, -1, *rows.shape[1:])
    missed = wide - back.reshape(wide.shape)
    error, total = (_sum_squares(x) for x in (missed, wide))
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = np.where(total > 0, np.sqrt(error / total), 0)
    rounded: NDArray[np.uint16] = np.rint(np.minimum(figures * 32768, 65535)).astype(np.uint16)
    return rounded


def _sum_squares(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """(records, heads): float64 sums down each channel in token order, then over the channels."""
    per_channel = np.add.reduce(x * x, axis=1)
    sums: NDArray[np.float64] = np.add.reduce(np.moveaxis(per_channel, 2, 0), axis=0)
    return sums
