"""The file beneath a device: positioned writes, a read-only map, reservations, holes and one writer's lock."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvcodec.errors import BadMagic, DeviceBusy, DeviceError, LogExists, NoSpace, StoreClosed, TruncatedLog

Bytes = npt.NDArray[np.uint8]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_RESERVE_STEP = 1 << 20
_DIRECT_LEAST = 1 << 20  # bytes of a write that is worth its wait for the disk
_libc = ctypes.CDLL(None, use_errno=True)


def _fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    call = _libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while call(fd, mode, offset, length) != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


@contextlib.contextmanager
def device_errors(path: Path, doing: str) -> Iterator[None]:
    """What the system refuses becomes a DeviceError; that a file is missing or forbidden stays what it is."""
    try:
        yield
    except (DeviceError, FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise BadMagic(f"{path} is not a regular file") from None
        kind = NoSpace if error.errno in _FULL else DeviceError
        raise kind(error.errno, f"{doing}: {error.strerror}", str(path)) from error


def sync_directory(path: Path) -> None:
    """Make a create, link or rename in `path`'s directory durable."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


class Image:
    """One open file. Reads are views of a read-only map; the size of the file only grows while it is open."""

    def __init__(self, fd: int, path: Path, *, writable: bool) -> None:
        self.path, self.writable = path, writable
        self._fd = fd
        self._pid = os.getpid()
        self._map: Bytes = np.empty(0, np.uint8)
        self._pages: mmap.mmap | None = None
        self._reserved = (0, 0)
        self._direct = -1
        self._unsynced = False  # by a sync that failed
        self.published = True

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Image:
        """Open a regular file; a writer takes the lock. Raises BadMagic, DeviceBusy, DeviceError, FileNotFoundError."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
        while True:
            with device_errors(path, "open"):
                fd = os.open(path, flags)
            image = cls(fd, path, writable=writable)
            try:
                with device_errors(path, "open"):
                    held = os.fstat(fd)
                    if not stat.S_ISREG(held.st_mode):
                        raise BadMagic(f"{path} is not a regular file")
                    if not writable:
                        return image
                    image.lock()
                    if os.path.samestat(held, os.stat(path)):
                        return image
            except BaseException:
                image.close()
                raise
            image.close()  # the file was replaced before it was locked: what is written to it now would be lost

    @classmethod
    def create(cls, path: Path) -> Image:
        """A new, empty, locked file under a name of its own beside `path`; see `publish`."""
        name = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.new")
        with device_errors(path, "create"):
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        image = cls(fd, name, writable=True)
        image.published = False
        try:
            with device_errors(path, "create"):
                image.lock()
        except BaseException:
            image.discard()
            raise
        return image

    def lock(self, *, shared: bool = False) -> None:
        """Be the one writer; shared: have none, together with others who want that. Raises DeviceBusy."""
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DeviceBusy(f"{self.path} is being written by another process") from None

    def publish(self, path: Path, *, overwrite: bool) -> None:
        """Give the synced file its name in one step, so that no half-made log is ever seen under it.

        Raises LogExists without `overwrite`, DeviceBusy if a writer holds the file that would be replaced.
        """
        with contextlib.ExitStack() as stack, device_errors(path, "publish"):
            if overwrite:
                with contextlib.suppress(FileNotFoundError):
                    stack.callback(Image.open(path, writable=True).close)  # its lock is held until it is replaced
                os.rename(self.path, path)
            else:
                try:
                    os.link(self.path, path)
                except FileExistsError:
                    raise LogExists(
                        errno.EEXIST, "exists already; ask for overwrite to replace it", str(path)
                    ) from None
            made, self.path, self.published = self.path, path, True
            with contextlib.suppress(FileNotFoundError):
                os.unlink(made)
            sync_directory(path)

    def discard(self) -> None:
        """Close, and remove a file that was never published."""
        try:
            if not self.published:
                with contextlib.suppress(FileNotFoundError), device_errors(self.path, "remove"):
                    os.unlink(self.path)
        finally:
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
        fd = self.fd()
        try:
            return os.fstat(fd).st_size
        except OSError as error:  # no context manager here: every look at the map asks for the size
            raise DeviceError(error.errno, f"size: {error.strerror}", str(self.path)) from error

    def view(self, offset: int, length: int) -> Bytes:
        """`length` bytes from `offset`, as many of them as the file has, without a copy.

        Raises TruncatedLog if the file is shorter than it was: a touch of the lost part of the map would
        end the process.
        """
        size = self.size
        if size < self._map.size:
            raise TruncatedLog(f"{self.path} shrank from {self._map.size} to {size} bytes while it was open")
        if offset + length > self._map.size and size > self._map.size:
            with device_errors(self.path, "map"):
                self._pages = mmap.mmap(self.fd(), size, access=mmap.ACCESS_READ)
            self._map = np.frombuffer(self._pages, np.uint8)
        return self._map[offset : offset + length]

    def release(self, start: int = 0, length: int | None = None) -> None:
        """Take pages that were looked at out of the process's memory, all or those of a range that begins at a page: a
        later look brings them back.
        """
        if self._pages is not None:
            left = len(self._pages) - start
            with contextlib.suppress(OSError):  # the pages then stay
                self._pages.madvise(mmap.MADV_DONTNEED, start, left if length is None else min(length, left))

    def lengthen(self, size: int) -> None:
        """Have the file hold zeros up to byte `size`, if it is shorter. Raises DeviceError."""
        if self.size < size:
            with device_errors(self.path, "lengthen"):
                os.ftruncate(self.fd(), size)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `offset`. A failure is final for what it was meant to write."""
        left = memoryview(data)
        while left:
            fd = self._channel(left, offset)
            try:
                done = os.pwrite(fd, left, offset)
            except InterruptedError:
                continue
            except OSError as error:
                if fd == self._direct and error.errno == errno.EINVAL:
                    self._close_direct()  # this disk wants more of a write than that it is aligned to pages
                    continue
                kind = NoSpace if error.errno in _FULL else DeviceError
                raise kind(error.errno, f"write at byte {offset}: {error.strerror}", str(self.path)) from error
            if not done:
                raise DeviceError(errno.EIO, f"write at byte {offset}: nothing was written", str(self.path))
            left, offset = left[done:], offset + done

    def write_past_cache(self) -> None:
        """Have long writes of whole pages go from memory to the disk: whoever writes much that nobody reads soon saves
        the copy, and the memory of others. Where the file system can't, nothing changes.
        """
        with contextlib.suppress(OSError):
            self._direct = os.open(f"/proc/self/fd/{self.fd()}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)

    def _channel(self, data: memoryview, offset: int) -> int:
        """The descriptor to write `data` with."""
        fd = self.fd()
        if self._direct < 0 or len(data) < _DIRECT_LEAST:
            return fd
        address = np.frombuffer(data, np.uint8).ctypes.data
        return fd if (address | offset | len(data)) % mmap.PAGESIZE else self._direct

    def _close_direct(self) -> None:
        if self._direct >= 0:
            with contextlib.suppress(OSError):
                os.close(self._direct)
            self._direct = -1

    def reserve(self, start: int, end: int, limit: int) -> None:
        """Have the disk hold the bytes from `start` to `end`, so that a later write can't find it full, and some more
        that are likely to come, but none from `limit` on.

        The size of the file is unchanged. Raises NoSpace.
        """
        if self._reserved[0] <= start and end <= self._reserved[1]:
            return
        end = max(end, min(end + -end % _RESERVE_STEP, limit))
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
        if self._unsynced:
            raise DeviceError(errno.EIO, "an earlier sync failed; open the log again", str(self.path))
        try:
            os.fdatasync(self.fd())
        except OSError as error:
            self._unsynced = True
            raise DeviceError(error.errno, f"sync: {error.strerror}", str(self.path)) from error

    def close(self) -> None:
        """Release the lock, the map and the reservation beyond the end of the file.

        What the system refuses to close is closed all the same, and nothing was lost by that: a sync would have told.
        """
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        self._close_direct()
        self._map, self._pages = np.empty(0, np.uint8), None
        if self._reserved[1] and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, os.fstat(fd).st_size)  # the size stays; blocks reserved beyond it go
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # a view of the map that somebody still holds keeps a descriptor alive
        with contextlib.suppress(OSError):
            os.close(fd)
