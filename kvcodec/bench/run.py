"""A run of the bench: rows, one after the other, each checked before it is timed."""

from __future__ import annotations

import fnmatch
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from kvcodec.bench.attention_rows import attention_rows
from kvcodec.bench.bandwidth import Probes
from kvcodec.bench.bandwidth_rows import bandwidth_rows
from kvcodec.bench.codec_rows import codec_rows
from kvcodec.bench.command_rows import command_rows
from kvcodec.bench.machine import describe_machine
from kvcodec.bench.opening_rows import opening_rows
from kvcodec.bench.peers import NAMES, Peers, find_peers
from kvcodec.bench.product_codec_rows import product_codec_rows
from kvcodec.bench.pursuit_rows import pursuit_rows
from kvcodec.bench.report import Report, RowResult, Timing
from kvcodec.bench.row import READ, Absent, Contender, Row, WrongResult
from kvcodec.bench.scale import FULL, QUICK, Scale
from kvcodec.bench.tier_rows import tier_rows
from kvcodec.bench.timing import Clock, time_in_turns
from kvcodec.bench.trellis_rows import trellis_codec_rows
from kvcodec.errors import SpecError

_PROBE_ROUNDS = Scale(rounds=7, row_seconds=1.0)


def list_rows(scale: Scale) -> list[Row]:
    """All rows, in the order in which they are shown."""
    return [
        *bandwidth_rows(scale), *codec_rows(scale), *pursuit_rows(scale), *product_codec_rows(scale),
        *trellis_codec_rows(scale), *attention_rows(scale), *tier_rows(scale), *opening_rows(scale),
        *command_rows(scale),
    ]  # fmt: skip


def choose_rows(rows: Sequence[Row], only: str | None, *, quick: bool) -> list[Row]:
    """Rows whose names match `only`, a shell pattern or a part of a name; without it all, when quick all but slow ones.

    Raises SpecError if none does.
    """
    if only is None:
        return [row for row in rows if not (quick and row.slow)]
    chosen = [row for row in rows if only in row.name or fnmatch.fnmatchcase(row.name, only)]
    if not chosen:
        raise SpecError(f"no row is called {only!r}; there are {', '.join(row.name for row in rows)}")
    return chosen


def run_bench(
    *,
    only: str | None = None,
    quick: bool = False,
    peers: Iterable[str] = NAMES,
    scratch: str | Path | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Report:
    """Measure.

    only: see choose_rows. quick: small arrays and few rounds, a first look that takes seconds. peers: which of the
    other libraries take part if they are there. scratch: a directory for logs and dumps, by default that of temporary
    files. progress: called with rows done and their number. A row whose result is wrong has an error and no times.
    Raises SpecError, OSError.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        raise SpecError("NUMBA_DISABLE_JIT is set, and only compiled kernels are worth a bench")
    scale = QUICK if quick else FULL
    rows = choose_rows(list_rows(scale), only, quick=quick)
    present = find_peers(peers)
    probes = Probes(scale.probe_bytes, _find_fastest)
    results = []
    for done, row in enumerate(rows):
        progress(done, len(rows))
        results.append(run_row(row, present, probes, scale, scratch))
    progress(len(rows), len(rows))
    return Report(describe_machine(), present.versions(), quick, tuple(results))


def run_row(
    row: Row, peers: Peers, probes: Probes, scale: Scale, scratch: str | Path | None = None,
    clock: Clock = time.perf_counter,
) -> RowResult:  # fmt: skip
    """Run, check and time the contenders of one row."""
    with tempfile.TemporaryDirectory(prefix="kvcodec-bench-", dir=scratch) as folder:
        try:
            entries = row.prepare(peers, Path(folder))
            contenders = [entry for entry in entries if isinstance(entry, Contender)]
            for contender in contenders:
                contender.run()
                contender.check()
            timings = _time_contenders(contenders, probes, scale, clock)
        except WrongResult as error:
            return RowResult(row.name, row.what, row.shape, row.unit, error=str(error))
    absent = tuple(entry for entry in entries if isinstance(entry, Absent))
    return RowResult(row.name, row.what, row.shape, row.unit, timings, absent)


def _time_contenders(contenders: Sequence[Contender], probes: Probes, scale: Scale, clock: Clock) -> tuple[Timing, ...]:
    """Contenders in turns, and the probes that they are shares of in the same turns."""
    bounds = sorted({c.bound for c in contenders if c.bound})
    yardsticks = [probes.read if bound == READ else probes.write for bound in bounds]
    seconds = time_in_turns([*(c.run for c in contenders), *yardsticks], scale, clock)
    probe = dict(zip(bounds, seconds[len(contenders) :] / probes.size, strict=True))
    return tuple(
        Timing(c.name, c.units, c.moved, c.bound, seconds[i], probe.get(c.bound)) for i, c in enumerate(contenders)
    )


def _find_fastest(ways: dict[str, Callable[[], object]]) -> str:
    seconds = np.median(time_in_turns(list(ways.values()), _PROBE_ROUNDS), axis=1)
    return list(ways)[int(np.argmin(seconds))]
