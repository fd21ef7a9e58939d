"""The two superblock copies at the start of a device image (formats/device.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvcodec.errors import BadMagic, CorruptRecord, SpecError, TruncatedLog, UnsupportedVersion
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.geometry import Geometry
from kvcodec.flash.image import Bytes, Image
from kvcodec.layout import (
    BYTE_ORDER,
    FORMAT_VERSION,
    SUPERBLOCK,
    SUPERBLOCK_BYTES,
    SUPERBLOCK_MAGIC,
    SUPERBLOCKS,
)


@dataclass(frozen=True)
class Superblock:
    """Identity and geometry of a device image; `blocks` is its capacity in erase blocks."""

    uuid: bytes
    geometry: Geometry
    blocks: int

    def encode(self) -> bytes:
        """Both copies, each padded to 4096 bytes."""
        g = self.geometry
        out = b""
        for copy in range(SUPERBLOCKS):
            sb = np.zeros((), SUPERBLOCK)
            sb["magic"], sb["version"], sb["copy"] = SUPERBLOCK_MAGIC, FORMAT_VERSION, copy
            sb["byte_order"], sb["uuid"], sb["blocks"] = BYTE_ORDER, np.void(self.uuid), self.blocks
            sb["page_bytes"], sb["unit_bytes"], sb["block_bytes"] = g.page_bytes, g.unit_bytes, g.block_bytes
            sb["rated_cycles"], sb["name"] = g.rated_cycles, g.name.encode()
            sb["read_ns"], sb["program_ns"], sb["erase_ns"] = g.read_ns, g.program_ns, g.erase_ns
            sb["crc"] = crc32c(sb.tobytes()[:-4])
            out += sb.tobytes().ljust(SUPERBLOCK_BYTES, b"\0")
        return out


def read_superblock(image: Image) -> Superblock:
    """The first good copy. Raises what is wrong with the first copy if both are bad."""
    failure: Exception | None = None
    for copy in range(SUPERBLOCKS):
        try:
            return _decode(image.view(copy * SUPERBLOCK_BYTES, SUPERBLOCK_BYTES), copy, str(image.path))
        except (BadMagic, CorruptRecord, TruncatedLog, UnsupportedVersion) as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _decode(raw: Bytes, copy: int, path: str) -> Superblock:
    at = copy * SUPERBLOCK_BYTES
    if raw.size < len(SUPERBLOCK_MAGIC) or raw[: len(SUPERBLOCK_MAGIC)].tobytes() != SUPERBLOCK_MAGIC:
        raise BadMagic(f"{path} is not a kvcodec log")
    if raw.size < SUPERBLOCK_BYTES:
        raise TruncatedLog(f"{path} ends within its superblock")
    sb = raw[: SUPERBLOCK.itemsize].view(SUPERBLOCK)[0]
    if int(sb["byte_order"]) != BYTE_ORDER:
        raise UnsupportedVersion(f"{path}: superblock of the other byte order, or damaged")
    if int(sb["version"]) != FORMAT_VERSION:
        raise UnsupportedVersion(f"{path}: format version {int(sb['version'])}, this reader knows {FORMAT_VERSION}")
    if int(sb["crc"]) != crc32c(raw[: SUPERBLOCK.itemsize - 4]) or int(sb["copy"]) != copy:
        raise CorruptRecord(at, "superblock checksum")
    if raw[SUPERBLOCK.itemsize :].any() or any(sb["reserved"].tobytes()):
        raise UnsupportedVersion(f"{path}: reserved bytes of the superblock are set")
    try:
        geometry = Geometry(
            sb["name"].tobytes().rstrip(b"\0").decode(),
            *(int(sb[f]) for f in ("page_bytes", "unit_bytes", "block_bytes", "rated_cycles")),
            *(int(sb[f]) for f in ("read_ns", "program_ns", "erase_ns")),
        )
    except (SpecError, UnicodeDecodeError) as error:
        raise CorruptRecord(at, f"superblock: {error}") from None
    if int(sb["blocks"]) < 1:
        raise CorruptRecord(at, "superblock: no erase blocks")
    return Superblock(sb["uuid"].tobytes(), geometry, int(sb["blocks"]))
