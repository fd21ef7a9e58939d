"""What a log, or a cache that is only described, does to a device: write amplification, life, estimates of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kvcodec.bulk.course import Course
from kvcodec.bulk.simulate import Outcome, mark_of, run_workload
from kvcodec.errors import SpecError
from kvcodec.flash.geometry import Geometry
from kvcodec.flash.timing import Chips, Estimate, Work, estimate, program_work
from kvcodec.layout import SPARE_BYTES
from kvcodec.measure.endurance import Amplification, Life
from kvcodec.measure.simulation import Simulation
from kvcodec.measure.workload import Workload, amplification_of
from kvcodec.spec import CodecSpec
from kvcodec.store.failures import Failures
from kvcodec.store.model import Model
from kvcodec.store.opening import open_store
from kvcodec.store.policy import StreamPolicy
from kvcodec.store.records import RAW

APPENDS = 10**7
BLOCKS = 128  # of a simulated device: what cleaning costs hangs on how full a device is, not on how large
_SIDE_BYTES = 2  # gain and shape of a vector of product or trellis codes
_NO_SET = bytes(16)


@dataclass(frozen=True)
class Use:
    """A device and what is asked of it. device: a preset or a geometry; capacity in bytes."""

    device: str | Geometry = "tlc"
    capacity: float = 1e12
    tokens_per_second: float = 50.0
    years: float = 5.0
    chips: Chips = Chips()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if not (self.capacity > 0 and self.tokens_per_second > 0 and self.years > 0):
            raise SpecError("capacity, tokens per second and years: want more than 0")


@dataclass(frozen=True)
class Cache:
    """A cache that is not there. k, v: codec specs. tokens: of a sequence. fill, drop: sequences go when the device is
    fuller, as Workload says; None: nothing is dropped, and nothing cleaned.
    """

    model: Model
    k: str = "int4/channel/g64"
    v: str = "int4/token/g64"
    residual: int = 128
    sinks: int = 4
    durability: str = "sync"
    journal: str = "raw"
    tokens: int = 4096
    sync_every: int = 0
    fill: float = 0.9
    drop: str | None = None
    blocks: int = BLOCKS
    seed: int = 0


@dataclass(frozen=True)
class WearReport:
    """Where it comes from, on which device, and what it comes to. token: estimated time and energy of one token.

    block_bytes: of an erase block. outcome: of the simulation, None without cleaning. failures: of the log's device.
    """

    source: str
    device: Geometry
    amplification: Amplification
    life: Life
    token: Estimate
    outcome: Outcome | None = None
    failures: Failures = field(default_factory=Failures)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        estimated = {"seconds_per_token": self.token.seconds, "joules_per_token": self.token.joules}
        return {
            "source": self.source, "device": self.device.name, "amplification": self.amplification.as_dict(),
            "life": self.life.as_dict(), "estimate": estimated,
            "simulation": None if self.outcome is None else self.outcome.as_dict(), "failures": asdict(self.failures),
        }  # fmt: skip


def log_wear(path: Path, use: Use, *, own_device: bool = True) -> WearReport:
    """Of a log, by what it counted. own_device: its device's rated cycles count, not those of `use`.

    Tokens of sequences that were dropped are taken to be as many as others have. Raises SpecError for a log without
    tokens, and what opening raises.
    """
    with open_store(path) as store:
        stats, geometry = store.stats(), store.device.geometry
    alive = sum(s.tokens for s in stats.sequences)
    if not alive or not stats.host_bytes:
        raise SpecError(f"{path} holds no tokens: there is no wear to tell of")
    tokens = alive * stats.begun / len(stats.sequences)
    own = Amplification(
        stats.host_bytes, stats.framed_bytes, stats.padded_bytes, stats.copied_bytes, stats.compacted_bytes,
        stats.spare_bytes,
    )  # fmt: skip
    cycles = geometry if own_device else Geometry.parse(use.device)
    return replace(_report(str(path), geometry, own, tokens, use, cycles.rated_cycles), failures=stats.failures)


def cache_wear(cache: Cache, use: Use, tell: Callable[[int, int], None] = lambda _done, _all: None) -> WearReport:
    """Of a cache that is not there: by simulation. Raises SpecError, NoSpace."""
    geometry = Geometry.parse(use.device)
    course = make_course(cache, geometry)
    source = f"{cache.model.describe()}, k {cache.k}, v {cache.v}, durability {cache.durability}"
    if cache.drop is None:
        own = _one_sequence(course, cache)
        return _report(source, geometry, own, cache.tokens, use, geometry.rated_cycles)
    workload = Workload((cache.tokens,), cache.fill, cache.drop, cache.seed)
    outcome = run_workload(course, cache.blocks, workload, APPENDS, sync_every=cache.sync_every, tell=tell)
    own = _with_spare(amplification_of(outcome.total), geometry)
    return _report(source, geometry, own, outcome.total.appends, use, geometry.rated_cycles, outcome)


def make_course(cache: Cache, geometry: Geometry) -> Course:
    """What its sequences write. Raises SpecError."""
    if cache.durability not in ("sync", "step"):
        raise SpecError(f"durability {cache.durability!r}, want 'sync' or 'step'")
    if cache.tokens < 1 or cache.sync_every < 0 or cache.blocks < 8:
        raise SpecError("want 1 token or more, and 8 blocks or more")
    policies = tuple(StreamPolicy(_sized(spec), cache.residual, cache.sinks) for spec in (cache.k, cache.v))
    journal = CodecSpec.parse(cache.journal) if cache.durability == "step" else None
    if journal is not None and journal != RAW and journal.is_trained:
        raise SpecError(f"journal {journal}: want raw, or integers with one scale a token, such as int8/token/g64")
    return Course(cache.model, policies, geometry, journal)


def parse_model(text: str) -> Model:
    """LAYERSxHEADSxDIM, such as 32x8x128. Raises SpecError."""
    parts = text.split("x")
    if len(parts) != 3 or not all(p.isascii() and p.isdigit() and len(p) < 6 and int(p) > 0 for p in parts):
        raise SpecError(f"model {text!r}, want layers x KV heads x channels, such as 32x8x128")
    return Model.uniform(*map(int, parts))


def _sized(text: str) -> CodecSpec:
    """A spec whose sizes are known: trained codes take what their budget says."""
    spec = CodecSpec.parse(text)
    if spec.shaped is None:
        return spec
    if not spec.shaped.budget:
        raise SpecError(f"{text}: of which budget? Say {spec.shaped.example}")
    return spec.bound_to(max(1, round(spec.shaped.budget) - _SIDE_BYTES), _NO_SET)


def _one_sequence(course: Course, cache: Cache) -> Amplification:
    """On a device that is large enough."""
    how = {"sync_every": cache.sync_every}
    room = 4 * cache.tokens * (2 * cache.model.token_bytes + course.geometry.unit_bytes)
    simulation = Simulation(course.geometry, 8 + -(-room // course.geometry.block_bytes))
    simulation.begin_sequence(1, course.sequence)
    for step, durable in course.steps(cache.tokens, **how):
        simulation.append(1, step, durable=durable)
    return _with_spare(amplification_of(mark_of(simulation)), course.geometry)


def _with_spare(own: Amplification, geometry: Geometry) -> Amplification:
    return replace(own, spare=own.programmed // geometry.unit_bytes * SPARE_BYTES)


def _report(
    source: str, geometry: Geometry, own: Amplification, tokens: float, use: Use, cycles: int,
    outcome: Outcome | None = None,
) -> WearReport:  # fmt: skip
    per_token = own.programmed / tokens
    work = program_work(geometry, per_token) + Work(erases=per_token / geometry.block_bytes)
    life = Life(use.capacity, cycles, own.total, per_token, use.tokens_per_second, use.years)
    return WearReport(source, geometry, own, life, estimate(geometry, use.chips, work), outcome)
