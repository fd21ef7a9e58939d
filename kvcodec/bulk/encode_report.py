"""What encoding a dump gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcodec.store.stats import SequenceStats, Stats


@dataclass(frozen=True)
class EncodeReport:
    """What was encoded. layers: how many have rows. resumed: tokens that were there already. stats: of the whole log,
    after it was closed.
    """

    dump: str
    log: str
    sequence: str
    tokens: int
    layers: int
    resumed: int
    stats: Stats

    @property
    def own(self) -> SequenceStats:
        """Figures of the sequence that was encoded."""
        return next(s for s in self.stats.sequences if s.name == self.sequence)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return self.own_dict() | {"stats": self.stats.as_dict()}

    def own_dict(self) -> dict[str, Any]:
        """JSON-able, without the figures of the log."""
        return {name: getattr(self, name) for name in ("dump", "log", "sequence", "tokens", "layers", "resumed")}
