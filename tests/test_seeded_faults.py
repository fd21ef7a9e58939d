"""Devices that lose writes, misdirect them, bring old ones back or let bits rot: no row is ever wrong, and what is lost
is told of, unless nothing that is left proves that it was there.
"""

import os
import random
import shutil

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import CorruptRecord, KvcodecError, ShapeError
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import sidecar_path
from tests.campaigns import times
from tests.device_faults import KINDS, FaultyDevice
from tests.lives import between, perform, plan, read_all, same
from tests.test_lifecycle import append, data, make

GEOMETRIES = ["page=256,unit=64,block=8192", "page=512,unit=512,block=8192", "page=1024,unit=256,block=16384"]
BLOCKS = 30
SESSIONS, STEPS = 3, 14
MOST_TOKENS = 400
SIMULATIONS, SHARDS = times(1000, 10_000), times(8, 80)
SAMPLE = 24  # of seeds, in the tests that always run


def choose_step(known, lot, n):
    """What to do next to sequences."""
    lengths = {name: len(rows[0][0]) for name, (rows, _) in known.items()}
    what = lot.choice(["append"] * 6 + ["sync", "sync", "drop", "fork", "truncate", "evict", "compact"])
    if sum(lengths.values()) > MOST_TOKENS:
        return "drop", min(known)
    if what in ("append", "sync", "compact") or not known:
        return ("append", lot.choice("abcd"), lot.randint(1, 90), n) if what == "append" or not known else (what,)
    name = lot.choice(sorted(known))
    whole = lengths[name] // 64 * 64
    if what == "drop":
        return "drop", name
    if what == "fork":
        return "fork", name, f"f{n}", lot.randint(0, lengths[name])
    if what == "evict" and whole:
        return "evict", name, whole - 64, whole
    return "truncate", name, lot.randint(0, lengths[name])


class Simulation:
    """One log on one device that fails once. outcomes: what came of it."""

    def __init__(self, folder, seed):
        self.lot, self.path = random.Random(seed), folder / "c"
        device = self.lot.choice(GEOMETRIES)
        capacity = BLOCKS * kv.Geometry.parse(device).block_bytes
        with make(self.path, device=device, capacity=capacity):
            pass
        self.kind = KINDS[seed % len(KINDS)]
        self.faulty = FaultyDevice(self.path, self.kind, 1 + int(self.lot.expovariate(1 / 400)), self.lot)
        self.history, self.states, self.known = [{}], [{}], {}
        self.outcomes, self.n = set(), 1000 * seed

    def run(self):
        for session in range(SESSIONS):
            try:
                if not self._go_on(session):
                    break
            except KvcodecError:
                self._come_loud("while it is written")
                break
            if not self._check():
                break
        else:
            if not self.faulty.done:
                self.faulty.rot(3)
                self._check()
        return "; ".join(sorted(self.outcomes)) or "harmless"

    def _come_loud(self, when):
        assert self.faulty.done
        self.outcomes.add(f"an error {when}")
        self._check()

    def _go_on(self, session):
        """A writer's session; False where it lost what nothing proves."""
        options = {"durability": self.lot.choice(["sync", "sync", "step"])}
        with self.faulty.beneath():
            store = kv.open(self.path, "a", **options)
            try:
                self._settle(read_all(store))
                for _ in range(STEPS):
                    self._step(store, options["durability"] == "step")
                if self.lot.random() < 0.6:
                    self.states.append(self.known)
                    store.close()
                    self._settle(self.known)
            finally:
                store.abandon()
        if self.lot.random() < 0.5:
            sidecar_path(self.path).unlink(missing_ok=True)
        return True

    def _step(self, store, durable):
        self.n += 1
        step = choose_step(self.known, self.lot, self.n)
        planned = plan(self.known, step)
        self.states.append(planned)
        self.history.append(planned)
        try:
            perform(store, step)
        except ShapeError:  # tokens that are not in a group of their own yet
            assert step[0] == "evict"
            planned = self.known
        self.known = planned
        if durable or step[0] == "sync":
            self._settle(planned)
        if self.lot.random() < 0.15:
            found = read_all(store)  # rows in memory and in the map
            assert found.keys() == planned.keys()
            assert all(same(found[name], planned[name]) for name in found)

    def _settle(self, known):
        self.states, self.known = [known], known
        self.history.append(known)

    def _check(self):
        """What readers find; whether a writer may go on."""
        if not self.faulty.done:
            return True
        with kv.open(self.faulty.twin()) as store:  # the writer took nothing away that it should have kept
            assert between(read_all(store), self.states)
        ends, proved = self.faulty.evidence()
        told, goes_on = False, True
        for mode in Recovery:
            try:
                with kv.open(self.path, recovery=mode) as store:
                    damage = bool(store.log.report.damage)
                    found = self._read_some(store) if damage else read_all(store)
                    numbers = [walk.cursor.number for walk in store.log.walks]
            except KvcodecError:
                told |= mode != Recovery.ABSOLUTE
                continue
            if damage:
                told = True
            elif not between(found, self.states):
                assert not proved, (mode, self.faulty.done)
                assert self._is_of_old(found), (mode, self.faulty.done)
                self.outcomes.add("the newest frames lost, and nothing behind them")
                goes_on = False
            goes_on &= numbers == ends
        verdict = verify_log(self.path).verdict
        if told:
            assert verdict in ("damaged", "unreadable"), (verdict, self.faulty.done)
            self.outcomes.add("damage told of")
        elif verdict in ("damaged", "unreadable"):
            self.outcomes.add("no row lost, damage told of")
        return goes_on and not told

    def _read_some(self, store):
        """What a reader that passes over damage still gives: whatever it is was once so."""
        for name in store.sequences():
            sequence = store.sequence(name)
            for layer in range(2):
                try:
                    rows = sequence.read(layer)
                    held = np.setdiff1d(
                        np.arange(len(sequence)), [t for a, b in sequence.evicted(layer) for t in range(a, b)]
                    )
                except KvcodecError:
                    continue
                assert any(self._holds(known.get(name), layer, held, rows) for known in self.history), (name, layer)

    @staticmethod
    def _holds(known, layer, held, rows):
        if known is None or (len(held) and held[-1] >= len(known[0][layer][0])):
            return False
        return all(np.array_equal(a.view(np.uint16), b[held].view(np.uint16))
                   for a, b in zip(rows, known[0][layer], strict=True))  # fmt: skip

    def _is_of_old(self, found):
        """Whether each sequence stands as it once did, or as it did but for being shorter."""
        return between(found, [{}, *self.history])


def simulate(folder, seed):
    own = folder / str(seed)
    own.mkdir()
    return Simulation(own, seed).run()


@pytest.mark.parametrize("damaged", ["the first frame", "the last frame"])
def test_a_block_that_is_damaged_while_it_is_written_is_not_cleaned_away(tmp_path, damaged):
    """What it held would be gone without a word: no frame of the block itself says that the damaged one was durable."""
    path = tmp_path / "c"
    store = make(path, device="page=256,unit=64,block=8192")
    for n in range(6):
        append(store.sequence("a"), data(64, n))
        append(store.sequence("old"), data(64, 10 + n))
    store.sync()
    store.drop("old")
    block = list(store.log.fresh.blocks.in_use())[2]  # which holds rows of both
    unit = 1 if damaged == "the first frame" else int(np.flatnonzero(store.device.programmed(block.number))[-1])
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"\xaa" * 64, store.device.file_offset(block.number, unit * 64))
    store.compact()
    assert store.device.generation_of(block.number, 0) == block.generation
    append(store.sequence("b"), data(64, 20))
    store.close()
    with pytest.raises(CorruptRecord), kv.open(path, recovery="absolute") as reader:
        read_all(reader)
    assert verify_log(path).verdict == "damaged"


@pytest.mark.parametrize("shard", range(2))
def test_some_faults_are_harmless_or_told_of(tmp_path, shard):
    outcomes = {simulate(tmp_path, seed) for seed in range(shard, SAMPLE, 2)}
    assert {"harmless", "damage told of"} <= outcomes


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(SHARDS))
def test_faults_are_harmless_or_told_of(tmp_path, shard):
    for seed in range(shard, SIMULATIONS, SHARDS):
        simulate(tmp_path, seed)
        shutil.rmtree(tmp_path / str(seed))
