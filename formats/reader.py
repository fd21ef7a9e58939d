"""Reads kvcodec logs with nothing but Python's standard library: the documents of this directory, as a program.

    python formats/reader.py LOG                                            which sequences there are
    python formats/reader.py LOG --sequence NAME --layer 0 --tokens 0:4     rows of them

It is for somebody who writes a reader in another language, and wants each rule in plain code, and for tests, which
compare it with the reader of the package. So it takes its time: it holds the whole file in memory, decodes rows one by
one, and has no index but lists. It imports nothing of the package, and shares no code with it. It is one file, so that
it can be taken along, and read from top to bottom as the documents are: device.md, frame.md, record.md, and then the
codecs.

It knows all of version 1 but the recovery mode skip-damaged, and checks what a reader has to check to stay safe and to
give right numbers; of the lists headed "A reader MUST reject" it leaves out limits on numbers that only encoders use.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import struct
import sys
from collections.abc import Collection, Iterator
from collections.abc import Sequence as SequenceOf
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

# -- errors: README.md#errors ----------------------------------------------------------------------------------------


class LogError(Exception):
    """The log is rejected."""


class BadMagic(LogError):
    """The file does not begin as a log does."""


class UnsupportedVersion(LogError):
    """A version, kind or reserved field that version 1 does not know."""


class TruncatedLog(LogError):
    """The file ends before something that it must contain."""


class CorruptRecord(LogError):
    """A checksum is wrong, or a field that no writer writes."""


class MissingDictionary(LogError):
    """Records are coded by a set that the log does not hold."""


def want(condition: object, why: str) -> None:
    """Raise CorruptRecord unless the condition holds."""
    if not condition:
        raise CorruptRecord(why)


# -- conventions: README.md#conventions ------------------------------------------------------------------------------


class Layout:
    """A `struct:` table of the documents: names and types of fields that follow each other without holes."""

    def __init__(self, fields: str) -> None:
        pairs = [field.split(":") for field in fields.split()]
        self.names = [name for name, _ in pairs]
        self._struct = struct.Struct("<" + "".join(kind for _, kind in pairs))
        self.size = self._struct.size

    def read(self, data: bytes, at: int = 0) -> Fields:
        """The fields of the struct at byte `at`. Raises TruncatedLog."""
        if at + self.size > len(data):
            raise TruncatedLog(f"{self.size} bytes wanted at byte {at}, {len(data) - at} are there")
        return Fields(zip(self.names, self._struct.unpack_from(data, at), strict=True))


class Fields(dict[str, Any]):
    """Fields of a struct by name, also as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def align(x: int, n: int) -> int:
    """The least multiple of n that is not below x."""
    return -(-x // n) * n


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC = _crc_table()


def crc32c(data: bytes, seed: int = 0) -> int:
    """The checksum of `data`, going on from that of what came before: README.md#checksum."""
    table, value = _CRC, seed ^ 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


VERSION = 1
COUNT_LIMIT = 1 << 62
TOKEN_LIMIT = 1 << 48

# -- device.md: superblocks, blocks, spare slots ---------------------------------------------------------------------

SUPERBLOCK = Layout(
    "magic:8s version:H copy:H byte_order:I uuid:16s page_bytes:I unit_bytes:I block_bytes:I blocks:I rated_cycles:I "
    "read_ns:I program_ns:I erase_ns:I name:16s reserved:44s crc:I"
)
SPARE_SLOT = Layout("crc:I first_frame:H lane:H generation:Q")
BLOCK_HEADER = Layout(
    "magic:I block:I generation:Q erase_count:Q programmed_bytes:Q host_bytes:Q framed_bytes:Q compacted_bytes:Q "
    "lane:B reserved:3s crc:I"
)
FRESH, KEPT = 0, 1
NO_FRAME = 0xFFFF
UNITS_ASKED = 16  # for the generation of a block whose header is damaged


def read_superblock(data: bytes) -> Fields:
    """The first good copy; what is wrong with copy 0 if neither is: device.md#superblock."""
    failure = None
    for copy in range(2):
        try:
            return _read_copy(data[4096 * copy : 4096 * (copy + 1)], copy)
        except LogError as error:
            failure = failure or error
    raise failure or AssertionError


def _read_copy(raw: bytes, copy: int) -> Fields:
    if raw[:8] != b"\x89KVLOG\r\n":
        raise BadMagic("not a kvcodec log")
    if len(raw) < 4096:
        raise TruncatedLog("the file ends within its superblock")
    own = SUPERBLOCK.read(raw)
    if own.byte_order != 0x0A0B0C0D or own.version != VERSION:
        raise UnsupportedVersion(f"version {own.version}, or the other byte order")
    want(own.crc == crc32c(raw[: SUPERBLOCK.size - 4]) and own["copy"] == copy, "superblock checksum")
    if any(raw[SUPERBLOCK.size :]) or any(own.reserved):
        raise UnsupportedVersion("reserved bytes of the superblock are set")
    unit, page, block = own.unit_bytes, own.page_bytes, own.block_bytes
    want(64 <= unit <= 65528 and unit % 8 == 0, f"program unit of {unit} bytes")
    want(page > 0 and page % unit == 0, f"page of {page} bytes")
    want(2 * unit <= block <= 1 << 30 and block % page == 0, f"erase block of {block} bytes")
    want(own.blocks > 0 and own.rated_cycles > 0, "no erase blocks, or no cycles")
    name = own.name.rstrip(b"\0")
    want(b"\0" not in name and _is_text(name), "name of the device")
    return own


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


class Device:
    """The file as erase blocks of program units: device.md."""

    def __init__(self, path: Path) -> None:
        self.file = path.read_bytes()
        self.superblock = read_superblock(self.file)
        self.uuid, self.unit = self.superblock.uuid, self.superblock.unit_bytes
        self.units = self.superblock.block_bytes // self.unit
        self.spare_area = align(16 * self.units, 4096)
        self.stride = self.spare_area + align(self.superblock.block_bytes, 4096)
        reached = -(-(len(self.file) - 8192) // self.stride)
        found = (self._find_block(number) for number in range(min(reached, self.superblock.blocks)))
        self._in_use = sorted((block for block in found if block), key=lambda block: block.generation)

    def blocks(self, lane: int) -> list[Block]:
        """Those of a lane that are in use, in the order in which the lane filled them."""
        return [block for block in self._in_use if block.lane == lane]

    def _find_block(self, number: int) -> Block | None:
        """None if nothing of it is programmed, or no unit that is looked at is good: then it has no place."""
        block = Block(self, number)
        if not any(block.programmed):
            return None
        try:
            block.check_header()
        except CorruptRecord:
            units = [unit for unit, programmed in enumerate(block.programmed) if programmed][:UNITS_ASKED]
            good = [unit for unit in units if block.unit_is_good(unit)]
            if not good:
                return None
            block.generation, block.lane = block.slots[good[0]].generation, block.slots[good[0]].lane
        return block


class Block:
    """An erase block. data: its units, as the file holds them. programmed: which units are."""

    def __init__(self, device: Device, number: int) -> None:
        self.device, self.number = device, number
        start = 8192 + number * device.stride
        self.at = start + device.spare_area  # of its data in the file
        self.data = device.file[self.at : self.at + device.superblock.block_bytes]
        held = min(device.units, max(0, len(device.file) - start) // SPARE_SLOT.size)
        self.slots = [SPARE_SLOT.read(device.file, start + unit * SPARE_SLOT.size) for unit in range(held)]
        whole = len(self.data) // device.unit
        self.programmed = [unit < whole and any(slot.values()) for unit, slot in enumerate(self.slots)]
        self.generation = self.lane = 0

    def programmed_from(self, unit: int) -> bool:
        """Whether any unit from that one on is programmed."""
        return any(self.programmed[unit:])

    def unit_is_good(self, unit: int) -> bool:
        """Whether a unit is what was programmed at this place: device.md#spare-slot."""
        slot, size = self.slots[unit], self.device.unit
        place = self.device.uuid + (self.number * self.device.units + unit).to_bytes(8, "little")
        rest = struct.pack("<HHQ", slot.first_frame, slot.lane, slot.generation)
        data = self.data[unit * size : (unit + 1) * size]
        return bool(slot.lane in (FRESH, KEPT) and slot.crc == crc32c(rest, crc32c(data, crc32c(place))))

    def check_header(self) -> None:
        """Take generation and lane from unit 0: device.md#block-header. Raises CorruptRecord."""
        want(self.programmed[0] and self.unit_is_good(0), "unit of a block header")
        own = BLOCK_HEADER.read(self.data)
        want(own.magic == 0x4B4C424B and own.crc == crc32c(self.data[:60]), "block header")
        want(own.lane in (FRESH, KEPT) and not any(own.reserved), "lane or reserved bytes of a block header")
        counts = own.programmed_bytes, own.host_bytes, own.framed_bytes, own.compacted_bytes
        want(max(own.generation, own.erase_count, *counts) < COUNT_LIMIT, "a count of a block header")
        slot = self.slots[0]
        known = self.number, slot.generation, slot.lane
        want((own.block, own.generation, own.lane) == known, "a block header of another place")
        self.generation, self.lane = own.generation, own.lane


# -- frame.md: good frames ------------------------------------------------------------------------------------------

FRAME_HEADER = Layout(
    "magic:I version:B type:B flags:H length:I records:I number:Q durable:Q session_start:Q session:I previous:I "
    "drops:I header_crc:I"
)
FRAME_TRAILER = Layout("length:I crc:I")
DATA_FRAMES = 1, 2  # DATA, COMPACTION


class Frame(NamedTuple):
    """A good frame: its header, the byte of the block behind it, its crc, and its records."""

    header: Fields
    end: int
    crc: int
    records: list[Record]


def read_frame(block: Block, at: int) -> Frame | None:
    """The frame at byte `at` of a block, or None if there is none that is good: frame.md#a-good-frame.

    What was committed and yet is impossible is rejected, in every recovery mode.
    """
    data, unit = block.data, block.device.unit
    if at + FRAME_HEADER.size + FRAME_TRAILER.size > len(data):
        return None
    own = FRAME_HEADER.read(data, at)
    magic = (0x4B46524D + block.generation * 0x9E3779B1) & 0xFFFFFFFF
    if own.magic != (0x4B46524D if magic in (0, 0xFFFFFFFF) else magic):
        return None
    if own.header_crc != crc32c(data[at : at + FRAME_HEADER.size - 4], crc32c(block.device.uuid)):
        return None
    end = at + own.length
    if own.length < 64 or own.length % 8 or end > len(data):
        return None
    trailer = FRAME_TRAILER.read(data, end - FRAME_TRAILER.size)
    crc = crc32c(data[at + FRAME_HEADER.size : end - 4], own.header_crc)
    if (trailer.length, trailer.crc) != (own.length, crc):
        return None
    if not all(block.programmed[at // unit : (end - 1) // unit + 1]):
        return None
    if own.version != VERSION or own.flags:
        raise UnsupportedVersion(f"frame of version {own.version}, flags {own.flags}")
    want(own.durable < own.number < COUNT_LIMIT and 1 <= own.session_start <= own.number, "numbers of a frame")
    if own.type not in DATA_FRAMES and not own.type & 0x80:
        raise UnsupportedVersion(f"frame of type {own.type}")
    records = read_records(block, at, end, own.records) if own.type in DATA_FRAMES else []
    return Frame(own, end, crc, records)


def read_records(block: Block, start: int, end: int, count: int) -> list[Record]:
    """The records of a frame: frame.md#alignment."""
    found, position, last = [], start + FRAME_HEADER.size, end - FRAME_TRAILER.size
    for _ in range(count):
        starts = align(position, 8), align(position, 64)  # the kind, at byte 4, is never 0
        at = next((p for p in starts if p + RECORD.size <= last and block.data[p + 4]), None)
        if at is None or any(block.data[position:at]):
            raise CorruptRecord("no record where a frame counts one, or bytes before it")
        record = Record(block, at, last)
        want(record.header.kind not in WIDE_KINDS or at % 64 == 0, "a record that is not aligned")
        position = record.end
        found.append(record)
    want(last - position < 8 and not any(block.data[position:last]), "bytes after the last record of a frame")
    return found


# -- frame.md: lanes, the chain, recovery ----------------------------------------------------------------------------

TORN_TAIL, ABSOLUTE, POINT_IN_TIME = "torn-tail", "absolute", "point-in-time"


Run = tuple[int, int]  # first frame, and the one behind the last


class Freed:
    """Numbers of frames that are gone on purpose, by lane: what FREED records say. unerased: blocks that did not erase,
    as RETIRED records say.
    """

    def __init__(self) -> None:
        self._runs: dict[int, list[Run]] = {FRESH: [], KEPT: []}
        self.unerased: set[int] = set()

    def copy(self) -> Freed:
        """The same, to be added to."""
        out = Freed()
        out._runs = {lane: list(runs) for lane, runs in self._runs.items()}
        return out

    def learn(self, frame: Frame) -> None:
        """Take in the FREED and RETIRED records of a frame of lane KEPT: record.md#freed, record.md#retired."""
        for record in frame.records:
            if record.header.kind == RETIRED:
                self.unerased.update(read_unerased(record))
            if record.header.kind == FREED:
                for lane, first, count in read_runs(record):
                    self._runs[lane].append((first, first + count))

    def covers(self, lane: int, first: int, end: int) -> bool:
        """Whether all frames first … end - 1 are named."""
        return self.end(lane, first) >= end

    def end(self, lane: int, first: int) -> int:
        """The first frame from that one on that is not named."""
        for start, stop in sorted(self._runs[lane]):
            first = stop if start <= first < stop else first
        return first


class Walk:
    """The walk along the chain of one lane: frame.md#recovery, whose numbers and letters stand in the comments.

    vouched: S, the frame number that the sidecar vouches for. jumps: frames that were passed over, as first number and
    the one behind the last; in lane KEPT before any FREED record is known, but for those that are `refused`.
    """

    def __init__(
        self, device: Device, lane: int, freed: Freed, vouched: int, mode: str, refused: Collection[Run] = ()
    ) -> None:
        self.device, self.lane, self.freed, self.mode, self.refused = device, lane, freed, mode, refused
        self.blocks = [b for b in device.blocks(lane) if lane == KEPT or b.number not in freed.unerased]
        self.here, self.at = -1, 0  # the block where the walk stands, and the byte in it
        self.number = self.crc = self.durable = 0  # c, its crc, and D
        self.vouched = vouched
        self.jumps: list[Run] = []

    def frames(self) -> Iterator[Frame]:
        """The frames of the log. Raises CorruptRecord where the mode says so."""
        while (frame := self._next_frame()) is not None:
            self.number, self.crc, self.at = frame.header.number, frame.crc, frame.end
            self.durable = max(self.durable, frame.header.durable)
            yield frame

    def _next_frame(self) -> Frame | None:
        if self._at_end():
            if self.vouched > self.number or self._names_next():
                self._damage("the log ends before a frame that was durable")
            return None
        frame = read_frame(self.blocks[self.here], self.at) if self.here >= 0 else None
        if frame is not None and self._continues(frame):  # 3
            return frame
        return self._pass_flaw()

    def _at_end(self) -> bool:
        """Go over padding and to the next block; whether nothing but headers is programmed from there on: 1, 2."""
        while True:
            if self.here >= 0:
                self._skip_padding(self.blocks[self.here])
                if self.blocks[self.here].programmed_from(self.at // self.device.unit):
                    return False
            behind = self.blocks[self.here + 1 :]
            if not any(block.programmed_from(1) for block in behind):
                return True
            first = read_frame(behind[0], self.device.unit) if behind[0].programmed_from(1) else None
            if first is None or not (self._continues(first) or self._jump(first)):
                return False
            self.here, self.at = self.here + 1, self.device.unit

    def _skip_padding(self, block: Block) -> None:
        rest = -self.at % self.device.unit
        padding = block.data[self.at : self.at + rest]
        if len(padding) == rest and not any(padding):
            self.at += rest

    def _continues(self, frame: Frame) -> bool:
        return bool(frame.header.number == self.number + 1 and frame.header.previous == self.crc)

    def _jump(self, frame: Frame) -> bool:
        """Pass over frames that are gone on purpose, up to that one; False if they are not."""
        first, end = self.number + 1, frame.header.number
        if end <= first or (first, end) in self.refused:
            return False
        if self.lane == FRESH and not self.freed.covers(self.lane, first, end):
            return False
        self._expect(frame)
        return True

    def _expect(self, frame: Frame) -> None:
        """Pass over what is in front of a frame."""
        self.jumps.append((self.number + 1, frame.header.number))
        self.number, self.crc = frame.header.number - 1, frame.header.previous

    def _names_next(self) -> bool:
        """Whether a FREED record names frame n: then it was durable, and so was one behind it."""
        return self.lane == FRESH and self.freed.covers(FRESH, self.number + 1, self.number + 2)

    def _pass_flaw(self) -> Frame | None:
        """4: the frame to go on at; None at a torn tail, where the log ends."""
        later = list(self._later_frames())
        for place, frame in later:  # 4.1
            if self._continues(frame):
                is_gap = frame.header.session_start == frame.header.number
                want(is_gap or self.mode != ABSOLUTE, "damage: padding is not zeros")
                self.here, self.at = place
                return frame
        for end in self._ends(later):  # 4.2
            for place, frame in later:
                if frame.header.number == end and place[0] > self.here and is_alive(place, frame, later):
                    self._expect(frame)
                    self.here, self.at = place
                    return frame
        known = max(self.durable, self.vouched, *(frame.header.durable for _, frame in later), 0)
        if known <= self.number and not self._names_next():  # 4.3
            want(self.mode != ABSOLUTE, "torn tail")
            return None
        self._damage(f"frame {self.number + 1} had been durable and is lost")  # 4.4
        return None

    def _ends(self, later: list[tuple[tuple[int, int], Frame]]) -> list[int]:
        """What m may be, as far as each listed frame says, the greatest first."""
        n, told = self.number + 1, self.freed.copy()
        ends = {told.end(self.lane, n)}
        for (index, at), frame in later if self.lane == KEPT else ():
            self._learn_from_unit(told, self.blocks[index], at, frame)
            ends.add(told.end(self.lane, n))
        return sorted((end for end in ends if end > n and (n, end) not in self.refused), reverse=True)

    def _learn_from_unit(self, told: Freed, block: Block, at: int, frame: Frame | None) -> None:
        """Add FREED records of a frame that begins at byte `at`, and of those behind it that begin in its unit."""
        unit = at // self.device.unit
        while frame is not None:
            told.learn(frame)
            frame = read_frame(block, frame.end) if frame.end // self.device.unit == unit else None

    def _damage(self, why: str) -> None:
        want(self.mode == POINT_IN_TIME, f"damage: {why}")

    def _later_frames(self) -> Iterator[tuple[tuple[int, int], Frame]]:
        """Good frames behind this place that spare slots point at, each with its place, in log order."""
        for index, block in enumerate(self.blocks[max(0, self.here) :], max(0, self.here)):
            for unit, slot in enumerate(block.slots):
                at = unit * self.device.unit + slot.first_frame
                if slot.first_frame == NO_FRAME or not block.programmed[unit]:
                    continue
                if index == self.here and at < self.at:
                    continue
                if (frame := read_frame(block, at)) is not None:
                    yield (index, at), frame


def is_alive(place: tuple[int, int], frame: Frame, later: list[tuple[tuple[int, int], Frame]]) -> bool:
    """Whether no session that is listed behind a frame began its frames anew from there."""
    behind = (other.header for at, other in later if at > place)
    own = frame.header
    return not any(other.session != own.session and other.session_start <= own.number for other in behind)


def walk_lanes(device: Device, vouched: SequenceOf[int], mode: str) -> list[Record]:
    """The records of both lanes by lsn, of those in both the one in KEPT: frame.md#lanes.

    FREED records that explain where KEPT goes on stand behind that place. So KEPT is walked in good faith, and again
    without the jumps that nothing explains.
    """
    refused: set[Run] = set()
    while True:
        walk = Walk(device, KEPT, Freed(), vouched[KEPT], mode, refused)
        kept, freed = list(walk.frames()), Freed()
        for frame in kept:
            freed.learn(frame)
        lost = [jump for jump in walk.jumps if not freed.covers(KEPT, *jump)]
        if not lost:
            break
        refused.update(lost)
    fresh = Walk(device, FRESH, freed, vouched[FRESH], mode).frames()
    records: dict[tuple[int, int], Record] = {}
    for lane, frame in (*((FRESH, frame) for frame in fresh), *((KEPT, frame) for frame in kept)):
        if freed.covers(lane, frame.header.number, frame.header.number + 1):
            continue  # a crash left it in front of an erase, or within it: frame.md#cleaning
        for record in frame.records:
            records[record.header.lsn, record.header.get("first_head", 0)] = record  # parts of one share its lsn
    return [records[key] for key in sorted(records)]


# -- sidecar.md: what it vouches for ---------------------------------------------------------------------------------

SIDECAR = Layout("magic:8s version:I records:I uuid:16s lsn:Q body_crc:I lanes:H reserved:14s crc:I")
SIDECAR_LANE = Layout(
    "block:I offset:I generation:Q number:Q durable:Q framed_bytes:Q host_bytes:Q programmed_bytes:Q "
    "compacted_bytes:Q frames:Q frame_crc:I drops:I"
)


def read_vouched(path: Path, uuid: bytes) -> tuple[int, int]:
    """The numbers of frames of both lanes that the sidecar knows to be durable, 0 without one: sidecar.md#use."""
    try:
        data = path.with_name(path.name + ".idx").read_bytes()
        own = SIDECAR.read(data)
    except (OSError, TruncatedLog):
        return 0, 0
    good = own.magic == b"\x89KVIDX\r\n" and own.version == VERSION and own.lanes == 2 and own.uuid == uuid
    whole = len(data) == SIDECAR.size + 2 * SIDECAR_LANE.size + 144 * own.records and not any(own.reserved)
    if not (good and whole and own.crc == crc32c(data[: SIDECAR.size - 4])):
        return 0, 0
    if own.body_crc != crc32c(data[SIDECAR.size :]):
        return 0, 0
    fresh, kept = (SIDECAR_LANE.read(data, SIDECAR.size + lane * SIDECAR_LANE.size) for lane in (FRESH, KEPT))
    return fresh.durable, kept.durable


# -- record.md: headers ----------------------------------------------------------------------------------------------

MODEL, SEQUENCE, GROUP, STEP, DICTIONARY_RECORD, DROP, ROWS, CODEBOOK, FREED = range(1, 10)
WIDE_KINDS = GROUP, DICTIONARY_RECORD, CODEBOOK  # stand at multiples of 64
RETIRED = 0x81
RETIRE_CAUSES = FACTORY, NOT_ERASED, NOT_PROGRAMMED, NOT_READ = 1, 2, 3, 4
OF_NO_SEQUENCE = MODEL, DICTIONARY_RECORD, CODEBOOK, FREED, RETIRED
K, V, C, KR = range(1, 5)
STREAM_NAMES = {K: "k", V: "v", C: "c", KR: "kr"}
RAW, INT8, INT4, INT2, DICTIONARY, PRODUCT, TRELLIS = range(1, 8)
BITS = {INT8: 8, INT4: 4, INT2: 2}
NO_AXIS, BY_CHANNEL, BY_TOKEN = range(3)
SYMMETRIC, SETS, BOUNDED = 1, 2, 4
TAIL, RANGE, WHOLE_SEQUENCE, SUMMARY = range(4)
NO_HASH = bytes(16)

_COMMON = "header_crc:I kind:B version:B header_bytes:H body_bytes:I body_crc:I lsn:Q sequence:Q "
_TRAINED = "basis_hash:16s dictionary_atoms:I error_bound:H atoms:B low_atoms:B coefficient_bits:B "
_ROWS = (
    "codec:B streams:B flags:H first_layer:H layers:H first_head:H heads:H tokens:I first_token:Q all_heads:H group:H "
)
RECORD = Layout(_COMMON)
HEADERS = {
    MODEL: Layout(
        _COMMON
        + "model_hash:16s fingerprint:32s dtype:B rope_layout:B layers:H name_bytes:H shard:H shards:H reserved:6s"
    ),
    SEQUENCE: Layout(_COMMON + "model_hash:16s parent:Q fork_token:Q name_bytes:H policies:H reserved:28s"),
    GROUP: Layout(
        _COMMON + "codec:B stream:B axis:B transform:B flags:H group:H first_layer:H layers:H first_head:H heads:H "
        "head_dim:H all_heads:H tokens:I first_token:Q rows:I error_bytes:I bitmap_bytes:I position_bytes:I "
        "metadata_bytes:I code_bytes:I " + _TRAINED + "reserved:15s"
    ),
    STEP: Layout(_COMMON + _ROWS + "reserved:4s"),
    DICTIONARY_RECORD: Layout(
        _COMMON + "basis_hash:16s parent_hash:16s atoms:I first_atom:I chunk:I matrix:H matrices:H head_dim:H uses:H "
        "transform:B mean:B pairs:H reserved:36s codebooks:H grown:H"
    ),
    DROP: Layout(_COMMON + "first_token:Q end_token:Q scope:B reserved:7s summary_lsn:Q"),
    ROWS: Layout(_COMMON + _ROWS + _TRAINED + "reserved:11s"),
    CODEBOOK: Layout(
        _COMMON + "basis_hash:16s form:B reserved_form:B codebook:H codebooks:H matrices:H first_byte:I all_bytes:I "
        "reserved:64s"
    ),
    FREED: Layout(_COMMON + "runs:I reserved:28s"),
    RETIRED: Layout(_COMMON + "blocks:I reserved:28s"),
}
MODEL_LAYER = Layout(
    "first_stream:B second_stream:B first_heads:H first_dim:H second_heads:H second_dim:H reserved:H window:I "
    "rope_base:d rope_scale:d"
)
POLICY = Layout(
    "stream:B codec:B axis:B flags:B group:H first_layer:H layers:H reserved:H residual:I sinks:I reserved_too:I "
    + _TRAINED
    + "reserved_sparse:7s"
)
POSITION = Layout("position:Q visible_from:Q")
FREED_RUN = Layout("lane:I reserved:4s first_frame:Q frames:Q")
RETIRED_BLOCK = Layout("block:I cause:B reserved:3s")


class Record:
    """A record: its header, checked, and its body, which is checked when it is asked for. end: the byte behind it."""

    def __init__(self, block: Block, at: int, last: int) -> None:
        """The record at byte `at` of a block, in a frame whose records end at `last`: record.md#common-header."""
        data, own = block.data, RECORD.read(block.data, at)
        self._block, self._body = block, at + own.header_bytes
        self.end = self._body + own.body_bytes
        want(own.header_bytes >= RECORD.size, "length of a record header")
        want(self.end <= last, "a record that is longer than its frame")
        want(own.header_crc == crc32c(data[at + 4 : self._body]), "checksum of a record header")
        want(own.lsn < COUNT_LIMIT and own.sequence < COUNT_LIMIT, "lsn or sequence of a record")
        if own.version != VERSION or (own.kind not in HEADERS and not 0x80 <= own.kind < 0xFF):
            raise UnsupportedVersion(f"record of version {own.version}, kind {own.kind}")
        layout = HEADERS.get(own.kind, RECORD)
        want(own.kind not in HEADERS or own.header_bytes == layout.size, "length of a record header")
        self.header = layout.read(data, at)
        if any(self.header.get("reserved", b"")):
            raise UnsupportedVersion(f"a reserved field of a record of kind {own.kind}")
        self._check_kind()

    def _check_kind(self) -> None:
        h = self.header
        want(h.kind not in OF_NO_SEQUENCE or h.sequence == 0, f"record of kind {h.kind} of a sequence")
        if h.kind == DROP:
            is_range, is_sound = h.first_token < h.end_token <= TOKEN_LIMIT, 0 < h.summary_lsn < h.lsn
            ends = {TAIL: h.end_token == 0, RANGE: is_range, WHOLE_SEQUENCE: h.first_token == h.end_token == 0,
                    SUMMARY: is_range and is_sound}  # fmt: skip
            want(h.sequence and not h.body_bytes and h.first_token <= TOKEN_LIMIT and ends.get(h.scope), "DROP record")
            want(h.scope == SUMMARY or not h.summary_lsn, "summary_lsn of a DROP record")

    @cached_property
    def body(self) -> bytes:
        """Raises CorruptRecord if its checksum is wrong."""
        body = self._block.data[self._body : self.end]
        want(crc32c(body) == self.header.body_crc, "checksum of a record's body")
        return body

    @cached_property
    def kinds(self) -> list[list[int]]:
        """Of each head and token of a GROUP record with BOUNDED what its row is kept as: dictionary.md#bound."""
        return read_kinds(self)


def read_runs(record: Record) -> Iterator[tuple[int, int, int]]:
    """Lane, first frame and how many of each run of a FREED record: record.md#freed."""
    want(record.header.runs and len(record.body) == record.header.runs * FREED_RUN.size, "length of a FREED record")
    for at in range(0, len(record.body), FREED_RUN.size):
        run = FREED_RUN.read(record.body, at)
        want(run.lane in (FRESH, KEPT) and not any(run.reserved), "run of a FREED record")
        want(1 <= run.first_frame < COUNT_LIMIT and 1 <= run.frames < COUNT_LIMIT, "run of a FREED record")
        yield run.lane, run.first_frame, run.frames


def read_unerased(record: Record) -> Iterator[int]:
    """The blocks of a RETIRED record that did not erase: record.md#retired."""
    want(record.header.blocks and len(record.body) == record.header.blocks * RETIRED_BLOCK.size, "a RETIRED record")
    for at in range(0, len(record.body), RETIRED_BLOCK.size):
        own = RETIRED_BLOCK.read(record.body, at)
        want(own.cause in RETIRE_CAUSES and not any(own.reserved), "block of a RETIRED record")
        if own.cause == NOT_ERASED:
            yield own.block


def check_codec(h: Fields, axis: int) -> None:
    """Check what a GROUP, STEP or ROWS record or a policy says of its codec: record.md#group."""
    if h.codec not in range(RAW, TRELLIS + 1):
        raise UnsupportedVersion(f"codec {h.codec}")
    grouped, trained = h.codec in BITS, h.codec in (DICTIONARY, PRODUCT, TRELLIS)
    want(axis in ((BY_CHANNEL, BY_TOKEN) if grouped else (BY_TOKEN,) if trained else (NO_AXIS,)), f"axis {axis}")
    known = SYMMETRIC if grouped else SETS | BOUNDED if h.codec == DICTIONARY else BOUNDED if trained else 0
    want(h.flags & ~known == 0, f"flags {h.flags}")
    step = 64 if trained else 16
    want(16 <= h.group <= 4096 and h.group % step == 0 if h.codec != RAW else h.group == 0, f"group of {h.group}")
    if "basis_hash" not in h:
        return
    over, bounded = h.codec == DICTIONARY, bool(h.flags & BOUNDED)
    most = {DICTIONARY: 65536, PRODUCT: 128, TRELLIS: 512}.get(h.codec, 0)
    want((h.basis_hash != NO_HASH) == trained, "name of a set")
    want((1 if trained else 0) <= h.dictionary_atoms <= most, f"{h.dictionary_atoms} atoms, groups or bytes")
    want(h.error_bound <= (0x7FFF if over or bounded else 0) and (h.error_bound or not bounded), "error bound")
    want(1 <= h.atoms <= 32 and h.low_atoms < h.atoms if over else not (h.atoms or h.low_atoms), "atoms of a vector")
    want(h.coefficient_bits in ((4, 5, 6, 8) if over else (0,)), "bits of coefficients")


# -- record.md: models and sequences ---------------------------------------------------------------------------------


class Stream(NamedTuple):
    """A stream of a layer: `heads` rows of `dim` channels a token."""

    id: int
    heads: int
    dim: int


class Layer(NamedTuple):
    """A layer that attends to `window` tokens, 0 for all."""

    streams: list[Stream]
    window: int

    def needed(self, length: int) -> range:
        """The tokens of so long a sequence that it needs: record.md#length."""
        return range(max(0, length - self.window) if self.window else 0, length)


class Model(NamedTuple):
    """The layers of a model, and the 16-bit dtype of its cache: "bfloat16" or "float16"."""

    layers: list[Layer]
    dtype: str


def read_model(record: Record) -> Model:
    """What a MODEL record says: record.md#model."""
    h, body = record.header, record.body
    size = h.layers * MODEL_LAYER.size
    want(len(body) == size + h.name_bytes and h.name_bytes <= 255, "length of a MODEL record")
    rest = struct.pack("<32sBBHHHH6s", *(h[name] for name in HEADERS[MODEL].names[9:]))
    want(h.model_hash == hashlib.sha256(NO_HASH + rest + body).digest()[:16], "hash of a MODEL record")
    want(h.dtype in (1, 2) and h.rope_layout <= 2 and h.shard < h.shards, "fields of a MODEL record")
    want(1 <= h.layers <= 4096 and _is_text(body[size:]), "layers or name of a MODEL record")
    layers = [_read_layer(MODEL_LAYER.read(body, at)) for at in range(0, size, MODEL_LAYER.size)]
    want(any(layer.streams for layer in layers), "a model without streams")
    return Model(layers, "bfloat16" if h.dtype == 1 else "float16")


def _read_layer(own: Fields) -> Layer:
    both = [Stream(own.first_stream, own.first_heads, own.first_dim),
            Stream(own.second_stream, own.second_heads, own.second_dim)]  # fmt: skip
    streams = [stream for stream in both if stream.id]
    for stream in streams:
        want(stream.id in STREAM_NAMES, f"stream {stream.id}")
        want(1 <= stream.heads <= 4096 and 1 <= stream.dim <= 16384, "shape of a stream")
    want(all(stream in streams or stream == (0, 0, 0) for stream in both), "a shape without a stream")
    want(len({stream.id for stream in streams}) == len(streams) and own.reserved == 0, "streams of a layer")
    want(math.isfinite(own.rope_base) and math.isfinite(own.rope_scale), "rope of a layer")
    return Layer(streams, own.window)


class Extent(NamedTuple):
    """Tokens first … end - 1 of a stream are in these parts of one record; in none if they were evicted.

    stands_for: of a summary the token behind those that its rows stand for, 0 of others.
    """

    first: int
    end: int
    parts: tuple[Record, ...]
    stands_for: int = 0


def cut(extents: list[Extent], first: int, end: int) -> list[Extent]:
    """Extents without the tokens first … end - 1."""
    pieces = [(e, e.first, min(e.end, first)) for e in extents] + [(e, max(e.first, end), e.end) for e in extents]
    return sorted(e._replace(first=low, end=high) for e, low, high in pieces if low < high)


Key = tuple[int, int]  # layer and stream


class Sequence:
    """A sequence: which records hold its tokens. Records come by ascending lsn, so the last one wins: record.md#lsn."""

    def __init__(self, log: Log, header: Fields, name: str, model: Model, parent: Sequence | None) -> None:
        self.log, self.header, self.name, self.model = log, header, name, model
        keys = [(n, stream.id) for n, layer in enumerate(model.layers) for stream in layer.streams]
        self.extents: dict[Key, list[Extent]] = {key: [] for key in keys}
        if parent is not None:
            self.extents = {key: cut(own, header.fork_token, COUNT_LIMIT) for key, own in parent.extents.items()}
        self._waiting: dict[tuple[int, Key], dict[int, Record]] = {}
        self._unvouched: dict[Key, Extent] = {}  # rows of summaries before their DROP record

    def stream(self, layer: int, id_: int) -> Stream:
        """Raises CorruptRecord if the model has no such stream."""
        layers = self.model.layers
        found = [s for s in layers[layer].streams if s.id == id_] if layer < len(layers) else []
        want(found, f"the model has no stream {id_} in layer {layer}")
        return found[0]

    def add(self, key: Key, record: Record) -> None:
        """Enter what a record holds of a stream; parts count when all heads are there: record.md#parts."""
        h, parts = record.header, self._waiting.setdefault((record.header.lsn, key), {})
        alike = ["kind", "first_token", "tokens", *(["position_bytes"] if h.kind == GROUP else [])]
        want(all(h[f] == part.header.get(f) for f in alike for part in parts.values()), "parts of a record that differ")
        parts[h.first_head] = record
        ordered = [parts[first] for first in sorted(parts)]
        ends = [0, *(part.header.first_head + part.header.heads for part in ordered)]
        want(all(part.header.first_head >= end for part, end in zip(ordered, ends, strict=False)), "parts that overlap")
        if sum(part.header.heads for part in ordered) == h.all_heads:
            del self._waiting[h.lsn, key]
            whole = Extent(h.first_token, h.first_token + h.tokens, tuple(ordered))
            if h.kind == GROUP and h.position_bytes:
                self._unvouched[key] = whole
            else:
                self._lay(key, whole)

    def _lay(self, key: Key, new: Extent) -> None:
        self.extents[key] = sorted([*cut(self.extents[key], new.first, new.end), new])

    def drop(self, h: Fields) -> None:
        """A DROP record of scope TAIL, RANGE or SUMMARY: record.md#drop."""
        self._waiting.clear()
        if h.scope == SUMMARY:
            self._summarize(h)
            return
        for key in self.extents:
            if h.scope == TAIL:
                self.extents[key] = cut(self.extents[key], h.first_token, COUNT_LIMIT)
            else:
                self._lay(key, Extent(h.first_token, h.end_token, ()))

    def _summarize(self, h: Fields) -> None:
        """record.md#summaries."""
        first, end = h.first_token, h.end_token
        found = {key: own for key, own in self._unvouched.items()
                 if own.first == first and own.parts[0].header.lsn >= h.summary_lsn}  # fmt: skip
        layers = [[key for key in self.extents if key[0] == n] for n in range(len(self.model.layers))]
        for keys in layers:
            ends = {found[key].end for key in keys if key in found}
            want(len(ends) < 2 and all(own <= end for own in ends), "rows of a summary")
        for n, keys in enumerate(layers):
            if self.model.layers[n].window and not any(key in found for key in keys):
                continue
            for key in keys:
                self._lay(key, Extent(first, end, ()))
                if key in found:
                    self._lay(key, found[key]._replace(stands_for=end))
                else:
                    self.extents[key] = cut(self.extents[key], first, first + 1)
        self._unvouched.clear()

    def positions(self, layer: int) -> dict[int, tuple[int, int]]:
        """Of each token of a layer that is a row of a summary its position, and from which one it is seen."""
        held, found = self.held(layer), dict[int, tuple[int, int]]()
        for stream in self.model.layers[layer].streams:
            for extent in self.extents[layer, stream.id]:
                if extent.stands_for and extent.first < held.stop and extent.end > held.start:
                    for token, own in read_positions(extent):
                        want(found.setdefault(token, own) == own, "positions of a summary that differ")
        return found

    def hidden(self, layer: int, position: int | None = None) -> set[int]:
        """The tokens of a layer that a query at a position, behind all of them unless told, may not see."""
        held, own = self.held(layer), self.positions(layer)
        at = held.stop if position is None else position
        return {token for token in held if (own[token][1] if token in own else token) > at}

    @property
    def length(self) -> int:
        """record.md#length: a layer may have to step back behind a gap, and the others with it."""
        bound, before = COUNT_LIMIT, -1
        while bound != before:
            before = bound
            for (layer, _), extents in self.extents.items():
                bound = _held_until(extents, self.model.layers[layer].window, bound)
        return bound

    def held(self, layer: int) -> range:
        """The tokens that a layer can be asked for, those evicted among them."""
        return self.model.layers[layer].needed(self.length)

    def evicted(self, layer: int) -> list[tuple[int, int]]:
        """Ranges (first, end) of the tokens of a layer that were evicted."""
        held, stream = self.held(layer), self.model.layers[layer].streams[0]
        gone = [e for e in self.extents[layer, stream.id] if not e.parts and e.first < held.stop and e.end > held.start]
        return [(max(e.first, held.start), min(e.end, held.stop)) for e in gone]

    def find(self, key: Key, token: int) -> tuple[Record, ...]:
        """The parts of the record that holds a token. Raises CorruptRecord if none does."""
        found = [extent.parts for extent in self.extents[key] if extent.first <= token < extent.end]
        want(found and found[0], f"token {token} of {key} is not there")
        return found[0]

    def read(self, layer: int, id_: int, token: int) -> list[Row]:
        """The rows of a token, one a head."""
        stream = self.stream(layer, id_)
        return [
            decode_row(self, record, layer, stream, head, token)
            for record in self.find((layer, id_), token)
            for head in range(record.header.first_head, record.header.first_head + record.header.heads)
        ]


def _held_until(extents: list[Extent], window: int, bound: int) -> int:
    """The greatest n up to `bound` so that the `window` tokens before n are held; all before n without a window."""
    runs: list[list[int]] = []
    for extent in extents:
        if runs and runs[-1][1] == extent.first:
            runs[-1][1] = extent.end
        else:
            runs.append([extent.first, extent.end])
    for first, end in reversed(runs):
        n = min(end, bound)
        if n > first and (first == 0 or 0 < window <= n - first):
            return n
    return 0


def read_positions(extent: Extent) -> Iterator[tuple[int, tuple[int, int]]]:
    """Token number, position and first position that sees it, of each row of a summary: record.md#summaries."""
    for part in extent.parts:
        h = part.header
        for n in range(h.tokens):
            own = POSITION.read(part.body, h.error_bytes + n * POSITION.size)
            want(h.first_token <= own.position < extent.stands_for, "position of a row of a summary")
            want(own.position <= own.visible_from <= TOKEN_LIMIT, "first position that sees a row of a summary")
            if extent.first <= h.first_token + n < extent.end:
                yield h.first_token + n, (own.position, own.visible_from)


class Log:
    """A log: its sequences, by name. Raises a LogError for one that is to be rejected."""

    def __init__(self, path: str | Path, mode: str = TORN_TAIL) -> None:
        path = Path(path)
        self.device = Device(path)
        self.sets = Sets()
        self._models: dict[bytes, Model] = {}
        self._sequences: dict[int, Sequence] = {}
        self._last: dict[int, Sequence] = {}  # also of those that were dropped: their model, for records of forks
        self._orphans: set[int] = set()
        for record in walk_lanes(self.device, read_vouched(path, self.device.uuid), mode):
            self._enter(record)
        want(not self._orphans & self._sequences.keys(), "a sequence that was forked from one that is not there")

    @property
    def sequences(self) -> dict[str, Sequence]:
        """Those that are there, in the order in which they were begun."""
        return {own.name: own for own in self._sequences.values()}

    def _enter(self, record: Record) -> None:
        h = record.header
        if h.kind == MODEL:
            self._models[h.model_hash] = read_model(record)
        elif h.kind == SEQUENCE:
            self._enter_sequence(record)
        elif h.kind in (DICTIONARY_RECORD, CODEBOOK):
            self.sets.enter(record)
        elif h.kind in (GROUP, STEP, ROWS):
            want(h.sequence in self._last, f"sequence {h.sequence} was never begun")
            own = self._last[h.sequence]
            check_rows(own, record)
            for key in streams_of(record):
                own.add(key, record)
        elif h.kind == DROP and h.sequence in self._sequences:  # one of a sequence that is not there says nothing
            if h.scope == WHOLE_SEQUENCE:
                del self._sequences[h.sequence]
            else:
                self._sequences[h.sequence].drop(h)

    def _enter_sequence(self, record: Record) -> None:
        """record.md#sequence."""
        h, body = record.header, record.body
        size = h.policies * POLICY.size
        want(len(body) == size + h.name_bytes and h.name_bytes <= 1024 and _is_text(body[size:]), "SEQUENCE record")
        name = body[size:].decode()
        want(name.isprintable() and bool(name) == (h.sequence > 0), f"name {name!r} of a sequence")
        want(h.model_hash in self._models, "a sequence of a model that is not there")
        model = self._models[h.model_hash]
        policies = [POLICY.read(body, at) for at in range(0, size, POLICY.size)]
        check_policies(policies, model)
        want(h.parent < h.sequence if h.parent else not h.fork_token, "parent of a sequence")
        want(h.fork_token <= TOKEN_LIMIT, "fork of a sequence")
        if not h.sequence:
            return  # policies of sequences to come: advice to a writer
        known = self._sequences.get(h.sequence)
        if known is not None:
            same = all(known.header[f] == h[f] for f in ("model_hash", "parent", "fork_token")) and known.name == name
            want(same, f"two sequences of id {h.sequence}")
            return
        want(name not in self.sequences, f"two sequences named {name!r}")
        parent = self._sequences.get(h.parent)
        want(parent is None or parent.header.model_hash == h.model_hash, "a fork of another model")
        if h.parent and parent is None:
            self._orphans.add(h.sequence)
        self._sequences[h.sequence] = self._last[h.sequence] = Sequence(self, h, name, model, parent)


def check_policies(policies: list[Fields], model: Model) -> None:
    """Check the policies of a SEQUENCE record; each stream of each layer needs one."""
    for own in policies:
        want(not (own.reserved or own.reserved_too or any(own.reserved_sparse)), "a reserved field of a policy")
        want(own.stream in STREAM_NAMES and max(own.residual, own.sinks) < 1 << 31, "a policy")
        check_codec(own, own.axis)
    streams = [(n, stream.id) for n, layer in enumerate(model.layers) for stream in layer.streams]
    want(len(policies) <= len(streams), "more policies than streams")
    for n, id_ in streams:
        covered = any(
            own.stream == id_ and n in range(own.first_layer, own.first_layer + own.layers) for own in policies
        )
        want(covered, f"no policy for stream {id_} of layer {n}")


# -- record.md: what rows a record holds -----------------------------------------------------------------------------


def streams_of(record: Record) -> list[Key]:
    """Layers and streams whose rows a GROUP, STEP or ROWS record holds, in the order in which they stand."""
    h = record.header
    if h.kind == GROUP:
        return [(h.first_layer, h.stream)]
    ids = [id_ for id_ in range(8) if h.streams >> id_ & 1]
    return [(layer, id_) for layer in range(h.first_layer, h.first_layer + h.layers) for id_ in ids]


def check_rows(sequence: Sequence, record: Record) -> None:
    """Check the header of a GROUP, STEP or ROWS record against its model."""
    h, keys = record.header, streams_of(record)
    axis = h.axis if h.kind == GROUP else NO_AXIS if h.codec == RAW else BY_TOKEN
    check_codec(h, axis)
    want(keys, "a record of no stream")
    want(h.tokens and h.first_token + h.tokens <= TOKEN_LIMIT and h.heads, "tokens or heads of a record")
    for key in keys:
        want(h.all_heads == sequence.stream(*key).heads, f"{h.all_heads} heads")
    want(h.first_head + h.heads <= h.all_heads, "heads of a record")
    if h.kind == GROUP:
        _check_group(h, sequence.stream(*keys[0]))
        return
    trained = h.codec in (DICTIONARY, PRODUCT, TRELLIS)
    want(trained == (h.kind == ROWS) and not (trained and h.flags & BOUNDED), "codec of a STEP or ROWS record")
    size = sum(h.tokens * h.heads * row_bytes(h, sequence.stream(*key).dim) for key in keys)
    want(size == h.body_bytes, "body of a STEP or ROWS record")


def _check_group(h: Fields, stream: Stream) -> None:
    if h.transform or (h.position_bytes and h.codec != RAW) or (h.bitmap_bytes and not h.flags & BOUNDED):
        raise UnsupportedVersion("a GROUP record with a transform, positions or a bitmap")
    want(h.position_bytes in (0, align(h.rows * POSITION.size, 64)), "size of positions")
    want(h.layers == 1 and h.rows == h.tokens and h.head_dim == stream.dim, "layers, rows or dim of a GROUP record")
    stored = h.error_bytes, h.metadata_bytes, h.code_bytes
    want(stored == (align(2 * h.heads, 64), *section_bytes(h)), "sections of a GROUP record")
    before = h.error_bytes + h.position_bytes + h.bitmap_bytes
    others = h.body_bytes - before - h.heads * (h.metadata_bytes + h.code_bytes)
    if h.bitmap_bytes:
        want(h.bitmap_bytes == align(h.heads * -(-h.tokens // 4), 64), "size of a row bitmap")
        want(0 < others <= h.heads * h.tokens * max(2 * h.head_dim, int4_row_bytes(h.head_dim)), "body behind a bitmap")
    else:
        want(others == 0, "body of a GROUP record")


def section_bytes(h: Fields) -> tuple[int, int]:
    """metadata_bytes and code_bytes of a head of a GROUP record."""
    if h.codec == RAW:  # raw.md#sizes
        return 0, align(2 * h.tokens * h.head_dim, 64)
    if h.codec in BITS:  # grouped-integers.md#sections
        dim, tokens = padded(h)
        scales = dim * -(-h.tokens // h.group) if h.axis == BY_CHANNEL else tokens * -(-h.head_dim // h.group)
        return align(2 * scales, 64) * (1 if h.flags & SYMMETRIC else 2), tokens * dim * BITS[h.codec] // 8
    blocks = -(-h.tokens // 64)  # dictionary.md#sections, product.md#sections
    return 128 * blocks, 64 * blocks * (row_bytes(h, h.head_dim) - 2)


def row_bytes(h: Fields, dim: int) -> int:
    """Bytes of one row of a STEP or ROWS record."""
    if h.codec == RAW:
        return 2 * dim
    if h.codec in BITS:  # rows.md#a-row
        sides = 2 if h.flags & SYMMETRIC else 4
        return int(sides * -(-dim // h.group) + align(dim, 16) * BITS[h.codec] // 8)
    if h.codec == DICTIONARY:  # dictionary.md#a-row
        return int(2 + sum(index_bytes(h)) + -(-h.atoms * h.coefficient_bits // 8))
    return int(2 + h.dictionary_atoms)  # product.md#a-row, trellis.md#a-row


# -- numbers ---------------------------------------------------------------------------------------------------------

GREATEST = {"bfloat16": 2.0**127 * (2 - 2**-7), "float16": 65504.0, "float32": 2.0**127 * (2 - 2**-23)}


def f32(x: float) -> float:
    """A number rounded to float32. Sums and products of two float32 are rounded once so: a float has bits to spare."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def wide(bits: int) -> float:
    """The number that a bfloat16 is."""
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def narrow(x: float) -> int:
    """Bits of a finite float32 rounded to bfloat16, to nearest even."""
    bits = int(struct.unpack("<I", struct.pack("<f", x))[0])
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


class Row(NamedTuple):
    """The row of a token in a head: float32 numbers, and their bits in the dtype of the model."""

    numbers: list[float]
    bits: list[int]

    @classmethod
    def of_numbers(cls, numbers: SequenceOf[float], dtype: str) -> Row:
        """Of float32, none beyond the greatest finite number of what it is given as."""
        clipped = [[min(max(x, -GREATEST[t]), GREATEST[t]) for x in numbers] for t in ("float32", dtype)]
        if dtype == "bfloat16":
            return cls(clipped[0], [narrow(x) for x in clipped[1]])
        return cls(clipped[0], [struct.unpack("<H", struct.pack("<e", x))[0] for x in clipped[1]])

    @classmethod
    def of_bytes(cls, raw: bytes, dtype: str) -> Row:
        """Of a raw row: raw.md."""
        bits = list(struct.unpack(f"<{len(raw) // 2}H", raw))
        if dtype == "bfloat16":
            return cls([wide(x) for x in bits], bits)
        return cls(list(struct.unpack(f"<{len(bits)}e", raw)), bits)


# -- rows of records -------------------------------------------------------------------------------------------------


def decode_row(sequence: Sequence, record: Record, layer: int, stream: Stream, head: int, token: int) -> Row:
    """The row of a token in a head of a stream, from the part of a record that holds it."""
    h, dtype = record.header, sequence.model.dtype
    if h.kind == GROUP and h.codec == RAW:
        at = h.error_bytes + h.position_bytes + (head - h.first_head) * h.code_bytes
        at += (token - h.first_token) * 2 * stream.dim
        return Row.of_bytes(record.body[at : at + 2 * stream.dim], dtype)
    if h.kind == GROUP and h.codec in BITS:
        return Row.of_numbers(decode_grouped(record, head - h.first_head, token - h.first_token), dtype)
    if h.kind == GROUP and (other := read_other(record, head, token)):
        return Row.of_bytes(other, dtype) if len(other) == 2 * stream.dim else decode_int4(other, stream.dim, dtype)
    raw = take_row(sequence, record, (layer, stream.id), head, token)
    if h.codec == RAW:
        return Row.of_bytes(raw, dtype)
    if h.codec in BITS:
        return Row.of_numbers(decode_coded(raw, stream.dim, h.codec, h.group, bool(h.flags & SYMMETRIC)), dtype)
    trained = sequence.log.sets.find(h, layer, stream)
    numbers = trained.decode(raw, h)
    if isinstance(trained, Product) and trained.predicted:
        want(not h.flags & BOUNDED, "a bound on errors of V that is predicted")
        numbers = trained.add_prediction(numbers, raw, *codes_of_key(sequence, h.basis_hash, layer, head, token))
    return Row.of_numbers(turn(numbers, trained.steps, token), dtype)


def take_row(sequence: Sequence, record: Record, key: Key, head: int, token: int) -> bytes:
    """The bytes of a row as it stands by itself, of STEP and ROWS records, and of trained codes in GROUP records."""
    h = record.header
    head, token = head - h.first_head, token - h.first_token
    if h.kind == GROUP:
        return take_from_block(record, head, token)
    keys = streams_of(record)
    sizes = [row_bytes(h, sequence.stream(*own).dim) for own in keys]
    place = keys.index(key)
    at = sum(sizes[:place]) * h.tokens * h.heads + (token * h.heads + head) * sizes[place]
    return record.body[at : at + sizes[place]]


def take_from_block(record: Record, head: int, token: int) -> bytes:
    """Put a row together that lies field by field in its block of 64: dictionary.md#sections, product.md#sections."""
    h, (block, lane) = record.header, divmod(token, 64)
    size = row_bytes(h, h.head_dim)
    start = h.error_bytes + h.bitmap_bytes + head * (h.metadata_bytes + h.code_bytes)
    codes = start + h.metadata_bytes + block * 64 * (size - 2)
    if h.codec != DICTIONARY:  # 64 gains, 64 shapes; then each code of 64 rows
        side = start + 128 * block + lane
        return bytes([record.body[side], record.body[side + 64], *record.body[codes + lane :: 64][: size - 2]])
    row = bytearray(record.body[start + 128 * block + 2 * lane :][:2])
    if not h.flags & SETS:
        for _ in range(h.atoms):
            row += record.body[codes + 2 * lane :][:2]
            codes += 128
    return bytes(row + record.body[codes + lane :: 64][: size - len(row)])


# -- grouped-integers.md, rows.md ------------------------------------------------------------------------------------


def padded(h: Fields) -> tuple[int, int]:
    """D' and T': grouped-integers.md#sections."""
    return align(h.head_dim, 16), align(h.tokens, 64 if h.stream == V else 16)


def number_of(scale: int, zero: int | None, code: int, codec: int) -> float:
    """x̂ of one code, zero None with SYMMETRIC: grouped-integers.md#decoding."""
    want(0x0080 <= scale < 0x7F80, "a scale that is not a normal bfloat16")
    parts = 2 if codec == INT8 else 16
    steps = -(1 << BITS[codec] - 1) if zero is None else zero / parts
    return f32(wide(scale) * (code + steps))


def decode_grouped(record: Record, head: int, token: int) -> list[float]:
    """The row of a token in a head of a GROUP record, both counted from its first: grouped-integers.md#tiles."""
    h, body = record.header, record.body
    bits, (dim, tokens) = BITS[h.codec], padded(h)
    m, start = 32 // bits, h.error_bytes + head * (h.metadata_bytes + h.code_bytes)
    codes, zeros = start + h.metadata_bytes, start + h.metadata_bytes // 2
    out = []
    for c in range(h.head_dim):
        place = (token // h.group) * dim + c if h.axis == BY_CHANNEL else (c // h.group) * tokens + token
        if h.stream == V:  # a channel-lane tile
            row = (token // 64 * (dim // 16) + c // 16) * (64 // m) + token % 64 // m
            lane, inside = c % 16, token % m
        else:  # a token-lane tile
            row = token // 16 * (dim // m) + c // m
            lane, inside = token % 16, c % m
        code = body[codes + (row * 16 + lane) * 4 + inside % 4] >> bits * (inside // 4) & (1 << bits) - 1
        (scale,) = struct.unpack_from("<H", body, start + 2 * place)
        zero = None if h.flags & SYMMETRIC else struct.unpack_from("<h", body, zeros + 2 * place)[0]
        out.append(number_of(scale, zero, code, h.codec))
    return out


def decode_coded(raw: bytes, dim: int, codec: int, group: int, symmetric: bool) -> list[float]:
    """A row that was coded by itself: rows.md#a-row."""
    groups, bits = -(-dim // group), BITS[codec]
    scales = struct.unpack_from(f"<{groups}H", raw)
    zeros = [None] * groups if symmetric else struct.unpack_from(f"<{groups}h", raw, 2 * groups)
    codes = int.from_bytes(raw[2 * groups * (1 if symmetric else 2) :], "little")
    mask = (1 << bits) - 1
    return [number_of(scales[c // group], zeros[c // group], codes >> bits * c & mask, codec) for c in range(dim)]


# -- dictionary.md: rows that are kept otherwise ---------------------------------------------------------------------

AS_CODES, AS_INT4, AS_RAW = range(3)


def int4_row_bytes(dim: int) -> int:
    """Bytes of a row of int4/token/g32."""
    return 4 * -(-dim // 32) + align(dim, 16) // 2


def decode_int4(raw: bytes, dim: int, dtype: str) -> Row:
    """A row of int4/token/g32."""
    return Row.of_numbers(decode_coded(raw, dim, INT4, 32, False), dtype)


def read_kinds(record: Record) -> list[list[int]]:
    """Of each head and token what its row is kept as: dictionary.md#bound."""
    h = record.header
    each, bitmap = -(-h.tokens // 4), record.body[h.error_bytes : h.error_bytes + h.bitmap_bytes]
    heads = [int.from_bytes(bitmap[head * each : (head + 1) * each], "little") for head in range(h.heads)]
    want(
        all(bits >> 2 * h.tokens == 0 for bits in heads) and not any(bitmap[h.heads * each :]), "bits that are no row's"
    )
    kinds = [[bits >> 2 * token & 3 for token in range(h.tokens)] for bits in heads]
    want({kind for own in kinds for kind in own} <= {AS_CODES, AS_INT4, AS_RAW} and any(map(any, kinds)), "row bitmap")
    return kinds


def read_other(record: Record, head: int, token: int) -> bytes:
    """The bytes of a row that is kept as INT4 or raw; empty if it is kept as codes: dictionary.md#bound."""
    h = record.header
    if not h.bitmap_bytes:
        return b""
    sizes = {AS_CODES: 0, AS_INT4: int4_row_bytes(h.head_dim), AS_RAW: 2 * h.head_dim}
    kinds = [kind for own in record.kinds for kind in own]
    start = h.error_bytes + h.bitmap_bytes + h.heads * (h.metadata_bytes + h.code_bytes)
    want(start + sum(sizes[kind] for kind in kinds) == h.body_bytes, "rows behind a row bitmap")
    head, token = head - h.first_head, token - h.first_token
    place = head * h.tokens + token
    if kinds[place] != AS_CODES:
        row = take_from_block(record, head, token)
        unused = split_vector(row, h) == (0, [0] * h.atoms, [0] * h.atoms) if h.codec == DICTIONARY else not any(row)
        want(unused, "codes beside a row that is kept otherwise")
    at = start + sum(sizes[kind] for kind in kinds[:place])
    return record.body[at : at + sizes[kinds[place]]]


# -- dictionary.md: atoms, rotation ----------------------------------------------------------------------------------


def set_sizes(n: int, m: int) -> tuple[int, int]:
    """Low bits of each of m numbers below n, and bits of the whole set: dictionary.md#sets."""
    low = (n // m).bit_length() - 1 if n >= m else 0
    return low, m * low + m + (n - 1 >> low)


def tiers(h: Fields) -> list[int]:
    """How many atoms are in each tier."""
    return [h.low_atoms, h.atoms - h.low_atoms] if h.low_atoms else [h.atoms]


def index_bytes(h: Fields) -> list[int]:
    """Bytes of the indices of each tier."""
    if not h.flags & SETS:
        return [2 * count for count in tiers(h)]
    return [-(-set_sizes(h.dictionary_atoms, count)[1] // 8) for count in tiers(h)]


def read_set(raw: bytes, n: int, m: int) -> list[int]:
    """m ascending numbers below n: dictionary.md#sets."""
    bits, (low, size) = int.from_bytes(raw, "little"), set_sizes(n, m)
    high = bits >> m * low
    places = [place for place in range(high.bit_length()) if high >> place & 1]
    want(bits >> size == 0 and len(places) == m, "a set of indices")
    return [place - j << low | bits >> j * low & (1 << low) - 1 for j, place in enumerate(places)]


def split_vector(raw: bytes, h: Fields) -> tuple[int, list[int], list[int]]:
    """Scale, indices and coefficients of a row: dictionary.md#a-row."""
    indices, at = list[int](), 2
    for count, size in zip(tiers(h), index_bytes(h), strict=True):
        part = raw[at : at + size]
        indices += read_set(part, h.dictionary_atoms, count) if h.flags & SETS else struct.unpack(f"<{count}H", part)
        at += size
    want(max(indices) < h.dictionary_atoms, "an index beyond the dictionary")
    bits, b = int.from_bytes(raw[at:], "little"), h.coefficient_bits
    want(bits >> b * h.atoms == 0, "a bit behind the coefficients")
    numbers = [bits >> b * j & (1 << b) - 1 for j in range(h.atoms)]
    (scale,) = struct.unpack_from("<H", raw)
    want(scale < 0x7F80, "a scale that is negative or not finite")
    return scale, indices, [x - (1 << b) if x >> b - 1 else x for x in numbers]


@cache
def _cosine(n: int) -> int:
    return round(2**30 * math.cos(2 * math.pi * (n % 4096) / 4096))


@cache
def angle_of(position: int, step: int) -> tuple[float, float]:
    """Cosine and sine of a pair at a position, in integers but for the last line: dictionary.md#rotation."""
    phi = position * step % 2**64
    n = (phi + 2**51) // 2**52
    r = phi - n * 2**52
    c, s = _cosine(n), _cosine(n - 1024)
    delta = (r // 2**21) * 1686629713 // 2**31
    q = delta * delta // 2**41
    cosine, sine = c - s * delta // 2**40 - c * q // 2**40, s + c * delta // 2**40 - s * q // 2**40
    return f32(cosine) / 2**30, f32(sine) / 2**30


def turn(numbers: list[float], steps: SequenceOf[int], position: int) -> list[float]:
    """Numbers as the rotation has them at a position; as they are without one: dictionary.md#rotation."""
    out, pairs = list(numbers), len(steps)
    for i, step in enumerate(steps):
        c, s = angle_of(position, step)
        a, b = numbers[i], numbers[i + pairs]
        out[i], out[i + pairs] = f32(f32(a * c) - f32(b * s)), f32(f32(b * c) + f32(a * s))
    return out


class Taker:
    """Takes what stands next in some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, kind: str, count: int) -> tuple[Any, ...]:
        """`count` numbers of one type of `struct`. Raises CorruptRecord."""
        numbers = struct.Struct(f"<{count}{kind}")
        want(self.at + numbers.size <= len(self.data), "bytes of what was trained")
        self.at += numbers.size
        return numbers.unpack_from(self.data, self.at - numbers.size)

    def table(self, kind: str, rows: int, columns: int) -> list[tuple[Any, ...]]:
        """Rows of numbers of one type."""
        return [self.take(kind, columns) for _ in range(rows)]

    def uses(self, count: int) -> list[Key]:
        """Layers and streams that something is for: dictionary.md#dictionary-records."""
        found = [struct.unpack("<HBB", bytes(self.take("B", 4))) for _ in range(count)]
        want(all(stream in STREAM_NAMES and not reserved for _, stream, reserved in found), "a use of what was trained")
        return [(layer, stream) for layer, stream, _ in found]


class Dictionary:
    """Atoms of a dictionary. head: the bytes before them in a record. size: how many; dim: channels."""

    def __init__(self, h: Fields, head: bytes, atoms: bytes) -> None:
        self.head, self.data, self.dim, self.size = head, atoms, h.head_dim, len(atoms) // h.head_dim
        self.shape = h.head_dim, h.uses, h.transform, h.mean, h.pairs
        own = Taker(head)
        self.uses = own.uses(h.uses)
        self.mean = own.take("f", h.head_dim) if h.mean else (0.0,) * h.head_dim
        self.steps = own.take("Q", h.pairs)

    def hashed(self) -> bytes:
        """What the hash of its set covers of it."""
        rotation = struct.pack("<I", len(self.steps)) if self.steps else b""
        dim, uses, transform, mean, _ = self.shape
        return struct.pack("<5I", self.size, dim, uses, transform, mean) + rotation + self.head + self.data

    def decode(self, raw: bytes, h: Fields) -> list[float]:
        """Numbers of a row before they are turned: dictionary.md#decoding."""
        bits, indices, coefficients = split_vector(raw, h)
        scale, out = wide(bits), []
        atoms = [struct.unpack_from(f"<{self.dim}b", self.data, index * self.dim) for index in indices]
        for j, mean in enumerate(self.mean):
            t = sum(c * atom[j] for c, atom in zip(coefficients, atoms, strict=True))
            out.append(f32(f32(t * scale) + mean))
        return out


# -- product.md, trellis.md ------------------------------------------------------------------------------------------


def finish_shaped(sums: SequenceOf[int], gain: float, shape: float, mean: SequenceOf[float]) -> list[float]:
    """x̂ before it is turned, of t: product.md#decoding."""
    scale = wide(narrow(f32(gain * shape)))
    return [f32(f32(f32(t) * scale) + f32(gain * m)) for t, m in zip(sums, mean, strict=True)]


def weigh(numbers: SequenceOf[int], rows: SequenceOf[SequenceOf[int]]) -> list[int]:
    """Sums of rows, each times its number, exactly."""
    return [sum(n * x for n, x in zip(numbers, column, strict=True)) for column in zip(*rows, strict=True)]


def split_sides(raw: bytes) -> tuple[int, int, bytes]:
    """Gain, shape and the codes of a row: product.md#a-row."""
    want(raw[1] < 16, "a shape of 16 or more")
    return raw[0], raw[1], raw[2:]


class Product:
    """Product codes: product.md#bytes."""

    HEAD = Layout("components:H head_dim:H groups:H uses:H pairs:H budget:H predicted:H reserved:2s")

    def __init__(self, data: bytes) -> None:
        self.data, own = data, Taker(data)
        h = self.HEAD.read(data)
        want(not any(h.reserved) and 1 <= h.components <= 512 and 1 <= h.head_dim <= 1024, "head of product codes")
        want(
            1 <= h.groups <= 128 and h.uses and 2 * h.pairs <= h.head_dim and h.predicted <= 512,
            "head of product codes",
        )
        own.at, r, self.dim, self.size = self.HEAD.size, h.components, h.head_dim, h.groups
        self.uses, self.steps, self.mean = own.uses(h.uses), own.take("Q", h.pairs), own.take("f", self.dim)
        own.take("f", (r + 1) * self.dim + 2 * r)  # for encoders
        self.gains, self.shapes = ([wide(x) for x in own.take("H", count)] for count in (256, 16))
        self.ends = own.take("H", h.groups)
        want(sorted(set(self.ends)) == list(self.ends) and self.ends[-1] == r and self.ends[0] > 0, "ends of groups")
        self.basis = own.table("h", r, self.dim)
        self.predicted = h.predicted
        self.scales = [wide(x) for x in own.take("H", 16 if h.predicted else 0)]
        self.prediction = own.table("h", h.predicted, self.dim)
        self.books = own.table("b", r, 256)
        self.source = bytes(own.take("B", 16 if h.predicted else 0))
        want(own.at == len(data), "length of product codes")

    def name(self) -> bytes:
        """What `source` of codes that are predicted from these is: product.md#prediction."""
        ends, r = struct.pack(f"<{self.size}H", *self.ends), len(self.books)
        books = b"".join(struct.pack("<256b", *book) for book in self.books[:r])
        return hashlib.sha256(ends + books).digest()[:16]

    def components(self, codes: bytes) -> list[int]:
        """C[i, k(i)] of all components."""
        groups = [
            group for group, end in enumerate(self.ends) for _ in range(end - (self.ends[group - 1] if group else 0))
        ]
        return [book[codes[group]] for book, group in zip(self.books, groups, strict=True)]

    def decode(self, raw: bytes, _: Fields) -> list[float]:
        """Numbers of a row before a prediction is added and they are turned."""
        gain, shape, codes = split_sides(raw)
        sums = weigh(self.components(codes), self.basis)
        return finish_shaped(sums, self.gains[gain], self.shapes[shape], self.mean)

    def add_prediction(self, numbers: list[float], raw: bytes, keys: Product, key: bytes) -> list[float]:
        """v̂ of the x̂ and row of V, and the row of its K: product.md#prediction."""
        want(keys.name() == self.source and len(keys.books) == self.predicted, "V predicted from other product codes")
        _, shape, codes = split_sides(key)
        scale = wide(narrow(f32(self.gains[raw[0]] * self.scales[shape])))
        sums = weigh(keys.components(codes), self.prediction)
        return [f32(x + f32(f32(u) * scale)) for x, u in zip(numbers, sums, strict=True)]


def codes_of_key(sequence: Sequence, basis: bytes, layer: int, head: int, token: int) -> tuple[Product, bytes]:
    """Product codes of K, and its row, that V of the same head and token is predicted from: record.md#predicted-v."""
    parts = sequence.find((layer, K), token)
    found = [p for p in parts if head in range(p.header.first_head, p.header.first_head + p.header.heads)]
    want(found, "V is predicted from a head that K has not")
    h = found[0].header
    known = h.codec == PRODUCT and h.basis_hash == basis and not h.flags & BOUNDED
    want(known, "V is predicted from codes of K that are not there")
    codes = sequence.log.sets.find(h, layer, sequence.stream(layer, K))
    assert isinstance(codes, Product)
    return codes, take_row(sequence, found[0], (layer, K), head, token)


class Trellis:
    """Trellis codes: trellis.md#bytes."""

    HEAD = Layout("components:H head_dim:H uses:H pairs:H budget:H window:B tables:B reserved:4s")

    def __init__(self, data: bytes) -> None:
        self.data, own = data, Taker(data)
        h = self.HEAD.read(data)
        want(not any(h.reserved) and 1 <= h.components <= 512 and 1 <= h.head_dim <= 1024, "head of trellis codes")
        want(
            h.uses and 2 * h.pairs <= h.head_dim and 8 <= h.window <= 12 and 1 <= h.tables <= 8, "head of trellis codes"
        )
        own.at, r, self.dim, self.window = self.HEAD.size, h.components, h.head_dim, h.window
        self.uses, self.steps, self.mean = own.uses(h.uses), own.take("Q", h.pairs), own.take("f", self.dim)
        own.take("f", (r + 1) * self.dim + 2 * r)  # for encoders
        self.gains, self.shapes = ([wide(x) for x in own.take("H", count)] for count in (256, 16))
        self.basis = own.table("h", r, self.dim)
        tables = own.table("h", h.tables, 1 << h.window)
        self.rates = own.take("B", r)
        want(own.at == len(data) and len(set(self.rates)) == h.tables, "length or rates of trellis codes")
        want(min(self.rates) >= 1 and max(self.rates) <= min(8, h.window - 3), "rates of trellis codes")
        self.tables = [tables[sorted(set(self.rates)).index(rate)] for rate in self.rates]
        self.size = -(-sum(self.rates) // 8)

    def decode(self, raw: bytes, _: Fields) -> list[float]:
        """Numbers of a row before they are turned: trellis.md#a-row."""
        gain, shape, codes = split_sides(raw)
        n, numbers = int.from_bytes(codes, "little"), []
        want(n >> sum(self.rates) == 0, "a bit that is no component's")
        for rate, table in zip(self.rates, self.tables, strict=True):
            numbers.append(table[n & (1 << self.window) - 1])
            n >>= rate
        return finish_shaped(weigh(numbers, self.basis), self.gains[gain], self.shapes[shape], self.mean)


# -- dictionary.md: sets, and how they grow --------------------------------------------------------------------------

Trained = Dictionary | Product | Trellis
FORMS = {1: Product, 2: Trellis}  # CodebookForm
MARKS = {1: b"\xff\xff\xff\xff", 2: b"\xfe\xff\xff\xff"}
CLASSES = {DICTIONARY: Dictionary, PRODUCT: Product, TRELLIS: Trellis}
MOST_PARENTS = 64


class Set(NamedTuple):
    """What a set holds, in the order of its hash. grown: how often it grew."""

    dictionaries: list[Dictionary]
    codebooks: list[Trained]
    grown: int


class Sets:
    """The sets of a log. A set may be there in several forms, by the parent that it grew out of."""

    def __init__(self) -> None:
        self._forms: dict[bytes, dict[bytes, list[Record]]] = {}
        self._loaded: dict[bytes, Set] = {}

    def enter(self, record: Record) -> None:
        """Know a DICTIONARY or CODEBOOK record."""
        h = record.header
        want(h.basis_hash != NO_HASH, "a set without a name")
        if h.kind == DICTIONARY_RECORD:
            check_dictionary(h)
        else:
            if h.form not in FORMS:
                raise UnsupportedVersion(f"codebook of form {h.form}")
            if h.reserved_form:
                raise UnsupportedVersion("a reserved field of a CODEBOOK record")
            want(h.codebook < h.codebooks and 0 < h.body_bytes <= h.all_bytes - h.first_byte, "a CODEBOOK record")
        parent = h.get("parent_hash", NO_HASH)
        records = self._forms.setdefault(h.basis_hash, {}).setdefault(parent, [])
        for other in records:
            check_alike(h, other.header)
        records.append(record)

    def find(self, h: Fields, layer: int, stream: Stream) -> Trained:
        """What rows of a stream are coded by, as the header of their record names it."""
        held = self._load(h.basis_hash, ())
        kind = CLASSES[h.codec]
        found = [own for own in (*held.dictionaries, *held.codebooks) if (layer, stream.id) in own.uses]
        if not found or not isinstance(found[0], kind):
            raise MissingDictionary(f"set {h.basis_hash.hex()} has nothing for layer {layer}, stream {stream.id}")
        want((found[0].size, found[0].dim) == (h.dictionary_atoms, stream.dim), "shape of what rows are coded by")
        return found[0]

    def _load(self, basis: bytes, heirs: tuple[bytes, ...]) -> Set:
        """heirs: the sets that grew out of it and are being loaded."""
        if basis in self._loaded:
            return self._loaded[basis]
        want(basis not in heirs and len(heirs) <= MOST_PARENTS, "a set that grew out of itself, or too often")
        missing = MissingDictionary(f"the log does not hold set {basis.hex()}")
        for parent, records in self._forms.get(basis, {}).items():
            try:
                before = None if parent == NO_HASH else self._load(parent, (*heirs, basis))
                found = join_set(records, before)
            except MissingDictionary as error:
                missing = error
                continue
            marked = b"".join(MARKS[1 if isinstance(own, Product) else 2] + own.data for own in found.codebooks)
            hashed = b"".join(own.hashed() for own in found.dictionaries) + marked
            want(hashlib.sha256(hashed).digest()[:16] == basis, f"set {basis.hex()} is not what its name says")
            want(found.grown <= MOST_PARENTS, "a set that grew too often")
            self._loaded[basis] = found
            return found
        raise missing


def check_dictionary(h: Fields) -> None:
    """Check the header of a DICTIONARY record: dictionary.md#dictionary-records."""
    if h.transform > 1:
        raise UnsupportedVersion(f"transform {h.transform}")
    want(1 <= h.atoms <= 65536 and 1 <= h.chunk <= h.atoms - h.first_atom, "atoms of a DICTIONARY record")
    want(h.matrix < h.matrices and 1 <= h.head_dim <= 1024 and h.uses and h.mean <= 1, "fields of a DICTIONARY record")
    want((h.transform == 1) == (h.pairs > 0) and 2 * h.pairs <= h.head_dim, "rotation of a DICTIONARY record")
    if h.parent_hash == NO_HASH:
        want(h.grown == 0, "a whole set that grew")
    else:
        want(h.first_atom and 1 <= h.grown <= h.matrices and not h.codebooks, "a set that grew")
    size = h.chunk * h.head_dim + (0 if h.first_atom else dictionary_head(h))
    want(h.body_bytes == size, "body of a DICTIONARY record")


def check_alike(h: Fields, other: Fields) -> None:
    """Check that two records of a set say the same of it, and of what both are a part of."""
    names = ["matrices", "codebooks"]
    if h.kind == other.kind == CODEBOOK and h.codebook == other.codebook:
        names += ["form", "all_bytes"]
    if h.kind == other.kind == DICTIONARY_RECORD:
        own = ["atoms", "head_dim", "uses", "transform", "mean", "pairs"]
        names += ["grown", *(own if h.matrix == other.matrix else [])]
    want(all(h[name] == other[name] for name in names), "a record that contradicts another one of its set")


def dictionary_head(h: Fields) -> int:
    """Bytes of uses, mean and steps."""
    return int(4 * h.uses + 4 * h.head_dim * h.mean + 8 * h.pairs)


def join_set(records: list[Record], before: Set | None) -> Set:
    """The set of some records. before: its parent, if it grew. Raises MissingDictionary."""
    matrices: dict[int, dict[int, Record]] = {}
    books: dict[int, dict[int, Record]] = {}
    for record in records:
        h = record.header
        if h.kind == CODEBOOK:
            books.setdefault(h.codebook, {})[h.first_byte] = record
        else:
            matrices.setdefault(h.matrix, {})[h.first_atom] = record
    first = records[0].header
    if len(matrices) != (first.matrices if before is None else first.grown):
        raise MissingDictionary("not all dictionaries of a set are there")
    if len(books) != first.codebooks:
        raise MissingDictionary("not all codebooks of a set are there")
    if before is None:
        dictionaries = [join_dictionary(matrices[n], None) for n in sorted(matrices)]
    else:
        there = before.dictionaries
        want(len(there) == first.matrices, "a set of other dictionaries than its parent has")
        dictionaries = [join_dictionary(matrices[n], own) if n in matrices else own for n, own in enumerate(there)]
    grown = 0 if before is None else before.grown + 1
    return Set(dictionaries, [join_codebook(books[n]) for n in sorted(books)], grown)


def join_dictionary(chunks: dict[int, Record], before: Dictionary | None) -> Dictionary:
    """A dictionary of the records that hold its atoms, by the first of these; before: that of the parent."""
    h = chunks[min(chunks)].header
    head, atoms, at = (before.head, before.data, before.size) if before else (b"", b"", 0)
    if before:
        same = before.shape == (h.head_dim, h.uses, h.transform, h.mean, h.pairs)
        want(same and min(chunks) == at, "a set that contradicts the one that it grew out of")
    while at < h.atoms:
        if at not in chunks:
            raise MissingDictionary("not all atoms of a dictionary are there")
        body, start = chunks[at].body, 0 if at else dictionary_head(h)
        head, atoms = head or body[:start], atoms + body[start:]
        at += chunks[at].header.chunk
    return Dictionary(h, head, atoms)


def join_codebook(chunks: dict[int, Record]) -> Product | Trellis:
    """A codebook of the records that hold its bytes, by the first of these: record.md#codebook."""
    h, data = chunks[min(chunks)].header, b""
    while len(data) < h.all_bytes:
        if len(data) not in chunks:
            raise MissingDictionary("not all bytes of a codebook are there")
        data += chunks[len(data)].body
    want(len(data) == h.all_bytes, "length of a codebook")
    return Product(data) if h.form == 1 else Trellis(data)


# -- the command line ------------------------------------------------------------------------------------------------


def list_sequences(log: Log) -> None:
    """Print a line a sequence, what of it was evicted, and what rows stand for."""
    for name, own in log.sequences.items():
        print(f"{name}: {own.length} tokens, {len(own.model.layers)} layers, {own.model.dtype}")
        for layer in (n for n, each in enumerate(own.model.layers) if each.streams):
            for first, end in own.evicted(layer):
                print(f"  layer {layer}: tokens {first} to {end - 1} were evicted")
            for token, (position, seen) in own.positions(layer).items():
                print(f"  layer {layer}: token {token} is a summary at {position}, seen from {seen} on")


def print_rows(own: Sequence, layer: int, wanted: str) -> None:
    """Print the rows of a layer: token, stream, head, numbers."""
    held, (first, _, end) = own.held(layer), wanted.partition(":")
    gone, hidden = own.evicted(layer), own.hidden(layer)
    for token in range(max(held.start, int(first or 0)), min(held.stop, int(end or held.stop))):
        if token in hidden or any(start <= token < stop for start, stop in gone):
            continue
        for stream in own.model.layers[layer].streams:
            for head, row in enumerate(own.read(layer, stream.id, token)):
                print(token, STREAM_NAMES[stream.id], head, *(f"{x:.9g}" for x in row.numbers))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 1 if the log is rejected."""
    parser = argparse.ArgumentParser(description="Read a kvcodec log by formats/*.md alone.")
    parser.add_argument("log", metavar="LOG")
    parser.add_argument("--sequence", metavar="NAME", help="print rows of it")
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--tokens", default=":", metavar="A:B")
    parser.add_argument("--recovery", default=TORN_TAIL, choices=[TORN_TAIL, ABSOLUTE, POINT_IN_TIME])
    given = parser.parse_args(arguments)
    try:
        log = Log(given.log, given.recovery)
        if given.sequence is None:
            list_sequences(log)
        else:
            print_rows(log.sequences[given.sequence], given.layer, given.tokens)
    except LogError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
