"""Where the structs of a device image lie, and their checksums made right again after any of them was changed.

What is found of a whole image holds for every copy of it that was changed since: a mutation of a length, or of an
offset, moves no struct.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kvcodec import layout
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import Kind
from kvcodec.log.frame import Flaw, frame_seed, read_frame

FIRST_BLOCK = layout.SUPERBLOCKS * layout.SUPERBLOCK_BYTES
_CRC = 4  # bytes of a checksum
_MARKS = {layout.CodebookForm.PRODUCT: b"\xff" * 4, layout.CodebookForm.TRELLIS: b"\xfe" + b"\xff" * 3}


@dataclass(frozen=True)
class Struct:
    """A struct of the image that begins at byte `at`."""

    dtype: np.dtype[np.void]
    at: int

    @property
    def end(self) -> int:
        return self.at + self.dtype.itemsize

    def of(self, image: bytearray) -> Any:
        """Its fields, to be read and set."""
        return np.frombuffer(image, self.dtype, 1, self.at)[0]


@dataclass(frozen=True)
class RecordPart:
    """A record: its header, bytes of its body (start, end), and structs of which the body is made."""

    header: Struct
    body: tuple[int, int]
    inner: tuple[Struct, ...]


@dataclass(frozen=True)
class FramePart:
    """A frame from byte `at` to `end`, and its records."""

    header: Struct
    end: int
    records: tuple[RecordPart, ...]


@dataclass(frozen=True)
class BlockPart:
    """A block in use: its number, first byte of its spare area and of its data, and what is in it."""

    number: int
    spare: int
    data: int
    header: Struct
    slots: tuple[Struct, ...]
    frames: tuple[FramePart, ...]


class ImageStructs:
    """The structs of a whole image that is followed by its sidecar, or not."""

    def __init__(self, image: bytes, sidecar_at: int) -> None:
        sb = np.frombuffer(image, layout.SUPERBLOCK, 1)[0]
        sizes = (int(sb[f"{name}_bytes"]) for name in ("page", "unit", "block"))
        self._image = bytearray(image)
        self.uuid, self.sidecar_at = sb["uuid"].tobytes(), sidecar_at
        self.geometry = Geometry("seed", *sizes, 1, 0, 0, 0)
        self.blocks = [b for n in range(self._present()) if (b := self._find_block(image, n)) is not None]
        self.sidecar = self._find_sidecar(image)

    def _present(self) -> int:
        return -(-max(0, self.sidecar_at - FIRST_BLOCK) // self.geometry.stride)

    def _find_block(self, image: bytes, number: int) -> BlockPart | None:
        spare = FIRST_BLOCK + number * self.geometry.stride
        data, unit = spare + self.geometry.spare_area, self.geometry.unit_bytes
        present = min(self.geometry.units_per_block, max(0, self.sidecar_at - data) // unit)
        slots = [Struct(layout.SPARE_SLOT, spare + n * layout.SPARE_BYTES) for n in range(present)]
        held = bytearray(image)
        used = tuple(slot for slot in slots if any(image[slot.at : slot.end]))
        if not used:
            return None
        header = Struct(layout.BLOCK_HEADER, data)
        generation = int(header.of(held)["generation"])
        return BlockPart(number, spare, data, header, used, self._find_frames(image, data, generation))

    def _find_frames(self, image: bytes, data: int, generation: int) -> tuple[FramePart, ...]:
        block = np.frombuffer(image, np.uint8)[data : min(data + self.geometry.block_bytes, self.sidecar_at)]
        found, offset = [], self.geometry.unit_bytes
        while offset + layout.FRAME_OVERHEAD <= block.size:
            try:
                frame = read_frame(block, offset, generation=generation, uuid=self.uuid, base=0)
            except (Flaw, ValueError):
                offset += layout.LOOSE_ALIGNMENT
                continue
            records = tuple(_record_part(data + at, header, image) for at, header in frame.records)
            found.append(FramePart(Struct(layout.FRAME_HEADER, data + offset), data + frame.end, records))
            offset = frame.end
        return tuple(found)

    def _find_sidecar(self, image: bytes) -> tuple[Struct, tuple[Struct, ...], tuple[Struct, ...]] | None:
        at = self.sidecar_at
        if at >= len(image):
            return None
        head = Struct(layout.SIDECAR, at)
        fields = head.of(bytearray(image))
        lanes = _array(layout.SIDECAR_LANE, head.end, int(fields["lanes"]))
        start = head.end + len(lanes) * layout.SIDECAR_LANE.itemsize
        return head, lanes, _array(layout.SIDECAR_ENTRY, start, int(fields["records"]))

    @cached_property
    def records(self) -> list[RecordPart]:
        return [record for block in self.blocks for frame in block.frames for record in frame.records]

    @cached_property
    def rare(self) -> list[Struct]:
        """Structs of which there are few: superblocks, headers of blocks and frames, trailers, the sidecar's."""
        found = [Struct(layout.SUPERBLOCK, n * layout.SUPERBLOCK_BYTES) for n in range(layout.SUPERBLOCKS)]
        for block in self.blocks:
            found += [block.header, *block.slots]
            for frame in block.frames:
                found += [frame.header, Struct(layout.FRAME_TRAILER, frame.end - layout.FRAME_TRAILER.itemsize)]
        if self.sidecar is not None:
            head, lanes, entries = self.sidecar
            found += [head, *lanes, *entries]
        return found

    @cached_property
    def of_records(self) -> list[Struct]:
        """Headers of records, and the structs of their bodies."""
        return [one for record in self.records for one in (record.header, *record.inner)]

    def repair(self, image: bytearray, *, chain: bool, sidecar: bool) -> None:
        """Make checksums right. chain: also what frames say of the one before; sidecar: also what it has of the log."""
        self._rename_models(image)
        self._rename_sets(image)
        ends: dict[int, int] = {}
        for block in sorted(self.blocks, key=lambda b: int(b.header.of(image)["generation"])):
            lane = int(block.header.of(image)["lane"])
            generation = int(block.header.of(image)["generation"])
            for frame in block.frames:
                linked = chain and frame.header.at in self._linked
                _repair_frame(image, frame, self.uuid, generation, ends.get(lane, 0) if linked else None)
                ends[lane] = int.from_bytes(image[frame.end - _CRC : frame.end], "little")
            self._repair_block(image, block)
        for n in range(layout.SUPERBLOCKS):
            _seal(image, Struct(layout.SUPERBLOCK, n * layout.SUPERBLOCK_BYTES))
        if self.sidecar is not None:
            self._repair_sidecar(image, ends if sidecar else {})

    def _rename_models(self, image: bytearray) -> None:
        for record in self.records:
            header = record.header.of(image)
            if int(header["kind"]) == Kind.MODEL and record.header.dtype == layout.MODEL_HEADER:
                old = header["model_hash"].tobytes()
                header["model_hash"] = np.void(bytes(16))
                start = record.header.at + layout.RECORD_HEADER.itemsize
                new = hashlib.sha256(image[start : record.header.end] + image[slice(*record.body)]).digest()[:16]
                header["model_hash"] = np.void(old)
                image[: self.sidecar_at] = image[: self.sidecar_at].replace(old, new)

    def _rename_sets(self, image: bytearray) -> None:
        """Sets that did not grow out of others: their name is a hash of all that their records hold."""
        for old, records in self._sets.items():
            digest, marked = hashlib.sha256(), None
            for record in records:
                header, body = record.header.of(image), bytes(image[slice(*record.body)])
                if record.header.dtype == layout.DICTIONARY_HEADER:
                    if not int(header["first_atom"]):
                        fields = ["atoms", "head_dim", "uses", "transform", "mean", *["pairs"] * bool(header["pairs"])]
                        digest.update(np.array([int(header[name]) for name in fields], "<u4").tobytes())
                elif int(header["codebook"]) != marked:
                    marked = int(header["codebook"])
                    digest.update(_MARKS.get(int(header["form"]), b""))
                digest.update(body)
            image[: self.sidecar_at] = image[: self.sidecar_at].replace(old, digest.digest()[:16])

    @cached_property
    def _linked(self) -> set[int]:
        """Where frames begin that say of the one before in their lane what it is: not those behind erased blocks."""
        found, ends = set(), dict[int, int]()
        for block in sorted(self.blocks, key=lambda b: int(b.header.of(self._image)["generation"])):
            lane = int(block.header.of(self._image)["lane"])
            for frame in block.frames:
                if int(frame.header.of(self._image)["previous"]) == ends.get(lane, 0):
                    found.add(frame.header.at)
                ends[lane] = int.from_bytes(self._image[frame.end - _CRC : frame.end], "little")
        return found

    @cached_property
    def _sets(self) -> dict[bytes, list[RecordPart]]:
        found: dict[bytes, list[RecordPart]] = {}
        for record in self.records:
            header = record.header.of(self._image)
            codebook = record.header.dtype == layout.CODEBOOK_HEADER
            if codebook or (
                record.header.dtype == layout.DICTIONARY_HEADER and not any(header["parent_hash"].tobytes())
            ):
                found.setdefault(header["basis_hash"].tobytes(), []).append(record)
        return found

    def _repair_block(self, image: bytearray, block: BlockPart) -> None:
        _seal(image, block.header)
        unit = self.geometry.unit_bytes
        for slot in block.slots:
            n = (slot.at - block.spare) // layout.SPARE_BYTES
            place = self.uuid + (block.number * self.geometry.units_per_block + n).to_bytes(8, "little")
            data = bytes(image[block.data + n * unit : block.data + (n + 1) * unit])
            slot.of(image)["crc"] = crc32c(bytes(image[slot.at + _CRC : slot.end]), crc32c(data, crc32c(place)))

    def _repair_sidecar(self, image: bytearray, ends: dict[int, int]) -> None:
        assert self.sidecar is not None
        head, lanes, entries = self.sidecar
        for n, lane in enumerate(lanes):
            if n in ends:
                lane.of(image)["frame_crc"] = ends[n]
        data = {block.number: block.data for block in self.blocks}
        for entry in entries if ends else ():
            fields = entry.of(image)
            at = data.get(int(fields["block"]), 0) + int(fields["offset"])
            size = min(128, int.from_bytes(image[at + 6 : at + 8], "little"))
            fields["header"] = np.void(bytes(image[at : at + size]).ljust(128, b"\0"))
        head.of(image)["body_crc"] = crc32c(bytes(image[head.end :]))
        _seal(image, head)


def _record_part(at: int, header: np.void, image: bytes) -> RecordPart:
    size, length = int(header["header_bytes"]), int(header["body_bytes"])
    body, kind = (at + size, at + size + length), int(header["kind"])
    dtype = layout.HEADERS.get(kind, layout.RECORD_HEADER)
    inner: tuple[Struct, ...] = ()
    if kind == Kind.MODEL:
        inner = _array(layout.MODEL_LAYER, body[0], int(header["layers"]))
    elif kind == Kind.SEQUENCE:
        inner = _array(layout.POLICY, body[0], int(header["policies"]))
    elif kind == Kind.FREED:
        inner = _array(layout.FREED_RUN, body[0], int(header["runs"]))
    elif kind == Kind.DICTIONARY and not int(header["first_atom"]):
        inner = _array(layout.DICTIONARY_USE, body[0], int(header["uses"]))
    elif kind == Kind.CODEBOOK and not int(header["first_byte"]):
        form = layout.PRODUCT if int(header["form"]) == layout.CodebookForm.PRODUCT else layout.TRELLIS
        inner = (Struct(form, body[0]),)
    return RecordPart(Struct(dtype, at), body, inner)


def _array(dtype: np.dtype[np.void], at: int, count: int) -> tuple[Struct, ...]:
    return tuple(Struct(dtype, at + n * dtype.itemsize) for n in range(count))


def _seal(image: bytearray, struct: Struct) -> None:
    """A struct whose last field is the checksum of the others."""
    struct.of(image)["crc"] = crc32c(bytes(image[struct.at : struct.end - _CRC]))


def _repair_frame(image: bytearray, frame: FramePart, uuid: bytes, generation: int, previous: int | None) -> None:
    """A body that its header says to reach beyond the frame keeps the checksum of what it was."""
    for record in frame.records:
        header = record.header.of(image)
        start, end = record.body[0], record.body[0] + int(header["body_bytes"])
        body = image[start:end] if end <= frame.end else image[slice(*record.body)]
        header["body_crc"] = crc32c(bytes(body))
        header["header_crc"] = crc32c(bytes(image[record.header.at + _CRC : record.header.end]))
    h = frame.header.of(image)
    h["magic"] = layout.frame_magic(generation)
    if previous is not None:
        h["previous"] = previous
    h["header_crc"] = crc32c(bytes(image[frame.header.at : frame.header.end - _CRC]), frame_seed(uuid))
    body = bytes(image[frame.header.end : frame.end - _CRC])
    image[frame.end - _CRC : frame.end] = crc32c(body, int(h["header_crc"])).to_bytes(_CRC, "little")
