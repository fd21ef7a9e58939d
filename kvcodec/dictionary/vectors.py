"""Vectors to train on, block by block: no more than some of them need be in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import ShapeError

BLOCK = 64  # vectors, or tokens, that are read at once


class Vectors(Protocol):
    """Blocks of finite vectors, each (n, dim) float32, that can be read in any order."""

    @property
    def dim(self) -> int: ...

    @property
    def counts(self) -> Sequence[int]:
        """Vectors of each block."""
        ...

    def read(self, block: int) -> NDArray[np.float32]:
        """The vectors of a block, an array of the caller's own."""
        ...


class ArrayVectors:
    """Vectors (n, d) that are in memory. Raises ShapeError."""

    def __init__(self, array: NDArray[Any], block: int = BLOCK) -> None:
        if array.ndim != 2 or not array.shape[1]:
            raise ShapeError(f"vectors: {array.shape}, want (n, d)")
        self._array, self._block = array, block
        self.dim = int(array.shape[1])
        self.counts = [min(block, len(array) - start) for start in range(0, len(array), block)]

    def read(self, block: int) -> NDArray[np.float32]:
        return self._array[block * self._block : (block + 1) * self._block].astype(np.float32)


def read_blocks(vectors: Vectors, blocks: Sequence[int]) -> NDArray[np.float32]:
    """The vectors of some blocks, one after the other."""
    parts = [vectors.read(int(block)) for block in blocks]
    return np.concatenate(parts) if parts else np.zeros((0, vectors.dim), np.float32)


def spread_blocks(vectors: Vectors, most: int) -> list[int]:
    """Blocks, spread evenly over all, of about `most` vectors at most."""
    blocks, total = len(vectors.counts), sum(vectors.counts)
    kept = max(1, min(blocks, blocks * most // max(1, total)))
    found: list[int] = np.unique(np.linspace(0, blocks - 1, kept).round().astype(int)).tolist()
    return found


def read_parts(vectors: Vectors, count: int) -> Iterator[NDArray[np.float32]]:
    """All vectors in order, about `count` at a time."""
    begun: list[int] = []
    for block in range(len(vectors.counts)):
        begun.append(block)
        if sum(vectors.counts[n] for n in begun) >= count:
            yield read_blocks(vectors, begun)
            begun = []
    if begun:
        yield read_blocks(vectors, begun)


def split_batches(order: NDArray[np.int64], counts: Sequence[int], batch: int) -> list[NDArray[np.int64]]:
    """The blocks in this order as mini-batches of about `batch` vectors, all of about as many blocks."""
    total = sum(counts)
    return np.array_split(order, max(1, min(len(order), round(total / batch))))
