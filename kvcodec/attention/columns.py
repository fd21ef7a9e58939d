"""Columns of the table of strips, as kernels/forms.py has them, without numba."""

from __future__ import annotations

TOKENS, POSITION, _PLACES = 0, 1, 2
PLACE, FORM, START, KEPT, TURNED = range(5)  # of one stream
_OF_STREAM = 5
DICTIONARY, REBUILT = -2, -1  # of the table of forms


def place_column(stream: int) -> int:
    """The first column of a stream; of the number of streams, how many columns there are."""
    return _PLACES + _OF_STREAM * stream
