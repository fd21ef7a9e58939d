"""What a verification found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kvcodec.bulk.salvage import LostTokens, token_ranges
from kvcodec.log.recover import BadRange


class Verdict(StrEnum):
    """What is to be said of a log in one word."""

    CLEAN = "clean"
    TORN_TAIL = "torn tail"  # the end is unfinished, as a crash or a writer at work leaves it; nothing durable is lost
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"  # no log, or one that can't be walked to its end


@dataclass(frozen=True)
class SequenceCheck:
    """One sequence. tokens: how many there should be. lost: those that a layer and stream can't give any more."""

    name: str
    tokens: int
    lost: tuple[LostTokens, ...]

    @property
    def lost_ranges(self) -> list[tuple[int, int]]:
        """Token ranges (first, end) that any layer or stream has lost."""
        return token_ranges(self.lost)

    @property
    def lost_tokens(self) -> int:
        return sum(end - first for first, end in self.lost_ranges)

    @property
    def saved_tokens(self) -> int:
        """Those that every layer and stream can give."""
        return self.tokens - self.lost_tokens

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "name": self.name,
            "tokens": self.tokens,
            "lost_tokens": self.lost_tokens,
            "lost_ranges": [list(r) for r in self.lost_ranges],
            "lost": [one._asdict() for one in self.lost],
        }


@dataclass(frozen=True)
class VerifyReport:
    """What verify_log found.

    error: why the log is unreadable. frames, records, units (programmed): how many were checked. gaps: what earlier
    crashes left and later writers passed over, no flaw. torn: the unfinished end. damage: byte ranges of the file that
    are not what was written. orphans: whole records that contradict the log or belong to a sequence that is lost.
    """

    path: str
    verdict: Verdict
    error: str | None
    frames: int
    records: int
    units: int
    gaps: tuple[BadRange, ...]
    torn: BadRange | None
    damage: tuple[BadRange, ...]
    orphans: int
    sequences: tuple[SequenceCheck, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        own = {name: getattr(self, name) for name in ("path", "error", "frames", "records", "units", "orphans")}
        return own | {
            "verdict": str(self.verdict),
            "gaps": [asdict(gap) for gap in self.gaps],
            "torn": None if self.torn is None else asdict(self.torn),
            "damage": [asdict(one) for one in self.damage],
            "sequences": [one.as_dict() for one in self.sequences],
        }
