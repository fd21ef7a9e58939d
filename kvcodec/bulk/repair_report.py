"""What a repair saved, and what it could not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kvcodec.bulk.verification import SequenceCheck
from kvcodec.log.recover import BadRange


@dataclass(frozen=True)
class RepairReport:
    """What repair_log did.

    path: the old log. out: the new one. records: how many were copied. sequences: those of the new log, with the tokens
    that the old one should have had and what is lost of them. damage: byte ranges of the old file where frames are
    lost: what was in them nobody knows. misfits: records of the old log that are whole and yet no part of the new one:
    they contradict others, belong to a sequence that is lost, or are of a kind that this version does not know. sets:
    hashes of trained sets that are no longer what those say. missing: the set that rows are coded over which could not
    be decoded for want of it; they were copied if their checksums hold.
    """

    path: str
    out: str
    records: int
    sequences: tuple[SequenceCheck, ...]
    damage: tuple[BadRange, ...]
    misfits: tuple[BadRange, ...]
    sets: tuple[str, ...]
    missing: str | None

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost, as far as anybody can know."""
        lost = any(one.lost for one in self.sequences)
        return not (lost or self.damage or self.misfits or self.sets or self.missing)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        own = {name: getattr(self, name) for name in ("path", "out", "records", "missing")}
        return own | {
            "whole": self.is_whole,
            "sequences": [one.as_dict() | {"saved_tokens": one.saved_tokens} for one in self.sequences],
            "damage": [asdict(one) for one in self.damage],
            "misfits": [asdict(one) for one in self.misfits],
            "sets": list(self.sets),
        }
