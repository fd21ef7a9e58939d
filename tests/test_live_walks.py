"""Walks while others write and erase, and single records, of which the same holds."""

from unittest import mock

import numpy as np
import pytest

from kvcodec.errors import BlockErased, CorruptRecord, KvcodecError, TruncatedLog, UnsupportedVersion
from kvcodec.flash.device import Device
from kvcodec.flash.faults import Faults
from kvcodec.layout import Kind, Lane
from kvcodec.log import lane_frames as frames_module
from kvcodec.log import reader as reader_module
from kvcodec.log.blocks import BlockOrder
from kvcodec.log.frame import new_record
from kvcodec.log.lane_frames import LaneFrames
from kvcodec.log.located import Place
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery, Report
from kvcodec.log.takeup import take_up
from tests.walked import freed, here, opened, refused, step, torn, walk
from tools.golden.forged import forged_step

# -- others are at work -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, CorruptRecord(0, "another's"), UnsupportedVersion("another's")])
@pytest.mark.parametrize("look", [1, 2])
def test_a_frame_of_a_block_that_is_erased_while_it_is_read_is_none(forge, wrong, look):
    """Whether it was whole by then, or what is not there any more looked wrong; at the first look, or the second."""
    forge.steps(2)
    forge.begin_block(2)
    forge.steps(1)
    own, calls = frames_module.read_frame, []

    def erased(data, offset, **options):
        frame = own(data, offset, **options)
        calls.append(options["generation"])
        if calls.count(2) == look:
            forge.device.erase(1)
            if wrong is not None:
                raise wrong
        return frame

    with opened(forge) as log, mock.patch.object(frames_module, "read_frame", erased):
        assert [int(one.header["lsn"]) for one in log.poll()] == [1, 2]
        assert log.poll() == []
        assert log.report == Report(2)


def test_a_frame_of_a_block_that_is_used_anew_while_it_is_read_is_none(forge):
    """The units are programmed again by then, under another generation."""
    forge.steps(2)
    forge.begin_block(2)
    forge.steps(1)
    own, calls = frames_module.read_frame, []

    def used_anew(data, offset, **options):
        frame = own(data, offset, **options)
        calls.append(options["generation"])
        if calls.count(2) == 2 and forge.block.generation == 2:
            forge.device.erase(1)
            forge.device._untouched = forge.device.blocks
            forge.begin_kept()
            forge.steps(1)
            assert forge.block.number == 1
        return frame

    with opened(forge) as log, mock.patch.object(frames_module, "read_frame", used_anew):
        assert [int(one.header["lsn"]) for one in log.poll()] == [1, 2, 4]
        assert log.fresh.cursor.number == 2


def cleaned_on(forge):
    """Frames 5 and 6 are cleaned too, and 7 is in a fresh block. Lane KEPT is the one that was written last."""
    kept = forge.block, forge.offset, forge.number, forge.crc
    forge.begin_block(forge.device.generation + 1)
    forge.number = 6
    step(forge)
    forge.block, forge.offset, forge.number, forge.crc = kept
    freed(forge, Lane.FRESH, 3, 4)
    forge.device.erase(2)


@pytest.mark.parametrize("torn_before", [False, True])
def test_what_is_behind_frames_that_are_freed_is_freed_meanwhile(forge, torn_before):
    """Once the frames behind were listed, or where nothing more was found in their blocks."""
    forge.steps(2)
    if torn_before:
        torn(forge)
    ident = {"session": 2, "session_start": 3} if torn_before else {}
    for generation in (2, 3):
        forge.begin_block(generation)
        step(forge, **ident)
        step(forge, **ident)
    forge.begin_kept()
    forge.steps(1)
    if not torn_before:
        freed(forge, Lane.FRESH, 3, 2)
    forge.device.erase(1)
    with opened(forge) as log:
        ask, any_from, live = log.fresh.ask, log.fresh.frames.any_from, [True]

        def ask_later():
            while live and live.pop():
                cleaned_on(forge)
            return ask()

        def any_later(block, unit):
            while live and block.number == 2 and live.pop():
                cleaned_on(forge)
            return any_from(block, unit)

        if torn_before:
            log.fresh.ask = ask_later
        else:
            log.fresh.frames.any_from = any_later
        lsns = [int(one.header["lsn"]) for one in log.poll()]
        assert not live
        assert log.fresh.cursor.number == 7
        assert [lsn for lsn in lsns if lsn in (3, 4, 5, 6)] == []
        assert {1, 2, log.lsn - 1} <= set(lsns)


def test_a_committed_frame_that_is_impossible_is_an_error_in_all_modes(forge):
    forge.steps(1)
    start = here(forge)
    step(forge, durable=9)
    for recovery in Recovery:
        assert refused(forge, recovery)[0] == start


@pytest.mark.parametrize("damaged", [0, 1])
def test_one_slot_of_a_frame_that_is_read_may_be_damaged(forge, damaged):
    """That of the block's header, or that of the frame's first unit."""
    forge.frame(forge.seal(forged_step(0)), forge.seal(forged_step(1)))
    at = forge.device._spare_offset(0, damaged) + 8
    forge.device.image.write(at, bytes([7]))
    if damaged == 0:  # by whose slot the block is known
        return
    assert walk(forge, "absolute") == ([1, 2], Report(1))


def test_a_writer_that_goes_on_before_it_begins_the_next_block_is_followed(forge):
    """It fills the block after a reader found it at its end, and before that looks for the next one."""
    forge.steps(2)
    own = BlockOrder.following
    with opened(forge) as log:

        def following(order, block):
            if block is not None and forge.number == 2:
                forge.steps(2)
                forge.begin_block(2)
                forge.steps(1)
            return own(order, block)

        with mock.patch.object(BlockOrder, "following", following):
            assert [int(one.header["lsn"]) for one in log.poll()] == [1, 2, 3, 4, 5]
        assert log.report == Report(5)


def test_a_writer_that_finishes_a_frame_while_a_reader_looks_further_is_followed(forge):
    """Frame 3 was not there when it was looked for, while a later one said that it was durable: it is there now."""
    forge.steps(2)
    start = forge.offset
    forge.steps(2)
    at, own = forge.device.file_offset(0, start) + 70, LaneFrames.beyond
    byte = forge.device.image.view(at, 1)[0]
    forge.device.image.write(at, bytes([byte ^ 1]))

    def later(*place):
        found = list(own(*place))
        forge.device.image.write(at, bytes([byte]))
        return found

    with opened(forge) as log, mock.patch.object(LaneFrames, "beyond", later):
        assert [int(one.header["lsn"]) for one in log.poll()] == [1, 2, 3, 4]
        assert log.report == Report(4)


# -- one record -------------------------------------------------------------------------------------------------------


def test_a_record_behind_the_end_of_the_file_is_truncated(forge):
    """Its slot is there, its bytes are not."""
    forge.begin_block(2)
    forge.steps(1)
    with opened(forge) as log:
        ((place, header),) = log.poll()
        assert log.load(place)[0].tobytes() == header.tobytes()
    base = forge.device.file_offset(place.block, place.offset)
    whole = forge.path.read_bytes()
    for left in (0, 31, 32, 64):
        forge.path.write_bytes(whole[: base + left])
        with opened(forge) as log:
            with pytest.raises(TruncatedLog if left < 32 else CorruptRecord) as raised:
                log.load(place)
            if left < 32:
                assert str(raised.value).endswith(f"ends before byte {base + 32}")
            else:
                assert raised.value.offset == base
    forge.path.write_bytes(whole)


def test_a_record_of_a_block_that_was_erased_is_named_so(forge):
    forge.begin_block(2)
    forge.steps(1)
    with opened(forge) as log:
        ((place, _),) = log.poll()
        base = log.device.file_offset(place.block, place.offset)
        with pytest.raises(BlockErased) as raised:
            log.load(Place(place.generation - 1, place.block, place.offset))
        assert raised.value.offset == base
        forge.device.erase(place.block)
        with pytest.raises(BlockErased, match=f"block {place.block} was erased"):
            log.load(place)


def test_a_record_whose_body_is_wrong_is_named_by_where_the_body_begins(forge):
    forge.frame(forge.seal(forged_step(0), body_crc=1))
    with opened(forge) as log:
        ((place, header),) = log.poll()
        base = log.device.file_offset(place.block, place.offset)
        with pytest.raises(CorruptRecord, match="record body checksum") as raised:
            log.load(place)
        assert raised.value.offset == base + header.dtype.itemsize


def test_another_record_than_the_one_that_is_known(forge):
    forge.steps(2)
    with opened(forge) as log:
        one, other = log.poll()
        with pytest.raises(CorruptRecord, match="another record") as raised:
            log.load_one(one._replace(header=other.header))
        assert raised.value.offset == log.device.file_offset(one.place.block, one.place.offset)


def test_a_record_that_was_loaded_stays_what_it_was(forge):
    """Whatever becomes of its block."""
    forge.steps(1)
    with opened(forge) as log:
        (one,) = log.poll()
        header, body = log.load_one(one)
        place = log.device.file_offset(one.place.block, one.place.offset)
        forge.device.image.write(place, bytes(header.nbytes + body.size))
        assert not log.device.data(one.place.block, one.place.offset, 100).any()
        assert header.tobytes() == one.header.tobytes()
        assert body.tobytes() == bytes(forged_step(0).body)


def test_a_record_of_a_block_that_is_erased_while_it_is_read_is_none(forge):
    """Its bytes were whole when they were checked; who knows when they were copied."""
    forge.begin_block(2)
    forge.steps(1)
    own = Log.load
    with opened(forge) as log:
        (one,) = log.poll()

        def erased(log_, place):
            found = own(log_, place)
            forge.device.erase(place.block)
            return found

        with mock.patch.object(Log, "load", erased), pytest.raises(BlockErased):
            log.load_one(one)


@pytest.mark.parametrize("wrong", [CorruptRecord(0, "another's"), UnsupportedVersion("another's")])
@pytest.mark.parametrize("erased", [True, False])
def test_what_is_wrong_with_a_record_that_is_erased_is_that_it_was_erased(forge, wrong, erased):
    forge.begin_block(2)
    forge.steps(1)
    with opened(forge) as log:
        (one,) = log.poll()

        def fail(data, base):
            if erased:
                forge.device.erase(one.place.block)
            raise wrong

        kind = BlockErased if erased else type(wrong)
        with mock.patch.object(reader_module, "_read_record", fail), pytest.raises(kind) as raised:
            log.load(one.place)
        assert raised.type is kind


def test_what_waits_in_memory_is_not_sensed(forge):
    """A device's reads fail; what no unit holds yet is not read from it."""
    forge.steps(1)
    forge.device.close()
    device = Device.open(forge.path, writable=True)
    log = Log(device)
    log.poll()
    device.fail_by(Faults(1, flips=1e-12))
    writers = take_up(device, log)
    (one,) = writers.fresh.append([new_record(Kind.STEP, bytes(range(100)), sequence=1)])
    with mock.patch.object(device, "sense") as sense:
        assert log.waits(one.place)
        body = log.load_one(one)[1]
        sense.assert_not_called()
        writers.fresh.sync()
        assert not log.waits(one.place)
        assert np.array_equal(log.load_one(one)[1], body)
        sense.assert_called_once_with(one.place.block, one.place.offset, 64 + len(body))
    device.close()


def test_recovery_modes_have_names():
    assert [Recovery.parse(str(mode)) for mode in Recovery] == list(Recovery)
    assert Recovery.parse(Recovery.ABSOLUTE) is Recovery.ABSOLUTE
    with pytest.raises(KvcodecError, match="'none', want one of torn-tail, absolute, point-in-time, skip-damaged"):
        Recovery.parse("none")
