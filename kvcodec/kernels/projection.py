"""Products of vectors with all atoms of a dictionary: the same numbers on every processor, for every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import inline, jit
from kvcodec.kernels._projection_tiles import COLUMNS, ROWS, project_row, project_rows

BLOCK = np.int64(96)  # vectors that take turns with one tile of atoms, all of them in the first cache


@inline
def project_tile(source: Any, stride: Any, count: Any, place: Any, step: Any, dim: Any, sink: Any, width: Any) -> None:
    """`count` vectors from the address `source` on, `stride` bytes apart, times a tile of atoms. See project_rows."""
    row = np.int64(0)
    while row < count:
        one, out = np.int64(source + row * stride), np.int64(sink + row * width)
        if row + ROWS <= count:
            project_rows(one, stride, place, step, dim, out, width)
            row += ROWS
        else:
            project_row(one, stride, place, step, dim, out, width)
            row += 1


@jit
def project(vectors: NDArray[np.float32], atoms: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """out (n, N) = vectors (n, d) times atoms, which lie as (N / COLUMNS, d, COLUMNS); N is a multiple of COLUMNS.

    Each number is a chain of rounded products and sums in the order of the channels.
    """
    count, dim = vectors.shape
    stride, width = np.int64(4 * dim), np.int64(4 * out.shape[1])
    step = np.int64(4 * COLUMNS)
    for first in range(0, count, BLOCK):
        end = min(np.int64(first + BLOCK), np.int64(count))
        for tile in range(atoms.shape[0]):
            place = np.int64(atoms.ctypes.data + tile * dim * step)
            source = np.int64(vectors.ctypes.data + first * stride)
            sink = np.int64(out.ctypes.data + first * width + tile * step)
            project_tile(source, stride, np.int64(end - first), place, step, np.int64(dim), sink, width)


def tile_atoms(atoms: Any) -> NDArray[np.float32]:
    """Atoms (N, d) as `project` takes them, zeros added up to a multiple of COLUMNS atoms."""
    count, dim = atoms.shape
    tiles = -(-count // COLUMNS)
    padded = np.zeros((tiles * COLUMNS, dim), np.float32)
    padded[:count] = atoms
    return np.ascontiguousarray(padded.reshape(tiles, COLUMNS, dim).transpose(0, 2, 1))
