"""STEP records laid anew: what was written a step at a time scatters the rows of a layer over every page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvcodec.log.frame import Record
from kvcodec.store.extents import Extent
from kvcodec.store.outgoing import Outgoing
from kvcodec.store.records import OpenSpan, step_records
from kvcodec.store.sequence_index import Key, SequenceIndex
from kvcodec.store.window import OpenRows

_FEW = 4  # STEP records that are not worth a look at their rows


def is_scattered(index: SequenceIndex) -> bool:
    """Whether the open rows of a sequence lie in so many records that fewer might do."""
    return len(_lsns(extent for key in index.maps for extent in _steps(index, key))) > _FEW


def relaid_records(
    index: SequenceIndex, opened: Mapping[Key, OpenRows], outgoing: Mapping[Key, Outgoing], *, limit: int
) -> list[Record]:
    """Records of all open rows, which are in the log, that take the place of those there; none unless that makes half
    as many or fewer.

    Rows are written as they were, raw or coded, so nothing is rounded twice: not if they are there in another code.
    limit: bytes of a body, see step_records.
    """
    spans: list[OpenSpan] = []
    present: set[int] = set()
    for key, open_ in opened.items():
        own = outgoing[key].span(open_, anew=True)
        if own is None:
            continue
        extents = index.maps[key].covering(open_.first, open_.end)
        if any(extent.coded.step != own.spec for extent in extents):
            return []
        spans.append(own)
        present |= _lsns(extents)
    records = step_records(index.info.id, spans, limit=limit)
    return records if 2 * len(records) <= len(present) else []


def _steps(index: SequenceIndex, key: Key) -> Iterable[Extent]:
    """The newest extents of a stream, as far as they are STEP records."""
    for extent in reversed(index.maps[key].covering(0, index.length)):
        if extent.coded.step is None:
            return
        yield extent


def _lsns(extents: Iterable[Extent]) -> set[int]:
    return {extent.coded.lsn for extent in extents}
