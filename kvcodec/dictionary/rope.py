"""Rotary position embedding, layout "halves": channel c and channel c + dims / 2 are one pair."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import SpecError


class Rope(NamedTuple):
    """frequencies: float64 (pairs,), the angle by which each pair turns a token. The first 2 * pairs channels turn."""

    frequencies: NDArray[np.float64]

    @classmethod
    def of(cls, base: float, dims: int, scale: float = 1.0) -> Rope:
        """base ** (-2 i / dims) / scale. Raises SpecError for a base or scale that is not positive, or odd dims."""
        if not (base > 0 and scale > 0 and np.isfinite(base) and np.isfinite(scale)) or dims < 2 or dims % 2:
            raise SpecError(
                f"rope base {base:g}, scale {scale:g}, {dims} channels: want positive numbers, and an even one"
            )
        return cls(base ** (-np.arange(0, dims, 2) / dims) / scale)

    def turn(self, rows: NDArray[Any], positions: NDArray[Any]) -> NDArray[np.float32]:
        """float32 rows (tokens, ..., dim) turned to these positions (tokens,); to negative ones to undo it."""
        pairs = len(self.frequencies)
        angles = np.multiply.outer(positions.astype(np.float64), self.frequencies)
        angles = angles.reshape(len(positions), *(1,) * (rows.ndim - 2), pairs)
        cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        out = rows.astype(np.float32)
        first, second = rows[..., :pairs].astype(np.float32), rows[..., pairs : 2 * pairs].astype(np.float32)
        out[..., :pairs] = first * cosines - second * sines
        out[..., pairs : 2 * pairs] = second * cosines + first * sines
        return out

    def undo(self, rows: NDArray[Any], positions: NDArray[Any]) -> NDArray[np.float32]:
        """What `turn` has turned to these positions, before that."""
        return self.turn(rows, -positions)
