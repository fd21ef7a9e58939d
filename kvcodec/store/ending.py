"""Forgetting tokens: all of a sequence, its tail, a range. Their bytes become free when blocks are cleaned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcodec.errors import ShapeError
from kvcodec.layout import DropScope, Kind
from kvcodec.log.frame import Record, new_record
from kvcodec.store.sequence_index import SequenceIndex

if TYPE_CHECKING:
    from kvcodec.store.sequence import Sequence


def drop_record(sequence: int, scope: DropScope, first: int = 0, end: int = 0, since: int = 0) -> Record:
    """A DROP record. since: with scope SUMMARY the least lsn of the rows that it makes a summary."""
    range_ = {"first_token": first, "end_token": end, "summary_lsn": since}
    return new_record(Kind.DROP, b"", sequence=sequence, scope=scope, **range_)


def is_whole_drop(record: Record) -> bool:
    """Whether a record ends a sequence."""
    return record.kind == Kind.DROP and int(record.header["scope"]) == DropScope.SEQUENCE


def check_servable(index: SequenceIndex, length: int) -> None:
    """Raises ShapeError if the sequence could not be read as one of `length` tokens: a window has left some behind, or
    a summary stands for tokens on both sides.
    """
    for first, end in index.summarized:
        if first < length < end:
            raise ShapeError(
                f"sequence {index.info.name!r}: a summary of tokens {first} to {end - 1} cannot be cut at {length}"
            )
    for (layer, id_), extents in index.maps.items():
        window = index.model.layers[layer].window
        reach = extents.run_end(window, length) if window else min(extents.reach, length)
        if reach != length:
            raise ShapeError(
                f"sequence {index.info.name!r}: layer {layer}, stream {id_.name.lower()} no longer holds what "
                f"{length} tokens need, its window of {window} has gone on"
            )


def truncate(sequence: Sequence, length: int, index: SequenceIndex) -> Record:
    """The record that ends a sequence, of which all rows are in the log, behind its first `length` tokens.

    Raises ShapeError.
    """
    if not 0 <= length <= len(sequence):
        raise ShapeError(f"sequence {sequence.name!r}: {length} tokens to be left of {len(sequence)}")
    check_servable(index, length)
    return drop_record(index.info.id, DropScope.TAIL, length)


def evict(sequence: Sequence, first: int, end: int, settled: int, index: SequenceIndex) -> Record:
    """The record that evicts tokens first … end - 1 from a sequence, and names those beside them that were evicted
    before, so that the records that did it are worth nothing any more. settled: tokens before it have left all windows.

    Raises ShapeError.
    """
    check_settled(sequence, first, end, settled, index, "evicted")
    gone = [set(extents.evicted(0, settled)) for extents in index.maps.values()]
    whole = {own for own in set.intersection(*gone) if not any(own[0] < b and a < own[1] for a, b in index.summarized)}
    while beside := [own for own in whole if own[0] <= end and first <= own[1]]:
        first, end = min(first, *(start for start, _ in beside)), max(end, *(stop for _, stop in beside))
        whole -= set(beside)
    return drop_record(index.info.id, DropScope.RANGE, first, end)


def check_settled(sequence: Sequence, first: int, end: int, settled: int, index: SequenceIndex, what: str) -> None:
    """Raises ShapeError unless tokens first … end - 1 are there, outside of windows, and no summary has others too."""
    if not 0 <= first < end <= len(sequence):
        raise ShapeError(f"sequence {sequence.name!r}: tokens {first} to {end - 1} to be {what} of {len(sequence)}")
    if end > settled:
        raise ShapeError(
            f"sequence {sequence.name!r}: token {end - 1} is to be {what}, but those from {settled} on are still in a "
            f"residual window"
        )
    for start, stop in index.summarized:
        if start < end and first < stop and not first <= start < stop <= end:
            raise ShapeError(
                f"sequence {sequence.name!r}: tokens {first} to {end - 1} to be {what}, but a summary stands for "
                f"{start} to {stop - 1}: all of it or nothing"
            )
