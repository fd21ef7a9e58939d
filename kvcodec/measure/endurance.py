"""What wear comes to: write amplification in its parts, bytes until death, drive writes a day, years. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvcodec.errors import SpecError

SECONDS_A_DAY = 86_400
DAYS_A_YEAR = 365


@dataclass(frozen=True)
class Amplification:
    """Bytes that were programmed for rows, by why: all figures are bytes.

    host: rows as they are coded, groups and steps, as a writer gave them. framed: with frame and record headers.
    padded: programmed for those: whole units, and block headers. copied: programmed to clean blocks. compacted:
    programmed to make the log small. spare: out-of-band, apart from all others.
    """

    host: int
    framed: int
    padded: int
    copied: int = 0
    compacted: int = 0
    spare: int = 0

    @property
    def programmed(self) -> int:
        """All data bytes."""
        return self.padded + self.copied + self.compacted

    @property
    def format(self) -> float:
        """Framed over host bytes."""
        return _over(self.framed, self.host)

    @property
    def padding(self) -> float:
        """Of whole units and block headers."""
        return _over(self.padded, self.framed)

    @property
    def cleaning(self) -> float:
        """Of what is copied so that blocks can be erased."""
        return _over(self.padded + self.copied, self.padded)

    @property
    def compaction(self) -> float:
        """Of what is copied for the log's size."""
        return _over(self.programmed, self.padded + self.copied)

    @property
    def total(self) -> float:
        """Programmed over host bytes (WAF): the product of the four."""
        return _over(self.programmed, self.host)

    def as_dict(self) -> dict[str, float | int | None]:
        """JSON-able; a factor that is not defined is None."""
        factors = {name: getattr(self, name) for name in ("total", "format", "padding", "cleaning", "compaction")}
        sizes = {f"{name}_bytes": getattr(self, name) for name in ("host", "programmed", "spare")}
        return sizes | {name: value if value == value else None for name, value in factors.items()}


def sync_padding(size: int, unit: int) -> float:
    """How many times as much is programmed if a sync follows `size` bytes on a device with units of `unit` bytes."""
    if size < 1 or unit < 1:
        raise SpecError(f"{size} bytes in units of {unit}: want 1 or more of both")
    return -(-size // unit) * unit / size


def bytes_until_death(capacity: float, cycles: float, amplification: float = 1.0) -> float:
    """Host bytes that a device takes in its life (TBW), its wear being level."""
    if not (capacity > 0 and cycles > 0 and amplification > 0):
        raise SpecError(f"capacity {capacity:g}, cycles {cycles:g}, amplification {amplification:g}: want more than 0")
    return capacity * cycles / amplification


def drive_writes_a_day(life_bytes: float, capacity: float, years: float) -> float:
    """How often a day the whole device may be written for so many years (DWPD)."""
    if not (capacity > 0 and years > 0):
        raise SpecError(f"capacity {capacity:g}, years {years:g}: want more than 0")
    return life_bytes / (capacity * DAYS_A_YEAR * years)


def years_at(life_bytes: float, bytes_a_second: float) -> float:
    """Years until `life_bytes` have been written; inf at a rate of 0."""
    if bytes_a_second < 0:
        raise SpecError(f"a rate of {bytes_a_second:g} bytes a second: want 0 or more")
    seconds = life_bytes / bytes_a_second if bytes_a_second else math.inf
    return seconds / (SECONDS_A_DAY * DAYS_A_YEAR)


def tokens_until_death(life_bytes: float, bytes_a_token: float) -> float:
    """Tokens whose bytes a device takes in its life."""
    if not bytes_a_token > 0:
        raise SpecError(f"{bytes_a_token:g} bytes a token: want more than 0")
    return life_bytes / bytes_a_token


@dataclass(frozen=True)
class Life:
    """What is left to tell of a device once it is known what a token programs.

    capacity, cycles: bytes and rated cycles of the device. amplification: WAF. token_bytes: programmed for a token,
    all counted. tokens_a_second, years: the rate, and the time that drive writes a day are told for.
    """

    capacity: float
    cycles: float
    amplification: float
    token_bytes: float
    tokens_a_second: float
    years: float

    @property
    def host_bytes(self) -> float:
        """Host bytes until death (TBW)."""
        return bytes_until_death(self.capacity, self.cycles, self.amplification)

    @property
    def writes_a_day(self) -> float:
        """DWPD."""
        return drive_writes_a_day(self.host_bytes, self.capacity, self.years)

    @property
    def tokens(self) -> float:
        """Until death."""
        return tokens_until_death(bytes_until_death(self.capacity, self.cycles), self.token_bytes)

    @property
    def programmed_a_day(self) -> float:
        """Bytes."""
        return self.token_bytes * self.tokens_a_second * SECONDS_A_DAY

    @property
    def years_of_life(self) -> float:
        """At the rate."""
        return years_at(bytes_until_death(self.capacity, self.cycles), self.token_bytes * self.tokens_a_second)

    def as_dict(self) -> dict[str, float | None]:
        """JSON-able; what has no end is None."""
        own = {
            "capacity_bytes": self.capacity, "rated_cycles": self.cycles, "tokens_per_second": self.tokens_a_second,
            "write_amplification": self.amplification, "programmed_bytes_per_token": self.token_bytes,
            "tbw_bytes": self.host_bytes, "dwpd": self.writes_a_day, "dwpd_years": self.years,
            "programmed_bytes_per_day": self.programmed_a_day, "tokens_until_death": self.tokens,
            "years_of_life": self.years_of_life,
        }  # fmt: skip
        return {name: value if math.isfinite(value) else None for name, value in own.items()}


def _over(size: int, base: int) -> float:
    return size / base if base else float("nan")
