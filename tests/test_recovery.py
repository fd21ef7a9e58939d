"""What a reader makes of frames, blocks and lists of both: which count, which are gone on purpose, in which order."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcodec.errors import CorruptRecord
from kvcodec.flash.block import Block, Counters, decode_header, encode_header
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.flash.ecc import ReadErrors
from kvcodec.flash.faults import Faults
from kvcodec.layout import (
    BLOCK_HEADER,
    COUNTER_LIMIT,
    FREED_RUN,
    RETIRED_BLOCK,
    Kind,
    Lane,
    RetireCause,
)
from kvcodec.log.blocks import BlockOrder, OneBlock
from kvcodec.log.frame import FrameId, implied_drop, new_record
from kvcodec.log.freed import FreedFrames, freed_records, read_freed
from kvcodec.log.located import NOWHERE, Located, Place, RecordTable, join_records
from kvcodec.log.order import order_records
from kvcodec.log.recover import Found, alive
from kvcodec.log.retired import read_retired, retired_records
from kvcodec.log.tail import Tail
from tests.caches import TINY

LAST = COUNTER_LIMIT - 1


# -- frames beyond a bad place ----------------------------------------------------------------------------------------


def is_alive(later, n, number):
    """The rule of formats/frame.md, word by word."""
    own = later[n].frame.id
    return own.number > number and not any(
        other.frame.id.session != own.session and other.frame.id.session_start <= own.number for other in later[n + 1 :]
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 9)), max_size=9), st.integers(0, 6))
def test_frames_that_are_alive_are_those_of_the_rule(frames, number):
    later = [
        Found(None, n, SimpleNamespace(id=FrameId(own, 0, session, min(own, start), 0)))
        for n, (own, session, start) in enumerate(frames)
    ]
    assert alive(later, number) == [found for n, found in enumerate(later) if is_alive(later, n, number)]


# -- frames that are gone on purpose ----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(Lane), st.integers(1, 30), st.integers(1, 6)), max_size=12))
def test_freed_frames_are_a_set_of_numbers(runs):
    freed, known = FreedFrames(), set()
    for lane, first, count in runs:
        freed.add(lane, first, first + count)
        known |= {(lane, n) for n in range(first, first + count)}
    for lane, first, end in itertools.product(Lane, range(1, 38), range(1, 40, 3)):
        assert freed.covers(lane, first, end) == all((lane, n) in known for n in range(first, end))
    found = list(freed)
    assert [(lane, n) for lane, first, end in found for n in range(first, end)] == sorted(known)
    assert all(one[0] != other[0] or one[2] < other[1] for one, other in itertools.pairwise(found))
    assert len(freed) == len(found)


def runs_of(lane=Lane.KEPT, first=1, frames=1, reserved=b"", runs=1):
    body = np.array([(lane, reserved, first, frames)], FREED_RUN)
    return new_record(Kind.FREED, body.tobytes(), runs=runs).header.reshape(1)[0], body.view(np.uint8)


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({}, True), ({"first": LAST}, True), ({"first": COUNTER_LIMIT}, False), ({"first": 0}, False),
        ({"frames": LAST}, True), ({"frames": COUNTER_LIMIT}, False), ({"frames": 0}, False), ({"lane": 2}, False),
        ({"lane": Lane.FRESH}, True), ({"reserved": b"\1"}, False), ({"reserved": b"\0\0\0\1"}, False),
        ({"runs": 0}, False), ({"runs": 2}, False),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_run_of_freed_frames_may_say(fields, good):
    header, body = runs_of(**fields)
    if good:
        first, frames = fields.get("first", 1), fields.get("frames", 1)
        assert read_freed(header, body, 7) == [(fields.get("lane", Lane.KEPT), first, first + frames)]
        return
    with pytest.raises(CorruptRecord, match="at byte 7:"):
        read_freed(header, body, 7)


def test_lists_that_are_empty_or_of_another_kind_are_refused():
    for read_list, kind, field in ((read_freed, Kind.FREED, "runs"), (read_retired, Kind.RETIRED, "blocks")):
        empty = new_record(kind, b"", **{field: 0}).header.reshape(1)[0]
        with pytest.raises(CorruptRecord, match="length"):
            read_list(empty, np.empty(0, np.uint8), 7)
        other = new_record(Kind.STEP, b"").header.reshape(1)[0]
        with pytest.raises(CorruptRecord, match="length"):
            read_list(other, np.zeros(24, np.uint8), 7)


@pytest.mark.parametrize("limit", [0, 1, 23, 24, 47, 48, 100, 1000])
def test_runs_are_cut_into_records_of_the_size_that_is_asked_for(limit):
    runs = [(Lane(n % 2), 10 * n + 1, 10 * n + 1 + n + 1) for n in range(7)]
    records = freed_records(runs, limit)
    most = max(24, limit)
    assert all(24 <= len(one.body) <= most for one in records)
    assert len(records) == -(-7 // (most // 24))
    found = [read_freed(one.header.reshape(1)[0], np.frombuffer(one.body, np.uint8), 0) for one in records]
    assert [run for part in found for run in part] == runs


@pytest.mark.parametrize("limit", [0, 1, 7, 8, 15, 16, 1000])
def test_blocks_are_cut_into_records_of_the_size_that_is_asked_for(limit):
    retired = {block: list(RetireCause)[block % 4] for block in (5, 3, 9, 0, 77)}
    records = retired_records(retired, limit)
    most = max(8, limit)
    assert all(8 <= len(one.body) <= most for one in records)
    assert len(records) == -(-5 // (most // 8))
    found = {}
    for one in records:
        found |= read_retired(one.header.reshape(1)[0], np.frombuffer(one.body, np.uint8), 0)
    assert list(found.items()) == sorted(retired.items())


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({}, True), ({"cause": 4}, True), ({"cause": 0}, False), ({"cause": 5}, False), ({"blocks": 0}, False),
        ({"blocks": 2}, False), ({"reserved": b"\1"}, False), ({"reserved": b"\0\0\1"}, False),
        ({"block": (1 << 32) - 1}, True),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_retired_block_may_say(fields, good):
    own = {"block": 3, "cause": RetireCause.FACTORY, "reserved": b""} | fields
    body = np.array([(own["block"], own["cause"], own["reserved"])], RETIRED_BLOCK)
    header = new_record(Kind.RETIRED, body.tobytes(), blocks=fields.get("blocks", 1)).header.reshape(1)[0]
    if good:
        assert read_retired(header, body.view(np.uint8), 7) == {own["block"]: RetireCause(own["cause"])}
        return
    with pytest.raises(CorruptRecord, match="at byte 7:"):
        read_retired(header, body.view(np.uint8), 7)


# -- headers of blocks ------------------------------------------------------------------------------------------------

COUNTS = ("generation", "erase_count", "programmed_bytes", "framed_bytes", "host_bytes", "compacted_bytes")


def block_header(**fields):
    raw = encode_header(Block(3, 7, 2, Counters(1000, 900, 800, 700), Lane.KEPT))
    row = np.frombuffer(raw, BLOCK_HEADER, 1).copy()
    for name, value in fields.items():
        row[0][name] = value
    if "crc" not in fields:
        row[0]["crc"] = crc32c(row.tobytes()[:-4])
    return row.view(np.uint8)


def test_a_block_header_says_what_was_encoded():
    block = Block(3, 7, 2, Counters(1000, 900, 800, 700), Lane.KEPT)
    assert decode_header(np.frombuffer(encode_header(block), np.uint8), 5) == block
    assert block_header().tobytes() == encode_header(block)


@pytest.mark.parametrize("field", COUNTS)
def test_a_count_of_a_block_header_goes_to_its_limit(field):
    block = decode_header(block_header(**{field: LAST}), 5)
    found = block if hasattr(block, field) else block.before
    assert getattr(found, field.removesuffix("_bytes")) == LAST
    with pytest.raises(CorruptRecord, match=r"at byte 5: .*out of range"):
        decode_header(block_header(**{field: COUNTER_LIMIT}), 5)


@pytest.mark.parametrize(
    "fields", [{"magic": 1}, {"crc": 1}, {"reserved": b"\1"}, {"reserved": b"\0\0\1"}, {"lane": 2}], ids=str
)
def test_a_block_header_that_is_wrong_in_one_field_is_refused(fields):
    with pytest.raises(CorruptRecord, match="at byte 5: block header"):
        decode_header(block_header(**fields), 5)


def test_counters_are_added_field_by_field():
    assert Counters() == Counters(0, 0, 0, 0)
    assert Counters(1, 2, 3, 4) + Counters(10, 20, 30, 40) == Counters(11, 22, 33, 44)
    assert Counters(1000, 500, 0, 250).programmed_to_compact == 500
    assert Counters(1000, 500, 0, 0).programmed_to_compact == 0
    assert Counters(1000, 0, 0, 0).programmed_to_compact == 0


# -- records of both lanes --------------------------------------------------------------------------------------------


def located(lsn, kind, head, block):
    fields = {"first_head": head, "heads": 1} if kind in (Kind.GROUP, Kind.STEP, Kind.ROWS) else {}
    return Located(
        Place(block + 1, block, 64), new_record(kind, b"", sequence=1, lsn=lsn, **fields).header.reshape(1)[0]
    )


KINDS = st.sampled_from([Kind.GROUP, Kind.STEP, Kind.ROWS, Kind.SEQUENCE, Kind.DROP, Kind.MODEL])
RECORDS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), max_size=10)


@given(st.lists(RECORDS, max_size=3), st.lists(KINDS, min_size=10, max_size=10), st.booleans())
def test_the_last_copy_of_a_record_counts_in_the_order_of_lsns(parts, kinds, tables):
    """All records of one lsn are of one kind; parts of one differ in their heads."""
    number, wanted, given_parts = itertools.count(), {}, []
    for part in parts:
        own = [located(lsn, kinds[lsn], head, next(number)) for lsn, head in part]
        for (lsn, head), one in zip(part, own, strict=True):
            split = kinds[lsn] in (Kind.GROUP, Kind.STEP, Kind.ROWS)
            wanted[lsn, head if split else 0] = one
        given_parts.append(join_records([own]) if tables else own)
    found = order_records(given_parts)
    assert isinstance(found, RecordTable)
    assert [(one.place, one.header.tobytes()) for one in found] == [
        (one.place, one.header.tobytes()) for _, one in sorted(wanted.items())
    ]


@pytest.mark.parametrize("kind", [Kind.GROUP, Kind.STEP, Kind.ROWS])
def test_an_implied_drop_is_behind_all_parts_and_another_drop_is_not(kind):
    parts = [located(5, kind, head, head) for head in (2, 0, 1)]
    drop = Located(NOWHERE, implied_drop(5))
    found = order_records([parts, [drop], [located(2, Kind.DROP, 0, 7)]])
    assert [one.place.block for one in found] == [7, 0, 1, 2, 0]
    assert int(found[-1].header["kind"]) == Kind.DROP


def test_an_implied_drop_takes_the_place_of_no_drop_of_the_same_lsn():
    """The last record before the damage may have been one."""
    parts = [located(4, Kind.STEP, 0, 3), located(5, Kind.DROP, 0, 1)], [Located(NOWHERE, implied_drop(5))]
    found = order_records([*parts, [located(2, Kind.SEQUENCE, 0, 7)]])
    assert [one.place.block for one in found] == [7, 3, 1, 0]


def test_a_table_is_its_records():
    own = [located(n, kind, 0, n) for n, kind in enumerate((Kind.STEP, Kind.MODEL, Kind.DROP), 1)]
    table = join_records([own[:1], [], join_records([own[1:]])])
    assert len(table) == 3
    assert list(table.kinds) == [Kind.STEP, Kind.MODEL, Kind.DROP]
    assert [one.header.dtype for one in table] == [one.header.dtype for one in own]
    assert [tuple(place) for place in table.places.tolist()] == [one.place for one in own]
    assert list(table[1:]) == list(table)[1:]
    assert table[-1].place == own[-1].place
    assert table.words.shape == (3, 16)
    assert table.words[0].tobytes() == own[0].header.tobytes().ljust(128, b"\0")


# -- blocks in order --------------------------------------------------------------------------------------------------


@pytest.fixture
def device(tmp_path):
    device = Device.create(tmp_path / "d", TINY, blocks=8)
    yield device
    device.close()


def numbers(order):
    return [block.number for block in order.in_use()]


def test_blocks_of_a_lane_are_in_the_order_of_their_generations(device):
    fresh, kept = BlockOrder(device, Lane.FRESH), BlockOrder(device, Lane.KEPT)
    assert (numbers(fresh), fresh.following(None)) == ([], None)
    for lane in (Lane.FRESH, Lane.KEPT, Lane.FRESH, Lane.FRESH):
        device.allocate(lane)
    assert (numbers(fresh), numbers(kept)) == ([0, 2, 3], [1])
    device.erase(0)
    assert numbers(fresh) == [2, 3]
    device._untouched = device.blocks  # the erased one is the only one left
    device.allocate(Lane.FRESH)
    assert numbers(fresh) == [2, 3, 0]
    blocks = fresh.in_use()
    assert fresh.following(None) == blocks[0]
    assert [fresh.following(block) for block in blocks] == [*blocks[1:], None]
    assert kept.following(blocks[0]) is None
    assert kept.following(None).number == 1


def test_blocks_are_looked_up_only_when_one_was_opened_or_erased(device, monkeypatch):
    order, asked, own = BlockOrder(device, Lane.FRESH), [], Device.block
    monkeypatch.setattr(Device, "block", lambda self, number: asked.append(number) or own(self, number))
    device.allocate()
    device.allocate()
    for _ in range(2):
        assert numbers(order) == [0, 1]
        assert asked == [0, 1]
    device.allocate(Lane.KEPT)
    assert numbers(order) == [0, 1]
    assert asked == [0, 1, 2]
    device.erase(1)
    assert numbers(order) == [0]
    assert asked == [0, 1, 2]
    assert numbers(BlockOrder(device, Lane.KEPT)) == [2]


def test_a_block_whose_header_is_being_written_is_looked_at_again(device):
    """Its slot is there, its bytes are not yet; a block that is retired is not waited for."""
    device.allocate()
    device.allocate()
    order, at = BlockOrder(device, Lane.FRESH), device.file_offset(1)
    header = device.data(1, 0, 64).tobytes()
    device.image.write(at, bytes(64))
    assert numbers(order) == [0]
    device.image.write(at, header)
    assert numbers(order) == [0, 1]
    device.image.write(at, bytes(64))
    order = BlockOrder(device, Lane.FRESH)
    device.retired = {1: RetireCause.PROGRAM}
    assert numbers(order) == [0]
    device.image.write(at, header)
    assert numbers(order) == [0]


def test_one_block_has_no_other(device):
    block, other = device.allocate(), device.allocate()
    order = OneBlock(block)
    assert order.in_use() == [block]
    assert order.following(None) == block
    assert order.following(block) is None
    assert OneBlock(other).following(block) == other


# -- the bytes at the end ---------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("+-"), st.integers(0, 5000)), max_size=12))
def test_a_tail_is_its_bytes(steps):
    tail, known, lot = Tail(), b"", random.Random(0)
    for what, size in steps:
        if what == "+":
            more = lot.randbytes(size)
            room = tail.extend(size)
            assert len(room) == size
            room[:] = np.frombuffer(more, np.uint8)
            known += more
        else:
            size = min(size, len(known))
            tail.drop(size)
            known = known[size:]
        assert len(tail) == len(known)
        assert tail.first(len(known)).tobytes() == known
        assert tail.rest(len(known) // 2).tobytes() == known[len(known) // 2 :]


def test_an_empty_tail_gives_much_memory_back(monkeypatch):
    monkeypatch.setattr("kvcodec.log.tail._KEPT", 4096)
    tail = Tail()
    tail.extend(4096)[:] = 7
    tail.drop(4090)
    assert (len(tail._memory), tail.rest(0).tolist()) == (4096, [7] * 6)
    tail.extend(4096)[:] = 8
    tail.drop(4100)
    assert (len(tail._memory), tail.rest(0).tolist()) == (2, [8, 8])
    tail.drop(2)
    tail.extend(3)[:] = 9
    assert tail.rest(0).tolist() == [9, 9, 9]


# -- reads that go wrong ----------------------------------------------------------------------------------------------


def errors_of(**faults):
    return ReadErrors(Faults(1, **faults), TINY)


def test_a_device_that_does_not_fail_remembers_nothing():
    assert ReadErrors.of(Faults(1), bytes(16), TINY) is None
    faults = Faults(1, flips=1e-6)
    one = ReadErrors.of(faults, bytes(16), TINY)
    assert ReadErrors.of(faults, bytes(16), TINY) is one
    assert ReadErrors.of(faults, b"\1" * 16, TINY) is not one


def test_units_wear_out_by_the_number_of_their_reads():
    errors = errors_of(grave=0.5, grave_reads=3)
    grave = Faults(1, grave=0.5).are_grave(2, 0, 8)
    assert 0 < grave.sum() < 8
    first = int(grave.argmax())
    for _ in range(3):
        assert errors.read(2, 0, 8, 0) is None
    assert errors.read(2, 0, 8, 0) == (first, "can't be read any more")
    assert errors.uncorrectable == grave.sum()
    assert errors.read(2, 0, 8, 0) == (first, "can't be read any more")
    assert errors.uncorrectable == grave.sum()  # each is counted once
    assert errors.read(2, first, 1, 0) == (first, "can't be read any more")
    good = int((~grave).argmax())
    assert errors.read(2, good, 1, 0) is None
    assert errors.read(3, 0, 8, 0) is None  # another block has reads of its own
    assert (errors.of_block(2), errors.corrected, errors.due) == ((0, 0), 0, set())  # nothing flipped
    errors.erased(2)
    assert errors.read(2, 0, 8, 1) is None
    for _ in range(3):
        errors.read(2, 0, 8, 1)
    assert errors.uncorrectable == 2 * grave.sum()  # and once again in its next life


@pytest.mark.parametrize("ecc", [1, 4])
def test_flips_are_corrected_up_to_what_the_code_can(ecc):
    errors, lot = errors_of(flips=2e-4, ecc=ecc), np.random.default_rng([1, 0xECC, 5, 9])
    rate = 2e-4 * 8 * 64 * (1 + 9 / TINY.rated_cycles)
    flips, corrected, lost, worst = np.zeros((128, 1), np.uint32), 0, set(), 0
    for turn in range(12):
        first, count = (0, 128) if turn % 3 else (turn, 40)
        flips[first : first + count] += lot.poisson(rate, (count, 1)).astype(np.uint32)
        own = flips[first : first + count, 0]
        corrected += int(own[own <= ecc].sum())
        bad = (first + np.flatnonzero(own > ecc)).tolist()
        lost |= set(bad)
        worst = max(worst, int(own.max()))
        want = (bad[0], f"{flips[bad[0], 0]} bits flipped, {ecc} can be corrected") if bad else None
        assert errors.read(5, first, count, 9) == want
        assert (errors.corrected, errors.uncorrectable) == (corrected, len(lost))
        assert errors.of_block(5) == (corrected, worst)
        assert errors.due == ({5} if worst > ecc / 2 else set())
    assert worst > ecc
    assert errors.of_block(6) == (0, 0)


def test_only_blocks_that_were_due_are_scrubbed():
    errors = errors_of(flips=0.01, ecc=2)
    errors.read(1, 0, 4, 0)
    assert errors.due == {1}
    errors.erased(2)
    assert (errors.scrubbed, errors.due) == (0, {1})
    errors.erased(1)
    assert (errors.scrubbed, errors.due) == (1, set())
    errors.erased(1)
    assert errors.scrubbed == 1
    assert errors.of_block(1) == (0, 0)


def test_a_long_unit_is_of_several_codewords():
    """Of 1 KiB each: what flips in one of them is no burden for the others."""
    big = SimpleNamespace(unit_bytes=4096, units_per_block=16, rated_cycles=100)
    errors = ReadErrors(Faults(1, flips=1e-4, ecc=3), big)
    lot, flips = np.random.default_rng([1, 0xECC, 0, 0]), np.zeros((16, 4), np.uint32)
    for _ in range(3):
        flips += lot.poisson(1e-4 * 8192, (16, 4)).astype(np.uint32)
        bad = np.flatnonzero((flips > 3).any(axis=1))
        found = errors.read(0, 0, 16, 0)
        assert found == ((bad[0], f"{flips[bad[0]].max()} bits flipped, 3 can be corrected") if len(bad) else None)
    assert len(bad)
    assert (flips.sum(axis=1) > 3).sum() > len(bad)
