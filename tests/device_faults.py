"""A device that loses writes, sends them elsewhere, brings old ones back or lets bits rot, and tells nobody; and what a
log that it damaged still proves of what was written.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple
from unittest import mock

from kvcodec.flash.device import Device
from kvcodec.layout import NO_FRAME, SPARE_BYTES, SUPERBLOCK_BYTES, SUPERBLOCKS
from kvcodec.log.frame import Flaw
from kvcodec.log.reader import Log
from kvcodec.log.sidecar import load_sidecar, sidecar_path

_FIRST_BLOCK = SUPERBLOCKS * SUPERBLOCK_BYTES
KINDS = ("lost", "misdirected", "stale", "torn apart", "rot")


class Framed(NamedTuple):
    """A frame as it was written: where it lies in the file, and what it says."""

    lane: int
    number: int
    durable: int
    block: int
    offset: int
    end: int


class FaultyDevice:
    """Beneath one log. wanted: its file as it should be. done: what was done to it.

    kind, at: what befalls which program of a unit; rot befalls the whole file then.
    """

    def __init__(self, path, kind, at, lot):
        self.path, self._kind, self._at, self._lot = path, kind, at, lot
        self.programs, self.done = 0, []
        self.wanted = bytearray(path.read_bytes())
        self._old = {}  # (block, unit): bytes and slot of its last generation

    @contextlib.contextmanager
    def beneath(self):
        """While this lasts."""
        program, erase = Device.program, Device.erase

        def faulty_program(device, block, unit, data, first_frames):
            program(device, block, unit, data, first_frames)
            units = range(unit, unit + len(first_frames))
            own = [self._note(self._places(device, block, n)) for n in units]
            for n, data in zip(units, own, strict=True):
                self.programs += 1
                if self.programs == self._at:
                    self.done.append((self._kind, block, n))
                    self._spoil(device, block, n, data)

        def noted_erase(device, block):
            start = device._spare_offset(block, 0)
            for unit in range(device.geometry.units_per_block):
                places = self._places(device, block, unit)
                if any(self.wanted[places[1]]):
                    self._old[block, unit] = [bytes(self.wanted[place]) for place in places]
            erase(device, block)
            end = min(len(self.wanted), start + device.geometry.stride)
            self.wanted[start:end] = bytes(max(0, end - start))

        with mock.patch.multiple(Device, program=faulty_program, erase=noted_erase):
            yield

    @staticmethod
    def _places(device, block, unit):
        """Of a unit and of its slot."""
        size = device.geometry.unit_bytes
        data, slot = device.file_offset(block, unit * size), device._spare_offset(block, unit)
        return slice(data, data + size), slice(slot, slot + SPARE_BYTES)

    def _note(self, places):
        """Take in what was just programmed, which is given."""
        own = [self._read(place) for place in places]
        for place, data in zip(places, own, strict=True):
            self.wanted.extend(bytes(max(0, place.stop - len(self.wanted))))
            self.wanted[place] = data
        return own

    def _spoil(self, device, block, unit, own):
        places, lot = self._places(device, block, unit), self._lot
        none = [bytes(len(data)) for data in own]
        old = self._old.get((block, unit), none)
        if self._kind == "lost":
            self._write(places, none)
        elif self._kind == "stale":
            self._write(places, old)
        elif self._kind == "torn apart":  # the unit or its slot is old, the other new
            n = lot.randrange(2)
            self._write(places[n : n + 1], old[n : n + 1])
        elif self._kind == "misdirected":
            used = len(self.wanted) - device.file_offset(0)
            elsewhere = lot.randrange(min(device.blocks, used // device.geometry.stride + 2))
            elsewhere, other = lot.choice(
                [(block, lot.randrange(unit + 1)), (block, lot.randrange(device.geometry.units_per_block)),
                 (elsewhere, lot.randrange(device.geometry.units_per_block)), (elsewhere, unit)]
            )  # fmt: skip
            self._write(places, lot.choice([none, old]))
            self._write(self._places(device, elsewhere, other), own)
        else:
            self.rot(lot.choice([1, 3, 10]))

    def rot(self, flips):
        """So many bits of what was written change."""
        written = [n for n, byte in enumerate(self.wanted) if byte]
        for n in self._lot.choices(written, k=flips):
            where = slice(n, n + 1)
            self._write([where], [bytes([self._read(where)[0] ^ 1 << self._lot.randrange(8)])])

    def _read(self, place):
        with open(self.path, "rb") as file:
            return os.pread(file.fileno(), place.stop - place.start, place.start)

    def _write(self, places, data):
        with open(self.path, "r+b", buffering=0) as file:
            for place, own in zip(places, data, strict=True):
                os.pwrite(file.fileno(), own, place.start)

    # -- what is proved ------------------------------------------------------------------------------------------

    def twin(self):
        """A file as it should be, which the caller removes."""
        twin = self.path.with_name("twin")
        twin.write_bytes(self.wanted)
        return twin

    def evidence(self):
        """Numbers of the last frames of both lanes, as they should be; and whether a frame that is damaged was durable,
        as the sidecar says or a later frame of its lane that is whole and that a slot names.
        """
        frames, ends, known, (units, stride) = self._walk()
        found = self.path.read_bytes().ljust(len(self.wanted), b"\0")
        whole = {frame for frame in frames if self._is_whole(frame, found, units, stride)}
        named = [frame for frame in whole if self._is_named(frame, found, units, stride)]
        lost = [frame for frame in frames if frame not in whole]
        return ends, any(
            known[frame.lane] >= frame.number
            or any(one.lane == frame.lane and one.durable >= frame.number and one.number > frame.number
                   for one in named)
            for frame in lost
        )  # fmt: skip

    def _walk(self):
        twin = self.twin()
        if sidecar_path(self.path).exists():
            sidecar_path(twin).write_bytes(sidecar_path(self.path).read_bytes())
        device = Device.open(twin)
        try:
            log = Log(device)
            load_sidecar(twin, log, resume=False)
            known = [walk.known_durable for walk in log.walks]
            log.poll()
            frames = [frame for walk in log.walks for frame in _frames(walk)]
            units = device.geometry.units_per_block, device.geometry.unit_bytes, device.geometry.spare_area
            ends = [walk.cursor.number for walk in log.walks]
            return frames, ends, known, (units, device.geometry.stride)
        finally:
            device.close()
            twin.unlink()
            sidecar_path(twin).unlink(missing_ok=True)

    def _is_whole(self, frame, found, units, stride):
        _, size, spare = units
        base = _FIRST_BLOCK + frame.block * stride
        at, end = base + spare + frame.offset, base + spare + frame.end
        slots = slice(base + frame.offset // size * SPARE_BYTES, base + ((frame.end - 1) // size + 1) * SPARE_BYTES)
        return found[at:end] == self.wanted[at:end] and found[slots] == self.wanted[slots]

    def _is_named(self, frame, found, units, stride):
        """Whether the block's header, and the slot that names the frame, are as they should be."""
        _, size, spare = units
        base = _FIRST_BLOCK + frame.block * stride
        slot = base + frame.offset // size * SPARE_BYTES
        first = int.from_bytes(self.wanted[slot + 4 : slot + 6], "little")
        header = slice(base, base + SPARE_BYTES), slice(base + spare, base + spare + size)
        good = all(found[place] == self.wanted[place] for place in header)
        return good and first != NO_FRAME and first == frame.offset % size


def _frames(walk):
    """All frames of a lane that is as it should be."""
    unit = walk.device.geometry.unit_bytes
    for block in walk.blocks.in_use():
        span = walk.spans.get(block.generation)
        offset, number = (span.offset, span.first) if span else (0, 0)
        while span and number < span.end:
            try:
                frame = walk.frames.read(block, offset)
            except Flaw:
                frame = None
            if frame is None or frame.id.number != number:
                offset += unit - offset % unit
                continue
            yield Framed(walk.lane, number, frame.id.durable, block.number, offset, frame.end)
            offset, number = frame.end, number + 1
