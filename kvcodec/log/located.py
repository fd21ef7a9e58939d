"""Records as a reader finds them: where each lies, and its header. One by one, or many as rows of one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from kvcodec.layout import HEADERS, RECORD_HEADER, SIDECAR_ENTRY

_HEADER_AT: int = SIDECAR_ENTRY.fields["header"][1]  # type: ignore[index]
HEADER_ROOM: int = SIDECAR_ENTRY["header"].itemsize


class Place(NamedTuple):
    """Where a record lies. The generation tells whether the block has been erased since."""

    generation: int
    block: int
    offset: int


NOWHERE = Place(0, 0, 0)  # of what a reader concludes without a record

PLACE = np.dtype([(field, SIDECAR_ENTRY[field]) for field in Place._fields])


class Located(NamedTuple):
    """A record's place and a copy of its header."""

    place: Place
    header: np.void


class RecordTable(Sequence[Located]):
    """Records in log order. entries: SIDECAR_ENTRY (records,), each header followed by zeros."""

    def __init__(self, entries: npt.NDArray[np.void]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, at: int) -> Located: ...
    @overload
    def __getitem__(self, at: slice) -> RecordTable: ...
    def __getitem__(self, at: int | slice) -> Located | RecordTable:
        if isinstance(at, slice):
            return RecordTable(self.entries[at])
        entry = self.entries[at]
        return Located(Place(*(int(entry[field]) for field in Place._fields)), _read_header(entry["header"].tobytes()))

    def columns(self, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
        """The headers as `dtype` (records,), a view: of use for the rows of that kind."""
        return self._headers_as(dtype)

    @property
    def words(self) -> npt.NDArray[np.uint64]:
        """The headers as uint64 (records, words), a view."""
        return self._headers_as(np.dtype(("<u8", (HEADER_ROOM // 8,))))

    def _headers_as(self, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        spec = {"names": ["header"], "formats": [dtype], "offsets": [_HEADER_AT], "itemsize": SIDECAR_ENTRY.itemsize}
        columns: npt.NDArray[Any] = self.entries.view(np.dtype(spec))["header"]  # type: ignore[call-overload]
        return columns

    @property
    def places(self) -> npt.NDArray[np.void]:
        """Place of each record (records,): generation, block, offset."""
        out = np.empty(len(self), PLACE)
        for field in Place._fields:
            out[field] = self.entries[field]
        return out

    @property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """Kind of each record (records,)."""
        return np.ascontiguousarray(self.columns(RECORD_HEADER)["kind"])


def join_records(parts: Iterable[Sequence[Located]]) -> RecordTable:
    """One table of records that came in parts."""
    tables = [part.entries if isinstance(part, RecordTable) else _tabulate(part) for part in parts if len(part)]
    if len(tables) == 1:
        return RecordTable(tables[0])
    return RecordTable(np.concatenate(tables) if tables else np.empty(0, SIDECAR_ENTRY))


def _tabulate(located: Sequence[Located]) -> npt.NDArray[np.void]:
    headers = b"".join(one.header.tobytes().ljust(HEADER_ROOM, b"\0") for one in located)
    return fill_table(np.array([one.place for one in located], np.uint64), headers)


def fill_table(places: npt.NDArray[np.uint64], headers: bytes | bytearray) -> npt.NDArray[np.void]:
    """Entries of records at `places` (records, generation block offset), whose headers are filled up with zeros."""
    entries = np.empty(len(places), SIDECAR_ENTRY)
    for field, column in zip(Place._fields, places.T, strict=True):
        entries[field] = column
    entries["header"] = np.frombuffer(headers, SIDECAR_ENTRY["header"])
    return entries


def _read_header(raw: bytes) -> np.void:
    kind = int(np.frombuffer(raw, RECORD_HEADER, 1)[0]["kind"])
    header: np.void = np.frombuffer(raw, HEADERS.get(kind, RECORD_HEADER), 1)[0]
    return header
