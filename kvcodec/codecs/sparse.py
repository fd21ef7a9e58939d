"""Vectors over a dictionary: a few indices, small integers and a scale each (formats/dictionary.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.codec import Encoded
from kvcodec.codecs.dictionary import Dictionary
from kvcodec.codecs.planes import lay_planes, pack_rows, take_rows, unpack_rows
from kvcodec.codecs.pursuit import Codes, pursue
from kvcodec.codecs.vectors import UNKNOWN_ERROR, VectorCodec, VectorRows
from kvcodec.errors import CorruptRecord, SpecError
from kvcodec.kernels.atoms import rebuild_rows, work_bytes
from kvcodec.kernels.floats import FLOAT32
from kvcodec.sparse_spec import SparseCodes
from kvcodec.spec import CodecSpec


class SparseRows(VectorRows):
    """Vectors over one dictionary, one by one. See `RowCodec`, and VectorRows for what a reader gets.

    A rebuilt vector is float32(sum of coefficients times atoms, exact) * scale + mean, each operation rounded.
    """

    trained_as = "dictionary's atoms"

    def __init__(self, spec: CodecSpec, dictionary: Dictionary, first: int = 0) -> None:
        if spec.sparse is None:
            raise SpecError(f"{spec} takes no dictionary")
        if spec.sparse.size not in (0, dictionary.size):
            raise SpecError(f"{spec} is for {spec.sparse.size} atoms, the dictionary has {dictionary.size}")
        self.codes, self.dictionary = replace(spec.sparse, size=dictionary.size), dictionary
        super().__init__(replace(spec, sparse=self.codes), dictionary, first)

    def at(self, first: int) -> Self:
        """See `RowCodec`."""
        return type(self)(self.spec, self.dictionary, first)

    @property
    def width(self) -> int:
        """See VectorRows."""
        return self.codes.row_bytes

    def code_vectors(self, vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
        """See VectorRows."""
        return pack_rows(pursue(vectors, self.dictionary, self.codes), self.codes)

    def rebuild_vectors(self, coded: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See VectorRows."""
        return self.rebuild(unpack_rows(coded, self.codes))

    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int, *, alike: bool = False) -> Encoded:
        """See `RowCodec`. Where an error bound spares atoms, the records have as many as their vectors need, unless
        they are to be alike.
        """
        self.check_dim(dim)
        codes = self.codes if alike else self._shrink(coded)
        body = lay_planes(self._refit(coded, codes), tokens, codes)
        errors = np.full(body.shape[:2], UNKNOWN_ERROR, np.uint16)
        return Encoded(body, errors, replace(self.spec, sparse=codes))

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


class SparseCodec(VectorCodec):
    """Records of vectors over one dictionary. See `Codec`, and SparseRows for the numbers."""

    def __init__(self, spec: CodecSpec, dictionary: Dictionary, first: int = 0) -> None:
        self._rows = SparseRows(spec, dictionary, first)
        super().__init__(self._rows)

    @property
    def rows(self) -> SparseRows:
        """See VectorCodec."""
        return self._rows

    def at(self, first: int) -> Self:
        """See `Codec`."""
        return type(self)(self.spec, self._rows.dictionary, first)

    def lay(self, coded: NDArray[np.uint8], tokens: int, dim: int, *, alike: bool) -> Encoded:
        """See VectorCodec."""
        return self._rows.lay(coded, tokens, dim, alike=alike)

    def rebuild(self, codes: Codes) -> NDArray[np.float32]:
        """See VectorCodec."""
        return self._rows.rebuild(codes)

    def take_codes(self, body: NDArray[np.uint8], tokens: int) -> Codes:
        """See VectorCodec: an index, a set or a scale that no encoder writes is found."""
        _, heads, total = body.shape
        rows = take_rows(body, tokens, self._rows.codes)
        try:
            return unpack_rows(rows.reshape(len(rows) * heads, rows.shape[-1]), self._rows.codes)
        except CorruptRecord as error:
            token, head = divmod(error.offset, heads)
            at = (token // tokens * heads + head) * total
            raise CorruptRecord(at, f"row {token % tokens} of a head: {error.why}") from None
