"""Headers of erase blocks: who they are, how often they were erased, and what had been written before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcodec.errors import CorruptRecord
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.image import Bytes
from kvcodec.layout import BLOCK_HEADER, BLOCK_MAGIC, COUNTER_LIMIT, Lane

_COUNTED = {"programmed": "programmed_bytes", "framed": "framed_bytes", "host": "host_bytes"}


@dataclass
class Counters:
    """Cumulative bytes: programmed (whole units), framed (frames with their headers), host (rows as coded)."""

    programmed: int = 0
    framed: int = 0
    host: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(self.programmed + other.programmed, self.framed + other.framed, self.host + other.host)


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
    for name, field in _COUNTED.items():
        header[field] = getattr(block.before, name)
    header["crc"] = crc32c(header.tobytes()[:-4])
    return header.tobytes()


def decode_header(raw: Bytes, at: int) -> Block:
    """The block of a header that lies at byte `at` of the file. Raises CorruptRecord."""
    header = raw.view(BLOCK_HEADER)[0]
    if int(header["crc"]) != crc32c(raw[:-4]) or int(header["magic"]) != BLOCK_MAGIC:
        raise CorruptRecord(at, "block header: magic or checksum")
    if any(header["reserved"].tobytes()) or int(header["lane"]) not in list(Lane):
        raise CorruptRecord(at, "block header: a reserved field is set")
    if max(int(header[field]) for field in ("generation", "erase_count", *_COUNTED.values())) >= COUNTER_LIMIT:
        raise CorruptRecord(at, "block header: a count out of range")
    before = Counters(**{name: int(header[field]) for name, field in _COUNTED.items()})
    number, generation, erases = (int(header[field]) for field in ("block", "generation", "erase_count"))
    return Block(number, generation, erases, before, Lane(int(header["lane"])))
