"""What a dump may hold beside K, V and queries, all by this project's own names, for training.

`k_pre.L`: K before its rotary embedding, of the shape and dtype of `k.L`. `q_cov.L` and `q_cov_pre.L`: second moment
of the queries, after and before rotation, (kv_heads, dim, dim). `k_grad.L`, `k_grad_pre.L`, `v_grad.L`: second moment
of the gradients of the model's loss with respect to rows times their norms. `o_cov.L`: W^T W of the heads' parts of the
output projection. All of that shape; `python -m tools.capture --help` says more. `rope_freq.L`: (pairs,) angles a
token. Metadata `rope_bases`, `rope_dims`, `rope_scales`: numbers parted by commas, one for each layer; `rope_layout`:
"halves".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.dumps.dump import Dump
from kvcodec.dumps.names import shown
from kvcodec.errors import DtypeError, DumpError
from kvcodec.layout import StreamId

_FLOATING = ("BF16", "F16", "F32", "F64")


def has_unrotated(dump: Dump, layer: int) -> bool:
    """Whether the file holds K of a layer from before rotation. Raises DumpError, DtypeError if it is not like K."""
    name = f"k_pre.{layer}"
    entry = dump.find(name)
    if entry is None:
        return False
    like = dump.find_rows(layer, StreamId.K)
    if like is None or entry.shape != like.shape:
        raise DumpError(f"{dump.path}: tensor {shown(name)} of shape {list(entry.shape)}, want that of K")
    if entry.code != like.code or entry.flaw or entry.code not in _FLOATING:
        raise DtypeError(f"{dump.path}: tensor {shown(name)} is {entry.flaw or entry.code}, want {like.code} as K is")
    return True


def read_unrotated(dump: Dump, layer: int, start: int, stop: int) -> NDArray[Any]:
    """Rows (tokens, heads, dim) of K from before rotation; `has_unrotated` has said that they are there."""
    return dump.rows_like(f"k_pre.{layer}", layer, StreamId.K, start, stop)


def read_numbers(dump: Dump, name: str, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """A tensor of finite numbers, None if the file has none of that name. -1 in `shape` is any size.

    Raises DumpError for another shape or a number that is not finite, DtypeError for a dtype that is not floating.
    """
    entry = dump.find(name)
    if entry is None:
        return None
    what = f"{dump.path}: tensor {shown(name)}"
    if entry.code not in _FLOATING or entry.flaw or entry.dtype is None:
        raise DtypeError(f"{what} is {entry.flaw or entry.code}, want {', '.join(_FLOATING)}")
    if len(entry.shape) != len(shape) or any(
        want not in (-1, got) for got, want in zip(entry.shape, shape, strict=True)
    ):
        raise DumpError(f"{what} of shape {list(entry.shape)}, want {list(shape)}")
    wide = dump.numbers(name).astype(np.float64)
    if not np.isfinite(wide).all():
        raise DumpError(f"{what}: a NaN or an infinity")
    return wide


def layer_number(dump: Dump, key: str, layer: int) -> float | None:
    """Of metadata such as rope_bases, the number of a layer; one number is for all. None without the key.

    Raises DumpError for a text that is no such list.
    """
    text = dump.metadata.get(key)
    if text is None:
        return None
    parts = text.split(",")
    try:
        return float(parts[0 if len(parts) == 1 else layer])
    except (ValueError, IndexError):
        raise DumpError(f"{dump.path}: metadata {key} is {shown(text)}, want a number for each layer") from None
