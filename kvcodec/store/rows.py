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


def count_tokens(tokens: slice | None, held: range) -> int:
    """How many of the held tokens a slice names."""
    return len(held if tokens is None else range(*tokens.indices(held.stop)))


def take_tokens(tokens: Any, held: range) -> npt.NDArray[np.int64]:
    """Token numbers of a slice, an index array, one number, or None for all that are held.

    Negative numbers count from the end. Raises ShapeError for a token that is not held.
    """
    if tokens is None:
        return np.arange(held.start, held.stop, dtype=np.int64)
    if isinstance(tokens, slice):
        if tokens.start is None and (tokens.step or 1) > 0:
            tokens = slice(held.start, tokens.stop, tokens.step)
        elif tokens.stop is None and (tokens.step or 1) < 0 and held.start:
            tokens = slice(tokens.start, held.start - 1, tokens.step)
        index = np.arange(*tokens.indices(held.stop), dtype=np.int64)
    else:
        index = _take_index(tokens, held.stop)
    if index.size and (index.min() < held.start or index.max() >= held.stop):
        outside = int(index.min()) if index.min() < held.start else int(index.max())
        raise ShapeError(f"tokens: {outside} is out of range, the layer holds {held.start} to {held.stop - 1}")
    return index


def _take_index(tokens: Any, length: int) -> npt.NDArray[np.int64]:
    index = np.atleast_1d(np.asarray(tokens))
    if index.size == 0 and index.ndim == 1:
        return np.empty(0, np.int64)
    if index.ndim != 1 or not np.issubdtype(index.dtype, np.integer):
        raise ShapeError(f"tokens: got {index.dtype} of shape {index.shape}, want a slice or whole numbers")
    if int(index.max()) >= 1 << 62 or int(index.min()) < -length:
        raise ShapeError(f"tokens: {int(index.max())} or {int(index.min())} is out of range, there are {length}")
    signed = index.astype(np.int64)
    return np.where(signed < 0, signed + length, signed)
