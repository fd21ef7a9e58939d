"""The index sidecar: where the log's end and its records were at the last close. A cache, deletable at any time.

It also remembers which frame was durable, so that the loss of the last frames is known as damage
(formats/sidecar.md).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvcodec.errors import CorruptRecord
from kvcodec.flash.block import COUNTED, Counters
from kvcodec.flash.checksum import crc32c
from kvcodec.layout import (
    FORMAT_VERSION,
    FRAME_TRAILER,
    RECORD_HEADER,
    SIDECAR,
    SIDECAR_ENTRY,
    SIDECAR_LANE,
    SIDECAR_MAGIC,
    Kind,
    Lane,
)
from kvcodec.log.cursor import Cursor
from kvcodec.log.located import Located, RecordTable, join_records
from kvcodec.log.reader import Log
from kvcodec.log.walk import Walk


def sidecar_path(path: Path) -> Path:
    """The sidecar of the log at `path`."""
    return path.with_name(path.name + ".idx")


@dataclass(frozen=True)
class LaneEnd:
    """Where a lane ends: the cursor behind the last frame, which is durable, and the totals up to there."""

    cursor: Cursor
    totals: Counters
    frames: int


def write_sidecar(path: Path, log: Log, ends: Sequence[LaneEnd], located: Sequence[Located]) -> None:
    """Replace the sidecar of a log that was just synced. ends: of lanes FRESH and KEPT. located: all records of the
    log, in order.
    """
    if ends[Lane.FRESH].cursor.block is None:
        return
    lanes = np.zeros(len(ends), SIDECAR_LANE)
    for row, end in zip(lanes, ends, strict=True):
        cursor, totals = end.cursor, end.totals
        if cursor.block is not None:
            row["block"], row["offset"], row["generation"] = cursor.block.number, cursor.offset, cursor.block.generation
        row["number"], row["durable"], row["frame_crc"] = cursor.number, cursor.durable, cursor.crc
        for name in COUNTED:
            row[f"{name}_bytes"] = getattr(totals, name)
        row["frames"], row["drops"] = end.frames, cursor.drops
    body = lanes.tobytes() + join_records([located]).entries.tobytes()
    head = np.zeros((), SIDECAR)
    head["magic"], head["version"], head["records"] = SIDECAR_MAGIC, FORMAT_VERSION, len(located)
    head["uuid"], head["lsn"], head["lanes"], head["body_crc"] = (
        np.void(log.device.uuid),
        log.lsn,
        len(ends),
        crc32c(body),
    )
    head["crc"] = crc32c(head.tobytes()[:-4])
    target = sidecar_path(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    with contextlib.suppress(OSError):  # a log without its sidecar is whole
        fresh.write_bytes(head.tobytes() + body)
        os.replace(fresh, target)
    with contextlib.suppress(OSError):
        fresh.unlink()


def load_sidecar(path: Path, log: Log, *, resume: bool) -> RecordTable:
    """Tell a fresh log what its sidecar knows to be durable.

    With `resume`, also set the log to the end that the sidecar names and return the records up to there. An
    unreadable, foreign or outdated sidecar is no error: the log is then read from its start.
    """
    none = join_records([])
    try:
        found = _read_verified(sidecar_path(path), log)
    except OSError:
        return none
    if found is None:
        return none
    head, lanes, entries = found
    for walk, row in zip(log.walks, lanes, strict=True):
        walk.known_durable = int(row["durable"])
    table = RecordTable(entries)
    return table if resume and _set_ends(head, lanes, table, log) else none


def _read_verified(path: Path, log: Log) -> tuple[np.void, npt.NDArray[np.void], npt.NDArray[np.void]] | None:
    """Header, lanes and entries of a sidecar of this log whose checksums hold; its size is checked before."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        raw = np.frombuffer(file.read(SIDECAR.itemsize), np.uint8)
        if raw.size < SIDECAR.itemsize:
            return None
        head = raw.view(SIDECAR)[0]
        known = head["magic"] == SIDECAR_MAGIC and int(head["version"]) == FORMAT_VERSION
        if not known or any(head["reserved"].tobytes()) or int(head["crc"]) != crc32c(raw[:-4]):
            return None
        own = int(head["lanes"]) * SIDECAR_LANE.itemsize
        size = own + int(head["records"]) * SIDECAR_ENTRY.itemsize
        smallest = int(head["records"]) * RECORD_HEADER.itemsize
        if int(head["lanes"]) != len(Lane) or path.stat().st_size != SIDECAR.itemsize + size:
            return None
        if smallest > log.device.image.size:
            return None
        body = np.frombuffer(file.read(size), np.uint8)
    if head["uuid"].tobytes() != log.device.uuid or body.size != size or int(head["body_crc"]) != crc32c(body):
        return None
    return head, body[:own].view(SIDECAR_LANE), body[own:].view(SIDECAR_ENTRY)


def _set_ends(head: np.void, lanes: npt.NDArray[np.void], table: RecordTable, log: Log) -> bool:
    """Set the log behind the frames that the sidecar names, if their trailers are there, and its records too."""
    cursors = [_find_end(row, walk) for walk, row in zip(log.walks, lanes, strict=True)]
    if any(cursor is None for cursor in cursors) or not _are_there(table, log):
        return False
    for walk, row, cursor in zip(log.walks, lanes, cursors, strict=True):
        assert cursor is not None
        walk.cursor, walk.report.frames = cursor, int(row["frames"])
        walk.totals = Counters(*(int(row[f"{name}_bytes"]) for name in COUNTED))
    log.lsn = int(head["lsn"])
    for n in np.flatnonzero(np.isin(table.kinds, (Kind.FREED, Kind.RETIRED))).tolist():
        log.learn(table[n])
    return True


def _are_there(table: RecordTable, log: Log) -> bool:
    """Whether no block that records lie in has been erased since."""
    generations, places = log.device.generations(), table.places
    known = places["block"] < len(generations)
    return bool(known.all() and np.array_equal(generations[places["block"]], places["generation"]))


def _find_end(row: np.void, walk: Walk) -> Cursor | None:
    """The end of a lane that the sidecar names; None if it is not there."""
    device, number, offset = walk.device, int(row["block"]), int(row["offset"])
    if not int(row["number"]):
        return Cursor()
    try:
        block = device.block(number) if number < device.present_blocks() else None
    except CorruptRecord:
        return None
    if block is None or (block.generation, block.lane) != (int(row["generation"]), walk.lane):
        return None
    if offset < device.geometry.unit_bytes:
        return None
    trailer = device.data(number, offset - FRAME_TRAILER.itemsize, FRAME_TRAILER.itemsize)
    if trailer.size < FRAME_TRAILER.itemsize or trailer.view(FRAME_TRAILER)[0]["crc"] != row["frame_crc"]:
        return None
    numbers = int(row["number"]), int(row["frame_crc"]), int(row["durable"])
    return Cursor(block, offset, *numbers, drops=int(row["drops"]))
