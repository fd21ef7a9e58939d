"""Reading all of a log to see whether it is what was written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvcodec.bulk.chunks import Progress, no_progress
from kvcodec.bulk.salvage import find_length
from kvcodec.bulk.shares import Shares
from kvcodec.bulk.verification import SequenceCheck, Verdict, VerifyReport
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.dumps.regular_file import open_regular
from kvcodec.errors import CorruptRecord, FormatError, MissingDictionary
from kvcodec.flash.block import Block
from kvcodec.flash.device import Device
from kvcodec.flash.superblock import Superblock
from kvcodec.layout import SUPERBLOCK_BYTES, SUPERBLOCKS
from kvcodec.log.looks import looks
from kvcodec.log.reader import NOWHERE, Located, Log, Place
from kvcodec.log.recover import BadRange, Recovery
from kvcodec.log.sidecar import load_sidecar
from kvcodec.log.walk import Walk
from kvcodec.store.index import LogIndex
from kvcodec.store.opening import load_dictionary
from kvcodec.store.sequence_index import SequenceIndex

_LOOKS = 4  # at a log from which a writer erases blocks meanwhile


def verify_log(
    path: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    dictionary: str | os.PathLike[str] | DictionarySet | None = None,
) -> VerifyReport:
    """Walk all frames of a log, check every programmed unit, every record and every token. Writes nothing.

    The sidecar is not trusted for where anything lies; it only says how far the log once reached. A log that another
    process is writing may show a torn tail; where that erases blocks under this, what looks like damage is looked at
    again, up to three times. progress: called with (done, total) in thousandths of the work.
    dictionary: a .kvdict file or a set, for a log that only names its set.

    What is wrong with the log is in the report, whatever its bytes. Raises DumpError if there is no regular file to
    read, OSError if it can't be read.
    """
    path = Path(path)
    open_regular(path).close()
    own = None if dictionary is None else load_dictionary(dictionary)
    try:
        device = Device.open(path)
    except FormatError as error:
        return VerifyReport(str(path), Verdict.UNREADABLE, str(error), 0, 0, 0, (), None, (), 0, ())
    try:
        for _ in looks(device, _LOOKS):
            report = _Verification(path, device, progress or no_progress, own).run()
            if report.verdict in (Verdict.CLEAN, Verdict.TORN_TAIL):
                break
        return report
    finally:
        device.close()


class _Verification:
    """One run. Phases: superblocks, frames, units, records, dictionaries, tokens."""

    def __init__(self, path: Path, device: Device, tell: Progress, dictionary: DictionarySet | None) -> None:
        self.path, self.device, self._shares = path, device, Shares(device, tell)
        self.log = Log(device, Recovery.SKIP_DAMAGED)
        load_sidecar(path, self.log, resume=False)
        self.index = LogIndex(self.log)
        if dictionary is not None:
            self.index.dictionaries.add(dictionary)
        self.damage: list[BadRange] = []
        self.gaps: list[BadRange] = []
        self.units = self.records = self.orphans = 0
        self.error: str | None = None
        self.missing: str | None = None
        self.sequences: list[SequenceCheck] = []
        self._sizes: dict[Place, int] = {}

    def run(self) -> VerifyReport:
        try:
            self._check_superblocks()
            located = self._walk()
            self._check_units(self._shares.share(0, 300))
            self._check_records(located, self._shares.share(300, 600))
            self._check_dictionaries()
            self._check_sequences()
        except FormatError as error:  # the file shrank under the reader
            self.error = str(error)
        report = self.log.report
        verdict = Verdict.CLEAN if report.torn is None else Verdict.TORN_TAIL
        if self.damage or self.orphans or any(s.lost for s in self.sequences):
            verdict = Verdict.DAMAGED
        if self.error is None and verdict != Verdict.DAMAGED:
            self.error = self.missing
        if self.error is not None:
            verdict = Verdict.UNREADABLE
        damage = tuple(sorted(self.damage, key=lambda d: d.start))
        return VerifyReport(
            str(self.path), verdict, self.error, report.frames, self.records, self.units, tuple(self.gaps),
            report.torn, damage, self.orphans, tuple(self.sequences),
        )  # fmt: skip

    def _check_superblocks(self) -> None:
        device = self.device
        wanted = Superblock(device.uuid, device.geometry, device.blocks).encode()
        for copy in range(SUPERBLOCKS):
            start, end = copy * SUPERBLOCK_BYTES, (copy + 1) * SUPERBLOCK_BYTES
            if device.image.view(start, SUPERBLOCK_BYTES).tobytes() != wanted[start:end]:
                self.damage.append(BadRange(start, end, f"copy {copy} of the superblock", "damage"))

    def _walk(self) -> list[Located]:
        try:
            return self.log.poll()
        except FormatError as error:  # a committed frame that this reader does not understand
            self.error = str(error)
            return []
        finally:
            self.damage += self.log.report.damage
            for gap in self.log.report.gaps:
                (self.gaps if gap.kind == "gap" else self.damage).append(gap)

    def _excused(self) -> list[BadRange]:
        """Where a crash may have left units half programmed. The unit of a last frame that was durable is none."""
        torn, cursor, size = self.log.report.torn, self.log.cursor, self.device.geometry.unit_bytes
        if torn is None:
            return self.gaps
        durable = max(self.log.fresh.known_durable, cursor.durable) >= cursor.number > 0
        return [*self.gaps, replace(torn, start=torn.start + -cursor.offset % size) if durable else torn]

    def _freed_blocks(self) -> Iterator[BadRange]:
        """Blocks that a crash may have left half erased; none where frames are lost that may have been in them."""
        if self.log.report.damage:
            return
        wanted = {block.number for walk in self.log.walks for block in walk.blocks.in_use() if _is_wanted(walk, block)}
        for number in sorted(set(range(self.device.present_blocks())) - wanted):
            start = self.device.file_offset(number)
            yield BadRange(start, start + self.device.geometry.block_bytes, "freed", "gap")

    def _check_units(self, tell: Progress) -> None:
        size, blocks = self.device.geometry.unit_bytes, self.device.present_blocks()
        excused = [*self._excused(), *self._freed_blocks()]
        for block in range(blocks):
            for unit in np.flatnonzero(self.device.programmed(block)).tolist():
                self.units += 1
                try:
                    self.device.check_unit(block, unit)
                except CorruptRecord:
                    start = self.device.file_offset(block, unit * size)
                    bad = BadRange(start, start + size, "spare checksum", "damage")
                    if not any(_overlap(bad, one) for one in excused):
                        self._add(bad)
            tell(block + 1, blocks)

    def _check_records(self, located: list[Located], tell: Progress) -> None:
        for n, one in enumerate(located):
            if one.place == NOWHERE:
                self.index.enter([one])
                continue
            self.records += 1
            self._sizes[one.place] = int(one.header["header_bytes"]) + int(one.header["body_bytes"])
            try:
                self.log.load(one.place)
            except FormatError as error:
                self._add(self._record_range(one.place, str(error)))
            try:
                self.index.enter([one])
            except FormatError as error:
                self.orphans += 1
                if self.orphans == 1:
                    self._add(self._record_range(one.place, str(error)))
            tell(n + 1, len(located))
        for one, why in self.index.orphans():
            self.orphans += 1
            self._add(self._record_range(one.place, why))

    def _check_dictionaries(self) -> None:
        for basis in self.index.dictionaries.held():
            for one in self.index.dictionaries.flaws(basis):
                self._add(self._record_range(one.place, f"dictionary set {basis.hex()} is not what its hash says"))

    def _check_sequences(self) -> None:
        indexes = list(self.index.sequences.values())
        for n, index in enumerate(indexes):
            share = self._shares.share(600 + 400 * n // len(indexes), 600 + 400 * (n + 1) // len(indexes))
            self.sequences.append(self._check_sequence(index, share))

    def _check_sequence(self, index: SequenceIndex, tell: Progress) -> SequenceCheck:
        """Where frames are lost, a sequence should reach as far as any of its layers still does."""
        end = index.length
        if self.log.report.damage:
            end = max(extents.end for extents in index.maps.values())
        try:
            _, lost, bad = find_length(self.index, index, end, tell=tell)
        except MissingDictionary as error:  # other sequences may do without it
            self.missing = str(error)
            return SequenceCheck(index.info.name, end, ())
        for extent, why in bad:
            for part in extent.coded.parts:
                self._add(self._record_range(part.place, why))
        return SequenceCheck(index.info.name, end, tuple(lost))

    def _record_range(self, place: Place, why: str) -> BadRange:
        start = self.device.file_offset(place.block, place.offset)
        return BadRange(start, start + self._sizes[place], why, "damage")

    def _add(self, bad: BadRange) -> None:
        """Nothing for what is known already; one range for neighbours of one kind."""
        if any(known.start <= bad.start and bad.end <= known.end for known in self.damage):
            return
        last = self.damage[-1] if self.damage else None
        if last is not None and (last.end, last.why) == (bad.start, bad.why):
            self.damage[-1] = replace(last, end=bad.end)
        else:
            self.damage.append(bad)


def _is_wanted(walk: Walk, block: Block) -> bool:
    """Whether a block is the end of its lane, or has frames that the walk accepted and that are not freed."""
    end, span = walk.cursor.block, walk.spans.get(block.generation)
    if end is not None and end.generation == block.generation:
        return True
    return span is not None and not walk.freed.covers(walk.lane, span.first, span.end)


def _overlap(one: BadRange, other: BadRange) -> bool:
    return one.start < other.end and other.start < one.end
