"""The members of a zip file, read with every check and before anything is allocated for them.

Python's zipfile parses the directory; what it trusts is checked here: names are unique, members lie apart and inside
the file, their local headers agree, and no size is beyond what the compressed bytes can hold.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from typing import NamedTuple

from kvcodec.dumps.names import shown
from kvcodec.errors import DumpError

ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError,
    OverflowError, LookupError,
)  # fmt: skip
_READ_CAP = 100_000_000  # bytes that one read of zipfile may ask for: a directory
_DEFLATE_RATIO = 1032  # deflate can't do more
_DEFLATE_SLACK = 1 << 16
_LOCAL = struct.Struct("<4s5H3I2H")
_LOCAL_MAGIC = b"PK\3\4"
_ENCRYPTED = 0x41


class Member(NamedTuple):
    """One member. begin, end: its bytes in the file, packed if `packed`. size: of its content, unpacked."""

    info: zipfile.ZipInfo
    begin: int
    end: int

    @property
    def packed(self) -> bool:
        return self.info.compress_type != zipfile.ZIP_STORED

    @property
    def size(self) -> int:
        return self.info.file_size


class Window(io.RawIOBase):
    """A descriptor, read by position, as the file that zipfile wants."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: os.fstat(self._file).st_size}[whence]
        if start + offset < 0:
            raise ValueError("a place before the start of the file")
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = max(0, os.fstat(self._file).st_size - self._at)
        if size > _READ_CAP:
            raise DumpError(f"a zip directory of {size} bytes, want {_READ_CAP} at most")
        got = os.pread(self._file, size, self._at)
        self._at += len(got)
        return got


def open_zip(file: int) -> zipfile.ZipFile:
    """Raises DumpError for what is no zip file."""
    try:
        return zipfile.ZipFile(Window(file))
    except DumpError:
        raise
    except ZIP_ERRORS as error:
        raise DumpError(f"no zip file that can be read: {error}") from None


def read_members(archive: zipfile.ZipFile, file: int) -> dict[str, Member]:
    """All members by name, checked. Raises DumpError."""
    size = os.fstat(file).st_size
    members: dict[str, Member] = {}
    for info in archive.infolist():
        if info.filename in members:
            raise DumpError(f"member {shown(info.filename)} is there twice")
        members[info.filename] = _check_member(info, file, size)
    before = 0
    for name, member in sorted(members.items(), key=lambda item: item[1].info.header_offset):
        if member.info.header_offset < before:
            raise DumpError(f"member {shown(name)} overlaps the one before at byte {member.info.header_offset}")
        before = member.end
    return members


def _check_member(info: zipfile.ZipInfo, file: int, size: int) -> Member:
    what = f"member {shown(info.filename)}"
    if info.flag_bits & _ENCRYPTED:
        raise DumpError(f"{what} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DumpError(f"{what} is compressed by method {info.compress_type}, want stored or deflated")
    if not 0 <= info.header_offset <= size - _LOCAL.size:
        raise DumpError(f"truncated: {what} at byte {info.header_offset} of {size}")
    local = _LOCAL.unpack(os.pread(file, _LOCAL.size, info.header_offset).ljust(_LOCAL.size, b"\0"))
    name_bytes, extra_bytes = local[9], local[10]
    own_name = os.pread(file, name_bytes, info.header_offset + _LOCAL.size)
    if local[0] != _LOCAL_MAGIC or local[3] != info.compress_type or own_name != _raw_name(info):
        raise DumpError(f"{what}: its own header at byte {info.header_offset} is another's")
    begin = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
    end = begin + info.compress_size
    if end > size:
        raise DumpError(f"truncated: {what} ends at byte {end} of {size}")
    stored = info.compress_type == zipfile.ZIP_STORED
    if stored and info.file_size != info.compress_size:
        raise DumpError(f"{what} is stored, but {info.file_size} bytes are not {info.compress_size}")
    if info.file_size > _DEFLATE_RATIO * info.compress_size + _DEFLATE_SLACK:
        raise DumpError(f"{what}: {info.compress_size} bytes can't unpack to {info.file_size}")
    return Member(info, begin, end)


def _raw_name(info: zipfile.ZipInfo) -> bytes:
    utf8 = info.flag_bits & 0x800
    return info.orig_filename.encode("utf-8" if utf8 else "cp437", errors="replace")
