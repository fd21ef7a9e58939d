"""One run of decoding: sequences of a log, each into a dump of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.bulk.chunks import Progress, no_progress
from kvcodec.bulk.decode_report import DecodeReport
from kvcodec.bulk.decode_rows import Readers, write_rows
from kvcodec.bulk.salvage import LostTokens, find_lost_tokens, kept_tokens, token_ranges
from kvcodec.bulk.selection import Layers, Tokens, pick_layers, pick_tokens
from kvcodec.bulk.threads import thread_count
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.dumps import FORMATS, create_dump
from kvcodec.errors import SpecError
from kvcodec.log.recover import Recovery
from kvcodec.store.model import Model
from kvcodec.store.opening import open_store
from kvcodec.store.sequence import Sequence
from kvcodec.store.store import Store

FilePath = str | os.PathLike[str]
DTYPES: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


@dataclass(frozen=True)
class DecodeJob:
    """The options of decode_log, which see."""

    log: Path
    dtype: str | None = None
    layers: Layers = None
    tokens: Tokens = None
    format: str | None = None
    overwrite: bool = False
    recovery: str | Recovery = Recovery.TORN_TAIL
    threads: int | None = None
    progress: Progress | None = None
    dictionary: FilePath | DictionarySet | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise SpecError(f"dtype is {self.dtype!r}, want one of {', '.join(DTYPES)}")
        if self.format is not None and self.format not in FORMATS:
            raise SpecError(f"format is {self.format!r}, want one of {', '.join(FORMATS)}")
        thread_count(self.threads)

    def open(self) -> Store:
        """A reader of the log."""
        return open_store(self.log, recovery=Recovery.parse(self.recovery), dictionary=self.dictionary)

    def run(self, store: Store, name: str, target: Path, *, share: tuple[int, int] = (0, 1)) -> DecodeReport:
        """Decode one sequence. share: this is the first number's part of the second number's equal parts."""
        if target.exists() and os.path.samefile(self.log, target):
            raise SpecError(f"{target} is the log itself; name another dump")
        sequence = store.sequence(name)
        model = store.index.sequences[store.index.by_name[name]].model
        layers = self._pick_layers(store, model)
        asked = pick_tokens(self.tokens, len(sequence), f"{self.log}, sequence {name!r}")
        held = max(sequence.held(layer).start for layer in layers)
        tokens: NDArray[np.int64] = np.arange(max(asked.start, min(held, asked.stop)), asked.stop)
        forgotten = len(asked) - len(tokens)
        if forgotten and self.tokens is not None:
            where = f"{self.log}, sequence {name!r}"
            raise SpecError(f"{where}: tokens below {held} are behind a layer's sliding window; want a range above")
        lost: list[LostTokens] = []
        if store.log.recovery == Recovery.SKIP_DAMAGED:
            lost = self._find_lost(store, name, set(layers), range(tokens[0], tokens[-1] + 1) if len(tokens) else asked)
            tokens = np.intersect1d(tokens, kept_tokens(lost, len(sequence)))
        out = DTYPES[self.dtype or model.dtype]
        self._write(store, sequence, model, layers, tokens, out, target, share)
        return DecodeReport(
            str(self.log), str(target), name, len(tokens), len(layers), str(out), target.stat().st_size,
            tuple(token_ranges(lost)), int(tokens[0]) if len(tokens) else asked.start, forgotten,
        )  # fmt: skip

    def _pick_layers(self, store: Store, model: Model) -> tuple[int, ...]:
        return pick_layers(self.layers, [n for n, layer in enumerate(model.layers) if layer.streams], str(store.path))

    def _find_lost(self, store: Store, name: str, layers: set[int], asked: range) -> list[LostTokens]:
        index = store.index.sequences[store.index.by_name[name]]
        lost, _ = find_lost_tokens(store.index, index, len(store.sequence(name)))
        inside = (
            one._replace(first=max(one.first, asked.start), end=min(one.end, asked.stop))
            for one in lost
            if one.layer in layers
        )
        return [one for one in inside if one.first < one.end]

    def _write(
        self,
        store: Store,
        sequence: Sequence,
        model: Model,
        layers: tuple[int, ...],
        tokens: NDArray[np.int64],
        dtype: np.dtype[Any],
        target: Path,
        share: tuple[int, int],
    ) -> None:
        tensors: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = [
            (f"{s.name}.{n}", dtype, (len(tokens), s.heads, s.dim)) for n in layers for s in model.layers[n].streams
        ]
        asked = pick_tokens(self.tokens, len(sequence), str(self.log))
        whole = len(tokens) == len(asked)  # else the dump says which tokens it has
        if not whole:
            tensors.append(("positions", np.dtype(np.int64), (len(tokens),)))
        metadata = _metadata(store, sequence, model, layers)
        if len(tokens) and tokens[0]:
            metadata["first_token"] = str(tokens[0])
        tell, (part, parts) = self.progress or no_progress, share
        threads = thread_count(self.threads)
        with create_dump(target, tensors, metadata, format=self.format, overwrite=self.overwrite) as writer:
            readers = Readers(store, sequence.name, self.open)
            try:
                write_rows(
                    readers, writer, model, layers, tokens, dtype, threads,
                    lambda done, total: tell(part * total + done, parts * total),
                )  # fmt: skip
            finally:
                readers.close()
            if not whole:
                writer.write("positions", 0, tokens)
            writer.commit()


def _metadata(store: Store, sequence: Sequence, model: Model, layers: tuple[int, ...]) -> dict[str, str]:
    streams = [s for n in layers for s in model.layers[n].streams]
    metadata = {"source": store.path.name, "sequence": sequence.name}
    if model.name:
        metadata["model"] = model.name
    if len({(s.heads, s.dim) for s in streams}) == 1:
        metadata |= {"kv_heads": str(streams[0].heads), "head_dim": str(streams[0].dim)}
    windows = {model.layers[n].window for n in layers if model.layers[n].window}
    if len(windows) == 1:
        seeing_all = [str(n) for n in layers if not model.layers[n].window]
        metadata |= {"sliding_window": str(windows.pop()), "global_layers": ",".join(seeing_all)}
    return metadata
