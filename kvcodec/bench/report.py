"""What a bench found: times by round, and the figures that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.bench.row import OURS, Absent


@dataclass(frozen=True, eq=False)
class Timing:
    """One contender's times. seconds: of one run, float64 (rounds,). probe: seconds that this machine takes to read,
    or to write, one byte, in the same rounds; None where `moved` is not bound by memory.
    """

    name: str
    units: int
    moved: int
    bound: str
    seconds: NDArray[np.float64]
    probe: NDArray[np.float64] | None = None

    @property
    def ns_per_unit(self) -> float:
        """Median over the rounds."""
        return float(np.median(self.seconds)) / self.units * 1e9

    @property
    def gb_per_s(self) -> float | None:
        """Bytes moved a second / 1e9, by the median time."""
        return self.moved / float(np.median(self.seconds)) / 1e9 if self.moved else None

    @property
    def share(self) -> float | None:
        """Of this machine's read or write bandwidth: median over the rounds of the share in each."""
        if self.probe is None or not self.moved:
            return None
        return float(np.median(self.probe * self.moved / self.seconds))

    def ratio_to(self, ours: Timing) -> float:
        """How many times as long as `ours` this takes for one unit: median over the rounds of the ratio in each."""
        return float(np.median((self.seconds / self.units) / (ours.seconds / ours.units)))


@dataclass(frozen=True)
class RowResult:
    """A row's times, or the error that stopped it."""

    name: str
    what: str
    shape: str
    unit: str
    timings: tuple[Timing, ...] = ()
    absent: tuple[Absent, ...] = ()
    error: str | None = None

    @property
    def ours(self) -> Timing | None:
        """The timing that the others are compared with; None if there is none."""
        return next((t for t in self.timings if t.name == OURS), None)

    def ratio(self, timing: Timing) -> float | None:
        """See Timing.ratio_to; None without a timing of ours."""
        return None if self.ours is None else timing.ratio_to(self.ours)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        contenders = [
            {
                "name": t.name, "ns_per_unit": t.ns_per_unit, "gb_per_s": t.gb_per_s, "bound": t.bound or None,
                "share_of_bandwidth": t.share, "ratio": self.ratio(t), "rounds": len(t.seconds),
            }
            for t in self.timings
        ]  # fmt: skip
        return {
            "name": self.name, "what": self.what, "shape": self.shape, "unit": self.unit, "contenders": contenders,
            "absent": [{"name": a.name, "reason": a.reason} for a in self.absent], "error": self.error,
        }  # fmt: skip


@dataclass(frozen=True)
class Report:
    """One run of the bench. machine: figures for readers. peers: by name, the version or why it is absent."""

    machine: dict[str, str]
    peers: dict[str, str]
    quick: bool
    rows: tuple[RowResult, ...] = field(default=())

    @property
    def bad(self) -> bool:
        """Whether a row was stopped by a wrong result."""
        return any(row.error for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "machine": self.machine, "peers": self.peers, "quick": self.quick,
            "rows": [row.as_dict() for row in self.rows],
        }  # fmt: skip
