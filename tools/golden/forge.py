"""Logs made frame by frame, so that one thing in them can be wrong and every checksum right all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvcodec import layout
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import FRAME_HEADER, NO_FRAME, Lane
from kvcodec.log.frame import FrameId, Record, build_frame, frame_seed, seal_record
from tools.golden.case import DEVICE, Cases
from tools.golden.fixed import uuid_of
from tools.golden.forged import forged_model, forged_sequence, forged_step

FIRST_BLOCK = layout.SUPERBLOCKS * layout.SUPERBLOCK_BYTES
CRC = 4  # bytes of a checksum field


def corrupt(path: Path, at: int, bits: int = 1) -> None:
    """Flip bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


class Forge:
    """A log made frame by frame. Each frame is programmed and counts as durable to the next one."""

    def __init__(self, path: Path, name: str) -> None:
        self.device = Device.create(path, Geometry.parse(DEVICE), blocks=4, uuid=uuid_of(name))
        self.uuid, self.path = self.device.uuid, path
        self.number, self.crc, self.lsn, self.unit = 0, 0, 0, self.device.geometry.unit_bytes
        self.begin_block(1)

    def begin_block(self, generation: int, lane: Lane = Lane.FRESH) -> None:
        self.device.generation = generation - 1
        self.block = self.device.allocate(lane)
        self.offset = self.unit

    def begin_kept(self) -> None:
        """Go on in lane KEPT, of which there is no frame yet."""
        self.begin_block(self.block.generation + 1, Lane.KEPT)
        self.number, self.crc = 0, 0

    def seal(self, record: Record, **changes: Any) -> tuple[bytes, bytes]:
        """Header and body of a record, with some header fields changed and the checksums right all the same."""
        self.lsn += 1
        header = np.frombuffer(bytearray(seal_record(record, self.lsn)), record.header.dtype)[0]
        for name, value in changes.items():
            header[name] = value
        header["header_crc"] = crc32c(header.tobytes()[CRC:])
        return header.tobytes(), bytes(record.body)

    def frame(
        self,
        *records: tuple[bytes, bytes],
        patch: Callable[[bytearray], None] | None = None,
        after: Callable[[bytearray], None] | None = None,
        **ident: int,
    ) -> int:
        """Program a frame, and return its offset. patch: changes it before, after: once its checksums are made."""
        fields = {"number": self.number + 1, "durable": self.number, "session": 1, "session_start": 1}
        frame = FrameId(**({**fields, "previous": self.crc} | ident))
        generation = self.block.generation
        data, _, self.crc = build_frame(records, frame, offset=self.offset, generation=generation, uuid=self.uuid)
        if patch is not None:
            patch(data)
            self.crc = repair(data, self.uuid)
        if after is not None:
            after(data)
        self.number += 1
        return self.program(data)

    def program(self, data: bytearray) -> int:
        units = -(-len(data) // self.unit)
        firsts = [0] + [NO_FRAME] * (units - 1)
        padded = bytes(data).ljust(units * self.unit, b"\0")
        self.device.program(self.block.number, self.offset // self.unit, padded, firsts)
        offset, self.offset = self.offset, self.offset + len(padded)
        return offset

    def begin(self, **changes: Any) -> None:
        """A MODEL and a SEQUENCE record, the latter with some fields changed."""
        self.frame(self.seal(forged_model().record()))
        self.frame(self.seal(forged_sequence().record(), **changes))

    def steps(self, tokens: int = 1) -> None:
        """A frame for each of some tokens."""
        for token in range(tokens):
            self.frame(self.seal(forged_step(token)))


def repair(data: bytearray, uuid: bytes) -> int:
    """Make a frame's header and trailing checksums right again; the trailing one."""
    seed = frame_seed(uuid)
    h = np.frombuffer(data, FRAME_HEADER, 1)[0]
    h["header_crc"] = crc32c(h.tobytes()[:-CRC], seed)
    crc = crc32c(bytes(data[FRAME_HEADER.itemsize : -CRC]), int(h["header_crc"]))
    data[-CRC:] = crc.to_bytes(CRC, "little")
    return crc


def frame_field(name: str, value: int) -> Callable[[bytearray], None]:
    """A patch that sets a field of a frame's header."""

    def patch(data: bytearray) -> None:
        np.frombuffer(data, FRAME_HEADER, 1)[0][name] = value

    return patch


Forgery = Callable[[Forge], None]


class Forgeries(Cases):
    """Cases whose logs are forged."""

    def good(self, name: str, shows: str, **options: Any) -> Callable[[Forgery], Forgery]:
        """Register a forged log that must open."""
        return self.forged(name, shows, "", **options)

    def bad(self, name: str, shows: str, error: str = "CorruptRecord", **options: Any) -> Callable[[Forgery], Forgery]:
        """Register a forged log that must be rejected."""
        return self.forged(name, shows, error, **options)

    def bad_record(
        self, name: str, shows: str, make: Callable[[], Record], error: str = "CorruptRecord", **fields: Any
    ) -> None:
        """Register a log with one record whose header fields are not what they ought to be."""
        options = {key: fields.pop(key) for key in ("at", "frozen") if key in fields}

        @self.bad(name, shows, error, **options)
        def _(forge: Forge) -> None:
            forge.begin()
            forge.frame(forge.seal(make(), **fields))

    def forged(self, name: str, shows: str, error: str, **options: Any) -> Callable[[Forgery], Forgery]:
        """Register a forged log that raises `error`, if that is not empty."""

        def register(forgery: Forgery) -> Forgery:
            @self.made(name, shows, error, **options)
            def _(path: Path) -> None:
                forge = Forge(path, name)
                try:
                    forgery(forge)
                finally:
                    forge.device.close()

            return forgery

        return register
