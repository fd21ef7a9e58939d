"""Every truncation and every flipped bit of small logs: never a wrong number, never an error outside errors.py.

The seeded samples run in `make test`, the whole of it in `make check`.
"""

import os

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.rotation import Rotation
from kvcodec.errors import KvcodecError
from kvcodec.flash.device import Device
from kvcodec.layout import Kind, StreamId
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import sidecar_path
from tests.caches import rows, tiny_model
from tests.test_product_codec import product

GEOMETRY = kv.Geometry.parse("page=2048,unit=512,block=16384")
DIM = 32
SHARDS = 16
K, V = StreamId.K, StreamId.V


def product_codes():
    """Of keys, in one layer as before their rotary embedding, and of values of both layers."""
    turned, plain = product(DIM, 6, 4, ((0, K),), Rotation.of_base(50.0, DIM)), product(DIM, 5, 3, ((1, K),), seed=1)
    return DictionarySet(products=(turned, plain, product(DIM, 6, 5, ((0, V), (1, V)), seed=2)))


class Victim:
    """A log of about 50 KiB, the rows that it holds, and a file to break copies of it in."""

    def __init__(self, folder, kind):
        self.kind, self.path = kind, folder / "victim.kvlog"
        options = {"model": tiny_model(2, 1, DIM), "residual": 8, "sinks": 2, "device": GEOMETRY}
        if kind == "pq":  # rows are coded as they come
            options |= {"k": "pq", "v": "pq", "residual": 0, "dictionary": product_codes()}
        with kv.open(self.path, "w", **options) as store:
            for name, n in (("a", 220), ("b", 75)):
                pairs = {layer: [rows(layer, s, n, heads=1, dim=DIM) for s in "kv"] for layer in range(2)}
                for span in (slice(0, n - 11), slice(n - 11, n)):
                    store.sequence(name).append_layers({layer: [r[span] for r in p] for layer, p in pairs.items()})
                store.sync()
        self.good = self.path.read_bytes()
        self.sidecar = sidecar_path(self.path).read_bytes()
        self.lengths, self.rows = {}, {}
        with kv.open(self.path) as store:
            for sequence in store:
                self.lengths[sequence.name] = len(sequence)
                self.rows[sequence.name] = [sequence.read(layer) for layer in range(2)]
        # a token that is coded in the log as a whole may be found raw in an older record
        self.raw = {
            name: [tuple(rows(layer, s, n, heads=1, dim=DIM) for s in "kv") for layer in range(2)]
            for name, n in self.lengths.items()
        }

    def mend(self):
        """The whole log again, under its name."""
        self.path.write_bytes(self.good)

    def keep_sidecar(self, keep):
        if keep:
            sidecar_path(self.path).write_bytes(self.sidecar)
        else:
            sidecar_path(self.path).unlink(missing_ok=True)

    def lengths_if_right(self, recovery):
        """Tokens of each sequence if the log opens, None if it is refused; fails on any wrong number."""
        try:
            with kv.open(self.path, recovery=recovery) as store:
                return {s.name: self.check(s) for s in store}
        except KvcodecError:
            return None

    def check(self, sequence):
        n = len(sequence)
        assert n <= self.lengths[sequence.name]
        for layer in range(2):
            try:
                got = sequence.read(layer)
            except KvcodecError:
                continue
            for mine, coded, raw in zip(
                got, self.rows[sequence.name][layer], self.raw[sequence.name][layer], strict=True
            ):
                a = mine.view(np.uint16).reshape(n, DIM)
                as_coded = (a == coded[:n].view(np.uint16).reshape(n, DIM)).all(axis=1)
                as_raw = (a == raw[:n].view(np.uint16).reshape(n, DIM)).all(axis=1)
                assert (as_coded | as_raw).all()
        return n


@pytest.fixture(scope="module", params=["int4", "pq"])
def victim(tmp_path_factory, request):
    return Victim(tmp_path_factory.mktemp("victim"), request.param)


def flip(victim, bit, recovery):
    """The victim with one bit changed, and whole again afterwards."""
    old = victim.good[bit // 8 : bit // 8 + 1]
    with open(victim.path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes([old[0] ^ 1 << bit % 8]), bit // 8)
        try:
            return victim.lengths_if_right(recovery)
        finally:
            os.pwrite(file.fileno(), old, bit // 8)


def truncate(victim, size, recovery):
    victim.path.write_bytes(victim.good[:size])
    return victim.lengths_if_right(recovery)


def test_the_victim_is_worth_breaking(victim):
    victim.mend()
    victim.keep_sidecar(False)
    device = Device.open(victim.path)
    kinds = {Kind(int(record.header["kind"])) for record in Log(device).poll()}
    device.close()
    coded = {Kind.CODEBOOK, Kind.ROWS} if victim.kind == "pq" else {Kind.STEP}
    assert kinds == {Kind.MODEL, Kind.SEQUENCE, Kind.GROUP} | coded
    assert 3 * 16384 <= len(victim.good) + 8192 <= 5 * 16384
    assert victim.lengths_if_right("absolute") == victim.lengths
    assert min(victim.lengths.values()) > 70


@pytest.mark.no_cover
@pytest.mark.parametrize("shard", range(2))
def test_some_flipped_bits(victim, shard):
    victim.mend()
    random = np.random.default_rng(1)
    refused = 0
    for n, bit in enumerate(random.choice(8 * len(victim.good), 250, replace=False)[shard::2].tolist()):
        victim.keep_sidecar(n % 2)
        refused += flip(victim, bit, list(Recovery)[n // 2 % 4]) is None
    assert 12 < refused < 113


@pytest.mark.no_cover
def test_some_truncations(victim):
    random = np.random.default_rng(2)
    for n, size in enumerate(random.choice(len(victim.good), 125, replace=False).tolist()):
        victim.keep_sidecar(n % 2)
        truncate(victim, size, list(Recovery)[n // 2 % 4])


def test_a_lost_end_that_was_durable_is_never_passed_over(victim):
    """Without the sidecar the last frames have no witness; with it their loss is damage."""
    for size in range(len(victim.good) - 1, len(victim.good) - 9000, -1024):
        victim.keep_sidecar(True)
        assert truncate(victim, size, "absolute") is None
        with pytest.raises(KvcodecError):
            kv.open(victim.path, "a")


@pytest.mark.no_cover
@pytest.mark.parametrize("victim", ["int4"], indirect=True)
def test_writing_goes_on_after_any_truncation(victim):
    random = np.random.default_rng(3)
    for size in random.integers(20000, len(victim.good), 60).tolist():
        victim.keep_sidecar(False)
        victim.path.write_bytes(victim.good[:size])
        with kv.open(victim.path, "a") as store:
            if not store.sequences():
                continue
            sequence = store.sequence("a")
            n = victim.check(sequence)
            for layer in (1, 0):
                span = range(n, n + 100)
                sequence.append(
                    layer,
                    rows(layer, "k", span, heads=1, dim=DIM, salt=5),
                    rows(layer, "v", span, heads=1, dim=DIM, salt=5),
                )
            got = sequence.read(1)
        with kv.open(victim.path, recovery="torn-tail") as store:
            again = store.sequence("a").read(1)
            assert all(np.array_equal(a.view(np.uint16), b.view(np.uint16)) for a, b in zip(got, again, strict=True))
            late = again[0][n:].astype(np.float32) - rows(1, "k", range(n, n + 100), heads=1, dim=DIM, salt=5).astype(
                np.float32
            )
            assert np.abs(late).max() < 0.4


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_flipped_bit(victim, shard):
    victim.mend()
    for n, bit in enumerate(range(shard, 8 * len(victim.good), SHARDS)):
        victim.keep_sidecar(n % 2)
        flip(victim, bit, list(Recovery)[n // 2 % 4])


@pytest.mark.campaign
@pytest.mark.parametrize("recovery", list(Recovery))
def test_every_truncation(victim, recovery):
    for size in range(len(victim.good)):
        victim.keep_sidecar(size % 2)
        truncate(victim, size, recovery)
