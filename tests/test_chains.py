"""Writer upon writer on one log, with options that change, on devices that wear and fail, each of which may lose its
power: what was durable is there for all that come later.
"""

import contextlib
import random
import shutil
from unittest import mock

import pytest

import kvcodec as kv
from formats import reader
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import DeviceError, EraseFailed, NoSpace, ShapeError, SpecError, WornOut
from kvcodec.flash.device import Device
from kvcodec.flash.faults import Faults
from kvcodec.log.sidecar import sidecar_path
from tests.campaigns import times
from tests.lives import NOTHING, between, length, perform, plan, read_all, stood
from tests.power import Recorder, after_loss
from tests.test_lifecycle import make

GEOMETRIES = [
    "page=256,unit=64,block=4096",
    "page=512,unit=512,block=8192",
    "page=64,unit=64,block=2048",
    "page=128,unit=128,block=2048",
    "page=1024,unit=1024,block=8192",
    "page=64,unit=64,block=1024",
]
TOKEN_BYTES = 2 * 2 * 32  # of two layers' keys and values
LEAST_BLOCKS = 14  # of a cap
LEAST_BLOCK = 2048  # bytes, of one that can always be freed: what FREED records take may be more than cleaning gives
SESSIONS = 12
# What `verify` may call units that power left of an erase, where others of the block were programmed again.
LEFT_OF_AN_ERASE = "spare checksum", "padding is not zeros"
SHARDS, CHAINS = times(40, 4000), 25


def choose_faults(seed, lot, geometry):
    """What fails on a device: nothing, erases, programs, bits, or all of it."""
    program = lot.choice([0.02, 0.05, 0.1]) * geometry.unit_bytes / geometry.block_bytes
    return lot.choice(
        [
            None,
            None,
            Faults(seed, program=program, worn=False),
            Faults(seed, weak=0.4, weak_cycles=6, worn=False),
            Faults(seed, flips=2e-6, worn=False),
            Faults(seed, program=program / 3, weak=0.3, weak_cycles=9, flips=1e-6, worn=False, bad=0.03),
        ]
    )


class Chain:
    """A log that writer upon writer takes up. known: how its sequences stand, as far as is sure. losses: of power.
    refused: whether a writer could not take it up.
    """

    def __init__(self, folder, seed):
        self.lot, self.path, self.n = random.Random(seed), folder / "c", 1000 * seed
        self.losses = self.refused = 0
        device = self.lot.choice(GEOMETRIES)
        self.geometry, self.window = kv.Geometry.parse(device), self.lot.choice([0, 0, 30])
        self.blocks = self.lot.choice([16, 20, 24, 32, 48]) * (1 if self.geometry.block_bytes > 2048 else 2)
        self.faults = choose_faults(seed, self.lot, self.geometry)
        self.cap, capacity = {}, self.blocks * self.geometry.block_bytes
        if policy := self.lot.choice([None, "refuse", "lru"]):
            capacity = max(LEAST_BLOCKS, self.blocks * 2 // 3) * self.geometry.block_bytes
            self.cap = {"cap": capacity, "when_full": policy}
        self.most_tokens = int(capacity * 0.35 / TOKEN_BYTES)
        with make(self.path, window=self.window, device=device, faults=self.faults,
                  capacity=self.blocks * self.geometry.block_bytes):  # fmt: skip
            self.known = {}
        self.allowed, self.youngest = [{}], self.lot.choice([0, 0x1F0])

    def live(self, sessions):
        """So many writers, as long as there is room for what they do."""
        for _ in range(sessions):
            try:
                if not self._write():
                    break
            except EraseFailed:  # a block of lane KEPT that nobody accepted: the log can only be read
                assert self._may_wear_out()
                self.refused += 1
                self._check()
                break
            self._check()

    # -- a writer ----------------------------------------------------------------------------------------------

    def _write(self):
        """A session, and how it ends; False where the device is worn out."""
        self.before, self.recorder = self.path.read_bytes(), Recorder()
        self.states, self.durable, closed = [(known, 0) for known in self.allowed], [(0, 0)], False
        with self.recorder.recording(), self._aged(), self._open() as store:
            self._settle(store)
            try:
                for _ in range(self._steps()):
                    self._step(store)
                closed = self.lot.random() < 0.3 and self._close(store)
            except DeviceError as error:
                if isinstance(error, NoSpace) and self.geometry.block_bytes < LEAST_BLOCK:
                    return False
                assert self._may_wear_out()
                if isinstance(error, WornOut):  # blocks failed faster than any could be emptied
                    return False
                self._note(self.planned)
            finally:
                store.abandon()
        self._end(closed)
        return True

    def _may_wear_out(self):
        return self.faults is not None and (self.faults.weak or self.faults.fail_programs)

    @contextlib.contextmanager
    def _aged(self):
        """With generations of more than a byte, in half of all logs: slots are torn within them."""
        survey = Device.survey

        def survey_old(device, in_use):
            survey(device, in_use)
            device.generation = max(device.generation, self.youngest)

        with mock.patch.object(Device, "survey", survey_old):
            yield

    def _open(self):
        self.step_by_step, self.synced = self._pace()
        options = {"durability": "step" if self.step_by_step else "sync", "faults": self.faults, **self.cap}
        with contextlib.suppress(NoSpace):  # records of these options have no room
            return kv.open(
                self.path, "a", residual=self.lot.choice([0, 0, 7]), sinks=self.lot.choice([0, 3]), **options
            )
        return kv.open(self.path, "a", **options)

    def _steps(self):
        return self.lot.choice([0, 1, 3, 12, 12])

    def _pace(self):
        """Whether each step of a writer is durable, and else the share of steps behind which it syncs."""
        return self.lot.random() < 0.5, 0.3

    def _close(self, store):
        """Whether there was room for rows that were in memory only."""
        try:
            store.close()
        except NoSpace:
            self._note(self._but_dropped(store, self.known))
            return False
        self._is_durable(store)
        return True

    def _settle(self, store):
        """What a writer finds is what stays, but for what it had to drop for room, as long as that is not durable."""
        found, dropping = read_all(store), self.cap.get("when_full") == "lru"
        if dropping:
            self.allowed = [*self.allowed, *(self._but_dropped(store, known) for known in self.allowed)]
        assert between(found, self.allowed, self.window), self._told(found)
        known = {name: stood(own, [state.get(name) for state in self.allowed], self.window)
                 for name, own in found.items()}  # fmt: skip
        self._note(known)
        if not dropping:
            self.durable.append((len(self.states) - 1, 0))

    def _note(self, known):
        """That sequences may stand so from here on."""
        self.known = self.planned = known
        self.states.append((known, len(self.recorder.asked)))

    def _is_durable(self, store):
        self._note(self._but_dropped(store, self.known))
        self.durable.append((len(self.states) - 1, len(self.recorder.asked)))

    def _but_dropped(self, store, known):
        """What is known, without what had to go for others."""
        there = {name: own for name, own in known.items() if name in store.index.by_name}
        assert there.keys() == known.keys() or self.cap.get("when_full") == "lru"
        return there

    def _step(self, store):
        self.n += 1
        step = self._choose()
        self.planned = plan(self.known, step)
        try:
            perform(store, step)
            self._note(self._but_dropped(store, self.planned))
            if not self.step_by_step and self.lot.random() < self.synced:
                store.sync()
                self._is_durable(store)
        except ShapeError:  # tokens without a record of their own, within a summary, or that a window has gone on from
            self.planned = self.known
        except SpecError:
            assert step[0] == "summarize"  # of more rows than a small block takes
            self.planned = self.known
        except NoSpace:
            self._make_room(store)
        if self.step_by_step:
            self._is_durable(store)
        if self.faults is not None and self.lot.random() < 0.03:
            store.scrub()
        if self.lot.random() < 0.2:
            found = read_all(store)
            assert found.keys() == self.known.keys()
            assert between(found, [self.known], self.window), self._told(found)

    def _choose(self):
        lot, n = self.lot, self.n
        what = lot.choice(["append"] * 7 + ["drop", "drop", "fork", "truncate", "evict", "summarize", "compact"])
        if sum(map(length, self.known.values())) > self.most_tokens:
            return "drop", min(self.known)
        if what == "compact":
            return (what,)
        name = lot.choice(sorted(self.known)) if self.known else None
        if what == "append" or name is None or (what in ("evict", "summarize") and length(self.known[name]) < 2):
            return "append", lot.choice("abcd"), lot.randint(1, max(2, min(70, self.most_tokens // 3))), n
        first, end = sorted(lot.sample(range(length(self.known[name]) + 1), 2)) if length(self.known[name]) else (0, 0)
        return {
            "drop": ("drop", name),
            "fork": ("fork", name, f"f{n}", end),
            "truncate": ("truncate", name, end),
            "evict": ("evict", name, first, end),
            "summarize": ("summarize", name, first, end, lot.randint(1, max(1, min(end - first, 20))), n),
        }[what]

    def _make_room(self, store):
        """A full device can be emptied, and then written. Raises NoSpace where few blocks are left."""
        begun = dict.fromkeys(store.sequences(), NOTHING)  # one that was begun only may be among them
        self._note(self._but_dropped(store, begun | self.known))
        for name in store.sequences():
            store.drop(name)
            self._note({other: own for other, own in self.known.items() if other != name})
        store.compact()
        step = "append", "z", 8, self.n
        self.planned = plan(self.known, step)
        perform(store, step)
        self._note(self.planned)

    # -- what is left of it ------------------------------------------------------------------------------------

    def _end(self, closed):
        """Power is lost at any of the things asked, or behind the last one."""
        lot, asked = self.lot, self.recorder.asked
        if closed and lot.random() < 0.5:
            self.allowed = [self.known]
            return
        self.losses += 1
        count = self._power_until(len(asked))
        self.path.write_bytes(self._after_loss(asked, count))
        if not closed or count < len(asked) or lot.random() < 0.5:
            sidecar_path(self.path).unlink(missing_ok=True)
        least = max(state for state, at in self.durable if at <= count)
        most = max(n for n, (_, at) in enumerate(self.states) if at <= count) + 1
        self.allowed = [known for known, _ in self.states[least : most + 1]]

    def _power_until(self, asked):
        return self.lot.randint(0 if self.lot.random() < 0.8 else max(0, asked - 3), asked)

    def _after_loss(self, asked, count):
        scattered = self.lot if self.lot.random() < 0.6 else None
        return after_loss(self.before, asked, count, self.geometry.unit_bytes, scattered)

    def _check(self):
        """What a reader finds; at times, that nothing is called damage."""
        with kv.open(self.path, faults=self.faults) as store:
            found = read_all(store)
        assert between(found, self.allowed, self.window), self._told(found)
        if self.lot.random() < 0.2:
            plainly = {name: own.length for name, own in reader.Log(self.path).sequences.items()}
            assert plainly == {name: length(own) for name, own in found.items()}
        if self.lot.random() < 0.3:
            report = verify_log(self.path)
            damage = [one for one in report.damage if one.why not in LEFT_OF_AN_ERASE]
            assert not damage, report
            assert not report.error, report

    def _told(self, found):
        return [{name: length(own) for name, own in known.items()} for known in (found, *self.allowed)]


@pytest.mark.parametrize("seed", range(6))
def test_some_chains(tmp_path, seed):
    Chain(tmp_path, seed).live(4)


def live_all(kind, folder, shard):
    """Chains of a kind, whose seeds are those of a shard; most sessions of them lose their power."""
    losses = 0
    for seed in range(100 + shard * CHAINS, 100 + (shard + 1) * CHAINS):
        own = folder / str(seed)
        own.mkdir()
        chain = kind(own, seed)
        chain.live(SESSIONS)
        losses += chain.losses
        shutil.rmtree(own)
    assert losses > 4 * CHAINS


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(SHARDS))
def test_chains_of_writers(tmp_path, shard):
    live_all(Chain, tmp_path, shard)
