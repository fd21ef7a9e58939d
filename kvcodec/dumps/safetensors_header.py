"""The header of a safetensors file: read with every check, and written.

The file is an unsigned 64-bit length, that many bytes of JSON, then the tensors without holes
(https://github.com/huggingface/safetensors, "Format"). Read here rather than by that library, which maps the
file, so that one that shrinks kills the process, and which lets the last of two tensors of one name win.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvcodec.dumps.names import shown
from kvcodec.dumps.tensors import CODES, DTYPES, Contents, Entry
from kvcodec.errors import DtypeError, DumpError

HEADER_CAP = 100_000_000
AXES_MAX = 64  # numpy's own
METADATA_KEY = "__metadata__"
_LENGTH = struct.Struct("<Q")
_BITS = {code: 8 * dtype.itemsize for code, dtype in DTYPES.items()} | {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E8M0": 8,
    "C64": 64,
}


def read_header(file: int) -> Contents:
    """Reads and checks the header of the open file descriptor. Raises DumpError."""
    size = os.fstat(file).st_size
    prefix = os.pread(file, _LENGTH.size, 0)
    if len(prefix) < _LENGTH.size:
        raise DumpError(f"no safetensors file: {size} bytes, shorter than its header's length")
    (length,) = _LENGTH.unpack(prefix)
    data = _LENGTH.size + length
    if length > HEADER_CAP:
        raise DumpError(f"header of {length} bytes, want {HEADER_CAP} at most: no safetensors file")
    if data > size:
        raise DumpError(f"truncated: header of {length} bytes in a file of {size}")
    table = parse_json(os.pread(file, length, _LENGTH.size))
    metadata = check_metadata(table.pop(METADATA_KEY, None), f"header: {METADATA_KEY}")
    entries = {name: _parse_entry(name, fields, data) for name, fields in table.items()}
    tensors = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_cover(tensors, data, size)
    return Contents(tensors, metadata)


def check_metadata(metadata: object, what: str) -> dict[str, str]:
    """Texts by name; none for None. Raises DumpError."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise DumpError(f"{what} is not a table of texts")
    return metadata


def parse_json(text: bytes) -> dict[str, Any]:
    """A table, without repeated keys, lone surrogates and NaN. Raises DumpError."""
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DumpError(f"header is not UTF-8: {error.reason} at byte {error.start}") from None
    if not decoded.startswith("{"):
        raise DumpError("header does not begin with {: no safetensors file")
    try:
        table = json.loads(decoded, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DumpError(f"header is not JSON: {error}") from None
    except DumpError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise DumpError(f"header is not JSON: {error}") from None
    return dict(table)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise DumpError(f"header: key {shown(key)} is there twice")
        _check_text(key)
        if isinstance(value, str):
            _check_text(value)
        table[key] = value
    return table


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise DumpError(f"header: {shown(text)} is not Unicode: a lone surrogate") from None


def _refuse_constant(constant: str) -> None:
    raise DumpError(f"header is not JSON: {constant}")


def _natural(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _parse_entry(name: str, fields: object, data: int) -> Entry:
    what = f"header, tensor {shown(name)}"
    if not isinstance(fields, dict) or not {"dtype", "shape", "data_offsets"} <= fields.keys():
        raise DumpError(f"{what}: want dtype, shape and data_offsets")
    code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(code, str) or code not in _BITS:
        raise DumpError(f"{what}: dtype {shown(str(code))} is unknown")
    if not _natural(shape) or len(shape) > AXES_MAX:
        raise DumpError(f"{what}: shape is not a list of {AXES_MAX} sizes at most")
    if not _natural(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise DumpError(f"{what}: data_offsets are not [begin, end]")
    begin, end = offsets
    bits = math.prod(shape) * _BITS[code]
    if bits != 8 * (end - begin):
        raise DumpError(f"{what}: {end - begin} bytes, but {code} {shape} is {bits} bits")
    return Entry(code, tuple(shape), data + begin, data + end)


def _check_cover(tensors: Mapping[str, Entry], data: int, size: int) -> None:
    """Tensors must follow each other from the header's end to the file's, neither apart nor overlapping."""
    at = data
    for name, entry in tensors.items():
        if entry.begin != at:
            what = "overlaps the one before" if entry.begin < at else f"leaves a hole of {entry.begin - at} bytes"
            raise DumpError(f"header, tensor {shown(name)}: {what} at byte {min(entry.begin, at)}")
        at = entry.end
    if at > size:
        raise DumpError(f"truncated: the tensors need {at} bytes, the file has {size}")
    if at < size:
        raise DumpError(f"{size - at} bytes follow the last tensor")


def build_header(
    tensors: Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, Entry]]:
    """Bytes that begin a file of these (name, dtype, shape), and where in it each goes.

    The widest dtypes come first, so that each tensor is aligned to its own; the header is padded with spaces to
    8 bytes. Raises DtypeError for a dtype that the format has not, DumpError for a bad or repeated name.
    """
    table: dict[str, object] = {METADATA_KEY: dict(metadata)} if metadata else {}
    entries: dict[str, Entry] = {}
    at = 0
    for name, dtype, shape in sorted(tensors, key=lambda tensor: -tensor[1].itemsize):
        if name in entries or name == METADATA_KEY:
            raise DumpError(f"tensor name {shown(name)} is {'there twice' if name in entries else 'reserved'}")
        if dtype not in CODES:
            raise DtypeError(f"tensor {shown(name)}: safetensors has no dtype {dtype}")
        end = at + math.prod(shape) * dtype.itemsize
        table[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        entries[name] = Entry(CODES[dtype], shape, at, end)
        at = end
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_CAP:
        raise DumpError(f"header of {len(text)} bytes, want {HEADER_CAP} at most")
    data = _LENGTH.size + len(text)
    placed = {name: entry._replace(begin=data + entry.begin, end=data + entry.end) for name, entry in entries.items()}
    return _LENGTH.pack(len(text)) + text, placed
