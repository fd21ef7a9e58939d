"""Writes .npz files, as numpy.savez does: stored members, each a .npy array, and the metadata as `metadata.json`.

The file is laid out before a row is there. Every size and place is given in the fields for large files (zip64), so
that what is tested with small files is what large ones get. The checksum that zip wants of each member is computed
when all rows are there, by reading them back.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence

from kvcodec.dumps.dump_writer import Declared, DumpWriter, Pieces
from kvcodec.dumps.names import shown
from kvcodec.dumps.npy_header import build_header
from kvcodec.dumps.npz import METADATA_CAP, METADATA_MEMBER, SUFFIX
from kvcodec.dumps.tensors import CODES, Entry
from kvcodec.errors import DumpError

_LOCAL = struct.Struct("<4s5H3I2H")
_LOCAL_EXTRA = struct.Struct("<2H2Q")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_CENTRAL_EXTRA = struct.Struct("<2H3Q")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_CRC_AT = 14  # in a local header
_VERSION, _UTF8, _DATE = 45, 0x800, (1 << 5) | 1  # zip64; names are UTF-8; 1 January 1980
_ZIP64 = 1
_FULL, _FULL_SHORT = 0xFFFFFFFF, 0xFFFF  # "see the field for large files"
_NAME_BYTES = 60_000
_PIECE = 1 << 20


class _Member:
    """One member: where its header begins, and its content's bytes."""

    def __init__(self, name: str, at: int, size: int) -> None:
        self.name, self.at, self.size = name.encode(), at, size
        if len(self.name) > _NAME_BYTES:
            raise DumpError(f"tensor name {shown(name)} has more than {_NAME_BYTES} bytes")
        self.begin = at + _LOCAL.size + len(self.name) + _LOCAL_EXTRA.size
        self.crc = 0

    @property
    def end(self) -> int:
        return self.begin + self.size

    def local(self) -> bytes:
        head = (b"PK\3\4", _VERSION, _UTF8, 0, 0, _DATE, 0, _FULL, _FULL, len(self.name), _LOCAL_EXTRA.size)
        return _LOCAL.pack(*head) + self.name + _LOCAL_EXTRA.pack(_ZIP64, 16, self.size, self.size)

    def central(self) -> bytes:
        head = (
            b"PK\1\2", _VERSION, _VERSION, _UTF8, 0, 0, _DATE, self.crc, _FULL, _FULL, len(self.name),
            _CENTRAL_EXTRA.size, 0, 0, 0, 0, _FULL,
        )  # fmt: skip
        return _CENTRAL.pack(*head) + self.name + _CENTRAL_EXTRA.pack(_ZIP64, 24, self.size, self.size, self.at)


def _end(members: int, begin: int, size: int) -> bytes:
    """What ends the file: `members` of them, and their directory of `size` bytes at byte `begin`."""
    record = _END64.pack(
        b"PK\6\6", _END64.size - 12, _VERSION, _VERSION, 0, 0, members, members, size, begin
    )  # fmt: skip
    locator = _LOCATOR.pack(b"PK\6\7", 0, begin + size, 1)
    end = _END.pack(b"PK\5\6", 0, 0, _FULL_SHORT, _FULL_SHORT, _FULL, _FULL, 0)
    return record + locator + end


class NpzWriter(DumpWriter):
    """An .npz file in the making; see DumpWriter."""

    def _lay_out(self, declared: Sequence[Declared], metadata: Mapping[str, str]) -> tuple[Pieces, dict[str, Entry]]:
        self._members: list[_Member] = []
        pieces: Pieces = []
        entries: dict[str, Entry] = {}
        if metadata:
            text = json.dumps(dict(metadata), ensure_ascii=False).encode()
            if len(text) > METADATA_CAP:
                raise DumpError(f"metadata of {len(text)} bytes, want {METADATA_CAP} at most")
            self._begin_member(METADATA_MEMBER, text, 0, pieces)
        for name, dtype, shape in declared:
            if name in entries:
                raise DumpError(f"tensor name {shown(name)} is there twice")
            header, size = build_header(dtype, shape), math.prod(shape) * dtype.itemsize
            member = self._begin_member(f"{name}{SUFFIX}", header, size, pieces)
            entries[name] = Entry(CODES[dtype], shape, member.end - size, member.end)
        return pieces, entries

    def _begin_member(self, name: str, head: bytes, more: int, pieces: Pieces) -> _Member:
        """A member behind those there are, of the bytes `head` and `more` others."""
        member = _Member(name, self._members[-1].end if self._members else 0, len(head) + more)
        pieces += [(member.at, member.local()), (member.begin, head)]
        self._members.append(member)
        return member

    def _finish(self) -> None:
        at = begin = self._members[-1].end if self._members else 0
        for member in self._members:
            member.crc = self._checksum(member)
            self._put(member.at + _CRC_AT, memoryview(member.crc.to_bytes(4, "little")))
        directory = b"".join(member.central() for member in self._members)
        self._put(at, memoryview(directory + _end(len(self._members), begin, len(directory))))

    def _checksum(self, member: _Member) -> int:
        crc, at = 0, member.begin
        while at < member.end:
            piece = os.pread(self._file.fileno(), min(_PIECE, member.end - at), at)
            if not piece:
                raise DumpError(f"{self.path}: the file shrank while it was made")
            crc, at = zlib.crc32(piece, crc), at + len(piece)
        return crc
