"""The run behind kvcodec.train: dictionaries in threads, each kept as soon as it is done."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec._version import __version__
from kvcodec.bulk.chunks import Progress
from kvcodec.bulk.train_checkpoint import Checkpoint
from kvcodec.bulk.train_options import TrainOptions, Unit, plan_units
from kvcodec.bulk.train_report import TrainedUnit, TrainReport
from kvcodec.bulk.train_rows import DumpVectors, Part, find_rotation, fingerprint_dump, query_metric
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.dictionary.artefact import Artefact, write_artefact
from kvcodec.dictionary.settings import Settings
from kvcodec.dictionary.training import Step, Trained, train_dictionary
from kvcodec.dumps.dump import Dump
from kvcodec.errors import LogExists, SpecError
from kvcodec.layout import StreamId


class Held(NamedTuple):
    """What errors are measured on: these dumps, or without any a fraction of those that are trained on."""

    dumps: Sequence[Dump]
    fraction: float


class _Stopped(Exception):
    """Another dictionary's training failed, or there was an interrupt."""


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
        self._training, self._held = _split(dumps, held, options.sinks)
        if not out.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(out.parent))
        if out.exists() and not overwrite:
            raise LogExists(errno.EEXIST, "exists already; ask for overwrite to replace it", str(out))
        self._about = self._describe(held)
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
        self._share(waiting)
        return self._write()

    def _share(self, units: Sequence[Unit]) -> None:
        if self._threads == 1 or len(units) < 2:
            for unit in units:
                self._train(unit)
            return
        with ThreadPoolExecutor(self._threads, "kvcodec") as pool:
            futures: list[Future[None]] = [pool.submit(self._train, unit) for unit in units]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                if any(not future.done() or future.exception() for future in futures):
                    self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
            failed = [f.exception() for f in futures if not f.cancelled()]
            for error in sorted((e for e in failed if e), key=lambda e: isinstance(e, _Stopped)):
                raise error

    def _train(self, unit: Unit) -> None:
        began, settings, deadline = monotonic(), self._settings, self._deadline()
        unrotate = self._options.rope == "pre" and unit.stream == StreamId.K
        base = self._options.rope_base
        rotation = find_rotation(self._dumps, unit.uses, base) if unrotate else None
        training, held = (
            DumpVectors(parts, unit.uses, unrotate=unrotate, rope_base=base) for parts in (self._training, self._held)
        )
        trained = train_dictionary(
            training, held, settings, unit.uses,
            rotation=rotation, metric=self._metric(unit, unrotate),
            over=lambda: monotonic() > deadline, tell=lambda step: self._note(unit, step),
        )  # fmt: skip
        about = _describe_unit(unit, trained)
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
            raise _Stopped
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
        tokens, held = (sum(part.stop - part.start for part in parts) for parts in (self._training, self._held))
        seconds = monotonic() - self._began
        return TrainReport(
            str(self._out), dictionaries.hash.hex(), units, tokens, held, dictionaries.nbytes, seconds
        )  # fmt: skip

    def _describe(self, held: Held) -> dict[str, Any]:
        """What the artefact says of its training but the results; no clock, and no number of threads."""
        tokens = [part.stop - part.start for part in self._training]
        return {
            "version": __version__,
            "settings": self._settings.as_dict(),
            "options": self._options.as_dict() | {"layers": sorted({use[0] for u in self._units for use in u.uses})},
            "dumps": [_describe_dump(d) | {"trained": n} for d, n in zip(self._dumps, tokens, strict=True)],
            "held_out": [_describe_dump(dump) for dump in held.dumps] or held.fraction,
            "model": self._dumps[0].metadata.get("model", ""),
        }


def _split(dumps: Sequence[Dump], held: Held, sinks: int) -> tuple[list[Part], list[Part]]:
    """Parts to train on, and parts to measure on."""
    training, measured = [], [Part(dump, min(sinks, dump.tokens), dump.tokens) for dump in held.dumps]
    for dump in dumps:
        out = 0 if held.dumps else max(1, round(dump.tokens * held.fraction))
        stop = dump.tokens - out
        if stop <= sinks:
            raise SpecError(f"{dump.path}: {dump.tokens} tokens, {sinks} sinks, {out} held out: none to train on")
        training.append(Part(dump, sinks, stop))
        measured += [] if held.dumps else [Part(dump, stop, dump.tokens)]
    return training, measured


def _describe_dump(dump: Dump) -> dict[str, Any]:
    return {"name": dump.path.name, "fingerprint": fingerprint_dump(dump.path), "tokens": dump.tokens}


def _describe_unit(unit: Unit, trained: Trained) -> dict[str, Any]:
    layers = sorted({layer for layer, _ in unit.uses})
    streams = sorted({stream.name.lower() for _, stream in unit.uses})
    return {"layers": layers, "streams": streams, **trained.as_dict()}
