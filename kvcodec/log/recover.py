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
    kept: list[Found] = []
    least: list[tuple[int, int]] = []  # the two earliest (session_start, session) behind here, of different sessions
    for found in reversed(later):
        own = found.frame.id
        renewed = any(session != own.session and start <= own.number for start, session in least)
        if own.number > number and not renewed:
            kept.append(found)
        if (own.session_start, own.session) not in least:
            others = [pair for pair in least if pair[1] != own.session]
            mine = [pair for pair in least if pair[1] == own.session]
            least = sorted([*others, min([*mine, (own.session_start, own.session)])])[:2]
    return kept[::-1]
