"""Files of others: K and V in, K and V out. safetensors, .npz and .npy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvcodec.errors import DumpError
from kvcodec.layout import SUPERBLOCK_MAGIC

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from kvcodec.dumps.dump import Dump
    from kvcodec.dumps.dump_writer import DumpWriter

__all__ = ["FORMATS", "create_dump", "format_of", "open_dump"]

FORMATS = ("safetensors", "npz", "npy")
_SNIFFED_BYTES = 9  # length of a safetensors header, and the { that it begins with
_NPY, _ZIP = b"\x93NUMPY", b"PK\3\4"


def open_dump(
    path: str | os.PathLike[str],
    *,
    mapping: Sequence[str] = (),
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> Dump:
    """Opens a dump in whatever format it is, by its name or else by its content; the options are those of
    kvcodec.dumps.dump.Dump, which see.

    Raises DumpError for a format that is not read yet, and what Dump raises.
    """
    kind = _kind_by_name(Path(path)) or _kind_by_content(Path(path))
    return _reader(kind)(path, mapping=mapping, kv_heads=kv_heads, head_dim=head_dim)


def create_dump(
    path: str | os.PathLike[str],
    tensors: Sequence[tuple[str, DTypeLike, tuple[int, ...]]],
    metadata: Mapping[str, str],
    *,
    format: str | None = None,  # noqa: A002  # what it is called everywhere
    overwrite: bool = False,
) -> DumpWriter:
    """A dump in the making; the arguments are those of kvcodec.dumps.dump_writer.DumpWriter, which see.

    format: "safetensors", "npz" or "npy", by default what `format_of` says. Raises what DumpWriter raises.
    """
    return _writer(format or format_of(path))(path, tensors, metadata, overwrite=overwrite)


def format_of(path: str | os.PathLike[str]) -> str:
    """Format of a dump to be made under this name: by its extension, and safetensors for any other."""
    return _kind_by_name(Path(path)) or FORMATS[0]


def _kind_by_name(path: Path) -> str | None:
    suffix = path.suffix.lower().removeprefix(".")
    return suffix if suffix in FORMATS else None


def _kind_by_content(path: Path) -> str:
    """Raises DumpError unless the file, whatever its name, begins as one of the formats do."""
    from kvcodec.dumps.regular_file import open_regular

    with open_regular(path) as file:
        start = file.read(_SNIFFED_BYTES)
    if start.startswith(SUPERBLOCK_MAGIC):
        raise DumpError(f"{path}: a kvcodec log, not a dump")
    for magic, kind in ((_NPY, "npy"), (_ZIP, "npz")):
        if start.startswith(magic):
            return kind
    if start[8:] != b"{":
        kind = path.suffix or "such"
        raise DumpError(f"{path}: {kind} files are not read, want {', '.join(f'.{name}' for name in FORMATS)}")
    return FORMATS[0]


def _reader(kind: str) -> type[Dump]:
    if kind == "npz":
        from kvcodec.dumps.npz import NpzDump

        return NpzDump
    if kind == "npy":
        from kvcodec.dumps.npy import NpyDump

        return NpyDump
    from kvcodec.dumps.safetensors import SafetensorsDump

    return SafetensorsDump


def _writer(kind: str) -> type[DumpWriter]:
    if kind == "npz":
        from kvcodec.dumps.npz_writer import NpzWriter

        return NpzWriter
    if kind == "npy":
        from kvcodec.dumps.npy_writer import NpyWriter

        return NpyWriter
    from kvcodec.dumps.safetensors_writer import SafetensorsWriter

    return SafetensorsWriter
