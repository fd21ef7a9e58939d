"""What training dictionaries gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcodec.codecs.dictionary import Dictionary


@dataclass(frozen=True)
class TrainedUnit:
    """One dictionary. about: its entry in the artefact's information. seconds: 0 if it was there already."""

    name: str
    dictionary: Dictionary
    about: Mapping[str, Any]
    seconds: float
    resumed: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"name": self.name, **self.about, "seconds": round(self.seconds, 3), "resumed": self.resumed}


@dataclass(frozen=True)
class TrainReport:
    """What was trained. out: the file. hash: of the set, hexadecimal. tokens, held_out: of all dumps. nbytes: of atoms
    and means. seconds: of all. resumed: dictionaries that were there already.
    """

    out: str
    hash: str
    units: tuple[TrainedUnit, ...]
    tokens: int
    held_out: int
    nbytes: int
    seconds: float

    @property
    def resumed(self) -> int:
        return sum(unit.resumed for unit in self.units)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        own = {name: getattr(self, name) for name in ("out", "hash", "tokens", "held_out", "nbytes", "resumed")}
        return own | {"seconds": round(self.seconds, 3), "dictionaries": [unit.as_dict() for unit in self.units]}
