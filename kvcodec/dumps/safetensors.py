"""Dumps in safetensors files."""

from __future__ import annotations

from io import FileIO

from kvcodec.dumps.dump import Dump
from kvcodec.dumps.safetensors_header import read_header
from kvcodec.dumps.safetensors_writer import SafetensorsWriter
from kvcodec.dumps.tensors import Contents

__all__ = ["SafetensorsDump", "SafetensorsWriter"]


class SafetensorsDump(Dump):
    """A safetensors file; see Dump. The only format with metadata of its own, and with 8-bit floats."""

    def _read_contents(self, file: FileIO) -> Contents:
        return read_header(file.fileno())
