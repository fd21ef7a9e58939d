"""Rows of a sequence into a dump in the making, by several threads."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.bulk.chunks import Progress, token_chunks
from kvcodec.bulk.threads import share_work
from kvcodec.dumps.dump_writer import DumpWriter
from kvcodec.errors import NonFiniteError, SpecError
from kvcodec.store.model import Model
from kvcodec.store.sequence import Sequence as StoreSequence
from kvcodec.store.store import Store

OpenReader = Callable[[], Store]


class Piece(NamedTuple):
    """Rows start <= n < stop of those to be written, of one layer."""

    layer: int
    start: int
    stop: int


class Readers:
    """Stores that read one log, one for each thread: a store is read by one thread at a time.

    `first` is the caller's to close; `open_reader` opens others, which must be of the same log.
    """

    def __init__(self, first: Store, name: str, open_reader: OpenReader) -> None:
        self._first, self._name, self._open = first, name, open_reader
        self._others: list[Store] = []
        self._free: queue.SimpleQueue[Store] = queue.SimpleQueue()
        self._free.put(first)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self) -> Iterator[StoreSequence]:
        """The sequence, for one thread. Raises SpecError if the log was replaced meanwhile."""
        store = self._take()
        try:
            yield store.sequence(self._name)
            store.device.image.release()
        finally:
            self._free.put(store)

    def _take(self) -> Store:
        with contextlib.suppress(queue.Empty):
            return self._free.get_nowait()
        store = self._open()
        with self._lock:
            self._others.append(store)
        if store.device.uuid != self._first.device.uuid:
            raise SpecError(f"{store.path} was replaced while it was read; run it again")
        return store

    def close(self) -> None:
        for store in self._others:
            store.close()


def write_rows(
    readers: Readers,
    writer: DumpWriter,
    model: Model,
    layers: Sequence[int],
    tokens: NDArray[np.int64],
    dtype: np.dtype[Any],
    threads: int,
    tell: Progress,
) -> None:
    """Write the rows of `tokens` of each layer to tensors `k.L`, `v.L`, … of `dtype`.

    tell: called with (done, total) in tokens times layers. Raises CorruptRecord, NonFiniteError and what the writer
    raises.
    """
    lock, done = threading.Lock(), 0

    def write(piece: Piece) -> None:
        nonlocal done
        with readers.lend() as sequence:
            rows = _read(sequence, piece.layer, tokens[piece.start : piece.stop], model, dtype)
        for stream, array in zip(model.layers[piece.layer].streams, rows, strict=True):
            writer.write(f"{stream.name}.{piece.layer}", piece.start, array)
        with lock:
            done += piece.stop - piece.start
            tell(done, len(tokens) * len(layers))

    pieces = [
        Piece(layer, start, stop)
        for layer in layers
        for start, stop in token_chunks(len(tokens), model.layers[layer].token_bytes * threads)
    ]
    share_work(write, pieces, threads)


def _read(
    sequence: StoreSequence, layer: int, tokens: NDArray[np.int64], model: Model, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], ...]:
    if dtype in (model.numpy_dtype, np.float32):
        return sequence.read(layer, tokens, dtype=dtype)
    with np.errstate(over="ignore"):
        rows = tuple(array.astype(dtype) for array in sequence.read(layer, tokens, dtype=np.float32))
    for stream, array in zip(model.layers[layer].streams, rows, strict=True):
        beyond = np.argwhere(~np.isfinite(array))
        if len(beyond):
            token, head, channel = beyond[0].tolist()
            raise NonFiniteError(layer, f"{stream.name} (as {dtype})", int(tokens[token]), head, channel)
    return rows
