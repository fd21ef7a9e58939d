"""Using blocks no more: which, said in RETIRED records (formats/record.md), and when that is due."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from kvcodec.errors import NoSpace, Uncorrectable
from kvcodec.flash.device import Device
from kvcodec.layout import FRAME_OVERHEAD, RetireCause
from kvcodec.log.located import Located
from kvcodec.log.retired import retired_records
from kvcodec.log.takeup import Writers


def body_limit(device: Device) -> int:
    """Bytes of a body of FREED and RETIRED records that fit a block beside others."""
    return (device.geometry.block_bytes - FRAME_OVERHEAD) // 4


def retire_blocks(device: Device, writers: Writers, causes: Mapping[int, RetireCause]) -> Sequence[Located]:
    """Use these blocks no more, of which none is open; durable when it returns. Gives the records that say so. Raises
    NoSpace, with the blocks left as ones that failed.
    """
    for block, cause in causes.items():
        device.retire(block, cause)
    if not causes:
        return []
    try:
        located = writers.kept.append(retired_records(causes, body_limit(device)))
    except NoSpace:
        for block, cause in causes.items():
            device.hold_back(block, cause)
        raise
    writers.kept.sync()
    return located


def due_blocks(device: Device) -> set[int]:
    """Blocks that are to be cleaned before more bits flip in them than can be corrected."""
    return set() if device.read_errors is None else device.read_errors.due - device.retired.keys()


def read_blocks(device: Device, blocks: Iterable[int]) -> None:
    """Read all of these blocks, for what that shows of them."""
    for block in blocks if device.read_errors is not None else ():
        with contextlib.suppress(Uncorrectable):
            device.sense(block, 0, device.geometry.block_bytes)
