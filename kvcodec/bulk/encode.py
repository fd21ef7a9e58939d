"""A dump into a log: kvcodec.encode."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcodec.bulk.chunks import Progress, no_progress, token_chunks
from kvcodec.bulk.dump_model import STREAMS, check_same_model, dump_model
from kvcodec.bulk.new_log import new_log
from kvcodec.dumps import open_dump
from kvcodec.dumps.safetensors import SafetensorsDump
from kvcodec.errors import SpecError
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import StreamId
from kvcodec.spec import CodecSpec
from kvcodec.store.model import Model
from kvcodec.store.policy import check_name
from kvcodec.store.rows import take_rows
from kvcodec.store.stats import SequenceStats, Stats
from kvcodec.store.store import Store, open_store

FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class EncodeReport:
    """What was encoded. layers: how many have rows. stats: of the whole log, after it was closed."""

    dump: str
    log: str
    sequence: str
    tokens: int
    layers: int
    stats: Stats

    @property
    def own(self) -> SequenceStats:
        """Figures of the sequence that was encoded."""
        return next(s for s in self.stats.sequences if s.name == self.sequence)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        own = {name: getattr(self, name) for name in ("dump", "log", "sequence", "tokens", "layers")}
        return own | {"stats": self.stats.as_dict()}


def encode_dump(
    dump: FilePath,
    log: FilePath,
    *,
    k: str | CodecSpec | None = None,
    v: str | CodecSpec | None = None,
    residual: int | None = None,
    sinks: int | None = None,
    device: str | Geometry = "tlc",
    sequence: str | None = None,
    mapping: Sequence[str] = (),
    kv_heads: int | None = None,
    head_dim: int | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    append: bool = False,
    progress: Progress | None = None,
) -> EncodeReport:
    """Encode the K and V of a dump as one sequence of a log.

    k, v, residual, sinks, device: as kvcodec.open takes them. sequence: its name, the dump's stem by default.
    mapping, kv_heads, head_dim: as kvcodec.dumps.open_dump takes them. dtype: what a float32 dump is rounded to,
    bfloat16 by default. append: add the sequence to an existing log, whose device and, where not given, codecs stay.
    progress: called with (done, total) in tokens times layers. Memory: about 32 MiB of rows, and the open windows.

    A new log appears under its name whole or not at all. With `append`, what can be refused is refused before a byte
    is written; a kill or a full disk then leaves the sequence with the tokens that all layers had by then.

    Raises what open_dump and kvcodec.open raise: DumpError, DtypeError, SpecError, NonFiniteError, LogExists,
    DeviceBusy, IdentityMismatch, FormatError, NoSpace. SpecError if the log has that sequence already.
    """
    path, tell = Path(log), progress or no_progress
    name = Path(dump).stem if sequence is None else sequence
    check_name(name)
    if append and overwrite:
        raise SpecError("append and overwrite exclude each other")
    coding: dict[str, Any] = {"k": k, "v": v, "residual": residual, "sinks": sinks}
    with open_dump(dump, mapping=mapping, kv_heads=kv_heads, head_dim=head_dim) as source:
        if path.exists() and os.path.samefile(source.path, path):
            raise SpecError(f"{path} is the dump itself; name another log")
        if append:
            stats = _append(source, path, name, dtype, coding, tell)
        else:
            coding |= {"model": dump_model(source, dtype), "device": device}
            with new_log(path, overwrite=overwrite) as making:
                stats = _make(source, making, name, coding, tell)
        return EncodeReport(str(dump), str(log), name, _tokens(source), len(source.layers), stats)


def _make(source: SafetensorsDump, path: Path, name: str, coding: dict[str, Any], tell: Progress) -> Stats:
    with _writing(open_store(path, "w", **coding)) as store:
        _copy_rows(source, store, name, tell)
    return _measure(path)


def _append(
    source: SafetensorsDump, path: Path, name: str, dtype: str | None, coding: dict[str, Any], tell: Progress
) -> Stats:
    with open_store(path) as reader:
        _refuse_before_append(reader, source, name, dtype)
    with _writing(open_store(path, "a", **coding)) as store:
        _refuse_known_name(store, name)
        _copy_rows(source, store, name, tell)
    return _measure(path)


@contextlib.contextmanager
def _writing(store: Store) -> Iterator[Store]:
    """Closes the store after success; after a failure lets go of it without another write."""
    try:
        yield store
    except BaseException:
        store.abandon()
        raise
    store.close()


def _measure(path: Path) -> Stats:
    with open_store(path) as store:
        return store.stats()


def _tokens(source: SafetensorsDump) -> int:
    return source.shape(source.layers[0], StreamId.K)[0]


def _copy_rows(source: SafetensorsDump, store: Store, name: str, tell: Progress) -> None:
    sequence = store.sequence(name)
    tokens, done = _tokens(source), 0
    for start, stop in token_chunks(tokens, store.model.token_bytes):
        for layer in source.layers:
            k, v = (source.rows(layer, stream, start, stop) for stream in STREAMS)
            sequence.append(layer, k, v)
            done += stop - start
            tell(done, tokens * len(source.layers))


def _refuse_before_append(store: Store, source: SafetensorsDump, name: str, dtype: str | None) -> None:
    """Raises for all that a look at the log and one pass over the dump can tell."""
    model = dump_model(source, dtype or (store.model.dtype if source.dtype_id is None else None))
    check_same_model(store.model, model)
    _refuse_known_name(store, name)
    _check_rows(source, model)


def _refuse_known_name(store: Store, name: str) -> None:
    if name in store.sequences():
        raise SpecError(f"{store.path}: the log holds a sequence {name!r} already; name another")


def _check_rows(source: SafetensorsDump, model: Model) -> None:
    streams = {(n, s.id): s for n, layer in enumerate(model.layers) for s in layer.streams}
    for start, stop in token_chunks(_tokens(source), model.token_bytes):
        for (layer, id_), stream in streams.items():
            take_rows(source.rows(layer, id_, start, stop), model, layer, stream, start)
