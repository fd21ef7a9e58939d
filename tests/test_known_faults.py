"""Faults that are known and not mended yet: each of these tests becomes an error as soon as it passes."""

from unittest import mock

import pytest

import kvcodec as kv
from kvcodec.errors import EraseFailed, NoSpace
from kvcodec.flash.device import Device
from kvcodec.log.sidecar import sidecar_path
from tests.test_lifecycle import append, data, make

BLOCK, UNIT = 4096, 64
GEOMETRY = {"device": f"page={UNIT},unit={UNIT},block={BLOCK}", "capacity": 64 * BLOCK}


def lose_units(path, device, block, first, units):
    """Power was lost before these reached the medium."""
    with open(path, "r+b") as file:
        file.seek(device._spare_offset(block, first))
        file.write(bytes(16 * units))
        file.seek(device.file_offset(block, first * UNIT))
        file.write(bytes(UNIT * units))


def lengths(path):
    """Of all sequences, as the log alone tells them."""
    sidecar_path(path).unlink(missing_ok=True)
    with kv.open(path) as store:
        return {own.name: len(own) for own in store}


@pytest.mark.xfail(strict=True, reason="a jump over FREED frames may end at an old frame that was never accepted")
def test_a_jump_ends_behind_the_frames_that_are_freed(tmp_path):
    """Of frames that power let not become durable the first is lost, and those behind it, in the same block, are not.
    The next writer gives their numbers again, and its blocks are cleaned.
    """
    path = tmp_path / "c"
    make(path, **GEOMETRY).close()
    with kv.open(path, "a") as store:
        append(store.sequence("keep"), data(64, 1))
        store.sync()
        writer = store._writers.fresh
        block, first = writer.block.number, writer._unit_start // UNIT
        store.sequence("x")
        while writer.block.number == block:
            store.sequence("keep").truncate(0)
        device = store.device
        store.abandon()
    lose_units(path, device, block, first, 1)
    with kv.open(path, "a") as store:
        assert len(store.sequence("keep")) == 64
        for n in range(20):
            append(store.sequence("big"), data(16, n))
            store.sync()
        store.drop("big")
        append(store.sequence("precious"), data(10, 3))
        store.compact()
    assert lengths(path) == {"keep": 64, "precious": 10}


@pytest.mark.xfail(strict=True, reason="a block that was retired because it did not erase stays in the order of blocks")
def test_a_block_that_did_not_erase_holds_nothing_that_counts(tmp_path):
    """It holds frames that were never accepted, the first of which has the number behind those that FREED names."""
    path = tmp_path / "c"
    make(path, **GEOMETRY).close()
    with kv.open(path, "a") as store:
        append(store.sequence("keep"), data(64, 1))
        store.sync()
        writer = store._writers.fresh
        writer.begin_block()
        block, first, n = writer.block.number, writer._unit_start // UNIT, 0
        while writer.block.number == block or writer._unit_start < 3700:
            before, n = writer.block.number, n + 1
            store.sequence(f"x{n}")
            if writer.block.number != before:
                number = writer.number
        device, stale = store.device, writer.block.number
        store.abandon()
    lose_units(path, device, block, first, BLOCK // UNIT - first)
    erase = Device.erase

    def erase_or_fail(device, which):
        if which == stale:
            raise EraseFailed(5, "it did not erase", str(path))
        erase(device, which)

    with mock.patch.object(Device, "erase", erase_or_fail), kv.open(path, "a") as store:
        writer, used = store._writers.fresh, {block}
        while writer.number < number - 1:
            store.sequence(f"z{writer.number}")
            if writer.number < number - 1:
                store.drop(f"z{writer.number - 1}")
            used.add(writer.block.number)
        store.sync()
        writer.begin_block()
        append(store.sequence("precious"), data(10, 3))
        store.sync()
        store._cleaner.empty(used)
        store.sync()
        store.abandon()
    found = lengths(path)
    assert found["precious"] == 10


@pytest.mark.xfail(
    strict=True, raises=NoSpace, reason="SUMMARY records of a sequence that lives are never worth nothing"
)
def test_a_sequence_that_is_summarised_for_ever_fills_no_device(tmp_path):
    with make(tmp_path / "c", device="page=64,unit=64,block=2048", capacity=32 * 2048) as store:
        own = store.sequence("p")
        for n in range(600):
            append(own, data(16, n))
            if settled := min(open_.first for open_ in own._open.values()):
                own.summarize(0, settled, dict(enumerate(data(2, n))))
