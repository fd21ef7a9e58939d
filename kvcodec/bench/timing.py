"""Time in turns: A B C, A B C, so that what slows the machine down for a while slows all alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.bench.scale import Scale

Clock = Callable[[], float]
_MOST_REPEATS = 10_000


def time_in_turns(
    runs: Sequence[Callable[[], object]], scale: Scale, clock: Clock = time.perf_counter
) -> NDArray[np.float64]:
    """Seconds of one run, (runs, rounds). Each was run before.

    What is shorter than a batch runs once untimed in each turn: the others have taken the caches from it.
    """
    single = [_time(run, 1, clock) for run in runs]
    repeats = [max(1, min(_MOST_REPEATS, math.ceil(scale.batch_seconds / max(s, 1e-9)))) for s in single]
    seconds = sum(s * (n + (n > 1)) for s, n in zip(single, repeats, strict=True))
    rounds = int(min(max(scale.row_seconds / max(seconds, 1e-9), scale.least_rounds), scale.rounds))
    found = np.empty((len(runs), rounds))
    for turn in range(rounds):
        for i, (run, n) in enumerate(zip(runs, repeats, strict=True)):
            if n > 1:
                run()
            found[i, turn] = _time(run, n, clock)
    return found


def _time(run: Callable[[], object], repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats
