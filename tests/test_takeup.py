"""What a writer makes of the log that it finds: where it goes on, what it erases, and what it leaves alone."""

from unittest import mock

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.errors import SpecError
from kvcodec.flash.device import Device
from kvcodec.flash.faults import Faults
from kvcodec.layout import FREED_RUN, RETIRED_BLOCK, FrameType, Kind, Lane, RetireCause
from kvcodec.log.frame import new_record
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery
from kvcodec.log.takeup import take_up
from tools.golden import forge as forging
from tools.golden.forge import Forge
from tools.golden.forged import forged_step

UNIT, UNITS = 64, 128


@pytest.fixture
def forge(tmp_path):
    """A log with four frames in its first block; the others are erased."""
    forge = Forge(tmp_path / "c", "x")
    forge.begin()
    forge.steps(2)
    yield forge
    forge.device.close()


def taken_up(forge, look, faults=None):
    """What a look at the device and its writers shows; a record that is appended then is read behind the others."""
    forge.device.close()
    device = Device.open(forge.path, writable=True)
    log = Log(device)
    read = [int(one.header["lsn"]) for one in log.poll()]
    if faults is not None:
        device.fail_by(faults)
    writers = take_up(device, log)
    found = look(device, writers)
    writers.fresh.append([forged_step(9)])
    writers.fresh.sync()
    device.close()
    device = Device.open(forge.path)
    assert [int(one.header["lsn"]) for one in Log(device, Recovery.ABSOLUTE).poll()] == [*read, max(read) + 1]
    device.close()
    return found


def write(forge, at, data):
    forge.device.image.write(at, data)


def next_unit(_, writers):
    return writers.fresh._unit_start // UNIT


def erased(device, _):
    """Blocks that were erased."""
    return {block for block, count in device.erase_counts.items() if count}


# -- where it goes on -------------------------------------------------------------------------------------------------


def test_a_writer_goes_on_in_the_next_unit(forge):
    end = forge.offset // UNIT
    assert taken_up(forge, lambda *own: (next_unit(*own), erased(*own))) == (end, set())


@pytest.mark.parametrize("behind", [0, 1, 7, -1])
@pytest.mark.parametrize("where", ["first byte", "last byte", "slot", "end of slot"])
def test_a_unit_of_which_a_bit_is_set_is_not_programmed_again(forge, behind, where):
    end = forge.offset // UNIT
    unit = end + behind if behind >= 0 else UNITS - 1
    data, slot = forge.device.file_offset(0, unit * UNIT), forge.device._spare_offset(0, unit)
    write(forge, {"first byte": data, "last byte": data + 63, "slot": slot, "end of slot": slot + 15}[where], b"\x10")
    assert taken_up(forge, next_unit) == unit + 1


@pytest.mark.parametrize("inside", [1, 63])
def test_a_unit_of_which_the_file_holds_a_part(forge, inside):
    """Of zeros it is as if it were not there."""
    end = forge.offset // UNIT
    write(forge, forge.device.file_offset(0, (end + 2) * UNIT), bytes(inside))
    assert forge.path.stat().st_size % UNIT == inside
    assert taken_up(forge, next_unit) == end


@pytest.mark.parametrize("inside", [1, 63])
def test_a_unit_of_which_a_bit_is_set_in_the_part_that_the_file_holds(forge, inside):
    end = forge.offset // UNIT
    write(forge, forge.device.file_offset(0, (end + 2) * UNIT), bytes(inside - 1) + b"\1")
    assert taken_up(forge, next_unit) == end + 3


def test_a_log_whose_last_block_is_retired_goes_on_in_another(forge):
    forge.begin_kept()
    body = np.array([(0, RetireCause.PROGRAM, b"")], RETIRED_BLOCK).tobytes()
    forge.frame(forge.seal(new_record(Kind.RETIRED, body, blocks=1)))
    before = forge.device.data(0, 0, UNIT * UNITS).copy()

    def look(device, writers):
        return next_unit(device, writers), device.retired, writers.kept._unit_start // UNIT

    assert taken_up(forge, look) == (UNITS, {0: RetireCause.PROGRAM}, forge.offset // UNIT)
    device = Device.open(forge.path)
    assert np.array_equal(device.data(0, 0, UNIT * UNITS), before)
    device.close()


# -- what it erases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [0, 1, UNITS - 1])
def test_what_lies_in_no_block_of_the_log_is_erased(forge, unit):
    """And what is erased already is not."""
    at = forge.device.file_offset(2, unit * UNIT)
    write(forge, at, b"\1")

    def look(device, writers):
        return erased(device, writers), bool(device.data(2, 0, UNIT * UNITS).any())

    assert taken_up(forge, look) == ({2}, False)


@pytest.mark.parametrize("lane", Lane)
def test_a_block_of_which_only_the_header_is_there_is_erased(forge, lane):
    forge.begin_block(2, lane)
    assert taken_up(forge, erased) == {1}


def test_blocks_of_the_log_are_not_erased(forge):
    forge.begin_block(2)
    forge.steps(1)
    forge.begin_kept()
    forge.frame()
    assert taken_up(forge, erased) == set()


def test_blocks_behind_a_torn_tail_are_erased(forge):
    forge.frame(after=lambda data: data.__setitem__(-1, data[-1] ^ 1))
    forge.begin_block(2)
    forge.frame(durable=3)
    forge.begin_block(3)
    forge.frame(durable=3)
    assert taken_up(forge, erased) == {1, 2}


def test_what_a_crash_left_of_an_erase_is_erased(forge):
    """A block whose frames are freed, of which the first units are gone."""
    forge.begin_block(2)
    forge.frame(forge.seal(forged_step(2, tokens=8)))
    freed = forge.number, 1
    forge.begin_block(3)
    forge.frame()
    forge.begin_kept()
    body = np.array([(Lane.FRESH, b"", *freed)], FREED_RUN).tobytes()
    forge.frame(forge.seal(new_record(Kind.FREED, body, runs=1)))
    write(forge, forge.device._spare_offset(1, 0), bytes(16 * 8))
    write(forge, forge.device.file_offset(1), bytes(UNIT * 8))
    assert forge.device.programmed(1).any()

    def look(device, writers):
        return erased(device, writers), bool(device.programmed(1).any())

    assert taken_up(forge, look) == ({1}, False)


def test_what_is_retired_is_left_as_it_is(forge):
    forge.begin_kept()
    body = np.array([(3, RetireCause.ERASE, b"")], RETIRED_BLOCK).tobytes()
    forge.frame(forge.seal(new_record(Kind.RETIRED, body, blocks=1)))
    at = forge.device.file_offset(3, 500)
    write(forge, at, b"what nobody wants")
    assert taken_up(forge, erased) == set()
    assert forge.path.read_bytes()[at : at + 17] == b"what nobody wants"


def test_a_block_that_does_not_erase_keeps_nobody_from_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(forging, "DEVICE", "page=512,unit=64,block=8192,cycles=1")
    forge = Forge(tmp_path / "c", "x")
    forge.begin()
    forge.device.erase_counts[1] = 4
    forge.begin_block(2)
    forge.steps(2)
    at = forge.device.file_offset(3)
    write(forge, at, b"\1")
    assert taken_up(forge, lambda device, _: dict(device.erase_counts), Faults(1)) == {0: 0, 1: 4, 2: 2, 3: 2}
    assert forge.path.read_bytes()[at] == 1


def test_a_writer_syncs_before_it_erases_and_after(forge):
    """Whatever it read may not have been on the medium; where it erases nothing it waits for nothing."""
    for stale in (False, True):
        if stale:
            for block in (1, 2):
                write(forge, forge.device.file_offset(block), b"\1")
        device = Device.open(forge.path)
        log = Log(device)
        log.poll()
        with mock.patch.multiple(device, sync=mock.DEFAULT, erase=mock.DEFAULT) as asked:
            parent = mock.Mock()
            for name, one in asked.items():
                parent.attach_mock(one, name)
            take_up(device, log)
            assert [call[0] for call in parent.mock_calls] == (["sync", "erase", "erase", "sync"] if stale else [])
        device.close()


@pytest.mark.parametrize("recovery", ["skip-damaged", "point-in-time"])
def test_nothing_is_written_behind_damage(forge, recovery):
    forge.frame(after=lambda data: data.__setitem__(-1, data[-1] ^ 1))
    forge.steps(1)
    before = forge.path.read_bytes()
    forge.device.close()
    with pytest.raises(SpecError, match="can only be read"):
        kv.open(forge.path, "a", recovery=recovery)
    assert forge.path.read_bytes() == before


def test_what_is_written_while_a_log_is_made_small_counts_as_compaction(forge):
    forge.device.close()
    with kv.open(forge.path, "a") as store:
        writers = store._writers
        with writers.compacting():
            assert {writer.frame_type for writer in writers} == {FrameType.COMPACTION}
        assert {writer.frame_type for writer in writers} == {FrameType.DATA}
        with pytest.raises(KeyError), writers.compacting():
            raise KeyError
        assert {writer.frame_type for writer in writers} == {FrameType.DATA}
