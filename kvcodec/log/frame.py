"""Frames and records as bytes: sealing what is written, checking what is read (formats/frame.md, formats/record.md).

A frame begins at a multiple of 8 in its block. Each record in it begins at the next multiple of its kind's alignment;
the gap before it is zeros. The trailing CRC32C commits the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcodec.errors import CorruptRecord, UnsupportedVersion
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.image import Bytes
from kvcodec.layout import (
    COUNTER_LIMIT,
    FORMAT_VERSION,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    FRAME_TRAILER,
    HEADERS,
    LOOSE_ALIGNMENT,
    MAX_TOKEN,
    RECORD_ALIGNMENT,
    RECORD_HEADER,
    DropScope,
    FrameType,
    Kind,
    align,
    frame_magic,
)

MAX_FRAME = 4 << 20
_SKIPPABLE = 0x80
_IDENTITY = "number", "durable", "session", "session_start", "previous", "drops", "type"
_ERASED_TAG = 0xFF
_CRC_FIELD = 4  # bytes of a checksum; in a record header the kind follows it

_RESERVED = {
    kind: [
        (offset, offset + field_type.itemsize)
        for name, (field_type, offset, *_) in (dtype.fields or {}).items()
        if name.startswith("reserved")
    ]
    for kind, dtype in HEADERS.items()
}


@dataclass
class Record:
    """A record to be appended: its header's fields but for checksums and lsn, and its body.

    pieces: into how many equal heads it could be split; split(n) gives the records of the first n and of the rest.
    """

    header: npt.NDArray[np.void]
    body: bytes | Bytes
    pieces: int = 1
    split: Callable[[int], tuple[Record, Record]] | None = field(default=None, repr=False)

    @property
    def kind(self) -> int:
        return int(self.header["kind"])

    @property
    def size(self) -> int:
        return self.header.dtype.itemsize + len(self.body)


def new_headers(kind: Kind, count: int, **fields: Any) -> npt.NDArray[np.void]:
    """Headers (count,) of records of `kind`. fields: of each a value for all records, or one a record."""
    headers = np.zeros(count, HEADERS[kind])
    headers["kind"], headers["version"] = kind, FORMAT_VERSION
    for name, value in fields.items():
        headers[name] = value
    return headers


def new_record(kind: Kind, body: bytes | Bytes, *, sequence: int = 0, **fields: Any) -> Record:
    """A record of `kind` with the given header fields."""
    return Record(new_headers(kind, 1, sequence=sequence, **fields)[0, ...], body)


def seal_record(record: Record, lsn: int) -> bytes:
    """Header bytes of a record with its lsn and both checksums."""
    header = record.header
    header["lsn"], header["header_bytes"], header["body_bytes"] = lsn, header.dtype.itemsize, len(record.body)
    header["body_crc"] = crc32c(record.body)
    header["header_crc"] = crc32c(header.tobytes()[_CRC_FIELD:])
    return header.tobytes()


def host_bytes(header: np.void) -> int:
    """Bytes of a record that carry rows: codes and group metadata, or raw rows."""
    kind = int(header["kind"])
    if kind == Kind.GROUP:
        return max(0, int(header["body_bytes"]) - int(header["error_bytes"]))  # a hostile one may say anything
    return int(header["body_bytes"]) if kind in (Kind.STEP, Kind.ROWS) else 0


def implied_drop(lsn: int) -> np.void:
    """Header of a DROP of no sequence: among frames that are lost there was one, so that every sequence is at most as
    long as its records up to `lsn` make it.
    """
    header: np.void = new_record(Kind.DROP, b"", lsn=lsn).header.reshape(1)[0]
    return header


def count_drops(before: int, kinds: Iterable[int]) -> int:
    """DROP records up to behind a frame with records of these kinds, modulo 2**32."""
    return (before + sum(kind == Kind.DROP for kind in kinds)) % (1 << 32)


def place_record(position: int, kind: int) -> int:
    """Where in the block a record of `kind` begins if it comes after byte `position`."""
    return align(position, RECORD_ALIGNMENT.get(kind, LOOSE_ALIGNMENT))


def close_frame(position: int) -> int:
    """Where in the block a frame ends whose last record ends at `position`."""
    return align(position, LOOSE_ALIGNMENT) + FRAME_TRAILER.itemsize


def frame_seed(uuid: bytes) -> int:
    """Seed of a file's frame checksums: a frame of another file is none here."""
    return crc32c(uuid)


@dataclass(frozen=True)
class FrameId:
    """What a frame says of its place in its lane. drops: DROP records in the frames before it, modulo 2**32. type: a
    FrameType, or one that is skipped.
    """

    number: int
    durable: int
    session: int
    session_start: int
    previous: int
    drops: int = 0
    type: int = FrameType.DATA


Sealed = Sequence[tuple[bytes, bytes | Bytes]]  # header bytes and body of records


def build_frame(
    records: Sealed, frame: FrameId, *, offset: int, generation: int, uuid: bytes
) -> tuple[bytearray, list[int], int]:
    """Bytes of a frame that starts at `offset` of a block, the records' offsets in the block, and the frame's CRC."""
    places, position = [], offset + FRAME_HEADER.itemsize
    for header, body in records:
        places.append(place_record(position, header[_CRC_FIELD]))
        position = places[-1] + len(header) + len(body)
    out = bytearray(close_frame(position) - offset)
    crc = write_frame(
        np.frombuffer(out, np.uint8), records, frame, [at - offset for at in places], generation=generation, uuid=uuid
    )
    return out, places, crc


def write_frame(
    out: Bytes, records: Sealed, frame: FrameId, starts: Sequence[int], *, generation: int, uuid: bytes
) -> int:
    """Fill `out`, which has the bytes of a frame and no more; its CRC. starts: where in it each record begins."""
    position = FRAME_HEADER.itemsize
    for start, (header, body) in zip(starts, records, strict=True):
        body_start = start + len(header)
        out[position:start] = 0
        out[start:body_start] = np.frombuffer(header, np.uint8)
        position = body_start + len(body)
        out[body_start:position] = np.frombuffer(body, np.uint8)
    out[position:] = 0
    h = out[: FRAME_HEADER.itemsize].view(FRAME_HEADER)[0]
    h["magic"], h["version"], h["type"] = frame_magic(generation), FORMAT_VERSION, frame.type
    h["flags"], h["drops"] = 0, frame.drops
    h["length"], h["records"], h["number"], h["durable"] = len(out), len(starts), frame.number, frame.durable
    h["session"], h["session_start"], h["previous"] = frame.session, frame.session_start, frame.previous
    h["header_crc"] = crc32c(h.tobytes()[:-_CRC_FIELD], frame_seed(uuid))
    trailer = out[-FRAME_TRAILER.itemsize :].view(FRAME_TRAILER)[0]
    trailer["length"] = len(out)
    trailer["crc"] = crc = crc32c(out[FRAME_HEADER.itemsize : -_CRC_FIELD], int(h["header_crc"]))
    return crc


@dataclass(frozen=True)
class Frame:
    """A good frame, as read: where it ends, its CRC, and its records' (offset in the block, header)."""

    id: FrameId
    end: int
    crc: int
    records: list[tuple[int, np.void]]


class Flaw(Exception):
    """Why bytes are no committed frame. Internal to log/: a reader makes of it a torn tail or a CorruptRecord."""


def read_frame(data: Bytes, offset: int, *, generation: int, uuid: bytes, base: int) -> Frame:
    """The frame at `offset` of a block's data; `base` is the byte of the file at which the data begins.

    Nothing in it is trusted before its checksums: until they hold, what is wrong is a Flaw. A committed frame with
    impossible contents is no accident of writing, and raises CorruptRecord or UnsupportedVersion.
    """
    raw = data[offset : offset + FRAME_HEADER.itemsize]
    if raw.size < FRAME_HEADER.itemsize:
        raise Flaw("a frame header does not fit")
    h = raw.view(FRAME_HEADER)[0]
    seed = frame_seed(uuid)
    if int(h["magic"]) != frame_magic(generation):
        raise Flaw("no frame magic")
    if int(h["header_crc"]) != crc32c(raw[:-_CRC_FIELD], seed):
        raise Flaw("frame header checksum")
    length = int(h["length"])
    if not FRAME_OVERHEAD <= length <= data.size - offset or length % LOOSE_ALIGNMENT:
        raise Flaw(f"frame length {length}")
    body = data[offset : offset + length]
    trailer = body[-FRAME_TRAILER.itemsize :].view(FRAME_TRAILER)[0]
    crc = int(trailer["crc"])
    # a CRC that runs over data and then over its own CRC is a constant: the trailing one goes on from the header's
    if int(trailer["length"]) != length or crc != crc32c(
        body[FRAME_HEADER.itemsize : -_CRC_FIELD], int(h["header_crc"])
    ):
        raise Flaw("frame checksum")
    if int(h["version"]) != FORMAT_VERSION or int(h["flags"]):
        raise UnsupportedVersion(f"at byte {base + offset}: frame version {int(h['version'])} or flags")
    ident = FrameId(*(int(h[f]) for f in _IDENTITY))
    if not (ident.durable < ident.number < COUNTER_LIMIT and 1 <= ident.session_start <= ident.number):
        raise CorruptRecord(
            base + offset, f"frame {ident.number}: durable {ident.durable}, session {ident.session_start}"
        )
    end = offset + length
    if ident.type not in list(FrameType):
        if not ident.type & _SKIPPABLE:
            raise UnsupportedVersion(f"at byte {base + offset}: frame type {ident.type}")
        return Frame(ident, end, crc, [])
    return Frame(ident, end, crc, list(_read_records(data, offset, end, int(h["records"]), base)))


def _read_records(data: Bytes, offset: int, end: int, count: int, base: int) -> Iterable[tuple[int, np.void]]:
    position, last = offset + FRAME_HEADER.itemsize, end - FRAME_TRAILER.itemsize
    for _ in range(count):
        at = next((p for p in _starts(position) if p + RECORD_HEADER.itemsize <= last and data[p + _CRC_FIELD]), -1)
        if at < 0 or data[position:at].any():
            raise CorruptRecord(base + position, "no record where the frame counts one")
        header = read_record_header(data[:last], at, base)
        position = at + int(header["header_bytes"]) + int(header["body_bytes"])
        if place_record(at, int(header["kind"])) != at:
            raise CorruptRecord(base + at, "the record is not aligned")
        yield at, header
    if data[position:last].any() or last - position >= LOOSE_ALIGNMENT:
        raise CorruptRecord(base + position, "bytes after the last record of a frame")


def _starts(position: int) -> tuple[int, ...]:
    """Where the next record may begin: its kind, which says how it is aligned, is never zero."""
    return tuple(dict.fromkeys(align(position, a) for a in (LOOSE_ALIGNMENT, *RECORD_ALIGNMENT.values())))


def _is_drop(header: np.void) -> bool:
    """Whether a DROP record names a sequence and what of it ends."""
    first, end, scope, since = (int(header[f]) for f in ("first_token", "end_token", "scope", "summary_lsn"))
    ranged, vouches = first < end <= MAX_TOKEN, 0 < since < int(header["lsn"])
    known = {DropScope.TAIL: not (end or since), DropScope.RANGE: ranged and not since,
             DropScope.SEQUENCE: not (first or end or since), DropScope.SUMMARY: ranged and vouches}  # fmt: skip
    return int(header["sequence"]) > 0 and first <= MAX_TOKEN and scope in known and known[DropScope(scope)]


def read_record_header(data: Bytes, at: int, base: int) -> np.void:
    """A copy of the header of the record at byte `at` of a block's data. Raises CorruptRecord, UnsupportedVersion."""

    def want(ok: bool, why: str) -> None:
        if not ok:
            raise CorruptRecord(base + at, why)

    common = data[at : at + RECORD_HEADER.itemsize]
    want(common.size == RECORD_HEADER.itemsize, "a record header does not fit")
    head = common.view(RECORD_HEADER)[0]
    kind, size = int(head["kind"]), int(head["header_bytes"])
    want(size >= RECORD_HEADER.itemsize, "record header length")
    want(at + size + int(head["body_bytes"]) <= data.size, "a record is longer than its frame")
    want(int(head["header_crc"]) == crc32c(data[at + _CRC_FIELD : at + size]), "record header checksum")
    want(int(head["lsn"]) < COUNTER_LIMIT and int(head["sequence"]) < COUNTER_LIMIT, "lsn or sequence out of range")
    dtype = HEADERS.get(kind)
    if int(head["version"]) != FORMAT_VERSION:
        raise UnsupportedVersion(f"at byte {base + at}: record version {int(head['version'])}")
    if dtype is None:
        if not kind & _SKIPPABLE or kind == _ERASED_TAG:
            raise UnsupportedVersion(f"at byte {base + at}: record kind {kind}")
        dtype = RECORD_HEADER
        size = dtype.itemsize
    want(dtype.itemsize == size, "record header length")
    header: np.void = data[at : at + size].copy().view(dtype)[0]
    if any(data[at + first : at + end].any() for first, end in _RESERVED.get(kind, ())):
        raise UnsupportedVersion(f"at byte {base + at}: reserved field of a {Kind(kind).name} record is set")
    want(kind != Kind.DROP or not int(head["body_bytes"]), "a DROP record with a body")
    want(kind != Kind.DROP or _is_drop(header), "a DROP record that ends nothing")
    whole = kind in (Kind.MODEL, Kind.FREED, Kind.RETIRED)
    want(not (whole and int(head["sequence"])), f"a record of kind {kind} with a sequence")
    return header
