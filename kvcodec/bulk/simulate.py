"""Running a workload on a simulated device, to its end or until wear is steady."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from kvcodec.bulk.course import Course
from kvcodec.layout import Lane
from kvcodec.measure.simulation import Simulation
from kvcodec.measure.workload import Mark, Steadiness, Workload


@dataclass(frozen=True)
class Outcome:
    """What appends came to. simulated: how many were, the rest is extrapolated from them; steady: whether wear was.

    least, most: erases of a block over their mean, of those that were simulated.
    """

    total: Mark
    simulated: Mark
    steady: bool
    least: float
    most: float
    mean_erases: float

    def as_dict(self) -> dict[str, float | bool]:
        """JSON-able."""
        return {
            "appends": self.total.appends, "simulated_appends": self.simulated.appends, "steady": self.steady,
            "erases_per_block": self.mean_erases, "least_erases_over_mean": self.least,
            "most_erases_over_mean": self.most,
        }  # fmt: skip


def run_workload(
    course: Course,
    blocks: int,
    workload: Workload,
    appends: int,
    *,
    at_once: int = 1,
    sync_every: int = 0,
    until_steady: bool = True,
    least_cycles: float = 0,
    tell: Callable[[int, int], None] = lambda _done, _all: None,
) -> Outcome:
    """`appends` of sequences as `workload` says on a device of so many blocks. least_cycles: erases of a block, on
    average, before wear counts as steady. tell: called with the appends that are done, and all. Raises SpecError,
    NoSpace.
    """
    simulation = Simulation(course.geometry, blocks)
    simulation.begin_log(course.begins)
    steadiness = Steadiness(blocks)
    how = {"at_once": at_once, "sync_every": sync_every}
    sizes = cache(lambda tokens: float(course.final_bytes(tokens, **how)))
    steps = cache(lambda tokens: list(course.steps(tokens, **how)))
    for turn in workload.turns(sizes, blocks * course.geometry.block_bytes):
        for number in turn.dropped:
            simulation.drop(number, course.drop, durable=course.journal is not None)
        simulation.begin_sequence(turn.begun, course.sequence)
        for step, durable in steps(turn.tokens):
            simulation.append(turn.begun, step, durable=durable)
            if simulation.appends >= appends:
                break
        mark = mark_of(simulation)
        steadiness.take(mark)
        tell(mark.appends, appends)
        enough = mark.erases >= least_cycles * blocks and steadiness.is_steady
        if mark.appends >= appends or (until_steady and enough):
            break
    steady, erases = steadiness.is_steady, simulation.erases
    total = steadiness.go_on(mark, appends) if mark.appends < appends else mark
    mean = float(np.mean(erases))
    least, most = (float(n / mean) if mean else 1.0 for n in (erases.min(), erases.max()))
    return Outcome(total, mark, steady, least, most, mean)


def mark_of(simulation: Simulation) -> Mark:
    """Where a simulation is."""
    fresh, kept = simulation.counters[Lane.FRESH], simulation.counters[Lane.KEPT]
    erases, programmed = int(simulation.erases.sum()), fresh.programmed + kept.programmed
    return Mark(simulation.appends, fresh.host, fresh.framed, programmed, kept.programmed, erases)
