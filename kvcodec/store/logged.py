"""The log of a store: opened, followed, written to, cleaned."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Sequence_
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kvcodec.errors import (
    BlockErased,
    CorruptRecord,
    FormatError,
    KvcodecError,
    NoSpace,
    SpecError,
    StoreClosed,
    UnknownSequence,
)
from kvcodec.flash.device import Device
from kvcodec.layout import DropScope
from kvcodec.log.cleaner import Cleaner
from kvcodec.log.frame import Record
from kvcodec.log.located import Located, join_records
from kvcodec.log.looks import looks
from kvcodec.log.order import order_records
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import load_sidecar
from kvcodec.log.takeup import Writers
from kvcodec.log.writer import LaneWriter
from kvcodec.store.cap import Cap
from kvcodec.store.ending import drop_record, is_whole_drop
from kvcodec.store.identity import mismatch
from kvcodec.store.index import LogIndex
from kvcodec.store.known import KnownRecords
from kvcodec.store.model import Model
from kvcodec.store.records import RAW, step_limit
from kvcodec.store.sequence import Sequence

if TYPE_CHECKING:
    from kvcodec.store.growing import Growing

_LOOKS = 50  # at a log from which a writer erases blocks meanwhile

K = TypeVar("K")
T = TypeVar("T")


class LoggedStore:
    """What a store does with its log: it reads and follows it, or writes it and keeps it clean.

    Attributes: path, device, log (with `report` of what recovery met), index (what is known of the log), lock.
    """

    def __init__(self, path: Path, device: Device, recovery: Recovery, *, writable: bool, threads: int = 1) -> None:
        self.path, self.device = path, device
        self.durable_steps, self.journal = False, RAW
        self.growing: Growing | None = None
        self.cap: Cap | None = None
        self._pool = ThreadPoolExecutor(threads, "kvcodec") if threads > 1 else None
        self._threads = threads
        self.lock = threading.RLock()
        self._writers: Writers | None = None
        self._cleaner: Cleaner | None = None  # of a writer
        self._sequences: dict[int, Sequence] = {}
        self._closed = False
        self.will_write = writable
        self._failure: KvcodecError | None = None
        self._dropping_none = False
        if writable or recovery != Recovery.TORN_TAIL or not self._load_trusting(recovery):
            self._load_anew(recovery)

    def _load_trusting(self, recovery: Recovery) -> bool:
        """Read what the sidecar does not hold, and what it does with that; False where they do not make a good log."""
        try:
            self._load(recovery, resume=True)
        except FormatError:
            return False
        return True

    def _load_anew(self, recovery: Recovery) -> None:
        """Read the log alone."""
        failure: FormatError | None = None
        for _ in looks(self.device, _LOOKS):
            try:
                self._load(recovery, resume=False)
                failure = None
                if not self.log.is_damaged:
                    return
            except FormatError as error:
                failure = error
        if failure is not None:
            raise failure

    def _load(self, recovery: Recovery, *, resume: bool) -> None:
        self.log = Log(self.device, recovery)
        self.index = LogIndex(self.log)
        self.known = KnownRecords()
        trusted = load_sidecar(self.path, self.log, resume=resume)
        freed = list(self.log.freed)
        news = self.log.follow()
        if trusted and (news.jumped or list(self.log.freed) != freed):  # what it holds may count for nothing by now
            self._load(recovery, resume=False)
            return
        parts = [trusted, news.fresh, news.moved]
        copied = len(news.moved) or len(self.log.kept.blocks.in_use())
        self.index.enter(order_records(parts) if copied else join_records(parts))
        if self.will_write:
            self.known.add(join_records(parts))
        self.index.check()

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

    @property
    def frames(self) -> int:
        """Frames in the log."""
        return sum(writer.end().frames for writer in self._writers) if self._writers else self.log.report.frames

    @property
    def step_limit(self) -> int:
        """Bytes of the body of a STEP record that leave room for others in an erase block."""
        return step_limit(self.device.geometry.block_bytes)

    def check_model(self, model: Model | None) -> None:
        """Raises IdentityMismatch if the log belongs to another model, SpecError if nobody says which it is for."""
        if model is not None and self.index.models and model.hash not in self.index.models:
            raise mismatch(self.path, self.model, model)
        if model is None and not self.index.models:
            raise SpecError(f"{self.path} holds no model yet: pass model=")

    def refresh(self) -> None:
        """Take in what a writer in another process has committed."""
        with self.lock:
            if self._closed:
                raise StoreClosed(f"{self.path} is closed")
            if self._failure is not None:
                raise self._failure
            if self._writers is not None:
                return
            self._follow()

    def _follow(self) -> bool:
        """Take in what the log has beyond what is known; whether there was anything."""
        try:
            return self._take_in()
        except BaseException as error:  # records may be missing from the index now, DROPs among them
            self._give_up(error)
            raise

    def _take_in(self) -> bool:
        damage = len(self.log.report.damage)
        with contextlib.suppress(FormatError):  # as blocks look that are erased meanwhile; if not, it is raised again
            news = self.log.follow()
            if not news.jumped and len(self.log.report.damage) == damage:
                self._enter(news.fresh)
                self.index.move(news.moved)
                return len(news.fresh) + len(news.moved) > 0
        self._reload()
        return True

    def _reload(self) -> None:
        """Read the log anew, as a writer may have erased blocks before they were read."""
        before = self.index
        self._load_anew(self.log.recovery)
        self.index.dictionaries.adopt(before.dictionaries)
        for number, sequence in list(self._sequences.items()):
            if number in self.index.sequences:
                sequence.rebind(self.index.sequences[number])
            else:
                del self._sequences[number]

    def retrying(self, work: Callable[[], T]) -> T:
        """What `work` gives, done again where a writer erased a block under it; if that was another thread of this one,
        while none does anything.
        """
        while True:
            try:
                return work()
            except CorruptRecord as error:
                with self.lock:
                    if self._closed or self._failure is not None:
                        raise
                    if self._writers is not None and isinstance(error, BlockErased):
                        return work()
                    if self._writers is not None or not self._follow():
                        raise

    def check_writable(self) -> LaneWriter:
        """The writer of what is appended. Raises StoreClosed if there is none."""
        if self._closed or self._writers is None:
            raise StoreClosed(f"{self.path} is {'closed' if self._closed else 'open for reading only'}")
        if self._failure is not None:
            raise self._failure
        self.device.image.fd()
        return self._writers.fresh

    def log_records(self, records: Sequence_[Record], check: Callable[[], None] = lambda: None) -> None:
        """Commit records to the log and enter them in the index. Only what ends a sequence may take the room that is
        kept for that. Raises NoSpace, where sequences may be dropped for room too only if that could not have been
        enough, or none is left.

        check: raises what speaks against it after all, once there is room for the records: making it may have had a
        block cleaned with what they would need.
        """
        writer = self.check_writable()
        while True:
            assert self._cleaner is not None
            self._cleaner.keep_room(records)
            try:
                if not all(is_whole_drop(record) for record in records):
                    self._cleaner.check_room(records)
                check()
                located = writer.append(records)
                break
            except NoSpace:
                if not self._drop_oldest(records):
                    raise
        self._enter_own(located)
        self._settle_failures()

    def _settle_failures(self) -> None:
        """Use blocks that failed no more, once what is alive in them is elsewhere."""
        if self.device.failing and self._cleaner is not None:
            self._cleaner.settle_failures()

    def _drop_oldest(self, records: Sequence_[Record]) -> bool:
        """Drop the sequence that was used least recently, if the cap says so, it is none that these records are for or
        stand on, and they may fit then.
        """
        assert self._cleaner is not None
        if self.cap is None or not self.cap.lru or self._dropping_none:
            return False
        spared = self.cap.spared(records)
        number = self.cap.oldest(self.index, spared)
        if number is None or not self._cleaner.may_fit(records, sum(map(self._row_bytes, spared))):
            return False
        self._enter_own(self.check_writable().append([drop_record(number, DropScope.SEQUENCE)]))
        self._sequences.pop(number, None)
        return True

    @contextlib.contextmanager
    def dropping_none(self) -> Iterator[None]:
        """What is written meanwhile is not worth a sequence: it raises NoSpace, whatever the cap says."""
        before, self._dropping_none = self._dropping_none, True
        try:
            yield
        finally:
            self._dropping_none = before

    def _row_bytes(self, number: int) -> int:
        """Of all rows of a sequence, if there is one of that id."""
        sequence = self.index.sequences.get(number)
        extents = itertools.chain(*sequence.maps.values()) if sequence is not None else ()
        return sum(part.size for extent in extents for part in extent.coded.parts)

    def log_change(self, *records: Record, check: Callable[[], None] = lambda: None) -> None:
        """Commit what changes a sequence but by appending; durable at once where steps are. check: see log_records."""
        self.log_records(records, check)
        if self.durable_steps:
            self.sync_log()

    def sync_log(self) -> None:
        """Make what is in the log durable, and leave open rows as they are."""
        self.check_writable().sync()
        self._settle_failures()

    def _enter(self, located: Sequence_[Located]) -> None:
        self.index.enter(located)
        if self.will_write:
            self.known.add(located)

    def _enter_own(self, located: Sequence_[Located]) -> None:
        """Take in what this writer appended. Where that fails, it can't go on: the log says more than it knows."""
        try:
            self._enter(located)
        except BaseException as error:
            self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        """Refuse all use of the store from here on."""
        broken = f"{self.path}: following the log failed, open it again: {error}"
        self._failure = error if isinstance(error, KvcodecError) else FormatError(broken)

    def touch(self, number: int) -> None:
        """A sequence is used."""
        if self.cap is not None:
            self.cap.touch(number)

    def set_cap(self, cap: Cap) -> None:
        """Keep to a cap from here on."""
        self.cap = cap
        self.device.limit(cap.blocks)
