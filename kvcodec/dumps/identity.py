"""Which model a cache belongs to: a fingerprint of the model's own files.

A fingerprint is the SHA-256 of what names the weights without being them: a JSON config in canonical form, or the
header of a safetensors or GGUF file (names, shapes, types and metadata of all tensors).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import BinaryIO

from kvcodec.dumps.regular_file import open_regular
from kvcodec.errors import DumpError

_CAP = 100 << 20  # of a header, as safetensors has it
_GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_GGUF_STRING, _GGUF_ARRAY = 8, 9
_GGUF_VERSIONS = (2, 3)
_MAX_DIMS = 8


def fingerprint_file(path: str | os.PathLike[str]) -> bytes:
    """32 bytes that identify the model of a config.json, a .safetensors or a .gguf file. Raises DumpError."""
    with open_regular(Path(path)) as file:
        head = file.read(8)
        file.seek(0)
        if head[:4] == b"GGUF":
            return _hash_gguf(file, str(path))
        if head[:1] in (b"{", b"[") or not head.strip():
            return _hash_json(file, str(path))
        return _hash_safetensors(file, str(path))


def parse_fingerprint(text: str) -> bytes:
    """A fingerprint from 64 hexadecimal digits. Raises DumpError."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise DumpError(f"fingerprint {text[:80]!r}: want 64 hexadecimal digits")
    return raw


def _hash_json(file: BinaryIO, name: str) -> bytes:
    try:
        table = json.loads(file.read(_CAP))
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{name}: not JSON: {error}") from None
    text = json.dumps(table, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(b"json\0" + text.encode()).digest()


def _hash_safetensors(file: BinaryIO, name: str) -> bytes:
    raw = file.read(8)
    length = int.from_bytes(raw, "little")
    if len(raw) < 8 or length > _CAP:
        raise DumpError(f"{name}: neither JSON, safetensors nor GGUF")
    header = file.read(length)
    if len(header) < length or not header.startswith(b"{"):
        raise DumpError(f"{name}: neither JSON, safetensors nor GGUF")
    return hashlib.sha256(b"safetensors\0" + header).digest()


class _Gguf:
    """Steps through a GGUF header and hashes what it passes."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self._left = min(_CAP, os.fstat(file.fileno()).st_size)
        self.digest = hashlib.sha256(b"gguf\0")

    def take(self, size: int) -> bytes:
        if size > self._left:
            raise DumpError(f"{self._name}: a GGUF header that does not end")
        raw = self._file.read(size)
        if len(raw) < size:
            raise DumpError(f"{self._name}: ends within its GGUF header")
        self._left -= size
        self.digest.update(raw)
        return raw

    def number(self, form: str) -> int:
        return int(struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0])

    def string(self) -> None:
        self.take(self.number("Q"))

    def value(self, kind: int, depth: int = 0) -> None:
        if kind == _GGUF_STRING:
            self.string()
        elif kind == _GGUF_ARRAY and depth < 4:
            kind, count = self.number("I"), self.number("Q")
            if kind in _GGUF_SIZES:
                self.take(_GGUF_SIZES[kind] * count)
                return
            for _ in range(count):
                self.value(kind, depth + 1)
        elif kind in _GGUF_SIZES:
            self.take(_GGUF_SIZES[kind])
        else:
            raise DumpError(f"{self._name}: GGUF value of type {kind}")


def _hash_gguf(file: BinaryIO, name: str) -> bytes:
    walk = _Gguf(file, name)
    walk.take(4)
    version = walk.number("I")
    if version not in _GGUF_VERSIONS:
        raise DumpError(f"{name}: GGUF version {version}, or of the other byte order")
    tensors, pairs = walk.number("Q"), walk.number("Q")
    for _ in range(pairs):
        walk.string()
        walk.value(walk.number("I"))
    for _ in range(tensors):
        walk.string()
        dims = walk.number("I")
        if dims > _MAX_DIMS:
            raise DumpError(f"{name}: a GGUF tensor of {dims} dimensions")
        walk.take(8 * dims + 12)
    return walk.digest.digest()
