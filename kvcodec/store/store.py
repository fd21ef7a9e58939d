"""A store: one log, opened for reading, appending or anew, and the sequences in it."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Sequence_
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.errors import (
    DeviceError,
    NoSpace,
    ShapeError,
    SpecError,
    StoreClosed,
    UnknownSequence,
)
from kvcodec.layout import DropScope, RetireCause
from kvcodec.log.cleaner import Cleaner
from kvcodec.log.sidecar import write_sidecar
from kvcodec.log.takeup import Writers, check_writable, take_up
from kvcodec.store.coding import Coding
from kvcodec.store.ending import drop_record
from kvcodec.store.fitting import check_groups
from kvcodec.store.growths import check_room
from kvcodec.store.liveness import Liveness
from kvcodec.store.logged import LoggedStore
from kvcodec.store.model import Model
from kvcodec.store.pairs import check_pairs
from kvcodec.store.policy import SequenceInfo, check_name
from kvcodec.store.readable import Readable
from kvcodec.store.relaying import is_scattered
from kvcodec.store.sequence import Sequence
from kvcodec.store.set_records import set_records
from kvcodec.store.stats import Stats, measure_store

if TYPE_CHECKING:
    from kvcodec.attention.state import AttentionState
    from kvcodec.attention.strips import Form
    from kvcodec.store.attending import Queried

K = TypeVar("K")
T = TypeVar("T")
_DEAD_SHARE = 0.02  # of a block that is worth cleaning it when a log is compacted


class Store(LoggedStore):
    """An open log. Use `open_store` (kvcodec.open); close it, or use it as a context manager.

    Attributes: model, path, log (with `report` of what recovery met). One process writes, any number reads, and a
    reader follows a writer live. Every method may be called from many threads.
    """

    # -- opening and closing -----------------------------------------------------------------------------------

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
        if policy != self.index.default:
            check_groups(policy, own, self.device.geometry)
        check_writable(self.log)
        if self.device.complete_last_unit():
            self._reload()
        self._writers = take_up(self.device, self.log)
        for sequence in self.index.sequences.values() if len(self.log.freed) else ():
            sequence.forget_steps()
        keeper = Liveness(self.index, self.known.table, self.known.add, self.known.forget)
        self._cleaner = Cleaner(self.device, self.log, self._writers, keeper)
        if self.device.faults is not None and not self.index.models:
            bad = self.device.faults.bad_blocks(self.device.blocks)
            if bad:
                self._cleaner.retire(dict.fromkeys(bad, RetireCause.FACTORY))
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

    def close(self) -> None:
        """Make everything durable (a writer), write the index sidecar, and let go of the file."""
        with self.lock:
            if self._closed:
                return
            try:
                if (writers := self._writers) is not None:
                    with self._followed_by(lambda: self._end(writers)):
                        self._log_open_rows()
                        self._log_uses()
            finally:
                self._let_go()

    def _end(self, writers: Writers) -> None:
        """Make what is in the log durable, and write the sidecar."""
        self._witness(writers)
        if self._failure is None:
            write_sidecar(self.path, self.log, [writer.end() for writer in writers], self.known.ordered())

    def _log_uses(self) -> None:
        """Tell the next writer in which order sequences were used, if there is room: no sequence is worth that."""
        records = self.cap.records(self.index) if self.cap is not None else []
        assert self._writers is not None
        with self._writers.unless_full(), self.dropping_none():
            if records:
                self.log_records(records)

    def _witness(self, writers: Writers) -> None:
        assert self._cleaner is not None
        for writer in writers:
            writer.witness()
        if self._cleaner.settle_failures():
            for writer in writers:
                writer.witness()

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
        """Close it. Where the device has failed, that is the error, not what comes of closing it then."""
        with self._after_a_failure() if isinstance(value, DeviceError) else contextlib.nullcontext():
            self.close()

    @contextlib.contextmanager
    def _followed_by(self, work: Callable[[], None]) -> Iterator[None]:
        """Do some work behind what is done meanwhile, whatever comes of that: no room for it, say."""
        try:
            yield
        except BaseException:
            with self._after_a_failure():
                work()
            raise
        work()

    def _after_a_failure(self) -> contextlib.AbstractContextManager[None]:
        """Where a write has failed already, that none can follow it is no error of its own."""
        failed = self._writers is not None and any(writer.has_failed for writer in self._writers)
        return contextlib.suppress(DeviceError) if failed else contextlib.nullcontext()

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
            self.log_change(drop_record(number, DropScope.SEQUENCE))
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
            number = self._next_id()
            record = replace(info, id=number, name=new, fork=(info.id, length)).record()
            self.log_change(record, check=lambda: parent.check_servable(length))
            return self.sequence(new)

    def compact(self, progress: Callable[[int, int], None] = lambda _done, _all: None) -> int:
        """Clean every block of which a share is dead, so that the file is as small as it gets; how many were erased.
        Open rows that were written a step at a time are laid together before.

        progress: called with blocks that are done and those that are known to be wanted. Raises NoSpace.
        """
        with self.lock:
            self.check_writable()
            assert self._cleaner is not None
            assert self._writers is not None
            with self._writers.unless_full():
                self._log_open_rows()
            with self._writers.compacting(), self.dropping_none():
                self._lay_anew()
                done = self._cleaner.clean_all(_DEAD_SHARE, progress)
            self._log_open_rows()  # for which there was no room before
            return done

    def _lay_anew(self) -> None:
        for number, index in list(self.index.sequences.items()):
            if not is_scattered(index):
                continue
            known = number in self._sequences
            assert self._writers is not None
            with self._writers.unless_full():  # if it is, they stay as they are
                self.sequence(index.info.name).lay_anew()
            if not known:
                self._sequences.pop(number, None)

    def scrub(self) -> int:
        """Read all blocks of a device whose reads fail (`faults=`), and clean those in which soon more bits will have
        flipped than can be corrected; how many. Raises NoSpace.
        """
        with self.lock:
            self.check_writable()
            assert self._cleaner is not None
            return self._cleaner.scrub()

    def sequences(self) -> list[str]:
        """Names of all sequences, in the order in which they were begun."""
        with self.lock:
            self.refresh()
            return list(self.index.by_name)

    def __iter__(self) -> Iterator[Sequence]:
        return map(self.sequence, self.sequences())

    def _begin_sequence(self, name: str) -> int:
        model = self.model
        number = self._next_id()
        assert self.index.default is not None
        self.log_records([SequenceInfo(number, name, model.hash, self.index.default).record()])
        return number

    def _next_id(self) -> int:
        """An id that no sequence ever had. A log that was cleaned may not know all of them any more, but each sequence
        began with a record, whose lsn is not below its id.
        """
        return max(self.index.last_id, self.log.lsn if len(self.log.freed) else 0) + 1

    def sync(self) -> None:
        """Everything appended so far is durable when this returns."""
        with self.lock:
            self.check_writable()
            with self._followed_by(self.sync_log):
                self._log_open_rows()

    def _log_open_rows(self) -> None:
        """Log the open rows of all sequences; if some find no room, the others still do."""
        failures = []
        for number, sequence in list(self._sequences.items()):
            if number not in self._sequences:  # dropped for those before it
                continue
            try:
                sequence.log_open_rows()
            except NoSpace as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def grow(self) -> None:
        """Let the sets grow for which it is time. Where the device has no room for that, they stay as they are."""
        for step in self.growing.grow(self.log_records, self.step_limit) if self.growing else ():
            for sequence in self._sequences.values():
                sequence.hand_over(step.parent.hash, step.child)

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
        position: int | Sequence_[int] | None = None,
        query_bits: int = 16,
        tiers: tuple[int, float] | None = None,
        return_state: bool = False,
    ) -> Any:
        """Decode attention of one layer for a batch: q (sequences, query heads, dim), a query for each sequence.

        Otherwise as Sequence.attend: (sequences, query heads, v's dim) float32, or with return_state a list of states.
        position: that of all queries, or of each. The sequences are of this store, and their layers of one shape.
        """
        from kvcodec.attention.arrays import check_bits  # whoever only reads or writes does without attention
        from kvcodec.attention.tiers import take_tiers
        from kvcodec.store.attending import check_batch, take_layer_queries, take_queried

        check_bits(query_bits)
        check_batch(q, len(sequences))
        asked = take_queried(sequences, position)
        if not sequences:
            raise ShapeError("sequences: none, want one or more")
        layers = {sequence.layer(layer) for sequence in sequences}
        if len(layers) > 1:
            raise ShapeError(f"layer {layer} has {len(layers)} shapes in these sequences, want one")
        wide = take_layer_queries(q, layers.copy().pop())
        taken = None if tiers is None else take_tiers(tiers, [c for s in sequences for c in s.sparse_codes(layer)])

        def run() -> list[AttentionState]:
            return self._attend(layer, asked, wide, window, tokens, scale=scale, query_bits=query_bits, tiers=taken)

        states = self.retrying(run)
        return states if return_state else np.stack([state.output() for state in states])

    def _attend(
        self, layer: int, asked: Sequence_[Queried], wide: Any, window: int | None, tokens: Any, **how: Any
    ) -> list[AttentionState]:
        from kvcodec.store.attending import attend_places

        forms: list[Form] = []
        with self.lock:
            self.refresh()
            places = [own.find_places(layer, window, tokens, position, forms) for own, position in asked]
        try:
            shape = asked[0].sequence.layer(layer)
            states = attend_places(shape, places, forms, wide, threads=self._threads, pool=self._pool, **how)
        except LookupError as error:
            raise asked[int(error.args[0])].sequence.lost(layer) from None
        except RuntimeError:  # the pool is gone
            if not self._closed:
                raise
            raise StoreClosed(f"{self.path} was closed meanwhile") from None
        with self.lock:
            for place in (place for found in places for place in found.read):
                self.log.check_unerased(place)
        return states

    def stats(self) -> Stats:
        """Bytes, ratios and wear. A writer's figures count what was programmed, not what waits for a sync."""
        with self.lock:
            self.refresh()
            return measure_store(self)
