"""What can be saved of a damaged log, in a new one: kvcodec.repair."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvcodec.bulk.chunks import Progress, no_progress
from kvcodec.bulk.new_log import clear, new_log
from kvcodec.bulk.repair_report import RepairReport
from kvcodec.bulk.shares import Shares
from kvcodec.bulk.survivors import SETS, Survivor, choose_records, find_survivor, read_copy
from kvcodec.bulk.verification import SequenceCheck
from kvcodec.bulk.verify import verify_log
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.dumps.regular_file import open_regular
from kvcodec.errors import FormatError, NoSpace, SpecError
from kvcodec.flash.device import Device
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import FRAME_OVERHEAD, HEADERS, RECORD_ALIGNMENT, Kind
from kvcodec.log.broken import records_of
from kvcodec.log.frame import Record
from kvcodec.log.located import NOWHERE, Located, join_records
from kvcodec.log.reader import Log
from kvcodec.log.recover import BadRange, Recovery
from kvcodec.log.sidecar import load_sidecar, sidecar_path, write_sidecar
from kvcodec.log.takeup import take_up
from kvcodec.store.index import LogIndex
from kvcodec.store.opening import load_dictionary

_BATCH = 256 << 10  # bytes of records that are copied at once
_MAX_BLOCKS = (1 << 32) - 1
_TALLEST = max(RECORD_ALIGNMENT.values())


def repair_log(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    dictionary: str | os.PathLike[str] | DictionarySet | None = None,
) -> RepairReport:
    """Copy all that can be read of a log into a new one, and list what could not be saved. `path` is only read.

    Every token that verify_log finds in all layers is in the new log, under its number and bit for bit, and so are
    those of records that are whole in frames that are not; one that some layer or stream has lost is evicted, or cut
    off at the end of its sequence. Where a record is lost, an older one of the same tokens stands in if the log still
    has it, which may be of other codes (raw, or those of a journal). Records are copied byte for byte; what was
    dropped, or superseded, is left behind. The device is as the old one was; it has more blocks only if the records
    need them. The new log appears under its name whole and verified, or not at all.

    overwrite: whether `out` may exist. progress: called with (done, total) in thousandths of the work. dictionary: a
    .kvdict file or a set, for a log that only names its set, or has lost it.

    Raises FormatError for a file that is no log, that holds what this version does not know, or of which no model is
    left; SpecError if `out` is `path`; LogExists, NoSpace, DeviceError, DeviceBusy if one of them has a writer.
    """
    path, out = Path(path), Path(out)
    open_regular(path).close()
    _refuse_same(path, out)
    own = None if dictionary is None else load_dictionary(dictionary)
    device = Device.open(path)
    try:
        device.image.lock(shared=True)  # blocks that a writer erases meanwhile would look like damage
        with new_log(out, overwrite=overwrite, work="repairing") as making:
            return _Repair(path, out, device, progress or no_progress, own).run(making)
    finally:
        device.close()


def _refuse_same(path: Path, out: Path) -> None:
    """Raises SpecError if the new log, or its sidecar, would take the place of the old one or of its sidecar."""
    old, new = (path, sidecar_path(path)), (out, sidecar_path(out))
    for one in new:
        if any(one.exists() and other.exists() and one.samefile(other) for other in old):
            raise SpecError(f"{out}: a repaired log can't take the place of the old one, {path}")


class _Repair:
    """One run. Phases: read the log, find what is left of each sequence, copy, verify."""

    def __init__(self, path: Path, out: Path, device: Device, tell: Progress, dictionary: DictionarySet | None) -> None:
        self.path, self.out, self.device, self._shares = path, out, device, Shares(device, tell)
        self.dictionary = dictionary
        self.log = Log(device, Recovery.SKIP_DAMAGED)
        load_sidecar(path, self.log, resume=False)
        self.index = LogIndex(self.log)
        if dictionary is not None:
            self.index.dictionaries.add(dictionary)
        self.entered: list[Located] = []
        self.misfits: list[BadRange] = []
        self.missing: list[str] = []

    def run(self, making: Path) -> RepairReport:
        self._read()
        if not self.index.models:
            raise FormatError(f"{self.path}: the log holds no model that can be read, so nothing can be saved")
        sets = self.index.dictionaries
        flawed = [basis for basis in sets.held() if sets.flaws(basis)]
        survivors = self._find_survivors()
        chosen = choose_records(self.index, self.entered, survivors, flawed)
        self._write_where_room_is(making, chosen, survivors)
        self._verify(making, survivors)
        checks = (SequenceCheck(one.index.info.name, one.tokens, one.lost) for one in survivors)
        return RepairReport(
            str(self.path), str(self.out), len(chosen), tuple(checks), tuple(self.log.report.damage),
            tuple(self.misfits), tuple(basis.hex() for basis in flawed), next(iter(self.missing), None),
        )  # fmt: skip

    def _read(self) -> None:
        """Enter all records that fit, one by one."""
        for one in self._located():
            kind = int(one.header["kind"])
            if one.place != NOWHERE and kind == Kind.FREED:
                continue
            try:
                if one.place != NOWHERE and kind not in HEADERS:
                    raise FormatError(f"record of kind {kind}")
                if kind in SETS:
                    self.log.load(one.place)  # a set is looked for by its headers: one that can't be read is not there
                self.index.enter([one])
            except FormatError as error:
                self._add_misfit(one, str(error))
            else:
                self.entered += [one] if one.place != NOWHERE else []

    def _located(self) -> list[Located]:
        """Records of all good frames, and those of lost ones that are whole; by lsn if there are any of these."""
        found = self.log.poll()
        known = {_identity(one) for one in found}
        saved = [one for walk in self.log.walks for broken in walk.broken for one in records_of(self.device, broken)]
        saved = [one for one in saved if _identity(one) not in known]
        return sorted([*found, *saved], key=lambda one: int(one.header["lsn"])) if saved else found

    def _add_misfit(self, one: Located, why: str) -> None:
        start = self.device.file_offset(one.place.block, one.place.offset)
        size = int(one.header["header_bytes"]) + int(one.header["body_bytes"])
        self.misfits.append(BadRange(start, start + size, why, "record"))

    def _find_survivors(self) -> list[Survivor]:
        """Where frames are lost, a sequence should reach as far as any of its layers still does."""
        found, indexes = [], list(self.index.sequences.values())
        for n, index in enumerate(indexes):
            end = index.length
            if self.log.report.damage:
                end = max(extents.end for extents in index.maps.values())
            share = self._shares.share(600 * n // len(indexes), 600 * (n + 1) // len(indexes))
            found.append(find_survivor(self.index, index, end, self.missing, tell=share))
        return found

    # -- the new log -------------------------------------------------------------------------------------------

    def _write_where_room_is(self, making: Path, chosen: Sequence[Located], survivors: Sequence[Survivor]) -> None:
        """Records are not split anew, so that they may need more blocks than they had."""
        drops = [record for one in survivors for record in one.drops()]
        sizes = [(int(one.header["kind"]), _size(one)) for one in chosen] + [(one.kind, one.size) for one in drops]
        most = min(_count_blocks(sizes, self.device.geometry), _MAX_BLOCKS)
        try:
            self._write(making, chosen, drops, self.device.blocks)
        except NoSpace:
            if most <= self.device.blocks:
                raise
            clear(making)
            self._write(making, chosen, drops, most)

    def _write(self, making: Path, chosen: Sequence[Located], drops: Sequence[Record], blocks: int) -> None:
        device = Device.create(making, self.device.geometry, blocks=blocks)
        try:
            log, share = Log(device), self._shares.share(600, 750)
            log.poll()
            writers = take_up(device, log)
            log.lsn, parts = self.log.lsn, list[Sequence[Located]]()
            for end, batch in _batches(chosen):
                copies = [read_copy(self.index, one) for one in batch]
                parts.append(writers.fresh.append(copies, [int(one.header["lsn"]) for one in batch]))
                share(end, len(chosen))
            if drops:
                parts.append(writers.fresh.append(drops))
            writers.fresh.witness()
            write_sidecar(making, log, [writer.end() for writer in writers], join_records(parts))
        finally:
            device.close()

    def _verify(self, making: Path, survivors: Sequence[Survivor]) -> None:
        """Raises FormatError unless the new log is clean and holds what it should."""
        share = self._shares.share(750, 1000)
        report = verify_log(making, progress=share, dictionary=self.dictionary)
        wanted = {one.index.info.name: one.length for one in survivors}
        found = {one.name: one.tokens for one in report.sequences if not one.lost}
        flaw = None if self.missing else report.error
        if flaw or report.damage or report.torn or report.orphans or found != wanted:
            raise FormatError(
                f"{self.path}: what was saved does not verify: {report.verdict}, {flaw or 'other tokens'}"
            )


def _identity(one: Located) -> tuple[int, int, int]:
    """What a record has in common with its copies alone."""
    names = one.header.dtype.names or ()
    return (
        int(one.header["lsn"]),
        int(one.header["kind"]),
        int(one.header["first_head"]) if "first_head" in names else 0,
    )


def _size(one: Located) -> int:
    return int(one.header["header_bytes"]) + int(one.header["body_bytes"])


def _batches(chosen: Sequence[Located]) -> Iterator[tuple[int, Sequence[Located]]]:
    """Records to be copied at once, each batch with the number of the record behind it."""
    start = size = 0
    for n, one in enumerate(chosen):
        size += _size(one)
        if size >= _BATCH or n + 1 == len(chosen):
            yield n + 1, chosen[start : n + 1]
            start, size = n + 1, 0


def _count_blocks(sizes: Sequence[tuple[int, int]], geometry: Geometry) -> int:
    """Blocks that records (kind, bytes) fit in for certain, none of them split."""
    first, blocks = geometry.unit_bytes + FRAME_OVERHEAD + _TALLEST, 1
    position = first
    for kind, size in sizes:
        own = size + RECORD_ALIGNMENT.get(kind, FRAME_OVERHEAD)
        if position + own + FRAME_OVERHEAD > geometry.block_bytes:
            position, blocks = first, blocks + 1
        position += own
    return blocks
