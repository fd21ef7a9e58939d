"""The emulated Flash device: program units, spare slots and erase blocks in one file (formats/device.md).

A unit is programmed once, in ascending order within its block; only an erase makes it programmable again.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvcodec.errors import (
    CorruptRecord,
    DeviceError,
    EraseFailed,
    NotErased,
    ProgramFailed,
    SpecError,
    Uncorrectable,
)
from kvcodec.flash.block import Block, Counters, decode_header, encode_header
from kvcodec.flash.ecc import ReadErrors
from kvcodec.flash.faults import Faults
from kvcodec.flash.geometry import Geometry
from kvcodec.flash.image import Bytes, Image
from kvcodec.flash.programming import CRC_BYTES, encode_slots, slot_crc, spoil_unit
from kvcodec.flash.superblock import Superblock, read_superblock
from kvcodec.flash.supply import BlockSupply
from kvcodec.layout import (
    BLOCK_HEADER,
    NO_FRAME,
    SPARE_BYTES,
    SPARE_SLOT,
    SUPERBLOCK_BYTES,
    SUPERBLOCKS,
    Lane,
    RetireCause,
)

_LEAST_UNITS = 3  # of a block of a new device
_FIRST_BLOCK = SUPERBLOCKS * SUPERBLOCK_BYTES
_ERASED = 0xFF
_UNITS_ASKED = 16  # for the generation of a block whose header unit is damaged


@dataclass
class _Open:
    """A block that is being programmed, and its next unit."""

    block: Block
    next_unit: int


class Device(BlockSupply):
    """One device image, open for reading or for writing.

    Attributes: geometry, uuid, counters (of each lane, since the device was made), read_errors (None if no read fails).
    """

    def __init__(self, image: Image, superblock: Superblock) -> None:
        super().__init__(superblock.blocks, image.path)
        self.image = image
        self.geometry: Geometry = superblock.geometry
        self.uuid = superblock.uuid
        self.counters = {lane: Counters() for lane in Lane}
        self.generation = 0  # the highest one of any block in use
        self._open: dict[Lane, _Open] = {}
        self._failed = False
        self.faults: Faults | None = None
        self.read_errors: ReadErrors | None = None

    @classmethod
    def make(cls, path: Path, geometry: Geometry, *, blocks: int, uuid: bytes = b"") -> Device:
        """A new device under a name of its own beside `path`, until it is published or discarded. Raises SpecError for
        blocks that cleaning could gain nothing from.
        """
        if geometry.units_per_block < _LEAST_UNITS:
            raise SpecError(
                f"device {geometry.name!r}: an erase block has {geometry.units_per_block} program units, want "
                f"{_LEAST_UNITS}: its header takes one, and what frees a block another"
            )
        superblock = Superblock(uuid or os.urandom(16), geometry, blocks)
        image = Image.create(path)
        try:
            image.write(0, superblock.encode())
            image.sync()
        except BaseException:
            image.discard()
            raise
        return cls(image, superblock)

    @classmethod
    def create(
        cls, path: Path, geometry: Geometry, *, blocks: int, overwrite: bool = False, uuid: bytes = b""
    ) -> Device:
        """A new device under `path`; the file appears there whole, or not at all."""
        device = cls.make(path, geometry, blocks=blocks, uuid=uuid)
        try:
            device.image.publish(path, overwrite=overwrite)
        except BaseException:
            device.image.discard()
            raise
        return device

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> Device:
        image = Image.open(path, writable=writable)
        try:
            return cls(image, read_superblock(image))
        except BaseException:
            image.close()
            raise

    def close(self) -> None:
        self.image.close()

    def fail_by(self, faults: Faults) -> None:
        """Fail from here on as these faults say."""
        self.faults, self.read_errors = faults, ReadErrors.of(faults, self.uuid, self.geometry)

    # -- places ------------------------------------------------------------------------------------------------

    def file_offset(self, block: int, offset: int = 0) -> int:
        """Byte in the file at which byte `offset` of a block's data lies."""
        return _FIRST_BLOCK + block * self.geometry.stride + self.geometry.spare_area + offset

    def _spare_offset(self, block: int, unit: int) -> int:
        return _FIRST_BLOCK + block * self.geometry.stride + unit * SPARE_BYTES

    def present_blocks(self) -> int:
        """How many blocks the file reaches into."""
        return min(self.blocks, -(-max(0, self.image.size - _FIRST_BLOCK) // self.geometry.stride))

    def complete_last_unit(self) -> bool:
        """Have the file hold all of a unit that it ends within and whose slot is set, as a crash leaves one; whether
        there is one. Else the unit would be programmed once the file is longer, behind a writer that had gone on
        without it. So does a slot within which the file ends. Raises DeviceError.
        """
        block, inside = divmod(self.image.size - _FIRST_BLOCK, self.geometry.stride)
        if block >= 0 and inside < self.geometry.units_per_block * SPARE_BYTES and inside % SPARE_BYTES:
            self.image.lengthen(self.image.size + -inside % SPARE_BYTES)
            return True
        unit, held = divmod(inside - self.geometry.spare_area, self.geometry.unit_bytes)
        known = block >= 0 and 0 <= unit < self.geometry.units_per_block
        if not (known and held and self._words(block, unit, 1).any()):
            return False
        self.image.lengthen(self.file_offset(block, (unit + 1) * self.geometry.unit_bytes))
        return True

    # -- reading -----------------------------------------------------------------------------------------------

    def data(self, block: int, offset: int, length: int) -> Bytes:
        """Bytes as the file holds them, without a copy: an unprogrammed unit is zeros. Shorter at the file's end."""
        length = max(0, min(length, self.geometry.block_bytes - offset))
        return self.image.view(self.file_offset(block, offset), length)

    def release(self, block: int) -> None:
        """Take what was looked at of a block out of the process's memory: a later look brings it back."""
        start = self._spare_offset(block, 0)
        self.image.release(start - start % mmap.PAGESIZE, self.geometry.stride)

    def slots(self, block: int) -> npt.NDArray[np.void]:
        """The spare slots of a block, as many as the file reaches."""
        raw = self.image.view(self._spare_offset(block, 0), self.geometry.units_per_block * SPARE_BYTES)
        return raw[: raw.size // SPARE_BYTES * SPARE_BYTES].view(SPARE_SLOT)

    def programmed(self, block: int, first: int = 0, units: int | None = None) -> npt.NDArray[np.bool_]:
        """Which units of a block, from `first` on, have been programmed: their slot is not zero and the file holds
        all their bytes.
        """
        units = self.geometry.units_per_block - first if units is None else units
        out = np.zeros(units, np.bool_)
        words = self._words(block, first, units)
        held = self.data(block, first * self.geometry.unit_bytes, units * self.geometry.unit_bytes)
        n = min(len(words), held.size // self.geometry.unit_bytes)
        out[:n] = (words[:n, 0] | words[:n, 1]) != 0
        return out

    def _words(self, block: int, first: int, units: int) -> npt.NDArray[np.uint64]:
        raw = self.image.view(self._spare_offset(block, first), units * SPARE_BYTES)
        return raw[: raw.size // SPARE_BYTES * SPARE_BYTES].view("<u8").reshape(-1, 2)

    def read(self, block: int, unit: int, units: int = 1) -> Bytes:
        """A copy of whole units as the device presents them: 0xFF where nothing was programmed.

        Raises CorruptRecord if a unit's bytes don't carry the checksum that its slot binds to this place.
        """
        size = self.geometry.unit_bytes
        out = np.full(units * size, _ERASED, np.uint8)
        programmed = self.programmed(block)
        for i in range(units):
            if programmed[unit + i]:
                self.check_unit(block, unit + i)
                out[i * size : (i + 1) * size] = self.data(block, (unit + i) * size, size)
        return out

    def check_unit(self, block: int, unit: int) -> None:
        """Raises CorruptRecord if a programmed unit is not what was programmed at this place."""
        size = self.geometry.unit_bytes
        slot = self.slots(block)[unit]
        data = self.data(block, unit * size, size)
        known = int(slot["lane"]) in list(Lane)
        if not known or slot_crc(self.uuid, self._place(block, unit), data, slot.tobytes()[CRC_BYTES:]) != slot["crc"]:
            raise CorruptRecord(self.file_offset(block, unit * size), f"unit {unit} of block {block}: spare checksum")
        self.sense(block, unit * size, size)

    def sense(self, block: int, offset: int, length: int) -> None:
        """Have reads of a block's bytes gather and correct their errors (ecc.py). Raises Uncorrectable."""
        if self.read_errors is None:
            return
        first, last = offset // self.geometry.unit_bytes, (offset + length - 1) // self.geometry.unit_bytes
        found = self.read_errors.read(block, first, last - first + 1, self.erase_counts.get(block, 0))
        if found is not None:
            if block not in self.retired:
                self.failing.setdefault(block, RetireCause.READ)
            unit, why = found
            raise Uncorrectable(self.file_offset(block, unit * self.geometry.unit_bytes), block, unit, why)

    def generation_of(self, block: int, unit: int) -> int:
        """Generation that a unit was programmed under; 0 if it is erased."""
        slots = self.slots(block)
        return int(slots[unit]["generation"]) if unit < len(slots) else 0

    def was_erased(self, block: int, unit: int, generation: int) -> bool:
        """Whether a unit that was programmed under a generation has been erased since. A slot of which power let only
        the beginning be written names no generation, or a lower one, and is none that was erased.
        """
        found = self.generation_of(block, unit)
        return found != generation and (found > generation or not self.programmed(block, unit, 1).any())

    def generations(self) -> npt.NDArray[np.uint64]:
        """Generation of every block that the file reaches into, unchecked; 0 for an erased one. One cheap look."""
        raw = self.image.view(_FIRST_BLOCK, self.present_blocks() * self.geometry.stride)
        out, second = self._generations_at(raw, 0), self._generations_at(raw, 1)
        out[: len(second)] = np.where(out[: len(second)] == 0, second, out[: len(second)])
        for number in np.flatnonzero(out == 0).tolist():  # erased, or its first slots were lost
            out[number] = self.slots(number)["generation"].max(initial=0)
        return out

    def _generations_at(self, raw: Bytes, unit: int) -> npt.NDArray[np.uint64]:
        stride, at = self.geometry.stride, unit * SPARE_BYTES
        n = max(0, -(-(raw.size - at - SPARE_BYTES + 1) // stride))
        field = SPARE_SLOT.fields["generation"][1]  # type: ignore[index]
        return np.ndarray((n,), "<u8", raw, at + field, (stride,)).copy() if n else np.empty(0, np.uint64)

    def block(self, number: int) -> Block | None:
        """A block in use; None if it is erased.

        If the header unit is damaged, the block is known by the first unit that is not, and `before` is None.
        Raises CorruptRecord if no unit is good.
        """
        try:
            return self._header(number)
        except CorruptRecord as damage:
            for unit in np.flatnonzero(self.programmed(number))[:_UNITS_ASKED].tolist():
                with contextlib.suppress(CorruptRecord):
                    self.check_unit(number, unit)
                    slot = self.slots(number)[unit]
                    return Block(number, int(slot["generation"]), 0, None, Lane(int(slot["lane"])))
            raise damage from None

    def _header(self, number: int) -> Block | None:
        if not self.programmed(number).any():
            return None
        self.check_unit(number, 0)
        block = decode_header(self.data(number, 0, BLOCK_HEADER.itemsize), self.file_offset(number))
        slot = self.slots(number)[0]
        if (block.number, block.generation, block.lane) != (number, int(slot["generation"]), int(slot["lane"])):
            raise CorruptRecord(self.file_offset(number), f"header of block {number} belongs to another place")
        return block

    def _place(self, block: int, unit: int) -> int:
        """Physical number of a unit."""
        return block * self.geometry.units_per_block + unit

    # -- programming -------------------------------------------------------------------------------------------

    def resume(self, lane: Lane, block: Block | None, next_unit: int, counters: Counters) -> None:
        """Take up writing where a scan of a lane found its end: the block in use, if there is one."""
        self._open.pop(lane, None)
        if block is not None:
            self._open[lane] = _Open(block, next_unit)
        self.counters[lane] = counters

    def survey(self, in_use: Sequence[Block]) -> None:
        """Learn, before anything is written, which blocks are in use and which are erased, and how worn all are."""
        counts = {block.number: block.erase_count for block in in_use if block.before is not None}
        self.generation = max((block.generation for block in in_use), default=0)
        self._untouched = self.present_blocks()
        self._erased = {b for b in range(self._untouched) if b not in self.retired and not self.programmed(b).any()}
        self.limit(self.most_blocks)
        mean = round(sum(counts.values()) / len(counts)) if counts else 0
        self.erase_counts = dict.fromkeys(range(self._untouched), mean) | counts

    def hold_back(self, block: int, cause: RetireCause) -> None:
        """A block takes nothing any more; it is to be retired."""
        self.retired.pop(block, None)
        self._erased.discard(block)
        self.failing[block] = cause

    def allocate(self, lane: Lane = Lane.FRESH) -> Block:
        """Open the next erased block for programming in a lane, under a generation above every one used before: its
        header takes the first unit. A block whose header can't be programmed is passed over. Raises NoSpace.
        """
        while True:
            number = self.next_blocks(1, lane)[0]
            before = replace(self.counters[lane])
            block = Block(number, self.generation + 1, self.erase_counts.get(number, 0), before, lane)
            self._open[lane] = _Open(block, 0)
            self._erased.discard(number)
            self._untouched = max(self._untouched, number + 1)
            self.erase_counts[number] = block.erase_count
            with contextlib.suppress(ProgramFailed):
                self.program(number, 0, encode_header(block).ljust(self.geometry.unit_bytes, b"\0"), [NO_FRAME])
                self.generation = block.generation
                return block

    def program(self, block: int, unit: int, data: bytes | Bytes, first_frames: Sequence[int]) -> None:
        """Program whole units of an open block, in one pass. `first_frames`: per unit, the offset in it of the
        first frame that starts there, or NO_FRAME.

        Raises ProgramFailed, with all units before that one programmed, and none behind it; the block then takes no
        more. Raises NotErased for a unit that was programmed or is out of order, NoSpace and DeviceError.
        After a DeviceError in the middle nothing more can be programmed until the log is opened again.
        """
        size, n = self.geometry.unit_bytes, len(first_frames)
        if self._failed:
            raise DeviceError(errno.EIO, "an earlier write failed; open the log again", str(self.image.path))
        own = next((one for one in self._open.values() if one.block.number == block), None)
        if own is None or unit != own.next_unit or len(data) != n * size:
            raise NotErased(errno.EINVAL, f"unit {unit} of block {block} is not the next one to program")
        self._refuse_unless_erased(block, unit, n)
        self.reserve(block, unit * size, (unit + n) * size)
        held = np.frombuffer(data, np.uint8)
        slots = encode_slots(self.uuid, own.block, self._place(block, unit), held, first_frames)
        good = self._takes(own.block, unit, n)
        self._failed = True
        self._write(block, unit, held[: good * size].data, slots[: good * SPARE_BYTES])
        if good < n and self.faults is not None:
            lot = self.faults.seed, block, unit + good, own.block.erase_count
            self._write(block, unit + good, *spoil_unit(held[good * size : (good + 1) * size], *lot))
        self._failed = False
        own.next_unit += good
        self.counters[own.block.lane].programmed += min(n, good + 1) * size
        if good < n:
            del self._open[own.block.lane]
            self.failing[block] = RetireCause.PROGRAM
            raise ProgramFailed(block, unit + good, str(self.image.path))

    def _takes(self, block: Block, unit: int, units: int) -> int:
        """How many of these units program before one fails."""
        if self.faults is None:
            return units
        fails = self.faults.fail_to_program(block.number, unit, units, block.erase_count)
        return int(fails.argmax()) if fails.any() else units

    def _write(self, block: int, unit: int, data: bytes | memoryview, slots: bytes) -> None:
        """Whole units, or the beginning of one, then their slots."""
        self.image.write(self.file_offset(block, unit * self.geometry.unit_bytes), data)
        self.image.write(self._spare_offset(block, unit), slots)

    def reserve(self, block: int, start: int, end: int) -> None:
        """Have the disk hold these bytes of a block, and its spare area, before they are programmed."""
        limit = self._spare_offset(block + 1, 0)
        self.image.reserve(self._spare_offset(block, 0), self.file_offset(block), limit)
        self.image.reserve(self.file_offset(block, start), self.file_offset(block, end), limit)

    def _refuse_unless_erased(self, block: int, unit: int, units: int) -> None:
        size = self.geometry.unit_bytes
        if unit + units > self.geometry.units_per_block:
            raise NotErased(errno.EINVAL, f"unit {unit + units - 1} is beyond block {block}")
        if (
            self.slots(block)[unit : unit + units].view(np.uint8).any()
            or self.data(block, unit * size, units * size).any()
        ):
            raise NotErased(errno.EINVAL, f"unit {unit} of block {block} is already programmed")

    def erase(self, block: int) -> None:
        """Erase a block: all of it reads as 0xFF again. Raises EraseFailed."""
        count = self.erase_counts.get(block, 0)
        if self.faults is not None and self.faults.fails_to_erase(block, count, self.geometry.rated_cycles):
            raise EraseFailed(errno.EIO, f"block {block} did not erase, after {count} times", str(self.image.path))
        failed, self._failed = self._failed, True
        self.image.punch(self._spare_offset(block, 0), self.geometry.stride)
        self._failed = failed
        self.erase_counts[block] = count + 1
        self._erased.add(block)
        self._tighten()
        if self.read_errors is not None:
            self.read_errors.erased(block)
        for lane in [lane for lane, own in self._open.items() if own.block.number == block]:
            del self._open[lane]

    def sync(self) -> None:
        """Everything programmed so far is on the medium when this returns."""
        failed, self._failed = self._failed, True
        self.image.sync()
        self._failed = failed
