"""One sequence of a store: appending rows; what reads them is in readable.py."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Sequence_
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import MAX_TOKEN, DropScope, StreamId
from kvcodec.log.frame import Record
from kvcodec.store.ahead import Coded, Span, code_spans, code_streams
from kvcodec.store.ending import check_servable, drop_record, evict, truncate
from kvcodec.store.extents import Extent
from kvcodec.store.growths import Seen
from kvcodec.store.outgoing import Left, Outgoing, behind_keys, is_coded
from kvcodec.store.policy import SequenceInfo
from kvcodec.store.readable import Readable
from kvcodec.store.reading import read_codes
from kvcodec.store.records import step_records
from kvcodec.store.relaying import relaid_records
from kvcodec.store.rows import take_rows, take_streams
from kvcodec.store.sequence_index import Key
from kvcodec.store.summarizing import summarize
from kvcodec.store.window import OpenRows, Rows

Array = npt.NDArray[Any]
ReadRows = Callable[[int, StreamId, int, int, Rows], Array]  # see Sequence.append_spans


class Sequence(Readable):
    """Tokens of one conversation. Get it from Store.sequence; it may be used from many threads.

    A token exists when every layer has it: len() counts those. A writer may read a layer's newest rows before
    the other layers have theirs. A layer with a sliding window keeps the tokens of its window; `held` says which.
    """

    def append(self, layer: int, *rows: Array) -> None:
        """Append rows of one layer: one array (tokens, heads, dim) a stream (k, v; or c, kr), the model's dtype or
        float32.

        Raises ShapeError, DtypeError, NonFiniteError, NoSpace, with nothing appended.
        """
        self.append_layers({layer: rows})

    def append_layers(self, rows: Mapping[int, Sequence_[Array]]) -> None:
        """Append rows of several layers, each as `append` takes them, coded in parallel; all of them or none."""
        with self._store.lock:
            self._begin_append()
            batch = {k: v for layer, arrays in rows.items() for k, v in self._take(layer, arrays).items()}
            self._store.grow()
            length = self._length_with({key: self._open[key].end + len(own) for key, own in batch.items()})

            def append(key: Key, source: Left | None) -> Left:
                open_ = self._open[key]
                outgoing = self._over_keys(key, open_, source, length)
                return behind_keys(outgoing.append(open_, batch[key]), source)

            self._commit(code_streams(self._store.map, list(batch), append, self._sources))
            self._show(batch)

    def append_spans(
        self,
        layers: Sequence_[int],
        spans: Sequence_[Span],
        read: ReadRows,
        tell: Callable[[Span], None],
        *,
        ahead: bool,
    ) -> None:
        """Append the tokens first … end - 1 of each span, which follow one another, to `layers`.

        read: called from several threads with layer, stream, first, end and room for 16-bit rows, gives the rows as
        `append` takes them, in that room if it can. tell: called with each span that is in the log. ahead: a span is
        read and coded, by a thread of its own, while the one before it is written, unless dictionaries grow.
        Raises as `append` and `read` do; the spans before then are appended, and nothing of their own.
        """
        with self._store.lock:
            self._begin_append()
            keys = [(n, s.id) for n in layers for s in self.layer(n).streams]
            batch: dict[Key, Rows] = {}

            def code(span: Span, before: Mapping[Key, OpenRows]) -> Coded:
                self._store.grow()
                length = self._length_with(dict.fromkeys(keys, span[1]))
                return code_streams(
                    self._store.map,
                    keys,
                    lambda key, source: self._append_read(read, key, before[key], span, length, batch, source),
                    self._sources,
                )

            def commit(coded: Coded, span: Span) -> None:
                self._commit(coded)
                self._show(batch)
                tell(span)

            changing = self._store.growing is not None or any(own.heir for own in self._outgoing.values())
            changing |= any(self._open[key].first < self._open[of].first for key, of in self._sources.items())
            code_spans(spans, self._open, code, commit, ahead=ahead and not changing)

    def _begin_append(self) -> None:
        self._store.check_writable()
        self.take_up()
        self._store.touch(self._index.info.id)  # before anything makes room by dropping what was used least recently

    def _append_read(
        self, read: ReadRows, key: Key, before: OpenRows, span: Span, length: int, batch: dict[Key, Rows],
        source: Left | None,
    ) -> Left:  # fmt: skip
        """batch: the rows of each stream, for `_show`, where dictionaries grow. length, source: see _over_keys."""
        layer, id_ = key
        first, end = span

        def fill(room: Rows) -> None:
            rows = take_rows(read(layer, id_, first, end, room), self._index.model, layer, self._stream(key), first)
            if not np.may_share_memory(rows, room):
                room[...] = rows
            if self._store.growing is not None:
                batch[key] = room

        outgoing = self._over_keys(key, before, source, length)
        return behind_keys(outgoing.append_read(before, end - first, fill), source)

    def _length_with(self, ends: Mapping[Key, int]) -> int:
        """Tokens that all streams have once some of them end as told; MAX_TOKEN if none has more."""
        all_ = {ends.get(key, open_.end) for key, open_ in self._open.items()}
        return min(all_) if len(all_) > 1 else MAX_TOKEN

    def _over_keys(self, key: Key, open_: OpenRows, source: Left | None, length: int) -> Outgoing:
        """How a stream leaves memory, with the codes that rows of V stand on. source: what becomes of its K. length: as
        _length_with has it.
        """
        outgoing, keys = self._outgoing[key], self._keys[key]
        if outgoing.window and length < MAX_TOKEN:
            outgoing = outgoing.ahead_of(length)
        if source is None or keys is None:
            return outgoing
        opened, sinks = source.opened, outgoing.policy.sinks
        start = max(open_.end if is_coded(open_) else open_.first, sinks)
        end = max(start, opened.end if is_coded(opened) else opened.first)
        held = max(start, min(opened.end, length) - outgoing.window) if outgoing.window else start
        given = keys.take(
            outgoing.policy.spec.basis, range(start, end), range(held, end), opened=opened,
            records=[ending.record for ending in source.endings],
        )  # fmt: skip
        return replace(outgoing, given=given, laid=opened.first)

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
        streams = self.layer(layer).streams
        firsts = [self._open[layer, s.id].end for s in streams]
        taken = take_streams(arrays, self._index.model, layer, streams, firsts)
        return {(layer, s.id): rows for s, rows in zip(streams, taken, strict=True)}

    def _commit(self, coded: Coded) -> None:
        """Log what leaves the windows, then let the rows be seen: a failure in between changes nothing."""
        records, opened, handed = coded
        outgoing = self._outgoing | {key: self._outgoing[key].newest for key in handed} if handed else self._outgoing
        if self._stale and opened:
            records.insert(0, drop_record(self._index.info.id, DropScope.TAIL, self._index.length))
        if self._store.durable_steps:
            records += self._step_records(opened, outgoing)
        if records:
            self._store.log_records(records)
            self._stale = False
        if self._store.durable_steps:
            self._store.sync_log()
            for open_ in opened.values():
                open_.logged = open_.end
        self._open.update(opened)
        self._outgoing = outgoing

    def _show(self, batch: Mapping[Key, Rows]) -> None:
        """Let dictionaries that grow see the rows, but for sinks, that were appended last."""
        if self._store.growing is None:
            return
        seen = []
        for (layer, id_), rows in batch.items():
            own = self._outgoing[layer, id_].newest
            raw = max(0, own.policy.sinks - (self._open[layer, id_].end - len(rows)))
            seen.append(Seen(layer, id_, own.policy.spec, rows[raw:], own.dtype))
        self._store.growing.show(seen)

    def hand_over(self, parent: bytes, child: DictionarySet) -> None:
        """Code over a set that grew out of another one what was to be coded over that."""
        for key, outgoing in self._outgoing.items():
            codes, own = outgoing.newest.policy.spec.sparse, child.find(*key)
            if codes is not None and codes.basis == parent and own is not None:
                self._outgoing[key] = replace(outgoing, heir=outgoing.newest.over(own.size, child.hash))

    def _step_records(self, opened: Mapping[Key, OpenRows], outgoing: Mapping[Key, Outgoing]) -> list[Record]:
        """STEP records of the open rows that are in no record yet."""
        journal = self._store.journal
        spans = [outgoing[key].span(open_, journal) for key, open_ in opened.items()]
        return step_records(self._index.info.id, [s for s in spans if s is not None], limit=self._store.step_limit)

    def log_open_rows(self) -> None:
        """Log the open rows that are in no record yet."""
        if records := self._step_records(self._open, self._outgoing):
            self._store.log_records(records)
        for open_ in self._open.values():
            open_.logged = open_.end

    def lay_anew(self) -> None:
        """Have open rows that are scattered over many records, all of which are in the log, in few. Raises NoSpace."""
        self.take_up()
        limit = self._store.step_limit
        if records := relaid_records(self._index, self._open, self._outgoing, limit=limit):
            self._store.log_records(records)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`. Raises ShapeError, NoSpace."""
        with self._store.lock:
            self._store.check_writable()
            self.take_up()
            self.log_open_rows()
            record = truncate(self, operator.index(length), self._index)
            self._store.log_change(record, check=lambda: self.check_servable(length))
            self._cut(length)

    def _cut(self, length: int) -> None:
        """Have no open rows behind `length` tokens; what stays open is what it was. Streams whose groups are cut too go
        on from what the log holds of them.
        """
        self._stale = False
        self._places.clear()
        for key, open_ in self._open.items():
            if open_.first <= length:
                self._open[key] = open_.cut(length)
            else:
                self._outgoing[key] = self._make_outgoing(key)
                self._open[key] = self._take_up_stream(key, length)

    def evict(self, first: int, end: int) -> None:
        """Forget the rows of tokens first … end - 1, in all layers; all others keep their numbers.

        They are not read or attended to any more, and their bytes become free once a whole record of them is gone. No
        token of a residual window can be evicted. Raises ShapeError.
        """
        with self._store.lock:
            self._store.check_writable()
            self.take_up()
            settled = min(open_.first for open_ in self._open.values())
            self._store.log_change(evict(self, operator.index(first), operator.index(end), settled, self._index))

    def summarize(
        self, first: int, end: int, rows: Mapping[int, Sequence_[Array]], *, positions: Any = None,
        visible_from: Any = None,
    ) -> None:  # fmt: skip
        """Have rows stand for tokens first … end - 1, of which nothing else is read or attended to any more.

        rows: of each layer with a cache what `append` takes, any number of rows up to that of the tokens, kept as they
        are. A layer with a sliding window may be left out; then it keeps its own. Rows take the first of the token
        numbers; all others are evicted, and len() stays.
        positions: of each row the position it stands at, first to end - 1: evenly spread unless given. visible_from:
        that of the first query that may see it, for each row or all: `end` unless given. Either may be given by layer.
        A summary is evicted, cut off, and summarised again as a whole only. Raises as `append` and `evict` do, and
        SpecError if one head's rows fit no erase block, with nothing changed.
        """
        with self._store.lock:
            self._store.check_writable()
            self.take_up()
            settled = min(open_.first for open_ in self._open.values())
            tokens = operator.index(first), operator.index(end)
            records = summarize(self, tokens, settled, self._index, rows, positions, visible_from)
            since = self._store.log.lsn + 1
            self._store.log_change(*records, drop_record(self._index.info.id, DropScope.SUMMARY, *tokens, since))

    def prepare_fork(self, length: int) -> SequenceInfo:
        """Have all rows in the log; what a sequence that shares `length` tokens begins as. Raises ShapeError."""
        self.take_up()
        self.log_open_rows()
        if not 0 <= length <= len(self):
            raise ShapeError(f"sequence {self.name!r}: a fork at token {length} of {len(self)}")
        self.check_servable(length)
        return self._index.info

    def check_servable(self, length: int) -> None:
        """Raises ShapeError if the sequence could not be read as one of `length` tokens."""
        check_servable(self._index, length)

    def take_up(self) -> None:
        """Load the open rows of a sequence that an earlier writer left."""
        if self._open:
            return
        length = self._index.length
        self._open = {key: self._take_up_stream(key, length) for key in self._index.maps}
        self._stale = self._index.holds_beyond(length)

    def _take_up_stream(self, key: Key, length: int) -> OpenRows:
        """The rows of the last STEP records. Codes stay the codes they are, so that nothing is rounded twice."""
        extents: list[Extent] = []
        for extent in reversed(self._index.maps[key].covering(0, length)):
            if extent.coded.step is None or extent.end < (extents[0].first if extents else length):
                break
            extents.insert(0, extent)
        outgoing = self._outgoing[key] = self._outgoing[key].begun([extent.coded.step for extent in extents])
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
            if key in self._sources or key in self._sources.values():
                raise SpecError(
                    f"sequence {self.name!r}: {key[1].name} of layer {key[0]} in other codes than its policy's"
                )
            rows = self._read(key, np.arange(first, length))
            return codec.at(first).encode(rows, self._index.model.dtype_id)
        codes = [read_codes(self._store.log, extent, outgoing.stream) for extent in extents]
        return np.concatenate(codes)[: length - first]


def _with_tokens(rows: Array) -> Array:
    return rows[None] if isinstance(rows, np.ndarray) and rows.ndim == 2 else rows
