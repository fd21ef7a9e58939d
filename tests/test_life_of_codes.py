"""Sequences in every codec, appended to layer by layer, cut, forked, evicted from and cleaned: a row is exact until it
is coded, is coded once as what it is coded as alone, and never changes after that.
"""

import itertools
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import kvcodec as kv
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.rotation import Rotation
from kvcodec.errors import NoSpace, ShapeError
from kvcodec.layout import StreamId
from kvcodec.log.sidecar import sidecar_path
from kvcodec.store.outgoing import is_coded
from tests.caches import rows
from tests.campaigns import run_shard, short, times
from tests.test_prediction import predicted
from tests.test_product_codec import product
from tests.trellis_codes import trellis

LAYERS, HEADS, DIM = 2, 2, 16
TURN = Rotation.of_base(50.0, DIM)
STREAMS = [(layer, stream) for layer in range(LAYERS) for stream in StreamId if stream in (StreamId.K, StreamId.V)]
# Where what comes back depends on a row's neighbours, or arrays don't take the codec: the furthest it may be off, in
# lengths of the row. Another one's is 1.4. Error bounds are those of rows in the model's type, which are rounded.
BOUNDS = {"int4/channel/g16": 0.5, "int4/channel/g32": 0.5, "dict/s2/max0.6": 0.6, "pq/max0.7": 0.7}
CODECS = {
    "raw": ("raw", "raw"),
    "int4": ("int4/channel/g16", "int4/token/g16"),
    "int8": ("int4/channel/g32", "int8/token/g16"),
    "dict": ("dict/s3", "dict/s4/c6"),
    "bound": ("dict/s2/max0.6", "pq/max0.7"),
    "pq": ("pq", "pq/g128"),
    "predicted": ("pq", "pq"),
    "tcq": ("tcq", "tcq/g128"),
}


@cache
def make_set(name):
    """What a codec is trained as: random numbers, for what it is like does not matter."""
    uses = [((n, stream),) for n, stream in STREAMS]
    turns = [TURN if stream == StreamId.K else None for _, stream in STREAMS]
    if name in ("dict", "bound"):
        atoms = [quantize_atoms(np.random.default_rng(n).standard_normal((96, DIM))) for n in range(4)]
        made = tuple(Dictionary(own, use) for own, use in zip(atoms, uses, strict=True))
        codes = tuple(product(DIM, 6, 3, use) for use, (_, s) in zip(uses, STREAMS, strict=True) if s == StreamId.V)
        return DictionarySet(made if name == "dict" else made[::2], codes if name == "bound" else ())
    codes = [product(DIM, 6, 2 + n % 3, use, turns[n], seed=n) for n, use in enumerate(uses)]
    if name == "pq":
        return DictionarySet(products=tuple(codes))
    if name == "predicted":
        values = [predicted(codes[n], 3 + n, DIM, uses[n + 1]) for n in (0, 2)]
        return DictionarySet(products=(codes[0], codes[2], *values))
    if name == "tcq":
        return DictionarySet((), (), tuple(trellis(DIM, 4 + n, use, turns[n], seed=n) for n, use in enumerate(uses)))
    return None


def find(name, key):
    """What a stream is coded over; None if nothing."""
    own = make_set(name)
    return own and (own.find(*key) or own.find_product(*key) or own.find_trellis(*key))


def code(name, layer, both, first):
    """What rows of K and V of a layer come back as once they are coded; None where that depends on their neighbours."""
    out, keys = [], None
    for stream, spec, own in zip((StreamId.K, StreamId.V), CODECS[name], both, strict=True):
        if spec in BOUNDS:
            out.append(None)
            continue
        given = {"given": keys} if name == "predicted" and stream == StreamId.V else {}
        keys = kv.encode_array(own, spec, stream=stream.name.lower(), dictionary=find(name, (layer, stream)),
                               first=first, **given)  # fmt: skip
        out.append(kv.decode_array(keys, dtype=np.float32))
    return out


class Known:
    """What is known of a sequence. rows, coded: by stream, in float32; coded is nan where it is not known. done: which
    rows were seen coded, as what coded has. gone: tokens that are evicted.
    """

    def __init__(self):
        empty = np.zeros((0, HEADS, DIM), np.float32)
        self.rows, self.coded = (dict.fromkeys(STREAMS, empty) for _ in range(2))
        self.done = {key: np.zeros(0, bool) for key in STREAMS}
        self.gone = set()

    def __len__(self):
        return min(map(len, self.rows.values()))

    def grow(self, name, layer, both):
        coded = code(name, layer, both, len(self.rows[layer, StreamId.K]))
        for stream, own, back in zip((StreamId.K, StreamId.V), both, coded, strict=True):
            key, own = (layer, stream), own.astype(np.float32)
            self.rows[key] = np.concatenate([self.rows[key], own])
            self.coded[key] = np.concatenate([self.coded[key], np.full_like(own, np.nan) if back is None else back])
            self.done[key] = np.concatenate([self.done[key], np.zeros(len(own), bool)])

    def cut(self, end):
        new = Known()
        for name in ("rows", "coded", "done"):
            setattr(new, name, {key: own[:end].copy() for key, own in getattr(self, name).items()})
        new.gone = {token for token in self.gone if token < end}
        return new


class LifeOfCodes(RuleBasedStateMachine):
    """Any order of what may befall sequences in one codec or another; crashes and reopening among it."""

    names = st.sampled_from("abc")

    @initialize(
        salt=st.integers(0, 99),
        codec=st.sampled_from(sorted(CODECS)),
        residual=st.sampled_from([0, 0, 20]),
        sinks=st.sampled_from([0, 3]),
        window=st.sampled_from([0, 0, 20, 90]),
        durability=st.sampled_from(["step", "step", "sync"]),
    )
    def begin(self, salt, codec, residual, sinks, window, durability):
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.salt = Path(self.folder.name) / "c", itertools.count(salt * 1000)
        self.codec, self.window, self.sinks, self.durability = codec, window, sinks, durability
        model = kv.Model((kv.Layer.kv(HEADS, DIM), kv.Layer.kv(HEADS, DIM, window=window)))
        self.store = kv.open(
            self.path, "w", model=model, k=CODECS[codec][0], v=CODECS[codec][1], dictionary=make_set(codec),
            residual=residual, sinks=sinks, device="page=256,unit=64,block=4096", capacity=120 * 4096,
            durability=durability,
        )  # fmt: skip
        self.reader, self.known = kv.open(self.path), {}

    def teardown(self):
        if hasattr(self, "store"):
            self.reader.close()
            self.store.close()
            self.folder.cleanup()

    def pick(self, lot):
        return lot.choice(sorted(self.known))

    def does(self, work, *, durable=True):
        """Whether there was room. If not, all sequences are dropped. durable: it is, once it is done."""
        try:
            work()
            if durable:
                self.store.sync()
        except NoSpace:
            for one in self.store.sequences():
                self.store.drop(one)
            self.known = {}
            self.store.compact()
            self.store.sync()
            return False
        return True

    @rule(name=names, tokens=st.lists(st.integers(0, 90), min_size=LAYERS, max_size=LAYERS), ahead=st.integers(0, 99))
    def append(self, name, tokens, ahead):
        """Layers by as many rows as each comes to: all by the same number, but for one in three."""
        known, salt = self.known.get(name, Known()), next(self.salt)
        tokens = (
            tokens
            if ahead < 33
            else [max(0, len(known) + tokens[0] - len(known.rows[n, StreamId.K])) for n in range(LAYERS)]
        )
        parts = {
            n: tuple(rows(n, stream, own, HEADS, DIM, salt=salt) for stream in "kv")
            for n, own in enumerate(tokens)
            if own
        }
        if self.does(lambda: self.store.sequence(name).append_layers(parts), durable=False):
            self.known[name] = known
            for layer, both in parts.items():
                known.grow(self.codec, layer, both)

    @precondition(lambda self: self.known)
    @rule(lot=st.randoms(), layer=st.integers(0, LAYERS - 1), tokens=st.integers(1, 90))
    def append_layer(self, lot, layer, tokens):
        known = self.known[name := self.pick(lot)]
        both = [rows(layer, stream, tokens, HEADS, DIM, salt=next(self.salt)) for stream in "kv"]
        if self.does(lambda: self.store.sequence(name).append(layer, *both), durable=False):
            known.grow(self.codec, layer, both)

    @precondition(lambda self: self.known)
    @rule(lot=st.randoms())
    def drop(self, lot):
        name = self.pick(lot)
        self.does(lambda: self.store.drop(name))
        self.known.pop(name, None)

    @precondition(lambda self: self.known)
    @rule(lot=st.randoms(), new=st.sampled_from("xyz"))
    def fork(self, lot, new):
        known = self.known[name := self.pick(lot)]
        end = lot.randint(0, len(known))
        if new not in self.known and self.may_cut(end < len(known), lambda: self.store.fork(name, new, end)):
            self.known[new] = known.cut(end)

    @precondition(lambda self: self.known)
    @rule(lot=st.randoms())
    def truncate(self, lot):
        known = self.known[name := self.pick(lot)]
        end = lot.randint(0, len(known))
        if self.may_cut(end < len(known), lambda: self.store.sequence(name).truncate(end)):
            self.known[name] = known.cut(end)

    def may_cut(self, shorter, work):
        """Whether there was room, and no window has gone on."""
        try:
            return self.does(work)
        except ShapeError as error:
            why = str(error)
        assert self.window
        assert shorter
        assert "has gone on" in why
        return False

    @precondition(lambda self: self.known)
    @rule(lot=st.randoms())
    def evict(self, lot):
        known = self.known[name := self.pick(lot)]
        settled = min(own.first for own in self.store.sequence(name)._open.values())
        if settled < 2:
            return
        first, end = sorted(lot.sample(range(settled + 1), 2))
        if self.does(lambda: self.store.sequence(name).evict(first, end)):
            known.gone |= set(range(first, end))

    @rule()
    def compact(self):
        self.store.compact()

    @rule(how=st.sampled_from(["close", "synced", "lost"]), sidecar=st.booleans())
    def reopen(self, how, sidecar):
        """Another writer. What only some layers had is gone, and appended rows that were not durable may be."""
        if how == "synced":
            self.store.sync()
        (self.store.close if how == "close" else self.store.abandon)()
        if not sidecar:
            sidecar_path(self.path).unlink(missing_ok=True)
        self.store = kv.open(self.path, "a", durability=self.durability)
        may_lose = how == "lost" and self.durability == "sync"
        if may_lose:
            found = self.store.sequences()
            self.known = {name: known for name, known in self.known.items() if name in found}
        self.known = {
            name: known.cut(len(self.store.sequence(name)) if may_lose else len(known))
            for name, known in self.known.items()
        }
        if may_lose:  # groups too, of whose rows older records are exact
            for known in self.known.values():
                known.done = {key: np.zeros_like(own) for key, own in known.done.items()}

    @invariant()
    def holds(self):
        assert set(self.store.sequences()) == set(self.known)
        for name, known in self.known.items():
            sequence = self.store.sequence(name)
            assert len(sequence) == len(known)
            sequence.take_up()
            for layer in range(LAYERS):
                self.check(sequence, known, layer)
        for name, known in self.known.items() if self.durability == "step" else ():
            sequence = self.reader.sequence(name)
            assert len(sequence) == len(known)
            for key in STREAMS:
                tokens, own = self.read(sequence, known, key)
                exact = known.rows[key][tokens], known.coded[key][tokens]
                assert ((own == exact[0]) | (own == exact[1]) | np.isnan(exact[1])).all()

    def read(self, sequence, known, key):
        """The tokens that a stream should have, and its rows."""
        end = len(known.rows[key]) if sequence._open else len(sequence)
        start = max(0, end - self.window) if self.window and key[0] == LAYERS - 1 else 0
        tokens = np.setdiff1d(np.arange(start, end), list(known.gone))
        own = sequence.read(key[0], dtype=np.float32)[key[1] == StreamId.V]
        assert len(own) == len(tokens)
        return tokens, own

    def check(self, sequence, known, layer):
        for n, stream in enumerate((StreamId.K, StreamId.V)):
            key = layer, stream
            tokens, own = self.read(sequence, known, key)
            open_, spec = sequence._open[key], CODECS[self.codec][n]
            coded = tokens < (len(known.rows[key]) if is_coded(open_) else open_.first)
            exact, done = known.rows[key][tokens], known.done[key][tokens]
            changed = (own != exact).any((1, 2))  # a cut may leave rows in a record by themselves, and exact
            assert (done <= changed).all()
            assert (changed <= coded & (tokens >= self.sinks)).all(), (key, tokens[changed])
            fresh = changed & ~done
            if spec in BOUNDS:
                far = np.linalg.norm((own - exact)[fresh], axis=-1) / np.linalg.norm(exact[fresh], axis=-1)
                assert (far <= BOUNDS[spec] + 2.0**-8).all(), far.max()
                known.coded[key][tokens[fresh]] = own[fresh]
            known.done[key][tokens[fresh]] = True
            wanted = np.where(changed[:, None, None], known.coded[key][tokens], exact)
            assert np.array_equal(own, wanted), (self.codec, key, tokens[(own != wanted).any((1, 2))])


TestLifeOfCodes = LifeOfCodes.TestCase
TestLifeOfCodes.settings = short(12)


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(times(40, 4000)))
def test_any_order_of_20_times_60_steps(shard):
    run_shard(LifeOfCodes, shard, 60)
