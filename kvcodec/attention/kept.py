"""Rows that a record keeps otherwise than as codes: where kernels find them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.bitmap import INT4, RAW, other_bytes
from kvcodec.layout import CHANNEL_LANE_TOKENS, align


def find_others(kinds: NDArray[np.uint8], start: int, dim: int) -> NDArray[np.int64]:
    """int64 (heads, blocks of 64 tokens, 3), the table of kernels/forms.py, of kinds (heads, tokens) of checked rows.

    start: bytes from the record's first head to the first of the rows that are no codes.
    """
    heads, tokens = kinds.shape
    shape = heads, -1, CHANNEL_LANE_TOKENS
    whole = np.zeros((heads, align(tokens, CHANNEL_LANE_TOKENS)), np.uint8)
    whole[:, :tokens] = kinds
    sizes = other_bytes(whole, dim).reshape(shape).sum(axis=2)
    before = start + np.cumsum(sizes) - sizes.reshape(-1)
    masks: list[NDArray[Any]] = [
        np.packbits((whole == kind).reshape(shape), axis=2, bitorder="little").view("<i8")[..., 0]
        for kind in (INT4, RAW)
    ]
    return np.ascontiguousarray(np.stack([before.reshape(sizes.shape), *masks], axis=2), np.int64)
