"""A new log is made as `.NAME.encoding`, or another word, beside its place and gets its name once it is whole.

A kill leaves nothing under the final name but what was there before. The half-made log it leaves is continued by a
job that resumes, and replaced by one that does not; while a process works on it, its lock refuses others. A failure
removes it, unless the job is one that resumes: that may be run again.
The log is renamed before its sidecar: a sidecar that belongs to another log is ignored, so a kill between the two
costs the next open a scan and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from kvcodec.errors import DeviceBusy, LogExists
from kvcodec.flash.image import Image
from kvcodec.log.sidecar import sidecar_path

_NAME_BYTES = 200  # of a name that fits in that of the half-made log, its sidecar and their temporary files


def making_path(path: Path, work: str = "encoding") -> Path:
    """Where the half-made log of `path` is. work: what makes it."""
    name = path.name
    if len(os.fsencode(name)) > _NAME_BYTES:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return path.with_name(f".{name}.{work}")


@contextlib.contextmanager
def new_log(path: Path, *, overwrite: bool, resume: bool = False, work: str = "encoding") -> Iterator[Path]:
    """The name to make and close a log under; when the block ends well, it becomes the log at `path`.

    With `resume` there may be a half-made log under it already, else there is nothing. work: as in `making_path`.
    Raises LogExists for an existing file without `overwrite`, before and after; DeviceBusy if another process makes
    the same log; DeviceBusy and BadMagic if what would be replaced has a writer or is no regular file; OSError, naming
    `path`, if it can't be made.
    """
    if not overwrite and os.path.lexists(path):
        raise LogExists(errno.EEXIST, "exists already; ask for overwrite to replace it", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
    if path.exists():
        Image.open(path, writable=True).close()  # what can't be replaced is refused before the work, not after
    making = making_path(path, work)
    published = making.exists() and path.exists() and os.path.samefile(making, path)  # a kill within publish
    if published or not resume:
        clear(making)
    try:
        yield making
        _publish(making, path, overwrite=overwrite)
    except BaseException as error:
        if not resume:
            with contextlib.suppress(DeviceBusy):
                clear(making)
        if isinstance(error, OSError) and making.name in str(error.filename):
            error.filename = str(path)
        raise


def clear(making: Path) -> None:
    """Remove a half-made log that nobody works on. Raises DeviceBusy if somebody does."""
    try:
        image = Image.open(making, writable=True)
    except FileNotFoundError:
        return
    try:
        _check_own(image, making)
        for left in (sidecar_path(making), making):
            left.unlink(missing_ok=True)
    finally:
        image.close()


def _check_own(image: Image, path: Path) -> None:
    """Raises DeviceBusy unless the locked file still is the one at `path`: whoever replaces it holds its lock."""
    try:
        same = os.path.samestat(os.fstat(image.fd()), os.lstat(path))
    except FileNotFoundError:
        same = False
    if not same:
        raise DeviceBusy(f"{path} was replaced by another process")


def _publish(making: Path, path: Path, *, overwrite: bool) -> None:
    image = Image.open(making, writable=True)
    try:
        _check_own(image, making)
        image.publish(path, overwrite=overwrite)
    finally:
        image.close()
    try:  # the log is there, and can be read without
        os.replace(sidecar_path(making), sidecar_path(path))
    except OSError:
        sidecar_path(making).unlink(missing_ok=True)
