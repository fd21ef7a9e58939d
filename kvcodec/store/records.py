"""Rows to records and back: GROUP records of coded token groups, STEP records of raw rows (formats/record.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvcodec.codecs import Encoded, codec_for
from kvcodec.codecs.rows import RowCodec
from kvcodec.flash.image import Bytes
from kvcodec.layout import ALIGNMENT, CodecId, DtypeId, Kind, align
from kvcodec.log.frame import Record, new_record
from kvcodec.spec import CodecSpec
from kvcodec.store.model import Stream
from kvcodec.store.window import Rows

RAW = CodecSpec(CodecId.RAW)
Codes = npt.NDArray[np.uint8]
_MAX_STEP = 1 << 20


def group_records(
    sequence: int, layer: int, stream: Stream, first: int, rows: Rows, spec: CodecSpec, dtype: DtypeId, tokens: int
) -> list[Record]:
    """GROUP records of `tokens` tokens each for rows (n * tokens, heads, dim), the first token being `first`."""
    encoded = codec_for(spec, stream.id).encode(rows, dtype, tokens)
    return _group_records(sequence, layer, stream, first, encoded, spec, tokens)


def _group_records(
    sequence: int, layer: int, stream: Stream, first: int, encoded: Encoded, spec: CodecSpec, tokens: int
) -> list[Record]:
    sections = codec_for(spec, stream.id).sections(tokens, stream.dim)
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


def laid_records(
    sequence: int, layer: int, stream: Stream, first: int, coded: Codes, spec: CodecSpec, tokens: int
) -> list[Record]:
    """GROUP records of `tokens` tokens each for rows that were coded one by one (n * tokens, heads, row bytes)."""
    return _group_records(
        sequence, layer, stream, first, RowCodec(spec, stream.id).lay(coded, tokens, stream.dim), spec, tokens
    )


class OpenSpan(NamedTuple):
    """Rows of one stream that are to be logged as they are: 16-bit patterns (tokens, heads, dim), or codes of `spec`
    (tokens, heads, row bytes).
    """

    layer: int
    stream: Stream
    first: int
    rows: npt.NDArray[Any]
    spec: CodecSpec = RAW

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return int(np.prod(self.rows.shape[1:])) * self.rows.itemsize

    @property
    def kind(self) -> tuple[int, int, CodecSpec, int]:
        """What spans must share to stand in one STEP record."""
        return self.first, len(self.rows), self.spec, self.stream.heads


def step_records(sequence: int, spans: Sequence[OpenSpan], *, limit: int) -> list[Record]:
    """STEP records for open rows, as few as their shapes and `limit` (bytes of a body) allow.

    Layers that follow each other with the same tokens, streams, codec and heads share a record. One token of one layer
    may exceed the limit: such a record can still be split by heads.
    """
    limit = min(limit, _MAX_STEP)
    records = []
    for run in _runs(spans, limit):
        chunk = max(1, limit // sum(span.token_bytes for span in run))
        for at in range(0, len(run[0].rows), chunk):
            part = [span._replace(first=span.first + at, rows=span.rows[at : at + chunk]) for span in run]
            records.append(_step_record(sequence, part, 0))
    return records


def _runs(spans: Sequence[OpenSpan], limit: int) -> list[list[OpenSpan]]:
    """Spans of whole layers that can share a STEP record: consecutive layers with the same streams and kind."""
    runs: list[list[OpenSpan]] = []
    by_layer: dict[tuple[int, tuple[int, int, CodecSpec, int]], list[OpenSpan]] = {}
    for span in sorted(spans, key=lambda s: (s.layer, s.stream.id)):
        by_layer.setdefault((span.layer, span.kind), []).append(span)
    ended: dict[tuple[tuple[int, int, CodecSpec, int], tuple[int, ...]], list[OpenSpan]] = {}
    for (layer, kind), own in by_layer.items():
        key = kind, tuple(span.stream.id for span in own)
        last = ended.get(key)
        if last and last[-1].layer == layer - 1 and sum(s.rows.nbytes for s in last + own) <= limit:
            last.extend(own)
        else:
            runs.append(own)
            ended[key] = own
    return runs


def _step_record(sequence: int, spans: Sequence[OpenSpan], first_head: int) -> Record:
    heads, spec = spans[0].rows.shape[1], spans[0].spec
    record = new_record(
        Kind.STEP,
        b"".join(np.ascontiguousarray(span.rows).tobytes() for span in spans),
        sequence=sequence,
        codec=spec.codec,
        group=spec.group,
        flags=spec.flags,
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
