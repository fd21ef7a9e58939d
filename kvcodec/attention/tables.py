"""Tables of a query's products with what keys are coded over, and the buckets that values go into."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.columns import DICTIONARY, FORM, REBUILT, place_column
from kvcodec.attention.query import Queries
from kvcodec.attention.trained import header_at
from kvcodec.codecs.codec import take_out

_QUAD = 4  # query heads of a KV head that share a table


class QueryTables:
    """Tables of products of queries with what their keys are coded over: dictionaries and product codes.

    used: for each stream the addresses of the headers of the forms that strips name, 0 where a form has none or the
    stream is not scored. columns: where each stream's channels begin in a query.
    lookups: int64 (streams, forms), where kernels find the tables. `jobs` are for kernels.tables.make_tables.
    """

    def __init__(self, used: NDArray[np.int64], columns: Iterable[int], queries: Queries, kv_heads: int) -> None:
        count, heads, _ = queries.numbers.shape
        asked, head, many = _cut_quads(count, kv_heads, heads // kv_heads)
        self.lookups = np.zeros(used.shape, np.int64)
        tables, size = [], 0
        for stream, column in enumerate(columns):
            for address in np.unique(used[stream][used[stream] != 0]).tolist():
                step = header_at(address).table_bytes(heads // kv_heads)
                tables.append((stream, address, column, size, step))
                size += step * len(asked)
        self._memory = take_out(None, (size,), np.uint8)
        jobs = [np.empty((0, 6), np.int64)]
        for stream, address, column, offset, step in tables:
            place = self._memory.ctypes.data + offset
            self.lookups[stream][used[stream] == address] = place
            job = np.empty((len(asked), 6), np.int64)
            job.T[:] = np.broadcast_arrays(
                place + step * np.arange(len(asked)), address, column, asked, head, many
            )  # fmt: skip
            jobs.append(job)
        self.jobs = np.concatenate(jobs)
        self.work_bytes = max((header_at(address).work_bytes for _, address, *_ in tables), default=0)


def _cut_quads(queries: int, kv_heads: int, per_head: int) -> tuple[NDArray[np.int64], ...]:
    """(query, first head, how many) of each entry's heads, as kernels count them."""
    asked, kv_head, first = (
        grid.reshape(-1)
        for grid in np.meshgrid(
            np.arange(queries), np.arange(kv_heads), np.arange(0, per_head, _QUAD), indexing="ij"
        )
    )  # fmt: skip
    return asked, kv_head * per_head + first, np.minimum(per_head - first, _QUAD)


def used_headers(strips: NDArray[np.int64], forms: NDArray[np.int64], streams: int) -> NDArray[np.int64]:
    """int64 (streams, forms): addresses of the headers of the forms that strips name for each stream, else 0: where a
    form has none, or rows are rebuilt.
    """
    used = np.zeros((streams, len(forms)), np.int64)
    for n in range(streams):
        own = np.unique(strips[:, place_column(n) + FORM])
        used[n, own] = forms[own, DICTIONARY] * (forms[own, REBUILT] == 0)
    return used


def bucket_room(used: NDArray[np.int64], per_head: int) -> int:
    """Bytes of buckets of a KV head for what a stream's forms are coded over; 0 if none is."""
    from kvcodec.kernels.held import count_beside

    heads = int(count_beside(per_head))
    addresses: Any = np.unique(used[used != 0]).tolist()
    return max((-(-per_head // heads) * header_at(a).bucket_bytes(heads) for a in addresses), default=0)
