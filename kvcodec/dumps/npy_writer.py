"""Writes .npy files: one array (layers, 2, heads, tokens, dim)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.dumps.dump_writer import Declared, DumpWriter, Pieces
from kvcodec.dumps.npy_header import build_header
from kvcodec.dumps.tensors import CODES, Entry
from kvcodec.errors import DtypeError, DumpError, ShapeError

_NAME = re.compile(r"(?P<stream>[kv])\.(?P<layer>[0-9]+)")


class NpyWriter(DumpWriter):
    """A .npy file in the making; see DumpWriter. The tensors are `k.L` and `v.L` (tokens, heads, dim), all alike.

    Layers lie in ascending order; their numbers, where they are not 0 and on, and the metadata are not kept: .npy has
    no place for them. Raises ShapeError or DtypeError for tensors that differ, DumpError for others.
    """

    def _lay_out(
        self,
        declared: Sequence[Declared],
        metadata: Mapping[str, str],  # noqa: ARG002  # no place for it
    ) -> tuple[Pieces, dict[str, Entry]]:
        found = {name: _NAME.fullmatch(name) for name, _, _ in declared}
        layers = sorted({int(match["layer"]) for match in found.values() if match})
        wanted = [f"{s}.{layer}" for layer in layers for s in "kv"]
        if not wanted or sorted(found) != sorted(wanted) or len(declared) != len(wanted):
            raise DumpError(f"{self.path}: a .npy holds K and V of layers and nothing else; .npz or .safetensors does")
        shapes, dtypes = {shape for _, _, shape in declared}, {dtype for _, dtype, _ in declared}
        if len(shapes) > 1 or len(declared[0][2]) != 3:
            raise ShapeError(f"{self.path}: layers differ in shape, which a .npy can't hold; .npz or .safetensors can")
        if len(dtypes) > 1:
            raise DtypeError(f"{self.path}: tensors differ in dtype, which a .npy can't hold")
        (tokens, heads, dim), dtype = declared[0][2], declared[0][1]
        header = build_header(dtype, (len(layers), 2, heads, tokens, dim))
        size = math.prod((heads, tokens, dim)) * dtype.itemsize
        begins = {name: len(header) + n * size for n, name in enumerate(wanted)}
        entries = {
            name: Entry(CODES[dtype], (tokens, heads, dim), begin, begin + size) for name, begin in begins.items()
        }
        return [(0, header)], entries

    def _put_rows(self, entry: Entry, start_row: int, array: NDArray[Any]) -> None:
        tokens, _, dim = entry.shape
        by_head = np.ascontiguousarray(array.transpose(1, 0, 2))
        for head, rows in enumerate(by_head):
            at = entry.begin + (head * tokens + start_row) * dim * array.itemsize
            self._put(at, rows.reshape(-1).view(np.uint8).data)
