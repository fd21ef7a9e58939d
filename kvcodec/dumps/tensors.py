"""Tensors in files of others: where one lies and what its numbers are, whatever the format."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "F32": np.dtype(np.float32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F64": np.dtype(np.float64),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


class Entry(NamedTuple):
    """One tensor. code: safetensors' name of its dtype. begin, end: bytes of its numbers in the file, or in the zip
    member once that is unpacked. flaw: why its numbers can't be read, if they can't. packed: they are compressed.
    """

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int
    flaw: str = ""
    packed: bool = False

    @property
    def floating(self) -> bool:
        return self.code.startswith(("F", "BF"))

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """None if numpy has no such dtype."""
        return DTYPES.get(self.code)


class Contents(NamedTuple):
    """What a file holds. tensors: by name. metadata: texts by name."""

    tensors: dict[str, Entry]
    metadata: dict[str, str]
