"""Vectors over a dictionary that all meet an error bound: see bounded.py.

A vector takes atoms until what is left of it is within the bound; those whose decoded row is not, because integers
round, take more. The room of a record is how many atoms its rows have places for.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.bounded import BoundedCodec, Tried, missed
from kvcodec.codecs.planes import lay_planes, pack_rows
from kvcodec.codecs.pursuit import Codes, pursue
from kvcodec.codecs.sparse import SparseCodec
from kvcodec.layout import DtypeId
from kvcodec.spec import CodecSpec

_ROUNDS = 5  # of taking more atoms, all of them in the last one
_AIM = 0.97  # of the squared error that rounding left room for


class BoundedSparse(BoundedCodec, SparseCodec):
    """Records of vectors over one dictionary, none of which errs by more than the spec's bound. See BoundedCodec."""

    @cached_property
    def rooms(self) -> dict[int, int]:
        """See BoundedCodec."""
        codes = self._rows.codes
        return {n: codes.with_atoms(n).row_bytes for n in range(codes.low + 1, codes.atoms + 1)}

    def with_room(self, room: int) -> CodecSpec:
        """See BoundedCodec."""
        return self.spec.with_atoms(room)

    def with_spec(self, spec: CodecSpec) -> Self:
        """See BoundedCodec."""
        return type(self)(spec, self._rows.dictionary, self.first)

    def try_codes(
        self,
        vectors: NDArray[np.float32],
        places: NDArray[np.int64],
        limits: NDArray[np.float64],
        dtype: DtypeId,
    ) -> Tried:
        """See BoundedCodec."""
        own, dictionary = self._rows.codes, self._rows.dictionary
        before = self._rows.turn_back(vectors, places)
        codes = pursue(before, dictionary, own, targets=limits)
        rows = self._rows.turn(self._rows.rebuild(codes), places)
        errors, targets = missed(vectors, rows, dtype), limits.copy()
        for n in range(_ROUNDS):
            more = np.flatnonzero((errors > limits) & (codes.counts < own.atoms))
            if not len(more):
                break
            targets[more] *= _AIM * limits[more] / errors[more]
            aims = targets[more] if n < _ROUNDS - 1 else np.full(len(more), -1.0)
            again = pursue(before[more], dictionary, own, targets=aims)
            rows[more] = self._rows.turn(self._rows.rebuild(again), places[more])
            errors[more] = missed(vectors[more], rows[more], dtype)
            codes.indices[more], codes.coefficients[more] = again.indices, again.coefficients
            codes.scales[more], codes.counts[more] = again.scales, again.counts
        return Tried(codes, np.where(errors <= limits, codes.counts, own.atoms + 1), rows)

    def lay_codes(self, codes: Any, part: slice, kept: NDArray[np.bool_], tokens: int, room: int) -> NDArray[np.uint8]:
        """See BoundedCodec."""
        own, spec = Codes(*(field[part] for field in codes)), self._rows.codes.with_atoms(room)
        cut = Codes(
            own.indices[:, :room] * kept[:, None], own.coefficients[:, :room] * kept[:, None],
            own.scales * kept, own.counts * kept,
        )  # fmt: skip
        packed = pack_rows(cut, spec)
        laid: NDArray[np.uint8] = lay_planes(packed.reshape(tokens, len(kept) // tokens, -1), tokens, spec)[0]
        return laid

    def are_used(self, codes: Any) -> NDArray[np.bool_]:
        """See BoundedCodec."""
        used: NDArray[np.bool_] = (codes.scales > 0) | codes.indices.any(axis=1) | codes.coefficients.any(axis=1)
        return used
