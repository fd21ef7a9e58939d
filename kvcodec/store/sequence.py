"""One sequence of a store: appending rows, and reading any tokens back."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Sequence_
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvcodec.errors import CorruptRecord, ShapeError
from kvcodec.layout import Kind
from kvcodec.log.frame import Record, new_record
from kvcodec.store.extents import Extent
from kvcodec.store.index import Key, SequenceIndex
from kvcodec.store.model import Layer, Stream
from kvcodec.store.outgoing import Outgoing
from kvcodec.store.reading import read_codes, read_extent
from kvcodec.store.records import step_records
from kvcodec.store.rows import count_tokens, take_rows, take_tokens
from kvcodec.store.window import OpenRows, Rows

if TYPE_CHECKING:
    from kvcodec.store.store import Store

Array = npt.NDArray[Any]


class Sequence:
    """Tokens of one conversation. Get it from Store.sequence; it may be used from many threads.

    A token exists when every layer has it: len() counts those. A writer may read a layer's newest rows before
    the other layers have theirs. A layer with a sliding window keeps the tokens of its window; `held` says which.
    """

    def __init__(self, store: Store, index: SequenceIndex) -> None:
        self._store, self._index = store, index
        self._open: dict[Key, OpenRows] = {}
        self._outgoing = {key: self._make_outgoing(key) for key in index.maps}
        self._stale = False

    def _make_outgoing(self, key: Key) -> Outgoing:
        info, model = self._index.info, self._index.model
        window = model.layers[key[0]].window
        policy, largest = info.policy.at(*key), self._store.device.geometry.block_bytes // 2
        return Outgoing(info.id, key[0], self._stream(key), policy, model.dtype_id, window, largest)

    @property
    def name(self) -> str:
        return self._index.info.name

    def __len__(self) -> int:
        with self._store.lock:
            self._store.refresh()
            if self._open:
                return min(open_.end for open_ in self._open.values())
            return self._index.length

    def held(self, layer: int) -> range:
        """The tokens of a layer that can be read: all, or those of its sliding window."""
        with self._store.lock:
            self._store.refresh()
            return self._held(layer)

    # -- appending ---------------------------------------------------------------------------------------------

    def append(self, layer: int, *rows: Array) -> None:
        """Append rows of one layer: one array (tokens, heads, dim) a stream (k, v; or c, kr), the model's dtype or
        float32.

        Raises ShapeError, DtypeError, NonFiniteError, NoSpace, with nothing appended.
        """
        self.append_layers({layer: rows})

    def append_layers(self, rows: Mapping[int, Sequence_[Array]]) -> None:
        """Append rows of several layers, each as `append` takes them, coded in parallel; all of them or none."""
        with self._store.lock:
            self._store.check_writable()
            self.take_up()
            self._append({k: v for layer, arrays in rows.items() for k, v in self._take(layer, arrays).items()})

    def append_step(self, *streams: Sequence_[Array]) -> None:
        """Append rows of all layers at once: for each stream (k, v; or c, kr) one array a layer, (tokens, heads, dim)
        or, for one token, (heads, dim); None for a layer without a cache.

        Raises as `append` does, with nothing appended.
        """
        layers = self._index.model.layers
        if any(len(arrays) != len(layers) for arrays in streams):
            raise ShapeError(f"{' and '.join(str(len(a)) for a in streams)} layers, want {len(layers)}")
        steps = {n: [_with_tokens(arrays[n]) for arrays in streams] for n, la in enumerate(layers) if la.streams}
        counts = {len(rows) for arrays in steps.values() for rows in arrays if np.ndim(rows)}
        if len(counts) > 1:
            raise ShapeError(f"layers differ in tokens: {sorted(counts)}")
        self.append_layers(steps)

    def _take(self, layer: int, arrays: Sequence_[Array]) -> dict[Key, Rows]:
        streams, model = self._layer(layer).streams, self._index.model
        if len(arrays) != len(streams):
            names = ", ".join(s.name for s in streams)
            raise ShapeError(f"layer {layer}: {len(arrays)} arrays, want one each for {names}")
        taken = {
            (layer, s.id): take_rows(rows, model, layer, s, self._open[layer, s.id].end)
            for s, rows in zip(streams, arrays, strict=True)
        }
        counts = [len(rows) for rows in taken.values()]
        if len(set(counts)) > 1:
            raise ShapeError(
                f"{streams[1].name} (layer {layer}): {counts[1]} tokens, {streams[0].name} has {counts[0]}"
            )
        return taken

    def _append(self, batch: dict[Key, Rows]) -> None:
        """Log what leaves the windows, then let the rows be seen: a failure in between changes nothing."""
        made = self._store.map(lambda key: self._outgoing[key].append(self._open[key], batch[key]), list(batch))
        opened = {key: open_ for key, (_, open_) in zip(batch, made, strict=True)}
        endings = sorted((e for records, _ in made for e in records), key=lambda e: e.end)
        records = [e.record for e in endings]
        if self._stale and batch:
            records.insert(0, new_record(Kind.DROP, b"", sequence=self._index.info.id, first_token=self._index.length))
        if self._store.durable_steps:
            records += self._step_records(opened)
        if records:
            self._store.log_records(records)
            self._stale = False
        if self._store.durable_steps:
            self._store.sync_log()
            for open_ in opened.values():
                open_.logged = open_.end
        self._open.update(opened)

    def _step_records(self, opened: Mapping[Key, OpenRows]) -> list[Record]:
        """STEP records of the open rows that are in no record yet."""
        journal = self._store.journal
        spans = [self._outgoing[key].span(open_, journal) for key, open_ in opened.items()]
        return step_records(self._index.info.id, [s for s in spans if s is not None], limit=self._store.step_limit)

    def log_open_rows(self) -> None:
        """Log the open rows that are in no record yet."""
        if records := self._step_records(self._open):
            self._store.log_records(records)
        for open_ in self._open.values():
            open_.logged = open_.end

    def take_up(self) -> None:
        """Load the open rows of a sequence that an earlier writer left."""
        if self._open:
            return
        length = self._index.length
        self._open = {key: self._take_up_stream(key, length) for key in self._index.maps}
        self._stale = self._index.holds_beyond(length)

    def _take_up_stream(self, key: Key, length: int) -> OpenRows:
        """The rows of the last STEP records. Codes stay the codes they are, so that nothing is rounded twice."""
        outgoing = self._outgoing[key]
        extents: list[Extent] = []
        for extent in reversed(self._index.maps[key].covering(0, length)):
            if extent.coded.step is None or (extents and extent.end < extents[0].first):
                break
            extents.insert(0, extent)
        open_ = outgoing.begin(extents[0].first if extents else length)
        if extents:
            open_ = open_.extended(self._step_rows(outgoing, key, extents, length))
        open_.logged = length
        return open_

    def _step_rows(self, outgoing: Outgoing, key: Key, extents: Sequence_[Extent], length: int) -> Array:
        """Rows of STEP records in the form in which the stream holds them open."""
        first, codec = extents[0].first, outgoing.row_codec
        if codec is None or first < outgoing.policy.sinks:
            return self._read(key, np.arange(first, length))
        if any(extent.coded.step != codec.spec for extent in extents):
            return codec.encode(self._read(key, np.arange(first, length)), self._index.model.dtype_id)
        codes = [read_codes(self._store.log, extent, outgoing.stream) for extent in extents]
        return np.concatenate(codes)[: length - first]

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, layer: int, tokens: Any = None, *, dtype: Any = None) -> tuple[Array, ...]:
        """Rows of one layer: one array (tokens, heads, dim) a stream, k then v (or c then kr).

        tokens: a slice, an index array in any order, or None for all that the layer holds; only the token groups that
        hold them are decoded. dtype: the model's (default) or float32, which keeps what rounding would lose.
        Raises ShapeError, CorruptRecord.
        """
        streams = self._layer(layer).streams
        model = self._index.model
        try:
            out = model.numpy_dtype if dtype is None else np.dtype(dtype)
        except TypeError:
            raise ShapeError(f"dtype: {dtype!r} is none, want {model.numpy_dtype} or float32") from None
        if out not in (model.numpy_dtype, np.dtype(np.float32)):
            raise ShapeError(f"dtype: got {out}, want {model.numpy_dtype} or float32")
        wide = out == np.float32
        with self._store.lock:
            self._store.refresh()
            held = self._held(layer)
            for s in streams:  # before memory for tokens that damage took is asked for
                known = self._index.maps[layer, s.id].held
                if not self._open and isinstance(tokens, slice | None) and count_tokens(tokens, held) > known:
                    raise self._lost((layer, s.id))
            index = take_tokens(tokens, held)
            return tuple(self._read((layer, s.id), index, as_float32=wide).view(out) for s in streams)

    def _held(self, layer: int) -> range:
        end = self._index.length
        if self._open:
            end = min(self._open[layer, s.id].end for s in self._layer(layer).streams)
        return range(self._layer(layer).held(end), end)

    def _read(self, key: Key, tokens: npt.NDArray[np.int64], *, as_float32: bool = False) -> Array:
        stream, model = self._stream(key), self._index.model
        rows = np.empty((len(tokens), stream.heads, stream.dim), np.float32 if as_float32 else np.uint16)
        if not len(tokens):
            return rows
        open_ = self._open.get(key)
        border = open_.first if open_ is not None else 1 << 62
        order = np.argsort(tokens, kind="stable")
        ascending = tokens[order]
        coded = int(np.searchsorted(ascending, border))
        if open_ is not None and coded < len(tokens):
            newest = ascending[coded:] - border
            rows[order[coded:]] = self._outgoing[key].read(open_, newest, as_float32=as_float32)
        found = 0
        for extent in self._index.maps[key].covering(int(ascending[0]), min(int(ascending[-1]) + 1, border)):
            low, high = np.searchsorted(ascending[:coded], (extent.first, extent.end)).tolist()
            if low < high:
                found += high - low
                whole = read_extent(self._store.log, extent, stream, model.dtype_id, as_float32=as_float32)
                rows[order[low:high]] = whole[ascending[low:high] - extent.coded.first]
        if found != coded:
            raise self._lost(key)
        return rows

    def _lost(self, key: Key) -> CorruptRecord:
        damage = self._store.log.report.damage
        at = damage[0].start if damage else 0
        return CorruptRecord(at, f"sequence {self.name!r}: tokens of layer {key[0]}, stream {key[1].name} are lost")

    def _layer(self, layer: int) -> Layer:
        layers = self._index.model.layers
        if not 0 <= layer < len(layers):
            raise ShapeError(f"layer {layer}: the model has layers 0 to {len(layers) - 1}")
        if not layers[layer].streams:
            raise ShapeError(f"layer {layer} keeps no cache")
        return layers[layer]

    def _stream(self, key: Key) -> Stream:
        return next(s for s in self._index.model.layers[key[0]].streams if s.id == key[1])


def _with_tokens(rows: Array) -> Array:
    return rows[None] if isinstance(rows, np.ndarray) and rows.ndim == 2 else rows
