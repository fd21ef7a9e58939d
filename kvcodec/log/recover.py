"""Recovery: its modes, what it reports, and which frames beyond a bad place are still alive (formats/frame.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kvcodec.errors import SpecError
from kvcodec.flash.block import Block
from kvcodec.log.frame import Frame


class Recovery(StrEnum):
    """What opening a log does about a bad place."""

    TORN_TAIL = "torn-tail"  # a torn tail is left out, damage is an error
    ABSOLUTE = "absolute"  # any flaw is an error
    POINT_IN_TIME = "point-in-time"  # everything before the first damage
    SKIP_DAMAGED = "skip-damaged"  # everything that is whole; only for reading

    @classmethod
    def parse(cls, text: str | Recovery) -> Recovery:
        try:
            return cls(text)
        except ValueError:
            raise SpecError(f"recovery mode {text!r}, want one of {', '.join(cls)}") from None


@dataclass(frozen=True)
class BadRange:
    """Bytes of the file that are no committed frames.

    kind: "torn tail", "damage", "gap" (a later writer left it behind), or "padding" that is zeros no longer.
    """

    start: int
    end: int
    why: str
    kind: str


@dataclass
class Report:
    """What the walk met beside good frames. `torn` is the unfinished end, if there is one."""

    frames: int = 0
    gaps: list[BadRange] = field(default_factory=list)
    damage: list[BadRange] = field(default_factory=list)
    torn: BadRange | None = None


class Found(NamedTuple):
    """A good frame that a spare slot pointed at."""

    block: Block
    offset: int
    frame: Frame


def alive(later: Sequence[Found], number: int) -> list[Found]:
    """Frames after frame `number`, without those that a later writer, which had not accepted them, began anew.

    later: good frames beyond the bad place, in log order.
    """
    return [
        found
        for i, found in enumerate(later)
        if found.frame.id.number > number
        and not any(
            other.frame.id.session != found.frame.id.session and other.frame.id.session_start <= found.frame.id.number
            for other in later[i + 1 :]
        )
    ]
