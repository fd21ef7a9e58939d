"""Which erase block to clean next: arrays in, a number out, the same rules for a device and for a simulation of one;
and a block that is being cleaned.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvcodec.flash.block import Block
from kvcodec.log.cursor import Span
from kvcodec.log.located import Located

_WORN_APART = 0.05  # of the mean of erases that a block may lag behind it before it is cleaned for that alone
_LEAST_APART = 2
_EVEN = 3.0  # how much more alive a block may be for each mean of erases that it is behind
FULL = 0.97  # of a block that is alive: cleaning it gives nothing worth the wear


@dataclass
class Victim:
    """A block that is being cleaned. span: its frames, None if it has none. queue: records yet to be copied.
    has_runs: whether it holds FREED records. waits_for: frame of lane FRESH that must be durable before it is erased.
    has_lost: whether it holds something alive that can't be read any more.
    """

    block: Block
    span: Span | None
    queue: deque[Located] = field(default_factory=deque)
    queue_bytes: int = 0
    has_runs: bool = False
    waits_for: int = 0
    has_lost: bool = False


def choose_victim(
    live: NDArray[np.float64],
    age: NDArray[np.float64],
    erases: NDArray[np.int64],
    mean_erases: float,
    *,
    urgent: bool,
    level: bool = True,
) -> int:
    """Number of the block that is best cleaned, or -1 if none gives anything.

    live: share of each block that is alive, 0 to 1. age: how long ago it was opened, in any unit. erases: of each.
    mean_erases: of all blocks of the device. urgent: what is freed soonest counts (greedy); else also how long a block
    has been left alone (cost-benefit: Rosenblum and Ousterhout, 1992), since what died there will not be joined by
    much more. Of blocks that give about as much the one that was erased less often comes first. level: a block that
    lags behind in wear comes first, alive or not, as long as nothing is urgent: what never changes must not sit on the
    least worn blocks.
    """
    if not len(live):
        return -1
    lags = mean_erases - erases
    if level and not urgent and lags.max() > max(_LEAST_APART, _WORN_APART * mean_erases):
        return int(lags.argmax())
    even = np.clip(live + _EVEN * (erases - mean_erases) / max(mean_erases, 1.0), 0, 1)
    even[live >= FULL] = 2
    if urgent:
        best = int(even.argmin())
    else:
        best = int(((1 - even) * (1 + age) / (1 + even)).argmax())
        if live[best] >= FULL:
            best = int(live.argmin())
    return best if live[best] < FULL else -1
