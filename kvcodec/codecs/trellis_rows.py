"""Trellis codes as rows and as GROUP records: see `RowCodec`, `Codec` and formats/trellis.md."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.shaped import Flaw, ShapedCodec, ShapedRows
from kvcodec.codecs.trellis import Trellis, TrellisCodes
from kvcodec.codecs.vectors import SIDE_BYTES
from kvcodec.errors import SpecError
from kvcodec.spec import CodecSpec


class TrellisRows(ShapedRows):
    """Vectors in trellis codes, one by one. See `RowCodec`, and VectorRows for what a reader gets."""

    trained_as = "trellis codes"

    def __init__(self, spec: CodecSpec, trellis: Trellis, first: int = 0) -> None:
        if spec.trellis is None:
            raise SpecError(f"{spec} takes no trellis codes")
        if spec.trellis.size not in (0, trellis.code_bytes):
            raise SpecError(f"{spec} has {spec.trellis.size} bytes, its trellis codes {trellis.code_bytes}")
        spec.trellis.check_budget(trellis.budget)
        self.trellis = trellis
        super().__init__(spec.bound_to(trellis.code_bytes, spec.trellis.basis), trellis, first)

    def at(self, first: int) -> Self:
        """See `RowCodec`."""
        return type(self)(self.spec, self.trellis, first)

    @property
    def code_bytes(self) -> int:
        """See ShapedRows."""
        return self.trellis.code_bytes

    def find_flaw(self, coded: NDArray[np.uint8]) -> Flaw | None:
        """See ShapedRows; nor does an encoder set bits behind a vector's own."""
        shape, used = super().find_flaw(coded), self.trellis.bits % 8
        bad = np.flatnonzero((coded[:, -1] >> used) * (used > 0))
        if not len(bad) or (shape is not None and shape.row <= bad[0]):
            return shape
        return Flaw(int(bad[0]), coded.shape[1] - 1, f"bits behind the {self.trellis.bits} of its codes")

    def code_vectors(self, vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
        """See VectorRows."""
        coded = self.trellis.code(vectors)
        return np.concatenate([coded.gains[:, None], coded.shapes[:, None], coded.bits], axis=1)

    def rebuild_vectors(self, coded: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See VectorRows."""
        self.check_rows(coded)
        return self.trellis.rebuild(TrellisCodes(coded[:, SIDE_BYTES:], coded[:, 0], coded[:, 1]))


class TrellisCodec(ShapedCodec):
    """Records of trellis codes. See `Codec`."""

    def __init__(self, spec: CodecSpec, trellis: Trellis, first: int = 0) -> None:
        self._rows = TrellisRows(spec, trellis, first)
        super().__init__(self._rows)

    @property
    def rows(self) -> TrellisRows:
        """See VectorCodec."""
        return self._rows

    def at(self, first: int) -> Self:
        """See `Codec`."""
        return type(self)(self.spec, self._rows.trellis, first)
