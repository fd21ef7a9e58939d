"""What went wrong on a device so far: blocks used no more, bits put right, units that could not be read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcodec.flash.device import Device
    from kvcodec.log.reader import Log


@dataclass(frozen=True)
class Failures:
    """retired: blocks used no more, by cause, as the log says. Of a device whose reads fail (`faults=`), since it was
    first opened with these faults: corrected_bits, in all reads; worst_codeword: most bits that are flipped in one that
    was read; uncorrectable_units; scrubbed_blocks, that were erased for their flips.
    """

    retired: dict[str, int] = field(default_factory=dict)
    corrected_bits: int = 0
    worst_codeword: int = 0
    uncorrectable_units: int = 0
    scrubbed_blocks: int = 0

    def lines(self) -> list[tuple[str, str]]:
        """Those that there are, in words."""
        retired = ", ".join(f"{count} {cause}" for cause, count in self.retired.items())
        flips = f"{self.corrected_bits}, at most {self.worst_codeword} of a codeword"
        figures = (
            ("blocks retired", retired, self.retired),
            ("flipped bits corrected", flips, self.corrected_bits),
            ("uncorrectable units", str(self.uncorrectable_units), self.uncorrectable_units),
            ("blocks scrubbed", str(self.scrubbed_blocks), self.scrubbed_blocks),
        )
        return [(name, text) for name, text, count in figures if count]


def count_failures(device: Device, log: Log) -> Failures:
    """Of an open log."""
    retired = dict(sorted(Counter(cause.name.lower() for cause in log.retired.values()).items()))
    errors = device.read_errors
    if errors is None:
        return Failures(retired)
    worst = max((errors.of_block(block)[1] for block in range(device.present_blocks())), default=0)
    return Failures(retired, errors.corrected, worst, errors.uncorrectable, errors.scrubbed)
