"""Write tests/golden: logs that are whole, logs that a reader must reject, and index.json that says what to expect.

    python tools/make_golden.py [directory]

Whole logs are made by the store, so that they freeze the writer; the others are forged record by record, with every
checksum but the one in question repaired. Nothing in the output depends on the clock, the machine or chance.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

import kvcodec
from kvcodec import layout
from kvcodec.errors import KvcodecError
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.flash.geometry import Geometry
from kvcodec.flash.superblock import Superblock
from kvcodec.layout import FRAME_HEADER, NO_FRAME, RECORD_HEADER, SUPERBLOCK, Kind, StreamId
from kvcodec.log.frame import FrameId, Record, build_frame, frame_seed, new_record, seal_record
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import sidecar_path
from kvcodec.spec import CodecSpec
from kvcodec.store.coding import Coding, Wish
from kvcodec.store.model import Layer, Model, Stream
from kvcodec.store.policy import SequenceInfo
from kvcodec.store.records import OpenSpan, group_records, step_records

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
DEVICE = "page=512,unit=64,block=8192"
SLC_LIKE = "page=512,unit=256,block=8192"
FIRST_BLOCK = layout.SUPERBLOCKS * layout.SUPERBLOCK_BYTES
CRC = 4  # bytes of a checksum field

# -- numbers and names ---------------------------------------------------------------------------------------------


def uuid_of(name: str) -> bytes:
    """The uuid of a golden file: that of the worked example counts up, others come from the name."""
    return bytes(range(16)) if name == "worked-example" else hashlib.sha256(name.encode()).digest()[:16]


@contextmanager
def fixed_random(name: str, session: int = 1) -> Iterator[None]:
    """Let every file uuid be the name's, and every session id `session`."""

    def urandom(size: int) -> bytes:
        return uuid_of(name) if size == 16 else session.to_bytes(size, "little")

    with mock.patch.object(os, "urandom", urandom):
        yield


def noise(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Float32 numbers of about unit variance, the same everywhere: sums of four 12-bit pieces of splitmix64."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        x = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    pieces = sum(((x >> np.uint64(12 * i)) & np.uint64(0xFFF)).astype(np.int64) for i in range(4))
    return ((pieces - 8190).astype(np.float32) / np.float32(2048)).reshape(shape)


# -- cases ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One golden log. error: the named error it must raise, at `at`; frozen: its bytes are kept in tests/golden."""

    name: str
    shows: str
    make: Callable[[Path], None]
    error: str = ""
    at: str = "open"
    frozen: bool = True
    modes: bool = False  # whether all recovery modes' results are recorded


GOOD: list[Case] = []
BAD: list[Case] = []


def whole(name: str, shows: str, **options: Any) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Register a log that the store makes."""

    def register(make: Callable[[Path], None]) -> Callable[[Path], None]:
        GOOD.append(Case(name, shows, make, **options))
        return make

    return register


# -- whole logs ----------------------------------------------------------------------------------------------------


def fill(sequence: Any, first: int, tokens: int, seed: int) -> None:
    """Append tokens to every layer that keeps a cache, one layer after the other."""
    for n, layer in enumerate(sequence._index.model.layers):
        if layer.streams:
            k, v = (noise((tokens, s.heads, s.dim), seed * 1000 + n * 10 + s.id + first * 7) for s in layer.streams)
            sequence.append(n, k, v)


def write_log(path: Path, model: Model, tokens: int, *, device: str = DEVICE, **options: Any) -> None:
    """A log with one sequence of `tokens` tokens, appended in two goes with a sync between them."""
    with kvcodec.open(path, "w", model=model, device=device, capacity=1 << 20, **options) as store:
        sequence = store.sequence("a")
        fill(sequence, 0, 6, 1)
        store.sync()
        fill(sequence, 6, tokens - 6, 2)


@whole("int4", "K per channel, V per token, sinks, residual rows, a tail as STEP, two syncs")
def _(path: Path) -> None:
    write_log(path, Model.uniform(2, 1, 16), 150, k="int4/channel/g64", v="int4/token/g16", residual=8, sinks=4)


@whole("int4-symmetric", "no zeros; groups of 32")
def _(path: Path) -> None:
    write_log(path, Model.uniform(1, 1, 32), 140, k="int4/channel/g32/sym", v="int4/token/g32/sym", residual=0, sinks=0)


@whole("int4-axes-swapped", "K per token, V per channel: the stream picks the tile; groups of 128")
def _(path: Path) -> None:
    write_log(path, Model.uniform(1, 1, 48), 135, k="int4/token/g32", v="int4/channel/g128", residual=3, sinks=1)


@whole("raw", "raw GROUP records")
def make_raw(path: Path) -> None:
    """Rows as they are."""
    write_log(path, Model.uniform(1, 1, 16), 70, k="raw", v="raw", residual=0, sinks=0)


@whole("float16", "a float16 model")
def _(path: Path) -> None:
    write_log(path, Model.uniform(1, 1, 16, dtype="float16"), 80, residual=8, sinks=2)


@whole("head-dim-80", "a head dimension that fills no whole number of 64-channel groups")
def _(path: Path) -> None:
    write_log(path, Model.uniform(1, 1, 80), 66, residual=0, sinks=0)


@whole("head-dim-20-12", "K and V of different head dimensions, padded to 16 channels in the tile")
def _(path: Path) -> None:
    layer = Layer.kv(1, 20, v_head_dim=12)
    write_log(path, Model((layer,)), 70, residual=0, sinks=3)


@whole("head-split", "records split by heads at the end of a block")
def _(path: Path) -> None:
    device = "page=512,unit=64,block=4096"
    model = Model.uniform(1, 4, 32)
    with kvcodec.open(path, "w", model=model, device=device, capacity=1 << 20, residual=0, sinks=0) as store:
        fill(store.sequence("a"), 0, 64, 1)


@whole("larger-units", "a program unit of 256 bytes: frames share units, a sync pads")
def _(path: Path) -> None:
    write_log(path, Model.uniform(1, 1, 16), 80, device=SLC_LIKE, residual=8, sinks=4)


@whole("small-blocks", "many erase blocks of 2 KiB")
def _(path: Path) -> None:
    device = "page=512,unit=64,block=2048"
    write_log(path, Model.uniform(1, 1, 16), 72, device=device, residual=4, sinks=4)


@whole("latent", "streams c and kr, a layer without cache, a window, a shard, raw by default")
def _(path: Path) -> None:
    latent = Layer((Stream(StreamId.C, 1, 32), Stream(StreamId.KR, 1, 16)))
    model = Model((latent, Layer(), Layer.kv(2, 16, window=32, rope_base=10000.0)), name="mixed", shard=1, shards=2)
    write_log(path, model, 24, residual=8, sinks=0)


@whole("steps", "a STEP record for each step: rows of V coded one by one, of K journaled; full groups laid from codes")
def _(path: Path) -> None:
    """Rows become durable one step at a time; the second writer takes codes up as they are."""
    options: dict[str, Any] = {"durability": "step", "journal": "int4/token/g16/sym"}
    model, sizes = Model.uniform(2, 1, 16), {"residual": {"k": 3, "v": 0}, "sinks": 2}
    with kvcodec.open(
        path, "w", model=model, device=SLC_LIKE, capacity=1 << 20, v="int4/token/g16", **sizes, **options
    ) as s:
        fill(s.sequence("a"), 0, 20, 1)
    with fixed_random("steps", session=2), kvcodec.open(path, "a", **options) as s:
        fill(s.sequence("a"), 20, 50, 2)
        fill(s.sequence("a"), 70, 1, 3)


@whole("window", "a layer whose window left the first tokens behind: they were never written")
def _(path: Path) -> None:
    model = Model((Layer.kv(1, 16, window=20), Layer.kv(1, 16)))
    write_log(path, model, 150, residual=0, sinks=0)


@whole("sequences", "three sequences in turn, names beyond ASCII")
def _(path: Path) -> None:
    model = Model.uniform(1, 1, 16, name="tiny")
    with kvcodec.open(path, "w", model=model, device=DEVICE, capacity=1 << 20, residual=0, sinks=4) as store:
        for go in range(2):
            for n, name in enumerate(("first", "zweite Folge", "третья")):
                fill(store.sequence(name), go * 36, 36 - 5 * n, n + 1)


@whole("torn-tail", "a crash in the middle of a frame that was not synced", modes=True)
def make_torn(path: Path) -> None:
    """Whole units of frames that no sync followed, the rest of the last frame lost."""
    options: dict[str, Any] = {"device": DEVICE, "capacity": 1 << 20, "residual": 0, "sinks": 0}
    store = kvcodec.open(path, "w", model=Model.uniform(1, 1, 16), **options)
    fill(store.sequence("a"), 0, 70, 1)
    store.sync()
    fill(store.sequence("a"), 70, 70, 2)
    store.abandon()


@whole("gap", "a second writer took up the torn tail and left a gap", modes=True)
def _(path: Path) -> None:
    make_torn(path)
    with fixed_random("gap", session=2), kvcodec.open(path, "a") as store:
        sequence = store.sequence("a")
        fill(sequence, len(sequence), 60, 3)


@whole("drop", "layers that disagreed at the end of a session, and the DROP that settled it")
def _(path: Path) -> None:
    """Layers that disagreed at the end of the first session: the second writer drops what is beyond the shorter."""
    options: dict[str, Any] = {"device": DEVICE, "capacity": 1 << 20, "residual": 0, "sinks": 0}
    model = Model.uniform(2, 1, 16)
    with kvcodec.open(path, "w", model=model, **options) as store:
        k = noise((70, 1, 16), 5)
        store.sequence("a").append(0, k, -k)
        store.sequence("a").append(1, k[:20], -k[:20])
    with fixed_random("drop", session=2), kvcodec.open(path, "a") as store:
        fill(store.sequence("a"), 20, 50, 6)


@whole("worked-example", "every kind of record; the bytes that formats/ shows")
def _(path: Path) -> None:
    """The log whose bytes formats/*.md show."""
    model = example_model()
    options: dict[str, Any] = {
        "device": DEVICE,
        "capacity": 1 << 20,
        "k": "int4/channel/g16",
        "v": "int4/token/g16/sym",
    }
    with kvcodec.open(path, "w", model=model, residual=0, sinks=0, **options) as store:
        store.sequence("demo")
        for record in example_records():
            store.log_records([record])
            store.sync()


def example_model() -> Model:
    """One layer, one head of 16 channels."""
    return Model((Layer.kv(1, 16, rope_base=10000.0),), name="tiny")


def example_rows() -> tuple[Any, Any]:
    """K[t, c] = t + c / 4 and V[t, c] = c - 8, sixteen tokens of one head."""
    t, c = np.arange(16, dtype=np.float32)[:, None], np.arange(16, dtype=np.float32)
    both = t + c / 4, np.broadcast_to(c - 8, (16, 16))
    k, v = (np.ascontiguousarray(x.astype(ml_dtypes.bfloat16)).view(np.uint16)[:, None] for x in both)
    return k, v


def example_records() -> list[Record]:
    """GROUP of K, GROUP of V, a raw GROUP of K's first two tokens, a STEP of token 16, a DROP from token 16 on."""
    k_stream, v_stream = example_model().layers[0].streams
    (k, v), dtype = example_rows(), layout.DtypeId.BFLOAT16
    k_spec, v_spec = CodecSpec.parse("int4/channel/g16"), CodecSpec.parse("int4/token/g16/sym")
    return [
        *group_records(1, 0, k_stream, 0, k, k_spec, dtype, 16),
        *group_records(1, 0, v_stream, 0, v, v_spec, dtype, 16),
        *group_records(1, 0, k_stream, 0, k[:2], CodecSpec.parse("raw"), dtype, 2),
        *step_records(1, [OpenSpan(0, k_stream, 16, k[:1]), OpenSpan(0, v_stream, 16, v[:1])], limit=1 << 20),
        new_record(Kind.DROP, b"", sequence=1, first_token=16),
    ]


# -- forged logs ---------------------------------------------------------------------------------------------------


def corrupt(path: Path, at: int, bits: int = 1) -> None:
    """Flip bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


class Forge:
    """A log made frame by frame. Each frame is programmed and counts as durable to the next one."""

    def __init__(self, path: Path, name: str) -> None:
        self.device = Device.create(path, Geometry.parse(DEVICE), blocks=4, uuid=uuid_of(name))
        self.uuid, self.path = self.device.uuid, path
        self.number, self.crc, self.lsn, self.unit = 0, 0, 0, self.device.geometry.unit_bytes
        self.begin_block(1)

    def begin_block(self, generation: int) -> None:
        self.block = self.device.allocate(generation)
        self.offset = self.unit

    def seal(self, record: Record, **changes: Any) -> tuple[bytes, bytes]:
        """Header and body of a record, with some header fields changed and the checksums right all the same."""
        self.lsn += 1
        header = np.frombuffer(bytearray(seal_record(record, self.lsn)), record.header.dtype)[0]
        for name, value in changes.items():
            header[name] = value
        header["header_crc"] = crc32c(header.tobytes()[CRC:])
        return header.tobytes(), bytes(record.body)

    def frame(
        self,
        *records: tuple[bytes, bytes],
        patch: Callable[[bytearray], None] | None = None,
        after: Callable[[bytearray], None] | None = None,
        **ident: int,
    ) -> int:
        """Program a frame, and return its offset. patch: changes it before, after: once its checksums are made."""
        fields = {"number": self.number + 1, "durable": self.number, "session": 1, "session_start": 1}
        frame = FrameId(**({**fields, "previous": self.crc} | ident))
        generation = self.block.generation
        data, _, self.crc = build_frame(records, frame, offset=self.offset, generation=generation, uuid=self.uuid)
        if patch is not None:
            patch(data)
            self.crc = repair(data, self.uuid)
        if after is not None:
            after(data)
        self.number += 1
        return self.program(data)

    def program(self, data: bytearray) -> int:
        units = -(-len(data) // self.unit)
        firsts = [0] + [NO_FRAME] * (units - 1)
        padded = bytes(data).ljust(units * self.unit, b"\0")
        self.device.program(self.block.number, self.offset // self.unit, padded, firsts)
        offset, self.offset = self.offset, self.offset + len(padded)
        return offset

    def begin(self, **changes: Any) -> None:
        """A MODEL and a SEQUENCE record, the latter with some fields changed."""
        self.frame(self.seal(forged_model().record()))
        self.frame(self.seal(forged_sequence().record(), **changes))

    def steps(self, tokens: int = 1) -> None:
        """A frame for each of some tokens."""
        for token in range(tokens):
            self.frame(self.seal(forged_step(token)))


def repair(data: bytearray, uuid: bytes) -> int:
    """Make a frame's header and trailing checksums right again; the trailing one."""
    seed = frame_seed(uuid)
    h = np.frombuffer(data, FRAME_HEADER, 1)[0]
    h["header_crc"] = crc32c(h.tobytes()[:-CRC], seed)
    crc = crc32c(bytes(data[:-CRC]), seed)
    data[-CRC:] = crc.to_bytes(CRC, "little")
    return crc


def frame_field(name: str, value: int) -> Callable[[bytearray], None]:
    """A patch that sets a field of a frame's header."""

    def patch(data: bytearray) -> None:
        np.frombuffer(data, FRAME_HEADER, 1)[0][name] = value

    return patch


def forged_model() -> Model:
    """The model of forged logs."""
    return Model.uniform(1, 2, 16)


def forged_sequence(number: int = 1, name: str = "a") -> SequenceInfo:
    """A sequence of a forged log."""
    wish = Wish.parse({"k": "int4/channel/g16", "v": "int4/token/g16", "residual": 0, "sinks": 0}, "forged")
    return SequenceInfo(number, name, forged_model().hash, Coding(wish).policy(forged_model(), None))


def forged_rows(tokens: int, seed: int) -> Any:
    """Bits of some rows."""
    return noise((tokens, 2, 16), seed).astype(ml_dtypes.bfloat16).view(np.uint16)


def forged_group(stream: StreamId = StreamId.K) -> Record:
    """A GROUP record of 16 tokens."""
    spec = {s.stream: s.policy.spec for s in forged_sequence().policy.rules}[stream]
    whole = Stream(stream, 2, 16)
    return group_records(1, 0, whole, 0, forged_rows(16, stream), spec, layout.DtypeId.BFLOAT16, 16)[0]


def forged_step(token: int = 0, tokens: int = 1) -> Record:
    """A STEP record of K and V."""
    k, v = forged_model().layers[0].streams
    spans = [OpenSpan(0, s, token, forged_rows(tokens, 7 + s.id + token)) for s in (k, v)]
    return step_records(1, spans, limit=1 << 20)[0]


def with_body(record: Record, body: bytes) -> Record:
    """The record with another body."""
    return Record(record.header, body)


# -- forged cases ----------------------------------------------------------------------------------------------------

Forgery = Callable[[Forge], None]


def _forged(cases: list[Case], name: str, shows: str, error: str = "", **options: Any) -> Callable[[Forgery], Forgery]:
    def register(forgery: Forgery) -> Forgery:
        def make(path: Path) -> None:
            forge = Forge(path, name)
            try:
                forgery(forge)
            finally:
                forge.device.close()

        cases.append(Case(name, shows, make, error, **options))
        return forgery

    return register


def good(name: str, shows: str, **options: Any) -> Callable[[Forgery], Forgery]:
    """Register a forged log that must open."""
    return _forged(GOOD, name, shows, **options)


def bad(name: str, shows: str, error: str = "CorruptRecord", **options: Any) -> Callable[[Forgery], Forgery]:
    """Register a forged log that must be rejected."""
    return _forged(BAD, name, shows, error, **options)


def bad_record(name: str, shows: str, make: Callable[[], Record], error: str = "CorruptRecord", **fields: Any) -> None:
    """Register a log with one record whose header fields are not what they ought to be."""
    options = {key: fields.pop(key) for key in ("at", "frozen") if key in fields}

    @bad(name, shows, error, **options)
    def _(forge: Forge) -> None:
        forge.begin()
        forge.frame(forge.seal(make(), **fields))


def bad_superblock(
    name: str, shows: str, error: str, change: Callable[[bytearray], bytes | bytearray], *, frozen: bool = True
) -> None:
    """Register a log whose superblock copies went through `change`."""

    def make(path: Path) -> None:
        superblock = Superblock(uuid_of(name), Geometry.parse(DEVICE), 4)
        path.write_bytes(change(bytearray(superblock.encode())))

    BAD.append(Case(name, shows, make, error, frozen=frozen))


def superblock_fields(**fields: Any) -> Callable[[bytearray], bytearray]:
    """A change of both copies with their checksums made right."""

    def change(data: bytearray) -> bytearray:
        for copy in range(layout.SUPERBLOCKS):
            sb = np.frombuffer(data, SUPERBLOCK, 1, copy * layout.SUPERBLOCK_BYTES)[0]
            for field, value in fields.items():
                sb[field] = value
            sb["crc"] = crc32c(sb.tobytes()[:-CRC])
        return data

    return change


def swap_byte_order(data: bytearray) -> bytearray:
    """Both copies as a big-endian writer would have them, checksums made right."""
    for copy in range(layout.SUPERBLOCKS):
        at = copy * layout.SUPERBLOCK_BYTES
        big = np.frombuffer(data, SUPERBLOCK, 1, at).astype(SUPERBLOCK.newbyteorder(">"))
        big["crc"] = crc32c(big.tobytes()[:-CRC])
        data[at : at + SUPERBLOCK.itemsize] = big.tobytes()
    return data


def damage_both(data: bytearray) -> bytearray:
    """A bit flipped in each copy."""
    data[60] ^= 1
    data[layout.SUPERBLOCK_BYTES + 60] ^= 1
    return data


def swap_copies(data: bytearray) -> bytearray:
    """The second copy first."""
    half = layout.SUPERBLOCK_BYTES
    return data[half:] + data[:half]


def set_padding(data: bytearray) -> bytearray:
    """A byte set behind each copy."""
    data[SUPERBLOCK.itemsize] = data[layout.SUPERBLOCK_BYTES + SUPERBLOCK.itemsize] = 1
    return data


bad_superblock("wrong-magic", "not a kvcodec log", "BadMagic", lambda d: d.replace(b"KVLOG", b"OTHER"))
bad_superblock("empty", "a file of no bytes", "BadMagic", lambda d: d[:0])
bad_superblock("text-mode", "CR LF became LF", "BadMagic", lambda d: d.replace(b"\r\n", b"\n"), frozen=False)
bad_superblock("future-version", "version 1", "UnsupportedVersion", superblock_fields(version=1))
bad_superblock("big-endian", "the other byte order, throughout", "UnsupportedVersion", swap_byte_order)
bad_superblock("superblocks-bad", "a bit flipped in each copy", "CorruptRecord", damage_both)
bad_superblock("superblocks-swapped", "each copy in the other's place", "CorruptRecord", swap_copies, frozen=False)
bad_superblock("superblock-truncated", "the file ends within the first copy", "TruncatedLog", lambda d: d[:2048])
bad_superblock(
    "superblock-reserved",
    "a reserved field is set",
    "UnsupportedVersion",
    superblock_fields(reserved=b"\1"),
    frozen=False,
)
bad_superblock("superblock-padding", "a byte after the copy is set", "UnsupportedVersion", set_padding, frozen=False)
bad_superblock("zero-page", "a page of no bytes", "CorruptRecord", superblock_fields(page_bytes=0))
bad_superblock("zero-unit", "a unit of no bytes", "CorruptRecord", superblock_fields(unit_bytes=0), frozen=False)
bad_superblock("zero-block", "a block of no bytes", "CorruptRecord", superblock_fields(block_bytes=0), frozen=False)
bad_superblock("no-blocks", "a capacity of no blocks", "CorruptRecord", superblock_fields(blocks=0), frozen=False)
bad_superblock("odd-unit", "a unit of 60 bytes", "CorruptRecord", superblock_fields(unit_bytes=60), frozen=False)
bad_superblock(
    "device-name", "a name that is not UTF-8", "CorruptRecord", superblock_fields(name=b"\xff"), frozen=False
)


@bad("frame-damaged", "a bit flipped in a frame that later ones knew to be durable", modes=True)
def _(forge: Forge) -> None:
    forge.begin()
    forge.steps(1)
    flip: Callable[[bytearray], None] = lambda data: data.__setitem__(70, data[70] ^ 1)  # noqa: E731
    forge.frame(forge.seal(forged_step(1)), after=flip)
    forge.frame(forge.seal(forged_step(2)))
    forge.frame(forge.seal(forged_step(3)))


@bad("frame-foreign", "a frame of another file in place of a durable one")
def _(forge: Forge) -> None:
    forge.begin()
    own, forge.uuid = forge.uuid, uuid_of("another file")
    forge.steps(1)
    forge.uuid = own
    forge.frame(forge.seal(forged_step(1)))


@good("superblock-lost", "the first superblock copy is damaged, the second one serves")
def _(forge: Forge) -> None:
    forge.begin()
    forge.steps(2)
    corrupt(forge.path, 100)


@good("block-header-lost", "a damaged block header; the block is known by its next unit")
def _(forge: Forge) -> None:
    forge.begin()
    forge.steps(2)
    corrupt(forge.path, FIRST_BLOCK + forge.device.geometry.spare_area + 8)


@bad("frame-number", "a frame number is skipped, and both sides were durable", frozen=False)
def _(forge: Forge) -> None:
    forge.begin()
    forge.number += 1
    forge.steps(2)


@bad("frame-previous", "a frame that does not continue the one before, and was durable", frozen=False)
def _(forge: Forge) -> None:
    forge.begin()
    forge.crc ^= 1
    forge.steps(2)


@bad("frame-version", "a frame of version 1", "UnsupportedVersion")
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record()), patch=frame_field("version", 1))


@bad("frame-reserved", "a reserved field of a frame is set", "UnsupportedVersion")
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record()), patch=frame_field("reserved", 1))


@bad("frame-flags", "a flag of a frame is set", "UnsupportedVersion", frozen=False)
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record()), patch=frame_field("flags", 1))


@bad("frame-type", "a frame of an unknown mandatory type", "UnsupportedVersion", frozen=False)
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record()), patch=frame_field("type", 2))


@good("frame-type-skipped", "a frame of an unknown type that a reader may skip")
def _(forge: Forge) -> None:
    forge.begin()
    forge.frame((b"\xa5" * 64, b""), patch=frame_field("type", 0x81))
    forge.steps(2)


@bad("record-count", "a frame counts a record more than it has", frozen=False)
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record()), patch=frame_field("records", 2))


@bad("frame-trailing-bytes", "bytes after the last record of a frame")
def _(forge: Forge) -> None:
    forge.frame(
        forge.seal(forged_model().record()), forge.seal(forged_sequence().record()), patch=frame_field("records", 1)
    )


@bad("record-gap-set", "the gap before a record is not zeros", frozen=False)
def _(forge: Forge) -> None:
    forge.begin()

    def patch(data: bytearray) -> None:
        data[FRAME_HEADER.itemsize] = 1  # a GROUP record begins at the next multiple of 64

    forge.frame(forge.seal(forged_group()), patch=patch)


@bad("record-checksum", "a record header's checksum is wrong in a frame that is right")
def _(forge: Forge) -> None:
    header, body = forge.seal(forged_model().record())
    forge.frame((b"\0\0\0\0" + header[CRC:], body))


def bad_kind(name: str, shows: str, kind: int, error: str, *, frozen: bool = True) -> None:
    """Register a log with a record of a kind that version 0 does not know."""
    cases = BAD if error else GOOD

    @_forged(cases, name, shows, error, frozen=frozen)
    def _(forge: Forge) -> None:
        forge.begin()
        header = np.zeros((), RECORD_HEADER)
        record = Record(header, b"what a later version may mean")
        forge.frame(forge.seal(record, kind=kind), forge.seal(forged_step(0)))


bad_kind("kind-unknown", "a mandatory kind that this version does not know", 7, "UnsupportedVersion")
bad_kind("kind-dictionary", "a kind that is reserved", int(Kind.DICTIONARY), "UnsupportedVersion", frozen=False)
bad_kind("kind-erased", "a kind of 0xFF", 0xFF, "UnsupportedVersion", frozen=False)
bad_kind("kind-skipped", "an unknown kind that a reader may skip", 0x87, "")


@bad("record-header-length", "a record header of another length than its kind's")
def _(forge: Forge) -> None:
    record = forged_model().record()
    longer = Record(np.zeros((), np.dtype([*RECORD_HEADER.descr, ("more", "V56")])), record.body)
    forge.frame(forge.seal(longer, kind=Kind.MODEL))


@bad("record-too-long", "a record that is longer than its frame")
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record(), body_bytes=1 << 31))


@bad("record-misaligned", "a GROUP record at a multiple of 8 that is none of 64")
def _(forge: Forge) -> None:
    forge.begin()
    header, body = forge.seal(forged_group(), kind=Kind.STEP)  # laid at the next multiple of 8
    gap = FRAME_HEADER.itemsize

    def patch(data: bytearray) -> None:
        h = np.frombuffer(data, layout.GROUP_HEADER, 1, gap)[0]
        h["kind"] = Kind.GROUP
        h["header_crc"] = crc32c(h.tobytes()[CRC:])

    while (forge.offset + gap) % layout.ALIGNMENT == 0:
        forge.steps(1)
    forge.frame((header, body), patch=patch)


bad_record("record-version", "a record of version 1", forged_step, "UnsupportedVersion", version=1)
bad_record("record-reserved", "a reserved field of a record is set", forged_step, "UnsupportedVersion", reserved=b"\1")
bad_record("record-body-checksum", "a SEQUENCE record whose body checksum is wrong",
           lambda: forged_sequence(2, "b").record(), frozen=False, body_crc=0)  # fmt: skip


@bad("group-body-checksum", "a GROUP record whose body checksum is wrong", at="read", frozen=False)
def _(forge: Forge) -> None:
    forge.begin()
    forge.frame(forge.seal(forged_group(StreamId.K), body_crc=0), forge.seal(forged_group(StreamId.V)))


def bad_model(name: str, shows: str, change: Callable[[Record], Record], *, frozen: bool = False) -> None:
    """Register a log with a changed MODEL record whose hash was made right, unless it is what was changed."""

    @bad(name, shows, frozen=frozen)
    def _(forge: Forge) -> None:
        forge.frame(forge.seal(change(forged_model().record())))


def model_field(rehash: bool, **fields: Any) -> Callable[[Record], Record]:
    """A change of MODEL header fields."""

    def change(record: Record) -> Record:
        for name, value in fields.items():
            record.header[name] = value
        return hashed(record) if rehash else record

    return change


def layer_field(**fields: Any) -> Callable[[Record], Record]:
    """A change of the first layer of a MODEL record."""

    def change(record: Record) -> Record:
        body = bytearray(record.body)
        row = np.frombuffer(body, layout.MODEL_LAYER, 1)[0]
        for name, value in fields.items():
            row[name] = value
        return hashed(with_body(record, bytes(body)))

    return change


def hashed(record: Record) -> Record:
    """With the hash that its fields and body ask for."""
    record.header["model_hash"] = np.void(bytes(16))
    raw = record.header.tobytes()[RECORD_HEADER.itemsize :] + bytes(record.body)
    record.header["model_hash"] = np.void(hashlib.sha256(raw).digest()[:16])
    return record


bad_model("model-hash", "a MODEL record whose hash is not its own", model_field(False, shard=0, shards=2), frozen=True)
bad_model("model-length", "a name longer than the body", model_field(True, name_bytes=9))
bad_model("model-dtype", "an unknown dtype", model_field(True, dtype=3))
bad_model("model-rope", "an unknown rope layout", model_field(True, rope_layout=3))
bad_model("model-shard", "shard 2 of 2", model_field(True, shard=2, shards=2))
bad_model("model-layer-reserved", "a reserved field of a layer is set", layer_field(reserved=1))
bad_model("model-no-heads", "a stream of no heads", layer_field(first_heads=0))
bad_model("model-no-dim", "a stream of no channels", layer_field(second_dim=0))
bad_model("model-stream", "an unknown stream", layer_field(first_stream=9))
bad_model("model-stream-twice", "one stream twice", layer_field(second_stream=1))
bad_model("model-no-streams", "no layer keeps anything", layer_field(first_stream=0, second_stream=0))


def bad_sequence(
    name: str,
    shows: str,
    change: Callable[[Record], Record] = lambda r: r,
    error: str = "CorruptRecord",
    *,
    frozen: bool = False,
    **fields: Any,
) -> None:
    """Register a log with a changed SEQUENCE record."""

    @bad(name, shows, error, frozen=frozen)
    def _(forge: Forge) -> None:
        forge.frame(forge.seal(forged_model().record()))
        forge.frame(forge.seal(change(forged_sequence().record()), **fields))


def policy_field(**fields: Any) -> Callable[[Record], Record]:
    """A change of the first policy of a SEQUENCE record."""

    def change(record: Record) -> Record:
        body = bytearray(record.body)
        row = np.frombuffer(body, layout.POLICY, 1)[0]
        for name, value in fields.items():
            row[name] = value
        return with_body(record, bytes(body))

    return change


def renamed(name: bytes) -> Callable[[Record], Record]:
    """A change of a SEQUENCE record's name."""

    def change(record: Record) -> Record:
        record.header["name_bytes"] = len(name)
        return with_body(record, bytes(record.body)[:-1] + name)

    return change


bad_sequence("sequence-model", "a SEQUENCE record that names an unknown model", model_hash=b"?" * 16, frozen=True)
bad_sequence("sequence-name", "a name that is not UTF-8", renamed(b"\xff"), frozen=True)
bad_sequence("sequence-name-empty", "a name of no bytes", renamed(b""))
bad_sequence("sequence-name-control", "a name with a line feed", renamed(b"a\nb"))
bad_sequence("sequence-name-long", "a name of 1025 bytes", renamed(b"a" * 1025))
bad_sequence("sequence-zero", "a sequence of id 0", sequence=0)
bad_sequence("sequence-parent", "a parent, which version 0 does not know", parent=1, frozen=True)
bad_sequence("sequence-fork", "a fork token, which version 0 does not know", fork_token=1)
bad_sequence("sequence-length", "a policy more than the body holds", policies=3)
bad_sequence("policy-reserved", "a reserved field of a policy is set", policy_field(reserved=1))
bad_sequence("policy-flag", "an unknown flag of a policy", policy_field(flags=2))
bad_sequence("policy-codec", "an unknown codec of a policy", policy_field(codec=9), "UnsupportedVersion")
bad_sequence("policy-group", "a group of 24", policy_field(group=24))
bad_sequence("policy-stream", "an unknown stream of a policy", policy_field(stream=0))
bad_sequence("policy-residual", "a residual of 2**31", policy_field(residual=1 << 31))
bad_record("sequence-twice", "two sequences of one name", lambda: forged_sequence(2, "a").record())
bad_record("sequence-id-twice", "one id, two names", lambda: forged_sequence(1, "b").record(), frozen=False)

for _name, _shows, _fields in (
    ("group-sequence", "a sequence that was never begun", {"sequence": 9}),
    ("group-head-dim", "a head dimension that is not the model's", {"head_dim": 32}),
    ("group-heads", "heads beyond the model's", {"first_head": 1}),
    ("group-layer", "a layer that the model has not", {"first_layer": 1}),
    ("group-stream", "a stream that the layer has not", {"stream": StreamId.C}),
    ("group-axis", "an unknown axis", {"axis": 3}),
    ("group-size", "a group of 24 numbers", {"group": 24}),
    ("group-sections", "section sizes that do not follow from the shape", {"code_bytes": 64}),
    ("group-tokens", "no tokens", {"tokens": 0, "rows": 0}),
    ("group-rows", "another number of rows than of tokens", {"rows": 15}),
):
    bad_record(_name, f"a GROUP record with {_shows}", forged_group, **_fields)
bad_record("group-codec", "a GROUP record with an unknown codec", forged_group, "UnsupportedVersion", codec=9)
for _name, _shows, _fields in (
    ("group-no-heads", "no heads", {"heads": 0}),
    ("group-all-heads", "a number of heads that is not the model's", {"all_heads": 3}),
    ("group-layers", "two layers", {"layers": 2}),
    ("group-stream-unknown", "an unknown stream", {"stream": 9}),
    ("group-flag", "an unknown flag", {"flags": 2}),
    ("group-overflow", "tokens beyond 2**48", {"first_token": (1 << 64) - 8}),
    ("group-errors", "error figures of another size", {"error_bytes": 0}),
    ("group-zero-size", "a group of 0 numbers", {"group": 0}),
):
    bad_record(_name, f"a GROUP record with {_shows}", forged_group, frozen=False, **_fields)
for _name, _shows, _fields in (
    ("group-transform", "a transform", {"transform": 1}),
    ("group-bitmap", "a row bitmap", {"bitmap_bytes": 2}),
    ("group-positions", "positions", {"position_bytes": 64}),
    ("group-basis", "a basis", {"basis_hash": b"\1" * 16}),
):
    bad_record(_name, f"a GROUP record with {_shows}, which version 0 does not know", forged_group,
               "UnsupportedVersion", frozen=False, **_fields)  # fmt: skip
bad_record("group-body", "a GROUP record with a byte too many",
           lambda: with_body(forged_group(), bytes(forged_group().body) + b"\0"), frozen=False)  # fmt: skip
bad_record("step-body", "a STEP record whose body is not what its shape asks for",
           lambda: with_body(forged_step(), bytes(forged_step().body)[:-2]))  # fmt: skip
for _name, _shows, _error, _fields in (
    ("step-codec", "an unknown codec", "UnsupportedVersion", {"codec": 9}),
    ("step-flags", "a flag of a codec that has none", "CorruptRecord", {"flags": 1}),
    ("step-group", "a group of 24", "CorruptRecord", {"codec": 3, "group": 24}),
    ("step-raw-group", "a group of raw rows", "CorruptRecord", {"group": 16}),
    ("step-coded", "a codec whose rows are not as long as the body's", "CorruptRecord", {"codec": 3, "group": 16}),
    ("step-no-streams", "no streams", "CorruptRecord", {"streams": 0}),
    ("step-streams", "an unknown stream", "CorruptRecord", {"streams": 0x86}),
    ("step-layers", "layers that the model has not", "CorruptRecord", {"layers": 2}),
    ("step-no-layers", "no layers", "CorruptRecord", {"layers": 0}),
    ("step-tokens", "no tokens", "CorruptRecord", {"tokens": 0}),
    ("step-heads", "heads beyond the model's", "CorruptRecord", {"first_head": 1}),
    ("step-all-heads", "a number of heads that is not the model's", "CorruptRecord", {"all_heads": 4}),
    ("step-sequence", "a sequence that was never begun", "CorruptRecord", {"sequence": 9}),
):
    bad_record(_name, f"a STEP record with {_shows}", forged_step, _error, frozen=False, **_fields)
bad_record("drop-sequence", "a DROP record of a sequence that was never begun",
           lambda: new_record(Kind.DROP, b"", sequence=9), frozen=False)  # fmt: skip


def bad_scale(name: str, shows: str, bits: int, *, frozen: bool = True) -> None:
    """Register a log with a GROUP record whose third scale has these bits."""

    def make() -> Record:
        record = forged_group()
        body = np.array(record.body)
        body[layout.ALIGNMENT : layout.ALIGNMENT + 6].view("<u2")[2] = bits
        return with_body(record, body.tobytes())

    @bad(name, shows, at="read", frozen=frozen)
    def _(forge: Forge) -> None:
        forge.begin()
        forge.frame(forge.seal(make()), forge.seal(forged_group(StreamId.V)))


bad_scale("scale-nan", "a scale that is not a number", 0x7FC0)
bad_scale("scale-negative", "a scale of -1", 0xBF80)
bad_scale("scale-infinite", "an infinite scale", 0x7F80, frozen=False)
bad_scale("scale-zero", "a scale of 0", 0x0000, frozen=False)


@good("old-frame-inside", "frames of the block's earlier life and of this one's within a payload are not taken")
def _(forge: Forge) -> None:
    forge.begin()
    inner = [forge.seal(forged_step(5))]
    k, v = (Stream(s, 2, 16) for s in (StreamId.K, StreamId.V))
    rows = np.zeros((8, 2, 16), np.uint16)
    for generation, half in ((1, rows[:4]), (2, rows[4:])):
        ident = FrameId(9, 9, 1, 1, forge.crc)
        data, _, _ = build_frame(inner, ident, offset=0, generation=generation, uuid=forge.uuid)
        half.reshape(-1)[: len(data) // 2] = np.frombuffer(data, "<u2")[: half.size]
    records = step_records(1, [OpenSpan(0, k, 0, rows), OpenSpan(0, v, 0, rows)], limit=1 << 20)
    forge.frame(forge.seal(records[0]))
    forge.frame(forge.seal(forged_step(8)))


@good("split-copied", "parts of a split record in two frames, the last one first, one of them twice")
def _(forge: Forge) -> None:
    forge.begin()
    k, v = forged_group(), forged_group(StreamId.V)
    assert k.split is not None
    low, high = k.split(1)
    lsn = forge.lsn + 1
    for record in (high, low, high):
        forge.lsn = lsn - 1
        forge.frame(forge.seal(record))
    forge.frame(forge.seal(v))


@good("highest-lsn", "a copy of an older record that stands behind the newer one does not win")
def _(forge: Forge) -> None:
    forge.begin()
    forge.lsn = 20
    forge.frame(forge.seal(forged_step(0, 4)))
    forge.lsn = 10
    older = forged_step(0, 4)
    forge.frame(forge.seal(with_body(older, bytes(len(older.body)))))


def _split_pair(forge: Forge, first: Record, second: Record) -> None:
    """Two records that pose as parts of one, since they share an lsn, over whole ones."""
    forge.begin()
    forge.frame(forge.seal(forged_step(0, 16)))
    sealed = forge.seal(first)
    forge.lsn -= 1
    forge.frame(sealed, forge.seal(second))


@bad("split-overlap", "parts of a split record that overlap: a head is missing", frozen=False)
def _(forge: Forge) -> None:
    model = Model.uniform(1, 4, 16)
    forge.frame(forge.seal(model.record()))
    forge.frame(forge.seal(forged_sequence().record(), model_hash=np.void(model.hash)))
    streams = [Stream(s, 4, 16) for s in (StreamId.K, StreamId.V)]
    spans = [OpenSpan(0, s, 0, noise((4, 4, 16), s.id).astype(ml_dtypes.bfloat16).view(np.uint16)) for s in streams]
    record = step_records(1, spans, limit=1 << 20)[0]
    assert record.split is not None
    low, rest = record.split(2)
    sealed = forge.seal(low)
    forge.lsn -= 1
    forge.frame(sealed, forge.seal(rest, first_head=1))


@bad("split-tokens", "parts of a split record that differ in tokens", frozen=False)
def _(forge: Forge) -> None:
    first, second = forged_step(0, 4).split, forged_step(0, 8).split
    assert first is not None
    assert second is not None
    _split_pair(forge, first(1)[0], second(1)[1])


@bad("split-kinds", "parts of a split record that differ in kind", frozen=False)
def _(forge: Forge) -> None:
    first, second = forged_group().split, forged_step(0, 16).split
    assert first is not None
    assert second is not None
    _split_pair(forge, first(1)[0], second(1)[1])


def make_durable_lost(path: Path) -> None:
    """A clean log without its last frames, beside the sidecar that knows of them."""
    make_raw(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 64)


BAD.append(Case("durable-lost", "the end of a clean log is missing, and its sidecar says so", make_durable_lost,
                "CorruptRecord", modes=True))  # fmt: skip

# -- writing and describing ----------------------------------------------------------------------------------------

WITH_SIDECAR = ("worked-example", "durable-lost")


def make_case(case: Case, directory: Path) -> Path:
    """Write one golden log, and its sidecar if that is part of it."""
    path = directory / f"{case.name}.kvlog"
    with fixed_random(case.name):
        case.make(path)
    if case.name not in WITH_SIDECAR:
        sidecar_path(path).unlink(missing_ok=True)
    return path


def read_all(path: Path, recovery: str = "torn-tail") -> dict[str, dict[str, Any]]:
    """Each sequence's length and the digests of its rows' bits, by layer and stream. Raises what the store raises."""
    out = {}
    with kvcodec.open(path, recovery=recovery) as store:
        for sequence in store:
            rows = {}
            for n, layer in enumerate(store.index.sequences[sequence._index.info.id].model.layers):
                if layer.streams:
                    for stream, array in zip(layer.streams, sequence.read(n), strict=True):
                        rows[f"{n}.{stream.name}"] = hashlib.sha256(array.astype(array.dtype).tobytes()).hexdigest()
            out[sequence.name] = {"tokens": len(sequence), "rows": rows}
    return out


def read_modes(path: Path) -> dict[str, Any]:
    """For each recovery mode what is read, in tokens of each sequence, or the error."""
    out: dict[str, Any] = {}
    for mode in Recovery:
        try:
            out[mode.value] = {name: read["tokens"] for name, read in read_all(path, mode).items()}
        except KvcodecError as error:
            out[mode.value] = type(error).__name__
    return out


def describe(case: Case, path: Path) -> dict[str, Any]:
    """A case's entry in the index. The expected error is the case's own word, not what was seen."""
    entry: dict[str, Any] = {"name": path.name, "shows": case.shows, "sha256": digest(path)}
    if case.name in WITH_SIDECAR:
        entry["sidecar"] = digest(sidecar_path(path))
    if case.error:
        entry |= {"error": case.error, "at": case.at}
    else:
        entry["sequences"] = read_all(path)
    if case.modes:
        entry["modes"] = read_modes(path)
    return entry


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_golden(directory: Path) -> None:
    """Write all frozen cases and index.json."""
    cases = [case for case in GOOD + BAD if case.frozen]
    index = [describe(case, make_case(case, directory)) for case in cases]
    text = json.dumps(index, indent=1, ensure_ascii=False)
    (directory / "index.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Replace the golden files, once all of them are made."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    with tempfile.TemporaryDirectory() as scratch:
        write_golden(Path(scratch))
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(scratch, target)


if __name__ == "__main__":
    main()
