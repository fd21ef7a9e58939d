"""Headers of erase blocks: who they are, how often they were erased, and what had been written before."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from kvcodec.errors import CorruptRecord
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.image import Bytes
from kvcodec.layout import BLOCK_HEADER, BLOCK_MAGIC, COUNTER_LIMIT, Lane

COUNTED = "programmed", "framed", "host", "compacted"  # fields of Counters; of headers with _bytes behind


@dataclass
class Counters:
    """Cumulative bytes: programmed (whole units), framed (frames with their headers), compacted (those that a
    compaction wrote), host (rows as coded, in all others).
    """

    programmed: int = 0
    framed: int = 0
    host: int = 0
    compacted: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, name) + getattr(other, name) for name in COUNTED))

    @property
    def programmed_to_compact(self) -> int:
        """What of the bytes programmed was for frames that a compaction wrote; padding falls on all frames alike."""
        return round(self.programmed * self.compacted / self.framed) if self.framed else 0


@dataclass(frozen=True)
class Block:
    """An erase block in use, as its header says; `before` counts what its lane had written before it was opened."""

    number: int
    generation: int
    erase_count: int
    before: Counters | None
    lane: Lane = Lane.FRESH


def encode_header(block: Block) -> bytes:
    """Bytes of a block header; `before` must be known."""
    assert block.before is not None
    header = np.zeros((), BLOCK_HEADER)
    header["magic"], header["block"] = BLOCK_MAGIC, block.number
    header["generation"], header["erase_count"] = block.generation, block.erase_count
    header["lane"] = block.lane
    for name in COUNTED:
        header[f"{name}_bytes"] = getattr(block.before, name)
    header["crc"] = crc32c(header.tobytes()[:-4])
    return header.tobytes()


def decode_header(raw: Bytes, at: int) -> Block:
    """The block of a header that lies at byte `at` of the file. Raises CorruptRecord."""
    header = raw.view(BLOCK_HEADER)[0]
    if int(header["crc"]) != crc32c(raw[:-4]) or int(header["magic"]) != BLOCK_MAGIC:
        raise CorruptRecord(at, "block header: magic or checksum")
    if any(header["reserved"].tobytes()) or int(header["lane"]) not in list(Lane):
        raise CorruptRecord(at, "block header: a reserved field is set")
    before = Counters(*(int(header[f"{name}_bytes"]) for name in COUNTED))
    if max(int(header["generation"]), int(header["erase_count"]), *astuple(before)) >= COUNTER_LIMIT:
        raise CorruptRecord(at, "block header: a count out of range")
    number, generation, erases = (int(header[field]) for field in ("block", "generation", "erase_count"))
    return Block(number, generation, erases, before, Lane(int(header["lane"])))
