"""A device, a log and its cleaning without bytes: the code of flash/ and log/ itself, but for what moves bytes."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from kvcodec.errors import NotErased
from kvcodec.flash.block import Block
from kvcodec.flash.device import Device
from kvcodec.flash.geometry import Geometry
from kvcodec.flash.image import Bytes, Image
from kvcodec.flash.superblock import Superblock
from kvcodec.layout import Kind, Lane
from kvcodec.log.blocks import BlockOrder
from kvcodec.log.cleaner import Cleaner
from kvcodec.log.frame import Record, host_bytes
from kvcodec.log.located import NOWHERE, Located, Place
from kvcodec.log.plan import PlannedFrame
from kvcodec.log.reader import Log
from kvcodec.log.tail import Tail
from kvcodec.log.walk import Walk
from kvcodec.log.writer import LaneWriter
from kvcodec.measure.sized import Origin, RecordShape, SizedRecord

_NOTHING: Bytes = np.empty(0, np.uint8)


class _NoImage:
    """Stands for the file."""

    path = Path("simulation")

    def punch(self, _offset: int, _length: int) -> None:
        return

    def sync(self) -> None:
        return


class CountedDevice(Device):
    """A device that counts what is programmed and erased, and keeps nothing. syncs: how often it was synced.

    held: what lies in each block.
    """

    def __init__(self, geometry: Geometry, blocks: int) -> None:
        super().__init__(cast("Image", _NoImage()), Superblock(bytes(16), geometry, blocks))
        self.syncs = 0
        self.held: dict[int, list[SizedRecord]] = {}
        self.in_use: dict[Lane, dict[int, Block]] = {lane: {} for lane in Lane}

    def allocate(self, lane: Lane = Lane.FRESH) -> Block:
        """See Device."""
        block = super().allocate(lane)
        self.in_use[lane][block.number], self.held[block.number] = block, []
        return block

    def program(self, block: int, unit: int, _data: bytes | Bytes, first_frames: Sequence[int]) -> None:
        """See Device."""
        own = next((one for one in self._open.values() if one.block.number == block), None)
        if own is None or unit != own.next_unit or unit + len(first_frames) > self.geometry.units_per_block:
            raise NotErased(errno.EINVAL, f"unit {unit} of block {block} is not the next one to program")
        own.next_unit += len(first_frames)
        self.counters[own.block.lane].programmed += len(first_frames) * self.geometry.unit_bytes

    def reserve(self, block: int, start: int, end: int) -> None:
        """See Device."""

    def erase(self, block: int) -> None:
        """See Device."""
        super().erase(block)
        for blocks in self.in_use.values():
            blocks.pop(block, None)

    def sync(self) -> None:
        """See Device."""
        self.syncs += 1


class _CountedOrder(BlockOrder):
    """Blocks are opened in the order of their generations."""

    def in_use(self) -> list[Block]:
        assert isinstance(self._device, CountedDevice)
        return list(self._device.in_use[self._lane].values())


class _CountedTail(Tail):
    """How many bytes there are, and none of them."""

    def extend(self, size: int) -> Bytes:
        self._size += size
        return _NOTHING

    def first(self, _size: int) -> Bytes:
        return _NOTHING

    def drop(self, size: int) -> None:
        self._size -= size


class CountedWriter(LaneWriter):
    """Appends SizedRecords."""

    def __init__(self, device: CountedDevice, log: Log, walk: Walk) -> None:
        super().__init__(device, log, walk, 0)
        self._tail = _CountedTail()
        self._counted = device

    def _write(self, frame: PlannedFrame, block: Block, _offset: int) -> tuple[int, int, Sequence[Located]]:
        self._tail.extend(frame.end - frame.offset)
        held, host, out = self._counted.held[block.number], 0, list[SizedRecord]()
        for (lsn, record), at in zip(frame.records, frame.places, strict=True):
            one = cast("SizedRecord", record)
            place = Place(block.generation, block.number, at)
            if not isinstance(one, SizedRecord):  # what the cleaner itself has to say
                one = SizedRecord(RecordShape(Kind(record.kind), len(record.body)), Origin(0, set()))
            placed = SizedRecord(one.shape, one.origin, place, lsn, None if one.place is NOWHERE else one)
            host += host_bytes(cast("np.void", one.header))
            held.append(placed)
            out.append(placed)
        return 0, host, cast("list[Located]", out)

    def _join(self, located: Sequence[Sequence[Located]]) -> Sequence[Located]:
        return [one for part in located for one in part]


class CountedLog(Log):
    """Both lanes of a device without bytes."""

    def __init__(self, device: CountedDevice) -> None:
        super().__init__(device)
        for walk in self.walks:
            walk.frames.blocks = _CountedOrder(device, walk.lane)


class CountedCleaner(Cleaner):
    """Cleans without bytes."""

    def _read(self, _walk: Walk, block: Block) -> list[Located]:
        assert isinstance(self._device, CountedDevice)
        return cast("list[Located]", self._device.held[block.number].copy())

    def _load(self, one: Located) -> tuple[Record, int]:
        sized = cast("SizedRecord", one)
        return cast("Record", sized), sized.lsn
