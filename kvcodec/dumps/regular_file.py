"""Opening files of others: regular ones only."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

from kvcodec.errors import DumpError


def open_regular(path: Path) -> FileIO:
    """Opens a regular file to read. Never waits, as opening a FIFO would for its other end. Raises DumpError."""
    try:
        file = FileIO(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise DumpError(f"{path}: cannot open: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DumpError(f"{path}: not a regular file")
    return file
