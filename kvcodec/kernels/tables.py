"""Tables of products of queries with what keys are coded over: a dictionary, or product codes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit
from kvcodec.kernels._simd import load_long
from kvcodec.kernels.forms import GROUPS
from kvcodec.kernels.lookup import make_atom_table
from kvcodec.kernels.product_tables import make_product_table


@jit
def make_tables(
    jobs: NDArray[np.int64],
    numbers: NDArray[np.int32],
    shifts: NDArray[np.int64],
    factors: NDArray[np.int32],
    memory: NDArray[np.uint8],
) -> None:
    """Tables of products. jobs, a row each: its address, that of the dictionary or of the product codes, where the
    stream's channels begin in a query, number of the query, its first head and how many, at most 4. The others as of
    attend_items; memory: work_bytes of lookup.py or of product_tables.py.
    """
    heads, stride = numbers.shape[1], 4 * numbers.shape[2]
    for n in range(jobs.shape[0]):
        table, trained, column, asked, head, count = (
            jobs[n, 0], jobs[n, 1], jobs[n, 2], jobs[n, 3], jobs[n, 4], jobs[n, 5],
        )  # fmt: skip
        first = asked * heads + head
        own, work = numbers.ctypes.data + stride * first + 4 * column, memory.ctypes.data
        if load_long(trained + GROUPS):
            make_product_table(table, trained, own, stride, count, work)
        else:
            query = shifts.ctypes.data + 8 * first, factors.ctypes.data + 4 * first, own
            make_atom_table(table, trained, query, stride, count, work)
