"""Logs whose superblocks are not what they ought to be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvcodec import layout
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.geometry import Geometry
from kvcodec.flash.superblock import Superblock
from kvcodec.layout import SUPERBLOCK
from tools.golden.case import DEVICE, Cases
from tools.golden.fixed import uuid_of
from tools.golden.forge import CRC

CASES = Cases()


def bad_superblock(
    name: str, shows: str, error: str, change: Callable[[bytearray], bytes | bytearray], *, frozen: bool = True
) -> None:
    """Register a log whose superblock copies went through `change`."""

    @CASES.made(name, shows, error, frozen=frozen)
    def _(path: Path) -> None:
        superblock = Superblock(uuid_of(name), Geometry.parse(DEVICE), 4)
        path.write_bytes(change(bytearray(superblock.encode())))


def superblock_fields(**fields: Any) -> Callable[[bytearray], bytearray]:
    """A change of both copies with their checksums made right."""

    def change(data: bytearray) -> bytearray:
        for copy in range(layout.SUPERBLOCKS):
            sb = np.frombuffer(data, SUPERBLOCK, 1, copy * layout.SUPERBLOCK_BYTES)[0]
            for field, value in fields.items():
                sb[field] = value
            sb["crc"] = crc32c(sb.tobytes()[:-CRC])
        return data

    return change


def swap_byte_order(data: bytearray) -> bytearray:
    """Both copies as a big-endian writer would have them, checksums made right."""
    for copy in range(layout.SUPERBLOCKS):
        at = copy * layout.SUPERBLOCK_BYTES
        big = np.frombuffer(data, SUPERBLOCK, 1, at).astype(SUPERBLOCK.newbyteorder(">"))
        big["crc"] = crc32c(big.tobytes()[:-CRC])
        data[at : at + SUPERBLOCK.itemsize] = big.tobytes()
    return data


def damage_both(data: bytearray) -> bytearray:
    """A bit flipped in each copy."""
    data[60] ^= 1
    data[layout.SUPERBLOCK_BYTES + 60] ^= 1
    return data


def swap_copies(data: bytearray) -> bytearray:
    """The second copy first."""
    half = layout.SUPERBLOCK_BYTES
    return data[half:] + data[:half]


def set_padding(data: bytearray) -> bytearray:
    """A byte set behind each copy."""
    data[SUPERBLOCK.itemsize] = data[layout.SUPERBLOCK_BYTES + SUPERBLOCK.itemsize] = 1
    return data


bad_superblock("wrong-magic", "not a kvcodec log", "BadMagic", lambda d: d.replace(b"KVLOG", b"OTHER"))
bad_superblock("empty", "a file of no bytes", "BadMagic", lambda d: d[:0])
bad_superblock("text-mode", "CR LF became LF", "BadMagic", lambda d: d.replace(b"\r\n", b"\n"), frozen=False)
bad_superblock("future-version", "version 2", "UnsupportedVersion", superblock_fields(version=2))
bad_superblock("draft-version", "version 0", "UnsupportedVersion", superblock_fields(version=0), frozen=False)
bad_superblock("big-endian", "the other byte order, throughout", "UnsupportedVersion", swap_byte_order)
bad_superblock("superblocks-bad", "a bit flipped in each copy", "CorruptRecord", damage_both)
bad_superblock("superblocks-swapped", "each copy in the other's place", "CorruptRecord", swap_copies, frozen=False)
bad_superblock("superblock-truncated", "the file ends within the first copy", "TruncatedLog", lambda d: d[:2048])
bad_superblock(
    "superblock-reserved",
    "a reserved field is set",
    "UnsupportedVersion",
    superblock_fields(reserved=b"\1"),
    frozen=False,
)
bad_superblock("superblock-padding", "a byte after the copy is set", "UnsupportedVersion", set_padding, frozen=False)
bad_superblock("zero-page", "a page of no bytes", "CorruptRecord", superblock_fields(page_bytes=0))
bad_superblock("zero-unit", "a unit of no bytes", "CorruptRecord", superblock_fields(unit_bytes=0), frozen=False)
bad_superblock("zero-block", "a block of no bytes", "CorruptRecord", superblock_fields(block_bytes=0), frozen=False)
bad_superblock("no-blocks", "a capacity of no blocks", "CorruptRecord", superblock_fields(blocks=0), frozen=False)
bad_superblock("odd-unit", "a unit of 60 bytes", "CorruptRecord", superblock_fields(unit_bytes=60), frozen=False)
bad_superblock(
    "device-name", "a name that is not UTF-8", "CorruptRecord", superblock_fields(name=b"\xff"), frozen=False
)
