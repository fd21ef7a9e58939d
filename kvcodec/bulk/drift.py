"""Does a static dictionary go stale? Errors of codes over the positions of texts, and from text to text."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from kvcodec.bulk.chunks import Progress, no_progress
from kvcodec.bulk.dump_model import dump_model
from kvcodec.bulk.selection import DumpPart
from kvcodec.bulk.sources import is_log
from kvcodec.codecs import Codec, codec_for
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.predicted_rows import GivenRows
from kvcodec.codecs.product import Product
from kvcodec.codecs.product_rows import ProductRows
from kvcodec.dumps import open_dump
from kvcodec.errors import SpecError
from kvcodec.layout import CHANNEL_LANE_TOKENS, CodecId, DtypeId, StreamId
from kvcodec.spec import CodecSpec
from kvcodec.store.model import Model, Stream
from kvcodec.store.opening import load_dictionary, open_store
from kvcodec.store.rows import take_rows
from kvcodec.store.sequence_index import SequenceIndex
from kvcodec.store.store import Store

if TYPE_CHECKING:
    from kvcodec.codecs.bounded import BoundedCodec

FilePath = str | os.PathLike[str]
_STEPS = 1 << 15  # of an error figure
_UNKNOWN = 0xFFFF
_BINS = 16


@dataclass
class Curve:
    """Errors of one stream of a text. Each is that of the heads of a record, of all layers, relative.

    spans, squares: of records, their tokens (first, end) in the text and the mean square over heads. unknown: records
    that do not say theirs, because their rows were coded one by one.
    """

    spans: list[tuple[int, int]] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    unknown: int = 0

    def add(self, first: int, tokens: int, figures: NDArray[Any]) -> None:
        """Enter the error figures, in 1/32768, of a record of so many tokens."""
        known = figures[figures != _UNKNOWN].astype(np.float64)
        self.unknown += not len(known)
        if len(known):
            self.spans.append((first, first + tokens))
            self.squares.append(float(np.mean((known / _STEPS) ** 2)))

    def error(self, start: int = 0, end: int = 1 << 62) -> float:
        """Root of the mean square error of the records that hold any of the tokens start to end - 1; NaN of none."""
        pairs = zip(self.spans, self.squares, strict=True)
        chosen = [square for (first, behind), square in pairs if first < end and behind > start]
        return math.sqrt(sum(chosen) / len(chosen)) if chosen else math.nan


@dataclass(frozen=True)
class TextDrift:
    """One text: a dump, or a sequence of a log. codecs: of its streams, by name, and their errors."""

    name: str
    tokens: int
    codecs: dict[str, str]
    curves: dict[str, Curve]

    def drift(self, stream: str) -> float:
        """Error of the last quarter of the text over that of the first; NaN if one has no records."""
        curve = self.curves[stream]
        return curve.error(self.tokens * 3 // 4) / curve.error(0, max(1, self.tokens // 4))

    def bins(self, every: int) -> Iterator[tuple[int, int]]:
        """Stretches of `every` tokens."""
        for start in range(0, self.tokens, every):
            yield start, min(start + every, self.tokens)


@dataclass(frozen=True)
class DriftReport:
    """Errors over positions, of each text. every: tokens of a stretch of the table."""

    texts: tuple[TextDrift, ...]
    every: int

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an error that is not known is None."""
        texts = [
            {
                "text": text.name, "tokens": text.tokens, "codecs": text.codecs,
                "streams": {name: self._stream(text, name) for name in text.curves},
            }
            for text in self.texts
        ]  # fmt: skip
        return {"every": self.every, "texts": texts}

    def _stream(self, text: TextDrift, name: str) -> dict[str, Any]:
        curve = text.curves[name]
        stretches = [
            {"first": start, "end": end, "error": _known(curve.error(start, end))}
            for start, end in text.bins(self.every)
        ]
        figures = {"error": _known(curve.error()), "drift": _known(text.drift(name)), "unknown_records": curve.unknown}
        return figures | {"positions": stretches}


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def measure_drift(
    sources: Sequence[FilePath],
    *,
    dictionary: FilePath | DictionarySet | None = None,
    spec: str | CodecSpec = "dict/s8",
    pursuit: str | None = None,
    every: int | None = None,
    progress: Progress | None = None,
) -> DriftReport:
    """Errors of codes over positions, of each sequence of logs and of each dump.

    A log's records carry their errors, so nothing is coded again and the originals are not needed. A dump is coded with
    `spec`, `dict`, `pq` or `tcq`, over `dictionary` (a .kvdict file or a set), of which it needs the streams'
    dictionaries or other codes, by `pursuit` (omp, ormp, mp). every: tokens of a stretch of the table, by default a
    sixteenth of the longest text, in whole blocks of 64. progress: called with (done, total) in sources, a dump
    counting its layers. Raises what kvcodec.open and open_dump raise; SpecError for a dump without a dictionary.
    """
    if not sources:
        raise SpecError("no log or dump to look at")
    if every is not None and every < 1:
        raise SpecError(f"every is {every}, want 1 or more tokens")
    own = None if dictionary is None else load_dictionary(dictionary).with_pursuit(pursuit)
    codec = CodecSpec.parse(spec)
    tell, texts = progress or no_progress, list[TextDrift]()
    for n, source in enumerate(sources):
        path = Path(source)

        def tell_part(done: int, total: int, n: int = n) -> None:
            tell(n * 1000 + 1000 * done // max(1, total), 1000 * len(sources))

        if is_log(path):
            with open_store(path, dictionary=own) as store:
                texts += _drift_of_log(path, store, tell_part)
        elif own is None:
            raise SpecError(f"{path} is a dump: its codes need a dictionary, pass dictionary= (--dictionary)")
        else:
            with open_dump(path) as dump:
                texts.append(_drift_of_dump(path, DumpPart(dump, None, None), own, codec, tell_part))
    longest = max(text.tokens for text in texts) if texts else 0
    block = CHANNEL_LANE_TOKENS
    return DriftReport(tuple(texts), every or max(block, -(-longest // _BINS // block) * block))


def _drift_of_log(path: Path, store: Store, tell: Progress) -> Iterator[TextDrift]:
    indexes = list(store.index.sequences.values())
    for n, index in enumerate(indexes):
        curves: dict[str, Curve] = {}
        for (_, stream), extents in index.maps.items():
            curve = curves.setdefault(stream.name.lower(), Curve())
            for extent in extents.covering(0, index.length):
                coded = extent.coded
                for part in coded.parts if coded.step is None else ():
                    header, body = store.log.load(part.place)
                    if int(header["codec"]) != CodecId.RAW:
                        curve.add(coded.first, coded.tokens, body[: 2 * part.heads].view("<u2"))
        tell(n + 1, len(indexes))
        yield TextDrift(f"{path}: {index.info.name}", index.length, _codecs_of(index), curves)


def _codecs_of(index: SequenceIndex) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for rule in index.info.policy.rules:
        specs = found.setdefault(rule.stream.name.lower(), [])
        if str(rule.policy.spec) not in specs:
            specs.append(str(rule.policy.spec))
    return {stream: " ".join(specs) for stream, specs in found.items()}


def _blocks(dump: DumpPart, model: Model, layer: int, shape: Stream) -> Iterator[tuple[int, NDArray[np.uint16]]]:
    """All rows of a stream, 64 tokens at a time, each time with the number of the first."""
    for first in range(0, dump.tokens, CHANNEL_LANE_TOKENS):
        end = min(first + CHANNEL_LANE_TOKENS, dump.tokens)
        yield first, take_rows(dump.rows(layer, StreamId(shape.id), first, end), model, layer, shape, first)


def _code_keys(dump: DumpPart, model: Model, layer: int, own: DictionarySet, spec: CodecSpec) -> GivenRows:
    """The coded K that V is predicted from. A set that predicts V has the product codes of its K."""
    product = own.find_product(layer, StreamId.K)
    assert product is not None
    coder = ProductRows(spec, product)
    shape = next(shape for shape in model.layers[layer].streams if shape.id == StreamId.K)
    parts = [coder.at(at).encode(rows, model.dtype_id) for at, rows in _blocks(dump, model, layer, shape)]
    return GivenRows(product, np.concatenate(parts))


def _drift_of_dump(path: Path, dump: DumpPart, own: DictionarySet, spec: CodecSpec, tell: Progress) -> TextDrift:
    model = dump_model(dump)
    curves = {stream.name.lower(): Curve() for stream in dump.streams}
    layers = [n for n in dump.layers if any(own.find_for(spec, n, stream) for stream in dump.streams)]
    if not layers:
        raise SpecError(f"{path}: the set {own.hash.hex()} has no {spec.trained_as} for any of its layers")
    for done, layer in enumerate(layers):
        for shape in model.layers[layer].streams:
            trained = own.find_for(spec, layer, shape.id)
            if trained is None:
                continue
            predicted = isinstance(trained, Product) and trained.prediction is not None
            keys = _code_keys(dump, model, layer, own, spec) if predicted else None
            codec = codec_for(spec, shape.id, trained, keys)
            for first, rows in _blocks(dump, model, layer, shape):
                curves[shape.name].add(first, len(rows), _errors_of(codec.at(first), rows, model.dtype_id))
        tell(done + 1, len(layers))
    specs = {name: str(spec) for name, curve in curves.items() if curve.spans}
    return TextDrift(str(path), dump.tokens, specs, {n: c for n, c in curves.items() if c.spans})


def _errors_of(codec: Codec, rows: NDArray[np.uint16], dtype: DtypeId) -> NDArray[np.uint16]:
    """Error figures of the heads of one record of all rows (tokens, heads, dim)."""
    if codec.spec.bounded:
        return cast("BoundedCodec", codec).encode_records(rows, dtype, len(rows))[0].errors
    (errors,) = codec.encode(rows, dtype, len(rows)).errors
    return np.asarray(errors)
