"""How long operations would take on real chips, and what energy: an estimate from data sheets, never a measurement.

Work is spread evenly over all planes; a channel carries the bytes of its dies in turn, while other dies work.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvcodec.errors import SpecError
from kvcodec.flash.geometry import Geometry

# Assumed: a die at work draws 25 mA at 3.3 V (data sheets of slc and nor name 15 to 30 mA for each operation), and a
# bus of 800 MB/s a channel takes 5 pJ a bit.
_ACTIVE_WATTS = 0.0825
_BIT_JOULES = 5e-12


@dataclass(frozen=True)
class Chips:
    """channels, dies a channel, planes a die that work at once, and the bytes a second of one channel's bus."""

    channels: int = 1
    dies: int = 1
    planes: int = 1
    bus_rate: float = 800e6

    def __post_init__(self) -> None:
        if min(self.channels, self.dies, self.planes) < 1 or not self.bus_rate > 0:
            raise SpecError(f"{self}: want 1 or more of each, and a bus that is not still")

    @property
    def at_work(self) -> int:
        """Planes that work at once."""
        return self.channels * self.dies * self.planes


@dataclass(frozen=True)
class Work:
    """Pages that are read and programmed (parts of one count as one), blocks that are erased, bytes on the bus."""

    reads: float = 0
    programs: float = 0
    erases: float = 0
    bus_bytes: float = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds and joules."""

    seconds: float
    joules: float


def program_work(geometry: Geometry, size: float) -> Work:
    """Programming `size` bytes, a program for each unit; where it has several a page, nor's time is that of a page."""
    per_program = geometry.page_bytes if geometry.name == "nor" else geometry.unit_bytes
    return Work(programs=size / per_program, bus_bytes=size)


def read_work(geometry: Geometry, size: float) -> Work:
    """Reading `size` bytes, page by page."""
    return Work(reads=size / geometry.page_bytes, bus_bytes=size)


def estimate(geometry: Geometry, chips: Chips, work: Work) -> Estimate:
    """Estimated time and energy of work that keeps all planes busy. Array and bus overlap: the slower one decides."""
    planes = work.reads * geometry.read_ns + work.programs * geometry.program_ns + work.erases * geometry.erase_ns
    array, bus = planes * 1e-9 / chips.at_work, work.bus_bytes / (chips.bus_rate * chips.channels)
    energy = planes * 1e-9 / chips.planes * _ACTIVE_WATTS + 8 * work.bus_bytes * _BIT_JOULES
    return Estimate(max(array, bus), energy)
