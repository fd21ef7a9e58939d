"""The tokens of one sequence as they can be read: rows, and attention over them."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvcodec.errors import CorruptRecord, ShapeError, UnknownSequence
from kvcodec.layout import StreamId
from kvcodec.sparse_spec import SparseCodes
from kvcodec.store.dictionaries import StreamCodecs
from kvcodec.store.model import Layer, Stream
from kvcodec.store.outgoing import Outgoing, is_coded
from kvcodec.store.pairs import check_pair
from kvcodec.store.reading import read_extent
from kvcodec.store.rows import cut_out, refuse_evicted, slice_tokens, take_tokens
from kvcodec.store.sequence_index import Key, SequenceIndex
from kvcodec.store.summaries import Summaries, Summary, hidden_tokens, refuse_hidden
from kvcodec.store.window import OpenRows

if TYPE_CHECKING:
    from kvcodec.attention.strips import Form
    from kvcodec.store.attending import Place
    from kvcodec.store.given import CodedKeys
    from kvcodec.store.places import StreamPlaces
    from kvcodec.store.store import Store

Array = npt.NDArray[Any]


class Readable:
    """What of a sequence does not change it: see Sequence."""

    def __init__(self, store: Store, index: SequenceIndex) -> None:
        self._store, self._own = store, index
        self._open: dict[Key, OpenRows] = {}
        self._codecs = {key: self._codecs_of(key) for key in index.maps}
        self._outgoing = {key: self._make_outgoing(key) for key in index.maps}
        self._places: dict[Key, StreamPlaces] = {}
        self._summaries = Summaries(store.log, index)
        self._stale = False

    def rebind(self, index: SequenceIndex) -> None:
        """Go on with the index of a store that has read its log anew."""
        for name in ("_keys", "_sources"):
            self.__dict__.pop(name, None)
        Readable.__init__(self, self._store, index)

    @property
    def _index(self) -> SequenceIndex:
        """Raises UnknownSequence once the sequence has ended."""
        if self._store.index.sequences.get(self._own.info.id) is not self._own:
            raise UnknownSequence(f"sequence {self._own.info.name!r} was dropped")
        return self._own

    def _make_outgoing(self, key: Key) -> Outgoing:
        info, window = self._index.info, self._index.model.layers[key[0]].window
        policy, largest = info.policy.at(*key), self._store.device.geometry.block_bytes // 2
        own = Outgoing(info.id, self._codecs[key], policy, window, largest)
        return own.over_newest() if self._store.will_write else own

    def _codecs_of(self, key: Key) -> StreamCodecs:
        return StreamCodecs(self._store.index.dictionaries, key[0], self._stream(key), self._index.model.dtype_id)

    @cached_property
    def _keys(self) -> dict[Key, CodedKeys | None]:
        """Of V the K that it may be predicted from."""
        from kvcodec.store.given import keys_for  # kernels are for those who read rows

        index, log = self._index, self._store.log
        return {key: keys_for(log, self._store.index.dictionaries, index, key) for key in index.maps}

    @property
    def name(self) -> str:
        return self._own.info.name

    def __len__(self) -> int:
        with self._store.lock:
            self._store.refresh()
            index = self._index
            if self._open:
                return min(open_.end for open_ in self._open.values())
            return index.length

    def held(self, layer: int) -> range:
        """The tokens of a layer that can be read: all, or those of its sliding window, but for those evicted."""
        with self._store.lock:
            self._store.refresh()
            return self._held(layer)

    def evicted(self, layer: int) -> list[tuple[int, int]]:
        """Those of the tokens that `held` gives that were evicted, as ranges (first, end)."""
        with self._store.lock:
            self._store.refresh()
            return self._evicted(layer, self._held(layer))

    def _evicted(self, layer: int, held: range) -> list[tuple[int, int]]:
        stream = self.layer(layer).streams[0]
        return self._index.maps[layer, stream.id].evicted(held.start, held.stop) if held else []

    def summaries(self, layer: int) -> list[Summary]:
        """Those of which `held` gives any row, in token order. Raises CorruptRecord."""

        def run() -> list[Summary]:
            with self._store.lock:
                self._store.refresh()
                self.layer(layer)
                return self._summaries.of(layer, self._held(layer)).told()

        return self._store.retrying(run)

    def _hidden(self, layer: int, held: range, position: int | None) -> list[tuple[int, int]]:
        """What a query at `position` may not see. Raises ShapeError, CorruptRecord."""
        at = None if position is None else operator.index(position)
        if at is not None and at < 0:
            raise ShapeError(f"position: {at}, want 0 or more")
        return hidden_tokens(self._summaries.of(layer, held), held, at)

    def read(
        self, layer: int, tokens: Any = None, *, dtype: Any = None, position: int | None = None
    ) -> tuple[Array, ...]:
        """Rows of one layer: one array (tokens, heads, dim) a stream, k then v (or c then kr).

        tokens: a slice, an index array in any order, or None for all that the layer holds, without those evicted; only
        the token groups that hold them are decoded. dtype: the model's (default) or float32, which keeps what rounding
        would lose. position: of the query that they are for, behind them all unless given: later tokens, and rows of
        summaries that it may not see, are left out, and refused by number. Raises ShapeError, CorruptRecord.
        """
        streams = self.layer(layer).streams
        model = self._index.model
        try:
            out = model.numpy_dtype if dtype is None else np.dtype(dtype)
        except TypeError:
            raise ShapeError(f"dtype: {dtype!r} is none, want {model.numpy_dtype} or float32") from None
        if out not in (model.numpy_dtype, np.dtype(np.float32)):
            raise ShapeError(f"dtype: got {out}, want {model.numpy_dtype} or float32")
        wide = out == np.float32

        def run() -> tuple[Array, ...]:
            with self._store.lock:
                self._store.refresh()
                self._store.touch(self._index.info.id)
                index = self._take_tokens(layer, tokens, position)
                return tuple(self._read((layer, s.id), index, as_float32=wide).view(out) for s in streams)

        return self._store.retrying(run)

    def _take_tokens(self, layer: int, tokens: Any, position: int | None) -> npt.NDArray[np.int64]:
        """Numbers of the tokens that are asked for and there. Raises ShapeError, CorruptRecord."""
        held = self._held(layer)
        evicted, hidden = self._evicted(layer, held), self._hidden(layer, held, position)
        if not isinstance(tokens, slice | None):
            index = take_tokens(tokens, held)
            refuse_evicted(index, evicted)
            refuse_hidden(index, hidden)
            return index
        parts = cut_out(slice_tokens(tokens, held), sorted([*evicted, *hidden]))
        for s in self.layer(layer).streams:  # before memory for tokens that damage took is asked for
            if not self._open and sum(map(len, parts)) > self._index.maps[layer, s.id].held:
                raise self._lost((layer, s.id))
        return np.concatenate([np.empty(0, np.int64), *(np.arange(p.start, p.stop, p.step) for p in parts)])

    def attend(
        self,
        layer: int,
        q: Array,
        *,
        scale: float | None = None,
        window: int | None = None,
        tokens: Any = None,
        position: int | None = None,
        query_bits: int = 16,
        tiers: tuple[int, float] | None = None,
        return_state: bool = False,
    ) -> Any:
        """Decode attention of one query position, on the compressed bytes and with integers alone.

        q: (query heads, dim) of float32, bfloat16, float16 or float64; heads that follow each other share a KV head. Of
        a latent layer (query heads, c's dim + kr's), the projections absorbed. Returns (query heads, v's dim) float32,
        of a latent layer (query heads, c's dim); with return_state also the AttentionState, which merges with that of
        other tokens and counts tokens and bytes read.
        scale: of the logits, 1 / sqrt(dim) unless given. The query sees the tokens that the layer holds; with window
        the newest of them; with tokens those of a slice, or whole tiles of 16 around the numbers of an array; with
        position, where it is itself, none of those that come later, nor rows of summaries that are for later queries.
        query_bits: 16, or 8 for the fast and coarse mode, whose outputs are off by percents.
        tiers: (low, share), such as (3, 0.1): of codes over a dictionary the first `low` atoms are read, and all atoms
        of that share of the blocks of 64 tokens, those that query heads like best by their first atoms.
        Raises ShapeError, DtypeError, NonFiniteError, SpecError, CorruptRecord.
        """
        (state,) = self._store.attend(
            layer, [self], np.asarray(q)[None], scale=scale, window=window, tokens=tokens, position=position,
            query_bits=query_bits, tiers=tiers, return_state=True,
        )  # fmt: skip
        return (state.output(), state) if return_state else state.output()

    def find_places(
        self, layer: int, window: int | None, tokens: Any, position: int | None, forms: list[Form]
    ) -> Place:
        """Where attention finds the tokens that it is asked for. forms: those of records, to be added to."""
        from kvcodec.store.attending import Place, ask_tokens, uses_of
        from kvcodec.store.places import StreamPlaces

        held = self._held(layer)
        self._store.touch(self._index.info.id)
        hidden, evicted = self._hidden(layer, held, position), self._evicted(layer, held)
        near = held if window is None or position is None else range(held.start, min(held.stop, position + 1))
        asked = ask_tokens(tokens, window, near).without(evicted).hiding(hidden)
        first, end = asked.bounds
        found, blocks = [], []
        for stream in uses_of(self.layer(layer))[0]:
            key = layer, stream.id
            if key not in self._places:
                extents = self._index.maps[key]
                self._places[key] = StreamPlaces(self._store.log, extents, self._codecs[key])
            own, read = self._places[key].find(first, end, self._open.get(key), self._outgoing[key], forms)
            found.append(own)
            blocks += read
        return Place(found, asked, blocks)

    def sparse_codes(self, layer: int) -> list[SparseCodes]:
        """How the streams of a layer are coded over dictionaries, as far as they are."""
        specs = [self._outgoing[layer, stream.id].policy.spec for stream in self.layer(layer).streams]
        return [spec.sparse for spec in specs if spec.sparse is not None]

    def lost(self, layer: int) -> CorruptRecord:
        """The error for tokens of a layer that damage took."""
        return self._lost((layer, self.layer(layer).streams[0].id))

    def _held(self, layer: int) -> range:
        index = self._index
        end = 0 if self._open else index.length
        if self._open:
            end = min(self._open[layer, s.id].end for s in self.layer(layer).streams)
        return range(self.layer(layer).held(end), end)

    def _read(self, key: Key, tokens: npt.NDArray[np.int64], *, as_float32: bool = False) -> Array:
        stream = self._stream(key)
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
            rows[order[coded:]] = self._over_open(key, open_).read(open_, newest, as_float32=as_float32)
        found = 0
        for extent in self._index.maps[key].covering(int(ascending[0]), min(int(ascending[-1]) + 1, border)):
            low, high = np.searchsorted(ascending[:coded], (extent.first, extent.end)).tolist()
            if low < high:
                found += high - low
                own = extent._replace(first=int(ascending[low]), end=int(ascending[high - 1]) + 1)
                whole = read_extent(self._store.log, own, self._codecs[key], self._keys[key], as_float32=as_float32)
                rows[order[low:high]] = whole[ascending[low:high] - extent.coded.first]
        if found != coded:
            raise self._lost(key)
        return rows

    def _over_open(self, key: Key, open_: OpenRows) -> Outgoing:
        """What reads open rows of a stream: with the codes of K where those of V are predicted from them."""
        outgoing, keys = self._outgoing[key], self._keys[key]
        if keys is None or not is_coded(open_) or key not in self._sources:
            return outgoing
        tokens, opened = range(open_.first, open_.end), self._open[self._sources[key]]
        return replace(outgoing, given=keys.take(outgoing.policy.spec.basis, tokens, tokens, opened=opened))

    @cached_property
    def _sources(self) -> dict[Key, Key]:
        """The K of each V that is predicted from its codes. Raises SpecError where that cannot be."""
        model, find = self._index.model, self._store.index.dictionaries.find
        pairs = [n for n, own in enumerate(model.layers) if check_pair(self._index.info.policy, n, own, find)]
        return {(n, StreamId.V): (n, StreamId.K) for n in pairs}

    def _lost(self, key: Key) -> CorruptRecord:
        damage = self._store.log.report.damage
        at = damage[0].start if damage else 0
        return CorruptRecord(at, f"sequence {self.name!r}: tokens of layer {key[0]}, stream {key[1].name} are lost")

    def layer(self, layer: int) -> Layer:
        """Streams and window of a layer that keeps a cache. Raises ShapeError."""
        layers = self._index.model.layers
        if not 0 <= layer < len(layers):
            raise ShapeError(f"layer {layer}: the model has layers 0 to {len(layers) - 1}")
        if not layers[layer].streams:
            raise ShapeError(f"layer {layer} keeps no cache")
        return layers[layer]

    def _stream(self, key: Key) -> Stream:
        return next(s for s in self._index.model.layers[key[0]].streams if s.id == key[1])
