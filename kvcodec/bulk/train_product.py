"""The run behind kvcodec.train with codecs pq and tcq: codes of all streams under one budget."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from kvcodec.bulk.chunks import Progress
from kvcodec.bulk.threads import Stopped, share_work
from kvcodec.bulk.train_metrics import find_metrics
from kvcodec.bulk.train_options import ProductSettings, TrainOptions, Unit, plan_units
from kvcodec.bulk.train_report import REPORTED, ProductUnit, TrainReport
from kvcodec.bulk.train_sources import (
    Held,
    check_out,
    describe_training,
    describe_unit,
    split_dumps,
    unit_vectors,
)
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.product import Product
from kvcodec.codecs.trellis import Trellis
from kvcodec.dictionary.artefact import Artefact, write_artefact
from kvcodec.dictionary.products import Stream, TrainedProduct, train_products
from kvcodec.dumps.dump import Dump
from kvcodec.dumps.queries import read_window
from kvcodec.errors import DumpError, ShapeError, SpecError
from kvcodec.layout import StreamId


class ProductJob:
    """One call of kvcodec.train. Raises, before anything is written, SpecError, ShapeError, DumpError, LogExists."""

    def __init__(
        self,
        out: Path,
        dumps: Sequence[Dump],
        held: Held,
        options: TrainOptions,
        settings: ProductSettings,
        threads: int,
        *,
        overwrite: bool,
        progress: Progress,
        tell: Callable[[str], None],
    ) -> None:
        self._out, self._dumps, self._options, self._settings = out, dumps, options, settings
        self._threads, self._overwrite, self._progress, self._tell_line = threads, overwrite, progress, tell
        self._units = plan_units(options, [*dumps, *held.dumps])
        self._split = split_dumps(dumps, held, options.sinks)
        check_out(out, overwrite=overwrite)
        self._about = describe_training(dumps, self._split, held, options, settings.as_dict(), self._units)
        metrics = find_metrics(dumps, self._units, options)
        self._streams = [self._stream(unit, metric) for unit, metric in zip(self._units, metrics, strict=True)]
        if settings.predict:
            self._streams = predict_values(self._streams)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._shares = dict.fromkeys(range(len(self._units)), 0.0)  # of each unit's work, what is done

    def run(self) -> TrainReport:
        """Train, and write the file."""
        began, own = monotonic(), self._settings
        trained = train_products(
            self._streams, own.budget, alike=self._options.metric != "gradient", codec=own.codec,
            sample=own.sample, seed=own.seed, map_=self._map, tell=self._tell, step=self._note,
        )  # fmt: skip
        products = DictionarySet(
            products=tuple(one.product for one in trained if isinstance(one.product, Product)),
            trellises=tuple(one.product for one in trained if isinstance(one.product, Trellis)),
        )
        units = tuple(
            ProductUnit(unit.describe(), one.product, describe_unit(unit, _describe(one)), stream.tokens)
            for unit, one, stream in zip(self._units, trained, self._streams, strict=True)
        )
        about = self._about | {REPORTED[own.codec]: [dict(unit.about) for unit in units]}
        write_artefact(self._out, Artefact(products, about), overwrite=self._overwrite)
        tokens, held = self._split.tokens
        seconds = monotonic() - began
        return TrainReport(str(self._out), products.hash.hex(), (), tokens, held, products.nbytes, seconds, units)

    def _stream(self, unit: Unit, metric: Any) -> Stream:
        own = unit_vectors(self._split, self._dumps, unit, self._options)
        return Stream(unit.uses, own.training, own.held_out, metric, own.rotation, self._count_vectors(unit))

    def _count_vectors(self, unit: Unit) -> float:
        """Vectors that the unit's streams hold at the context that codes are for; without one, as if all held alike."""
        dump, total = self._dumps[0], 0
        for layer, stream in unit.uses:
            try:
                window = read_window(dump.metadata, layer)
            except DumpError as error:
                raise DumpError(f"{dump.path}: {error}") from None
            context = self._settings.context
            tokens = 1 if context is None else context if window is None else min(context, window)
            total += tokens * dump.shape(layer, stream)[1]
        return float(total)

    def _map(self, work: Callable[[int], Any], keys: Sequence[int]) -> list[Any]:
        found: dict[int, Any] = {}

        def do(key: int) -> None:
            found[key] = work(key)

        share_work(do, keys, self._threads, self._stop)
        return [found[key] for key in keys]

    def _note(self, number: int, share: float) -> None:
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            self._shares[number] = share
            self._progress(round(1000 * sum(self._shares.values())), 1000 * len(self._units))

    def _tell(self, line: str) -> None:
        with self._lock:
            self._tell_line(line)


def predict_values(streams: Sequence[Stream]) -> list[Stream]:
    """Streams of which those of V are predicted from that of the K of their layers. Raises SpecError, ShapeError."""
    numbers = {own.uses: n for n, own in enumerate(streams)}
    found = []
    for own in streams:
        if all(stream == StreamId.V for _, stream in own.uses):
            source = numbers.get(tuple((layer, StreamId.K) for layer, _ in own.uses))
            if source is None:
                break
            keys = streams[source].training
            if list(keys.counts) != list(own.training.counts):
                raise ShapeError("predict: K and V have not as many heads")
            own = replace(own, source=source)
        found.append(own)
    if len(found) < len(streams) or all(own.source is None for own in found):
        raise SpecError("predict: V is predicted from the K of its layer; want streams k,v, and share none or layers")
    return found


def _describe(one: TrainedProduct) -> dict[str, Any]:
    own = one.as_dict()
    return own | {"bits_a_number": round(8 * own["bytes"] / one.product.dim, 4)}
