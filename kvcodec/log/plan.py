"""Laying records into frames and frames into erase blocks, before a byte is written.

A frame never straddles an erase block. A record too large for the rest of a block is split by heads; the parts
keep its lsn and are one record to a reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcodec.errors import SpecError
from kvcodec.layout import FRAME_HEADER
from kvcodec.log.frame import MAX_FRAME, Record, close_frame, place_record


@dataclass
class PlannedFrame:
    """Records of one frame with their lsns, and where in the block each begins; `fresh` if the frame is the first of a
    block yet to be opened.
    """

    fresh: bool
    offset: int
    end: int
    records: list[tuple[int, Record]]
    places: list[int] = field(default_factory=list)


def plan_frames(
    records: Sequence[tuple[int, Record]], *, offset: int, first: int, block_bytes: int
) -> list[PlannedFrame]:
    """Frames for `records` (lsn, record), from byte `offset` of the open block on.

    first: where the first frame of a fresh block begins. Raises SpecError if one head doesn't fit a block.
    """
    frames: list[PlannedFrame] = []
    queue = deque(records)
    fresh, start = False, offset
    while queue:
        frame = _fill(queue, start, block_bytes)
        if frame.records:
            frame.fresh, fresh = fresh, False
            frames.append(frame)
            start = frame.end
        elif not fresh:
            fresh, start = True, first
        else:
            need = frame_end(first, min(queue[0][1].size, block_bytes + 1), queue[0][1].kind)
            raise SpecError(
                f"a record of {queue[0][1].size} bytes ({queue[0][1].pieces} heads) needs {need - first} in a block, "
                f"and an erase block of this device has {block_bytes - first}: one head must fit"
            )
    return frames


def frame_end(position: int, size: int, kind: int) -> int:
    """Where in a block a frame ends that begins at `position` and has one record, of `size` bytes."""
    return close_frame(place_record(position + FRAME_HEADER.itemsize, kind) + size)


def _fill(queue: deque[tuple[int, Record]], start: int, block_bytes: int) -> PlannedFrame:
    """One frame of as many records as fit, taken off the queue; at the block's end the last one is split."""
    frame = PlannedFrame(False, start, start, [])
    position = start + FRAME_HEADER.itemsize
    while queue:
        lsn, record = queue[0]
        at = place_record(position, record.kind)
        position = at + record.size
        end = close_frame(position)
        if frame.records and end - start > MAX_FRAME:
            break
        if end > block_bytes:
            pieces = _pieces_that_fit(record, at, block_bytes)
            if not pieces or record.split is None:
                break
            head, rest = record.split(pieces)
            queue[0] = (lsn, rest)
            frame.records.append((lsn, head))
            frame.places.append(at)
            frame.end = close_frame(at + head.size)
            break
        queue.popleft()
        frame.records.append((lsn, record))
        frame.places.append(at)
        frame.end = end
    return frame


def _pieces_that_fit(record: Record, at: int, block_bytes: int) -> int:
    for pieces in range(record.pieces - 1, 0, -1):
        if record.split is not None and close_frame(at + record.split(pieces)[0].size) <= block_bytes:
            return pieces
    return 0
