"""The run behind kvcodec.train: dictionaries in threads, each kept as soon as it is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from kvcodec.bulk.chunks import Progress
from kvcodec.bulk.threads import Stopped, share_work
from kvcodec.bulk.train_checkpoint import Checkpoint
from kvcodec.bulk.train_options import TrainOptions, Unit, plan_units
from kvcodec.bulk.train_report import TrainedUnit, TrainReport
from kvcodec.bulk.train_rows import query_metric
from kvcodec.bulk.train_sources import (
    Held,
    check_out,
    describe_training,
    describe_unit,
    split_dumps,
    unit_vectors,
)
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.dictionary.artefact import Artefact, write_artefact
from kvcodec.dictionary.settings import Settings
from kvcodec.dictionary.training import Step, train_dictionary
from kvcodec.dumps.dump import Dump
from kvcodec.layout import StreamId


class TrainJob:
    """One call of kvcodec.train. Raises, before anything is written, SpecError, ShapeError, LogExists."""

    def __init__(
        self,
        out: Path,
        dumps: Sequence[Dump],
        held: Held,
        options: TrainOptions,
        settings: Settings,
        threads: int,
        time: float | None,
        *,
        overwrite: bool,
        resume: bool,
        progress: Progress,
        tell: Callable[[str], None],
    ) -> None:
        self._out, self._dumps, self._options, self._settings = out, dumps, options, settings
        self._threads, self._time, self._progress, self._tell = threads, time, progress, tell
        self._overwrite = overwrite
        self._units = plan_units(options, [*dumps, *held.dumps])
        self._split = split_dumps(dumps, held, options.sinks)
        check_out(out, overwrite=overwrite)
        self._about = describe_training(dumps, self._split, held, options, settings.as_dict(), self._units)
        self._checkpoint = Checkpoint(out, self._about, resume=resume, overwrite=overwrite)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._done: dict[int, TrainedUnit] = {}
        self._epochs: dict[int, int] = {}  # of each unit, those that were told of
        self._shares = dict.fromkeys(range(len(self._units)), 0.0)  # of each unit's work, what is done

    def run(self) -> TrainReport:
        """Train what is not done, and write the file."""
        self._began = monotonic()
        waiting = []
        for unit in self._units:
            found = self._checkpoint.read(unit.number)
            if found is None:
                waiting.append(unit)
            else:
                self._finish(TrainedUnit(unit.describe(), *found, 0.0, True), unit)
        self._waiting = len(waiting)
        share_work(self._train, waiting, self._threads, self._stop)
        return self._write()

    def _train(self, unit: Unit) -> None:
        began, settings, deadline = monotonic(), self._settings, self._deadline()
        own = unit_vectors(self._split, self._dumps, unit, self._options)
        trained = train_dictionary(
            own.training, own.held_out, settings, unit.uses,
            rotation=own.rotation, metric=self._metric(unit, own.rotation is not None),
            over=lambda: monotonic() > deadline, tell=lambda step: self._note(unit, step),
        )  # fmt: skip
        about = describe_unit(unit, trained.as_dict())
        self._checkpoint.write(unit.number, trained.dictionary, about)
        self._finish(TrainedUnit(unit.describe(), trained.dictionary, about, monotonic() - began, False), unit)

    def _metric(self, unit: Unit, unrotate: bool) -> NDArray[np.float32] | None:
        if self._options.metric != "query" or unit.stream != StreamId.K:
            return None
        layers = [layer for layer, _ in unit.uses]
        base = self._options.rope_base
        return query_metric(self._dumps, layers, self._options.ridge, unrotate=unrotate, rope_base=base)

    def _deadline(self) -> float:
        """When a dictionary that is begun now must be done: what is left is shared by those that wait."""
        with self._lock:
            now, waiting = monotonic(), self._waiting
            self._waiting -= 1
        if self._time is None:
            return float("inf")
        return now + max(0.0, self._began + self._time - now) * min(self._threads, waiting) / waiting

    def _note(self, unit: Unit, step: Step) -> None:
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            self._shares[unit.number] = step.done / step.batches
            if step.epoch > self._epochs.get(unit.number, 0):
                self._epochs[unit.number] = step.epoch
                self._tell(f"{unit.describe()}: epoch {step.epoch}, held-out error {step.error:.4f}")
            self._progress(round(1000 * sum(self._shares.values())), 1000 * len(self._units))

    def _finish(self, done: TrainedUnit, unit: Unit) -> None:
        with self._lock:
            self._done[unit.number] = done
            self._shares[unit.number] = 1.0
            error, epochs = done.about["error"], len(done.about["curve"]) - 1
            self._tell(f"{done.name}: done, held-out error {error:.4f} after {epochs} epochs")
            self._progress(round(1000 * sum(self._shares.values())), 1000 * len(self._units))

    def _write(self) -> TrainReport:
        units = tuple(self._done[unit.number] for unit in self._units)
        dictionaries = DictionarySet(tuple(unit.dictionary for unit in units))
        about = self._about | {"dictionaries": [dict(unit.about) for unit in units]}
        write_artefact(self._out, Artefact(dictionaries, about), overwrite=self._overwrite)
        self._checkpoint.remove()
        tokens, held = self._split.tokens
        seconds = monotonic() - self._began
        return TrainReport(
            str(self._out), dictionaries.hash.hex(), units, tokens, held, dictionaries.nbytes, seconds
        )  # fmt: skip
