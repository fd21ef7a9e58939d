"""Product codes and trellis codes of vectors that all meet an error bound: see bounded.py.

Their rows are all of one length, so that a record has but one room, and a vector either fits or does not.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.bounded import BoundedCodec, Tried, missed
from kvcodec.codecs.product_rows import ProductCodec
from kvcodec.codecs.shaped import ShapedCodec
from kvcodec.codecs.trellis_rows import TrellisCodec
from kvcodec.layout import DtypeId
from kvcodec.spec import CodecSpec

_ROOM = 1


class BoundedShaped(BoundedCodec, ShapedCodec):
    """Records of codes none of whose vectors errs by more than the spec's bound. See BoundedCodec."""

    @cached_property
    def rooms(self) -> dict[int, int]:
        """See BoundedCodec."""
        return {_ROOM: self.rows.width}

    def with_room(self, room: int) -> CodecSpec:  # noqa: ARG002
        """See BoundedCodec."""
        return self.spec

    def with_spec(self, spec: CodecSpec) -> Self:  # noqa: ARG002
        """See BoundedCodec."""
        return self

    def try_codes(
        self,
        vectors: NDArray[np.float32],
        places: NDArray[np.int64],
        limits: NDArray[np.float64],
        dtype: DtypeId,
    ) -> Tried:
        """See BoundedCodec."""
        codes = self.rows.code_vectors(self.rows.turn_back(vectors, places))
        rows = self.rows.turn(self.rows.rebuild_vectors(codes), places)
        need = np.where(missed(vectors, rows, dtype) <= limits, _ROOM, _ROOM + 1)
        return Tried(codes, need.astype(np.int64), rows)

    def lay_codes(self, codes: Any, part: slice, kept: NDArray[np.bool_], tokens: int, room: int) -> NDArray[np.uint8]:  # noqa: ARG002
        """See BoundedCodec."""
        own = codes[part] * kept[:, None]
        coded = own.reshape(tokens, len(kept) // tokens, -1)
        laid: NDArray[np.uint8] = self.rows.lay(coded, tokens, self.rows.dim).body[0]
        return laid

    def are_used(self, codes: Any) -> NDArray[np.bool_]:
        """See BoundedCodec."""
        used: NDArray[np.bool_] = codes.any(axis=1)
        return used


class BoundedProduct(BoundedShaped, ProductCodec):
    """Records of product codes."""


class BoundedTrellis(BoundedShaped, TrellisCodec):
    """Records of trellis codes."""
