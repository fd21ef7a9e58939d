"""Records of frames that are lost: which are known to be whole, and to be those of the log."""

import functools

import numpy as np
import pytest

from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.layout import ALIGNMENT, FORMAT_VERSION, FRAME_HEADER, GROUP_HEADER, Kind, frame_magic
from kvcodec.log.broken import records_of
from kvcodec.log.frame import new_record
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery
from tests.walked import Packed
from tools.golden.forge import Forge, frame_field
from tools.golden.forged import forged_group

HEAD = FRAME_HEADER.itemsize
STEP, BODY = 64 + 24, 24  # bytes of the records that frames are made of here


@pytest.fixture
def forge(tmp_path):
    forge = Forge(tmp_path / "c", "x")
    forge.steps(2)
    yield forge
    forge.device.close()


def small(forge, count=3):
    """Records of 88 bytes, sealed."""
    return [forge.seal(new_record(Kind.STEP, bytes(range(1, 1 + BODY)), sequence=1)) for _ in range(count)]


def flip(at, data):
    data[at] ^= 1


def lose(forge, *places, count=3, **options):
    """A frame of some records, lsns 3 to 5 if it is the first such one, with bits flipped behind its checksums."""

    def after(data):
        for at in places:
            flip(at, data)

    return forge.frame(*small(forge, count), after=after, **options)


def saved(forge, found=None):
    """lsns of the records that are saved, once the log went on behind what is lost."""
    forge.frame(**(found or {}))
    device = Device.open(forge.path)
    log = Log(device, Recovery.SKIP_DAMAGED)
    log.poll()
    (broken,) = log.fresh.broken
    own = records_of(device, broken)
    for one in own:
        assert log.load(one.place)[0].tobytes() == one.header.tobytes()
    device.close()
    return [int(one.header["lsn"]) for one in own]


@pytest.mark.parametrize("wrong", range(3))
def test_a_body_that_is_wrong_costs_its_record(forge, wrong):
    lose(forge, HEAD + wrong * STEP + 64 + 5)
    assert saved(forge) == [lsn for lsn in (3, 4, 5) if lsn != 3 + wrong]


@pytest.mark.parametrize("wrong", range(3))
@pytest.mark.parametrize("at", [0, 4, 8, 63])
def test_a_header_that_is_wrong_costs_what_is_behind_it_too(forge, wrong, at):
    lose(forge, HEAD + wrong * STEP + at)
    assert saved(forge) == [3, 4, 5][:wrong]


def test_all_records_are_saved_where_only_the_trailer_is_wrong(forge):
    lose(forge, -1)
    assert saved(forge) == [3, 4, 5]


@pytest.mark.parametrize("at", [0, 8, 16, HEAD - 1])
def test_a_frame_whose_header_is_wrong_is_not_known(forge, at):
    lose(forge, at)
    assert saved(forge) == []


@pytest.fixture
def packed(tmp_path):
    """A log whose frames share units, as a writer lays them that does not sync in between; the last ones wait."""
    forge = Packed(tmp_path / "packed", "x")
    forge.steps(1)
    yield forge
    forge.device.close()


def saved_of_packed(forge):
    forge.flush()
    program = forge.program
    forge.program = lambda data: (program(data), forge.flush())[0]
    return saved(forge)


def test_frames_that_follow_each_other_are_saved_together(packed):
    lose(packed, HEAD + 70)
    lose(packed, HEAD + STEP + 70)
    lose(packed, -1)
    assert saved_of_packed(packed) == [3, 4, 5, 7, 8, 9, 10]


def test_frames_are_followed_up_to_the_one_that_is_read(packed):
    """Which is read, and not saved once more."""
    lose(packed, HEAD + 70)
    packed.frame(*small(packed, 1))
    assert saved_of_packed(packed) == [3, 4]


def test_a_frame_of_nothing_is_followed_too(packed):
    lose(packed, -8, count=0)
    lose(packed, HEAD + 70)
    assert saved_of_packed(packed) == [3, 4]


def test_a_lost_frame_may_end_with_its_block(forge):
    while forge.offset < 8192 - 768:
        forge.frame()
    lose(forge, HEAD + 70, count=8)
    assert forge.offset == 8192
    forge.begin_block(2)
    assert saved(forge) == list(range(4, 11))


@pytest.mark.parametrize("wrong", [0, 52, HEAD + 70])
def test_a_lost_frame_is_found_behind_one_that_was_torn(forge, wrong):
    """And written again in the next block."""
    number, crc = forge.number, forge.crc
    lose(forge, wrong)
    forge.number, forge.crc = number, crc
    forge.begin_block(2)
    lose(forge, HEAD + 70, session=2, session_start=3, durable=2)
    assert saved(forge, {"session": 2, "session_start": 3}) == [7, 8]


def test_a_frame_that_follows_another_one_is_not_known(forge):
    """The chain is broken where a trailer is wrong, or something else lies there."""
    lose(forge, -1)
    lose(forge, HEAD + 70)
    assert saved(forge) == [3, 4, 5]


@pytest.mark.parametrize("field", ["number", "previous", "session", "session_start"])
def test_a_frame_that_is_another_one_is_not_known(forge, field):
    own = {"number": 3, "previous": forge.crc, "session": 1, "session_start": 1}
    lose(forge, HEAD + 70, **{field: own[field] + (-1 if field == "number" else 1)}, durable=1)
    assert saved(forge) == []


@pytest.mark.parametrize(
    ("field", "value"), [("version", 2), ("flags", 1), ("type", 0x81), ("type", 3), ("magic", frame_magic(2))]
)
def test_a_frame_of_another_version_type_or_generation_is_not_known(forge, field, value):
    lose(forge, HEAD + 70, patch=frame_field(field, value))
    assert saved(forge) == []


@pytest.mark.parametrize("length", [56, 60, 336 - 4, 1 << 13])
def test_a_frame_of_a_length_that_is_none_is_not_known(forge, length):
    lose(forge, HEAD + 70, patch=frame_field("length", length))
    assert saved(forge) == []


def test_compaction_is_saved_as_data_is(forge):
    lose(forge, HEAD + 70, type=2)
    assert saved(forge) == [4, 5]


def test_lost_frames_behind_padding_that_is_zeros_no_longer(forge):
    end = forge.frame(*small(forge, 1)) + HEAD + STEP + 8
    assert end % forge.unit
    forge.device.image.write(forge.device.file_offset(0, end), b"\1")
    lose(forge, HEAD + 70)
    assert saved(forge) == [5, 6]


@pytest.mark.parametrize("full", [True, False])
def test_lost_frames_at_the_beginning_of_a_block(forge, full):
    """Whether the one before is full or not."""
    while full and forge.offset < 8192:
        forge.frame()
    lsn = forge.lsn
    forge.begin_block(2)
    lose(forge, HEAD + 70)
    assert saved(forge) == [lsn + 2, lsn + 3]


def test_a_frame_that_would_end_behind_its_block_is_not_known(forge):
    while forge.offset < 8192 - 6 * forge.unit:
        forge.frame()
    lose(forge, HEAD + 70, patch=frame_field("length", 6 * forge.unit + 8))
    forge.begin_block(2)
    assert saved(forge) == []


def test_a_record_whose_checksum_has_zeros_is_found(forge):
    """It is the kind that is never zero."""
    record = new_record(Kind.STEP, bytes(BODY), sequence=1)
    headers = (forge.seal(record) for _ in range(5000))
    sealed = next(one for one in headers if one[0][3] == 0)
    forge.frame(*small(forge, 1), sealed, *small(forge, 1), after=functools.partial(flip, HEAD + 70))
    assert len(saved(forge)) == 2


def test_bytes_between_records_that_are_no_zeros_end_what_is_known(forge):
    records = [*small(forge, 1), forge.seal(forged_group())]
    forge.frame(*records, after=functools.partial(flip, HEAD + STEP + 1))
    assert saved(forge) == [3]


def test_zeros_between_records_do_not(forge):
    records = [*small(forge, 1), forge.seal(forged_group()), *small(forge, 1)]
    forge.frame(*records, after=functools.partial(flip, HEAD + 70))
    assert saved(forge) == [4, 5]


def test_a_record_that_is_not_aligned_ends_what_is_known(forge):
    header, body = forge.seal(forged_group(), kind=Kind.STEP)  # laid at the next multiple of 8
    assert (forge.offset + HEAD) % ALIGNMENT

    def patch(data):
        h = np.frombuffer(data, GROUP_HEADER, 1, HEAD)[0]
        h["kind"] = Kind.GROUP
        h["header_crc"] = crc32c(h.tobytes()[4:])

    forge.frame((header, body), *small(forge, 1), patch=patch, after=functools.partial(flip, -1))
    assert saved(forge) == []


@pytest.mark.parametrize("fields", [{"kind": 0x7E}, {"version": FORMAT_VERSION + 1}, {"body_bytes": 1 << 20}], ids=str)
def test_a_record_that_no_reader_takes_ends_what_is_known(forge, fields):
    records = [*small(forge, 1), forge.seal(new_record(Kind.STEP, bytes(BODY)), **fields), *small(forge, 1)]
    forge.frame(*records, after=functools.partial(flip, -1))
    assert saved(forge) == [3]


def test_a_frame_of_which_nothing_is_whole(forge):
    lose(forge, *(HEAD + n * STEP + 70 for n in range(3)))
    assert saved(forge) == []
