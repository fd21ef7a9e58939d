"""What goes wrong on a device: blocks that are bad from the beginning, and blocks that no longer erase. By lot, from a
seed: the same at every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcodec.errors import SpecError


@dataclass(frozen=True)
class Faults:
    """bad: share of blocks that are bad from the factory. weak: share of the others that fail to erase some time before
    `weak_cycles`. worn: whether a block that was erased as often as it is rated for fails to erase.
    """

    seed: int = 0
    bad: float = 0.0
    weak: float = 0.0
    weak_cycles: int = 100
    worn: bool = True

    def __post_init__(self) -> None:
        if not (0 <= self.bad < 1 and 0 <= self.weak < 1 and self.weak_cycles >= 1 and self.seed >= 0):
            raise SpecError(f"{self}: want shares from 0 to below 1, and 1 cycle or more")

    @classmethod
    def parse(cls, text: str | Faults) -> Faults:
        """`seed=1,bad=0.02,weak=0.1,weak_cycles=50,worn=0`, any of them. Raises SpecError."""
        if isinstance(text, Faults):
            return text
        fields = dict(part.partition("=")[::2] for part in text.split(",") if part)
        kinds: dict[str, Callable[[str], Any]] = {
            "seed": int, "bad": float, "weak": float, "weak_cycles": int, "worn": lambda value: bool(int(value)),
        }  # fmt: skip
        if not set(fields) <= set(kinds):
            raise SpecError(f"faults {text!r}: want seed=, bad=, weak=, weak_cycles=, worn=")
        try:
            return cls(**{name: kinds[name](value) for name, value in fields.items()})
        except ValueError:
            raise SpecError(f"faults {text!r}: not a number") from None

    def bad_blocks(self, blocks: int) -> list[int]:
        """Those that are bad from the factory."""
        return [block for block in range(blocks) if self.bad and self._lot(block)[0] < self.bad]

    def fails_to_erase(self, block: int, count: int, rated: int) -> bool:
        """Whether a block that was erased `count` times, and is rated for so many, fails the next time."""
        _, weak, when = self._lot(block)
        return (self.worn and count >= rated) or (weak < self.weak and count >= when * self.weak_cycles)

    def _lot(self, block: int) -> tuple[float, float, float]:
        first, second, third = np.random.default_rng([self.seed, block]).random(3).tolist()
        return first, second, third
