"""Writes safetensors files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvcodec.dumps.dump_writer import Declared, DumpWriter, Pieces
from kvcodec.dumps.safetensors_header import build_header
from kvcodec.dumps.tensors import Entry


class SafetensorsWriter(DumpWriter):
    """A safetensors file in the making; see DumpWriter."""

    def _lay_out(self, declared: Sequence[Declared], metadata: Mapping[str, str]) -> tuple[Pieces, dict[str, Entry]]:
        header, entries = build_header(declared, metadata)
        return [(0, header)], entries
