"""Records of frames that are lost, as far as they are whole: each has checksums of its own.

A frame that was durable and whose header is intact is known to be that of the chain by its number, the frame before it
and its session; where its records lie is known up to the first header of theirs that is not intact. Whatever looks
like a record elsewhere may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvcodec.errors import FormatError
from kvcodec.flash.block import Block
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.flash.image import Bytes
from kvcodec.layout import (
    FORMAT_VERSION,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    FRAME_TRAILER,
    LOOSE_ALIGNMENT,
    RECORD_ALIGNMENT,
    FrameType,
    align,
    frame_magic,
)
from kvcodec.log.frame import FrameId, frame_seed, place_record, read_record_header
from kvcodec.log.located import Located, Place

_CRC_BYTES = 4  # of a header_crc, behind what it covers
_KIND_AT = 4  # in a record


class Broken(NamedTuple):
    """Where frames are lost: the first of them was expected at byte `offset` of `block`, or at the beginning of the one
    that follows. number, previous: of it. found: the frame at which the walk went on.
    """

    block: Block
    following: Block | None
    offset: int
    number: int
    previous: int
    found: FrameId


def records_of(device: Device, broken: Broken) -> list[Located]:
    """Whole records, in log order, of the frames that are lost in one place and follow each other there."""
    places = [(broken.block, broken.offset), (broken.block, align(broken.offset, device.geometry.unit_bytes))]
    if broken.following is not None:
        places.append((broken.following, device.geometry.unit_bytes))
    for block, offset in places:
        found, number, previous = list[Located](), broken.number, broken.previous
        while number < broken.found.number and (end := _frame_end(device, broken, block, offset, number, previous)):
            found += _whole_records(device, block, offset, end)
            data = device.data(block.number, end - FRAME_TRAILER.itemsize, FRAME_TRAILER.itemsize)
            number, previous, offset = number + 1, int(data.view(FRAME_TRAILER)[0]["crc"]), end
        if number > broken.number:
            return found
    return []


def _frame_end(device: Device, broken: Broken, block: Block, offset: int, number: int, previous: int) -> int:
    """Where the frame ends whose header stands here, if it is the one that is looked for; else 0."""
    data = device.data(block.number, 0, device.geometry.block_bytes)
    raw = data[offset : offset + FRAME_HEADER.itemsize]
    if raw.size < FRAME_HEADER.itemsize:
        return 0
    h = raw.view(FRAME_HEADER)[0]
    if int(h["magic"]) != frame_magic(block.generation):
        return 0
    if int(h["header_crc"]) != crc32c(raw[:-_CRC_BYTES], frame_seed(device.uuid)):
        return 0
    known = (int(h["version"]), int(h["flags"])) == (FORMAT_VERSION, 0) and int(h["type"]) in list(FrameType)
    own = (int(h["number"]), int(h["previous"]), int(h["session"]), int(h["session_start"]))
    length = int(h["length"])
    fits = FRAME_OVERHEAD <= length <= data.size - offset and not length % LOOSE_ALIGNMENT
    wanted = (number, previous, broken.found.session, broken.found.session_start)
    return offset + length if known and fits and own == wanted else 0


def _whole_records(device: Device, block: Block, offset: int, end: int) -> Iterator[Located]:
    """Records of a frame whose checksums hold, up to the first one whose length nobody knows."""
    data, base = device.data(block.number, 0, device.geometry.block_bytes), device.file_offset(block.number)
    position, last = offset + FRAME_HEADER.itemsize, end - FRAME_TRAILER.itemsize
    while (at := _next_record(data, position, last)) >= 0:
        try:
            header = read_record_header(data[:last], at, base)
        except FormatError:
            return
        if place_record(at, int(header["kind"])) != at:
            return
        start = at + int(header["header_bytes"])
        position = start + int(header["body_bytes"])
        if crc32c(data[start:position]) == int(header["body_crc"]):
            yield Located(Place(block.generation, block.number, at), header)


def _next_record(data: Bytes, position: int, last: int) -> int:
    """Where the next record begins: its kind is never zero, and the gap before it is zeros; -1 if there is none."""
    for at in dict.fromkeys(align(position, a) for a in (LOOSE_ALIGNMENT, *RECORD_ALIGNMENT.values())):
        if at + _KIND_AT < last and data[at + _KIND_AT]:
            return -1 if data[position:at].any() else at
    return -1
