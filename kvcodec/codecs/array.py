"""Arrays outside any log: encode_array, decode_array."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from kvcodec.codecs.codec import Codec, codec_for, find_nonfinite, take_out
from kvcodec.errors import DtypeError, NonFiniteError, ShapeError, SpecError
from kvcodec.layout import DtypeId, StreamId
from kvcodec.sparse_spec import Pursuit
from kvcodec.spec import CodecSpec

if TYPE_CHECKING:
    from kvcodec.codecs.codec import Trained
    from kvcodec.codecs.predicted_rows import GivenRows

MAX_POSITION = 1 << 48
_DTYPES: dict[DtypeId, np.dtype[Any]] = {
    DtypeId.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DtypeId.FLOAT16: np.dtype(np.float16),
}


@dataclass(frozen=True, eq=False)
class EncodedArray:
    """Coded rows of one stream: tokens (int) x heads x dim. dictionary: of the codecs `dict`, `pq` and `tcq`. first:
    position of the first token, which matters for keys that are coded as they were before their rotary embedding, and
    for V that is predicted from K. given: for that, the coded K.

    full: uint8 (records, heads, head bytes), records of the codec's token_group; tail: uint8 (0 or 1, heads, head
    bytes), the shorter record of the rest. errors: uint16 (records, heads), Q15 relative error of each.
    """

    spec: CodecSpec
    stream: StreamId
    dtype: DtypeId
    tokens: int
    heads: int
    dim: int
    full: NDArray[np.uint8]
    tail: NDArray[np.uint8]
    errors: NDArray[np.uint16]
    dictionary: Trained | None = None
    first: int = 0
    given: EncodedArray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of scales, zeros and codes, padding included."""
        return self.full.nbytes + self.tail.nbytes

    @property
    def ratio(self) -> float:
        """Bytes of the 16-bit rows over nbytes; 1.0 of no rows."""
        return 2 * self.tokens * self.heads * self.dim / self.nbytes if self.nbytes else 1.0


def encode_array(
    x: NDArray[Any],
    spec: CodecSpec | str,
    *,
    stream: StreamId | str = "k",
    dtype: DTypeLike | None = None,
    dictionary: Trained | None = None,
    pursuit: str | Pursuit | None = None,
    first: int = 0,
    given: EncodedArray | None = None,
) -> EncodedArray:
    """Code x (tokens, heads, dim) of bfloat16, float16 or float32, with a `dict` spec over a dictionary, with `pq`
    or `tcq` by product or trellis codes.

    dtype: the 16-bit dtype that float32 is first rounded to, bfloat16 unless given; of 16-bit arrays their own.
    pursuit: omp, ormp or mp, how atoms are chosen, the dictionary's unless given. first: position of the first row,
    where keys are coded as they were before their rotary embedding. given: where V is predicted from the codes of K,
    the encoded K of these tokens, or of more of them, and of as many heads.
    Raises DtypeError, ShapeError, SpecError; NonFiniteError for a NaN, an Inf, or a float32 beyond dtype.

    >>> encode_array(np.zeros((64, 8, 128), np.float16), "int4/channel/g64").nbytes
    36864
    """
    stream = _take_stream(stream)
    _check_first(first)
    if pursuit is not None:
        dictionary = _with_pursuit(dictionary, Pursuit.parse(pursuit))
    codec = codec_for(spec, stream, dictionary, _take_given(given))
    if not isinstance(x, np.ndarray):
        raise DtypeError(f"x: type is {type(x).__name__}, want a numpy array")
    if x.ndim != 3 or not x.shape[1] or not x.shape[2]:
        raise ShapeError(f"x: shape is {x.shape}, want (tokens, heads, dim) with heads and dim above 0")
    rows, dtype_id = _take_rows(x, dtype)
    if bad := find_nonfinite(rows, dtype_id):
        raise NonFiniteError(None, stream.name.lower(), *bad)
    tokens, heads, dim = rows.shape
    split = tokens - tokens % codec.token_group
    full = codec.at(first).encode(rows[:split], dtype_id, codec.token_group, alike=True)
    rest = codec.at(first + split).encode(rows[split:], dtype_id, tokens - split or 1, alike=True)
    errors = np.concatenate([full.errors, rest.errors])
    return EncodedArray(
        codec.spec, stream, dtype_id, tokens, heads, dim, full.body, rest.body, errors, dictionary, first, given
    )


def _check_first(first: int) -> None:
    if not isinstance(first, int | np.integer) or not 0 <= first < MAX_POSITION:
        raise SpecError(f"first is {first!r}, want the position of the first row, a whole number below 2**48")


def _take_given(given: EncodedArray | None) -> GivenRows | None:
    from kvcodec.codecs.given import given_rows

    if given is not None and not isinstance(given, EncodedArray):
        raise DtypeError(f"given: type is {type(given).__name__}, want an EncodedArray of K")
    return None if given is None else given_rows(given)


def _with_pursuit(trained: Trained | None, pursuit: Pursuit) -> Trained | None:
    from kvcodec.codecs.dictionary import Dictionary

    return replace(trained, pursuit=pursuit) if isinstance(trained, Dictionary) else trained


def decode_array(
    encoded: EncodedArray,
    tokens: slice | NDArray[np.integer[Any]] | None = None,
    dtype: DTypeLike | None = None,
    *,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Rows (chosen tokens, heads, dim) in the dtype that was coded, or in float32 if dtype says so.

    tokens: a slice, an array of token numbers (each within 0 to encoded.tokens - 1, in any order), or None for
    all. Only records that hold a chosen token are decoded. out: contiguous memory of that shape and dtype, which is
    filled and returned; whole records in order are decoded right into it. Raises ShapeError, DtypeError,
    CorruptRecord.
    """
    model_dtype = _DTYPES[encoded.dtype]
    wanted = model_dtype if dtype is None else np.dtype(dtype)
    if wanted not in (model_dtype, np.float32):
        raise DtypeError(f"dtype is {wanted}, want {model_dtype} or float32")
    chosen = _take_tokens(tokens, encoded.tokens)
    codec = codec_for(encoded.spec, encoded.stream, encoded.dictionary, _take_given(encoded.given))
    out = take_out(out, (len(chosen), encoded.heads, encoded.dim), wanted)
    if np.may_share_memory(out, encoded.full) or np.may_share_memory(out, encoded.tail):
        raise ShapeError("out: shares memory with what is to be decoded")
    rows = out if wanted == np.float32 else out.view(np.uint16)
    split = len(encoded.full) * codec.token_group
    _decode_into(rows, chosen < split, chosen, encoded.full, codec.token_group, 0, codec, encoded)
    _decode_into(rows, chosen >= split, chosen - split, encoded.tail, encoded.tokens - split, split, codec, encoded)
    return out


def _decode_into(
    out: NDArray[Any],
    here: NDArray[np.bool_],
    chosen: NDArray[np.int64],
    body: NDArray[np.uint8],
    record_tokens: int,
    offset: int,
    codec: Codec,
    encoded: EncodedArray,
) -> None:
    """Fill out[here] with the rows chosen[here], counted from the first record of body, which begins at `offset`."""
    if not here.any():
        return
    wanted = chosen[here]
    records = np.unique(wanted // record_tokens)
    whole = np.arange(records[0] * record_tokens, (records[-1] + 1) * record_tokens)
    start = int(np.argmax(here))
    place = out[start : start + len(wanted)] if np.array_equal(wanted, whole) else None
    if place is not None and not here[start : start + len(wanted)].all():
        place = None
    arguments: Any = record_tokens, encoded.dim, encoded.dtype
    parts = []
    for run in np.split(records, np.flatnonzero(np.diff(records) > 1) + 1):
        first, last = int(run[0]), int(run[-1]) + 1
        own = codec.at(encoded.first + offset + first * record_tokens)
        parts.append(own.decode(body[first:last], *arguments, as_float32=out.dtype == np.float32, out=place))
    if place is None:
        at = np.searchsorted(records, wanted // record_tokens) * record_tokens + wanted % record_tokens
        out[here] = (parts[0] if len(parts) == 1 else np.concatenate(parts))[at]


def _take_stream(stream: StreamId | str) -> StreamId:
    if isinstance(stream, StreamId):
        return stream
    found = next((s for s in StreamId if s.name.lower() == stream), None)
    if found is None:
        raise SpecError(f"stream is {stream!r}, want one of {', '.join(s.name.lower() for s in StreamId)}")
    return found


def _take_rows(x: NDArray[Any], dtype: DTypeLike | None) -> tuple[NDArray[np.uint16], DtypeId]:
    """Bits of x as a 16-bit dtype, and which."""
    own = next((d for d, t in _DTYPES.items() if x.dtype == t), None)
    asked = None if dtype is None else next((d for d, t in _DTYPES.items() if np.dtype(dtype) == t), None)
    if dtype is not None and asked is None:
        raise DtypeError(f"dtype is {np.dtype(dtype)}, want bfloat16 or float16")
    if own is None and x.dtype != np.float32:
        raise DtypeError(f"x: dtype is {x.dtype}, want bfloat16, float16 or float32")
    if own is not None and asked not in (None, own):
        raise DtypeError(f"x: dtype is {x.dtype}, want {np.dtype(dtype)}")
    dtype_id = own or asked or DtypeId.BFLOAT16
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused as an infinity
        halves = np.ascontiguousarray(x.astype(_DTYPES[dtype_id], copy=False))
    return halves.view(np.uint16), dtype_id


def _take_tokens(tokens: slice | NDArray[np.integer[Any]] | None, count: int) -> NDArray[np.int64]:
    """Token numbers that were asked for."""
    if tokens is None:
        return np.arange(count)
    if isinstance(tokens, slice):
        return np.arange(count)[tokens]
    chosen = np.asarray(tokens)
    if chosen.ndim != 1:
        raise ShapeError(f"tokens: shape is {chosen.shape}, want a slice or one axis of token numbers")
    if chosen.size and not np.issubdtype(chosen.dtype, np.integer):
        raise DtypeError(f"tokens: dtype is {chosen.dtype}, want integers")
    if chosen.size and (chosen.min() < 0 or chosen.max() >= count):
        worst = chosen.min() if chosen.min() < 0 else chosen.max()
        raise ShapeError(f"tokens: {worst} is out of range, want 0 to {count - 1}")
    return chosen.astype(np.int64)
