"""A row of the bench: one piece of work, and who does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kvcodec.bench.peers import Peers

OURS = "kvcodec"
READ, WRITE = "read", "write"


class WrongResult(Exception):
    """What a contender computed is not what it should be; its row is not measured."""


def _nothing() -> None:
    """For contenders whose result cannot be wrong."""


@dataclass(frozen=True)
class Contender:
    """One who does a row's work. run() does `units` of it at a time, and reads or writes `moved` bytes.

    check() is called after a first run and raises WrongResult. bound: whether `moved` counts bytes that the machine
    must read from memory (READ) or write to it (WRITE), and so what they are a share of; empty if neither.
    """

    name: str
    run: Callable[[], object]
    units: int
    moved: int = 0
    bound: str = ""
    check: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Absent:
    """One who can't take part, and why: what is missing and how to install it."""

    name: str
    reason: str


Entry = Contender | Absent


@dataclass(frozen=True)
class Row:
    """One piece of work. The contender called OURS is what the others are compared with.

    shape: for readers. unit: what times are given for (value, token, byte, record, run). prepare: makes the contenders
    and their data, which is freed after the row, from the peers and a directory that is gone then, too. slow: left
    out of quick runs.
    """

    name: str
    what: str
    shape: str
    unit: str
    prepare: Callable[[Peers, Path], Sequence[Entry]]
    slow: bool = False


def require_close(
    name: str, found: NDArray[Any], wanted: NDArray[Any], tolerance: float, what: str = "the result"
) -> None:
    """Raise WrongResult unless |found - wanted| / |wanted|, Frobenius, is at most `tolerance`. Same shapes."""
    if found.shape != wanted.shape:
        raise WrongResult(f"{name}: {what} has shape {found.shape}, want {wanted.shape}")
    wide = wanted.astype(np.float64)
    error = float(np.linalg.norm(found.astype(np.float64) - wide) / np.linalg.norm(wide))
    if not error <= tolerance:
        raise WrongResult(f"{name}: relative error of {what} is {error:.2g}, want at most {tolerance:.2g}")
