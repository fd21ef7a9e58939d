"""What one golden log is, and lists of them that make functions are registered in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEVICE = "page=512,unit=64,block=8192"


@dataclass(frozen=True)
class Case:
    """One golden log. error: the named error it must raise, at `at`; frozen: its bytes are kept in tests/golden."""

    name: str
    shows: str
    make: Callable[[Path], None]
    error: str = ""
    at: str = "open"
    frozen: bool = True
    modes: bool = False  # whether all recovery modes' results are recorded


class Cases(list[Case]):
    """Cases in the order in which they are registered."""

    def made(
        self, name: str, shows: str, error: str = "", **options: Any
    ) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
        """Register a function that makes a log."""

        def register(make: Callable[[Path], None]) -> Callable[[Path], None]:
            self.append(Case(name, shows, make, error, **options))
            return make

        return register
