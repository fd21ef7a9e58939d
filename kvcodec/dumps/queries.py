"""The queries that a dump may carry beside K and V: this project's own convention.

`q.L` (q_heads, positions, dim), post-RoPE like K; `q_pos` (positions,) integers: the token each query stands at;
metadata `logit_scale`, and for models with sliding windows `sliding_window` and `global_layers` ("5,11,17").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcodec.dumps.names import shown
from kvcodec.dumps.rows import metadata_number
from kvcodec.errors import DumpError


@dataclass(frozen=True)
class Queries:
    """Queries of one layer.

    q: float32 (q_heads, positions, dim). positions: int64 (positions,), token numbers. scale: what q·k is
    multiplied with. window: a query at p sees tokens p - window < t <= p; None: all t <= p.
    """

    q: NDArray[np.float32]
    positions: NDArray[np.int64]
    scale: float
    window: int | None


def read_scale(metadata: Mapping[str, str]) -> float:
    """The logit scale. Raises DumpError if there is none, or it is not a positive number."""
    text = metadata.get("logit_scale")
    if text is None:
        raise DumpError("the file has queries but no metadata logit_scale")
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not (math.isfinite(scale) and scale > 0):
        raise DumpError(f"metadata logit_scale is {shown(text)}, want a positive number")
    return scale


def read_window(metadata: Mapping[str, str], layer: int) -> int | None:
    """The sliding window of `layer` in tokens, None if it sees all. Raises DumpError."""
    window, listed = metadata_number(metadata, "sliding_window"), metadata.get("global_layers")
    if window is None or listed is None:
        return None
    if window == 0:
        raise DumpError("metadata sliding_window is 0, want 1 at least")
    layers = [part.strip() for part in listed.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in layers):
        raise DumpError(f"metadata global_layers is {shown(listed)}, want layer numbers parted by commas")
    return None if layer in map(int, layers) else window


def check_queries(name: str, shape: tuple[int, ...], positions: int, kv_heads: int, dim: int) -> None:
    """Raises DumpError unless `shape` is (m * kv_heads, positions, dim)."""
    if len(shape) != 3 or shape[1:] != (positions, dim) or shape[0] == 0 or shape[0] % kv_heads:
        wanted = f"(a multiple of {kv_heads} heads, {positions} positions, {dim} channels)"
        raise DumpError(f"tensor {shown(name)} of shape {list(shape)}: want {wanted}")
