"""One sequence of a store: appending rows, and reading any tokens back."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvcodec.errors import CorruptRecord, ShapeError
from kvcodec.layout import Kind
from kvcodec.log.frame import Record, new_record
from kvcodec.store.index import Key, SequenceIndex
from kvcodec.store.model import Layer, Stream
from kvcodec.store.records import RAW, OpenSpan, group_records, read_extent, step_records, widen
from kvcodec.store.rows import count_tokens, take_rows, take_tokens
from kvcodec.store.window import OpenRows, Rows, leaving

if TYPE_CHECKING:
    from kvcodec.store.store import Store


class Sequence:
    """Tokens of one conversation. Get it from Store.sequence; it may be used from many threads.

    A token exists when every layer has it: len() counts those. A writer may read a layer's newest rows before
    the other layers have theirs.
    """

    def __init__(self, store: Store, index: SequenceIndex) -> None:
        self._store, self._index = store, index
        self._open: dict[Key, OpenRows] = {}
        self._stale = False

    @property
    def name(self) -> str:
        return self._index.info.name

    def __len__(self) -> int:
        with self._store.lock:
            self._store.refresh()
            if self._open:
                return min(open_.end for open_ in self._open.values())
            return self._index.length

    # -- appending ---------------------------------------------------------------------------------------------

    def append(self, layer: int, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        """Append rows of one layer: k, v (tokens, kv_heads, head_dim), the model's dtype or float32.

        Raises ShapeError, DtypeError, NonFiniteError, NoSpace, with nothing appended.
        """
        self._layer(layer)
        if len(k) != len(v):
            raise ShapeError(f"v (layer {layer}): {len(v)} tokens, k has {len(k)}")
        with self._store.lock:
            self._store.check_writable()
            self.take_up()
            self._append(self._take([(layer, (k, v))]))

    def append_step(self, k: Sequence_[npt.NDArray[Any]], v: Sequence_[npt.NDArray[Any]]) -> None:
        """Append rows of all layers at once, in one frame where it fits: k and v hold one array a layer,
        (tokens, kv_heads, head_dim) or, for one token, (kv_heads, head_dim).

        Raises as `append` does, with nothing appended.
        """
        layers = self._index.model.layers
        if len(k) != len(layers) or len(v) != len(layers):
            raise ShapeError(f"k, v: {len(k)} and {len(v)} layers, want {len(layers)}")
        steps = [(n, (_with_tokens(k[n]), _with_tokens(v[n]))) for n, layer in enumerate(layers) if layer.streams]
        counts = {len(rows) for _, pair in steps for rows in pair}
        if len(counts) != 1:
            raise ShapeError(f"k, v: layers differ in tokens: {sorted(counts)}")
        with self._store.lock:
            self._store.check_writable()
            self.take_up()
            self._append(self._take(steps))

    def _take(self, steps: Sequence_[tuple[int, tuple[npt.NDArray[Any], npt.NDArray[Any]]]]) -> dict[Key, Rows]:
        model = self._index.model
        return {
            (n, stream.id): take_rows(rows, model, n, stream, self._open[n, stream.id].end)
            for n, arrays in steps
            for stream, rows in zip(model.layers[n].streams, arrays, strict=True)
        }

    def _append(self, batch: dict[Key, Rows]) -> None:
        """Log what leaves the windows, then let the rows be seen: a failure in between changes nothing."""
        opened = {key: self._open[key].extended(rows) for key, rows in batch.items()}
        records: list[tuple[int, Record]] = []
        for key, open_ in opened.items():
            coded, opened[key] = self._leave(key, open_)
            records += coded
        in_order = [record for _, record in sorted(records, key=lambda r: r[0])]
        if self._stale and batch:
            in_order.insert(0, new_record(Kind.DROP, b"", sequence=self._index.info.id, first_token=self._index.length))
        if in_order:
            self._store.log_records(in_order)
            self._stale = False
        self._open.update(opened)

    def _leave(self, key: Key, open_: OpenRows) -> tuple[list[tuple[int, Record]], OpenRows]:
        """Records of the tokens that leave a window, each with the token that it ends at, and what stays."""
        layer, id_ = key
        stream = self._stream(key)
        policy = self._index.info.policy.at(layer, id_)
        model, number = self._index.model, self._index.info.id
        group = self._store.token_group(policy.spec, id_)
        going = list(leaving(open_.first, open_.end, residual=policy.residual, sinks=policy.sinks, token_group=group))
        records: list[tuple[int, Record]] = []
        for sink in (True, False):
            own = [item for item in going if item.sink == sink]
            if not own:
                continue
            first, tokens = own[0].first, own[0].tokens
            rows = open_.rows[first - open_.first : own[-1].first + tokens - open_.first]
            spec = RAW if sink else policy.spec
            made = group_records(number, layer, stream, first, rows, spec, model.dtype_id, tokens)
            records += ((first + (n + 1) * tokens, record) for n, record in enumerate(made))
        gone = sum(item.tokens for item in going)
        return records, open_.without(gone) if gone else open_

    def log_open_rows(self) -> None:
        """Log the rows that are in no record yet as STEP records."""
        spans = []
        for key, open_ in self._open.items():
            fresh = max(open_.logged, open_.first)
            if fresh < open_.end:
                spans.append(OpenSpan(key[0], self._stream(key), fresh, open_.rows[fresh - open_.first :]))
        if spans:
            self._store.log_records(step_records(self._index.info.id, spans, limit=self._store.step_limit))
        for open_ in self._open.values():
            open_.logged = open_.end

    def take_up(self) -> None:
        """Load the open rows of a sequence that an earlier writer left."""
        if self._open:
            return
        length = self._index.length
        opened = {}
        for key, extents in self._index.maps.items():
            first = length
            for extent in reversed(extents.covering(0, length)):
                if not extent.coded.step:
                    break
                first = extent.first
            rows = self._read(key, np.arange(first, length))
            opened[key] = OpenRows(rows, first, length)
        self._open, self._stale = opened, self._index.holds_beyond(length)

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, layer: int, tokens: Any = None, *, dtype: Any = None) -> tuple[npt.NDArray[Any], ...]:
        """Rows of one layer: one array (tokens, heads, dim) a stream, k then v.

        tokens: a slice, an index array in any order, or None for all; only the token groups that hold them are
        decoded. dtype: the model's (default) or float32, which keeps what rounding would lose.
        Raises ShapeError, CorruptRecord.
        """
        streams = self._layer(layer).streams
        model = self._index.model
        out = model.numpy_dtype if dtype is None else np.dtype(dtype)
        if out not in (model.numpy_dtype, np.dtype(np.float32)):
            raise ShapeError(f"dtype: got {out}, want {model.numpy_dtype} or float32")
        wide = out == np.float32
        with self._store.lock:
            self._store.refresh()
            length = self._readable(layer)
            for s in streams:  # before memory for tokens that damage took is asked for
                held = self._index.maps[layer, s.id].held
                if not self._open and isinstance(tokens, slice | None) and count_tokens(tokens, length) > held:
                    raise self._lost((layer, s.id))
            index = take_tokens(tokens, length)
            return tuple(self._read((layer, s.id), index, as_float32=wide).view(out) for s in streams)

    def _readable(self, layer: int) -> int:
        if self._open:
            return min(self._open[layer, s.id].end for s in self._layer(layer).streams)
        return self._index.length

    def _read(self, key: Key, tokens: npt.NDArray[np.int64], *, as_float32: bool = False) -> npt.NDArray[Any]:
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
            rows[order[coded:]] = widen(open_.rows[ascending[coded:] - border], model.dtype_id, as_float32=as_float32)
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


def _with_tokens(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows[None] if isinstance(rows, np.ndarray) and rows.ndim == 2 else rows
