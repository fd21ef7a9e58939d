"""The file beneath a device: positioned writes, a read-only map, reservations, holes and one writer's lock."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvcodec.errors import BadMagic, DeviceBusy, DeviceError, LogExists, NoSpace, StoreClosed, TruncatedLog

Bytes = npt.NDArray[np.uint8]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_RESERVE_STEP = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


def _fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    call = _libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while call(fd, mode, offset, length) != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def sync_directory(path: Path) -> None:
    """Make a create, link or rename in `path`'s directory durable."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Image:
    """One open file. Reads are views of a read-only map; the size of the file only grows while it is open."""

    def __init__(self, fd: int, path: Path, *, writable: bool) -> None:
        self.path, self.writable = path, writable
        self._fd = fd
        self._pid = os.getpid()
        self._map: Bytes = np.empty(0, np.uint8)
        self._reserved = (0, 0)

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Image:
        """Open a regular file; a writer takes the lock. Raises BadMagic, DeviceBusy, DeviceError."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(path, flags)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ENXIO):
                raise BadMagic(f"{path} is not a regular file") from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadMagic(f"{path} is not a regular file")
            image = cls(fd, path, writable=writable)
            if writable:
                image.lock()
        except BaseException:
            os.close(fd)
            raise
        return image

    @classmethod
    def create(cls, path: Path) -> Image:
        """A new, empty, locked file under a name of its own beside `path`; see `publish`."""
        name = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.new")
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        image = cls(fd, name, writable=True)
        try:
            image.lock()
        except BaseException:
            image.discard()
            raise
        return image

    def lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DeviceBusy(f"{self.path} is being written by another process") from None

    def publish(self, path: Path, *, overwrite: bool) -> None:
        """Give the synced file its name in one step, so that no half-made log is ever seen under it."""
        if overwrite:
            with contextlib.suppress(FileNotFoundError):
                Image.open(path, writable=True).close()  # refuses to replace a log under a writer
            os.rename(self.path, path)
        else:
            try:
                os.link(self.path, path)
            except FileExistsError:
                raise LogExists(errno.EEXIST, "exists already; ask for overwrite to replace it", str(path)) from None
            os.unlink(self.path)
        self.path = path
        sync_directory(path)

    def discard(self) -> None:
        """Close and remove a file that was never published."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.close()

    def fd(self) -> int:
        """The descriptor; refuses use after close and after fork."""
        if self._fd < 0:
            raise StoreClosed(f"{self.path} is closed")
        if os.getpid() != self._pid:
            raise StoreClosed(f"{self.path} was opened before a fork; open it again in this process")
        return self._fd

    @property
    def size(self) -> int:
        return os.fstat(self.fd()).st_size

    def view(self, offset: int, length: int) -> Bytes:
        """`length` bytes from `offset`, as many of them as the file has, without a copy.

        Raises TruncatedLog if the file is shorter than it was: a touch of the lost part of the map would
        end the process.
        """
        size = self.size
        if size < self._map.size:
            raise TruncatedLog(f"{self.path} shrank from {self._map.size} to {size} bytes while it was open")
        if offset + length > self._map.size and size > self._map.size:
            self._map = np.frombuffer(mmap.mmap(self.fd(), size, access=mmap.ACCESS_READ), np.uint8)
        return self._map[offset : offset + length]

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `offset`. A failure is final for what it was meant to write."""
        left = memoryview(data)
        while left:
            try:
                done = os.pwrite(self.fd(), left, offset)
            except InterruptedError:
                continue
            except OSError as error:
                kind = NoSpace if error.errno in _FULL else DeviceError
                raise kind(error.errno, f"write at byte {offset}: {error.strerror}", str(self.path)) from error
            left, offset = left[done:], offset + done

    def reserve(self, start: int, end: int) -> None:
        """Have the disk hold the bytes from `start` to `end`, so that a later write can't find it full.

        The size of the file is unchanged. Raises NoSpace.
        """
        if self._reserved[0] <= start and end <= self._reserved[1]:
            return
        end += -end % _RESERVE_STEP
        try:
            _fallocate(self.fd(), _KEEP_SIZE, start, end - start)
        except OSError as error:
            if error.errno in _FULL:
                raise NoSpace(error.errno, f"the disk is full: {end - start} bytes wanted", str(self.path)) from None
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise DeviceError(error.errno, f"reserve: {error.strerror}", str(self.path)) from error
        self._reserved = (min(start, self._reserved[0]) if start <= self._reserved[1] else start, end)

    def punch(self, offset: int, length: int) -> None:
        """Make a range read as zeros and give its disk blocks back."""
        length = min(length, self.size - offset)
        if length <= 0:
            return
        try:
            _fallocate(self.fd(), _KEEP_SIZE | _PUNCH_HOLE, offset, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise DeviceError(error.errno, f"erase at byte {offset}: {error.strerror}", str(self.path)) from error
            self.write(offset, bytes(length))
        self._reserved = (0, 0)

    def sync(self) -> None:
        """fdatasync. A failure is final: the kernel may have dropped the pages, so it is never tried again."""
        try:
            os.fdatasync(self.fd())
        except OSError as error:
            raise DeviceError(error.errno, f"sync: {error.strerror}", str(self.path)) from error

    def close(self) -> None:
        """Release the lock, the map and the reservation beyond the end of the file."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        self._map = np.empty(0, np.uint8)
        if self._reserved[1] and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, os.fstat(fd).st_size)  # the size stays; blocks reserved beyond it go
        os.close(fd)
