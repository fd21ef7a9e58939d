"""The simulation without payload against a store on a device of the same kind: same bytes, same erases."""

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.course import Course
from kvcodec.bulk.simulate import mark_of, run_workload
from kvcodec.errors import SpecError
from kvcodec.flash.allocation import order_erased
from kvcodec.flash.device import Device
from kvcodec.flash.geometry import PRESETS, Geometry
from kvcodec.layout import Kind, Lane
from kvcodec.log.frame import new_record
from kvcodec.log.reader import Log
from kvcodec.log.takeup import take_up
from kvcodec.measure.endurance import sync_padding
from kvcodec.measure.simulation import Simulation
from kvcodec.measure.workload import Mark, Steadiness, Workload
from kvcodec.spec import CodecSpec
from kvcodec.store.policy import StreamPolicy

GEOMETRY = Geometry.parse("page=2048,unit=512,block=16384")
MODEL = kv.Model.uniform(2, 2, 32)
BLOCKS = 24


def make_course(k: str, v: str, *, residual: int, sinks: int, journal: str | None) -> Course:
    policies = tuple(StreamPolicy(CodecSpec.parse(spec), residual, sinks) for spec in (k, v))
    return Course(MODEL, policies, GEOMETRY, None if journal is None else CodecSpec.parse(journal))


def run_store(path, course: Course, workload: Workload, appends: int, *, at_once: int, sync_every: int):
    """The same appends, syncs and drops, with bytes: counters by lane, and erases of each block."""
    rows = np.random.default_rng(5).standard_normal((at_once, 2, 32)).astype(np.float32)
    k, v = (rule.policy for rule in course.policy.rules)
    durability = "sync" if course.journal is None else "step"
    how = {"at_once": at_once, "sync_every": sync_every}
    store = kv.open(
        path, "w", model=MODEL, device=GEOMETRY, capacity=BLOCKS * GEOMETRY.block_bytes, k=k.spec, v=v.spec,
        residual=k.residual, sinks=k.sinks, durability=durability, journal=course.journal or "raw",
    )  # fmt: skip
    done = 0
    for turn in workload.turns(lambda tokens: course.final_bytes(tokens, **how), BLOCKS * GEOMETRY.block_bytes):
        for number in turn.dropped:
            store.drop(f"{number:08d}")
        sequence = store.sequence(f"{turn.begun:08d}")
        for start in range(0, turn.tokens, at_once):
            end = min(start + at_once, turn.tokens)
            sequence.append_step(*[[rows[: end - start]] * 2] * 2)
            done += 1
            if done < appends and (end == turn.tokens or (sync_every and end // sync_every > start // sync_every)):
                store.sync()
                done += 1
            if done >= appends:
                counters, erases = store.device.counters, dict(store.device.erase_counts)
                store.abandon()
                return counters, [erases.get(block, 0) for block in range(BLOCKS)]
    raise AssertionError


CASES = {
    "groups, oldest first": (("int4/channel/g64", "int4/token/g32"), 0, 4, None, "oldest", 220, 32, 96),
    "steps, at random": (("int4/channel/g64", "int8/token/g32"), 16, 4, "raw", "random", 600, 1, 0),
    "short sequences, oldest first": (("int8/token/g32", "int8/token/g32"), 0, 0, "raw", "oldest", 1500, 1, 0),
    "coded rows, at random": (("int8/token/g32", "int4/token/g32"), 0, 0, "raw", "random", 250, 4, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_a_simulation_programs_and_erases_what_a_store_does(case, tmp_path):
    specs, residual, sinks, journal, drop, appends, at_once, sync_every = CASES[case]
    course = make_course(*specs, residual=residual, sinks=sinks, journal=journal)
    lengths = (10,) if case.startswith("short") else (100, 200, 300)
    workload = Workload(lengths, 0.75 if len(lengths) > 1 else 0.4, drop, seed=3)
    how = {"at_once": at_once, "sync_every": sync_every}
    found = run_workload(course, BLOCKS, workload, appends, until_steady=False, **how).simulated
    counters, erases = run_store(tmp_path / "a.kvlog", course, workload, appends, **how)
    fresh, kept = counters[Lane.FRESH], counters[Lane.KEPT]
    assert sum(erases) > BLOCKS // 2  # else nothing was cleaned to speak of
    assert kept.programmed
    assert (found.host, found.copied) == (fresh.host, kept.programmed)
    assert found.programmed == fresh.programmed + kept.programmed
    assert found.erases == sum(erases)


def test_a_steady_run_stops_and_goes_on_by_arithmetic():
    course = make_course("int4/channel/g64", "int4/token/g32", residual=0, sinks=0, journal=None)
    workload, how = Workload((256,), 0.7, "oldest"), {"at_once": 64}
    found = run_workload(course, BLOCKS, workload, 10**7, **how)
    assert found.steady
    assert found.simulated.appends < found.total.appends == 10**7
    longer = run_workload(course, BLOCKS, workload, 4 * found.simulated.appends, until_steady=False, **how)
    again = run_workload(course, BLOCKS, workload, 4 * found.simulated.appends, **how)
    assert again.total.programmed == pytest.approx(longer.simulated.programmed, rel=0.01)
    assert again.total.erases == pytest.approx(longer.simulated.erases, rel=0.01)


def test_what_is_not_steady_is_not_called_so():
    own = Steadiness(blocks=10, rounds=2)
    for n in range(7):
        assert not own.is_steady
        own.take(Mark(n, 100 * n, 110 * n, 200 * n + n**3, 0, 10 * n))
    assert not own.is_steady  # it climbs
    for n in range(7, 13):
        own.take(Mark(n, 100 * n, 110 * n, 200 * n + 216, 0, 10 * n))
    assert own.is_steady
    assert own.go_on(own.marks[-1], 100) == Mark(100, 10_000, 11_000, 20_216, 0, 1000)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: Workload(()), "1 token"), (lambda: Workload((0,)), "1 token"), (lambda: Workload((1,), 1.0), "share"),
        (lambda: Workload((1,), drop="best"), "oldest or random"),
        (lambda: next(Workload((9,), 0.5).turns(lambda n: n, 10.0)), "9 tokens takes 9 bytes"),
    ],
)  # fmt: skip
def test_a_workload_that_cannot_be_is_refused(wrong, why):
    with pytest.raises(SpecError, match=why):
        wrong()


def test_a_model_whose_layers_differ_is_refused():
    model = kv.Model((kv.Layer.kv(2, 32), kv.Layer.kv(2, 64)))
    with pytest.raises(SpecError, match="alike"):
        Course(model, (StreamPolicy(CodecSpec.parse("raw")),) * 2, GEOMETRY, None)


def test_what_lasts_goes_to_worn_blocks_but_not_to_the_same_again_and_again():
    erases = {0: 10, 1: 12, 2: 30, 3: 9, 4: 11}
    assert order_erased(range(5), erases, lasting=False) == [3, 0, 4, 1, 2]
    assert order_erased(range(5), erases, lasting=True) == [1, 4, 0, 3, 2]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("streams", [1, 2])
def test_a_device_counts_what_the_formula_of_a_sync_says(preset, streams, tmp_path):
    """Steps of 32 layers of 8 heads of 18 bytes, a stream or two, each synced: on a device with bytes, and without."""
    geometry, size, steps = PRESETS[preset], 4608 * streams, 3
    layer = kv.Layer(kv.Layer.kv(8, 128).streams[:streams])
    spec = StreamPolicy(CodecSpec.parse("pq/B16").bound_to(16, bytes(16)), 0, 0)
    course = Course(kv.Model((layer,) * 32), (spec,) * streams, geometry, CodecSpec.parse("raw"))
    simulation = Simulation(geometry, 8)
    ((first, _), *_) = course.steps(steps)
    simulation.begin_sequence(1, course.sequence)
    simulation.sync()
    before = mark_of(simulation)
    for step, durable in course.steps(steps):
        simulation.append(1, step, durable=durable)
    after = mark_of(simulation)
    assert [shape.body_bytes for shape, _, _ in first.steps] == [size]
    framed = (after.framed - before.framed) // steps
    assert (after.host - before.host) == steps * size
    assert (after.programmed - before.programmed) / (steps * size) == pytest.approx(
        sync_padding(framed, geometry.unit_bytes) * framed / size
    )
    device = Device.create(tmp_path / "a.kvlog", geometry, blocks=8)
    writers = take_up(device, Log(device))
    writers.fresh.begin_block()
    programmed = device.counters[Lane.FRESH].programmed
    for _ in range(steps):
        writers.fresh.append([new_record(Kind.ROWS, bytes(size), sequence=1)])
        writers.fresh.sync()
    assert device.counters[Lane.FRESH].programmed - programmed == after.programmed - before.programmed
    device.close()
