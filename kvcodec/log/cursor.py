"""Where a walk along a lane stands, and which frames of a block it accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvcodec.flash.block import Block


@dataclass
class Cursor:
    """The end of the walk: the next frame is expected at byte `offset` of `block`."""

    block: Block | None = None
    offset: int = 0
    number: int = 0
    crc: int = 0
    durable: int = 0
    session: int = 0
    drops: int = 0


class Span(NamedTuple):
    """The frames of a block that the walk accepted: at which byte the first one begins, its number, the number of the
    frame behind the last, and the CRC of the frame before.
    """

    offset: int
    first: int
    end: int
    previous: int
