"""System calls that fail: all that a log makes of them for files of one folder, counted, some of them refused.

What the interpreter calls again by itself when a signal comes (PEP 475) can't be interrupted here: that leaves the
reservations and holes of a file, which go past it, and writes.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import pathlib
from typing import NamedTuple
from unittest import mock

from kvcodec.flash import image as image_module
from kvcodec.log import sidecar as sidecar_module

_PUNCH_HOLE = 2
_TIMES_INTERRUPTED = 3
_WRITING = {"create", "pwrite", "reserve", "link", "rename", "replace", "write sidecar"}
_ALL = _WRITING | {
    "open", "flock", "stat", "punch", "fdatasync", "fsync", "unlink", "ftruncate", "close", "mmap", "madvise",
    "read sidecar",
}  # fmt: skip
KINDS = {
    "ENOSPC": _WRITING, "EIO": _ALL, "EIO of fstat": {"fstat"}, "EINTR": {"pwrite", "reserve", "punch"},
    "short": {"pwrite"},
}  # fmt: skip


class Fault(NamedTuple):
    """What happens to call number `at` of those that it can happen to, and with `forever` to all later ones."""

    kind: str
    at: int
    forever: bool = False


class Syscalls:
    """While `watching`, calls for files below `folder` are counted, and fail as `fault` says.

    counts: calls of each kind of fault. failed: names of those that did. wrong: what no log may ask for, ever.
    """

    def __init__(self, folder, fault=None):
        self._folder, self.fault = str(folder), fault
        self.counts, self.failed, self.wrong = dict.fromkeys(KINDS, 0), [], []
        self._files, self._unsynced = set(), set()  # descriptors: those of the folder, and those of failed syncs

    @contextlib.contextmanager
    def watching(self):
        with contextlib.ExitStack() as stack:
            for name, own in (("open", self._open), ("stat", self._stat), ("pwrite", self._pwrite)):
                stack.enter_context(mock.patch.object(os, name, own(getattr(os, name))))
            for name in ("link", "rename", "replace", "unlink"):
                stack.enter_context(mock.patch.object(os, name, self._of_paths(name, getattr(os, name))))
            for name in ("fstat", "fsync", "ftruncate"):
                stack.enter_context(mock.patch.object(os, name, self._of_file(name, getattr(os, name))))
            stack.enter_context(mock.patch.object(os, "fdatasync", self._fdatasync(os.fdatasync)))
            stack.enter_context(mock.patch.object(os, "close", self._close(os.close)))
            stack.enter_context(mock.patch.object(fcntl, "flock", self._of_file("flock", fcntl.flock)))
            stack.enter_context(mock.patch.object(mmap, "mmap", self._map(mmap.mmap)))
            stack.enter_context(mock.patch.object(image_module, "_libc", self._libc(image_module._libc)))
            stack.enter_context(mock.patch.object(sidecar_module, "open", self._read, create=True))
            stack.enter_context(mock.patch.object(pathlib.Path, "write_bytes", self._written()))
            yield self

    def _meet(self, name):
        """The kind of fault that befalls this call, if any."""
        found = None
        for kind, names in KINDS.items():
            if name not in names:
                continue
            n = self.counts[kind]
            self.counts[kind] += 1
            if self.fault is not None and kind == self.fault.kind:
                times = _TIMES_INTERRUPTED if kind == "EINTR" else 1
                if self.fault.at <= n and (self.fault.forever or n < self.fault.at + times):
                    found = kind
        if found is not None:
            self.failed.append(name)
        return found

    def _refuse(self, name):
        """Raises OSError if this call fails."""
        if (kind := self._meet(name)) is not None:
            raise _error(kind)

    def _is_own(self, path):
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._folder)

    # -- calls ---------------------------------------------------------------------------------------------------

    def _open(self, real):
        def call(path, flags, *how, **named):
            if not self._is_own(path):
                return real(path, flags, *how, **named)
            self._refuse("create" if flags & os.O_CREAT else "open")
            fd = real(path, flags, *how, **named)
            self._files.add(fd)
            return fd

        return call

    def _stat(self, real):
        def call(path, **named):
            if self._is_own(path):
                self._refuse("stat")
            return real(path, **named)

        return call

    def _of_paths(self, name, real):
        def call(path, *more):
            if self._is_own(path):
                self._refuse(name)
            return real(path, *more)

        return call

    def _of_file(self, name, real):
        def call(fd, *more):
            if fd in self._files:
                self._refuse(name)
            return real(fd, *more)

        return call

    def _pwrite(self, real):
        def call(fd, data, offset):
            if fd not in self._files:
                return real(fd, data, offset)
            if fd in self._unsynced:
                self.wrong.append("a write behind a sync that failed")
            kind = self._meet("pwrite")
            if kind == "short":
                return real(fd, data[:1], offset)
            if kind is not None:
                raise _error(kind)
            return real(fd, data, offset)

        return call

    def _fdatasync(self, real):
        def call(fd):
            if fd not in self._files:
                return real(fd)
            if fd in self._unsynced:
                self.wrong.append("a sync that failed was tried again")
            try:
                self._refuse("fdatasync")
            except OSError:
                self._unsynced.add(fd)
                raise
            return real(fd)

        return call

    def _close(self, real):
        def call(fd):
            own = fd in self._files
            self._files.discard(fd)
            self._unsynced.discard(fd)
            real(fd)  # a close that fails has closed
            if own:
                self._refuse("close")

        return call

    def _map(self, real):
        calls = self

        class Map(real):
            """A map whose making and whose advice may fail."""

            def __new__(cls, fd, *more, **named):
                if fd in calls._files:
                    calls._refuse("mmap")
                return super().__new__(cls, fd, *more, **named)

            def madvise(self, *how):
                calls._refuse("madvise")
                super().madvise(*how)

        return Map

    def _libc(self, real):
        calls = self

        class Libc:
            """What is called past the interpreter."""

            @staticmethod
            def fallocate(fd, mode, offset, length):
                kind = calls._meet("punch" if mode & _PUNCH_HOLE else "reserve") if fd in calls._files else None
                if kind is None:
                    return real.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length))
                ctypes.set_errno(_error(kind).errno)
                return -1

        return Libc

    def _read(self, path, mode):
        self._refuse("read sidecar")
        return builtins.open(path, mode)

    def _written(self):
        real, calls = pathlib.Path.write_bytes, self

        def call(path, data):
            if calls._is_own(path) and (kind := calls._meet("write sidecar")) is not None:
                real(path, data[: len(data) // 2])
                raise _error(kind)
            return real(path, data)

        return call


def _error(kind):
    code = {"ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR}.get(kind, errno.EIO)
    return OSError(code, os.strerror(code))
