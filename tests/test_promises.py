"""Promises of log and store that no golden byte holds: what reaches the medium, in which order, and what stays dead."""

import errno
import os

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.errors import (
    CorruptRecord,
    DeviceBusy,
    DeviceError,
    DtypeError,
    IdentityMismatch,
    KvcodecError,
    LogExists,
    NoSpace,
    SpecError,
    UnsupportedVersion,
)
from kvcodec.flash import image as image_module
from kvcodec.flash.block import Block, Counters, encode_header
from kvcodec.flash.device import Device
from kvcodec.flash.programming import slot_crc
from kvcodec.layout import NO_FRAME, SPARE_SLOT, StreamId
from kvcodec.log import writer as writer_module
from kvcodec.log.frame import FrameId, build_frame
from kvcodec.log.reader import Place
from kvcodec.store.extents import Coded, Part
from kvcodec.store.sequence_index import SequenceIndex
from tests import test_lifecycle as lifecycle
from tests.caches import TINY, rows, same, tiny_model
from tools.golden.forge import Forge
from tools.golden.forged import forged_group, forged_step

RAW = {"k": "raw", "v": "raw"}


@pytest.fixture
def calls(monkeypatch):
    """System calls that reach the medium, in order."""
    out = []

    def spy(name):
        real = getattr(os, name)
        monkeypatch.setattr(
            image_module.os,
            name,
            lambda *a, **k: (out.append((name, a[2] if name == "pwrite" else 0)), real(*a, **k))[1],
        )

    for name in ("pwrite", "fdatasync", "fsync", "link"):
        spy(name)
    real = image_module._fallocate

    def fallocate(fd, mode, *a):
        if mode & 2:
            out.append(("punch", a[0]))
        return real(fd, mode, *a)

    monkeypatch.setattr(image_module, "_fallocate", fallocate)
    return out


def names(calls):
    return [n for n, _ in calls]


def new(path, model=None, device=TINY, **o):
    return kv.open(path, "w", model=model or tiny_model(1), device=device, **{"residual": 0, "sinks": 0, **RAW, **o})


def put(store, a, b, salt=0, name="a", layer=0):
    store.sequence(name).append(
        layer, rows(layer, "k", range(a, b), salt=salt), rows(layer, "v", range(a, b), salt=salt)
    )


def zero_slot(path, device, block, unit):
    at = device._spare_offset(block, unit)
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(bytes(16))


def torn(path, more=256, capacity=1 << 40):
    """64 synced tokens, then unsynced frames up to `more` in further blocks, the first of which lost a unit."""
    store = new(path, capacity=capacity)
    put(store, 0, 64)
    store.sync()
    w = store._writers.fresh
    block, unit = w._block.number, w._unit_start // 64
    for t in range(64, more, 64):
        put(store, t, t + 64)
    generation = store.device.generation
    store.abandon()
    store.device.image = image_module.Image.open(path, writable=False)
    zero_slot(path, store.device, block, unit + 1)
    store.device.close()
    return generation


def torn_in_one_block(path):
    """64 synced tokens, then four more whole frames of tokens, the first of which lost a unit."""
    big = kv.Geometry.parse("page=512,unit=64,block=65536")
    store = new(path, device=big)
    put(store, 0, 64)
    store.sync()
    unit = store._writers.fresh._unit_start // 64
    put(store, 64, 128)
    put(store, 128, 192)
    put(store, 192, 256)
    put(store, 256, 320)
    store.abandon()
    store.device.image = image_module.Image.open(path, writable=False)
    zero_slot(path, store.device, 0, unit + 1)
    store.device.close()


def test_create_is_on_the_medium_before_it_has_a_name(tmp_path, calls):
    Device.create(tmp_path / "d", TINY, blocks=1).close()
    assert names(calls) == ["pwrite", "fdatasync", "link", "fsync"]


def test_sync_and_close_reach_the_medium(tmp_path, calls):
    store = new(tmp_path / "c")
    put(store, 0, 64)
    calls.clear()
    store.sync()
    assert names(calls)[-1] == "fdatasync"
    put(store, 64, 128)
    calls.clear()
    store.close()
    assert names(calls).count("fdatasync") == 2
    assert names(calls)[-1] == "fdatasync"


def test_a_unit_is_written_before_its_slot(tmp_path, calls):
    store = new(tmp_path / "c")
    calls.clear()
    put(store, 0, 64)
    writes = [at for n, at in calls if n == "pwrite"]
    assert all(data > slot for data, slot in zip(writes[::2], writes[1::2], strict=False))
    store.close()


def test_taking_up_erases_and_syncs_before_it_writes(tmp_path, calls):
    generation = torn(tmp_path / "c")
    calls.clear()
    with kv.open(tmp_path / "c", "a") as store:
        assert set(names(calls)[1:-1]) == {"punch"}
        assert names(calls)[0] == names(calls)[-1] == "fdatasync"
        put(store, 64, 256, salt=1)
        assert store._writers.fresh._block.generation > generation
    with kv.open(tmp_path / "c") as store:
        assert same(store.sequence("a").read(0)[0][64:], rows(0, "k", range(64, 256), salt=1))


def test_much_appended_is_settled(tmp_path, calls, monkeypatch):
    monkeypatch.setattr(writer_module, "_SETTLE_BYTES", 4096)
    store = new(tmp_path / "c")
    store.sync()
    calls.clear()
    for t in range(0, 640, 64):
        put(store, t, t + 64)
    assert "fdatasync" in names(calls)
    assert store._writers.fresh.durable > 3
    store.abandon()


def test_blocks_are_read_by_generation_not_by_number(tmp_path):
    torn(tmp_path / "c", capacity=9 * 8192, more=128)  # block 1 is erased by the next writer, and used last
    with kv.open(tmp_path / "c", "a") as store:
        t = 64
        while True:
            try:
                put(store, t, t + 64, salt=1)
            except NoSpace:
                break
            t += 64
        order = store.device.generations().tolist()
        assert order != sorted(order)
    (tmp_path / "c.idx").unlink()
    with kv.open(tmp_path / "c") as store:
        assert len(store.log.report.gaps) == 1
        assert len(store.sequence("a")) == t
        assert same(store.sequence("a").read(0)[0][64:], rows(0, "k", range(64, t), salt=1))


def test_an_abandoned_history_stays_dead_in_skip_damaged(tmp_path):
    path = tmp_path / "c"
    torn_in_one_block(path)
    with kv.open(path, "a") as store:
        at = store._writers.fresh._unit_start
        put(store, 64, 128, salt=1)
        store.sync()
        put(store, 128, 192, salt=1)
        place = store.device.file_offset(0, at + 70)
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)
    with kv.open(path, recovery="skip-damaged") as store:
        sequence = store.sequence("a")
        assert len(sequence) == 192
        assert same(sequence.read(0, slice(128, 192))[0], rows(0, "k", range(128, 192), salt=1))
        with pytest.raises(CorruptRecord):
            sequence.read(0, 100)


def test_skip_damaged_never_writes(tmp_path):
    new(tmp_path / "c").close()
    with pytest.raises(SpecError, match="only be read"):
        kv.open(tmp_path / "c", "a", recovery="skip-damaged")


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_after_a_failure_even_what_needs_no_write_is_refused(tmp_path, monkeypatch, call):
    store = new(tmp_path / "c", device="tlc")
    put(store, 0, 64)

    def fail(*_):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(image_module.os, call, fail)
        with pytest.raises(DeviceError):
            store.sync() if call == "fdatasync" else put(store, 64, 1280)
    before = (tmp_path / "c").read_bytes()
    for again in (lambda: store.sequence("new"), lambda: put(store, 64, 128), store.sync, store.close):
        with pytest.raises(DeviceError, match="open the log again"):
            again()
    assert (tmp_path / "c").read_bytes() == before


@pytest.mark.no_cover
@pytest.mark.parametrize("flips", [150, pytest.param(4000, marks=pytest.mark.campaign)])
def test_a_broken_or_foreign_sidecar_changes_nothing(tmp_path, flips):
    path, idx = tmp_path / "c", tmp_path / "c.idx"

    def make(p, n, salt):
        with new(p) as store:
            for t in range(0, n, 64):
                put(store, t, t + 64, salt=salt)
                store.sync()

    make(path, 192, 0)
    make(tmp_path / "d", 640, 1)
    good = idx.read_bytes()
    idx.unlink()
    with kv.open(path) as store:
        want = len(store.sequence("a")), store.log.lsn, store.log.report.frames, store.stats()
    variants = [(tmp_path / "d.idx").read_bytes(), good[:-1], good[:100], good + bytes(144)]
    random = np.random.default_rng(0)
    for bit in random.integers(0, 8 * len(good), flips).tolist():
        raw = bytearray(good)
        raw[bit // 8] ^= 1 << bit % 8
        variants.append(bytes(raw))
    for raw in variants:
        idx.write_bytes(raw)
        with kv.open(path) as store:
            assert (len(store.sequence("a")), store.log.lsn, store.log.report.frames, store.stats()) == want
            assert same(store.sequence("a").read(0)[1], rows(0, "v", 192))


def test_the_sidecar_of_a_copy_that_went_another_way(tmp_path):
    path, idx = tmp_path / "c", tmp_path / "c.idx"
    with new(path) as store:
        put(store, 0, 64)
        put(store, 0, 64, name="b")
    raw = path.read_bytes()
    with kv.open(path, "a") as store:
        put(store, 64, 128, salt=1)
    sidecar = idx.read_bytes()
    idx.unlink()
    path.write_bytes(raw)
    with kv.open(path, "a") as store:
        put(store, 64, 128, salt=2, name="b")  # ends at the same byte
    assert len(idx.read_bytes()) == len(sidecar)
    idx.write_bytes(sidecar)
    with kv.open(path) as store:
        assert [len(q) for q in store] == [64, 128]
        assert same(store.sequence("b").read(0)[0][64:], rows(0, "k", range(64, 128), salt=2))


def test_stale_blocks_of_a_torn_first_frame_are_erased(tmp_path):
    path = tmp_path / "c"
    store = new(path)
    put(store, 0, 64)
    store.sync()
    while store._writers.fresh._block.number == 0:
        put(store, len(store.sequence("a")), len(store.sequence("a")) + 64)
    store.sync()
    blk = store._writers.fresh._block.number
    while store._writers.fresh._block.number == blk:
        put(store, len(store.sequence("a")), len(store.sequence("a")) + 64)
    last = store._writers.fresh._block.number
    store.abandon()
    store.device.image = image_module.Image.open(path, writable=False)
    zero_slot(path, store.device, last, 2)
    store.device.close()
    with kv.open(path) as r:
        assert r.log.cursor.block.number == last - 1
    with kv.open(path, "a") as store:
        assert store.device.erase_counts[last] == 1


def test_a_dropped_split_record_is_forgotten():
    index = SequenceIndex(None, tiny_model(1), holes=False)
    key = (0, StreamId.K)
    assert index.add(key, Coded(5, None, 0, 64, (Part(Place(1, 0, 64), 0, 1, 0),)), 2)
    assert index.holds_beyond(0)
    index.drop(0, 5)
    assert not index.holds_beyond(0)


def test_slots_of_which_only_the_beginning_persisted_hide_no_record(tmp_path):
    """Power failed between the halves of a slot: its unit is programmed, and no erase left it without a generation."""
    path = tmp_path / "c"
    store = new(path)
    put(store, 0, 64)
    store.sync()
    block, units = store._writers.fresh._block.number, store._writers.fresh._unit_start // 64
    places = [store.device._spare_offset(block, unit) + 8 for unit in range(1, units)]
    store.abandon()
    with open(path, "r+b") as file:
        for place in places:
            file.seek(place)
            file.write(bytes(8))
    with kv.open(path) as store:
        assert same(store.sequence("a").read(0)[0], rows(0, "k", 64))


def test_a_gap_of_several_units(tmp_path):
    path = tmp_path / "c"
    store = new(path)
    put(store, 0, 16)
    store.sync()
    w = store._writers.fresh
    block, unit = w._block.number, w._unit_start // 64
    store.sequence("b")
    store.sequence("c")
    store.sequence("d")
    store._writers.fresh._close_unit()
    end = w._unit_start // 64
    store.abandon()
    store.device.image = image_module.Image.open(path, writable=False)
    for u in range(unit, end):
        zero_slot(path, store.device, block, u)
    store.device.close()
    assert end - unit > 3
    with kv.open(path, "a") as store:
        put(store, 0, 64, salt=1, name="e")
    (tmp_path / "c.idx").unlink()
    with kv.open(path) as store:
        assert len(store.sequence("e")) == 64
        assert len(store.log.report.gaps) == 1


def test_a_session_that_began_at_the_abandoned_number_itself(tmp_path):
    path = tmp_path / "c"
    torn_in_one_block(path)
    store = kv.open(path, "a")
    at = store._writers.fresh._unit_start
    put(store, 64, 128, salt=1)
    store.sync()
    place = store.device.file_offset(0, at + 70)
    store.abandon()
    with kv.open(path, "a") as store:
        put(store, 128, 192, salt=2)
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)
    with kv.open(path, recovery="skip-damaged") as store:
        sequence = store.sequence("a")
        assert len(sequence) == 192
        assert same(sequence.read(0, slice(128, 192))[0], rows(0, "k", range(128, 192), salt=2))


def test_a_damaged_log_is_not_written_even_up_to_the_damage(tmp_path):
    path = tmp_path / "c"
    with new(path) as store:
        for t in range(0, 256, 64):
            put(store, t, t + 64)
            store.sync()
        at = store.device.file_offset(0, 64 * 40)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    (tmp_path / "c.idx").unlink()
    with pytest.raises(SpecError, match="only be read"):
        kv.open(path, "a", recovery="point-in-time")
    assert path.read_bytes() == raw


# -- found by trying to break it ---------------------------------------------------------------------------------------


def test_the_crc_of_a_frame_depends_on_its_header():
    """A CRC that covers data and its own CRC is a constant: then no chain would bind anything."""
    frames = [FrameId(1, 0, 1, 1, 0), FrameId(99, 98, 5, 3, 0xDEADBEEF), FrameId(99, 97, 5, 3, 0xDEADBEEF)]
    crcs = {build_frame([], f, offset=64, generation=g, uuid=bytes(16))[2] for f in frames for g in (1, 42)}
    assert len(crcs) == 6


def test_a_frame_smaller_than_a_unit_may_be_the_first_of_a_block(tmp_path):
    device = kv.Geometry.parse("page=512,unit=512,block=4096")
    with new(tmp_path / "c", tiny_model(1, 1, 16), device=device) as store:
        for n in range(40):
            store.sequence(f"seq{n}")
    with kv.open(tmp_path / "c") as store:
        assert len(store.sequences()) == 40


def test_a_block_header_of_which_only_the_slot_persisted_is_taken_back(tmp_path):
    path = tmp_path / "c"
    store = new(path)
    put(store, 0, 64)
    store.sync()
    device, number, generation = store.device, store.device.present_blocks(), store.device.generation + 1
    slot = np.zeros(1, SPARE_SLOT)
    slot["first_frame"], slot["generation"] = NO_FRAME, generation
    header = encode_header(Block(number, generation, 0, Counters())).ljust(64, b"\0")
    slot["crc"] = slot_crc(device.uuid, number * device.geometry.units_per_block, header, slot.tobytes()[4:])
    at = device._spare_offset(number, 0)
    store.abandon()
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(slot.tobytes())
        file.truncate(at + device.geometry.stride)
    with kv.open(path, "a") as store:
        put(store, 64, 640)
    with kv.open(path) as store:
        assert same(store.sequence("a").read(0)[0], rows(0, "k", 640))


@pytest.mark.parametrize("left", [1, 0])
def test_a_lost_spare_page_in_the_middle_is_damage(tmp_path, left):
    """Of a block only its first slots are gone (or all but the header's): later blocks prove that it was durable."""
    path = tmp_path / "c"
    with new(path) as store:
        for t in range(0, 640, 64):
            put(store, t, t + 64)
            store.sync()
        at = store.device._spare_offset(2, 0)
    (tmp_path / "c.idx").unlink()
    raw = bytearray(path.read_bytes())
    raw[at + 16 * left : at + 2048] = bytes(2048 - 16 * left)
    path.write_bytes(raw)
    for mode, recovery in (("r", "torn-tail"), ("r", "absolute"), ("a", "torn-tail")):
        with pytest.raises(CorruptRecord):
            kv.open(path, mode, recovery=recovery)
    assert path.read_bytes() == raw


def test_first_slots_that_were_lost_do_not_hide_a_block(tmp_path):
    path = tmp_path / "c"
    with new(path) as store:
        for t in range(0, 640, 64):
            put(store, t, t + 64)
            store.sync()
        last = store._writers.fresh._block.number
        at = store.device._spare_offset(last, 0)
    (tmp_path / "c.idx").unlink()
    raw = bytearray(path.read_bytes())
    raw[at : at + 32] = bytes(32)
    path.write_bytes(raw)
    with pytest.raises(CorruptRecord):
        kv.open(path, recovery="absolute")


def test_closing_releases_the_lock_whatever_still_holds_a_view(tmp_path):
    path = tmp_path / "c"
    store = new(path)
    put(store, 0, 64)
    store.sync()
    view = store.device.data(0, 0, 64)
    store.close()
    kv.open(path, "a").close()
    assert view.any()


def test_a_reader_that_could_not_follow_says_so_every_time(tmp_path):
    forge = Forge(tmp_path / "c", "x")
    forge.begin()
    forge.frame(forge.seal(forged_step(0)))
    with kv.open(tmp_path / "c") as store:
        sequence = store.sequence("a")
        forge.frame(forge.seal(forged_group(), codec=9))
        forge.device.image.sync()
        for _ in range(3):
            with pytest.raises(UnsupportedVersion):
                len(sequence)


@pytest.mark.parametrize("options", [{"residual": -1}, {"k": "int9"}, {"spec": "no.toml"}, {"device": "floppy"}])
def test_a_refused_new_log_leaves_the_old_one_and_no_file(tmp_path, options):
    path = tmp_path / "c"
    new(path).close()
    before = path.read_bytes()
    with pytest.raises((SpecError, FileNotFoundError)):
        kv.open(path, "w", model=tiny_model(), overwrite=True, **options)
    with pytest.raises((SpecError, FileNotFoundError)):
        kv.open(tmp_path / "d", "w", model=tiny_model(), **options)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "c.idx"]


@pytest.mark.parametrize("call", ["fdatasync", "rename", "fsync"])
def test_a_new_log_that_fails_leaves_the_old_one_or_the_new_one(tmp_path, monkeypatch, call):
    path = tmp_path / "c"
    new(path).close()
    before = path.read_bytes()

    def fail(*_):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(image_module.os, call, fail)
        with pytest.raises(DeviceError):
            new(path, overwrite=True)
    assert (path.read_bytes() == before) == (call != "fsync")
    assert {p.name for p in tmp_path.iterdir()} <= {"c", "c.idx"}
    with kv.open(path, "a") as store:
        assert store.sequences() == []


def test_no_room_at_close_keeps_what_was_appended(tmp_path):
    path = tmp_path / "c"
    store = new(path, device=TINY, capacity=4 * 8192, residual=60)
    n = 0
    while True:
        try:
            put(store, n, n + 30)
        except NoSpace:
            break
        n += 30
    with pytest.raises(NoSpace):
        store.close()
    with kv.open(path) as store:
        assert len(store.sequence("a")) >= n - 60 - 64
        assert same(store.sequence("a").read(0)[0], rows(0, "k", len(store.sequence("a"))))


def test_skip_damaged_does_not_raise_what_a_lost_drop_had_buried(tmp_path):
    path = tmp_path / "c"
    store = new(path, tiny_model(2))
    for layer in range(2):
        put(store, 0, 64, layer=layer)
    put(store, 64, 320, layer=0)
    store.sync()
    store.abandon()
    store = kv.open(path, "a")
    start = store._writers.fresh._unit_start, store._writers.fresh._block.number
    put(store, 64, 128, salt=1, layer=1)
    put(store, 64, 128, salt=1, layer=0)
    store.sync()
    for layer in range(2):
        put(store, 128, 320, salt=1, layer=layer)
    place = store.device.file_offset(start[1], start[0] + 60)
    store.close()
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)
    with kv.open(path, recovery="skip-damaged") as store:
        sequence = store.sequence("a")
        for layer in range(2):
            for t in range(64, len(sequence)):
                try:
                    got = sequence.read(layer, [t])[0]
                except CorruptRecord:
                    continue
                assert same(got, rows(layer, "k", [t], salt=1))


def test_a_writer_that_was_replaced_before_it_had_the_lock_opens_the_new_file(tmp_path, monkeypatch):
    path = tmp_path / "c"
    new(path).close()
    other = tmp_path / "other"
    with new(other) as store:
        store.sequence("in the new file")
    real, calls = image_module.fcntl.flock, []

    def flock(fd, how):
        if not calls:
            os.replace(other, path)
        calls.append(how)
        return real(fd, how)

    monkeypatch.setattr(image_module.fcntl, "flock", flock)
    with kv.open(path, "a") as store:
        assert store.sequences() == ["in the new file"]


def test_a_frame_that_vouches_for_itself_is_refused(tmp_path):
    for n, fields in enumerate([{"durable": 99}, {"session_start": 99}, {"session_start": 0}]):
        forge = Forge(tmp_path / f"{n}", f"x{n}")
        forge.begin()
        forge.frame(forge.seal(forged_step(0)), **fields)
        with pytest.raises(CorruptRecord, match=r"durable|session"):
            kv.open(tmp_path / f"{n}")


@pytest.mark.parametrize("field", ["lsn", "sequence"])
def test_a_count_that_could_wrap_is_refused(tmp_path, field):
    forge = Forge(tmp_path / "c", "x")
    forge.begin()
    forge.frame(forge.seal(forged_step(0), **{field: (1 << 64) - 1}))
    with pytest.raises(CorruptRecord, match="out of range"):
        kv.open(tmp_path / "c")


def test_a_wrong_model_leaves_a_torn_log_as_it_is(tmp_path):
    path = tmp_path / "c"
    torn(path)
    before = path.read_bytes()
    with pytest.raises(IdentityMismatch):
        kv.open(path, "a", model=tiny_model(3))
    assert path.read_bytes() == before


def test_more_sinks_than_a_record_holds(tmp_path):
    with new(tmp_path / "c", sinks=300, residual=10, k="int4/channel/g64", v="int4/token/g16") as store:
        for t in range(0, 500, 50):
            put(store, t, t + 50)
    with kv.open(tmp_path / "c") as store:
        got = store.sequence("a").read(0)[0]
        assert same(got[:300], rows(0, "k", 300))
        assert not same(got[300:400], rows(0, "k", range(300, 400)))


def test_a_huge_sidecar_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "c"
    with new(path) as store:
        put(store, 0, 64)
    with open(tmp_path / "c.idx", "r+b") as file:
        file.truncate(1 << 33)
    with kv.open(path) as store:
        assert len(store.sequence("a")) == 64


def test_what_is_no_array_name_or_dtype_is_refused_by_name(tmp_path):
    with new(tmp_path / "c") as store:
        sequence = store.sequence("a")
        put(store, 0, 3)
        for wrong, error in [
            (lambda: sequence.append(0, 5, 5), DtypeError),
            (lambda: sequence.append(0), KvcodecError),
            (lambda: sequence.append_step([3], [3]), DtypeError),
            (lambda: sequence.read(0, dtype="zzz"), KvcodecError),
            (lambda: store.sequence(5), SpecError),
        ]:
            with pytest.raises(error):
                wrong()
        assert len(sequence) == 3


def test_a_lock_that_is_held_is_named(tmp_path):
    path = tmp_path / "c"
    with new(path):
        with pytest.raises(DeviceBusy, match="another process"):
            kv.open(path, "a")
        with pytest.raises(DeviceBusy):
            new(path, overwrite=True)
        with pytest.raises(LogExists):
            new(path)


@pytest.mark.parametrize("length", [50, 31])
def test_a_journal_rounds_no_rows_where_a_tail_is_cut_off(tmp_path, length):
    parts = lifecycle.data(50, 1)
    with lifecycle.make(tmp_path / "c", durability="step", residual=64, journal="int8/token/g16") as store:
        sequence = store.sequence("a")
        lifecycle.append(sequence, parts)
        sequence.truncate(length)
        lifecycle.check(sequence, lifecycle.cut(parts, length))
        lifecycle.append(sequence, lifecycle.data(100, 2))
        first = sequence.read(0)[0][:length]
        assert np.array_equal(first.view(np.uint16), parts[0][0][:length].view(np.uint16))
