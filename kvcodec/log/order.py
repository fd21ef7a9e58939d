"""Records of both lanes in the order in which they were first written, each once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvcodec.layout import HEADERS, RECORD_HEADER, Kind
from kvcodec.log.located import Located, RecordTable, join_records

_IN_PARTS = (Kind.GROUP, Kind.STEP, Kind.ROWS)


def order_records(parts: Sequence[Sequence[Located]]) -> RecordTable:
    """One table by lsn. Of a record that is there several times the last one counts, where `parts` come in the order in
    which copies were made.
    """
    table = join_records(parts)
    lsns = np.ascontiguousarray(table.columns(RECORD_HEADER)["lsn"])
    if np.all(lsns[1:] > lsns[:-1]):
        return table
    heads = first_heads(table)
    order = np.lexsort((np.arange(len(lsns)), heads, lsns))
    same = (lsns[order][1:] == lsns[order][:-1]) & (heads[order][1:] == heads[order][:-1])
    return RecordTable(table.entries[order[np.append(~same, True)]] if len(order) else table.entries)


def first_heads(table: RecordTable) -> npt.NDArray[np.int64]:
    """The first head of the part that each record is (records,); 0 of those that are never split.

    A DROP record that damage implies is behind all parts of the record whose lsn it has.
    """
    out, kinds = np.zeros(len(table), np.int64), table.kinds
    for kind in _IN_PARTS:
        own = kinds == kind
        if own.any():
            out[own] = table.columns(HEADERS[kind])["first_head"][own]
    out[(kinds == Kind.DROP) & (table.columns(RECORD_HEADER)["sequence"] == 0)] = np.iinfo(np.int64).max
    return out
