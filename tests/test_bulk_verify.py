"""Whole logs: is one what was written?"""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.bulk.decode import decode_log
from kvcodec.bulk.encode import encode_dump
from kvcodec.bulk.verify import verify_log
from kvcodec.dumps import open_dump
from kvcodec.errors import (
    CorruptRecord,
    DtypeError,
    DumpError,
)
from kvcodec.layout import StreamId
from tests.caches import rows, same
from tests.test_bulk import TINY, dump_fixture, log_fixture, make_dump, write_dump  # noqa: F401


def flipped(log, tmp_path, at):
    """A copy of a log and its sidecar with one bit of byte `at` flipped."""
    data = bytearray(log.read_bytes())
    data[at] ^= 1
    copy = tmp_path / "flipped.kvlog"
    copy.write_bytes(data)
    Path(f"{copy}.idx").write_bytes(Path(f"{log}.idx").read_bytes())
    return copy


def inside_record(log, n):
    """A byte of the file in the body of the nth record of layer 1's V."""
    with kv.open(log) as store:
        place = list(store.index.sequences[1].maps[1, StreamId.V])[n].coded.parts[0].place
        return store.device.file_offset(place.block, place.offset + 200)


def test_a_clean_log_is_clean(log):
    report = verify_log(log)
    assert report.verdict == "clean"
    assert report.damage == report.gaps == ()
    assert report.torn is None
    assert [(s.name, s.tokens, s.lost) for s in report.sequences] == [("chat", 300, ())]
    with kv.open(log) as store:
        stats = store.stats()
    assert report.frames == stats.frames
    assert report.units * 16384 == stats.programmed_bytes
    told = []
    verify_log(log, progress=lambda *at: told.append(at))
    assert told[-1] == (1000, 1000)
    assert told == sorted(told)


@pytest.mark.parametrize("device", ["tlc", TINY])
def test_every_flipped_bit_of_a_programmed_unit_is_found(tmp_path, dump, device):
    log = tmp_path / "a.kvlog"
    encode_dump(dump, log, device=device, residual=16)
    with kv.open(log) as store:
        places = [
            (store.device, block, unit)
            for block in range(store.device.present_blocks())
            for unit in np.flatnonzero(store.device.programmed(block)).tolist()
        ]
        size = store.device.geometry.unit_bytes
        starts = [device_.file_offset(block, unit * size) for device_, block, unit in places]
    rng = np.random.default_rng(0)
    for start in rng.choice(starts, 25):
        at = int(start) + int(rng.integers(size))
        copy = flipped(log, tmp_path, at)
        before = copy.read_bytes()
        report = verify_log(copy)
        assert report.verdict == "damaged"
        assert any(bad.start <= at < bad.end for bad in report.damage)
        assert copy.read_bytes() == before


def test_lost_tokens_are_named_and_the_others_can_be_saved(tmp_path):
    dump = make_dump(tmp_path / "chat.safetensors", 3000, heads=1)
    log = tmp_path / "a.kvlog"
    encode_dump(dump, log, device=TINY, residual=16)
    copy = flipped(log, tmp_path, inside_record(log, 20))
    report = verify_log(copy)
    assert report.verdict == "damaged"
    (checked,) = report.sequences
    assert checked.tokens == 3000
    assert 0 < checked.lost_tokens < 3000
    assert any(one.layer == 1 and one.stream == "v" for one in checked.lost)
    for recovery in ("torn-tail", "absolute"):
        with pytest.raises(CorruptRecord):
            decode_log(copy, tmp_path / "b.safetensors", recovery=recovery)
    assert decode_log(copy, tmp_path / "c.safetensors", recovery="point-in-time").tokens < 3000
    saved = decode_log(copy, tmp_path / "b.safetensors", recovery="skip-damaged")
    assert saved.tokens == 3000 - checked.lost_tokens
    assert list(saved.lost) == checked.lost_ranges
    with kv.open(log) as store, open_dump(tmp_path / "b.safetensors") as b:
        whole = store.sequence("chat").read(1)[1]
        positions = b.numbers("positions")
        assert same(b.rows(1, StreamId.V, 0, saved.tokens), whole[positions])


def test_a_torn_tail_is_told_from_damage(tmp_path, dump):
    log = tmp_path / "a.kvlog"
    store = kv.open(log, "w", model=kv.Model.uniform(2, 2, 16), residual=0, device="page=512,unit=64,block=65536")
    for layer in range(2):
        store.sequence("a").append(layer, rows(layer, "k", 200), rows(layer, "v", 200))
    store.sync()
    for layer in range(2):
        store.sequence("a").append(layer, rows(layer, "k", 200), rows(layer, "v", 200))
    store.abandon()
    report = verify_log(log)
    assert report.verdict == "torn tail"
    assert report.torn is not None
    (checked,) = report.sequences
    assert checked.tokens >= 200
    assert checked.lost == ()
    with kv.open(log, "a") as store:
        store.sequence("b").append(0, rows(0, "k", 1), rows(0, "v", 1))
    report = verify_log(log)
    assert report.verdict == "clean"
    assert [gap.kind for gap in report.gaps] == ["gap"]


@pytest.mark.parametrize("copy", [0, 1])
def test_a_bad_superblock_copy_is_damage(tmp_path, log, copy):
    bad = flipped(log, tmp_path, copy * 4096 + 20)
    report = verify_log(bad)
    assert report.verdict == "damaged"
    assert [(d.start, d.end) for d in report.damage] == [(copy * 4096, copy * 4096 + 4096)]
    assert report.sequences[0].lost == ()


def test_a_lost_model_leaves_orphans(tmp_path):
    dump = make_dump(tmp_path / "chat.safetensors", 600, heads=1)
    log = tmp_path / "a.kvlog"
    encode_dump(dump, log, device=TINY, residual=16)
    with kv.open(log) as store:
        at = store.device.file_offset(0, store.device.geometry.unit_bytes + 8)
    report = verify_log(flipped(log, tmp_path, at))
    assert report.verdict == "damaged"
    assert report.sequences == () or report.sequences[0].lost
    assert report.as_dict()["verdict"] == "damaged"


def test_what_is_no_log_is_unreadable(tmp_path, dump):
    report = verify_log(dump)
    assert report.verdict == "unreadable"
    assert "not a kvcodec log" in report.error
    empty = tmp_path / "empty"
    empty.touch()
    assert verify_log(empty).verdict == "unreadable"
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DumpError, match="not a regular file"):
        verify_log(tmp_path / "fifo")


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=64))
def test_verify_survives_any_bytes(tmp_path_factory, cut, junk):
    folder = tmp_path_factory.mktemp("junk")
    dump = make_dump(folder / "chat.safetensors", 20, heads=1)
    log = folder / "a.kvlog"
    encode_dump(dump, log, device=TINY)
    data = log.read_bytes()
    at = cut * len(data) // 2001
    log.write_bytes(data[:at] + junk + data[at + len(junk) :])
    verify_log(log).as_dict()
    log.write_bytes(data[:at])
    assert verify_log(log).verdict != "clean"


def test_verify_writes_nothing(log):
    before = log.read_bytes(), Path(f"{log}.idx").read_bytes()
    verify_log(log)
    assert (log.read_bytes(), Path(f"{log}.idx").read_bytes()) == before


def test_a_dtype_that_is_none_is_refused(tmp_path):
    integers = np.zeros((4, 1, 16), np.int32)
    dump = write_dump(tmp_path / "d.safetensors", {"k.0": integers, "v.0": integers})
    with pytest.raises(DtypeError):
        encode_dump(dump, tmp_path / "a.kvlog")
