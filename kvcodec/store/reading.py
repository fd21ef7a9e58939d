"""Rows of one record, out of the log: GROUP records decoded, STEP records as they are or decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from kvcodec.codecs.bitmap import Mixed, unpack_kinds
from kvcodec.errors import CorruptRecord
from kvcodec.flash.image import Bytes
from kvcodec.layout import Axis, CodecId, DtypeId, Kind
from kvcodec.log.reader import Log
from kvcodec.spec import CodecSpec
from kvcodec.store.dictionaries import StreamCodecs
from kvcodec.store.entering import KINDS
from kvcodec.store.extents import Coded, Extent, Part
from kvcodec.store.headers import read_spec
from kvcodec.store.index import row_bytes
from kvcodec.store.model import NUMPY_DTYPES, Stream
from kvcodec.store.window import Rows

if TYPE_CHECKING:
    from kvcodec.codecs.bounded import BoundedCodec
    from kvcodec.codecs.predicted_rows import GivenRows
    from kvcodec.store.given import CodedKeys


def read_extent(
    log: Log, extent: Extent, codecs: StreamCodecs, keys: CodedKeys | None = None, *, as_float32: bool
) -> npt.NDArray[Any]:
    """Rows of all tokens of the extent's record (tokens, heads, dim), as 16-bit patterns or float32.

    keys: the coded K of that layer; of V that is predicted from it only the extent's tokens are what was coded.
    """
    coded, stream = extent.coded, codecs.stream
    out = np.empty((coded.tokens, stream.heads, stream.dim), np.float32 if as_float32 else np.uint16)
    for part in coded.parts:
        rows = _read_part(log, extent, part, codecs, keys, as_float32)
        if len(coded.parts) == 1:
            return rows
        out[:, part.first_head : part.first_head + part.heads] = rows
    return out


def read_codes(log: Log, extent: Extent, stream: Stream) -> npt.NDArray[np.uint8]:
    """Coded rows (tokens, heads, row bytes) of the tokens of an extent, which is a STEP record of codes."""
    coded = extent.coded
    assert coded.step is not None
    out = np.empty((coded.tokens, stream.heads, row_bytes(coded.step, stream)), np.uint8)
    for part in coded.parts:
        _, body, _ = load_part(log, coded, part)
        out[:, part.first_head : part.first_head + part.heads] = _step_rows(body, coded, part, stream)
        log.check_unerased(part.place)
    return out[extent.first - coded.first : extent.end - coded.first]


def load_part(log: Log, coded: Coded, part: Part) -> tuple[np.void, Bytes, int]:
    """Header, the body from the part's rows on, and the byte of the file at which those begin."""
    header, body = log.load(part.place)
    at = log.device.file_offset(part.place.block, part.place.offset)
    if (int(header["kind"]) == Kind.GROUP) != (coded.step is None) or int(header["kind"]) not in KINDS:
        raise CorruptRecord(at, "another record than the index names")
    named = [coded.lsn, coded.first, coded.tokens, part.first_head, part.heads]
    fields = ["lsn", "first_token", "tokens", "first_head", "heads"]
    if int(header["kind"]) == Kind.GROUP:
        named, fields = [*named, part.positions], [*fields, "position_bytes"]
    if coded.step is not None:
        named += [coded.step.codec, coded.step.group, coded.step.flags]
        fields += ["codec", "group", "flags"]
    other = coded.step is not None and coded.step.is_trained and read_spec(header, Axis.TOKEN) != coded.step
    short = body.size < part.body_offset + part.size  # a forged sidecar may say anything
    if [int(header[f]) for f in fields] != named or other or short:
        raise CorruptRecord(at, "another record than the index names")
    return header, body[part.body_offset :], at + int(header["header_bytes"]) + part.body_offset


def _read_part(
    log: Log, extent: Extent, part: Part, codecs: StreamCodecs, keys: CodedKeys | None, as_float32: bool
) -> npt.NDArray[Any]:
    coded, stream, dtype = extent.coded, codecs.stream, codecs.dtype
    header, body, at = load_part(log, coded, part)
    spec = read_spec(header) if coded.step is None else coded.step
    given = take_given(extent, spec, codecs, keys, at)
    given = None if given is None else given.heads(part.first_head, part.first_head + part.heads)
    try:
        if coded.step is None:
            rows = _decode_group(header, body, codecs, coded.first, given, as_float32)
        elif coded.step.codec == CodecId.RAW:
            bits = _step_rows(body, coded, part, stream).view("<u2")
            rows = widen(bits, dtype, as_float32=as_float32)
        else:
            codes = _step_rows(body, coded, part, stream)
            codec = codecs.rows(coded.step, given).at(coded.first)
            rows = codec.decode(codes, stream.dim, dtype, as_float32=as_float32)
    except CorruptRecord as error:
        raise CorruptRecord(at + (error.offset if coded.step is None else 0), error.why) from None
    log.check_unerased(part.place)
    return rows


def take_given(
    extent: Extent, spec: CodecSpec, codecs: StreamCodecs, keys: CodedKeys | None, at: int = 0
) -> GivenRows | None:
    """Codes of K for the tokens of a record, if V is predicted from them: those of the extent's, zeros for others that
    are nowhere. at: the byte of the file that an error names. Raises CorruptRecord, MissingDictionary.
    """
    try:
        if not codecs.is_predicted(spec):
            return None
    except CorruptRecord as error:
        raise CorruptRecord(at + error.offset, error.why) from None
    if keys is None or keys.heads != codecs.stream.heads:
        raise CorruptRecord(at, "V is predicted from the codes of its K, of which there is none of as many heads")
    coded = extent.coded
    tokens, needed = range(coded.first, coded.first + coded.tokens), range(extent.first, extent.end)
    return keys.take(spec.basis, tokens, needed, at=at)


def _decode_group(
    header: np.void, body: Bytes, codecs: StreamCodecs, first: int, given: GivenRows | None, as_float32: bool
) -> npt.NDArray[Any]:
    """Rows (tokens, heads, dim) of a GROUP record from token `first` on. CorruptRecord has a byte of the body."""
    spec = read_spec(header)
    codec, dim, dtype = codecs.codec(spec, given).at(first), codecs.stream.dim, codecs.dtype
    tokens, heads, bitmap = (int(header[f]) for f in ("tokens", "heads", "bitmap_bytes"))
    if not bitmap:
        return codec.decode(body.reshape(heads, -1), tokens, dim, dtype, as_float32=as_float32)
    if not spec.bounded:
        raise CorruptRecord(0, f"a row bitmap in a record of {spec}")
    return cast("BoundedCodec", codec).decode_mixed(body, bitmap, tokens, dim, dtype, heads, wide=as_float32)


def check_heads(codecs: StreamCodecs, spec: CodecSpec, body: Bytes, tokens: int, part: Part) -> Mixed:
    """The parts of a GROUP record of `tokens` tokens, from the part's rows on, checked as far as attention needs it.

    Raises MissingDictionary; CorruptRecord with a byte of the body.
    """
    codec, dim = codecs.codec(spec), codecs.stream.dim
    if part.bitmap:
        return cast("BoundedCodec", codec).check_mixed(body, part.bitmap, tokens, dim, part.heads)
    sections = body.reshape(part.heads, -1)
    codec.validate(sections, tokens, dim)
    return Mixed(np.zeros((part.heads, tokens), np.uint8), sections, body[:0])


def rows_of_bounded(log: Log, extent: Extent, codecs: StreamCodecs) -> Rows | None:
    """16-bit rows (tokens of the extent, heads, dim), checked, of a record some of whose rows are not codes; None of
    any other record.
    """
    if not any(part.bitmap for part in extent.coded.parts):
        return None
    rows = read_extent(log, extent, codecs, as_float32=False)
    return rows[extent.first - extent.coded.first : extent.end - extent.coded.first]


def count_kinds(log: Log, extent: Extent, part: Part) -> tuple[int, int, int]:
    """How many rows of an extent's tokens a part of its record keeps as CODES, INT4, RAW, if it has a row bitmap; else
    0 of each. Raises CorruptRecord.
    """
    coded = extent.coded
    if not part.bitmap:
        return 0, 0, 0
    _, body, at = load_part(log, coded, part)
    try:
        kinds = unpack_kinds(body[: part.bitmap], part.heads, coded.tokens)
    except CorruptRecord as error:
        raise CorruptRecord(at + error.offset, error.why) from None
    own = kinds[:, extent.first - coded.first : extent.end - coded.first]
    codes, int4, raw = np.bincount(own.reshape(-1), minlength=3).tolist()
    return codes, int4, raw


def _step_rows(body: Bytes, coded: Coded, part: Part, stream: Stream) -> npt.NDArray[np.uint8]:
    """A copy of the rows of one stream (tokens, heads, row bytes) of a STEP record."""
    assert coded.step is not None
    shape = coded.tokens, part.heads, row_bytes(coded.step, stream)
    return body[: int(np.prod(shape))].reshape(shape).copy()


def widen(bits: Rows, dtype: DtypeId, *, as_float32: bool) -> npt.NDArray[Any]:
    """16-bit patterns as they are, or the float32 numbers that they mean."""
    return bits.view(NUMPY_DTYPES[dtype]).astype(np.float32) if as_float32 else bits
