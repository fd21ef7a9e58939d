"""Rows to records and back: GROUP records of coded token groups, STEP records of raw rows (formats/record.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvcodec.codecs import Encoded, codec_for
from kvcodec.errors import CorruptRecord
from kvcodec.flash.image import Bytes
from kvcodec.layout import ALIGNMENT, CodecId, DtypeId, Kind, align
from kvcodec.log.frame import Record, new_record
from kvcodec.log.reader import Log
from kvcodec.spec import CodecSpec
from kvcodec.store.extents import Coded, Extent, Part
from kvcodec.store.index import read_spec
from kvcodec.store.model import NUMPY_DTYPES, Stream
from kvcodec.store.window import Rows

RAW = CodecSpec(CodecId.RAW)
_MAX_STEP = 1 << 20


def group_records(
    sequence: int, layer: int, stream: Stream, first: int, rows: Rows, spec: CodecSpec, dtype: DtypeId, tokens: int
) -> list[Record]:
    """GROUP records of `tokens` tokens each for rows (n * tokens, heads, dim), the first token being `first`."""
    codec = codec_for(spec, stream.id)
    encoded: Encoded = codec.encode(rows, dtype, tokens)
    sections = codec.sections(tokens, stream.dim)
    fields: dict[str, int] = {
        "codec": spec.codec, "stream": stream.id, "axis": spec.axis, "flags": spec.flags, "group": spec.group,
        "first_layer": layer, "layers": 1, "head_dim": stream.dim, "all_heads": stream.heads, "tokens": tokens,
        "rows": tokens, "metadata_bytes": sections.metadata, "code_bytes": sections.codes,
    }  # fmt: skip
    return [
        _group_record(sequence, first + n * tokens, 0, body, errors, fields)
        for n, (body, errors) in enumerate(zip(encoded.body, encoded.errors, strict=True))
    ]


def _group_record(
    sequence: int, first: int, first_head: int, body: Bytes, errors: npt.NDArray[np.uint16], fields: dict[str, int]
) -> Record:
    """body (heads, bytes), errors (heads,)."""
    heads = len(body)
    figures = np.zeros(align(2 * heads, ALIGNMENT), np.uint8)
    figures[: 2 * heads] = errors.astype("<u2").view(np.uint8)
    record = new_record(
        Kind.GROUP,
        np.concatenate([figures, body.reshape(-1)]),
        sequence=sequence,
        first_token=first,
        first_head=first_head,
        heads=heads,
        error_bytes=len(figures),
        **fields,
    )

    def split(n: int) -> tuple[Record, Record]:
        return (
            _group_record(sequence, first, first_head, body[:n], errors[:n], fields),
            _group_record(sequence, first, first_head + n, body[n:], errors[n:], fields),
        )

    record.pieces, record.split = heads, split
    return record


class OpenSpan(NamedTuple):
    """Raw rows of one stream that are to be logged as they are."""

    layer: int
    stream: Stream
    first: int
    rows: Rows


def step_records(sequence: int, spans: Sequence[OpenSpan], *, limit: int) -> list[Record]:
    """STEP records for raw rows, as few as their shapes and `limit` (bytes of a body) allow.

    Layers that follow each other with the same tokens, streams and heads share a record. One token of one layer
    may exceed the limit: such a record can still be split by heads.
    """
    limit = min(limit, _MAX_STEP)
    records = []
    for run in _runs(spans, limit):
        per_token = sum(span.stream.row_bytes for span in run)
        chunk = max(1, limit // per_token)
        tokens = len(run[0].rows)
        for at in range(0, tokens, chunk):
            part = [span._replace(first=span.first + at, rows=span.rows[at : at + chunk]) for span in run]
            records.append(_step_record(sequence, part, 0))
    return records


def _runs(spans: Sequence[OpenSpan], limit: int) -> list[list[OpenSpan]]:
    """Spans of whole layers that can share a STEP record: consecutive layers, like tokens, streams and heads."""
    layers: dict[tuple[int, int, int], list[OpenSpan]] = {}
    for span in sorted(spans, key=lambda s: (s.layer, s.stream.id)):
        layers.setdefault((span.layer, span.first, len(span.rows)), []).append(span)
    runs: list[list[OpenSpan]] = []
    for own in layers.values():
        last = runs[-1] if runs else []
        mergeable = (
            last
            and own[0].layer == last[-1].layer + 1
            and (own[0].first, len(own[0].rows)) == (last[0].first, len(last[0].rows))
            and {s.stream.id for s in own} == {s.stream.id for s in last}
            and {s.stream.heads for s in own + last} == {own[0].stream.heads}
            and sum(s.rows.nbytes for s in own + last) <= limit
        )
        if mergeable:
            last.extend(own)
        else:
            runs.extend([own] if len({s.stream.heads for s in own}) == 1 else [[s] for s in own])
    return runs


def _step_record(sequence: int, spans: Sequence[OpenSpan], first_head: int) -> Record:
    heads = spans[0].rows.shape[1]
    record = new_record(
        Kind.STEP,
        b"".join(span.rows.astype("<u2", copy=False).tobytes() for span in spans),
        sequence=sequence,
        codec=CodecId.RAW,
        streams=sum(1 << i for i in {span.stream.id for span in spans}),
        first_layer=spans[0].layer,
        layers=spans[-1].layer - spans[0].layer + 1,
        first_head=first_head,
        heads=heads,
        all_heads=spans[0].stream.heads,
        tokens=len(spans[0].rows),
        first_token=spans[0].first,
    )

    def split(n: int) -> tuple[Record, Record]:
        low = [span._replace(rows=span.rows[:, :n]) for span in spans]
        high = [span._replace(rows=span.rows[:, n:]) for span in spans]
        return _step_record(sequence, low, first_head), _step_record(sequence, high, first_head + n)

    record.pieces, record.split = heads, split
    return record


def read_extent(log: Log, extent: Extent, stream: Stream, dtype: DtypeId, *, as_float32: bool) -> npt.NDArray[Any]:
    """Rows of all tokens of the extent's record (tokens, heads, dim), as 16-bit patterns or float32."""
    coded = extent.coded
    out = np.empty((coded.tokens, stream.heads, stream.dim), np.float32 if as_float32 else np.uint16)
    for part in coded.parts:
        rows = _read_part(log, coded, part, stream, dtype, as_float32)
        if len(coded.parts) == 1:
            return rows
        out[:, part.first_head : part.first_head + part.heads] = rows
    return out


def _read_part(
    log: Log, coded: Coded, part: Part, stream: Stream, dtype: DtypeId, as_float32: bool
) -> npt.NDArray[Any]:
    header, body = log.load(part.place)
    named = (coded.lsn, coded.first, coded.tokens, part.first_head, part.heads)
    at = log.device.file_offset(part.place.block, part.place.offset)
    if tuple(int(header[f]) for f in ("lsn", "first_token", "tokens", "first_head", "heads")) != named:
        raise CorruptRecord(at, "another record than the index names")
    if int(header["kind"]) == Kind.GROUP:
        codec = codec_for(read_spec(header), stream.id)
        heads = body[part.body_offset :].reshape(part.heads, -1)
        try:
            rows = codec.decode(heads, coded.tokens, stream.dim, dtype, as_float32=as_float32)
        except CorruptRecord as error:
            start = at + int(header["header_bytes"]) + part.body_offset
            raise CorruptRecord(start + error.offset, error.why) from None
    else:
        size = 2 * coded.tokens * part.heads * stream.dim
        bits = body[part.body_offset : part.body_offset + size].copy().view("<u2")
        rows = widen(bits.reshape(coded.tokens, part.heads, stream.dim), dtype, as_float32=as_float32)
    log.check_unerased(part.place)
    return rows


def widen(bits: Rows, dtype: DtypeId, *, as_float32: bool) -> npt.NDArray[Any]:
    """16-bit patterns as they are, or the float32 numbers that they mean."""
    return bits.view(NUMPY_DTYPES[dtype]).astype(np.float32) if as_float32 else bits
