"""Dumps in .npy files: one array (layers, 2, heads, tokens, dim), K and V in its second axis."""

from __future__ import annotations

import os
from io import FileIO

from kvcodec.dumps.dump import Dump
from kvcodec.dumps.npy_header import PREFIX_BYTES, make_entry, parse_header
from kvcodec.dumps.tensors import Contents
from kvcodec.errors import DtypeError, DumpError

_NAME = "kv"
_AXES = 5


class NpyDump(Dump):
    """A .npy file; see Dump. Layers are numbered from 0, and there is no metadata."""

    def _read_contents(self, file: FileIO) -> Contents:
        header = parse_header(os.pread(file.fileno(), PREFIX_BYTES, 0))
        entry = make_entry(header, os.fstat(file.fileno()).st_size)
        if entry.flaw:
            raise DtypeError(f"the array is {entry.flaw}")
        if not entry.floating:
            raise DtypeError(f"the array is {header.descr}, want <f2, <f4, or |V2 for bfloat16")
        if len(entry.shape) != _AXES or entry.shape[1] != 2:
            raise DumpError(f"array of shape {list(entry.shape)}, want (layers, 2, heads, tokens, dim)")
        return Contents({_NAME: entry}, {})
