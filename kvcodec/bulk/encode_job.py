"""One run of encoding: a new log, or more sequences of an existing one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kvcodec.bulk.chunks import Progress, no_progress
from kvcodec.bulk.copy_rows import check_rows, copy_rows
from kvcodec.bulk.dump_model import NOBODY, Identity, check_same_model, dump_model
from kvcodec.bulk.encode_report import EncodeReport
from kvcodec.bulk.new_log import clear, new_log
from kvcodec.bulk.resume import check_continues, rewind
from kvcodec.bulk.selection import DumpPart, Layers, Tokens
from kvcodec.bulk.threads import thread_count
from kvcodec.dumps import open_dump
from kvcodec.errors import SpecError
from kvcodec.flash.geometry import Geometry
from kvcodec.store.model import Model
from kvcodec.store.opening import open_store
from kvcodec.store.policy import check_name
from kvcodec.store.stats import Stats
from kvcodec.store.store import Store


class Named(NamedTuple):
    """A dump, and the name that its sequence shall have."""

    dump: Path
    sequence: str


class _Surveyed(NamedTuple):
    """What a first look at a dump tells."""

    named: Named
    model: Model
    tokens: int
    layers: int

    @property
    def work(self) -> int:
        return self.tokens * self.layers


@dataclass(frozen=True)
class EncodeJob:
    """The options of encode_dump, which see. coding: those of kvcodec.open that say how rows are coded, by name."""

    log: Path
    coding: dict[str, Any]
    device: str | Geometry = "tlc"
    mapping: tuple[str, ...] = ()
    kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str | None = None
    layers: Layers = None
    tokens: Tokens = None
    overwrite: bool = False
    append: bool = False
    resume: bool = False
    threads: int | None = None
    progress: Progress | None = None
    identity: Identity = NOBODY

    def run(self, dumps: Sequence[Named]) -> tuple[EncodeReport, ...]:
        """Encode all `dumps`, whose names differ."""
        for one in dumps:
            check_name(one.sequence)
        if self.append and self.overwrite:
            raise SpecError("append and overwrite exclude each other")
        if self.resume and self.coding.get("grow"):
            raise SpecError("grow and resume exclude each other: what an interrupted session had seen is gone")
        thread_count(self.threads)
        for one in dumps:
            if self.log.exists() and one.dump.exists() and os.path.samefile(one.dump, self.log):
                raise SpecError(f"{self.log} is the dump itself; name another log")
        surveyed, resumed, stats = self._append(dumps) if self.append else self._make(dumps)
        return tuple(
            EncodeReport(str(one.named.dump), str(self.log), one.named.sequence, one.tokens, one.layers, n, stats)
            for one, n in zip(surveyed, resumed, strict=True)
        )

    # -- a new log ---------------------------------------------------------------------------------------------

    def _make(self, dumps: Sequence[Named]) -> tuple[list[_Surveyed], list[int], Stats]:
        surveyed = self._survey(dumps, None)
        with new_log(self.log, overwrite=self.overwrite, resume=self.resume) as making:
            begun = self._check_begun(making, surveyed)
            mode: dict[str, Any] = {"mode": "a"} if begun else {"mode": "w", "device": self.device}
            with _writing(self._open(making, model=surveyed[0].model, **mode)) as store:
                resumed = self._copy(store, surveyed)
            return surveyed, resumed, _measure(making)

    def _check_begun(self, making: Path, surveyed: Sequence[_Surveyed]) -> bool:
        """Whether there is a half-made log to go on with. Raises SpecError, IdentityMismatch for one of another job."""
        if not making.exists():
            return False
        with open_store(making, pursuit=self.coding.get("pursuit")) as store:
            if store.index.models:
                self._check_log(store, surveyed)
                return True
        clear(making)  # the kill came before its first record was durable
        return False

    def _check_log(self, store: Store, surveyed: Sequence[_Surveyed]) -> None:
        check_same_model(store.model, surveyed[0].model)
        geometry = Geometry.parse(self.device)
        if store.device.geometry != geometry:
            raise SpecError(f"{store.path} was begun on another device: {store.device.geometry.name}")
        names = [one.named.sequence for one in surveyed]
        if others := [name for name in store.sequences() if name not in names]:
            raise SpecError(f"{store.path} was begun with another dump, of sequence {others[0]!r}")
        for one in surveyed:
            self._check_sequence(store, one)

    # -- an existing log ---------------------------------------------------------------------------------------

    def _append(self, dumps: Sequence[Named]) -> tuple[list[_Surveyed], list[int], Stats]:
        with open_store(self.log, pursuit=self.coding.get("pursuit")) as reader:
            surveyed = self._survey(dumps, reader.model.dtype)
            for one in surveyed:
                check_same_model(reader.model, one.model)
                self._check_sequence(reader, one)
            for one in surveyed:
                with self._open_part(one.named.dump) as source:
                    check_rows(source, one.model)
        with _writing(self._open(self.log, mode="a")) as store:
            for one in surveyed:
                self._check_sequence(store, one)
            resumed = self._copy(store, surveyed)
        return surveyed, resumed, _measure(self.log)

    def _check_sequence(self, store: Store, one: _Surveyed) -> None:
        """Raises unless the store has no sequence of that name, or one that can be gone on with and shall."""
        name = one.named.sequence
        if name not in store.sequences():
            return
        if not self.resume:
            raise SpecError(
                f"{store.path}: the log holds a sequence {name!r} already; name another, or resume what was interrupted"
            )
        with self._open_part(one.named.dump) as source:
            check_continues(store, name, source, one.model, self.coding)

    # -- both --------------------------------------------------------------------------------------------------

    def _open(self, path: Path, **options: Any) -> Store:
        return open_store(path, threads=thread_count(self.threads), **self.coding, **options)

    @contextlib.contextmanager
    def _open_part(self, path: Path) -> Iterator[DumpPart]:
        with open_dump(path, mapping=self.mapping, kv_heads=self.kv_heads, head_dim=self.head_dim) as dump:
            yield DumpPart(dump, self.layers, self.tokens)

    def _survey(self, dumps: Sequence[Named], float32_as: str | None) -> list[_Surveyed]:
        """A look at every dump. Raises what opening them raises, and IdentityMismatch if their models differ."""
        surveyed = []
        for one in dumps:
            with self._open_part(one.dump) as source:
                dtype = self.dtype or (float32_as if source.dtype_id is None else None)
                model = dump_model(source, dtype, self.identity)
                self._check_streams(model, one.dump)
                surveyed.append(_Surveyed(one, model, source.tokens, len(source.layers)))
            check_same_model(surveyed[0].model, model)
        return surveyed

    def _check_streams(self, model: Model, dump: Path) -> None:
        held = {stream.name for layer in model.layers for stream in layer.streams}
        for name in ("k", "v", "c", "kr"):
            if self.coding.get(name) is not None and name not in held:
                raise SpecError(f"{dump}: {name} is to be {self.coding[name]}, and there is no such stream in it")

    def _copy(self, store: Store, surveyed: Sequence[_Surveyed]) -> list[int]:
        """Copies what is missing of every sequence; how many tokens of each were there."""
        tell, before, resumed = self.progress or no_progress, 0, []
        total = sum(one.work for one in surveyed)
        for one in surveyed:
            name = one.named.sequence
            if name in store.sequences():
                rewind(store, name)
            resumed.append(len(store.sequence(name)))

            def tell_own(done: int, _total: int, before: int = before) -> None:
                tell(before + done, total)

            with self._open_part(one.named.dump) as source:
                _check_positions(store, source)
                copy_rows(source, store, name, thread_count(self.threads), tell_own)
            before += one.work
        return resumed


def _check_positions(store: Store, source: DumpPart) -> None:
    """Raises SpecError where keys from before their rotary embedding would be coded at other positions than theirs."""
    policy = store.index.default
    for rule in policy.rules if policy is not None and source.first else ():
        spec = rule.policy.spec
        own = store.index.dictionaries.find(spec.basis) if spec.basis else None
        if own and any(d.rotation for layer in rule.layers if (d := own.find_for(spec, layer, rule.stream))):
            raise SpecError(
                f"{source.path}: tokens from {source.first} on, and {rule.stream.name.lower()} is coded as before its "
                "rotary embedding, by positions from 0 on: choose tokens that begin at 0"
            )


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
