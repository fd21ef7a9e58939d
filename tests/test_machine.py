"""A store against a plain dict: any order of appends, syncs, reads, closings and crashes."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kvcodec as kv
from tests.caches import GEOMETRIES, rows, same, tiny_model

NAMES = st.sampled_from(["a", "b", "c"])


class StoreMachine(RuleBasedStateMachine):
    """Rows of a sequence are made from its tokens and a salt that changes with each crash, so that a row of an
    abandoned history can't pass for one of the present.
    """

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "c.kvlog"
        self.store = None
        self.salt = 0
        self.rows, self.synced = {}, {}

    @initialize(
        geometry=st.sampled_from(list(GEOMETRIES.values())), residual=st.integers(0, 80), sinks=st.integers(0, 5)
    )
    def create(self, geometry, residual, sinks):
        self.store = kv.open(
            self.path, "w", model=tiny_model(), k="raw", v="raw", residual=residual, sinks=sinks, device=geometry
        )

    def layers(self, name):
        return self.rows.setdefault(name, [[rows(n, s, 0) for s in "kv"] for n in range(2)])

    def length(self, name):
        return min(len(r[0]) for r in self.layers(name))

    @rule(name=NAMES, layer=st.integers(0, 1), n=st.integers(0, 100))
    def append(self, name, layer, n):
        mine = self.layers(name)[layer]
        span = range(len(mine[0]), len(mine[0]) + n)
        k, v = (rows(layer, s, span, salt=self.salt) for s in "kv")
        self.store.sequence(name).append(layer, k, v)
        self.rows[name][layer] = [np.concatenate([mine[0], k]), np.concatenate([mine[1], v])]

    @rule(name=NAMES, n=st.integers(1, 3))
    def append_step(self, name, n):
        start = max(len(r[0]) for r in self.layers(name))
        for layer in range(2):  # bring the layers together first
            self.append(name, layer, start - len(self.rows[name][layer][0]))
        step = [[rows(layer, s, range(start, start + n), salt=self.salt) for layer in range(2)] for s in "kv"]
        self.store.sequence(name).append_step(*step)
        for layer in range(2):
            self.rows[name][layer] = [np.concatenate([self.rows[name][layer][i], step[i][layer]]) for i in range(2)]

    @rule()
    def sync(self):
        self.store.sync()
        self.synced = {name: self.length(name) for name in self.rows}

    @rule()
    def reopen(self):
        self.store.close()
        self.synced = {name: self.length(name) for name in self.rows}
        self.check_readers()
        self.store = kv.open(self.path, "a")
        self.cut({name: self.length(name) for name in self.rows})

    @rule(lose_sidecar=st.booleans())
    def crash(self, lose_sidecar):
        self.store.abandon()
        if lose_sidecar:
            (self.folder / "c.kvlog.idx").unlink(missing_ok=True)
        self.store = kv.open(self.path, "a")
        held = self.store.sequences()
        assert {n for n, tokens in self.synced.items() if tokens} <= set(held)
        self.cut({n: len(self.store.sequence(n)) if n in held else 0 for n in self.rows})
        assert all(self.length(name) >= tokens for name, tokens in self.synced.items())
        self.salt += 1

    def cut(self, lengths):
        """What a token's other layers had not yet got is gone once the log was opened anew."""
        for name, n in lengths.items():
            assert n <= self.length(name)
            self.rows[name] = [[r[:n] for r in layer] for layer in self.rows[name]]

    @invariant()
    def everything_reads_back(self):
        if self.store is None:
            return
        for name in self.store.sequences():
            sequence = self.store.sequence(name)
            assert len(sequence) == self.length(name)
            for layer in range(2):
                assert all(same(a, b) for a, b in zip(sequence.read(layer), self.layers(name)[layer], strict=True))

    def check_readers(self):
        with kv.open(self.path) as reader:
            for name in reader.sequences():
                n = self.length(name)
                assert len(reader.sequence(name)) == n
                got = reader.sequence(name).read(1)
                assert all(same(a, b[:n]) for a, b in zip(got, self.layers(name)[1], strict=True))

    def teardown(self):
        if self.store is not None:
            self.store.close()
        shutil.rmtree(self.folder)


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
test_a_store_is_a_dict_of_rows = StoreMachine.TestCase
