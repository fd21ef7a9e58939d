"""Writes a dump tensor by tensor, rows by rows: dumps larger than memory. All or nothing."""

from __future__ import annotations

import abc
import contextlib
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kvcodec.dumps.names import shown
from kvcodec.dumps.tensors import Entry
from kvcodec.errors import DtypeError, DumpError, ShapeError

Declared = tuple[str, np.dtype[Any], tuple[int, ...]]
Pieces = list[tuple[int, bytes]]  # each with the byte of the file that it goes to


class DumpWriter(abc.ABC):
    """A dump in the making. A context manager that aborts unless commit() was called. Of each format there is a class
    that knows where in the file the tensors go. Different tensors may be written from different threads.

    tensors: (name, dtype, shape) with one axis at least. metadata: texts. Until commit() the bytes are in a
    temporary file beside `path`; a crash leaves nothing under `path`. A symbolic link is followed.
    Raises DumpError if `path` exists and not `overwrite`, or is no regular file, or cannot be written;
    DtypeError for a dtype that the format has not, ShapeError for a tensor without rows.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tensors: Sequence[tuple[str, DTypeLike, tuple[int, ...]]],
        metadata: Mapping[str, str],
        *,
        overwrite: bool = False,
    ) -> None:
        self.path = _target(path, overwrite)
        self._overwrite = overwrite
        declared = [(name, np.dtype(dtype), tuple(map(int, shape))) for name, dtype, shape in tensors]
        for name, _, shape in declared:
            if not shape or min(shape) < 0:
                raise ShapeError(
                    f"{self.path}: tensor {shown(name)} has shape {list(shape)}, want sizes of 1 axis or more"
                )
        pieces, self._tensors = self._lay_out(declared, metadata)
        self._written: dict[str, list[tuple[int, int]]] = {name: [] for name in self._tensors}
        self._temporary = self.path.with_name(f".{self.path.name[:200]}.{secrets.token_hex(8)}.tmp")
        try:
            self._file = self._temporary.open("x+b", buffering=0)
        except OSError as error:
            raise DumpError(f"{self.path}: cannot create: {error.strerror}") from None
        try:
            for at, piece in pieces:
                self._put(at, memoryview(piece))
        except BaseException:
            self.abort()
            raise

    @abc.abstractmethod
    def _lay_out(self, declared: Sequence[Declared], metadata: Mapping[str, str]) -> tuple[Pieces, dict[str, Entry]]:
        """What the file holds beside rows, and where the rows of each tensor go. Raises DumpError, DtypeError."""

    def _put_rows(self, entry: Entry, start_row: int, array: NDArray[Any]) -> None:
        row_bytes = (entry.end - entry.begin) // entry.shape[0]
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._put(entry.begin + start_row * row_bytes, flat.data)

    def _finish(self) -> None:  # noqa: B027  # most formats have nothing to add
        """Called when all rows are there."""

    def write(self, name: str, start_row: int, array: NDArray[Any]) -> None:
        """Puts `array` at rows start_row and on (axis 0) of tensor `name`, in any order of calls.

        Raises DumpError for an unknown name, a full disk or a finished file; DtypeError, ShapeError if `array` is not
        rows of that tensor.
        """
        entry = self._entry(name)
        what = f"{self.path}: tensor {shown(name)}"
        if array.dtype != entry.dtype:
            raise DtypeError(f"{what}: rows are {array.dtype}, want {entry.dtype}")
        if array.shape[1:] != entry.shape[1:] or array.ndim != len(entry.shape):
            raise ShapeError(f"{what}: rows have shape {list(array.shape)}, want [n, *{list(entry.shape[1:])}]")
        stop_row = start_row + array.shape[0]
        if not 0 <= start_row <= stop_row <= entry.shape[0]:
            raise ShapeError(f"{what}: rows {start_row}:{stop_row}, want a range in 0:{entry.shape[0]}")
        if array.size:
            self._put_rows(entry, start_row, array)
        self._mark(name, start_row, stop_row)

    def commit(self) -> None:
        """Makes the file durable and gives it its name, at once and whole.

        Raises DumpError, and removes what was written, if a row is missing or the name is taken.
        """
        self._check_open()
        try:
            for name, entry in self._tensors.items():
                self._check_whole(name, entry.shape[0])
            self._finish()
            self._publish()
        except OSError as error:
            self.abort()
            raise DumpError(f"{self.path}: cannot write: {error.strerror}") from None
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Removes what was written. Does nothing after commit()."""
        if not self._file.closed:
            self._file.close()
            with contextlib.suppress(OSError):
                self._temporary.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _publish(self) -> None:
        os.fsync(self._file.fileno())
        if self._overwrite:
            os.replace(self._temporary, self.path)
        else:
            try:
                os.link(self._temporary, self.path)  # unlike rename, fails if the name is taken
            except FileExistsError:
                raise DumpError(f"{self.path}: exists") from None
            self._temporary.unlink()
        self._file.close()
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _check_open(self) -> None:
        if self._file.closed:
            raise DumpError(f"{self.path}: the writer has finished")

    def _entry(self, name: str) -> Entry:
        self._check_open()
        try:
            return self._tensors[name]
        except KeyError:
            raise DumpError(f"{self.path}: no tensor {shown(name)} was declared") from None

    def _put(self, at: int, view: memoryview) -> None:
        while view:
            try:
                done = os.pwrite(self._file.fileno(), view, at)
            except OSError as error:
                raise DumpError(f"{self.path}: cannot write: {error.strerror}") from None
            view, at = view[done:], at + done

    def _mark(self, name: str, start: int, stop: int) -> None:
        """Notes rows as written; ranges that follow each other, as they mostly do, are one."""
        ranges = self._written[name]
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, stop))

    def _check_whole(self, name: str, rows: int) -> None:
        missing = 0
        for start, stop in sorted(self._written[name]):
            if start > missing:
                break
            missing = max(missing, stop)
        if missing < rows:
            raise DumpError(f"{self.path}: row {missing} of tensor {shown(name)} was not written")


def _target(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """Where `path` leads to, which must be nothing, or with `overwrite` a regular file."""
    try:
        target = Path(os.path.realpath(path))
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return target
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise DumpError(f"{path}: cannot write: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(mode):
        raise DumpError(f"{path}: not a regular file")
    if not overwrite:
        raise DumpError(f"{path}: exists")
    return target
