"""Frames, blocks and the headers of records that are not what they ought to be, or look as if they were not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvcodec import layout
from kvcodec.flash.checksum import crc32c
from kvcodec.layout import FORMAT_VERSION, FRAME_HEADER, RECORD_HEADER, Kind, StreamId
from kvcodec.log.frame import FrameId, Record, build_frame
from kvcodec.store.model import Stream
from kvcodec.store.records import OpenSpan, step_records
from tools.golden.fixed import uuid_of
from tools.golden.forge import CRC, FIRST_BLOCK, Forge, Forgeries, corrupt, frame_field
from tools.golden.forged import forged_group, forged_model, forged_sequence, forged_step

CASES = Forgeries()


@CASES.bad("frame-damaged", "a bit flipped in a frame that later ones knew to be durable", modes=True)
def _(forge: Forge) -> None:
    forge.begin()
    forge.steps(1)
    flip: Callable[[bytearray], None] = lambda data: data.__setitem__(70, data[70] ^ 1)  # noqa: E731
    forge.frame(forge.seal(forged_step(1)), after=flip)
    forge.frame(forge.seal(forged_step(2)))
    forge.frame(forge.seal(forged_step(3)))


@CASES.bad("frame-foreign", "a frame of another file in place of a durable one")
def _(forge: Forge) -> None:
    forge.begin()
    own, forge.uuid = forge.uuid, uuid_of("another file")
    forge.steps(1)
    forge.uuid = own
    forge.frame(forge.seal(forged_step(1)))


@CASES.good("superblock-lost", "the first superblock copy is damaged, the second one serves")
def _(forge: Forge) -> None:
    forge.begin()
    forge.steps(2)
    corrupt(forge.path, 100)


@CASES.good("block-header-lost", "a damaged block header; the block is known by its next unit")
def _(forge: Forge) -> None:
    forge.begin()
    forge.steps(2)
    corrupt(forge.path, FIRST_BLOCK + forge.device.geometry.spare_area + 8)


@CASES.bad("frame-number", "a frame number is skipped, and both sides were durable", frozen=False)
def _(forge: Forge) -> None:
    forge.begin()
    forge.number += 1
    forge.steps(2)


@CASES.bad("frame-previous", "a frame that does not continue the one before, and was durable", frozen=False)
def _(forge: Forge) -> None:
    forge.begin()
    forge.crc ^= 1
    forge.steps(2)


@CASES.bad("frame-version", "a frame of version 2", "UnsupportedVersion")
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record()), patch=frame_field("version", 2))


@CASES.bad("frame-flags", "a flag of a frame is set", "UnsupportedVersion")
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record()), patch=frame_field("flags", 1))


@CASES.bad("frame-type", "a frame of an unknown mandatory type", "UnsupportedVersion", frozen=False)
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record()), patch=frame_field("type", 3))


@CASES.good("frame-type-skipped", "a frame of an unknown type that a reader may skip")
def _(forge: Forge) -> None:
    forge.begin()
    forge.frame((b"\xa5" * 64, b""), patch=frame_field("type", 0x81))
    forge.steps(2)


@CASES.bad("record-count", "a frame counts a record more than it has", frozen=False)
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record()), patch=frame_field("records", 2))


@CASES.bad("frame-trailing-bytes", "bytes after the last record of a frame")
def _(forge: Forge) -> None:
    forge.frame(
        forge.seal(forged_model().record()), forge.seal(forged_sequence().record()), patch=frame_field("records", 1)
    )


@CASES.bad("record-gap-set", "the gap before a record is not zeros", frozen=False)
def _(forge: Forge) -> None:
    forge.begin()

    def patch(data: bytearray) -> None:
        data[FRAME_HEADER.itemsize] = 1  # a GROUP record begins at the next multiple of 64

    forge.frame(forge.seal(forged_group()), patch=patch)


@CASES.bad("record-checksum", "a record header's checksum is wrong in a frame that is right")
def _(forge: Forge) -> None:
    header, body = forge.seal(forged_model().record())
    forge.frame((b"\0\0\0\0" + header[CRC:], body))


def bad_kind(name: str, shows: str, kind: int, error: str, *, frozen: bool = True) -> None:
    """Register a log with a record of a kind that version 1 does not know."""

    @CASES.forged(name, shows, error, frozen=frozen)
    def _(forge: Forge) -> None:
        forge.begin()
        header = np.zeros((), RECORD_HEADER)
        record = Record(header, b"what a later version may mean")
        forge.frame(forge.seal(record, kind=kind, version=FORMAT_VERSION), forge.seal(forged_step(0)))


bad_kind("kind-unknown", "a mandatory kind that this version does not know", 0x7F, "UnsupportedVersion")
bad_kind("kind-erased", "a kind of 0xFF", 0xFF, "UnsupportedVersion", frozen=False)
bad_kind("kind-skipped", "an unknown kind that a reader may skip", 0x87, "")


@CASES.bad("record-header-length", "a record header of another length than its kind's")
def _(forge: Forge) -> None:
    record = forged_model().record()
    longer = Record(np.zeros((), np.dtype([*RECORD_HEADER.descr, ("more", "V56")])), record.body)
    forge.frame(forge.seal(longer, kind=Kind.MODEL, version=FORMAT_VERSION))


@CASES.bad("record-too-long", "a record that is longer than its frame")
def _(forge: Forge) -> None:
    forge.frame(forge.seal(forged_model().record(), body_bytes=1 << 31))


@CASES.bad("record-misaligned", "a GROUP record at a multiple of 8 that is none of 64")
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


CASES.bad_record("record-version", "a record of version 2", forged_step, "UnsupportedVersion", version=2)
CASES.bad_record(
    "record-reserved", "a reserved field of a record is set", forged_step, "UnsupportedVersion", reserved=b"\1"
)
CASES.bad_record("record-body-checksum", "a SEQUENCE record whose body checksum is wrong",
                 lambda: forged_sequence(2, "b").record(), frozen=False, body_crc=0)  # fmt: skip


@CASES.bad("group-body-checksum", "a GROUP record whose body checksum is wrong", at="read", frozen=False)
def _(forge: Forge) -> None:
    forge.begin()
    forge.frame(forge.seal(forged_group(StreamId.K), body_crc=0), forge.seal(forged_group(StreamId.V)))


@CASES.good("old-frame-inside", "frames of the block's earlier life and of this one's within a payload are not taken")
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
