"""Vectors over a dictionary: a few indices, small integers and a scale each (formats/dictionary.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.codec import Encoded, split_records, take_body, take_out
from kvcodec.codecs.dictionary import Dictionary
from kvcodec.codecs.planes import lay_planes, pack_rows, take_rows, unpack_rows
from kvcodec.codecs.pursuit import Codes, pursue
from kvcodec.codecs.sections import HeadSections, sparse_sections
from kvcodec.errors import CorruptRecord, ShapeError, SpecError
from kvcodec.kernels.atoms import rebuild_rows, work_bytes
from kvcodec.kernels.floats import FLOAT32
from kvcodec.layout import DtypeId
from kvcodec.sparse_spec import SparseCodes
from kvcodec.spec import CodecSpec

UNKNOWN_ERROR = 0xFFFF  # the originals are gone when rows are laid
_GREATEST = {DtypeId.BFLOAT16: np.uint32(0x7F7F0000).view(np.float32), DtypeId.FLOAT16: np.float32(65504)}
_TYPES: dict[DtypeId, Any] = {DtypeId.BFLOAT16: ml_dtypes.bfloat16, DtypeId.FLOAT16: np.float16}


class SparseRows:
    """Vectors over one dictionary, one by one. See `RowCodec`.

    A decoded vector is float32(sum of coefficients times atoms, exact) * scale + mean, each operation rounded, turned
    to its position where the dictionary has a rotation, clamped to the dtype's greatest finite number and rounded to
    it.
    """

    def __init__(self, spec: CodecSpec, dictionary: Dictionary, first: int = 0) -> None:
        if spec.sparse is None:
            raise SpecError(f"{spec} takes no dictionary")
        if spec.sparse.size not in (0, dictionary.size):
            raise SpecError(f"{spec} is for {spec.sparse.size} atoms, the dictionary has {dictionary.size}")
        self.codes = replace(spec.sparse, size=dictionary.size)
        self.spec, self.dictionary, self.first = replace(spec, sparse=self.codes), dictionary, first

    def at(self, first: int) -> Self:
        """See `RowCodec`."""
        return type(self)(self.spec, self.dictionary, first)

    def row_bytes(self, dim: int) -> int:
        """Bytes of one row of one head."""
        self.check_dim(dim)
        return self.codes.row_bytes

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId) -> NDArray[np.uint8]:
        """See `RowCodec`."""
        tokens, heads, dim = rows.shape
        self.check_dim(dim)
        vectors = self.turn_back(widen(rows, dtype), self.positions(tokens)).reshape(-1, dim)
        codes = pursue(vectors, self.dictionary, self.codes)
        return pack_rows(codes, self.codes).reshape(tokens, heads, self.codes.row_bytes)

    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int, *, alike: bool = False) -> Encoded:
        """See `RowCodec`. Where an error bound spares atoms, the records have as many as their vectors need, unless
        they are to be alike.
        """
        self.check_dim(dim)
        codes = self.codes if alike else self._shrink(coded)
        body = lay_planes(self._refit(coded, codes), tokens, codes)
        errors = np.full(body.shape[:2], UNKNOWN_ERROR, np.uint16)
        return Encoded(body, errors, replace(self.spec, sparse=codes))

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
        tokens, heads, _ = coded.shape
        taken = take_out(out, (tokens, heads, dim), np.float32 if as_float32 else np.uint16)
        codes = unpack_rows(coded.reshape(tokens * heads, coded.shape[-1]), self.codes)
        rows = self.turn(self.rebuild(codes).reshape(taken.shape), self.positions(tokens))
        taken[...] = rows if as_float32 else narrow(rows, dtype)
        return taken

    def check_dim(self, dim: int) -> None:
        if dim != self.dictionary.dim:
            raise ShapeError(f"rows have {dim} channels, the dictionary's atoms {self.dictionary.dim}")

    def positions(self, tokens: int) -> NDArray[np.int64]:
        """int64 (tokens,): where the tokens of rows stand in their sequence."""
        return self.first + np.arange(tokens)

    def turn(self, rows: NDArray[np.float32], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rebuilt rows (n, ..., dim) as the model has them at positions (n,)."""
        rotation = self.dictionary.rotation
        return rows if rotation is None else rotation.turn(rows, positions)

    def turn_back(self, rows: NDArray[np.float32], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """The model's rows as the dictionary codes them."""
        rotation = self.dictionary.rotation
        return rows if rotation is None else rotation.undo(rows, positions)

    def rebuild(self, codes: Codes) -> NDArray[np.float32]:
        """float32 (n, dim) of codes, not yet turned to their positions."""
        own, out = self.dictionary, np.empty((len(codes.scales), self.dictionary.dim), np.float32)
        work = np.empty(work_bytes(codes.indices.shape[1]), np.uint8)
        rebuild_rows(
            own.atoms.ctypes.data, own.mean.ctypes.data, np.int64(own.dim), codes.indices, codes.coefficients,
            codes.scales, FLOAT32, out.ctypes.data, work.ctypes.data,
        )  # fmt: skip
        return out

    def _shrink(self, coded: NDArray[np.uint8]) -> SparseCodes:
        if not self.codes.error:
            return self.codes
        counts = unpack_rows(coded.reshape(-1, coded.shape[-1]), self.codes).counts
        return replace(self.codes, atoms=max(int(counts.max(initial=1)), self.codes.low + 1))

    def _refit(self, coded: NDArray[np.uint8], codes: SparseCodes) -> NDArray[np.uint8]:
        """Rows with fewer atoms, those that are left out having no coefficient."""
        if codes == self.codes:
            return coded
        own = unpack_rows(coded.reshape(-1, coded.shape[-1]), self.codes)
        kept = own._replace(
            indices=np.ascontiguousarray(own.indices[:, : codes.atoms]),
            coefficients=np.ascontiguousarray(own.coefficients[:, : codes.atoms]),
        )
        return pack_rows(kept, codes).reshape(*coded.shape[:-1], codes.row_bytes)


class SparseCodec:
    """Records of vectors over one dictionary. See `Codec`, and SparseRows for the numbers."""

    channel_lane = False

    def __init__(self, spec: CodecSpec, dictionary: Dictionary, first: int = 0) -> None:
        self._rows = SparseRows(spec, dictionary, first)
        self.spec, self.token_group = self._rows.spec, spec.group

    @property
    def first(self) -> int:
        """Position of the first row."""
        return self._rows.first

    def at(self, first: int) -> Self:
        """See `Codec`."""
        return type(self)(self.spec, self._rows.dictionary, first)

    def sections(self, tokens: int, dim: int) -> HeadSections:
        """Bytes of one head's sections in a record of `tokens` rows of `dim` channels."""
        self._rows.check_dim(dim)
        return sparse_sections(tokens, self._rows.codes.code_bytes)

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId, tokens: int, *, alike: bool = False) -> Encoded:
        """See `Codec`."""
        records = split_records(rows, tokens)
        if not records:
            heads, total = rows.shape[1], self.sections(tokens, rows.shape[2]).total
            return Encoded(np.zeros((0, heads, total), np.uint8), np.zeros((0, heads), np.uint16))
        coded = self._rows.encode(rows, dtype)
        back = self._rows.decode(coded, rows.shape[2], dtype, as_float32=True)
        laid = self._rows.lay(coded, tokens, rows.shape[2], alike=alike)
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
        shape = (len(body) * tokens, body.shape[1], dim)
        taken = take_out(out, shape, np.float32 if as_float32 else np.uint16)
        rows = self._rows.rebuild(self._unpack(body, tokens)).reshape(shape)
        rows = self._rows.turn(rows, self._rows.positions(len(rows)))
        taken[...] = rows if as_float32 else narrow(rows, dtype)
        return taken

    def validate(self, body: NDArray[np.uint8], tokens: int, dim: int) -> None:
        """Raise CorruptRecord where an index, a set or a scale is one that no encoder writes; ShapeError."""
        self._unpack(take_body(body, self.sections(tokens, dim).total), tokens)

    def _unpack(self, body: NDArray[np.uint8], tokens: int) -> Codes:
        """Codes of the rows of sections (records, heads, bytes)."""
        _, heads, total = body.shape
        rows = take_rows(body, tokens, self._rows.codes)
        try:
            return unpack_rows(rows.reshape(len(rows) * heads, rows.shape[-1]), self._rows.codes)
        except CorruptRecord as error:
            token, head = divmod(error.offset, heads)
            at = (token // tokens * heads + head) * total
            raise CorruptRecord(at, f"row {token % tokens} of a head: {error.why}") from None


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
