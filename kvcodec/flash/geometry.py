"""Geometry of the emulated device: pages, program units, erase blocks, and the presets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvcodec.errors import SpecError
from kvcodec.layout import BLOCK_HEADER, FILE_ALIGNMENT, LOOSE_ALIGNMENT, NO_FRAME, SPARE_BYTES, align

KIB, MIB = 1 << 10, 1 << 20
_LARGEST_BLOCK = 1 << 30


@dataclass(frozen=True)
class Geometry:
    """Sizes in bytes, times in nanoseconds, life in program/erase cycles.

    unit_bytes: the program unit, the smallest piece that can be programmed, once after each erase.
    block_bytes: the erase block. The spare area of a block (16 bytes a unit) comes on top of it.
    """

    name: str
    page_bytes: int
    unit_bytes: int
    block_bytes: int
    rated_cycles: int
    read_ns: int
    program_ns: int
    erase_ns: int

    def __post_init__(self) -> None:
        def want(ok: bool, what: str) -> None:
            if not ok:
                raise SpecError(f"device {self.name!r}: {what}")

        want(self.unit_bytes >= BLOCK_HEADER.itemsize, f"unit is {self.unit_bytes}, want 64 or more")
        want(self.unit_bytes < NO_FRAME, f"unit is {self.unit_bytes}, want less than 64 KiB")
        want(self.unit_bytes % LOOSE_ALIGNMENT == 0, f"unit is {self.unit_bytes}, want a multiple of 8")
        want(self.page_bytes > 0 and self.page_bytes % self.unit_bytes == 0, "a page is not a whole number of units")
        want(self.block_bytes % self.page_bytes == 0, "an erase block is not a whole number of pages")
        want(self.units_per_block >= 2, "an erase block has fewer than two program units")
        want(self.block_bytes <= _LARGEST_BLOCK, "an erase block is larger than 1 GiB")
        want(self.rated_cycles >= 1, "rated cycles are below 1")
        want(len(self.name.encode()) <= 16 and "\0" not in self.name, "the name is longer than 16 bytes")

    @cached_property
    def units_per_block(self) -> int:
        return self.block_bytes // self.unit_bytes

    @cached_property
    def spare_area(self) -> int:
        """Bytes of a block's spare area in the file."""
        return align(self.units_per_block * SPARE_BYTES, FILE_ALIGNMENT)

    @cached_property
    def stride(self) -> int:
        """Bytes of a block in the file: spare area, then data pages."""
        return self.spare_area + align(self.block_bytes, FILE_ALIGNMENT)

    @classmethod
    def parse(cls, text: str | Geometry) -> Geometry:
        """A preset's name, or `page=4096,unit=512,block=65536[,cycles=1000]` (unit: a page unless given)."""
        if isinstance(text, Geometry):
            return text
        if text in PRESETS:
            return PRESETS[text]
        wanted = f"want one of {', '.join(PRESETS)}, or page=…,unit=…,block=…,cycles=…"
        fields = dict(part.partition("=")[::2] for part in text.split(","))
        if not set(fields) <= {"page", "unit", "block", "cycles"} or not {"page", "block"} <= set(fields):
            raise SpecError(f"device {text!r} is unknown, {wanted}")
        if not all(v.isascii() and v.isdigit() and len(v) <= 12 for v in fields.values()):
            raise SpecError(f"device {text!r}: not a number, {wanted}")
        page = int(fields["page"])
        if page <= 0 or int(fields.get("unit", page)) <= 0:
            raise SpecError(f"device {text!r}: page and unit must be above 0")
        tlc = PRESETS["tlc"]
        return cls("custom", page, int(fields.get("unit", page)), int(fields["block"]),
                   int(fields.get("cycles", tlc.rated_cycles)), tlc.read_ns, tlc.program_ns, tlc.erase_ns)  # fmt: skip


# Sources. slc: NAND02G-B2D data sheet (2112-byte pages, four partial programs a page). mlc: MQSim's ssdconfig.xml. tlc:
# published die tables for page, block and program time, SimpleSSD for erase time. qlc: FEMU (extrapolated there); read
# and program are the means over the four page types, 59.3/85.3/127.2/169.6 and 861.5/2447.5/6881/9174 us. nor:
# W25Q128JV data sheet; its read time is that of the bus.
# Assumed: that units of a block are programmed in ascending order, all rated cycles but those of slc and nor, and the
# 133 MHz quad bus of nor.
PRESETS: dict[str, Geometry] = {
    "tlc": Geometry("tlc", 16 * KIB, 16 * KIB, 1152 * 16 * KIB, 3_000, 45_000, 500_000, 3_500_000),
    "slc": Geometry("slc", 2 * KIB, 512, 128 * KIB, 100_000, 25_000, 200_000, 1_500_000),
    "mlc": Geometry("mlc", 8 * KIB, 8 * KIB, 256 * 8 * KIB, 10_000, 75_000, 750_000, 3_800_000),
    "qlc": Geometry("qlc", 16 * KIB, 16 * KIB, 1024 * 16 * KIB, 1_000, 110_350, 4_841_000, 3_000_000),
    "nor": Geometry("nor", 256, 64, 64 * KIB, 100_000, 3_850, 400_000, 150_000_000),
}
