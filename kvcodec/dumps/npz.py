"""Dumps in .npz files: named arrays, as names of safetensors are known, or one (layers, 2, heads, tokens, dim).

Stored members (numpy.savez) are read slice by slice where they lie. Compressed ones (numpy.savez_compressed) can't be:
each is unpacked, when it is first read, into a temporary file without a name in the system's directory for these
(TMPDIR), which takes as much disk as the array has bytes and no memory. Only a compressed member's checksum is
checked. A member `metadata.json` with a table of texts is what metadata is to safetensors.
"""

from __future__ import annotations

import os
import tempfile
import threading
import zipfile
from io import FileIO
from typing import IO

from kvcodec.dumps.dump import Dump
from kvcodec.dumps.names import shown
from kvcodec.dumps.npy_header import PREFIX_BYTES, make_entry, parse_header
from kvcodec.dumps.safetensors_header import check_metadata, parse_json
from kvcodec.dumps.tensors import Contents, Entry
from kvcodec.dumps.zip_directory import ZIP_ERRORS, Member, open_zip, read_members
from kvcodec.errors import DumpError

METADATA_MEMBER = "metadata.json"
METADATA_CAP = 1 << 20
SUFFIX = ".npy"
_PIECE = 1 << 20


class NpzDump(Dump):
    """An .npz file; see Dump."""

    _scratch: IO[bytes] | None = None

    def _read_contents(self, file: FileIO) -> Contents:
        self._lock = threading.Lock()
        self._unpacked: dict[str, int] = {}
        self._archive = open_zip(file.fileno())
        self._members = read_members(self._archive, file.fileno())
        names = [name for name in self._members if name.endswith(SUFFIX)]
        tensors = {name.removesuffix(SUFFIX): self._read_entry(name, file) for name in names}
        return Contents(tensors, self._read_metadata())

    def _read_entry(self, name: str, file: FileIO) -> Entry:
        member = self._members[name]
        try:
            header = parse_header(self._start(member, file, PREFIX_BYTES))
            return make_entry(header, member.size, begin=0 if member.packed else member.begin, packed=member.packed)
        except ZIP_ERRORS as error:  # DumpError is a ValueError
            raise DumpError(f"member {shown(name)}: {error}") from None

    def _start(self, member: Member, file: FileIO, most: int) -> bytes:
        if not member.packed:
            return os.pread(file.fileno(), min(most, member.size), member.begin)
        with self._archive.open(member.info) as unpacking:
            return unpacking.read(most)

    def _read_metadata(self) -> dict[str, str]:
        member = self._members.get(METADATA_MEMBER)
        if member is None:
            return {}
        if member.size > METADATA_CAP:
            raise DumpError(f"member '{METADATA_MEMBER}' has {member.size} bytes, want {METADATA_CAP} at most")
        try:
            return check_metadata(parse_json(self._archive.read(member.info)), f"member '{METADATA_MEMBER}'")
        except ZIP_ERRORS as error:
            raise DumpError(f"member '{METADATA_MEMBER}': {error}") from None

    def _bytes_of(self, name: str) -> tuple[int, int]:
        entry = self._tensors[name]
        if not entry.packed:
            return super()._bytes_of(name)
        with self._lock:
            if self._scratch is None:
                self._scratch = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed with the dump
            if name not in self._unpacked:
                self._unpacked[name] = self._unpack(self._members[name + SUFFIX].info, self._scratch)
            return self._scratch.fileno(), self._unpacked[name] + entry.begin

    def _unpack(self, info: zipfile.ZipInfo, scratch: IO[bytes]) -> int:
        """Appends a member's content to the scratch file; where it begins there."""
        what = f"{self.path}: member {shown(info.filename)}"
        begin = scratch.seek(0, os.SEEK_END)
        disk = os.fstatvfs(scratch.fileno())
        if info.file_size > disk.f_bavail * disk.f_frsize:
            raise DumpError(f"{what}: no room for its {info.file_size} bytes in {tempfile.gettempdir()}; set TMPDIR")
        try:
            with self._archive.open(info) as unpacking:
                while piece := unpacking.read(_PIECE):
                    view = memoryview(piece)
                    while view:
                        view = view[scratch.write(view) :]
        except OSError as error:
            scratch.truncate(begin)
            raise DumpError(f"{what}: cannot unpack into {tempfile.gettempdir()}: {error.strerror}") from None
        except ZIP_ERRORS as error:
            scratch.truncate(begin)
            raise DumpError(f"{what}: {error}") from None
        if scratch.seek(0, os.SEEK_END) != begin + info.file_size:
            raise DumpError(f"{what}: it unpacks to other than the {info.file_size} bytes that it declares")
        return begin

    def close(self) -> None:
        super().close()
        if self._scratch is not None:
            self._scratch.close()
