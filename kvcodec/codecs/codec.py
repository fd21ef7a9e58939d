"""What every codec can do, and which one a spec names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.sections import HeadSections
from kvcodec.codecs.uses import TURNED
from kvcodec.errors import DtypeError, ShapeError, SpecError
from kvcodec.layout import CodecId, DtypeId, StreamId
from kvcodec.spec import CodecSpec

if TYPE_CHECKING:
    from kvcodec.codecs.dictionary import Dictionary
    from kvcodec.codecs.predicted_rows import GivenRows
    from kvcodec.codecs.product import Product
    from kvcodec.codecs.trellis import Trellis

    Trained = Dictionary | Product | Trellis

_LINE = 64  # bytes
EXPONENT_BITS = {DtypeId.BFLOAT16: 0x7F80, DtypeId.FLOAT16: 0x7C00}


class Encoded(NamedTuple):
    """Coded records. body: uint8 (records, heads, head bytes). errors: uint16 (records, heads), Q15 of sqrt(sum of
    squared errors / sum of squares), at most 65535; 0 for raw. spec: of the records, where it is not the codec's.
    """

    body: NDArray[np.uint8]
    errors: NDArray[np.uint16]
    spec: CodecSpec | None = None


class Codec(Protocol):
    """A codec of one stream. Rows are 16-bit floats as uint16 bits, (records * tokens, heads, dim).

    A full record holds `token_group` tokens; the last one of a sequence may be shorter.
    """

    @property
    def spec(self) -> CodecSpec: ...

    @property
    def channel_lane(self) -> bool: ...

    @property
    def token_group(self) -> int: ...

    def at(self, first: int) -> Self:
        """The codec of rows whose first one is token `first` of its sequence, which is 0 otherwise: where keys are
        coded as they were before their rotary embedding, rows are turned by their positions.
        """
        ...

    def sections(self, tokens: int, dim: int) -> HeadSections:
        """Bytes of one head's sections in a record of `tokens` rows of `dim` channels."""
        ...

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId, tokens: int, *, alike: bool = False) -> Encoded:
        """Code finite rows (records * tokens, heads, dim) as records of `tokens` tokens each. ShapeError.

        alike: the records are to be of the codec's own spec, whatever could be spared.
        """
        ...

    def decode(
        self,
        body: NDArray[np.uint8],
        tokens: int,
        dim: int,
        dtype: DtypeId,
        *,
        as_float32: bool = False,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Rows (records * tokens, heads, dim) of records of `tokens` tokens: uint16 bits of dtype, or float32.

        body: uint8 (records, heads, head bytes), or (heads, head bytes) of one record; any heads and records of
        what encode returned will do. out: contiguous memory for the rows, which is returned. Raises ShapeError,
        DtypeError for out, or CorruptRecord as validate does, before anything is written.
        """
        ...

    def validate(self, body: NDArray[np.uint8], tokens: int, dim: int) -> None:
        """Raise CorruptRecord with the byte position in `body` of the first field no encoder writes."""
        ...


def codec_for(
    spec: CodecSpec | str, stream: StreamId, trained: Trained | None = None, given: GivenRows | None = None
) -> Codec:
    """The codec of a spec, or of its text, for a stream; `dict` takes a dictionary, `pq` and `tcq` codes of their own,
    and product codes that predict V from the codes of K also those. Raises SpecError.
    """
    spec = CodecSpec.parse(spec)
    if spec.is_trained:
        return _trained_codec(spec, stream, trained, given)
    if given is not None:
        raise SpecError(f"{spec}: codes of K are given, from which it predicts nothing")
    if spec.codec == CodecId.RAW:
        from kvcodec.codecs.raw import RawCodec

        return RawCodec(stream)
    from kvcodec.codecs.grouped import GroupedCodec

    return GroupedCodec(spec, stream)


def _trained_codec(spec: CodecSpec, stream: StreamId, trained: Trained | None, given: GivenRows | None = None) -> Codec:
    from kvcodec.codecs.bounded_shaped import BoundedProduct, BoundedTrellis
    from kvcodec.codecs.bounded_sparse import BoundedSparse
    from kvcodec.codecs.dictionary import Dictionary
    from kvcodec.codecs.predicted_rows import PredictedCodec
    from kvcodec.codecs.product import Product
    from kvcodec.codecs.product_rows import ProductCodec
    from kvcodec.codecs.sparse import SparseCodec
    from kvcodec.codecs.trellis import Trellis
    from kvcodec.codecs.trellis_rows import TrellisCodec

    if trained is not None:
        check_turned(trained, stream)
    if spec.sparse is not None and isinstance(trained, Dictionary):
        return (BoundedSparse if spec.bounded else SparseCodec)(spec, trained)
    if spec.product is not None and isinstance(trained, Product):
        if given is not None:
            return PredictedCodec(spec, trained, given)
        return (BoundedProduct if spec.bounded else ProductCodec)(spec, trained)
    if spec.trellis is not None and isinstance(trained, Trellis):
        return (BoundedTrellis if spec.bounded else TrellisCodec)(spec, trained)
    raise SpecError(f"{spec} needs {spec.wants}")


def check_turned(trained: Trained, stream: StreamId) -> None:
    """Raises SpecError for codes of keys from before their rotary embedding, if the stream carries none."""
    if trained.rotation is not None and stream not in TURNED:
        raise SpecError(f"stream {stream.name.lower()} by codes of keys from before their rotary embedding")


def find_nonfinite(rows: NDArray[np.uint16], dtype: DtypeId) -> tuple[int, int, int] | None:
    """(token, head, channel) of the first NaN or Inf of rows (tokens, heads, dim), or None."""
    from kvcodec.kernels import floats

    tokens, heads, dim = rows.shape
    flat = freeze(rows.reshape(tokens, heads * dim))
    at = int(floats.find_nonfinite(flat, np.uint16(EXPONENT_BITS[dtype])))
    return None if at < 0 else (at // (heads * dim), at // dim % heads, at % dim)


def freeze(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only, contiguous and aligned view, else copy: the one form in which kernels are given what they read.

    Arrays of the caller and read-only maps of files would otherwise each compile every kernel anew.
    """
    frozen = np.require(array, requirements=["C", "A"]).view()
    frozen.flags.writeable = False
    return frozen


def aligned_zeros(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """New bytes that begin with a cache line: rows of tiles that lie across lines take kernels twice the loads."""
    memory = np.zeros(math.prod(shape) + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + math.prod(shape)].reshape(shape)


def take_out(out: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any] | type[np.generic]) -> NDArray[Any]:
    """`out`, or new memory that begins with a cache line. Raises ShapeError, DtypeError."""
    dtype = np.dtype(dtype)
    if out is None:
        size = math.prod(shape) * dtype.itemsize
        memory = np.empty(size + _LINE, np.uint8)
        start = -memory.ctypes.data % _LINE
        return memory[start : start + size].view(dtype).reshape(shape)
    if out.dtype != dtype:
        raise DtypeError(f"out: dtype is {out.dtype}, want {dtype}")
    if out.shape != shape or not (out.flags.c_contiguous and out.flags.writeable and out.flags.aligned):
        raise ShapeError(
            f"out: shape is {out.shape}, strides {out.strides}, want writable contiguous memory of {shape}"
        )
    return out


def split_records(rows: NDArray[np.uint16], tokens: int) -> int:
    """How many records of `tokens` tokens the rows are. Raises ShapeError unless it is a whole number."""
    if rows.ndim != 3 or tokens < 1 or rows.shape[0] % tokens or not rows.shape[1] or not rows.shape[2]:
        raise ShapeError(f"rows: shape is {rows.shape}, want (records * {tokens}, heads, dim)")
    return len(rows) // tokens


def take_body(body: NDArray[np.uint8], head_bytes: int) -> NDArray[np.uint8]:
    """Frozen body as (records, heads, head bytes), its 16- and 32-bit fields aligned. Raises ShapeError."""
    if body.ndim not in (2, 3) or body.shape[-1] != head_bytes:
        raise ShapeError(f"body: shape is {body.shape}, want (records, heads, {head_bytes})")
    body = np.ascontiguousarray(body)
    if body.ctypes.data % 4:
        body = body.copy()
    return freeze(body.reshape(-1, *body.shape[-2:]))
