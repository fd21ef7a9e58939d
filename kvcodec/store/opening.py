"""Opening a log: kvcodec.open."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.rows import GroupedRows
from kvcodec.errors import LogExists, SpecError
from kvcodec.flash.device import Device
from kvcodec.flash.faults import Faults
from kvcodec.flash.geometry import Geometry
from kvcodec.flash.image import device_errors
from kvcodec.layout import CodecId, StreamId
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import sidecar_path
from kvcodec.sparse_spec import MAX_DICTIONARY, MAX_GROWTHS, Pursuit
from kvcodec.spec import CodecSpec
from kvcodec.store.cap import Cap
from kvcodec.store.coding import Coding, ask
from kvcodec.store.fitting import check_groups
from kvcodec.store.growths import check_room
from kvcodec.store.model import Model
from kvcodec.store.pairs import check_pairs
from kvcodec.store.store import Store

_CAPACITY = 1 << 40


def open_store(
    path: str | Path,
    mode: str = "r",
    *,
    model: Model | None = None,
    k: str | CodecSpec | None = None,
    v: str | CodecSpec | None = None,
    c: str | CodecSpec | None = None,
    kr: str | CodecSpec | None = None,
    residual: int | Mapping[str, int] | None = None,
    sinks: int | Mapping[str, int] | None = None,
    spec: str | Path | Coding | None = None,
    dictionary: str | os.PathLike[str] | DictionarySet | None = None,
    embed: bool = True,
    pursuit: str | Pursuit | None = None,
    max_error: float | None = None,
    grow: int = 0,
    growths: int = 16,
    durability: str = "sync",
    journal: str | CodecSpec = "raw",
    device: str | Geometry = "tlc",
    capacity: int = _CAPACITY,
    cap: int | None = None,
    when_full: str = "refuse",
    faults: str | Faults | None = None,
    recovery: str | Recovery = Recovery.TORN_TAIL,
    overwrite: bool = False,
    threads: int = 1,
) -> Store:
    """Open a log.

    mode: "r" reads, and follows a writer live; "a" appends to an existing log; "w" makes a new one for `model` on
    `device` (a preset or a geometry) of `capacity` bytes, and refuses an existing file without `overwrite`.
    cap: bytes that the erase blocks in use of a log that is written may take, dead rows among them, of which a writer
    gets rid by itself. when_full: "refuse" with NoSpace what then finds no room, or "lru": drop sequences, the one that
    was used least recently first. Uses by readers in other processes do not count.
    faults: how the emulated device fails, a Faults or a text such as "seed=1,bad=0.02,program=1e-5,flips=1e-7": blocks
    that are bad from the factory (of a new log), or do not erase; units that do not program, or can't be read; bits
    that flip, and are corrected. With any of them blocks fail once they were erased as often as they are rated for.
    Blocks that fail are retired, which the log records; with too few left, WornOut.
    k, v, c, kr: codec specs of sequences begun from now on (int4/channel/g64, int4/token/g64, int4/channel/g64, raw);
    residual: newest tokens kept raw (128); sinks: first tokens kept raw for good (4), either of them a number or one
    a stream. spec: a TOML file that says all this, by layer where it wants to; arguments beside it go above it.
    dictionary: a .kvdict file, or a set of dictionaries and other codes, for `dict`, `pq` and `tcq` specs. The log
    takes it up, or with embed=False only names it: whoever opens such a log has to bring the set. pursuit: omp, ormp or
    mp (integers alone), how the writer chooses atoms (omp); the log does not say, and is read alike. max_error: a bound
    on the relative error of every vector, for such specs that say nothing of errors: "dict/s24/max0.3".
    grow: atoms that dictionaries learn, up to `growths` times, from vectors of this session that they code badly; they
    go into the log as sets that grew out of others, between two appends. Writers go on over the newest such set.
    durability: "sync" makes rows durable at `sync` and `close`, "step" before each append returns, as STEP records
    that `journal` codes (raw, or a codec with one scale a token; a crash then leaves the open rows as journaled, and a
    fork begins with them so, but for those of which an error bound is kept).
    recovery: torn-tail, absolute, point-in-time or, for reading, skip-damaged. threads: for coding layers in parallel.

    Raises SpecError, FormatError (BadMagic, TruncatedLog, CorruptRecord, …), IdentityMismatch, DeviceBusy, LogExists.

    >>> store = open_store("cache.kvlog", "w", model=Model.uniform(32, 8, 128))  # doctest: +SKIP
    """
    path = Path(path)
    recovery = Recovery.parse(recovery)
    asked = {"k": k, "v": v, "c": c, "kr": kr, "residual": residual, "sinks": sinks, "max_error": max_error}
    coding = ask(spec, asked, "open")
    journal = CodecSpec.parse(journal)
    pursuit = None if pursuit is None else Pursuit.parse(pursuit)
    own = load_dictionary(dictionary) if dictionary is not None else None
    _check_options(mode, model, durability, journal, threads)
    _check_growth(mode, grow, growths)
    if mode == "w":
        assert model is not None
        with device_errors(path, "create"):
            if not overwrite and path.exists():
                raise LogExists(errno.EEXIST, "exists already; ask for overwrite to replace it", str(path))
        policy = coding.policy(model, None, own)  # what can't be honoured is refused before a file is made
        check_pairs(policy, model, ({} if own is None else {own.hash: own}).__getitem__)
        check_room(policy, grow, ({} if own is None else {own.hash: own}).__getitem__)
        geometry = Geometry.parse(device)
        check_groups(policy, model, geometry)
        opened = Device.make(path, geometry, blocks=min(max(1, capacity // geometry.block_bytes), (1 << 32) - 1))
    else:
        opened = Device.open(path, writable=mode == "a")
    try:
        store = Store(path, opened, recovery, writable=mode != "r", threads=threads)
        store.durable_steps, store.journal = durability == "step", journal
        store.index.dictionaries.pursuit = pursuit
        if own is not None:
            store.index.dictionaries.add(own)
        if faults is not None:
            opened.fail_by(Faults.parse(faults))
        if mode != "r":
            if cap is not None:
                store.set_cap(Cap(cap, when_full, opened.geometry))
            store.begin(model, coding, own, embed=embed, grow=grow, growths=growths)
        elif model is not None:
            store.check_model(model)
        if mode == "w":
            store.sync()  # whoever opens it next, even after a crash, finds the model
            opened.image.publish(path, overwrite=overwrite)
            with contextlib.suppress(OSError):
                sidecar_path(path).unlink(missing_ok=True)
    except BaseException:
        opened.image.discard()
        raise
    return store


def load_dictionary(dictionary: str | os.PathLike[str] | DictionarySet) -> DictionarySet:
    """A set, or that of a .kvdict file. Raises FormatError."""
    if isinstance(dictionary, DictionarySet):
        return dictionary
    from kvcodec.dictionary.artefact import read_dictionary  # most logs need none

    return read_dictionary(dictionary)


def _check_growth(mode: str, grow: int, growths: int) -> None:
    if not 0 <= grow < MAX_DICTIONARY or not 1 <= growths <= MAX_GROWTHS:
        raise SpecError(f"grow is {grow} and growths {growths}, want 0 to {MAX_DICTIONARY - 1} and 1 to {MAX_GROWTHS}")
    if grow and mode == "r":
        raise SpecError("grow is for a writer: mode 'a' or 'w'")


def _check_options(mode: str, model: Model | None, durability: str, journal: CodecSpec, threads: int) -> None:
    if mode not in ("r", "a", "w"):
        raise SpecError(f"mode {mode!r}, want 'r', 'a' or 'w'")
    if mode == "w" and model is None:
        raise SpecError("mode 'w' needs model=")
    if durability not in ("sync", "step"):
        raise SpecError(f"durability {durability!r}, want 'sync' or 'step'")
    if journal.codec != CodecId.RAW:
        if durability != "step":
            raise SpecError(f"journal {journal} needs durability='step'")
        if journal.is_trained:
            raise SpecError(f"journal {journal}: want raw, or integers with one scale a token, such as int8/token/g64")
        GroupedRows(journal, StreamId.V)
    if threads < 1:
        raise SpecError(f"threads is {threads}, want 1 or more")
