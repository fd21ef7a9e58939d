"""Frames that a block did not take, out of memory and into another one: their records, and where these lie then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kvcodec.flash.block import Block
from kvcodec.flash.image import Bytes
from kvcodec.layout import FrameType
from kvcodec.log.frame import Frame, Record, host_bytes, read_frame
from kvcodec.log.located import Located, Place
from kvcodec.log.walk import Walk


class Unwritten(NamedTuple):
    """A frame that is to be written again: how it was, its type and bytes, how many of them are rows, its records with
    their lsns, and where these were to lie.
    """

    frame: Frame
    type: FrameType
    size: int
    host: int
    records: list[tuple[int, Record]]
    places: list[Place]


def unwritten_frames(data: Bytes, starts: Iterable[int], written: int, block: Block, uuid: bytes) -> list[Unwritten]:
    """The frames that begin at bytes `starts` of a block and do not end before byte `written`.

    data: of the block, as far as anything was meant for it.
    """
    out = []
    for start in sorted(starts):
        frame = read_frame(data, start, generation=block.generation, uuid=uuid, base=0)
        if frame.end <= written:
            continue
        records = [(int(header["lsn"]), _take_record(data, at, header)) for at, header in frame.records]
        places = [Place(block.generation, block.number, at) for at, _ in frame.records]
        host = sum(host_bytes(header) for _, header in frame.records)
        out.append(Unwritten(frame, FrameType(frame.id.type), frame.end - start, host, records, places))
    return out


def _take_record(data: Bytes, at: int, header: np.void) -> Record:
    start = at + int(header["header_bytes"])
    return Record(np.array(header), data[start : start + int(header["body_bytes"])])


def cut_span(walk: Walk, block: Block, number: int) -> None:
    """The frames of a block from `number` on are not in it."""
    span = walk.spans.get(block.generation)
    if span is not None and span.first < number:
        walk.spans[block.generation] = span._replace(end=number)
    elif span is not None:
        del walk.spans[block.generation]


class Moves:
    """Records that had a place already, and where they are now."""

    def __init__(self) -> None:
        self._now: dict[Place, Located] = {}  # by their first places
        self._first: dict[Place, Place] = {}  # of those that were moved

    def add(self, places: Sequence[Place], located: Sequence[Located]) -> None:
        """Records that were to lie at these places have been written elsewhere."""
        for old, new in zip(places, located, strict=True):
            first = self._first.pop(old, old)
            self._first[new.place], self._now[first] = first, new

    def take(self, located: Sequence[Located]) -> tuple[Sequence[Located], list[Located]]:
        """These records where they are now, and those others that were moved; nothing is known of moves then."""
        if not self._now:
            return located, []
        own = [self._now.pop(one.place, one) for one in located]
        others = list(self._now.values())
        self._now, self._first = {}, {}
        return own, others
