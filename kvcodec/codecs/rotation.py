"""Rotary position embedding, layout "halves": channel c and channel c + pairs are one pair (formats/dictionary.md)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import ShapeError, SpecError

_TURN = 2.0**64


class Rotation:
    """How a model turns the keys of a layer by their positions, the numbers of their tokens.

    steps: uint64 (pairs,), by which each pair turns from one position to the next, in units of 2**-64 turns. The first
    2 * pairs channels turn, the others do not. Raises ShapeError.
    """

    def __init__(self, steps: NDArray[Any]) -> None:
        given = np.asarray(steps)
        self.steps = np.ascontiguousarray(
            given.astype(np.uint64) if given.dtype.kind in "iu" else np.zeros(0), np.uint64
        )
        if given.ndim != 1 or not len(self.steps) or (given.dtype.kind == "i" and (given < 0).any()):
            raise ShapeError(f"steps: {np.shape(steps)}, want a uint64 for each of one or more pairs of channels")

    @classmethod
    def of_frequencies(cls, frequencies: NDArray[Any]) -> Rotation:
        """From angles in radians from one position to the next, (pairs,), at least 0 and below a whole turn."""
        turns = np.asarray(frequencies, np.float64) / (2 * np.pi)
        if turns.ndim != 1 or not len(turns) or not (turns >= 0).all() or not (turns < 1).all():
            raise SpecError("frequencies of a rotary embedding: want one or more from 0 to below 2 pi")
        return cls(np.array([int(turn * _TURN) for turn in turns], np.uint64))

    @classmethod
    def of_base(cls, base: float, dims: int, scale: float = 1.0) -> Rotation:
        """base ** (-2 i / dims) / scale. Raises SpecError for a base or scale that is not positive, or odd dims."""
        if not (base > 0 and scale > 0 and np.isfinite(base) and np.isfinite(scale)) or dims < 2 or dims % 2:
            raise SpecError(
                f"rope base {base:g}, scale {scale:g}, {dims} channels: want positive numbers, and an even one"
            )
        return cls.of_frequencies(base ** (-np.arange(0, dims, 2) / dims) / scale)

    @property
    def pairs(self) -> int:
        return len(self.steps)

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """float64 (pairs,): radians from one position to the next."""
        return np.asarray(self.steps.astype(np.float64) * (2 * np.pi / _TURN))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rotation) and np.array_equal(self.steps, other.steps)

    def __hash__(self) -> int:
        return hash(self.steps.tobytes())

    def turn(self, rows: NDArray[Any], positions: NDArray[Any]) -> NDArray[np.float32]:
        """float32 rows (tokens, ..., dim) as the model turns them at positions (tokens,)."""
        return self._turned(rows, positions, back=False)

    def undo(self, rows: NDArray[Any], positions: NDArray[Any]) -> NDArray[np.float32]:
        """Rows as they were before that."""
        return self._turned(rows, positions, back=True)

    def turns(self, positions: NDArray[Any]) -> NDArray[np.int32]:
        """int32 (positions, 2, pairs): cosines and sines of the pairs' angles at positions, in units of 2**-30."""
        from kvcodec.kernels.rotation import find_turns

        turns = np.empty((len(positions), 2, self.pairs), np.int32)
        find_turns(np.asarray(positions, np.int64), self.steps, _points(), turns)
        return turns

    def _turned(self, rows: NDArray[Any], positions: NDArray[Any], *, back: bool) -> NDArray[np.float32]:
        from kvcodec.kernels.rotation import turn_rows

        shape = rows.shape
        if len(shape) < 2 or positions.shape != shape[:1] or 2 * self.pairs > shape[-1]:
            want = f"(tokens, ..., {2 * self.pairs} or more)"
            raise ShapeError(f"rows {shape} at positions {positions.shape}, want {want}")
        out = np.array(rows, np.float32, order="C")
        flat, work = out.reshape(len(rows), -1, shape[-1]), np.empty((2, self.pairs), np.float32)
        turn_rows(flat, positions.astype(np.int64), self.steps, _points(), back, work)
        return out


@cache
def _points() -> NDArray[np.int32]:
    from kvcodec.kernels.rotation import make_points

    return make_points()
