"""Units that fail to program, or can't be read: what was acknowledged is there, or the failure names its place."""

import itertools
import random

import numpy as np
import pytest

import kvcodec as kv
from formats import reader as plain
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import CorruptRecord, ProgramFailed, Uncorrectable, WornOut
from kvcodec.flash.device import Device
from kvcodec.flash.faults import Faults
from kvcodec.flash.lots import draw_lots
from kvcodec.layout import NO_FRAME, Lane, RetireCause
from kvcodec.log.sidecar import sidecar_path
from tests.caches import TINY
from tests.power import after_loss
from tests.test_faults import churn
from tests.test_lifecycle import append, check, data, make
from tests.test_power_loss import Story

FAILING = {
    "page=256,unit=64,block=4096": 120 * 4096,
    "page=512,unit=512,block=8192": 60 * 8192,
    "page=64,unit=64,block=8192": 60 * 8192,
}


def test_lots_are_even_and_hang_on_every_key():
    lots = draw_lots(0, 10_000, 1, 2, 3)
    assert np.abs(np.histogram(lots, 10, (0, 1))[0] - 1000).max() < 150
    assert np.array_equal(draw_lots(100, 50, 1, 2, 3), lots[100:150])
    for keys in ((0, 2, 3), (1, 3, 2), (1, 2, 4), (1, 2), (1, 2, 3, 0)):
        assert np.abs(np.corrcoef(lots, draw_lots(0, 10_000, *keys))[0, 1]) < 0.05


def test_units_fail_to_program_at_the_rate_that_was_asked_for():
    faults = Faults(3, program=0.01, weak_units=0.05, weak_unit_cycles=10)
    fails = np.array([faults.fail_to_program(block, 0, 1000, 0) for block in range(50)])
    worn = np.array([faults.fail_to_program(block, 0, 1000, 10) for block in range(50)])
    assert 0.008 < fails.mean() < 0.012
    assert 0.055 < worn.mean() < 0.063
    assert np.array_equal(Faults(3, program=0.01).fail_to_program(7, 20, 30, 0), fails[7, 20:50])


@pytest.mark.parametrize("seed", range(4))
def test_a_unit_that_fails_is_told_of_and_is_not_what_was_meant(tmp_path, seed):
    device = Device.create(tmp_path / "d", TINY, blocks=4)
    block = device.allocate().number
    faults = Faults(seed, program=0.02)
    fails = faults.fail_to_program(block, 0, 128, 0)
    first = int(fails[1:].argmax()) + 1
    device.fail_by(faults)
    with pytest.raises(ProgramFailed) as caught:
        device.program(block, 1, np.full(127 * 64, 7, np.uint8), [NO_FRAME] * 127)
    assert (caught.value.block, caught.value.unit) == (block, first)
    assert (device.read(block, 1, first - 1) == 7).all()
    assert not device.programmed(block, first + 1).any()
    if device.programmed(block, first, 1).any():
        assert (device.data(block, first * 64, 64) != 7).any()
        with pytest.raises(CorruptRecord):
            device.read(block, first)
    assert device.failing == {block: RetireCause.PROGRAM}
    assert device.allocate(Lane.FRESH).number != block
    device.close()


def test_a_header_that_fails_takes_its_block_away(tmp_path):
    seed = next(n for n in range(999) if Faults(n, program=0.02).fail_to_program(0, 0, 1, 0)[0])
    with make(tmp_path / "c", faults=f"seed={seed},program=0.02", capacity=60 * 4096) as store:
        assert store.device.retired[0] == RetireCause.PROGRAM
        append(store.sequence("a"), data(20, 1))
    with kv.open(tmp_path / "c") as store:
        check(store.sequence("a"), data(20, 1))
    assert verify_log(tmp_path / "c").verdict == "clean"


@pytest.mark.parametrize(("device", "durability"), list(zip(FAILING, ("step", "sync", "sync"), strict=True)))
def test_nothing_is_lost_where_units_fail_to_program(tmp_path, device, durability):
    """Through everything that reads a log, whatever becomes of the writer."""
    path, known, numbers, lot = tmp_path / "c", {}, itertools.count(), random.Random(1)
    unit, size = kv.Geometry.parse(device).unit_bytes, kv.Geometry.parse(device).block_bytes
    rate = 0.3 * unit / size
    options = {"durability": durability, "faults": f"seed=3,program={rate},worn=0"}
    store = make(path, capacity=120 * size, device=device, **options)
    for _ in range(4):
        churn(store, known, numbers, 4)
        _check_all(store, known)
        store.sync()
        store.close() if lot.random() < 0.5 else store.abandon()
        assert verify_log(path).verdict == "clean"
        store = kv.open(path, "a", **options)
    retired = list(store.device.retired.values())
    assert retired.count(RetireCause.PROGRAM) == len(retired) > 1
    assert not store.device.failing
    store.close()
    with kv.open(path) as reader:
        assert sorted(reader.log.retired) == sorted(store.device.retired)
        assert reader.stats().failures.retired == {"program": len(retired)}
        _check_all(reader, known)
    sidecar_path(path).unlink()
    with kv.open(path, recovery="absolute") as reader:
        assert sorted(reader.log.retired) == sorted(store.device.retired)
        _check_all(reader, known)
    assert sorted(plain.Log(path).sequences) == sorted(known)


def _check_all(store, known):
    for name, parts in known.items():
        check(store.sequence(name), parts)


def test_a_retired_block_in_which_a_log_ends_takes_no_more(tmp_path):
    path = tmp_path / "c"
    store = make(path, durability="step")
    append(store.sequence("a"), data(20, 1))
    block = store.log.fresh.blocks.in_use()[-1].number
    store._cleaner.retire({block: RetireCause.PROGRAM})
    store.abandon()
    with kv.open(path, "a", durability="step") as store:
        before = store.device.programmed(block)
        append(store.sequence("b"), data(70, 2))
        store.compact()
        assert np.array_equal(store.device.programmed(block), before)
    with kv.open(path) as store:
        _check_all(store, {"a": data(20, 1), "b": data(70, 2)})
    assert verify_log(path).verdict == "clean"


def test_a_reader_follows_a_writer_whose_units_fail(tmp_path):
    path, known, numbers = tmp_path / "c", {}, itertools.count()
    with make(path, capacity=120 * 4096, faults="seed=5,program=2e-3,worn=0", durability="step") as store:
        with kv.open(path) as reader:
            for _ in range(12):
                churn(store, known, numbers, 2)
                assert sorted(reader.sequences()) == sorted(known)
                _check_all(reader, known)
        assert len(store.device.retired) > 2


def test_rows_that_found_no_block_leave_the_log_readable(tmp_path):
    path, known, numbers = tmp_path / "c", {}, itertools.count()
    options = {"durability": "step", "faults": "seed=2,program=0.01,worn=0"}
    store = make(path, capacity=60 * 4096, **options)
    with pytest.raises(WornOut):
        churn(store, known, numbers, 500)
    assert len(store.device.retired) > 20
    store.abandon()
    with kv.open(path) as store:
        for name in list(known)[1:]:
            check(store.sequence(name), known[name])
    assert verify_log(path).verdict in ("clean", "torn tail")


@pytest.fixture(scope="module", params=FAILING)
def story(request, tmp_path_factory):
    geometry = kv.Geometry.parse(request.param)
    faults = f"seed=1,program={0.2 * geometry.unit_bytes / geometry.block_bytes}"
    folder = tmp_path_factory.mktemp("failing")
    return Story(folder, request.param, seed=1, capacity=FAILING[request.param], faults=faults)


def test_power_fails_where_units_fail(story):
    assert len(story.retired) > 1
    lot = random.Random(3)
    for count in lot.sample(range(1, len(story.asked) + 1), 4):
        _check_loss(story, count, lot.random() < 0.5)


@pytest.mark.campaign
@pytest.mark.parametrize("out_of_order", [False, True])
def test_power_fails_everywhere_where_units_fail(story, out_of_order):
    for count in range(1, len(story.asked) + 1):
        _check_loss(story, count, out_of_order)


def _check_loss(story, count, out_of_order):
    own = random.Random(count) if out_of_order else None
    story.check(count, after_loss(story.before, story.asked, count, story.unit, own))


def test_flips_are_corrected_and_counted(tmp_path):
    faults = Faults(1, flips=1e-3, worn=False)
    with make(tmp_path / "c", faults=faults) as store:
        sequence = store.sequence("a")
        append(sequence, data(128, 1))
        for _ in range(3):
            check(sequence, data(128, 1))
        errors = store.device.read_errors
        assert errors.corrected > 100
        assert not errors.uncorrectable
        assert max(errors.of_block(block)[1] for block in range(64)) > 1
        worst = [errors.of_block(block) for block in range(64)]
    with kv.open(tmp_path / "c", faults=faults) as store:  # the same device
        assert [store.device.read_errors.of_block(block) for block in range(64)] == worst
    with kv.open(tmp_path / "c", faults="seed=1,flips=1e-3") as store:  # one that forgot
        assert store.device.read_errors.corrected == 0


def test_flips_are_the_same_at_every_run(tmp_path):
    def run(path):
        with make(path, faults="seed=7,flips=1e-3") as store:
            append(store.sequence("a"), data(128, 1))
            check(store.sequence("a"), data(128, 1))
            return store.device.read_errors.corrected

    assert run(tmp_path / "a") == run(tmp_path / "b") > 0


def test_too_many_flips_are_an_error_that_names_block_and_unit(tmp_path):
    parts = data(128, 1)
    with make(tmp_path / "c", faults="seed=1,flips=2e-3,ecc=3") as store:
        sequence = store.sequence("a")
        append(sequence, parts)
        with pytest.raises(Uncorrectable, match=r"\d+ bits flipped, 3 can be corrected") as caught:  # noqa: PT012
            for _ in range(20):
                check(sequence, parts)
        block, unit = caught.value.block, caught.value.unit
        assert f"unit {unit} of block {block}:" in str(caught.value)
        assert store.device.failing == {block: RetireCause.READ}
        append(store.sequence("b"), data(5, 1))
        assert block in store.device.retired
        assert set(store.device.retired.values()) == {RetireCause.READ}
        retired = dict(store.device.retired)
        with pytest.raises(Uncorrectable):
            check(sequence, parts)
        check(store.sequence("b"), data(5, 1))
    assert verify_log(tmp_path / "c").verdict == "clean"  # as the file has it, nothing is wrong
    with kv.open(tmp_path / "c") as store:
        check(store.sequence("a"), parts)
        assert store.log.retired.items() >= retired.items()


def test_attention_reads_units_too(tmp_path):
    q = np.ones((2, 16), np.float32)
    coded = {"k": "int4/channel/g16", "v": "int4/token/g16"}
    with make(tmp_path / "c", faults="seed=1,grave=0.1,grave_reads=8", **coded) as store:
        sequence = store.sequence("a")
        append(sequence, data(256, 1))
        wanted = sequence.attend(0, q)
        with pytest.raises(Uncorrectable, match="can't be read any more"):  # noqa: PT012
            for _ in range(20):
                assert np.array_equal(sequence.attend(0, q), wanted)


def test_a_scrub_moves_what_would_soon_be_lost(tmp_path):
    faults = Faults(1, flips=3e-4, worn=False)
    parts = data(192, 1)
    with make(tmp_path / "c", faults=faults, durability="step") as store:
        sequence = store.sequence("a")
        append(sequence, parts)
        for _ in range(20):
            check(sequence, parts)
            store.scrub()
        errors = store.device.read_errors
        assert errors.scrubbed > 2
        assert not errors.uncorrectable
        assert not store.device.retired
        assert not errors.due
        found = store.stats().failures
        assert (found.corrected_bits, found.scrubbed_blocks) == (errors.corrected, errors.scrubbed)
        assert [name for name, _ in found.lines()] == ["flipped bits corrected", "blocks scrubbed"]
    with make(tmp_path / "d") as store:
        append(store.sequence("a"), parts)
        assert store.scrub() == 0


def test_appends_scrub_as_they_go(tmp_path):
    parts = data(192, 1)
    with make(tmp_path / "c", faults="seed=1,flips=3e-4,worn=0", durability="step", capacity=120 * 4096) as store:
        sequence = store.sequence("a")
        append(sequence, parts)
        for n in range(20):
            for _ in range(10):
                append(store.sequence("b"), data(1, n))
            check(sequence, parts)
        assert store.device.read_errors.scrubbed > 2
        assert not store.device.read_errors.uncorrectable
