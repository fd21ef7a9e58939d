"""Sidecars whose checksums are right and which name other records than the log has there: the log alone decides."""

import contextlib
import os
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.errors import CorruptRecord
from kvcodec.flash.block import Counters
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.layout import RECORD_HEADER, SIDECAR, SIDECAR_ENTRY, SIDECAR_LANE, Kind, Lane, align
from kvcodec.log.reader import Cursor, Log
from kvcodec.log.sidecar import LaneEnd, load_sidecar, sidecar_path, write_sidecar
from tests.caches import TINY
from tests.fuzz.log_seeds import NAMES, log_seed
from tests.test_lifecycle import append, data, make


def forge(tmp_path, name, change):
    """A golden log beside a sidecar whose entries `change` has changed."""
    seed, path = log_seed(NAMES.index(name)), tmp_path / "forged.kvlog"
    path.write_bytes(seed.log)
    sidecar = bytearray(seed.sidecar)
    head = np.frombuffer(sidecar, SIDECAR, 1)[0]
    entries = np.frombuffer(sidecar, SIDECAR_ENTRY, int(head["records"]), SIDECAR.itemsize + 2 * SIDECAR_LANE.itemsize)
    change(entries)
    head["body_crc"] = crc32c(bytes(sidecar[SIDECAR.itemsize :]))
    head["crc"] = crc32c(head.tobytes()[:-4])
    sidecar_path(path).write_bytes(sidecar)
    return path


def read(path):
    with kv.open(path) as store:
        return {s.name: [rows.tobytes() for rows in s.read(0)] for s in store}


def swap_places(entries, one, other):
    for field in ("generation", "block", "offset"):
        entries[field][[one, other]] = entries[field][[other, one]]


def first_of(entries, kind):
    return next(n for n, entry in enumerate(entries) if entry["header"].tobytes()[4] == kind)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("int4", Kind.MODEL), ("int4", Kind.SEQUENCE), ("dictionary-parts", Kind.DICTIONARY), ("product", Kind.CODEBOOK)],
)
def test_another_record_lies_where_the_sidecar_says(tmp_path, name, kind):
    whole = read(forge(tmp_path, name, lambda entries: None))
    path = forge(tmp_path, name, lambda e: swap_places(e, first_of(e, kind), -1))
    if kind in (Kind.MODEL, Kind.SEQUENCE):
        assert read(path) == whole
        return
    with pytest.raises(CorruptRecord, match="another record than the index names"):  # sets are loaded when asked for
        read(path)


def test_rows_lie_elsewhere_than_the_sidecar_says(tmp_path):
    """Nothing but reading them tells."""
    path = forge(tmp_path, "raw", lambda e: swap_places(e, first_of(e, Kind.GROUP), -1))
    with pytest.raises(CorruptRecord):
        read(path)


def test_a_freed_record_that_the_sidecar_misplaces(tmp_path):
    whole = read(forge(tmp_path, "cleaned", lambda entries: None))
    path = forge(tmp_path, "cleaned", lambda e: swap_places(e, first_of(e, Kind.FREED), first_of(e, Kind.MODEL)))
    assert read(path) == whole


# -- what is believed of a sidecar ------------------------------------------------------------------------------------


class Parts:
    """A sidecar in its parts."""

    def __init__(self, raw):
        raw = bytearray(raw)
        self.head = np.frombuffer(raw, SIDECAR, 1).copy()
        lanes = 2 * SIDECAR_LANE.itemsize
        self.lanes = np.frombuffer(raw[SIDECAR.itemsize :][:lanes], SIDECAR_LANE).copy()
        self.entries = np.frombuffer(raw[SIDECAR.itemsize + lanes :], SIDECAR_ENTRY).copy()

    def join(self, **fields):
        """Its bytes, with counts and checksums made right, but for fields of its header that are given."""
        body = self.lanes.tobytes() + self.entries.tobytes()
        own = {"lanes": len(self.lanes), "records": len(self.entries), "body_crc": crc32c(body)} | fields
        for name, value in own.items():
            self.head[name] = value
        if "crc" not in fields:
            self.head["crc"] = crc32c(self.head.tobytes()[:-4])
        return self.head.tobytes() + body


@pytest.fixture
def cleaned(tmp_path):
    """A log with both lanes, and its sidecar."""
    seed, path = log_seed(NAMES.index("cleaned")), tmp_path / "cleaned.kvlog"
    path.write_bytes(seed.log)
    return path, Parts(seed.sidecar)


@contextlib.contextmanager
def loaded(path, raw, *, resume=True):
    """A log that was told what its sidecar knows, and the records that are believed."""
    sidecar_path(path).write_bytes(raw)
    device = Device.open(path)
    log = Log(device)
    try:
        yield log, load_sidecar(path, log, resume=resume)
    finally:
        device.close()


def assert_unknown(path, raw, *, durable=(0, 0)):
    """Nothing is believed of the sidecar but which frames were durable; the log reads as without it."""
    with loaded(path, raw) as (log, table):
        assert len(table) == 0
        assert [walk.known_durable for walk in log.walks] == list(durable)
        assert [walk.cursor for walk in log.walks] == [Cursor(), Cursor()]
        assert (log.lsn, log.retired, len(log.freed), log.report.frames) == (0, {}, 0, 0)


@pytest.mark.parametrize("cleaned_too", [False, True])
def test_a_sidecar_stays_of_use_where_a_writer_appended_nothing(tmp_path, cleaned_too):
    """Or nothing to one of the lanes: it names where their last frames end, before the padding of a sync."""
    path = tmp_path / "c"

    def entries():
        with contextlib.closing(Device.open(path)) as device:
            return len(load_sidecar(path, Log(device), resume=True))

    with make(path) as store:
        append(store.sequence("a"), data(70, 1))
        if cleaned_too:
            store._cleaner.empty({store.log.fresh.blocks.in_use()[0].number})
    before = entries()
    assert before
    for appended in (0, 0, 3, 0):
        with kv.open(path, "a") as store:
            if appended:
                append(store.sequence("a"), data(appended, 1))
        assert entries() >= before


def test_a_sidecar_sets_a_log_where_a_walk_ends(cleaned):
    path, parts = cleaned
    device = Device.open(path)
    walked = Log(device)
    records = walked.poll()
    assert {Kind.FREED} <= {int(one.header["kind"]) for one in records}
    with loaded(path, parts.join()) as (log, table):
        assert [(one.place, one.header.tobytes()) for one in table] == [
            (one.place, one.header.tobytes()) for one in records
        ]
        for walk, own in zip(log.walks, walked.walks, strict=True):
            end = align(walk.cursor.offset, log.device.geometry.unit_bytes)  # a walk goes over the padding
            assert replace(walk.cursor, offset=end, durable=0) == replace(own.cursor, session=0, durable=0)
            assert walk.cursor.durable == walk.known_durable == own.cursor.number > 0
            assert (walk.totals, walk.report.frames) == (own.totals, own.report.frames)
        assert (log.lsn, log.retired, list(log.freed)) == (walked.lsn, walked.retired, list(walked.freed))
        assert log.poll() == []
        assert log.report == walked.report
    device.close()


def test_without_going_on_from_it_a_sidecar_tells_what_was_durable(cleaned):
    path, parts = cleaned
    with loaded(path, parts.join(), resume=False) as (log, table):
        assert len(table) == 0
        assert [walk.known_durable for walk in log.walks] == parts.lanes["durable"].tolist()
        assert [walk.cursor for walk in log.walks] == [Cursor(), Cursor()]


@pytest.mark.parametrize(
    "fields",
    [
        {"magic": b"KVIDX"}, {"version": 0}, {"version": 2}, {"reserved": b"\1"}, {"reserved": bytes(13) + b"\1"},
        {"crc": 1}, {"body_crc": 1}, {"uuid": b"another file's!!"}, {"lanes": 1}, {"lanes": 3}, {"records": 1 << 31},
    ],
    ids=str,
)  # fmt: skip
def test_a_sidecar_whose_header_is_wrong_in_one_field_is_none(cleaned, fields):
    path, parts = cleaned
    assert_unknown(path, parts.join(**fields))


def test_a_sidecar_of_another_length_is_none(cleaned):
    path, parts = cleaned
    raw = parts.join()
    for cut in (0, 1, SIDECAR.itemsize - 1, SIDECAR.itemsize, len(raw) - SIDECAR_ENTRY.itemsize, len(raw) - 1):
        assert_unknown(path, raw[:cut])
    for more in (1, SIDECAR_ENTRY.itemsize):
        assert_unknown(path, raw + bytes(more))


@pytest.mark.parametrize("count", [1, 3])
def test_a_sidecar_of_another_number_of_lanes_is_none(cleaned, count):
    path, parts = cleaned
    parts.lanes = np.resize(parts.lanes, count)
    assert_unknown(path, parts.join())


def test_a_sidecar_of_more_records_than_a_log_has_room_for_is_none(cleaned):
    path, parts = cleaned
    size = path.stat().st_size
    assert size % RECORD_HEADER.itemsize == 0
    for more in (0, 1):
        parts.entries = np.resize(parts.entries, size // RECORD_HEADER.itemsize + more)
        with loaded(path, parts.join()) as (_, table):
            assert len(table) == (0 if more else len(parts.entries))


@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("block", lambda row, blocks: row["block"] ^ 1), ("block", lambda row, blocks: blocks),
        ("block", lambda row, blocks: (1 << 32) - 1),
        ("generation", lambda row, blocks: row["generation"] + 1),
        ("generation", lambda row, blocks: row["generation"] - 1),
        ("frame_crc", lambda row, blocks: row["frame_crc"] ^ 1), ("offset", lambda row, blocks: row["offset"] - 8),
        ("offset", lambda row, blocks: 0), ("offset", lambda row, blocks: 7), ("offset", lambda row, blocks: 63),
        ("offset", lambda row, blocks: 1 << 30),
    ],
)  # fmt: skip
def test_an_end_that_is_not_there_is_none(cleaned, lane, field, change):
    path, parts = cleaned
    device = Device.open(path)
    blocks = device.present_blocks()
    device.close()
    parts.lanes[field][lane] = change(parts.lanes[lane], blocks)
    assert_unknown(path, parts.join(), durable=parts.lanes["durable"])


def test_an_end_within_the_header_of_a_block_is_none(cleaned):
    """Whatever bytes of it the sidecar takes for the checksum of a frame."""
    path, parts = cleaned
    row, device = parts.lanes[Lane.FRESH], Device.open(path)
    row["offset"] = 56
    row["frame_crc"] = int.from_bytes(device.data(int(row["block"]), 52, 4).tobytes(), "little")
    device.close()
    assert_unknown(path, parts.join(), durable=parts.lanes["durable"])


def test_the_end_of_one_lane_is_none_of_the_other(cleaned):
    path, parts = cleaned
    parts.lanes = parts.lanes[::-1].copy()
    assert_unknown(path, parts.join(), durable=parts.lanes["durable"])


def test_an_end_in_a_block_whose_header_is_lost_is_none(cleaned):
    path, parts = cleaned
    device = Device.open(path)
    block = int(parts.lanes["block"][Lane.FRESH])
    size, units = device.geometry.unit_bytes, np.flatnonzero(device.programmed(block))
    raw = bytearray(path.read_bytes())
    for unit in units.tolist():
        raw[device.file_offset(block, unit * size)] ^= 1
    device.close()
    path.write_bytes(raw)
    assert_unknown(path, parts.join(), durable=parts.lanes["durable"])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("field", ["block", "generation"])
def test_records_of_blocks_that_were_erased_since_are_none(cleaned, field, last):
    path, parts = cleaned
    device = Device.open(path)
    parts.entries[field][-1 if last else 0] = device.present_blocks() if field == "block" else 100
    device.close()
    assert_unknown(path, parts.join(), durable=parts.lanes["durable"])


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_no_sidecar(cleaned, make):
    path, _ = cleaned
    make(sidecar_path(path))
    whole = read(path)
    sidecar_path(path).rmdir() if make is os.mkdir else sidecar_path(path).unlink()
    assert whole == read(path)


def test_a_sidecar_that_the_system_does_not_give_is_none(cleaned):
    path, parts = cleaned
    with mock.patch("kvcodec.log.sidecar.open", side_effect=OSError(5, "broken"), create=True):
        assert_unknown(path, parts.join())


def test_a_lane_without_a_block_has_no_place(tmp_path):
    """As of a log that was never cleaned; and one without any frame leaves no sidecar."""
    device = Device.create(tmp_path / "d", TINY, blocks=4)
    log, none = Log(device), LaneEnd(Cursor(), Counters(), 0)
    write_sidecar(tmp_path / "d", log, [none, none], [])
    assert os.listdir(tmp_path) == ["d"]
    fresh = LaneEnd(Cursor(device.allocate(), 72, 9, 8, 7, 6, 5), Counters(1, 2, 3, 4), 9)
    write_sidecar(tmp_path / "d", log, [fresh, none], [])
    parts = Parts(sidecar_path(tmp_path / "d").read_bytes())
    assert parts.lanes[Lane.KEPT].tobytes() == bytes(SIDECAR_LANE.itemsize)
    assert dict(zip(SIDECAR_LANE.names, parts.lanes[Lane.FRESH].tolist(), strict=True)) == {
        "block": 0, "offset": 72, "generation": 1, "number": 9, "durable": 7, "framed_bytes": 2, "host_bytes": 3,
        "programmed_bytes": 1, "compacted_bytes": 4, "frames": 9, "frame_crc": 8, "drops": 5,
    }  # fmt: skip
    device.close()


@pytest.mark.parametrize("call", ["write_bytes", "replace"])
def test_a_sidecar_that_could_not_be_written_leaves_the_old_one(cleaned, monkeypatch, call):
    path, parts = cleaned
    sidecar_path(path).write_bytes(parts.join())

    def fail(*_):
        raise OSError(28, "full")

    with kv.open(path, "a") as store, monkeypatch.context() as patch:
        name = store.sequences()[0]
        patch.setattr(type(path) if call == "write_bytes" else os, call, fail)
        store.sequence(name).truncate(1)
        store.close()
    assert sidecar_path(path).read_bytes() == parts.join()
    assert sorted(os.listdir(path.parent)) == [path.name, sidecar_path(path).name]
    with kv.open(path) as store:
        assert len(store.sequence(name)) == 1
