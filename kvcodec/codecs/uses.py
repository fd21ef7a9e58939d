"""Which streams of which layers something trained is for, and whether they can be turned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.rotation import Rotation
from kvcodec.errors import ShapeError, SpecError, UnsupportedVersion
from kvcodec.layout import DICTIONARY_USE, StreamId

Use = tuple[int, StreamId]  # a layer and a stream
TURNED = (StreamId.K, StreamId.KR)  # streams that carry a rotary embedding


def uses_to_bytes(uses: Sequence[Use]) -> bytes:
    """As formats/dictionary.md has them."""
    rows = np.zeros(len(uses), DICTIONARY_USE)
    for row, (layer, stream) in zip(rows, uses, strict=True):
        row["layer"], row["stream"] = layer, stream
    return rows.tobytes()


def uses_from_bytes(data: NDArray[np.uint8]) -> tuple[Use, ...]:
    """The inverse. Raises SpecError for an unknown stream, UnsupportedVersion for a reserved field that is set."""
    rows = data.copy().view(DICTIONARY_USE)
    if rows["reserved"].any():
        raise UnsupportedVersion("a reserved field of a use is set")
    try:
        return tuple((int(row["layer"]), StreamId(int(row["stream"]))) for row in rows)
    except ValueError as error:
        raise SpecError(str(error)) from None


def check_rotation(rotation: Rotation | None, dim: int, uses: Sequence[Use]) -> None:
    """Raises ShapeError, SpecError for one that vectors of `dim` channels, or their streams, cannot have."""
    if rotation is None:
        return
    if 2 * rotation.pairs > dim:
        raise ShapeError(f"rotation: {rotation.pairs} pairs of channels, the atoms have {dim} channels")
    if unturned := [stream.name for _, stream in uses if stream not in TURNED]:
        raise SpecError(f"rotation: stream {unturned[0].lower()} has no rotary embedding")


def count_pairs(rotation: Rotation | None) -> int:
    """Pairs of channels that turn."""
    return 0 if rotation is None else rotation.pairs
