"""A quick walk over the frames of one block, for as long as each of them is beyond doubt.

What is not plainly a good frame that continues the chain, of known kinds of records, ends the scan before it: the
careful reader (reader.py, frame.py) then says what it is. So the scan refuses nothing and reports nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kvcodec.flash.block import Block
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.flash.image import Bytes
from kvcodec.layout import (
    COUNTER_LIMIT,
    FORMAT_VERSION,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    FRAME_TRAILER,
    GROUP_HEADER,
    HEADERS,
    LOOSE_ALIGNMENT,
    RECORD_ALIGNMENT,
    RECORD_HEADER,
    FrameType,
    Kind,
    align,
    frame_magic,
)
from kvcodec.log.cursor import Cursor
from kvcodec.log.frame import frame_seed
from kvcodec.log.located import HEADER_ROOM, RecordTable, fill_table

_CODES = {"|u1": "B", "<u2": "H", "<u4": "I", "<u8": "Q"}


def _struct_of(dtype: np.dtype[np.void]) -> struct.Struct:
    """Reads all fields of a dtype that has only unsigned ones, in their order."""
    return struct.Struct("<" + "".join(_CODES[dtype[name].str] for name in dtype.names or ()))


_FRAME, _TRAILER, _RECORD = map(_struct_of, (FRAME_HEADER, FRAME_TRAILER, RECORD_HEADER))
_CRC_BYTES = 4  # a header_crc, and a trailer's crc
_KIND_AT: int = RECORD_HEADER.fields["kind"][1]  # type: ignore[index]
_TALLEST = max(RECORD_ALIGNMENT.values())
_ZEROS = bytes(_TALLEST)
_TYPES = frozenset(FrameType)


class _Plain(NamedTuple):
    """A kind of record that needs no more than this: size and alignment of its header, its reserved bytes and their
    zeros, and the zeros that fill it up in a table.
    """

    size: int
    alignment: int
    reserved: int
    end: int
    zeros: bytes
    filling: bytes


def _plain(kind: Kind) -> _Plain:
    dtype, alignment = HEADERS[kind], RECORD_ALIGNMENT.get(kind, LOOSE_ALIGNMENT)
    field, at = dtype.fields["reserved"][:2]  # type: ignore[index]
    filling = bytes(HEADER_ROOM - dtype.itemsize)
    return _Plain(dtype.itemsize, alignment, at, at + field.itemsize, bytes(field.itemsize), filling)


_PLAIN = {kind: _plain(kind) for kind in (Kind.SEQUENCE, Kind.GROUP, Kind.STEP, Kind.ROWS)}


@dataclass
class Scanned:
    """Good frames in a row: their records, the cursor behind the last of them, how many, and their bytes; of those that
    a compaction wrote the bytes and the records.
    """

    table: RecordTable
    cursor: Cursor
    frames: int
    framed: int
    compacted: int
    compactions: list[slice]

    @property
    def host(self) -> int:
        """Bytes of the records that carry rows, as frame.host_bytes counts them, but for those of compactions."""
        common, groups = self.table.columns(RECORD_HEADER), self.table.columns(GROUP_HEADER)
        kinds = self.table.kinds.copy()
        for records in self.compactions:
            kinds[records] = 0
        own = groups[kinds == Kind.GROUP]
        coded = np.maximum(own["body_bytes"].astype(np.int64) - own["error_bytes"], 0)
        steps = common["body_bytes"][(kinds == Kind.STEP) | (kinds == Kind.ROWS)]
        return int(coded.sum()) + int(steps.sum(dtype=np.int64))

    @property
    def lsn(self) -> int:
        """The highest one."""
        return int(self.table.columns(RECORD_HEADER)["lsn"].max(initial=0))


def scan_frames(device: Device, cursor: Cursor, block: Block, offset: int) -> Scanned:
    """The frames that follow each other from byte `offset` of `block` on and continue the chain at `cursor`."""
    end = _programmed_end(device, block, offset)  # before the look at the data, which a writer may add to
    data = device.data(block.number, 0, end)
    scan = _Scan(data, device.geometry.unit_bytes, block, frame_seed(device.uuid))
    return scan.run(cursor, offset)


def _programmed_end(device: Device, block: Block, offset: int) -> int:
    """Up to which byte of the block all units from that of `offset` on are programmed."""
    first = offset // device.geometry.unit_bytes
    programmed = device.programmed(block.number, first)
    return (first + (len(programmed) if programmed.all() else int(programmed.argmin()))) * device.geometry.unit_bytes


class _Scan:
    def __init__(self, data: Bytes, unit: int, block: Block, seed: int) -> None:
        self._data, self._view = data, memoryview(data)  # type: ignore[arg-type]
        self._end, self._unit, self._block, self._seed = len(data), unit, block, seed
        self._magic = frame_magic(block.generation)
        self._starts: list[int] = []
        self._headers = bytearray()
        self._compacted, self._compactions = 0, list[slice]()

    def run(self, cursor: Cursor, offset: int) -> Scanned:
        block, cursor, frames, framed = self._block, replace(cursor), 0, 0
        while (length := self._take_frame(offset, cursor) or self._take_frame(self._next_unit(offset), cursor)) > 0:
            offset = cursor.offset
            frames, framed = frames + 1, framed + length
        places = np.empty((len(self._starts), 3), np.uint64)
        places[:] = [block.generation, block.number, 0]
        places[:, 2] = self._starts
        cursor.block = block
        table = RecordTable(fill_table(places, self._headers))
        return Scanned(table, cursor, frames, framed, self._compacted, self._compactions)

    def _next_unit(self, offset: int) -> int:
        """The next unit, if the rest of this one is zeros; else where nothing is."""
        padding = -offset % self._unit
        return offset + padding if padding and not self._data[offset : offset + padding].any() else self._end

    def _take_frame(self, offset: int, cursor: Cursor) -> int:
        """Length of the frame at `offset`, its records taken and `cursor` behind it; 0 if it is not plainly good."""
        view, last = self._view, self._end
        if offset + FRAME_OVERHEAD > last:
            return 0
        (magic, version, type_, flags, length, records, number, durable, session_start, session, previous, drops,
         header_crc) = _FRAME.unpack_from(view, offset)  # fmt: skip
        if magic != self._magic or number != cursor.number + 1 or previous != cursor.crc:
            return 0
        if not FRAME_OVERHEAD <= length <= last - offset or length % LOOSE_ALIGNMENT:
            return 0
        start, end = offset + _FRAME.size, offset + length - _TRAILER.size
        if crc32c(self._data[offset : start - _CRC_BYTES], self._seed) != header_crc:
            return 0
        crc = crc32c(self._data[start : offset + length - _CRC_BYTES], header_crc)
        if _TRAILER.unpack_from(view, end) != (length, crc) or version != FORMAT_VERSION or flags:
            return 0
        if type_ not in _TYPES or not (durable < number < COUNTER_LIMIT and 1 <= session_start <= number):
            return 0
        before = len(self._starts)
        if not self._take_records(start, end, records):
            del self._starts[before:], self._headers[before * HEADER_ROOM :]
            return 0
        cursor.offset, cursor.number, cursor.crc = offset + length, number, crc
        cursor.durable, cursor.session, cursor.drops = max(cursor.durable, durable), session, drops
        if type_ == FrameType.COMPACTION:
            self._compacted += length
            self._compactions.append(slice(before, len(self._starts)))
        return int(length)

    def _take_records(self, position: int, last: int, count: int) -> bool:
        """Take the records of a frame; False if one of them, or what is between them, is not plainly good."""
        view, headers, starts, own = self._view, self._headers, self._starts, _RECORD.size
        for _ in range(count):
            at = align(position, LOOSE_ALIGNMENT)
            if at + own <= last and not view[at + _KIND_AT]:
                at = align(position, _TALLEST)
            if at + own > last or (at > position and view[position:at] != _ZEROS[: at - position]):
                return False
            header_crc, kind, version, size, body_bytes, _, lsn, sequence = _RECORD.unpack_from(view, at)
            if kind not in _PLAIN or version != FORMAT_VERSION or lsn >= COUNTER_LIMIT or sequence >= COUNTER_LIMIT:
                return False
            usual, alignment, reserved, reserved_end, zeros, filling = _PLAIN[kind]
            position = at + size + body_bytes
            if size != usual or at % alignment or position > last:
                return False
            header = view[at : at + size].tobytes()
            if header[reserved:reserved_end] != zeros or crc32c(header[_CRC_BYTES:]) != header_crc:
                return False
            starts.append(at)
            headers += header
            headers += filling
        return last - position < LOOSE_ALIGNMENT and view[position:last] == _ZEROS[: last - position]
