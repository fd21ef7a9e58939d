"""Rows to be read or compared, from a dump or from a sequence of a log alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from kvcodec.bulk.dump_model import STREAMS
from kvcodec.dumps import open_dump
from kvcodec.dumps.dump import Dump
from kvcodec.dumps.regular_file import open_regular
from kvcodec.errors import DumpError, UnknownSequence
from kvcodec.layout import SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC, SUPERBLOCKS
from kvcodec.log.recover import Recovery
from kvcodec.store.opening import open_store
from kvcodec.store.sequence import Sequence as StoreSequence
from kvcodec.store.store import Store

_NAMES_SHOWN = 20


class Rows(Protocol):
    """K and V of some layers, all of the same number of tokens."""

    @property
    def layers(self) -> tuple[int, ...]: ...

    @property
    def tokens(self) -> int: ...

    def shape(self, layer: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """(heads, dim) of K and of V."""
        ...

    def held(self, layer: int) -> range:
        """The tokens that can be read: all, or those of a layer's sliding window."""
        ...

    def read(self, layer: int, start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """K and V of tokens start <= t < stop, each (tokens, heads, dim)."""
        ...


class DumpRows:
    """Rows of a dump."""

    def __init__(self, dump: Dump) -> None:
        self.dump, self.layers = dump, dump.layers
        self.tokens = dump.tokens

    def shape(self, layer: int) -> tuple[tuple[int, int], tuple[int, int]]:
        k, v = (self.dump.shape(layer, stream)[1:] for stream in STREAMS)
        return k, v

    def held(self, layer: int) -> range:  # noqa: ARG002  # of every layer alike
        return range(self.tokens)

    def read(self, layer: int, start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any]]:
        k, v = (self.dump.rows(layer, stream, start, stop) for stream in STREAMS)
        return k, v


class LogRows:
    """Rows of a sequence of a log, in the model's dtype: what decoding it to a dump writes.

    Raises DumpError for a log whose layers keep other streams than K and V.
    """

    def __init__(self, store: Store, sequence: StoreSequence) -> None:
        self.sequence, self.tokens = sequence, len(sequence)
        self._layers = {n: layer.streams for n, layer in enumerate(store.model.layers) if layer.streams}
        if any(tuple(s.id for s in streams) != STREAMS for streams in self._layers.values()):
            raise DumpError(f"{store.path}: a layer keeps other streams than K and V")
        self.layers = tuple(self._layers)

    def shape(self, layer: int) -> tuple[tuple[int, int], tuple[int, int]]:
        k, v = ((s.heads, s.dim) for s in self._layers[layer])
        return k, v

    def held(self, layer: int) -> range:
        return self.sequence.held(layer)

    def read(self, layer: int, start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any]]:
        k, v = self.sequence.read(layer, slice(start, stop))
        return k, v


def is_log(path: Path) -> bool:
    """Whether a file's content, not its name, says that it is a log. Raises DumpError if it can't be opened."""
    with open_regular(path) as file:
        for copy in range(SUPERBLOCKS):
            file.seek(copy * SUPERBLOCK_BYTES)
            if file.read(len(SUPERBLOCK_MAGIC)) == SUPERBLOCK_MAGIC:
                return True
    return False


def pick_sequence(store: Store, name: str | None) -> StoreSequence:
    """The sequence of that name, or the only one. Raises UnknownSequence with the names that there are."""
    names = store.sequences()
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or name not in names:
        listed = ", ".join(map(repr, names[:_NAMES_SHOWN])) + (", …" if len(names) > _NAMES_SHOWN else "")
        asked = f"no sequence {name!r}" if name is not None else f"{len(names)} sequences; name one"
        raise UnknownSequence(f"{store.path}: {asked} of: {listed}" if names else f"{store.path}: no sequence in it")
    return store.sequence(name)


@contextlib.contextmanager
def open_rows(path: Path, *, sequence: str | None = None, mapping: Sequence[str] = ()) -> Iterator[DumpRows | LogRows]:
    """Rows of a log's sequence or of a dump, whichever `path` is. Raises as open_dump and kvcodec.open do."""
    if is_log(path):
        with open_store(path, recovery=Recovery.TORN_TAIL) as store:
            yield LogRows(store, pick_sequence(store, sequence))
    else:
        with open_dump(path, mapping=mapping) as dump:
            yield DumpRows(dump)
