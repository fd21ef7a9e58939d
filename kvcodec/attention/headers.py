"""What was trained for a stream as kernels read it: a header of addresses and numbers, and the arrays that it names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.rotation import Rotation
from kvcodec.layout import CHANNEL_LANE_TOKENS

_MEAN_BITS = 22
_BLOCK = CHANNEL_LANE_TOKENS
TURNED_AT_ONCE = 64 * _BLOCK  # positions for which a query is turned at once


class Header(ABC):
    """address: of the header, whose columns kernels/forms.py names; it stays as long as this object is there."""

    def __init__(self, columns: dict[int, int], rotation: Rotation | None) -> None:
        from kvcodec.kernels.forms import HEADER_COLUMNS

        self._columns = np.zeros(HEADER_COLUMNS, np.int64)
        self.enter(columns)
        self.address = self._columns.ctypes.data
        self.rotation = rotation

    def enter(self, columns: dict[int, int]) -> None:
        """Fill in columns, counted in bytes."""
        for column, number in columns.items():
            self._columns[column // 8] = number

    @abstractmethod
    def prepare_rebuilding(self) -> None:
        """Make what kernels take that rebuild rows, once."""

    @property
    @abstractmethod
    def work_bytes(self) -> int:
        """Bytes of the work space in which tables are made."""

    @abstractmethod
    def table_bytes(self, per_head: int) -> int:
        """Bytes of a table of products with up to four of so many query heads of a KV head."""

    @abstractmethod
    def bucket_bytes(self, heads: int) -> int:
        """Bytes of the buckets of as many query heads: 1, 2 or 4."""


def round_mean(mean: NDArray[np.float32], dim: int) -> tuple[NDArray[np.int32], int]:
    """A mean as `dim` integers of at most 22 bits, and the exponent of the power of two that they are multiplied by."""
    numbers, greatest = np.zeros(dim, np.int32), float(np.abs(mean).max(initial=0))
    if not greatest:
        return numbers, 0
    exponent = int(np.frexp(greatest)[1]) - _MEAN_BITS
    numbers[: len(mean)] = np.rint(np.ldexp(mean.astype(np.float64), -exponent))
    return numbers, exponent


def make_turns(rotation: Rotation | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cosines and sines (positions, 2, pairs): int16, Q15, of the nearest positions, and int32, Q30, of those of blocks
    of 64 below TURNED_AT_ONCE.
    """
    if rotation is None:
        return np.zeros((0, 2, 0), np.int16), np.zeros((0, 2, 0), np.int32)
    near = np.minimum((rotation.turns(np.arange(2 * _BLOCK)) + (1 << 14)) >> 15, 32767).astype(np.int16)
    return near, rotation.turns(np.arange(0, TURNED_AT_ONCE, _BLOCK))
