"""Rows from a caller: shapes and dtypes checked, floats rounded to the model's dtype, NaN and Inf refused."""

from __future__ import annotations

from collections.abc import Sequence
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


def take_streams(
    arrays: Sequence[Any], model: Model, layer: int, streams: Sequence[Stream], firsts: Sequence[int]
) -> list[Rows]:
    """`take_rows` of one array for each stream of a layer, all of as many rows. firsts: tokens of their first rows."""
    if len(arrays) != len(streams):
        names = ", ".join(s.name for s in streams)
        raise ShapeError(f"layer {layer}: {len(arrays)} arrays, want one each for {names}")
    each = zip(arrays, streams, firsts, strict=True)
    taken = [take_rows(own, model, layer, stream, first) for own, stream, first in each]
    counts = [len(rows) for rows in taken]
    if len(set(counts)) > 1:
        raise ShapeError(f"{streams[1].name} (layer {layer}): {counts[1]} tokens, {streams[0].name} has {counts[0]}")
    return taken


def take_tokens(tokens: Any, held: range) -> npt.NDArray[np.int64]:
    """Token numbers of a slice, an index array in any order, one number, or None for all that are held.

    Negative numbers count from the end. Raises ShapeError for a token that is not held.
    """
    if tokens is None or isinstance(tokens, slice):
        own = slice_tokens(tokens, held)
        return np.arange(own.start, own.stop, own.step, dtype=np.int64)
    index = _take_index(tokens, held.stop)
    if index.size:
        _check_held(int(index.min()), int(index.max()), held)
    return index


def slice_tokens(tokens: slice | None, held: range) -> range:
    """Token numbers of a slice, or all that are held. Raises ShapeError for a token that is not held."""
    if tokens is None:
        return held
    if tokens.start is None and (tokens.step or 1) > 0:
        tokens = slice(held.start, tokens.stop, tokens.step)
    elif tokens.stop is None and (tokens.step or 1) < 0 and held.start:
        tokens = slice(tokens.start, held.start - 1, tokens.step)
    own = range(*tokens.indices(held.stop))
    if own:
        _check_held(min(own[0], own[-1]), max(own[0], own[-1]), held)
    return own


def _check_held(least: int, most: int, held: range) -> None:
    if least < held.start or most >= held.stop:
        outside = least if least < held.start else most
        raise ShapeError(f"tokens: {outside} is out of range, the layer holds {held.start} to {held.stop - 1}")


def cut_out(tokens: range, evicted: list[tuple[int, int]]) -> list[range]:
    """What is left of token numbers without those of ascending ranges, in their order."""
    up = tokens if tokens.step > 0 else tokens[::-1]
    parts = []
    for first, end in evicted:
        before, behind = (max(0, -(-(token - up.start) // up.step)) for token in (first, end))
        parts.append(up[:before])
        up = up[behind:]
    parts = [part for part in (*parts, up) if part]
    return parts if tokens.step > 0 else [part[::-1] for part in parts[::-1]]


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


def refuse_evicted(index: npt.NDArray[np.int64], evicted: list[tuple[int, int]]) -> None:
    """Raises ShapeError if one of the token numbers lies in a range that was evicted."""
    found = find_within(index, evicted)
    if found is not None:
        raise ShapeError(f"tokens: {found} was evicted")


def find_within(index: npt.NDArray[np.int64], ranges: Sequence[tuple[int, int]]) -> int | None:
    """The first of the token numbers that lies in one of disjoint ascending ranges; None if none does."""
    if not ranges or not len(index):
        return None
    firsts, ends = np.array(ranges, np.int64).T
    before = np.searchsorted(firsts, index, "right") - 1
    found = index[(before >= 0) & (index < ends[before])]
    return int(found[0]) if len(found) else None
