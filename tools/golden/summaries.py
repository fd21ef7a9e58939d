"""Summaries that are not what they ought to be: GROUP records with positions, and the DROP records behind them."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec import layout
from kvcodec.codecs.raw import RawCodec
from kvcodec.layout import DropScope, DtypeId, StreamId
from kvcodec.log.frame import Record
from kvcodec.store.ending import drop_record
from kvcodec.store.model import Stream
from kvcodec.store.records import summary_record
from tools.golden.forge import Forge, Forgeries
from tools.golden.forged import forged_group, forged_rows, with_body

CASES = Forgeries()
FIRST, END, ROWS = 2, 12, 3


def forged_summary(stream: StreamId, rows: int = ROWS) -> Record:
    """Rows for tokens 2 to 11."""
    own = np.zeros(rows, layout.POSITION)
    own["position"], own["visible_from"] = np.arange(rows) + FIRST, END
    codec, dtype = RawCodec(stream), DtypeId.BFLOAT16
    return summary_record(1, 0, Stream(stream, 2, 16), FIRST, forged_rows(rows, stream), codec, dtype, own)


def placed(stream: StreamId, **fields: int) -> Record:
    """With other positions of the row in the middle."""
    record = forged_summary(stream)
    body = np.frombuffer(bytes(record.body), np.uint8).copy()
    at = int(record.header["error_bytes"])
    for name, value in fields.items():
        body[at : at + ROWS * layout.POSITION.itemsize].view(layout.POSITION)[name][1] = value
    return with_body(record, body.tobytes())


def summary(name: str, shows: str, *records: Record, at: str = "open", **fields: Any) -> None:
    """Register a log with a summary of these records. fields: of the header of the first of them."""

    @CASES.bad(name, shows, at=at, frozen=False)
    def _(forge: Forge) -> None:
        forge.begin()
        forge.frame(*(forge.seal(forged_group(stream)) for stream in (StreamId.K, StreamId.V)))
        since = forge.lsn + 1
        first, *others = records
        sealed = [forge.seal(first, **fields), *map(forge.seal, others)]
        forge.frame(*sealed, forge.seal(drop_record(1, DropScope.SUMMARY, FIRST, END, since)))


K, V = StreamId.K, StreamId.V
summary("summary-size", "positions of another size than of its rows", forged_summary(K), position_bytes=128)
summary("summary-rows", "a summary of more rows in V than in K", forged_summary(K), forged_summary(V, 4))
summary("summary-long", "a summary of more rows than tokens", forged_summary(K, 11), forged_summary(V, 11))
for _name, _shows, _fields in (
    ("before", "before its tokens", {"position": FIRST - 1}),
    ("behind", "behind its tokens", {"position": END}),
    ("early", "that is seen before it stands", {"position": 5, "visible_from": 4}),
    ("never", "that is never seen", {"visible_from": layout.MAX_TOKEN + 1}),
    ("differs", "that is another one in K", {"visible_from": END + 1}),
):
    for _stream in (K, V):
        _records = [placed(own, **_fields) if own == _stream else forged_summary(own) for own in (K, V)]
        summary(f"summary-{_name}-{_stream.name.lower()}", f"a row of a summary {_shows}", *_records, at="read")
