"""A new log is made under a name of its own and gets its final name once it is whole.

A failure removes it. A kill leaves nothing under the final name but what was there before; the half-made file
`.<16 hex digits>.kvlog.new` beside it can be deleted. The log is renamed before its sidecar: a sidecar that belongs to
another log is ignored, so a kill between the two costs the next open a scan and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from kvcodec.errors import LogExists
from kvcodec.flash.image import Image
from kvcodec.log.sidecar import sidecar_path


@contextlib.contextmanager
def new_log(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """The name to make and close a log under; when the block ends well, it becomes the log at `path`.

    Raises LogExists for an existing file without `overwrite`, before and after; DeviceBusy and BadMagic if what would
    be replaced has a writer or is no regular file; OSError, naming `path`, if it can't be made.
    """
    if not overwrite and os.path.lexists(path):
        raise LogExists(errno.EEXIST, "exists already; ask for overwrite to replace it", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
    if path.exists():
        Image.open(path, writable=True).close()  # what can't be replaced is refused before the work, not after
    making = path.with_name(f".{secrets.token_hex(8)}.kvlog.new")
    try:
        yield making
        _publish(making, path, overwrite=overwrite)
    except OSError as error:
        if making.name in str(error.filename):
            error.filename = str(path)
        raise
    finally:
        for left in (making, sidecar_path(making)):
            left.unlink(missing_ok=True)


def _publish(making: Path, path: Path, *, overwrite: bool) -> None:
    image = Image.open(making, writable=True)
    try:
        image.publish(path, overwrite=overwrite)
    finally:
        image.close()
    with contextlib.suppress(FileNotFoundError):
        os.replace(sidecar_path(making), sidecar_path(path))
