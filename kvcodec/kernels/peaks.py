"""The greatest logits of strips: what chooses the blocks that are read in full."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit
from kvcodec.kernels._simd import load_long
from kvcodec.kernels.forms import ASKED, END, FIRST, HEAD, LAST, TOKENS, cut_scratch
from kvcodec.kernels.softmax import greatest_logit
from kvcodec.kernels.strip import Tables, align_strip, score_streams, take_query


@jit
def find_peaks(
    items: NDArray[np.int64],
    strips: NDArray[np.int64],
    forms: NDArray[np.int64],
    streams: NDArray[np.int64],
    lookups: NDArray[np.int64],
    numbers: NDArray[np.int32],
    shifts: NDArray[np.int64],
    factors: NDArray[np.int32],
    width: Any,
    per_head: Any,
    widest: Any,
    memory: NDArray[np.uint8],
    peaks: NDArray[np.int32],
) -> None:
    """peaks (heads, strips): the greatest logits of the strips of items. Arguments as of attend_items; streams that are
    scored.
    """
    scratch = cut_scratch(memory.ctypes.data, widest)
    tables = Tables(
        forms.ctypes.data, streams.ctypes.data, streams.shape[0], lookups.ctypes.data, forms.shape[0], per_head
    )
    row = 8 * strips.shape[1]
    for n in range(items.shape[0]):
        first, last, head, end, asked = items[n, FIRST], items[n, LAST], items[n, HEAD], items[n, END], items[n, ASKED]
        for kv_head in range(head, end):
            for i in range(first, last):
                strip, heads = strips.ctypes.data + row * i, (kv_head, kv_head)
                later = strip + row if i + 1 < last else strip
                align_strip(strip, later, heads, tables, scratch)
                for rank in range(per_head):
                    query = take_query(numbers, shifts, factors, width, asked, kv_head, rank, per_head)
                    score_streams(strip, later, heads, tables, query, scratch)
                    peaks[query.head, i] = greatest_logit(scratch.logits, load_long(strip + TOKENS))
