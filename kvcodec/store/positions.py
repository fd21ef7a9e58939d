"""Where rows that stand for several tokens stand, and who may see them: POSITION (formats/record.md#summaries)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import ShapeError
from kvcodec.flash.image import Bytes
from kvcodec.layout import ALIGNMENT, MAX_TOKEN, POSITION, align

Positions = NDArray[np.void]  # POSITION (rows,)


def position_bytes(rows: int) -> int:
    """Bytes of the positions of so many rows in a record."""
    return align(rows * POSITION.itemsize, ALIGNMENT)


def pack_positions(own: Positions) -> Bytes:
    """As they stand in a record, with zeros to a multiple of 64."""
    out = np.zeros(position_bytes(len(own)), np.uint8)
    out[: own.nbytes] = own.view(np.uint8)
    return out


def unpack_positions(stored: Bytes, rows: int) -> Positions:
    """A copy of those of `rows` rows; what they say is not checked."""
    return stored[: rows * POSITION.itemsize].copy().view(POSITION)


def misplaced(own: Positions, first: int, end: int) -> int | None:
    """The first row that does not stand at one of the tokens first … end - 1, or can be seen from before there; None
    if all are as they should be.
    """
    at, seen = own["position"], own["visible_from"]
    wrong = (at < first) | (at >= end) | (seen < at) | (seen > MAX_TOKEN)
    return int(np.flatnonzero(wrong)[0]) if wrong.any() else None


def take_positions(
    positions: Sequence[int] | NDArray[Any] | None, visible_from: Any, rows: int, first: int, end: int, where: str
) -> Positions:
    """Positions of rows that stand for tokens first … end - 1. Raises ShapeError, which begins with `where`.

    positions: evenly spread unless given. visible_from: one for all rows, or one a row; `end` unless given.
    """
    spread = first + (2 * np.arange(rows, dtype=np.int64) + 1) * (end - first) // (2 * rows)
    own = np.empty(rows, POSITION)
    if visible_from is None or np.ndim(visible_from) == 0:
        visible_from = np.full(rows, end if visible_from is None else visible_from)
    for name, given in (("position", spread if positions is None else positions), ("visible_from", visible_from)):
        taken = np.asarray(given)
        if not np.issubdtype(taken.dtype, np.integer) or taken.shape != (rows,):
            raise ShapeError(f"{where}: {name} is {taken.dtype} of shape {taken.shape}, want {rows} whole numbers")
        if taken.size and int(taken.min()) < 0:
            raise ShapeError(f"{where}: {name} is {int(taken.min())}, want 0 or more")
        own[name] = taken
    row = misplaced(own, first, end)
    if row is not None:
        at, seen = own[row].item()
        raise ShapeError(
            f"{where}: row {row} at position {at}, to be seen from {seen} on: want a position of {first} to "
            f"{end - 1}, and it seen from there or later, up to {MAX_TOKEN}"
        )
    return own
