"""Frames of one lane by their places, without regard to the chain that they belong to: walk.py has that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from kvcodec.errors import CorruptRecord, UnsupportedVersion
from kvcodec.flash.block import Block
from kvcodec.flash.device import Device
from kvcodec.layout import FREED_HEADER, NO_FRAME, Kind, Lane
from kvcodec.log.blocks import BlockOrder
from kvcodec.log.frame import Flaw, Frame, read_frame
from kvcodec.log.freed import read_freed
from kvcodec.log.recover import Found


class LaneFrames:
    """What a device holds in the blocks of a lane."""

    def __init__(self, device: Device, lane: Lane) -> None:
        self.device, self.blocks = device, BlockOrder(device, lane)
        self.unit = device.geometry.unit_bytes

    def read(self, block: Block, offset: int) -> Frame:
        """The frame at a byte of a block. Raises Flaw, also where the block was erased meanwhile."""
        data = self.device.data(block.number, 0, self.device.geometry.block_bytes)
        base, first = self.device.file_offset(block.number), offset // self.unit
        try:
            frame = read_frame(data, offset, generation=block.generation, uuid=self.device.uuid, base=base)
        except (CorruptRecord, UnsupportedVersion):
            self._refuse_erased(block, first)
            raise
        last = (frame.end - 1) // self.unit
        if not self.device.programmed(block.number, first, last - first + 1).all():
            raise Flaw("the frame reaches into a unit that is not programmed")
        self._refuse_erased(block, first)
        return frame

    def _refuse_erased(self, block: Block, unit: int) -> None:
        """Raises Flaw if neither the block's first slot nor this unit's, of which one may be damaged, is as it was."""
        if all(self.device.was_erased(block.number, own, block.generation) for own in (0, unit)):
            raise Flaw("the block was erased")

    def first_of(self, block: Block) -> Frame | None:
        """The frame at the beginning of a block; None if there is none that is good."""
        try:
            return self.read(block, self.unit)
        except Flaw:
            return None

    def any_from(self, block: Block, unit: int) -> bool:
        """Whether any unit of a block from `unit` on is programmed; the next one mostly tells."""
        near = self.device.programmed(block.number, unit, min(2, self.device.geometry.units_per_block - unit))
        return bool(near.any() or self.device.programmed(block.number, unit).any())

    def beyond(self, block: Block | None, offset: int) -> Iterator[Found]:
        """Good frames from a byte of a block on, or of all blocks, that the spare slots point at, in log order."""
        for later in self.blocks.in_use():
            if block is not None and later.generation < block.generation:
                continue
            yield from self._of(later, offset if block is not None and later.generation == block.generation else 0)

    def _of(self, block: Block, offset: int = 0) -> Iterator[Found]:
        """Those of one block."""
        firsts = self.device.slots(block.number)["first_frame"]
        programmed = self.device.programmed(block.number)[: len(firsts)]
        for unit in np.flatnonzero(programmed & (firsts != NO_FRAME)):
            at = int(unit) * self.unit + int(firsts[unit])
            if at < offset:
                continue
            with contextlib.suppress(Flaw):
                yield Found(block, at, self.read(block, at))

    def has_any(self, block: Block) -> bool:
        """Whether there is a good frame in a block that a spare slot points at."""
        return next(self._of(block), None) is not None

    def freed_by(self, found: Found) -> Iterator[tuple[Lane, int, int]]:
        """Frames that are gone, as those say which begin in one unit, from one that a slot pointed at on: as lane, the
        first and the one behind the last.
        """
        block = found.block
        with contextlib.suppress(Flaw):
            for at, header in (record for frame in self._in_unit(found) for record in frame.records):
                if int(header["kind"]) == Kind.FREED:
                    body = self.device.data(block.number, at + FREED_HEADER.itemsize, int(header["body_bytes"])).copy()
                    self._refuse_erased(block, at // self.unit)
                    yield from read_freed(header, body, self.device.file_offset(block.number, at))

    def _in_unit(self, found: Found) -> Iterator[Frame]:
        frame = found.frame
        yield frame
        while frame.end // self.unit == found.offset // self.unit:
            frame = self.read(found.block, frame.end)
            yield frame
