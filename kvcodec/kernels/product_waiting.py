"""Strips whose weights wait to be added to buckets: some are scored, then all of them are added.

The table that scores are looked up in fills the first cache, and so do the buckets: they take turns less often. What is
added is the same, for no bucket is shifted or read while strips wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.kernels._jit import inline, part
from kvcodec.kernels._product_buckets import add_weights, add_weights_of_four, add_weights_of_two
from kvcodec.kernels._simd import load_lanes, load_long, store_lanes, store_long

# Of a group of heads, see product_buckets.py: how many strips are WAITING; behind PLACED, of each, where the codes of
# its block are, and its first and last token there; behind WEIGHED its weights, int32 (heads, 64). Behind HEADER the
# buckets.
WAITING, PLACED, WEIGHED, HEADER = 128, 136, 576, 4672
PLACED_BYTES = 24
MOST_WAITING = np.int64(16)  # strips of one head; of more heads as many times fewer
ROWS = 64  # tokens of a block
ZERO, ONE = np.int64(0), np.int64(1)


@part
def add_waiting(group: Any, heads: Any, groups: Any) -> None:
    """Add the weights of the strips that wait to the buckets of their codes."""
    for n in range(load_long(group + WAITING)):
        place, weights, held = group + PLACED + PLACED_BYTES * n, group + WEIGHED + 4 * ROWS * heads * n, group + HEADER
        codes, first, last = load_long(place), load_long(place + 8), load_long(place + 16)
        if heads == 1:
            add_weights(codes, groups, weights, first, last, held)
        elif heads == 2:
            add_weights_of_two(codes, groups, weights, first, last, held)
        else:
            add_weights_of_four(codes, groups, weights, first, last, held)
    store_long(ZERO, group + WAITING)


@inline
def let_wait(group: Any, heads: Any, groups: Any, codes: Any, span: Any, weights: Any) -> None:
    """Have a strip wait. codes: of its block; span: its first and last token there; weights: of all heads."""
    n = load_long(group + WAITING)
    place, to = group + PLACED + PLACED_BYTES * n, group + WEIGHED + 4 * ROWS * heads * n
    store_long(np.int64(codes), place)
    store_long(np.int64(span[0]), place + 8)
    store_long(np.int64(span[1]), place + 16)
    for t in range(0, 4 * ROWS * heads, 64):
        store_lanes(load_lanes(weights + t), to + t)
    store_long(np.int64(n + ONE), group + WAITING)
    if (n + ONE) * heads == MOST_WAITING:
        add_waiting(group, heads, groups)
