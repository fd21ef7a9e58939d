"""Frames whose blocks were erased on purpose: what FREED records say (formats/record.md)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import numpy as np

from kvcodec.errors import CorruptRecord
from kvcodec.flash.image import Bytes
from kvcodec.layout import COUNTER_LIMIT, FREED_HEADER, FREED_RUN, Kind, Lane
from kvcodec.log.frame import Record, new_record

Run = tuple[int, int]  # first frame, and the one behind the last


class FreedFrames:
    """Numbers of frames that are gone on purpose, for each lane as disjoint ascending runs."""

    def __init__(self) -> None:
        self._runs: dict[Lane, list[Run]] = {lane: [] for lane in Lane}

    def add(self, lane: Lane, first: int, end: int) -> None:
        """Frames first … end - 1 are gone."""
        runs = self._runs[lane]
        low, high = bisect_left(runs, first, key=lambda run: run[1]), bisect_right(runs, end, key=lambda run: run[0])
        if low < high:
            first, end = min(first, runs[low][0]), max(end, runs[high - 1][1])
        runs[low:high] = [(first, end)]

    def covers(self, lane: Lane, first: int, end: int) -> bool:
        """Whether all frames first … end - 1 are gone; true of none."""
        return self.end(lane, first) >= end

    def end(self, lane: Lane, first: int) -> int:
        """The first frame from `first` on that is not gone."""
        runs = self._runs[lane]
        at = bisect_right(runs, first, key=lambda run: run[0]) - 1
        return max(first, runs[at][1]) if at >= 0 else first

    def __iter__(self) -> Iterator[tuple[Lane, int, int]]:
        return ((lane, *run) for lane, runs in self._runs.items() for run in runs)

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))


def freed_records(runs: Iterable[tuple[Lane, int, int]], limit: int) -> list[Record]:
    """FREED records of (lane, first, end), with bodies of at most `limit` bytes or one run."""
    rows = np.array([(lane, b"", first, end - first) for lane, first, end in runs], FREED_RUN)
    most = max(1, limit // FREED_RUN.itemsize)
    parts = [rows[start : start + most] for start in range(0, len(rows), most)]
    return [new_record(Kind.FREED, part.tobytes(), runs=len(part)) for part in parts]


def read_freed(header: np.void, body: Bytes, at: int) -> list[tuple[Lane, int, int]]:
    """Runs (lane, first, end) of a FREED record that lies at byte `at` of the file. Raises CorruptRecord."""
    if header.dtype != FREED_HEADER or body.size != int(header["runs"]) * FREED_RUN.itemsize or not body.size:
        raise CorruptRecord(at, "length of a FREED record")
    rows, lanes = body.view(FREED_RUN), set(map(int, Lane))
    found = []
    for row in rows:
        lane, first, frames = (int(row[field]) for field in ("lane", "first_frame", "frames"))
        if (
            lane not in lanes
            or not (1 <= first < COUNTER_LIMIT and 1 <= frames < COUNTER_LIMIT)
            or row["reserved"].any()
        ):
            raise CorruptRecord(at, "a run of frames of a FREED record")
        found.append((Lane(lane), first, first + frames))
    return found
