"""The bytes at the end of a log that no program unit holds yet."""

from __future__ import annotations

import mmap

import numpy as np

from kvcodec.flash.image import Bytes

_KEPT = 32 << 20  # bytes of memory that an empty tail may hold on to


class Tail:
    """Bytes that frames are built in, one after the other, and that leave in whole units. Its memory is used again:
    what `extend` and `first` return is good until the next `extend` or `drop`.
    """

    def __init__(self) -> None:
        self._memory = _pages(0)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, size: int) -> Bytes:
        """Room for `size` more bytes, which the caller fills."""
        need = self._size + size
        if need > len(self._memory):
            grown = _pages(max(need, 2 * self._size))
            grown[: self._size] = self.first(self._size)
            self._memory = grown
        self._size = need
        return self._memory[need - size : need]

    def first(self, size: int) -> Bytes:
        """The first `size` bytes."""
        return self._memory[:size]

    def rest(self, start: int) -> Bytes:
        """The bytes from number `start` on."""
        return self._memory[start : self._size]

    def drop(self, size: int) -> None:
        """Forget the first `size` bytes."""
        left = self.rest(size).copy()
        if len(self._memory) > _KEPT:
            self._memory = _pages(len(left))
        self._memory[: len(left)] = left
        self._size = len(left)


def _pages(size: int) -> Bytes:
    """Memory that begins with a page, as writes past the page cache want it."""
    return np.frombuffer(mmap.mmap(-1, size), np.uint8) if size else np.empty(0, np.uint8)
