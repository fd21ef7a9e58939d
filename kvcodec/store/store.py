"""A store: one log, opened for reading, appending or anew, and the sequences in it."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Sequence_
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.errors import (
    CorruptRecord,
    FormatError,
    KvcodecError,
    NoSpace,
    ShapeError,
    SpecError,
    StoreClosed,
    UnknownSequence,
)
from kvcodec.flash.device import Device
from kvcodec.layout import FRAME_OVERHEAD, DropScope
from kvcodec.log.cleaner import Cleaner
from kvcodec.log.frame import Record
from kvcodec.log.located import Located, join_records
from kvcodec.log.order import order_records
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import load_sidecar, write_sidecar
from kvcodec.log.takeup import Writers, take_up
from kvcodec.log.writer import LaneWriter
from kvcodec.store.coding import Coding
from kvcodec.store.ending import drop_record
from kvcodec.store.growths import check_room
from kvcodec.store.identity import mismatch
from kvcodec.store.index import LogIndex
from kvcodec.store.known import KnownRecords
from kvcodec.store.liveness import Liveness
from kvcodec.store.model import Model
from kvcodec.store.pairs import check_pairs
from kvcodec.store.policy import SequenceInfo, check_name
from kvcodec.store.readable import Readable
from kvcodec.store.records import RAW
from kvcodec.store.sequence import Sequence
from kvcodec.store.set_records import set_records
from kvcodec.store.stats import Stats, measure_store

if TYPE_CHECKING:
    from kvcodec.attention.state import AttentionState
    from kvcodec.attention.strips import Form
    from kvcodec.store.growing import Growing

K = TypeVar("K")
T = TypeVar("T")
_DEAD_SHARE = 0.02  # of a block that is worth cleaning it when a log is compacted
_STEP_SHARE = 4  # a STEP record takes at most this share of an erase block


class Store:
    """An open log. Use `open_store` (kvcodec.open); close it, or use it as a context manager.

    Attributes: model, path, log (with `report` of what recovery met). One process writes, any number reads, and a
    reader follows a writer live. Every method may be called from many threads.
    """

    def __init__(self, path: Path, device: Device, recovery: Recovery, *, writable: bool, threads: int = 1) -> None:
        self.path, self.device = path, device
        self.durable_steps, self.journal = False, RAW
        self.growing: Growing | None = None
        self._pool = ThreadPoolExecutor(threads, "kvcodec") if threads > 1 else None
        self._threads = threads
        self.lock = threading.RLock()
        self._writers: Writers | None = None
        self._sequences: dict[int, Sequence] = {}
        self._closed = False
        self.will_write = writable
        self._failure: KvcodecError | None = None
        resume = not writable and recovery == Recovery.TORN_TAIL
        try:
            self._load(recovery, resume=resume)
        except FormatError:
            if not self._trusted:
                raise
            self._load(recovery, resume=False)  # whatever the sidecar said, the log alone decides

    def _load(self, recovery: Recovery, *, resume: bool) -> None:
        self.log = Log(self.device, recovery)
        self.index = LogIndex(self.log)
        self.known = KnownRecords()
        self._trusted = resume  # a sidecar that can't be taken in is none
        trusted = load_sidecar(self.path, self.log, resume=resume)
        self._trusted = bool(trusted)
        found = self.log.poll_table()
        self.log.take_jumps()
        self._enter(order_records([trusted, found]) if len(self.log.kept.blocks.in_use()) else
                    join_records([trusted, found]))  # fmt: skip
        self.index.check()

    # -- opening and closing -----------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """The model that the log's sequences belong to."""
        models = list(self.index.models.values())
        if not models:
            raise UnknownSequence(f"{self.path} holds no model yet")
        return models[-1]

    @property
    def writable(self) -> bool:
        return self._writers is not None

    def begin(
        self,
        model: Model | None,
        coding: Coding,
        dictionary: DictionarySet | None = None,
        *,
        embed: bool = True,
        grow: int = 0,
        growths: int = 1,
    ) -> None:
        """Become the writer: for which model, and how sequences begun from now on are coded.

        dictionary: the set that `dict`, `pq` and `tcq` specs are bound to; with embed the log takes it up unless it
        holds it.
        grow, growths: by how many atoms dictionaries grow, and how often at most.
        What can be refused is refused before the log is touched.
        """
        self.check_model(model)
        own = model or self.model
        policy = coding.policy(own, self.index.default, dictionary)
        for rule in policy.rules:
            if rule.policy.spec.basis:
                self.index.dictionaries.find(rule.policy.spec.basis)
        check_pairs(policy, own, self.index.dictionaries.find)
        check_room(policy, grow, self.index.dictionaries.find)
        self._writers = take_up(self.device, self.log)
        keeper = Liveness(self.index, self.known.table, self.known.add, self.known.forget)
        self._cleaner = Cleaner(self.device, self.log, self._writers, keeper)
        if grow:
            from kvcodec.store.growing import Growing  # its kernels are for few logs

            self.growing = Growing(self.index.dictionaries, grow, growths, self.map)
        records = [] if self.index.models else [own.record()]
        if dictionary is not None and embed and not self.index.dictionaries.is_sound(dictionary.hash):
            records += set_records(dictionary, self.step_limit)
        if policy != self.index.default:
            records.append(SequenceInfo(0, "", own.hash, policy).record())
        if records:
            self.log_records(records)

    def check_model(self, model: Model | None) -> None:
        """Raises IdentityMismatch if the log belongs to another model, SpecError if nobody says which it is for."""
        if model is not None and self.index.models and model.hash not in self.index.models:
            raise mismatch(self.path, self.model, model)
        if model is None and not self.index.models:
            raise SpecError(f"{self.path} holds no model yet: pass model=")

    def close(self) -> None:
        """Make everything durable (a writer), write the index sidecar, and let go of the file."""
        with self.lock:
            if self._closed:
                return
            try:
                if self._writers is not None:
                    try:
                        self._log_open_rows()
                    finally:  # what is in the log already becomes durable even if there is no room for more
                        for writer in self._writers:
                            writer.witness()
                        ends = [writer.end() for writer in self._writers]
                        write_sidecar(self.path, self.log, ends, self.known.ordered())
            finally:
                self._let_go()

    def abandon(self) -> None:
        """Let go of the file without another write, as a crash would."""
        with self.lock:
            self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown()
        self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- sequences ---------------------------------------------------------------------------------------------

    def sequence(self, name: str) -> Sequence:
        """The sequence of that name; a writer begins it if there is none. Raises UnknownSequence, SpecError."""
        with self.lock:
            check_name(name)
            self.refresh()
            number = self.index.by_name.get(name)
            if number is None:
                if self._writers is None:
                    raise UnknownSequence(f"{self.path} holds no sequence {name!r}")
                number = self._begin_sequence(name)
            if number not in self._sequences:
                self._sequences[number] = Sequence(self, self.index.sequences[number])
            sequence = self._sequences[number]
            if self._writers is not None:
                sequence.take_up()
            return sequence

    def drop(self, name: str) -> None:
        """End a sequence; its name is free again. What was forked from it stays. Raises UnknownSequence."""
        with self.lock:
            self.check_writable()
            number = self.index.by_name.get(name)
            if number is None:
                raise UnknownSequence(f"{self.path} holds no sequence {name!r}")
            self.log_records([drop_record(number, DropScope.SEQUENCE)])
            self._sequences.pop(number, None)

    def fork(self, name: str, new: str, tokens: int | None = None) -> Sequence:
        """Begin a sequence with the first tokens, all unless told, of another one, whose records it shares.

        Raises UnknownSequence, SpecError for a name that is taken, ShapeError for tokens that are not there.
        """
        with self.lock:
            self.check_writable()
            check_name(new)
            if name not in self.index.by_name:
                raise UnknownSequence(f"{self.path} holds no sequence {name!r}")
            if new in self.index.by_name:
                raise SpecError(f"{self.path} holds a sequence {new!r} already")
            parent = self.sequence(name)
            length = len(parent) if tokens is None else operator.index(tokens)
            info = parent.prepare_fork(length)
            number = self.index.last_id + 1
            self.log_records([replace(info, id=number, name=new, fork=(info.id, length)).record()])
            return self.sequence(new)

    def compact(self, progress: Callable[[int, int], None] = lambda _done, _all: None) -> int:
        """Clean every block of which a share is dead, so that the file is as small as it gets; how many were erased.

        progress: called with blocks that are done and those that are known to be wanted. Raises NoSpace.
        """
        with self.lock:
            self.check_writable()
            self._log_open_rows()
            return self._cleaner.clean_all(_DEAD_SHARE, progress)

    def sequences(self) -> list[str]:
        """Names of all sequences, in the order in which they were begun."""
        with self.lock:
            self.refresh()
            return list(self.index.by_name)

    def __iter__(self) -> Iterator[Sequence]:
        return map(self.sequence, self.sequences())

    def _begin_sequence(self, name: str) -> int:
        model = self.model
        number = self.index.last_id + 1
        assert self.index.default is not None
        self.log_records([SequenceInfo(number, name, model.hash, self.index.default).record()])
        return number

    # -- the log -----------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take in what a writer in another process has committed."""
        with self.lock:
            if self._closed:
                raise StoreClosed(f"{self.path} is closed")
            if self._failure is not None:
                raise self._failure
            if self._writers is not None:
                return
            try:
                self._follow()
            except BaseException as error:  # records may be missing from the index now, DROPs among them
                broken = f"{self.path}: following the log failed, open it again: {error}"
                self._failure = error if isinstance(error, KvcodecError) else FormatError(broken)
                raise

    def _follow(self) -> bool:
        """Take in what the log has beyond what is known; whether there was anything."""
        news = self.log.follow()
        if news.jumped:
            self._reload()
            return True
        self._enter(news.fresh)
        self.index.move(news.moved)
        return len(news.fresh) + len(news.moved) > 0

    def _reload(self) -> None:
        """Read the log anew: a writer erased blocks before they were read."""
        before = self.index
        self._load(self.log.recovery, resume=False)
        self.index.dictionaries.adopt(before.dictionaries)
        for number, sequence in list(self._sequences.items()):
            if number in self.index.sequences:
                sequence.rebind(self.index.sequences[number])
            else:
                del self._sequences[number]

    def retrying(self, work: Callable[[], T]) -> T:
        """What `work` gives, done again where a writer erased a block under it."""
        while True:
            try:
                return work()
            except CorruptRecord:
                with self.lock:
                    if self._closed or self._writers is not None or self._failure is not None or not self._follow():
                        raise

    def sync(self) -> None:
        """Everything appended so far is durable when this returns."""
        with self.lock:
            writer = self.check_writable()
            try:
                self._log_open_rows()
            finally:
                writer.sync()

    def _log_open_rows(self) -> None:
        """Log the open rows of all sequences; if some find no room, the others still do."""
        failures = []
        for sequence in self._sequences.values():
            try:
                sequence.log_open_rows()
            except NoSpace as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def check_writable(self) -> LaneWriter:
        """The writer of what is appended. Raises StoreClosed if there is none."""
        if self._closed or self._writers is None:
            raise StoreClosed(f"{self.path} is {'closed' if self._closed else 'open for reading only'}")
        self.device.image.fd()
        return self._writers.fresh

    def log_records(self, records: Sequence_[Record]) -> None:
        """Commit records to the log and enter them in the index."""
        writer, unit = self.check_writable(), self.device.geometry.unit_bytes
        self._cleaner.keep_room(sum(record.size for record in records) // unit + 1)
        self._enter(writer.append(records))

    def grow(self) -> None:
        """Let the sets grow for which it is time. Where the device has no room for that, they stay as they are."""
        for step in self.growing.grow(self.log_records, self.step_limit) if self.growing else ():
            for sequence in self._sequences.values():
                sequence.hand_over(step.parent.hash, step.child)

    def _enter(self, located: Sequence_[Located]) -> None:
        self.index.enter(located)
        if self.will_write:
            self.known.add(located)

    @property
    def frames(self) -> int:
        """Frames in the log."""
        return sum(writer.end().frames for writer in self._writers) if self._writers else self.log.report.frames

    @property
    def step_limit(self) -> int:
        """Bytes of the body of a STEP record that leave room for others in an erase block."""
        return max(1, (self.device.geometry.block_bytes - FRAME_OVERHEAD) // _STEP_SHARE)

    def map(self, work: Callable[[K], T], keys: Sequence_[K]) -> list[T]:
        """`work` for each key, in parallel where the store has threads; the results in the keys' order."""
        if self._pool is None or len(keys) < 2:
            return [work(key) for key in keys]
        return list(self._pool.map(work, keys))

    def attend(
        self,
        layer: int,
        sequences: Sequence_[Readable],
        q: Any,
        *,
        scale: float | None = None,
        window: int | None = None,
        tokens: Any = None,
        query_bits: int = 16,
        tiers: tuple[int, float] | None = None,
        return_state: bool = False,
    ) -> Any:
        """Decode attention of one layer for a batch: q (sequences, query heads, dim), a query for each sequence.

        Otherwise as Sequence.attend: (sequences, query heads, v's dim) float32, or with return_state a list of states.
        The sequences are of this store, and their layers of one shape.
        """
        from kvcodec.attention.arrays import check_bits  # whoever only reads or writes does without attention
        from kvcodec.attention.tiers import take_tiers
        from kvcodec.store.attending import check_batch, take_layer_queries

        check_bits(query_bits)
        check_batch(q, len(sequences))
        if not sequences:
            raise ShapeError("sequences: none, want one or more")
        layers = {sequence.layer(layer) for sequence in sequences}
        if len(layers) > 1:
            raise ShapeError(f"layer {layer} has {len(layers)} shapes in these sequences, want one")
        wide = take_layer_queries(q, layers.copy().pop())
        taken = None if tiers is None else take_tiers(tiers, [c for s in sequences for c in s.sparse_codes(layer)])

        def run() -> list[AttentionState]:
            return self._attend(layer, sequences, wide, window, tokens, scale=scale, query_bits=query_bits, tiers=taken)

        states = self.retrying(run)
        return states if return_state else np.stack([state.output() for state in states])

    def _attend(
        self, layer: int, sequences: Sequence_[Readable], wide: Any, window: int | None, tokens: Any, **how: Any
    ) -> list[AttentionState]:
        from kvcodec.store.attending import attend_places

        forms: list[Form] = []
        with self.lock:
            self.refresh()
            places = [sequence.find_places(layer, window, tokens, forms) for sequence in sequences]
        try:
            shape = sequences[0].layer(layer)
            states = attend_places(shape, places, forms, wide, threads=self._threads, pool=self._pool, **how)
        except LookupError as error:
            raise sequences[int(error.args[0])].lost(layer) from None
        except RuntimeError:  # the pool is gone
            if not self._closed:
                raise
            raise StoreClosed(f"{self.path} was closed meanwhile") from None
        with self.lock:
            for place in (place for found in places for place in found.read):
                self.log.check_unerased(place)
        return states

    def sync_log(self) -> None:
        """Make what is in the log durable, and leave open rows as they are."""
        self.check_writable().sync()

    def stats(self) -> Stats:
        """Bytes, ratios and wear. A writer's figures count what was programmed, not what waits for a sync."""
        with self.lock:
            self.refresh()
            return measure_store(self)
