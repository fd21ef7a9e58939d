"""Rows to records and back: GROUP records of coded token groups, STEP records of raw rows (formats/record.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from kvcodec.codecs import Codec, Encoded
from kvcodec.codecs.bitmap import take_mixed
from kvcodec.codecs.rows import RowCodec
from kvcodec.codecs.sizes import head_sections
from kvcodec.flash.image import Bytes
from kvcodec.layout import ALIGNMENT, FRAME_OVERHEAD, CodecId, DtypeId, Kind, align
from kvcodec.log.frame import Record, new_headers, new_record
from kvcodec.spec import CodecSpec
from kvcodec.store.headers import sparse_fields
from kvcodec.store.model import Stream
from kvcodec.store.positions import Positions, pack_positions
from kvcodec.store.window import Rows

if TYPE_CHECKING:
    from kvcodec.codecs.bounded import BoundedCodec

RAW = CodecSpec(CodecId.RAW)
Codes = npt.NDArray[np.uint8]
_MAX_STEP = 1 << 20
_STEP_SHARE = 4  # a STEP record takes at most this share of an erase block


def step_limit(block_bytes: int) -> int:
    """Bytes of the body of a STEP record that leave room for others in an erase block."""
    return max(1, (block_bytes - FRAME_OVERHEAD) // _STEP_SHARE)


def group_records(
    sequence: int, layer: int, stream: Stream, first: int, rows: Rows, codec: Codec, dtype: DtypeId, tokens: int
) -> list[Record]:
    """GROUP records of `tokens` tokens each for rows (n * tokens, heads, dim), the first token being `first`."""
    if codec.spec.bounded:
        return _bounded_records(sequence, layer, stream, first, cast("BoundedCodec", codec), rows, dtype, tokens)
    encoded = codec.at(first).encode(rows, dtype, tokens)
    return _group_records(sequence, layer, stream, first, encoded, encoded.spec or codec.spec, tokens)


def _group_records(
    sequence: int, layer: int, stream: Stream, first: int, encoded: Encoded, spec: CodecSpec, tokens: int
) -> list[Record]:
    """The records' headers and bodies are rows of one array each: what a record costs in Python is its own rows."""
    bodies = _group_bodies(encoded)
    headers = _group_headers(sequence, layer, stream, range(first, first + len(bodies) * tokens, tokens), spec, tokens)
    return [_group_record(headers[n, ...], bodies[n]) for n in range(len(bodies))]


def _bounded_records(
    sequence: int, layer: int, stream: Stream, first: int, codec: BoundedCodec, rows: Rows, dtype: DtypeId, tokens: int
) -> list[Record]:
    """Records some of whose rows may not be codes."""
    records = []
    for n, one in enumerate(codec.at(first).encode_records(rows, dtype, tokens)):
        header = _group_headers(sequence, layer, stream, [first + n * tokens], one.spec, tokens)[0, ...]
        header["bitmap_bytes"] = one.mixed.bitmap_bytes
        records.append(_group_record(header, _body_of(one.errors, one.mixed.join())))
    return records


def _group_headers(
    sequence: int, layer: int, stream: Stream, firsts: Sequence[int], spec: CodecSpec, tokens: int
) -> npt.NDArray[np.void]:
    sections = head_sections(spec, stream.id, tokens, stream.dim)
    return new_headers(
        Kind.GROUP, len(firsts), sequence=sequence, first_token=firsts,
        codec=spec.codec, stream=stream.id, axis=spec.axis, flags=spec.flags, group=spec.group, first_layer=layer,
        layers=1, heads=stream.heads, head_dim=stream.dim, all_heads=stream.heads, tokens=tokens, rows=tokens,
        error_bytes=align(2 * stream.heads, ALIGNMENT), metadata_bytes=sections.metadata, code_bytes=sections.codes,
        **sparse_fields(spec),
    )  # fmt: skip


def _group_bodies(encoded: Encoded) -> Codes:
    """Bodies (records, bytes): the errors of the heads, padded, then the heads."""
    records, heads, head_bytes = encoded.body.shape
    figures = align(2 * heads, ALIGNMENT)
    bodies = np.empty((records, figures + heads * head_bytes), np.uint8)
    bodies[:, : 2 * heads] = encoded.errors.astype("<u2", copy=False).view(np.uint8)
    bodies[:, 2 * heads : figures] = 0
    bodies[:, figures:] = encoded.body.reshape(records, -1)
    return bodies


def _body_of(errors: npt.NDArray[np.uint16], rest: Codes) -> Codes:
    """The body of one record: the errors of the heads, padded, and the rest."""
    figures = np.zeros(align(2 * len(errors), ALIGNMENT), np.uint8)
    figures[: 2 * len(errors)] = errors.astype("<u2").view(np.uint8)
    return np.concatenate([figures, rest])


def summary_record(
    sequence: int, layer: int, stream: Stream, first: int, rows: Rows, codec: Codec, dtype: DtypeId, own: Positions
) -> Record:
    """The raw GROUP record of rows (n, heads, dim) that stand for several tokens, from token number `first` on.

    own: (n,) where they stand, and who may see them.
    """
    header = _group_headers(sequence, layer, stream, [first], RAW, len(rows))[0, ...]
    body, positions = _group_bodies(codec.encode(rows, dtype, len(rows)))[0], pack_positions(own)
    header["position_bytes"] = len(positions)
    return _group_record(header, _insert_positions(body, int(header["error_bytes"]), positions))


def _insert_positions(body: Codes, at: int, positions: Codes) -> Codes:
    return np.concatenate([body[:at], positions, body[at:]])


def _group_record(header: npt.NDArray[np.void], body: Bytes) -> Record:
    heads = int(header["heads"])
    return Record(header, body, heads, lambda n: (_some_heads(header, body, 0, n), _some_heads(header, body, n, heads)))


def _some_heads(header: npt.NDArray[np.void], body: Bytes, low: int, high: int) -> Record:
    """The record of the heads from number `low` of it to before `high`."""
    figures, stored, kept = (int(header[f]) for f in ("error_bytes", "bitmap_bytes", "position_bytes"))
    errors = body[2 * low : 2 * high].view("<u2")
    own = header.copy()
    own["first_head"], own["heads"] = int(header["first_head"]) + low, high - low
    own["error_bytes"] = align(2 * (high - low), ALIGNMENT)
    if stored:
        heads, tokens, dim = (int(header[f]) for f in ("heads", "tokens", "head_dim"))
        head_bytes = int(header["metadata_bytes"]) + int(header["code_bytes"])
        part = take_mixed(body[figures:], stored, heads, tokens, head_bytes, dim).heads(low, high, dim)
        own["bitmap_bytes"] = part.bitmap_bytes
        return _group_record(own, _body_of(errors, part.join()))
    coded = body[figures + kept :].reshape(int(header["heads"]), -1)[low:high]
    part = _group_bodies(Encoded(coded[None], errors[None]))[0]
    return _group_record(own, _insert_positions(part, int(own["error_bytes"]), body[figures : figures + kept]))


def laid_records(
    sequence: int, layer: int, stream: Stream, first: int, coded: Codes, codec: RowCodec, tokens: int
) -> list[Record]:
    """GROUP records of `tokens` tokens each for rows that were coded one by one (n * tokens, heads, row bytes)."""
    laid = codec.lay(coded, tokens, stream.dim)
    return _group_records(sequence, layer, stream, first, laid, laid.spec or codec.spec, tokens)


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
        Kind.ROWS if spec.is_trained else Kind.STEP,
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
        **sparse_fields(spec),
    )

    def split(n: int) -> tuple[Record, Record]:
        low = [span._replace(rows=span.rows[:, :n]) for span in spans]
        high = [span._replace(rows=span.rows[:, n:]) for span in spans]
        return _step_record(sequence, low, first_head), _step_record(sequence, high, first_head + n)

    record.pieces, record.split = heads, split
    return record
