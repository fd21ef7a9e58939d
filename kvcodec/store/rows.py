"""Rows from a caller: shapes and dtypes checked, floats rounded to the model's dtype, NaN and Inf refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvcodec.codecs import find_nonfinite
from kvcodec.errors import DtypeError, NonFiniteError, ShapeError
from kvcodec.store.model import Model, Stream
from kvcodec.store.window import Rows


def take_rows(array: Any, model: Model, layer: int, stream: Stream, first_token: int) -> Rows:
    """Bits (tokens, heads, dim) of `array`, whose first row is token `first_token` of its sequence.

    float32 is rounded to the model's dtype, to nearest even. Raises ShapeError, DtypeError, NonFiniteError.
    """
    where = f"{stream.name} (layer {layer})"
    if not isinstance(array, np.ndarray):
        raise DtypeError(f"{where}: got {type(array).__name__}, want a numpy array")
    if array.ndim != 3 or array.shape[1:] != (stream.heads, stream.dim):
        raise ShapeError(f"{where}: shape is {array.shape}, want (tokens, {stream.heads}, {stream.dim})")
    want = model.numpy_dtype
    if array.dtype == np.float32:
        with np.errstate(over="ignore"):  # what overflows becomes Inf and is refused below
            array = array.astype(want)
    elif array.dtype != want:
        raise DtypeError(f"{where}: dtype is {array.dtype}, want {want} or float32")
    bits: Rows = np.ascontiguousarray(array).view(np.uint16)
    bad = find_nonfinite(bits, model.dtype_id)
    if bad is not None:
        token, head, channel = bad
        raise NonFiniteError(layer, stream.name, first_token + token, head, channel)
    return bits


def count_tokens(tokens: slice | None, length: int) -> int:
    """How many tokens of a sequence a slice names."""
    return len(range(*(tokens or slice(None)).indices(length)))


def take_tokens(tokens: Any, length: int) -> npt.NDArray[np.int64]:
    """Token numbers of a slice, an index array, one number, or None for all. Raises ShapeError out of range."""
    if tokens is None:
        tokens = slice(None)
    if isinstance(tokens, slice):
        return np.arange(*tokens.indices(length), dtype=np.int64)
    index = np.atleast_1d(np.asarray(tokens))
    if index.size == 0 and index.ndim == 1:
        return np.empty(0, np.int64)
    if index.ndim != 1 or not np.issubdtype(index.dtype, np.integer):
        raise ShapeError(f"tokens: got {index.dtype} of shape {index.shape}, want a slice or whole numbers")
    low, high = int(index.min()), int(index.max())
    if low < -length or high >= length:
        raise ShapeError(f"tokens: {low if low < -length else high} is out of range, the sequence has {length}")
    signed = index.astype(np.int64)
    return np.where(signed < 0, signed + length, signed)
