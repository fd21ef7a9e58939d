"""The header of a .npy array (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).

Read here rather than by numpy: no eval, nothing allocated before the declared shape is held against the bytes that are
there. numpy knows no bfloat16: what it saves of an ml_dtypes array is a "void" of two bytes, `|V2` or `<V2`, which is
read as bfloat16 here and written for it. Two-byte integers are not guessed at.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any, NamedTuple

import numpy as np

from kvcodec.dumps.names import shown
from kvcodec.dumps.safetensors_header import AXES_MAX
from kvcodec.dumps.tensors import CODES, DTYPES, Entry
from kvcodec.errors import DtypeError, DumpError

MAGIC = b"\x93NUMPY"
PREFIX_BYTES = 12 + 65535  # a header longer than this is none of ours
_ALIGNMENT = 64
_FIELD = re.compile(  # possessive: no header, however long, takes more than one pass
    r"\s*+(['\"])(?P<key>descr|fortran_order|shape)\1\s*+:\s*+(?P<value>'[^'\\]*+'|\"[^\"\\]*+\"|True|False|"
    r"\((?:\s*+[0-9]{1,19}+\s*+,)*+(?:\s*+[0-9]{1,19}+)?\s*+\))\s*+(?:,|\Z)",
    re.ASCII,
)
_STRUCTURED = re.compile(r"['\"]descr['\"]\s*+:\s*+\[")
_DESCR = {dtype.str: code for dtype, code in CODES.items()} | {"|V2": "BF16", "<V2": "BF16"}
_BFLOAT16 = "<V2"


class NpyHeader(NamedTuple):
    """descr: the dtype as numpy writes it. size: bytes before the numbers."""

    descr: str
    fortran: bool
    shape: tuple[int, ...]
    size: int


def parse_header(start: bytes) -> NpyHeader:
    """The header that a file's first PREFIX_BYTES (or all of them) hold. Raises DumpError."""
    if start[:6] != MAGIC:
        raise DumpError("no npy array: it does not begin with \\x93NUMPY")
    wide = start[6:7] != b"\1"
    if start[6:8] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise DumpError(f"npy version {'.'.join(map(str, start[6:8]))}, want 1.0, 2.0 or 3.0")
    at = 12 if wide else 10
    if len(start) < at:
        raise DumpError("truncated: an npy header without its length")
    (length,) = struct.unpack("<I" if wide else "<H", start[8:at])
    if at + length > PREFIX_BYTES:
        raise DumpError(f"npy header of {length} bytes, want {PREFIX_BYTES - 12} at most")
    if len(start) < at + length:
        raise DumpError(f"truncated: npy header of {length} bytes, {len(start) - at} are there")
    fields = _parse_fields(start[at : at + length].decode("latin-1").strip(" \n"))
    numbers = re.findall("[0-9]+", fields["shape"])
    shape = tuple(map(int, numbers))
    if len(shape) > AXES_MAX or any(size >= 1 << 63 for size in shape):
        raise DumpError(f"npy shape {shown(fields['shape'])} is beyond what numpy holds")
    return NpyHeader(fields["descr"], fields["fortran_order"] == "True", shape, at + length)


def _parse_fields(text: str) -> dict[str, str]:
    """descr, fortran_order and shape of a table that is written as Python writes it."""
    fields: dict[str, str] = {}
    if not (text.startswith("{") and text.endswith("}")):
        raise DumpError(f"npy header {shown(text)} is no table")
    if _STRUCTURED.search(text):
        return {"descr": "[", "fortran_order": "False", "shape": "()"}
    inner, at = text[1:-1].strip(), 0
    while at < len(inner):
        match = _FIELD.match(inner, at)
        if match is None or match["key"] in fields:
            raise DumpError(f"npy header {shown(text)}: want descr, fortran_order and shape, once each")
        fields[match["key"]] = match["value"]
        at = match.end()
    wanted = {"descr": "'\"", "fortran_order": "TF", "shape": "("}
    if fields.keys() != wanted.keys() or any(fields[key][0] not in first for key, first in wanted.items()):
        raise DumpError(f"npy header {shown(text)}: want descr, fortran_order and shape, once each")
    return fields | {"descr": fields["descr"][1:-1]}


def make_entry(header: NpyHeader, size: int, *, begin: int = 0, packed: bool = False) -> Entry:
    """The array of a file or zip member of `size` bytes that begins at byte `begin`.

    An array that can't be read has a flaw. Raises DumpError if its shape is not that of the bytes that are there.
    """
    held, at = size - header.size, begin + header.size
    code = _DESCR.get(header.descr)
    if code is None:
        return Entry(header.descr, header.shape, at, at + held, _flaw(header.descr), packed)
    wanted = math.prod(header.shape) * DTYPES[code].itemsize
    if wanted > held:
        raise DumpError(f"truncated: {header.descr} {list(header.shape)} takes {wanted} bytes, {held} are there")
    if wanted < held:
        raise DumpError(f"{held - wanted} bytes follow the array")
    flaw = ""
    if header.fortran and sum(size > 1 for size in header.shape) > 1:
        flaw = "in Fortran order: save numpy.ascontiguousarray of it"
    elif code == "U16":
        flaw = "16-bit integers: save bfloat16 as it is or as |V2, not as its bits"
    return Entry(code, header.shape, at, at + wanted, flaw, packed)


def _flaw(descr: str) -> str:
    if descr.lstrip("<>|=").startswith("O"):
        return "an array of Python objects, a pickle: those are never read"
    if descr.startswith(">"):
        return f"big-endian ({shown(descr)}): save it in little-endian order"
    if descr.startswith("["):
        return "a structured array, want plain numbers"
    return f"{shown(descr)}, want <f2, <f4, or |V2 for bfloat16"


def build_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header that numpy would write of a C-ordered array. Raises DtypeError for a dtype that .npy has not."""
    if dtype not in CODES:
        raise DtypeError(f"npy has no dtype {dtype}")
    descr = _BFLOAT16 if CODES[dtype] == "BF16" else dtype.str
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    text += b" " * (-(len(text) + 11) % _ALIGNMENT) + b"\n"
    return MAGIC + b"\1\0" + struct.pack("<H", len(text)) + text
