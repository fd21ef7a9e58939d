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
from kvcodec.flash.block import Counters
from kvcodec.flash.checksum import crc32c
from kvcodec.layout import (
    FORMAT_VERSION,
    FRAME_TRAILER,
    RECORD_HEADER,
    SIDECAR,
    SIDECAR_ENTRY,
    SIDECAR_MAGIC,
)
from kvcodec.log.located import Located, RecordTable, join_records
from kvcodec.log.reader import Cursor, Log


def sidecar_path(path: Path) -> Path:
    """The sidecar of the log at `path`."""
    return path.with_name(path.name + ".idx")


@dataclass(frozen=True)
class LogEnd:
    """Where a log ends: the cursor behind the last frame, which is durable, and the totals up to there."""

    cursor: Cursor
    totals: Counters
    frames: int
    lsn: int


def write_sidecar(path: Path, uuid: bytes, end: LogEnd, located: Sequence[Located]) -> None:
    """Replace the sidecar of a log that was just synced. `located`: all its records, in order."""
    cursor = end.cursor
    if cursor.block is None:
        return
    entries = join_records([located]).entries
    head = np.zeros((), SIDECAR)
    head["magic"], head["version"], head["records"] = SIDECAR_MAGIC, FORMAT_VERSION, len(located)
    head["uuid"], head["block"], head["offset"] = np.void(uuid), cursor.block.number, cursor.offset
    head["generation"], head["number"], head["durable"] = cursor.block.generation, cursor.number, cursor.durable
    head["framed_bytes"], head["host_bytes"] = end.totals.framed, end.totals.host
    head["programmed_bytes"], head["frames"] = end.totals.programmed, end.frames
    head["lsn"], head["frame_crc"], head["body_crc"] = end.lsn, cursor.crc, crc32c(entries.tobytes())
    head["crc"] = crc32c(head.tobytes()[:-4])
    target = sidecar_path(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    with contextlib.suppress(OSError):  # a log without its sidecar is whole
        fresh.write_bytes(head.tobytes() + entries.tobytes())
        os.replace(fresh, target)
    fresh.unlink(missing_ok=True)


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
    head, body = found
    log.known_durable = int(head["durable"])
    return RecordTable(body.view(SIDECAR_ENTRY)) if resume and _set_end(head, log) else none


def _read_verified(path: Path, log: Log) -> tuple[np.void, npt.NDArray[np.uint8]] | None:
    """Header and entries of a sidecar of this log whose checksums hold; its size is checked before it is read."""
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
        size = int(head["records"]) * SIDECAR_ENTRY.itemsize
        smallest = int(head["records"]) * RECORD_HEADER.itemsize
        if path.stat().st_size != SIDECAR.itemsize + size or smallest > log.device.image.size:
            return None
        body = np.frombuffer(file.read(size), np.uint8)
    if head["uuid"].tobytes() != log.device.uuid or body.size != size or int(head["body_crc"]) != crc32c(body):
        return None
    return head, body


def _set_end(head: np.void, log: Log) -> bool:
    """Set the log behind the frame that the sidecar names, if that frame's trailer is there."""
    device, number, offset = log.device, int(head["block"]), int(head["offset"])
    try:
        block = device.block(number) if number < device.present_blocks() else None
    except CorruptRecord:
        return False
    if block is None or block.generation != int(head["generation"]) or offset < device.geometry.unit_bytes:
        return False
    trailer = device.data(number, offset - FRAME_TRAILER.itemsize, FRAME_TRAILER.itemsize)
    if trailer.size < FRAME_TRAILER.itemsize or trailer.view(FRAME_TRAILER)[0]["crc"] != head["frame_crc"]:
        return False
    log.cursor = Cursor(block, offset, int(head["number"]), int(head["frame_crc"]), int(head["durable"]))
    log.totals = Counters(*(int(head[f]) for f in ("programmed_bytes", "framed_bytes", "host_bytes")))
    log.lsn, log.report.frames = int(head["lsn"]), int(head["frames"])
    return True
