"""What programming leaves in a unit and its spare slot: that which was meant, or on failure anything but that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvcodec.flash.block import Block
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.image import Bytes
from kvcodec.layout import SPARE_BYTES, SPARE_SLOT

CRC_BYTES: int = SPARE_SLOT["crc"].itemsize  # the first field of a slot: it covers what follows


def slot_crc(uuid: bytes, place: int, data: Bytes | bytes, rest: bytes) -> int:
    """Checksum that binds a unit and the rest of its slot to a file and to a physical unit number."""
    return crc32c(rest, crc32c(data, crc32c(uuid + place.to_bytes(8, "little"))))


def encode_slots(uuid: bytes, block: Block, place: int, data: Bytes, first_frames: Sequence[int]) -> bytes:
    """Slots of units that begin with physical unit `place`; data: the bytes of all of them."""
    slots = np.zeros(len(first_frames), SPARE_SLOT)
    slots["first_frame"], slots["generation"], slots["lane"] = first_frames, block.generation, block.lane
    rest, size = slots.tobytes(), len(data) // len(first_frames)
    slots["crc"] = [
        slot_crc(uuid, place + i, data[i * size : (i + 1) * size], rest[at + CRC_BYTES : at + SPARE_BYTES])
        for i, at in enumerate(range(0, len(rest), SPARE_BYTES))
    ]
    return slots.tobytes()


def spoil_unit(data: Bytes, *keys: int) -> tuple[bytes, bytes]:
    """What a unit that fails to program, and its slot, come to hold, by lot: nothing, half of what was meant, or
    garbage, with a slot that is empty or garbage too. Never what was meant with a slot that is not empty: a device that
    reports a failure has not programmed the unit.
    """
    lot = np.random.default_rng(keys)
    fate, half = lot.integers(4), len(data) // 2
    if fate == 0:
        return b"", b""
    if fate == 1:
        return data[:half].tobytes(), b""
    return lot.bytes(len(data)), b"" if fate == 2 else lot.bytes(SPARE_BYTES)
