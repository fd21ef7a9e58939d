"""Blocks that are not used any more: what RETIRED records say (formats/record.md)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvcodec.errors import CorruptRecord
from kvcodec.flash.image import Bytes
from kvcodec.layout import RETIRED_BLOCK, RETIRED_HEADER, Kind, RetireCause
from kvcodec.log.frame import Record, new_record


def retired_records(retired: Mapping[int, RetireCause], limit: int) -> list[Record]:
    """RETIRED records of blocks, with bodies of at most `limit` bytes or one block."""
    rows = np.array([(block, cause, b"") for block, cause in sorted(retired.items())], RETIRED_BLOCK)
    most = max(1, limit // RETIRED_BLOCK.itemsize)
    parts = [rows[start : start + most] for start in range(0, len(rows), most)]
    return [new_record(Kind.RETIRED, part.tobytes(), blocks=len(part)) for part in parts]


def read_retired(header: np.void, body: Bytes, at: int) -> dict[int, RetireCause]:
    """Blocks of a RETIRED record that lies at byte `at` of the file. Raises CorruptRecord."""
    if header.dtype != RETIRED_HEADER or body.size != int(header["blocks"]) * RETIRED_BLOCK.itemsize or not body.size:
        raise CorruptRecord(at, "length of a RETIRED record")
    rows, causes = body.view(RETIRED_BLOCK), set(map(int, RetireCause))
    if any(int(row["cause"]) not in causes or any(row["reserved"].tobytes()) for row in rows):
        raise CorruptRecord(at, "a block of a RETIRED record")
    return {int(row["block"]): RetireCause(int(row["cause"])) for row in rows}
