"""The emulated device: units programmed once, in order, bound to their place; blocks erased and counted."""

import errno
import os

import numpy as np
import pytest

from kvcodec.errors import (
    BadMagic,
    CorruptRecord,
    DeviceBusy,
    DeviceError,
    LogExists,
    NoSpace,
    NotErased,
    SpecError,
    StoreClosed,
    TruncatedLog,
    UnsupportedVersion,
)
from kvcodec.flash import image as image_module
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.flash.geometry import PRESETS, Geometry
from kvcodec.flash.image import Image
from kvcodec.layout import NO_FRAME, SUPERBLOCK, Lane
from tests.caches import GEOMETRIES, TINY
from tests.children import Child


@pytest.fixture(params=GEOMETRIES.values(), ids=GEOMETRIES)
def geometry(request):
    return request.param


def new_device(path, geometry=TINY, blocks=4):
    return Device.create(path, geometry, blocks=blocks, overwrite=False)


def unit(device, fill):
    return bytes([fill]) * device.geometry.unit_bytes


def test_what_was_programmed_is_read_back_and_the_rest_is_ff(tmp_path, geometry):
    with_header = new_device(tmp_path / "d", geometry)
    block = with_header.allocate()
    with_header.program(block.number, 1, unit(with_header, 7) + unit(with_header, 8), [3, NO_FRAME])
    with_header.sync()
    for device in (with_header, Device.open(tmp_path / "d")):
        size = geometry.unit_bytes
        got = device.read(block.number, 1, 3)
        assert (got[:size] == 7).all()
        assert (got[size : 2 * size] == 8).all()
        assert (got[2 * size :] == 0xFF).all()
        assert device.programmed(block.number)[:4].tolist() == [True, True, True, False]
        assert device.slots(block.number)["first_frame"][:3].tolist() == [NO_FRAME, 3, NO_FRAME]
        device.close()


def test_a_unit_is_programmed_once_and_in_ascending_order(tmp_path, geometry):
    device = new_device(tmp_path / "d", geometry)
    block = device.allocate().number
    one = unit(device, 1)
    for at in (0, 2, geometry.units_per_block):
        with pytest.raises(NotErased):
            device.program(block, at, one, [NO_FRAME])
    with pytest.raises(NotErased):
        device.program(block + 1, 0, one, [NO_FRAME])
    device.program(block, 1, one, [NO_FRAME])
    with pytest.raises(NotErased):
        device.program(block, 1, one, [NO_FRAME])
    assert (device.read(block, 1) == 1).all()
    device.close()


def test_a_unit_that_a_crash_left_half_programmed_is_refused(tmp_path):
    device = new_device(tmp_path / "d")
    block = device.allocate().number
    device.image.write(device.file_offset(block, TINY.unit_bytes), b"x")
    with pytest.raises(NotErased, match="already programmed"):
        device.program(block, 1, unit(device, 1), [NO_FRAME])
    device.close()


def test_units_beyond_the_block_are_refused(tmp_path):
    device = new_device(tmp_path / "d")
    block = device.allocate().number
    rest = TINY.units_per_block - 1
    device.program(block, 1, unit(device, 1) * (rest - 1), [NO_FRAME] * (rest - 1))
    with pytest.raises(NotErased, match="beyond"):
        device.program(block, rest, unit(device, 1) * 2, [NO_FRAME] * 2)
    device.close()


def test_an_erased_block_reads_ff_is_counted_and_can_be_programmed_again(tmp_path, geometry):
    device = new_device(tmp_path / "d", geometry, blocks=2)
    first = device.allocate()
    device.program(first.number, 1, unit(device, 5), [NO_FRAME])
    device.erase(first.number)
    assert (device.read(first.number, 0, 2) == 0xFF).all()
    assert device.block(first.number) is None
    assert device.allocate().number == 1  # the one that was never erased comes first
    again = device.allocate()
    assert (again.number, again.erase_count) == (0, 1)
    assert device.block(0) == again
    device.close()


def test_erase_gives_the_disk_blocks_back(tmp_path):
    geometry = GEOMETRIES["slc"]
    device = new_device(tmp_path / "d", geometry)
    block = device.allocate().number
    n = geometry.units_per_block - 1
    device.program(block, 1, unit(device, 1) * n, [NO_FRAME] * n)
    device.sync()
    before = os.stat(tmp_path / "d").st_blocks
    device.erase(block)
    device.sync()
    assert before - os.stat(tmp_path / "d").st_blocks >= geometry.block_bytes // 512
    device.close()


def test_a_full_device_is_an_error_and_nothing_is_written(tmp_path):
    device = new_device(tmp_path / "d", blocks=2)
    device.allocate()
    device.allocate()
    before = (tmp_path / "d").read_bytes()
    with pytest.raises(NoSpace, match="1 erased blocks wanted, 0 left"):
        device.allocate()
    assert (tmp_path / "d").read_bytes() == before
    device.close()


def test_the_header_says_what_was_written_before(tmp_path, geometry):
    device = new_device(tmp_path / "d", geometry)
    device.allocate()
    own = device.counters[Lane.FRESH]
    own.framed, own.host, device.generation = 500, 400, 8
    second = device.allocate()
    device.close()
    with_header = Device.open(tmp_path / "d")
    block = with_header.block(second.number)
    assert (block.generation, block.before.programmed) == (9, geometry.unit_bytes)
    assert (block.before.framed, block.before.host) == (500, 400)
    assert with_header.generations().tolist() == [1, 9]
    with_header.close()


@pytest.mark.parametrize("place", ["data", "crc", "first_frame", "generation"])
def test_a_flipped_bit_in_a_unit_or_its_slot_is_found(tmp_path, place):
    device = new_device(tmp_path / "d")
    block = device.allocate().number
    device.program(block, 1, unit(device, 7), [0])
    offset = {"crc": 0, "first_frame": 4, "generation": 8}
    at = device.file_offset(block, 64) if place == "data" else device._spare_offset(block, 1) + offset[place]
    old = device.image.view(at, 1)[0]
    device.image.write(at, bytes([old ^ 4]))
    with pytest.raises(CorruptRecord, match="spare checksum"):
        device.read(block, 1)
    device.close()


def test_a_unit_at_another_place_is_found(tmp_path):
    device = new_device(tmp_path / "d")
    block = device.allocate().number
    device.program(block, 1, unit(device, 7), [0])
    device.image.write(device.file_offset(block, 128), unit(device, 7))
    device.image.write(device._spare_offset(block, 2), device.slots(block)[1].tobytes())
    with pytest.raises(CorruptRecord, match="unit 2"):
        device.read(block, 2)
    device.close()


def test_a_block_with_a_damaged_header_is_known_by_its_other_units(tmp_path):
    device = new_device(tmp_path / "d")
    device.generation = 4
    block = device.allocate().number
    device.program(block, 1, unit(device, 7), [0])
    device.image.write(device.file_offset(block), b"\x01")
    known = device.block(block)
    assert (known.generation, known.before) == (5, None)
    device.image.write(device.file_offset(block, 64), b"\x01")
    with pytest.raises(CorruptRecord):
        device.block(block)
    device.close()


def test_a_failed_write_is_final(tmp_path, monkeypatch):
    device = new_device(tmp_path / "d")
    block = device.allocate().number

    def fail(*_):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(image_module.os, "pwrite", fail)
        with pytest.raises(DeviceError, match="broken"):
            device.program(block, 1, unit(device, 1), [0])
    with pytest.raises(DeviceError, match="open the log again"):
        device.program(block, 1, unit(device, 1), [0])
    device.close()


def test_a_failed_sync_is_final(tmp_path, monkeypatch):
    device = new_device(tmp_path / "d")
    block = device.allocate().number

    def fail(_):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(image_module.os, "fdatasync", fail)
        with pytest.raises(DeviceError, match="sync: broken"):
            device.sync()
    with pytest.raises(DeviceError, match="open the log again"):
        device.program(block, 1, unit(device, 1), [0])
    device.close()


def test_short_and_interrupted_writes_go_on(tmp_path, monkeypatch):
    device = new_device(tmp_path / "d")
    real, calls = os.pwrite, []

    def stutter(fd, data, offset):
        calls.append(offset)
        if len(calls) % 3 == 0:
            raise InterruptedError
        return real(fd, bytes(data)[:5], offset)

    monkeypatch.setattr(image_module.os, "pwrite", stutter)
    block = device.allocate().number
    device.program(block, 1, bytes(range(64)), [0])
    assert device.read(block, 1).tolist() == list(range(64))
    device.close()


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, NoSpace), (errno.EDQUOT, NoSpace), (errno.EIO, DeviceError)]
)
def test_a_disk_that_is_full_is_found_before_a_write(tmp_path, monkeypatch, code, error):
    device = new_device(tmp_path / "d")
    before = (tmp_path / "d").read_bytes()

    def fail(*_):
        raise OSError(code, "no")

    monkeypatch.setattr(image_module, "_fallocate", fail)
    with pytest.raises(error):
        device.allocate()
    assert (tmp_path / "d").read_bytes() == before
    device.close()


def test_a_file_system_without_reservations_or_holes_will_do(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(image_module, "_fallocate", fail)
    device = new_device(tmp_path / "d", blocks=1)
    block = device.allocate().number
    device.program(block, 1, unit(device, 1), [0])
    device.erase(block)
    assert (device.read(block, 0, 2) == 0xFF).all()
    device.allocate()
    device.close()


def test_one_writer_and_any_number_of_readers(tmp_path):
    device = new_device(tmp_path / "d")
    with pytest.raises(DeviceBusy):
        Device.open(tmp_path / "d", writable=True)
    with pytest.raises(DeviceBusy):
        Device.create(tmp_path / "d", TINY, blocks=1, overwrite=True)
    readers = [Device.open(tmp_path / "d") for _ in range(3)]
    device.close()
    Device.open(tmp_path / "d", writable=True).close()
    for reader in readers:
        reader.close()
        reader.close()
    with pytest.raises(StoreClosed):
        device.image.fd()


def test_an_existing_file_is_replaced_only_on_request_and_never_under_its_readers(tmp_path):
    path = tmp_path / "d"
    new_device(path).close()
    with pytest.raises(LogExists):
        new_device(path)
    reader = Device.open(path)
    fresh = Device.create(path, GEOMETRIES["small"], blocks=4, overwrite=True)
    assert reader.geometry == TINY
    assert reader.image.size > 0
    reader.close()
    fresh.close()
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_file_that_never_got_its_name_is_removed(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(image_module.os, "fdatasync", fail)
    with pytest.raises(DeviceError):
        new_device(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_use_after_fork_is_refused(tmp_path):
    device = new_device(tmp_path / "d")

    def use(write):
        with pytest.raises(StoreClosed):
            device.sync()

    with Child(use) as child:
        assert child.wait() == 0
    device.close()


def test_a_file_that_shrinks_is_refused(tmp_path):
    device = new_device(tmp_path / "d")
    device.allocate()
    reader = Device.open(tmp_path / "d")
    assert reader.block(0) is not None
    os.truncate(tmp_path / "d", 100)
    with pytest.raises(TruncatedLog, match="shrank"):
        reader.block(0)
    reader.close()
    device.close()


def test_not_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        for writable in (False, True):
            with pytest.raises(BadMagic, match="not a regular file"):
                Image.open(path, writable=writable)
    with pytest.raises(FileNotFoundError):
        Image.open(tmp_path / "none", writable=False)


def test_superblocks_and_their_refusals(tmp_path):
    path = tmp_path / "d"
    new_device(path).close()
    good = path.read_bytes()

    def broken(at, value, second=True):
        raw = bytearray(good)
        for copy in range(1 + second):
            raw[copy * 4096 + at] = value
        return bytes(raw)

    Device.open(path).close()
    path.write_bytes(broken(0, 0, second=False))
    Device.open(path).close()  # the second copy will do
    for raw, error in [
        (b"", BadMagic),
        (good[:100], TruncatedLog),
        (broken(0, 0), BadMagic),
        (broken(8, 9), UnsupportedVersion),
        (broken(12, 0x0A), UnsupportedVersion),
        (broken(40, 1), CorruptRecord),
        (broken(200, 1), UnsupportedVersion),
    ]:
        path.write_bytes(raw)
        with pytest.raises(error):
            Device.open(path)


@pytest.mark.parametrize(
    ("size", "error"), [(0, BadMagic), (7, BadMagic), (8, TruncatedLog), (4095, TruncatedLog), (4096, None)]
)
def test_one_whole_superblock_will_do(tmp_path, size, error):
    path = tmp_path / "d"
    new_device(path).close()
    path.write_bytes(path.read_bytes()[:size])
    if error is None:
        device = Device.open(path)
        assert (device.geometry, device.blocks, device.present_blocks()) == (TINY, 4, 0)
        device.close()
        return
    with pytest.raises(error):
        Device.open(path)


def test_a_device_has_a_block_or_more(tmp_path):
    new_device(tmp_path / "d", blocks=1).close()
    device = Device.open(tmp_path / "d")
    assert device.blocks == 1
    device.close()


@pytest.mark.parametrize("byte", [0, 8, 12, 16, 40, 127, 128])
@pytest.mark.parametrize("copy", [0, 1])
def test_whatever_is_wrong_with_one_superblock_the_other_will_do(tmp_path, byte, copy):
    path = tmp_path / "d"
    new_device(path).close()
    raw = bytearray(path.read_bytes())
    raw[4096 * copy + byte] ^= 1
    path.write_bytes(raw)
    device = Device.open(path)
    assert (device.geometry, device.blocks) == (TINY, 4)
    device.close()


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_bad_superblocks_the_first_one_is_named(tmp_path, swapped):
    path = tmp_path / "d"
    new_device(path).close()
    raw = bytearray(path.read_bytes())
    raw[4096 * (not swapped) + 40] ^= 1  # a checksum
    raw[4096 * swapped + 8] ^= 8  # a version
    path.write_bytes(raw)
    error, told = (CorruptRecord, "at byte 0: ") if swapped else (UnsupportedVersion, "format version 9")
    with pytest.raises(error, match=told):
        Device.open(path)


@pytest.mark.parametrize("byte", [SUPERBLOCK.fields["reserved"][1], SUPERBLOCK.fields["crc"][1] - 1])
def test_each_reserved_byte_of_a_superblock_is_looked_at(tmp_path, byte):
    path = tmp_path / "d"
    new_device(path).close()
    raw = bytearray(path.read_bytes())
    for at in (0, 4096):
        raw[at + byte] = 1
        raw[at + 124 : at + 128] = crc32c(bytes(raw[at : at + 124])).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(UnsupportedVersion, match="reserved"):
        Device.open(path)


@pytest.mark.parametrize("byte", [128, 4095])
def test_each_byte_behind_a_superblock_is_looked_at(tmp_path, byte):
    path = tmp_path / "d"
    new_device(path).close()
    raw = bytearray(path.read_bytes())
    raw[byte] = raw[4096 + byte] = 1
    path.write_bytes(raw)
    with pytest.raises(UnsupportedVersion, match="reserved"):
        Device.open(path)


def test_geometries():
    assert Geometry.parse("tlc") is PRESETS["tlc"]
    assert PRESETS["tlc"].block_bytes == 18 << 20
    assert (PRESETS["slc"].unit_bytes, PRESETS["slc"].block_bytes) == (512, 128 << 10)
    assert Geometry.parse("page=4096,unit=512,block=65536,cycles=7").rated_cycles == 7
    assert Geometry.parse(TINY) is TINY
    for text in (
        "floppy", "page=1", "page=a,block=1", "page=0,block=64", "page=64,unit=0,block=64", "page=64,block=64",
        "page=100,block=1000", "page=128,unit=96,block=1024", "page=65536,block=1310720", "page=64,block=100",
        "page=64,block=4294967296", "page=64,block=640,cycles=0", "page=64,block=640,colour=1",
    ):  # fmt: skip
        with pytest.raises(SpecError, match="device"):
            Geometry.parse(text)


def test_reading_touches_only_what_the_file_has(tmp_path):
    device = new_device(tmp_path / "d")
    assert device.present_blocks() == 0
    assert device.generations().tolist() == []
    assert device.block(0) is None
    assert not device.programmed(0).any()
    assert np.array_equal(device.read(3, 0, 2), np.full(128, 0xFF))
    assert device.generation_of(2, 5) == 0
    device.close()
