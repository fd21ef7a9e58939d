"""Files of others: K and V in, K and V out. Today safetensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvcodec.errors import DumpError
from kvcodec.layout import SUPERBLOCK_MAGIC

if TYPE_CHECKING:
    from kvcodec.dumps.safetensors import SafetensorsDump

__all__ = ["open_dump"]

_SAFETENSORS_SUFFIX = ".safetensors"
_SNIFFED_BYTES = 9  # length of a safetensors header, and the { that it begins with


def open_dump(
    path: str | os.PathLike[str],
    *,
    mapping: Sequence[str] = (),
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> SafetensorsDump:
    """Opens a dump in whatever format it is; the options are SafetensorsDump's, which see.

    Raises DumpError for a format that is not read yet, and what SafetensorsDump raises.
    """
    from kvcodec.dumps.safetensors import SafetensorsDump

    if Path(path).suffix.lower() != _SAFETENSORS_SUFFIX:
        _check_content(Path(path))
    return SafetensorsDump(path, mapping=mapping, kv_heads=kv_heads, head_dim=head_dim)


def _check_content(path: Path) -> None:
    """Raises DumpError unless the file, whatever its name, begins as safetensors do."""
    from kvcodec.dumps.regular_file import open_regular

    with open_regular(path) as file:
        start = file.read(_SNIFFED_BYTES)
    if start.startswith(SUPERBLOCK_MAGIC):
        raise DumpError(f"{path}: a kvcodec log, not a dump")
    if start[8:] != b"{":
        kind = path.suffix or "such"
        raise DumpError(f"{path}: {kind} files are not read, want safetensors ({_SAFETENSORS_SUFFIX})")
