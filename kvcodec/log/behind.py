"""Where a walk goes on behind frames that are gone on purpose (formats/frame.md, Recovery, 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvcodec.layout import Lane
from kvcodec.log.cursor import Cursor
from kvcodec.log.freed import FreedFrames
from kvcodec.log.recover import Found, alive


def freed_ends(
    freed: FreedFrames, told: Iterable[Iterable[tuple[Lane, int, int]]], lane: Lane, first: int
) -> list[int]:
    """Of the frames of a lane from `first` on the first one that is not gone, if that is not `first` itself: by what is
    known, and by what else frames behind it say, each with those in front of it; the greatest first.

    told: what they say, as (lane, first, end), in log order. If the walk does not come to what says so, it counts for
    nothing: a FREED record that was not accepted names frames of blocks that nobody erased.
    """
    known, ends = FreedFrames(), {freed.end(lane, first)}
    for run in freed:
        known.add(*run)
    for runs in told:
        for run in runs:
            known.add(*run)
        ends.add(known.end(lane, first))
    return sorted((end for end in ends if end > first), reverse=True)


def behind_freed(later: Sequence[Found], cursor: Cursor, ends: Iterable[int]) -> Found | None:
    """The frame to go on at: of one of these numbers, in a later block, and alive. Old frames of its number that nobody
    accepted may be there as well.

    later: good frames beyond the cursor, in log order.
    """
    here = -1 if cursor.block is None else cursor.block.generation
    own = [found for found in alive(later, cursor.number) if found.block.generation > here]
    return next((found for end in ends for found in own if found.frame.id.number == end), None)
