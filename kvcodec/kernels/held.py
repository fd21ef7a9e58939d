"""The buckets that values go into by their codes, whatever these are: over a dictionary, or product codes.

A KV head's query heads have buckets of one dictionary, or of the product codes of one stream, at a time.
"""

from __future__ import annotations

from typing import Any

from kvcodec.kernels._jit import part
from kvcodec.kernels._simd import load_long
from kvcodec.kernels.buckets import begin_codes, empty_codes
from kvcodec.kernels.forms import GROUPS
from kvcodec.kernels.product_buckets import begin_products, empty_products


def count_beside(per_head: Any) -> Any:
    """Query heads whose buckets are beside each other: 1, 2 or 4."""
    return min(per_head, 2) if per_head < 3 else 4


@part
def empty_held(held: Any, buckets: Any, heads: Any, per_head: Any, sinks: Any, scratch: Any) -> None:
    """Add a KV head's buckets to the outputs of its query heads. sinks: the first one's state and outputs, and how many
    channels.
    """
    if load_long(held + GROUPS):
        empty_products(held, buckets, heads, per_head, sinks, scratch)
    else:
        empty_codes(held, buckets, heads, per_head, sinks, scratch)


@part
def turn_held(held: Any, other: Any, buckets: Any, heads: Any, per_head: Any, sinks: Any, scratch: Any) -> Any:
    """Whose a KV head's buckets are after a strip: of another dictionary or other product codes, whose address it is,
    or for 0 as they were.
    """
    if other == 0 or other == held:
        return held
    if held:
        empty_held(held, buckets, heads, per_head, sinks, scratch)
    if load_long(other + GROUPS):
        begin_products(other, buckets, heads, per_head)
    else:
        begin_codes(other, buckets, heads, per_head)
    return other
