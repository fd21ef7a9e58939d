"""What decoding a sequence gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class DecodeReport:
    """What was decoded. tokens: rows written. first: the sequence's token that is the first of them. lost: token
    ranges [first, end) left out because damage took them, with skip-damaged only. forgotten: how many were left out
    because a layer's sliding window went on without them.
    """

    log: str
    dump: str
    sequence: str
    tokens: int
    layers: int
    dtype: str
    dump_bytes: int
    lost: tuple[tuple[int, int], ...] = ()
    first: int = 0
    forgotten: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)
