"""An input of the fuzzer as a list of choices: short bytes that say which seed is changed, and how.

Whatever the bytes are, they mean something; bytes that are missing are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Takes choices from the front of `data`."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """Bytes that nothing was chosen by yet."""
        return max(0, len(self._data) - self._at)

    def take(self, size: int) -> bytes:
        """The next bytes, filled up with zeros."""
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken.ljust(size, b"\0")

    def number(self, size: int = 1) -> int:
        """An unsigned number of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1; 0 if there is none. As few bytes as `limit` needs."""
        return self.number(max(1, (limit - 1).bit_length() + 7 >> 3)) % limit if limit > 0 else 0

    def pick(self, among: Sequence[T]) -> T:
        """One of some things."""
        return among[self.below(len(among))]
