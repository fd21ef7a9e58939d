"""Products of a few vectors with a block of atoms: the register tile of kernels/projection.py.

Each number is its own chain of float32 products and sums in the order of the channels, never fused, so that it comes
out the same on every processor and wherever its vector stands among others. Processors that multiply and add side by
side lose nothing by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._vectors import INT, all_of, broadcast, compiled, load, memory, store

COLUMNS = 16  # atoms of a tile
ROWS = 6  # vectors of a full tile: 12 of 16 registers of 8 floats are sums
_LANES = 8
_VECTOR = ir.VectorType(ir.FloatType(), _LANES)


def project_rows(rows: Any, stride: Any, atoms: Any, step: Any, dim: Any, out: Any, width: Any) -> None:
    """ROWS vectors (`stride` bytes apart) times COLUMNS atoms: atoms (dim, COLUMNS), `step` bytes from one channel to
    the next; out, `width` bytes from one vector to the next. All float32 addresses.
    """
    _project(rows, stride, atoms, step, dim, out, width, ROWS)


def project_row(rows: Any, stride: Any, atoms: Any, step: Any, dim: Any, out: Any, width: Any) -> None:
    """`project_rows` of one vector."""
    _project(rows, stride, atoms, step, dim, out, width, 1)


def _project(rows: Any, stride: Any, atoms: Any, step: Any, dim: Any, out: Any, width: Any, count: int) -> None:
    for r in range(count):
        vector, total = memory(rows + r * stride, dim, np.float32), np.zeros(COLUMNS, np.float32)
        for c in range(dim):
            total = total + vector[c] * memory(atoms + c * step, COLUMNS, np.float32)
        memory(out + r * width, COLUMNS, np.float32)[:] = total


def _register(twin: Callable[..., None], count: int) -> None:
    @compiled(twin, types.void, INT, INT, INT, INT, INT, INT, INT)
    def _(b: Any, rows: Any, stride: Any, atoms: Any, step: Any, dim: Any, out: Any, width: Any) -> None:
        zero, parts = all_of(_VECTOR, 0.0), range(COLUMNS // _LANES)
        allocate: Any = cgutils.alloca_once_value
        sums = [[allocate(b, zero) for _ in parts] for _ in range(count)]
        with cgutils.for_range(b, dim) as loop:
            row = b.add(rows, b.shl(loop.index, ir.Constant(dim.type, 2)))
            atom = b.add(atoms, b.mul(loop.index, step))
            columns = [load(b, b.add(atom, ir.Constant(dim.type, 4 * _LANES * part)), _VECTOR) for part in parts]
            for r in range(count):
                at = b.add(row, b.mul(stride, ir.Constant(dim.type, r)))
                number = broadcast(b, load(b, at, ir.FloatType()), _VECTOR)
                for place, column in zip(sums[r], columns, strict=True):
                    b.store(b.fadd(b.load(place), b.fmul(number, column)), place)
        for r in range(count):
            for part in parts:
                at = b.add(b.mul(width, ir.Constant(dim.type, r)), ir.Constant(dim.type, 4 * _LANES * part))
                store(b, b.load(sums[r][part]), b.add(out, at))


_register(project_rows, ROWS)
_register(project_row, 1)
