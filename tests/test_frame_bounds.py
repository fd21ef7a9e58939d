"""Frames and records at the bounds of what they may say: the careful reader takes the last value and refuses the next,
and the quick scan takes nothing that it refuses.
"""

import functools
import itertools

import numpy as np
import pytest

from kvcodec.errors import CorruptRecord, FormatError, UnsupportedVersion
from kvcodec.flash.checksum import crc32c
from kvcodec.layout import (
    COUNTER_LIMIT,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    FRAME_TRAILER,
    HEADERS,
    LOOSE_ALIGNMENT,
    MAX_TOKEN,
    RECORD_ALIGNMENT,
    RECORD_HEADER,
    DropScope,
    FrameType,
    Kind,
)
from kvcodec.log.frame import (
    Flaw,
    FrameId,
    Record,
    build_frame,
    count_drops,
    host_bytes,
    implied_drop,
    new_record,
    read_frame,
    read_record_header,
    seal_record,
)
from kvcodec.log.reader import Cursor
from kvcodec.log.scan import scan_frames
from tools.golden.forge import repair
from tools.golden.forged import forged_group, forged_model, forged_sequence, forged_step

BASE, OFFSET, UUID = 10_000, 64, bytes(range(16))
LAST = COUNTER_LIMIT - 1
GOOD = FrameId(5, 4, 7, 3, 0xABCD, 2, FrameType.DATA)


def seal(record, lsn=9, **changes):
    """Header and body of a record, with some header fields changed and the checksum right all the same."""
    header = np.frombuffer(bytearray(seal_record(record, lsn)), record.header.dtype)[0]
    for name, value in changes.items():
        header[name] = value
    header["header_crc"] = crc32c(header.tobytes()[4:])
    return header.tobytes(), bytes(record.body)


def frame_of(*records, ident=GOOD):
    return build_frame(records, ident, offset=OFFSET, generation=3, uuid=UUID)[0]


def read(frame, size=4096, uuid=UUID, generation=3):
    """The frame at OFFSET of a block of so many bytes."""
    data = np.zeros(size, np.uint8)
    data[OFFSET : OFFSET + len(frame)] = np.frombuffer(frame, np.uint8)[: size - OFFSET]
    return read_frame(data, OFFSET, generation=generation, uuid=uuid, base=BASE)


def change(frame, dtype=FRAME_HEADER, at=0, **fields):
    """The frame with some fields of one of its structs changed, and its own checksums right."""
    row = np.frombuffer(frame, dtype, 1, at)[0]
    for name, value in fields.items():
        row[name] = value
    repair(frame, UUID)
    return frame


def test_a_frame_says_what_was_sealed():
    records = [seal(forged_sequence().record()), seal(forged_group(), 10), seal(forged_step(16), 11)]
    data, places, crc = build_frame(records, GOOD, offset=OFFSET, generation=3, uuid=UUID)
    frame = read(data)
    assert (frame.id, frame.end, frame.crc) == (GOOD, OFFSET + len(data), crc)
    assert [at for at, _ in frame.records] == places
    assert [header.tobytes() for _, header in frame.records] == [header for header, _ in records]
    for at, (header, body) in zip(places, records, strict=True):
        assert bytes(data[at - OFFSET :])[: len(header) + len(body)] == header + body


@pytest.mark.parametrize("generation", [2, 4])
def test_a_frame_of_another_generation_is_none(generation):
    with pytest.raises(Flaw, match="magic"):
        read(frame_of(), generation=generation)


def test_a_frame_of_another_file_is_none():
    with pytest.raises(Flaw, match="header checksum"):
        read(frame_of(), uuid=bytes(16))


def test_a_frame_may_end_with_its_block_and_not_behind_it():
    data = frame_of(seal(forged_step(0)))
    assert read(data, OFFSET + len(data)).end == OFFSET + len(data)
    for size in (OFFSET + len(data) - 1, OFFSET + FRAME_HEADER.itemsize):
        with pytest.raises(Flaw, match="length"):
            read(data, size)
    for size in (OFFSET + FRAME_HEADER.itemsize - 1, OFFSET):
        with pytest.raises(Flaw, match="does not fit"):
            read(data, size)


def test_a_frame_of_nothing_is_the_shortest():
    data = frame_of()
    assert len(data) == FRAME_OVERHEAD
    assert read(data).records == []
    for length in (FRAME_OVERHEAD - 8, FRAME_OVERHEAD - 1, FRAME_OVERHEAD + 1, FRAME_OVERHEAD + 4, 0):
        with pytest.raises(Flaw, match=f"frame length {length}"):
            read(change(frame_of(), length=length))


@pytest.mark.parametrize("field", FRAME_TRAILER.names)
def test_a_trailer_that_is_wrong_in_one_field_commits_nothing(field):
    data = frame_of(seal(forged_step(0)))
    np.frombuffer(data, FRAME_TRAILER, 1, len(data) - FRAME_TRAILER.itemsize)[0][field] ^= 8
    if field == "length":
        repair(data, UUID)
    with pytest.raises(Flaw, match="frame checksum"):
        read(data)


LIMITS = [
    ({"number": LAST, "durable": 4}, None),
    ({"number": COUNTER_LIMIT, "durable": 4}, CorruptRecord),
    ({"number": 1, "durable": 0, "session_start": 1}, None),
    ({"durable": 5}, CorruptRecord),
    ({"session_start": 5}, None),
    ({"session_start": 6}, CorruptRecord),
    ({"session_start": 1}, None),
    ({"session_start": 0}, CorruptRecord),
    ({"flags": 1}, UnsupportedVersion),
    ({"version": 0}, UnsupportedVersion),
    ({"version": 2}, UnsupportedVersion),
    ({"type": FrameType.COMPACTION}, None),
    ({"type": 0}, UnsupportedVersion),
    ({"type": 3}, UnsupportedVersion),
    ({"type": 0x7F}, UnsupportedVersion),
    ({"records": 0}, CorruptRecord),
    ({"records": 2}, CorruptRecord),
]


@pytest.mark.parametrize(("fields", "error"), LIMITS, ids=str)
def test_what_the_header_of_a_frame_may_say(fields, error):
    data = change(frame_of(seal(forged_step(0))), **fields)
    if error is None:
        frame = read(data)
        assert {name: getattr(frame.id, name) for name in fields} == fields
    else:
        why, at = "", BASE + OFFSET
        if "records" in fields:
            end = len(data) - FRAME_TRAILER.itemsize
            why = "no record where the frame counts one" if fields["records"] else "bytes after the last record"
            at += end if fields["records"] else FRAME_HEADER.itemsize
        with pytest.raises(error, match=f"at byte {at}: .*{why}"):
            read(data)


@pytest.mark.parametrize("type_", [0x80, 0x81, 0xFF])
def test_nothing_is_looked_at_in_a_frame_that_is_skipped(type_):
    frame = read(change(frame_of((b"\xa5" * 64, b"")), type=type_, records=9))
    assert (frame.id.type, frame.records) == (type_, [])


RECORDS = [
    (forged_step, {"lsn": LAST}, None),
    (forged_step, {"lsn": COUNTER_LIMIT}, CorruptRecord),
    (forged_step, {"sequence": LAST}, None),
    (forged_step, {"sequence": COUNTER_LIMIT}, CorruptRecord),
    (forged_step, {"version": 0}, UnsupportedVersion),
    (forged_step, {"header_bytes": RECORD_HEADER.itemsize - 1}, CorruptRecord),
    (forged_step, {"header_bytes": 0}, CorruptRecord),
    (forged_step, {"reserved": b"\0\0\0\1"}, UnsupportedVersion),
    (forged_step, {"reserved": b"\1\0\0\0"}, UnsupportedVersion),
    (forged_step, {"kind": 0x7E}, UnsupportedVersion),
    (forged_step, {"kind": 0xFE}, None),
    (forged_step, {"kind": 0x80}, None),
    (forged_step, {"kind": 0xFF}, UnsupportedVersion),
    (forged_step, {"body_bytes": 1 << 20}, CorruptRecord),
    (lambda: new_record(Kind.FREED, bytes(24), runs=1), {}, None),
    (lambda: new_record(Kind.FREED, bytes(24), runs=1), {"sequence": 1}, CorruptRecord),
    (lambda: new_record(Kind.RETIRED, bytes(8), blocks=1), {}, None),
    (lambda: new_record(Kind.RETIRED, bytes(8), blocks=1), {"sequence": 1}, CorruptRecord),
    (lambda: forged_model().record(), {}, None),
    (lambda: forged_model().record(), {"sequence": 1}, CorruptRecord),
    (lambda: new_record(Kind.DROP, bytes(8), sequence=1), {}, CorruptRecord),
]


@pytest.mark.parametrize(("make", "fields", "error"), RECORDS, ids=[str(row[1:]) for row in RECORDS])
def test_what_the_header_of_a_record_may_say(make, fields, error):
    data = frame_of(seal(make(), **fields))
    if error is None:
        ((at, header),) = read(data).records
        assert at == OFFSET + FRAME_HEADER.itemsize
        assert {name: int(header[name]) for name in fields} == fields
        return
    with pytest.raises(error, match=f"at byte {BASE + OFFSET + FRAME_HEADER.itemsize}:"):
        read(data)


def test_a_record_may_end_where_the_data_ends_and_its_header_not_behind_it():
    header, body = seal(forged_step(0))
    data = np.frombuffer(header + body, np.uint8)
    assert read_record_header(data, 0, BASE).tobytes() == header
    with pytest.raises(CorruptRecord, match="longer than its frame"):
        read_record_header(data[:-1], 0, BASE)
    with pytest.raises(CorruptRecord, match="does not fit"):
        read_record_header(data[: RECORD_HEADER.itemsize - 1], 0, BASE)
    with pytest.raises(CorruptRecord, match="longer than its frame"):
        read_record_header(data[: RECORD_HEADER.itemsize], 0, BASE)


def test_a_record_of_an_unknown_kind_may_have_a_header_and_no_more():
    record = Record(np.zeros((), RECORD_HEADER), b"")
    frame = read(frame_of(seal(record, kind=0x85, version=1), seal(forged_step(0))))
    assert [int(header["kind"]) for _, header in frame.records] == [0x85, Kind.STEP]
    assert frame.records[0][1].dtype == RECORD_HEADER


@pytest.mark.parametrize("length", [0, 8, RECORD_HEADER.itemsize - 1])
def test_a_header_is_as_long_as_the_common_one_even_where_it_is_skipped(length):
    header = np.zeros((), RECORD_HEADER)
    header["kind"], header["version"], header["header_bytes"] = 0x85, 1, length
    header["header_crc"] = crc32c(header.tobytes()[4:length])
    with pytest.raises(CorruptRecord, match="record header length"):
        read(frame_of((header.tobytes(), b"")))


@pytest.mark.parametrize("kind", HEADERS)
def test_each_reserved_byte_of_a_record_is_looked_at(kind):
    """All but the last of a field are easily forgotten."""
    body = {Kind.FREED: bytes(24), Kind.RETIRED: bytes(8)}.get(kind, b"")
    fields = {Kind.FREED: {"runs": 1}, Kind.RETIRED: {"blocks": 1}, Kind.DROP: {"sequence": 1}}.get(kind, {})
    own = [name for name in HEADERS[kind].names if name.startswith("reserved")]
    assert own
    read(frame_of(seal(new_record(kind, body, **fields))))
    for name in own:
        field, at = HEADERS[kind].fields[name][:2]
        for byte in (at, at + field.itemsize - 1):
            header = bytearray(seal(new_record(kind, body, **fields))[0])
            header[byte] = 1
            header[:4] = crc32c(bytes(header[4:])).to_bytes(4, "little")
            with pytest.raises(UnsupportedVersion, match="reserved"):
                read(frame_of((bytes(header), body)))


FAR = MAX_TOKEN
DROPS = [
    (DropScope.TAIL, FAR, 0, 0, True), (DropScope.TAIL, FAR + 1, 0, 0, False), (DropScope.TAIL, 0, 0, 0, True),
    (DropScope.TAIL, 1, 2, 0, False), (DropScope.TAIL, 1, 0, 1, False),
    (DropScope.RANGE, 0, 1, 0, True), (DropScope.RANGE, 1, 1, 0, False), (DropScope.RANGE, FAR - 1, FAR, 0, True),
    (DropScope.RANGE, 2, 1, 0, False), (DropScope.RANGE, 0, FAR + 1, 0, False), (DropScope.RANGE, 0, 1, 1, False),
    (DropScope.SEQUENCE, 0, 0, 0, True), (DropScope.SEQUENCE, 1, 0, 0, False), (DropScope.SEQUENCE, 0, 1, 0, False),
    (DropScope.SEQUENCE, 0, 0, 1, False),
    (DropScope.SUMMARY, 0, 1, 1, True), (DropScope.SUMMARY, 0, 1, 8, True), (DropScope.SUMMARY, 0, 1, 9, False),
    (DropScope.SUMMARY, 0, 1, 0, False), (DropScope.SUMMARY, 1, 1, 1, False), (DropScope.SUMMARY, 0, FAR + 1, 1, False),
    (4, 0, 0, 0, False), (4, 0, 1, 0, False), (255, 0, 1, 1, False),
]  # fmt: skip


@pytest.mark.parametrize(("scope", "first", "end", "since", "good"), DROPS)
def test_what_a_drop_record_may_end(scope, first, end, since, good):
    fields = {"first_token": first, "end_token": end, "scope": scope, "summary_lsn": since}
    for sequence in (1, LAST, 0):
        data = frame_of(seal(new_record(Kind.DROP, b"", sequence=sequence, **fields)))
        if good and sequence:
            assert int(read(data).records[0][1]["first_token"]) == first
        else:
            with pytest.raises(CorruptRecord, match="ends nothing"):
                read(data)


def test_every_byte_around_records_is_zero():
    """Padding in front of an aligned record, and in front of the trailer."""
    records = [seal(forged_step(0)), seal(forged_group(), 10), seal(new_record(Kind.MODEL, b"abc"), 11)]
    data, places, _ = build_frame(records, GOOD, offset=OFFSET, generation=3, uuid=UUID)
    read(data)
    ends = [at + len(h) + len(b) - OFFSET for at, (h, b) in zip(places, records, strict=True)]
    starts = [*(at - OFFSET for at in places[1:]), len(data) - FRAME_TRAILER.itemsize]
    gaps = [byte for end, start in zip(ends, starts, strict=True) for byte in range(end, start)]
    assert len(gaps) > 10
    for byte in gaps:
        bad = bytearray(data)
        bad[byte] = 1
        repair(bad, UUID)
        with pytest.raises(FormatError):
            read(bad)


@pytest.mark.parametrize("body", [b"abc", bytes(8)])
@pytest.mark.parametrize(("more", "good"), [(0, True), (8, False), (16, False), (64, False)])
def test_no_whole_word_lies_between_the_last_record_and_the_trailer(body, more, good):
    plain = frame_of(seal(new_record(Kind.MODEL, body)))
    data = plain[: -FRAME_TRAILER.itemsize] + bytes(more + FRAME_TRAILER.itemsize)
    np.frombuffer(data, FRAME_TRAILER, 1, len(data) - FRAME_TRAILER.itemsize)[0]["length"] = len(data)
    change(data, length=len(data))
    if good:
        assert read(data).end == OFFSET + len(data)
    else:
        with pytest.raises(CorruptRecord, match="after the last record"):
            read(data)


@pytest.mark.parametrize("kind", [kind for kind in HEADERS if kind != Kind.DROP])
def test_a_record_lies_where_its_kind_is_aligned(kind):
    """Also behind records of other lengths; and nowhere else."""
    for size in (0, 1, 8, 9, 40):
        first = seal(new_record(Kind.STEP, bytes(size)))
        at = read(frame_of(first, seal(new_record(kind, b"")))).records[1][0]
        end = OFFSET + FRAME_HEADER.itemsize + HEADERS[Kind.STEP].itemsize + size
        alignment = RECORD_ALIGNMENT.get(kind, LOOSE_ALIGNMENT)
        assert at == next(n for n in itertools.count(end) if n % alignment == 0)


def test_a_record_that_is_not_aligned_is_named_by_its_place():
    header, body = seal(forged_group(), kind=Kind.STEP)  # laid at the next multiple of 8
    data = frame_of(seal(new_record(Kind.STEP, b"")), (header, body))
    at = FRAME_HEADER.itemsize + HEADERS[Kind.STEP].itemsize
    assert (OFFSET + at) % RECORD_ALIGNMENT[Kind.GROUP]
    row = np.frombuffer(data, HEADERS[Kind.GROUP], 1, at)[0]
    row["kind"] = Kind.GROUP
    row["header_crc"] = crc32c(row.tobytes()[4:])
    repair(data, UUID)
    with pytest.raises(CorruptRecord, match=f"at byte {BASE + OFFSET + at}: the record is not aligned"):
        read(data)


def test_drops_are_counted_modulo_two_to_the_32():
    assert count_drops(5, []) == 5
    assert count_drops(5, [Kind.DROP, Kind.STEP, Kind.DROP]) == 7
    assert count_drops((1 << 32) - 1, [Kind.DROP]) == 0
    assert count_drops((1 << 32) - 2, [Kind.DROP]) == (1 << 32) - 1


def test_bytes_that_carry_rows():
    """Those of error bounds are none, whatever a forged header says of them."""
    sizes = {kind: host_bytes(new_record(kind, b"", body_bytes=100).header) for kind in HEADERS}
    assert {kind for kind, size in sizes.items() if size} == {Kind.GROUP, Kind.STEP, Kind.ROWS}
    assert {size for size in sizes.values() if size} == {100}
    for error_bytes, host in ((0, 100), (40, 60), (100, 0), (101, 0), (1 << 31, 0)):
        assert host_bytes(new_record(Kind.GROUP, b"", body_bytes=100, error_bytes=error_bytes).header) == host


def test_a_drop_that_damage_implies_is_of_no_sequence():
    header = implied_drop(17)
    assert (int(header["kind"]), int(header["lsn"]), int(header["sequence"])) == (Kind.DROP, 17, 0)


# -- the quick scan ---------------------------------------------------------------------------------------------------


def scan(forge, cursor, offset):
    return scan_frames(forge.device, cursor, forge.block, offset)


def careful(forge, cursor, offset):
    """The frame at a byte, if it is one that continues the chain at a cursor and has plain records only."""
    data = forge.device.data(forge.block.number, 0, forge.device.geometry.block_bytes)
    try:
        frame = read_frame(data, offset, generation=forge.block.generation, uuid=forge.uuid, base=0)
    except (FormatError, Flaw):
        return None
    plain = {Kind.SEQUENCE, Kind.GROUP, Kind.STEP, Kind.ROWS}
    chained = (frame.id.number, frame.id.previous) == (cursor.number + 1, cursor.crc)
    known = frame.id.type in list(FrameType) and plain >= {int(header["kind"]) for _, header in frame.records}
    return frame if chained and known else None


def assert_scanned_as_read(forge, cursor, offset):
    """Whether the frame was taken."""
    frame, found = careful(forge, cursor, offset), scan(forge, cursor, offset)
    assert found.frames == (frame is not None)
    if frame is None:
        assert (found.framed, found.compacted, found.compactions, len(found.table)) == (0, 0, [], 0)
        assert (found.cursor.number, found.cursor.crc, found.cursor.durable) == (
            cursor.number, cursor.crc, cursor.durable,
        )  # fmt: skip
        return False
    assert found.framed == frame.end - offset
    compaction = frame.id.type == FrameType.COMPACTION
    assert found.compacted == (found.framed if compaction else 0)
    assert found.host == (0 if compaction else sum(host_bytes(header) for _, header in frame.records))
    assert found.lsn == max((int(header["lsn"]) for _, header in frame.records), default=0)
    assert [(one.place.offset, one.header.tobytes()) for one in found.table] == [
        (at, header.tobytes()) for at, header in frame.records
    ]
    end, ident = found.cursor, frame.id
    assert (end.block, end.offset, end.number, end.crc) == (forge.block, frame.end, ident.number, frame.crc)
    assert (end.session, end.drops) == (ident.session, ident.drops)
    assert end.durable == max(cursor.durable, ident.durable)
    return True


@pytest.mark.parametrize(("fields", "error"), LIMITS, ids=str)
def test_a_scan_takes_a_frame_that_the_reader_takes(forge, fields, error):
    number = fields.get("number", 5)
    cursor = Cursor(forge.block, OFFSET, number - 1, 0xABCD, 1)
    ident = {"number": number, "durable": 4, "session": 7, "session_start": 3, "previous": 0xABCD, "drops": 2}
    offset = forge.frame(forge.seal(forged_step(0)), patch=lambda data: change(data, **fields) and None, **ident)
    assert assert_scanned_as_read(forge, cursor, offset) == (error is None)


@pytest.mark.parametrize(("make", "fields", "error"), RECORDS, ids=[str(row[1:]) for row in RECORDS])
def test_a_scan_takes_a_record_that_the_reader_takes(forge, make, fields, error):
    cursor, record = Cursor(forge.block, OFFSET), make()
    offset = forge.frame(forge.seal(record, **fields), forge.seal(forged_step(1)))
    plain = fields.get("kind", int(record.header["kind"])) == Kind.STEP
    assert assert_scanned_as_read(forge, cursor, offset) == (error is None and plain)


@pytest.mark.parametrize("kind", [Kind.SEQUENCE, Kind.GROUP, Kind.STEP, Kind.ROWS])
@pytest.mark.parametrize("type_", FrameType)
def test_a_scan_counts_what_the_reader_counts(forge, kind, type_):
    cursor = Cursor(forge.block, OFFSET, durable=3)
    records = [new_record(kind, bytes(size), sequence=1) for size in (0, 40, 41, 100)]
    if kind == Kind.GROUP:
        records += [new_record(kind, bytes(50), error_bytes=n) for n in (20, 60)]
    offset = forge.frame(*map(forge.seal, records), type=type_)
    assert assert_scanned_as_read(forge, cursor, offset)


@pytest.mark.parametrize("kind", [Kind.SEQUENCE, Kind.GROUP, Kind.STEP, Kind.ROWS])
def test_a_scan_takes_no_record_with_a_reserved_byte_set(forge, kind):
    field, at = HEADERS[kind].fields["reserved"][:2]
    for byte in (at, at + field.itemsize - 1):
        header, body = forge.seal(new_record(kind, b""))
        header = bytearray(header)
        header[byte] = 1
        header[:4] = crc32c(bytes(header[4:])).to_bytes(4, "little")
        offset, crc = forge.offset, forge.crc
        cursor = Cursor(forge.block, offset, forge.number, crc)
        forge.frame((bytes(header), body))
        assert not assert_scanned_as_read(forge, cursor, offset)


def test_a_scan_takes_no_last_record_that_is_longer_than_its_frame(forge):
    for more in (8, 16, 1 << 20):
        cursor = Cursor(forge.block, forge.offset, forge.number, forge.crc)
        record = forged_step(0)
        offset = forge.frame(forge.seal(record, body_bytes=len(record.body) + more))
        assert not assert_scanned_as_read(forge, cursor, offset)


def test_a_scan_takes_no_header_of_another_length(forge):
    longer = Record(np.zeros((), np.dtype([*HEADERS[Kind.STEP].descr, ("more", "V8")])), b"")
    cursor = Cursor(forge.block, forge.offset)
    offset = forge.frame(forge.seal(longer, kind=Kind.STEP, version=1))
    assert not assert_scanned_as_read(forge, cursor, offset)


def test_a_scan_takes_no_record_that_is_not_aligned(forge):
    header, body = forge.seal(forged_group(), kind=Kind.STEP)  # laid at the next multiple of 8

    def patch(data):
        row = np.frombuffer(data, HEADERS[Kind.GROUP], 1, FRAME_HEADER.itemsize)[0]
        row["kind"] = Kind.GROUP
        row["header_crc"] = crc32c(row.tobytes()[4:])

    cursor = Cursor(forge.block, forge.offset)
    assert (forge.offset + FRAME_HEADER.itemsize) % RECORD_ALIGNMENT[Kind.GROUP]
    assert not assert_scanned_as_read(forge, cursor, forge.frame((header, body), patch=patch))


def test_a_scan_takes_no_frame_with_a_wrong_byte(forge):
    records = [forge.seal(forged_step(0)), forge.seal(forged_group()), forge.seal(new_record(Kind.ROWS, b"abc"))]
    offset = forge.frame(*records)
    cursor, good = Cursor(forge.block, OFFSET), forge.path.read_bytes()
    assert assert_scanned_as_read(forge, cursor, offset)
    start = forge.device.file_offset(forge.block.number, offset)
    length = scan(forge, cursor, offset).framed
    for byte in [*range(FRAME_HEADER.itemsize), *range(FRAME_HEADER.itemsize, length, 5), *range(length - 8, length)]:
        forge.device.image.write(start + byte, bytes([good[start + byte] ^ 2]))
        assert not assert_scanned_as_read(forge, cursor, offset)
        forge.device.image.write(start + byte, good[start + byte : start + byte + 1])


def test_a_scan_takes_no_set_byte_around_records(forge):
    """Behind the first of them, of whose kind the next one is not, and before the trailer."""
    records = [forge.seal(forged_step(0)), forge.seal(forged_group()), forge.seal(new_record(Kind.ROWS, b"abc"))]
    for place in (FRAME_HEADER.itemsize + sum(map(len, records[0])), -12, -9):
        cursor = Cursor(forge.block, forge.offset, forge.number, forge.crc)
        offset = forge.frame(*records, patch=functools.partial(set_byte, place))
        assert not assert_scanned_as_read(forge, cursor, offset)


def set_byte(at, data):
    data[at] = 1


@pytest.mark.parametrize("body", [b"abc", bytes(8)])
@pytest.mark.parametrize("more", [0, 8, 64])
def test_a_scan_takes_no_word_behind_the_last_record(forge, body, more):
    def patch(data):
        del data[-FRAME_TRAILER.itemsize :]
        data += bytes(more + FRAME_TRAILER.itemsize)
        np.frombuffer(data, FRAME_TRAILER, 1, len(data) - FRAME_TRAILER.itemsize)[0]["length"] = len(data)
        np.frombuffer(data, FRAME_HEADER, 1)[0]["length"] = len(data)

    cursor = Cursor(forge.block, OFFSET)
    offset = forge.frame(forge.seal(new_record(Kind.ROWS, body)), patch=patch)
    assert assert_scanned_as_read(forge, cursor, offset) == (more == 0)


def test_a_scan_ends_before_a_unit_that_is_not_programmed(forge):
    """Which may be in the middle of a frame: what is there of it is looked at by nobody."""
    forge.frame(forge.seal(forged_step(0)))
    middle = forge.offset
    forge.frame(forge.seal(forged_step(1, tokens=8)))
    end = forge.offset
    forge.frame(forge.seal(forged_step(9)))
    cursor = Cursor(forge.block, OFFSET)
    assert scan(forge, cursor, OFFSET).frames == 3
    for unit in range(middle // forge.unit, end // forge.unit):
        at = forge.device._spare_offset(forge.block.number, unit)
        slot = forge.device.image.view(at, 16).tobytes()
        forge.device.image.write(at, bytes(16))
        assert scan(forge, cursor, OFFSET).frames == 1
        forge.device.image.write(at, slot)


def test_a_scan_goes_on_behind_padding_and_nothing_else(forge):
    forge.frame(forge.seal(new_record(Kind.STEP, b"abc")))
    offset = forge.offset
    forge.frame(forge.seal(forged_step(1)))
    cursor = Cursor(forge.block, OFFSET)
    found = scan(forge, cursor, OFFSET)
    assert found.frames == 2
    first = read_frame(forge.device.data(0, 0, 8192), OFFSET, generation=1, uuid=forge.uuid, base=0).end
    assert first < offset
    forge.device.image.write(forge.device.file_offset(0, offset - 1), b"\1")
    assert scan(forge, cursor, OFFSET).frames == 1
    assert scan(forge, cursor, OFFSET).cursor.offset == first


def test_a_scan_changes_no_cursor(forge):
    forge.frame(forge.seal(forged_step(0)))
    cursor = Cursor(forge.block, OFFSET)
    scan(forge, cursor, OFFSET)
    assert cursor == Cursor(forge.block, OFFSET)
