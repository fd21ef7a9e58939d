"""What goes wrong on a device: blocks that are bad from the beginning, blocks that no longer erase, units that do not
program, bits that flip. By lot, from a seed: the same at every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import SpecError
from kvcodec.flash.lots import draw_lots

_PROGRAM, _WEAK_UNIT, _WEAK_WHEN, _GRAVE = range(4)  # what lots are for
_SHARES = ("bad", "weak", "program", "weak_units", "flips", "grave")
_COUNTS = ("weak_cycles", "weak_unit_cycles", "ecc", "grave_reads")
_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": lambda text: bool(int(text))}


@dataclass(frozen=True)
class Faults:
    """Blocks. bad: share that are bad from the factory. weak: share of the others that fail to erase some time before
    `weak_cycles` erases. worn: whether a block that was erased as often as it is rated for fails to erase.

    Programs. program: how likely a unit fails to program. weak_units: share of the units that fail to program from some
    time before `weak_unit_cycles` erases of their block on.

    Reads. flips: how likely a bit flips whenever its unit is read; twice that on a block that was erased as often as it
    is rated for, in proportion before. Flips stay until the block is erased. ecc: bits of a codeword, 1 KiB or a
    smaller unit, that can be corrected. grave: share of units that can't be read any more once they were read
    `grave_reads` times since they were erased.

    memory: the flips of devices, by their uuid (ecc.py). Whoever opens a log again with the same object finds them as
    they were; with an equal one, none.
    """

    seed: int = 0
    bad: float = 0.0
    weak: float = 0.0
    weak_cycles: int = 100
    worn: bool = True
    program: float = 0.0
    weak_units: float = 0.0
    weak_unit_cycles: int = 100
    flips: float = 0.0
    ecc: int = 8
    grave: float = 0.0
    grave_reads: int = 1000
    memory: dict[bytes, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        shares, counts = ([getattr(self, name) for name in names] for names in (_SHARES, _COUNTS))
        if not (all(0 <= share < 1 for share in shares) and min(counts) >= 1 and self.seed >= 0):
            raise SpecError(f"{self}: want shares from 0 to below 1, counts of 1 or more, and a seed of 0 or more")

    @classmethod
    def parse(cls, text: str | Faults) -> Faults:
        """`seed=1,bad=0.02,weak=0.1,weak_cycles=50,worn=0,program=1e-4,flips=1e-7,ecc=8`, any of the attributes.

        Raises SpecError.
        """
        if isinstance(text, Faults):
            return text
        given = dict(part.partition("=")[::2] for part in text.split(",") if part)
        kinds = {one.name: _KINDS[str(one.type)] for one in fields(cls) if str(one.type) in _KINDS}
        if not set(given) <= set(kinds):
            raise SpecError(f"faults {text!r}: want {', '.join(f'{name}=' for name in kinds)}")
        try:
            return cls(**{name: kinds[name](value) for name, value in given.items()})
        except ValueError:
            raise SpecError(f"faults {text!r}: not a number") from None

    @property
    def fail_programs(self) -> bool:
        """Whether any unit may fail to program."""
        return self.program > 0 or self.weak_units > 0

    @property
    def fail_reads(self) -> bool:
        """Whether any read may go wrong."""
        return self.flips > 0 or self.grave > 0

    def bad_blocks(self, blocks: int) -> list[int]:
        """Those that are bad from the factory."""
        return [block for block in range(blocks) if self.bad and self._lot(block)[0] < self.bad]

    def fails_to_erase(self, block: int, count: int, rated: int) -> bool:
        """Whether a block that was erased `count` times, and is rated for so many, fails the next time."""
        _, weak, when = self._lot(block)
        return (self.worn and count >= rated) or (weak < self.weak and count >= when * self.weak_cycles)

    def fail_to_program(self, block: int, first: int, units: int, count: int) -> NDArray[np.bool_]:
        """Which units from number `first` on of a block that was erased `count` times do not program (units,)."""
        out = np.zeros(units, np.bool_)
        if self.program:
            out |= draw_lots(first, units, self.seed, _PROGRAM, block, count) < self.program
        if self.weak_units:
            weak = draw_lots(first, units, self.seed, _WEAK_UNIT, block) < self.weak_units
            when = draw_lots(first, units, self.seed, _WEAK_WHEN, block)
            out |= weak & (count >= when * self.weak_unit_cycles)
        return out

    def are_grave(self, block: int, first: int, units: int) -> NDArray[np.bool_]:
        """Which units of a block, from number `first` on, can't be read for ever (units,)."""
        return draw_lots(first, units, self.seed, _GRAVE, block) < self.grave

    def _lot(self, block: int) -> tuple[float, float, float]:
        first, second, third = np.random.default_rng([self.seed, block]).random(3).tolist()
        return first, second, third
