"""Rows that stand for a range of tokens: who sees them, and that no token is counted beside its summary."""

import contextlib
import itertools
import json
import os
import random

import numpy as np
import pytest
from typer.testing import CliRunner

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.cli.app import app
from kvcodec.errors import CorruptRecord, NonFiniteError, NoSpace, ShapeError, SpecError, UnknownSequence
from kvcodec.flash.device import Device
from kvcodec.layout import POSITION, Kind
from kvcodec.log.frame import Record
from kvcodec.log.reader import Log
from kvcodec.log.sidecar import sidecar_path
from tests.caches import rows
from tests.children import Child
from tests.power import Recorder, after_loss
from tests.test_golden import GOLDEN
from tests.test_lifecycle import SMALL, append, check, data, join, make, put
from tests.test_repair import copy_of

LENGTH, FIRST, END, COUNT = 200, 20, 128, 9
SEEN = [*range(128, 134), 180, 200, 260]  # who sees each row first


def query(seed=0, heads=2, dim=16):
    return np.random.default_rng(seed).standard_normal((heads, dim)).astype(np.float32)


def reference(q, k, v, scale=None):
    """float64 attention of query heads over rows (tokens, heads, dim)."""
    k, v = (np.repeat(x.astype(np.float64), len(q) // x.shape[1], axis=1) for x in (k, v))
    logits = np.einsum("hd,thd->ht", q.astype(np.float64), k) * (k.shape[2] ** -0.5 if scale is None else scale)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.einsum("ht,thd->hd", weights / weights.sum(axis=1, keepdims=True), v)


def seen_at(position, length=LENGTH):
    """Token numbers that a query at a position sees of the log of `summarised`: the rule, number by number."""
    late = dict(zip(range(FIRST, FIRST + COUNT), SEEN, strict=True))
    at = length if position is None else position
    there = [t for t in range(length) if not FIRST + COUNT <= t < END]
    return [t for t in there if (late[t] <= at if t in late else t <= at)]


def summarised(path, **options):
    """A log of one sequence with a summary, and its rows by layer, stream and token number."""
    parts, new = data(LENGTH, 1), data(COUNT, 7)
    with make(path, **options) as store:
        append(store.sequence("a"), parts)
        store.sequence("a").summarize(FIRST, END, dict(enumerate(new)), visible_from=SEEN)
    return put(parts, FIRST, new)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("summaries") / "c"
    return path, summarised(path)


@pytest.mark.parametrize("mode", "ra")
@pytest.mark.parametrize("position", [None, 0, 25, 127, 128, 131, 180, 199, 200, 259, 260, 1 << 50])
def test_who_sees_which_rows(whole, mode, position, tmp_path):
    path, parts = whole
    q, tokens = query(), seen_at(position)
    with kv.open(copy_of(path, tmp_path), mode) as store:
        sequence = store.sequence("a")
        for layer in range(2):
            k, v = sequence.read(layer, position=position)
            for got, all_ in zip((k, v), parts[layer], strict=True):
                assert np.array_equal(got.view(np.uint16), all_[tokens].view(np.uint16))
            wanted = reference(q, k.astype(np.float32), v.astype(np.float32))
            got, state = sequence.attend(layer, q, position=position, return_state=True)
            assert state.tokens == len(tokens)
            assert np.abs(got - wanted).max() <= 1e-3 * np.abs(wanted).max()
        back = sequence.read(1, slice(None, 10, -3), position=position)[1]
        assert np.array_equal(back, parts[1][1][[t for t in range(LENGTH - 1, 10, -3) if t in tokens]])


def test_a_batch_has_a_position_each(whole):
    path, _ = whole
    with kv.open(path) as store:
        a = store.sequence("a")
        q = np.stack([query(n) for n in range(3)])
        got = store.attend(0, [a, a, a], q, position=[131, 50, 300])
        for n, position in enumerate([131, 50, 300]):
            assert np.array_equal(got[n], a.attend(0, q[n], position=position))
        assert np.array_equal(store.attend(0, [a], q[:1], position=131)[0], got[0])
        with pytest.raises(ShapeError, match="position: 2"):
            store.attend(0, [a, a, a], q, position=[1, 2])


def test_what_a_query_may_not_see_is_refused_by_number(whole):
    path, _ = whole
    with kv.open(path) as store:
        sequence = store.sequence("a")
        for tokens, position in (([28], None), ([26], 150), ([21, 150], 149), ([20], 100)):
            with pytest.raises(ShapeError, match="to see"):
                sequence.read(0, tokens, position=position)
            with pytest.raises(ShapeError, match="to see"):
                sequence.attend(0, query(), tokens=tokens, position=position)
        with pytest.raises(ShapeError, match="evicted"):
            sequence.read(0, [29], position=300)
        for use in (sequence.read, lambda layer, position: sequence.attend(layer, query(), position=position)):
            with pytest.raises(ShapeError, match="position"):
                use(0, position=-1)


def test_tiles_of_chosen_tokens_show_nothing_that_is_hidden(whole):
    path, parts = whole
    q = query()
    with kv.open(path) as store:
        sequence = store.sequence("a")
        for tokens, position in (([20], 131), ([150], 152), ([20, 133], 180)):
            got, state = sequence.attend(1, q, tokens=tokens, position=position, return_state=True)
            shown = sorted({t for t in seen_at(position) for own in tokens if (t - own) in range(-16, 17)})
            assert state.tokens < len(seen_at(position))
            near = [t for t in shown if _tile(t) in {_tile(own) for own in tokens}]
            assert state.tokens == len(near)
            k, v = (x[near].astype(np.float32) for x in parts[1])
            wanted = reference(q, k, v)
            assert np.abs(got - wanted).max() <= 1e-3 * np.abs(wanted).max()


def _tile(token):
    """Which tile of 16 of which record holds a token: raw groups of 64, and the summary."""
    return ("summary", (token - FIRST) // 16) if FIRST <= token < FIRST + COUNT else token // 16


def test_a_window_counts_from_the_position(whole):
    path, parts = whole
    with kv.open(path) as store:
        got = store.sequence("a").attend(0, query(), window=60, position=150)
        k, v = (x[[t for t in seen_at(150) if t > 90]].astype(np.float32) for x in parts[0])
        assert np.abs(got - reference(query(), k, v)).max() < 1e-3


def test_what_is_told_of_summaries(tmp_path):
    with make(tmp_path / "c") as store:
        sequence = store.sequence("a")
        append(sequence, data(LENGTH, 1))
        few, many = data(4, 3), data(7, 4)
        at, seen = {0: [64, 64, 99, 128], 1: list(range(64, 71))}, {0: [128, 64, 128, 129], 1: 131}
        sequence.summarize(64, 129, {0: few[0], 1: many[1]}, positions=at, visible_from=seen)
        sequence.summarize(0, 10, dict(enumerate(data(10, 5))))
        sequence.summarize(10, 64, dict(enumerate(data(4, 6))))
        store.sync()
        for reader in (store, kv.open(tmp_path / "c")):
            told = reader.sequence("a").summaries(0)
            assert [(own.first, own.end, own.rows) for own in told] == [(0, 10, 10), (10, 64, 4), (64, 129, 4)]
            assert told[0].positions.tolist() == list(range(10))
            assert told[1].positions.tolist() == [16, 30, 43, 57]  # the middles of four parts
            assert told[1].visible_from.tolist() == [64] * 4
            assert (told[2].positions.tolist(), told[2].visible_from.tolist()) == (at[0], seen[0])
            other = reader.sequence("a").summaries(1)[2]
            assert (other.rows, other.positions.tolist(), other.visible_from.tolist()) == (7, at[1], [131] * 7)
            assert reader.sequence("a").evicted(0) == [(14, 64), (68, 129)]
            assert len(reader.sequence("a")) == LENGTH
        stats = store.stats().sequences[0]
        assert (stats.summaries, stats.summarized_tokens) == (3, 129)
        reader.close()


BAD = {
    "no rows of a layer": ({0: 3}, {}, ShapeError, "no rows of layer 1"),
    "a layer that is not there": ({0: 3, 1: 3, 2: 3}, {}, ShapeError, "layer 2"),
    "no rows": ({0: 0, 1: 3}, {}, ShapeError, "0 rows"),
    "more rows than tokens": ({0: 3, 1: 45}, {}, ShapeError, "45 rows"),
    "too few positions": ({0: 3, 1: 3}, {"positions": [20, 21]}, ShapeError, "3 whole numbers"),
    "a fraction": ({0: 3, 1: 3}, {"positions": [20.0, 21.0, 22.0]}, ShapeError, "whole numbers"),
    "a position outside": ({0: 3, 1: 3}, {"positions": [20, 21, 64]}, ShapeError, "row 2 at position 64"),
    "a position below 0": ({0: 3, 1: 3}, {"positions": [-1, 21, 63]}, ShapeError, "-1"),
    "seen before it stands": ({0: 3, 1: 3}, {"positions": [30, 40, 50], "visible_from": 49}, ShapeError, "row 2"),
    "never seen": ({0: 3, 1: 3}, {"visible_from": (1 << 48) + 1}, ShapeError, "row 0"),
    "more than a block": ({0: 3, 1: 44}, {}, SpecError, "one head must fit"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_changes_nothing(name, tmp_path):
    counts, options, error, why = BAD[name]
    tokens = (20, 64)
    with make(tmp_path / "c", device="page=256,unit=64,block=2048" if error is SpecError else SMALL) as store:
        sequence = store.sequence("a")
        append(sequence, data(100, 1))
        before = store.stats(), store.log.lsn
        given = {n: tuple(rows(min(n, 1), s, count, 1, 16) for s in "kv") for n, count in counts.items()}
        with pytest.raises(error, match=why):
            sequence.summarize(*tokens, given, **options)
        assert (store.stats(), store.log.lsn) == before
        check(sequence, data(100, 1))
        assert not sequence.summaries(0)


def test_more_that_is_refused(tmp_path):
    with make(tmp_path / "c", residual=20) as store:
        sequence = store.sequence("a")
        append(sequence, data(LENGTH, 1))
        new = dict(enumerate(data(3, 5)))
        bad = {0: new[0], 1: (new[1][0], np.full((3, 1, 16), np.inf, np.float32))}
        with pytest.raises(NonFiniteError):
            sequence.summarize(20, 60, bad)
        for ends, why in (((0, 190), "residual"), ((5, 5), "5 to 4"), ((-1, 9), "of 200"), ((9, 201), "of 200")):
            with pytest.raises(ShapeError, match=why):
                sequence.summarize(*ends, new)
        with pytest.raises(ShapeError, match="one each for k, v"):
            sequence.summarize(20, 60, {0: new[0], 1: new[1][:1]})
        with pytest.raises(ShapeError, match="tokens, k has 3"):
            sequence.summarize(20, 60, {0: new[0], 1: (new[1][0], new[1][1][:2])})
        check(sequence, data(LENGTH, 1))
        sequence.summarize(20, 60, new)
        for change in (
            lambda: sequence.truncate(59), lambda: sequence.evict(59, 70), lambda: sequence.evict(21, 60),
            lambda: sequence.summarize(21, 70, new), lambda: store.fork("a", "b", 21),
        ):  # fmt: skip
            with pytest.raises(ShapeError, match="summary"):
                change()
        assert store.sequences() == ["a"]
        store.fork("a", "before", 20)
        assert not store.sequence("before").summaries(0)
        fork = store.fork("a", "b", 60)
        sequence.summarize(10, 100, new)  # all of an earlier one
        assert [(own.first, own.end) for own in sequence.summaries(1)] == [(10, 100)]
        sequence.evict(0, 100)
        assert not sequence.summaries(1)
        store.compact()
        assert [(own.first, own.end) for own in fork.summaries(1)] == [(20, 60)]
        check(fork, put([tuple(x[:60] for x in own) for own in data(LENGTH, 1)], 20, data(3, 5)), [(23, 60)])
        store.drop("a")
        with pytest.raises(UnknownSequence):
            sequence.summarize(0, 10, new)


def test_a_layer_with_a_window_may_keep_its_own(tmp_path):
    parts, new = data(300, 1), data(5, 3)
    with make(tmp_path / "c", window=100) as store:
        sequence = store.sequence("a")
        append(sequence, parts)
        with pytest.raises(ShapeError, match="window of 100"):
            sequence.summarize(150, 250, dict(enumerate(new)))
        with pytest.raises(ShapeError, match="no rows of layer 0"):
            sequence.summarize(150, 250, {1: new[1]})
        sequence.summarize(150, 250, {0: new[0]})
        sequence.summarize(250, 256, dict(enumerate(data(2, 4))))
        wanted = put(put(parts, 150, new), 250, data(2, 4))
        store.sync()
        for reader in (store, kv.open(tmp_path / "c")):
            own = reader.sequence("a")
            assert own.evicted(0) == [(155, 250), (252, 256)]
            assert own.evicted(1) == [(252, 256)]
            assert np.array_equal(own.read(0)[0], np.delete(wanted[0][0], [*range(155, 250), *range(252, 256)], 0))
            kept = np.concatenate([parts[1][0][200:250], wanted[1][0][250:252], parts[1][0][256:]])
            assert np.array_equal(own.read(1)[0], kept)
        append(sequence, data(60, 9))
        assert sequence.summaries(1) == []
        assert len(sequence.summaries(0)) == 2
        reader.close()


@pytest.mark.parametrize("durability", ["sync", "step"])
def test_split_heads_codes_and_cleaning_with_a_reader(tmp_path, durability):
    """Heads in several blocks, beside coded rows; copied while a reader looks on, shared by a fork."""
    model, lot = kv.Model((kv.Layer.kv(4, 32),)), np.random.default_rng(1)
    path, options = tmp_path / "c", {"k": "int4/channel/g16", "v": "int4/token/g16", "residual": 0, "sinks": 0}
    q = query(1, 8, 32)
    with kv.open(path, "w", model=model, device=SMALL, capacity=64 * 4096, durability=durability, **options) as store:
        sequence = store.sequence("a")
        for _ in range(3):
            sequence.append(0, *(lot.standard_normal((70, 4, 32)).astype(np.float32) for _ in "kv"))
        new = tuple(lot.standard_normal((40, 4, 32)).astype(np.float32) for _ in "kv")
        before = sequence.read(0, dtype=np.float32)
        store.sync()
        early = kv.open(path)
        assert len(early.sequence("a")) == 210
        sequence.summarize(10, 180, {0: new}, visible_from=[180, 190] * 20)
        if durability == "sync":  # rows are there, and their DROP record waits for its unit to fill
            got = early.sequence("a").read(0, dtype=np.float32)
            assert all(np.array_equal(x, was) for x, was in zip(got, before, strict=True))
            assert early.sequence("a")._index._pending
        parts = [len(own.coded.parts) for extents in sequence._index.maps.values() for own in extents.summaries()]
        assert max(parts) > 1
        store.sync()
        assert early.sequence("a").evicted(0) == [(50, 180)]
        fork = store.fork("a", "f", 185)
        with kv.open(path) as reader:
            follower = reader.sequence("a")
            for n in range(3):
                readers = sequence, follower, fork, early.sequence("a")
                for own, length, position in itertools.product(readers, (210, 185), (None, 185)):
                    if len(own) != length:
                        continue
                    shown = slice(None, None, 2) if position or length < 190 else slice(None)
                    got = own.read(0, dtype=np.float32, position=position)
                    end = min(length, 186 if position else length)
                    for x, old, given in zip(got, before, new, strict=True):
                        rounded = given[shown].astype(model.numpy_dtype).astype(np.float32)
                        assert np.array_equal(x, np.concatenate([old[:10], rounded, old[180:end]]))
                    wanted = reference(q, *got)
                    assert np.abs(own.attend(0, q, position=position) - wanted).max() <= 2e-3 * np.abs(wanted).max()
                if n == 0:
                    append_noise(store, lot)
                    store.compact()
                elif n == 1:
                    store.drop("noise")
                    store.compact()
                store.sync()
        early.close()
        assert sum(store.device.erase_counts.values()) > 0
    assert verify_log(path).verdict == "clean"


def append_noise(store, lot):
    for _ in range(2):
        store.sequence("noise").append(0, *(lot.standard_normal((64, 4, 32)).astype(np.float32) for _ in "kv"))


def keep_summarising(path, write):
    """A writer that grows a summary of the first tokens again and again, and cleans."""
    with kv.open(path, "a") as store:
        sequence = store.sequence("a")
        for n in range(40):
            sequence.summarize(0, 8 + 4 * n, dict(enumerate(data(1 + n % 7, n))), visible_from=LENGTH + n % 2)
            store.sync()
            store.compact()
    os.write(write, b"done")


def test_a_reader_in_another_process_meets_a_whole_summary_or_another(tmp_path):
    """Whatever state a read meets: the rows are of one summary, and those are hidden that are for later queries."""
    path, parts, met = tmp_path / "c", data(LENGTH, 1), set()
    with make(path) as store:
        append(store.sequence("a"), parts)
    states = [parts[1], *([summed(parts, n, stream) for stream in range(2)] for n in range(40))]
    states = [tuple(x.tobytes() for x in state) for state in states]
    with kv.open(path) as reader, Child(keep_summarising, path) as writer:
        while writer.poll() is None:
            met.add(states.index(tuple(x.tobytes() for x in reader.sequence("a").read(1, position=LENGTH))))
        assert writer.wait() == 0
        assert len(met) > 1
        last = reader.sequence("a").read(1, position=LENGTH + 1)[0]
        assert np.array_equal(last, np.concatenate([data(1 + 39 % 7, 39)[1][0], parts[1][0][8 + 4 * 39 :]]))


def summed(parts, n, stream):
    """What a query behind the tokens sees of one stream of layer 1 after summary number n."""
    new = [] if n % 2 else [data(1 + n % 7, n)[1][stream]]
    return np.concatenate([*new, parts[1][stream][8 + 4 * n :]])


def test_records_behind_a_summary_that_waits_for_its_unit_are_read_in_place(tmp_path):
    with make(tmp_path / "c", device="page=2048,unit=2048,block=16384") as store:
        sequence = store.sequence("a")
        append(sequence, data(LENGTH, 1))
        store.sync()
        sequence.summarize(10, 20, dict(enumerate(data(2, 3))))
        got = sequence.attend(0, query())
        for own in sequence._places.values():
            assert not own._waiting
            assert [extent.first for extent, _ in own._copied] == [10]
        store.sync()
        assert np.array_equal(sequence.attend(0, query()), got)


def latents(path, lot):
    """A log of one layer with latents."""
    with kv.open(path, "w", model=kv.Model((kv.Layer.mla(32, 16),)), k="raw", residual=0, sinks=0) as store:
        store.sequence("a").append(0, *(lot.standard_normal((90, 1, n)).astype(np.float32) for n in (32, 16)))


@pytest.mark.parametrize("name", ["predicted", "dictionary-max", "latent", "head-dim-20-12", "int8"])
def test_beside_codes_of_all_sorts(name, tmp_path):
    """Tokens from the middle of one record to that of another: those beside them read as before."""
    path, lot = tmp_path / "c", np.random.default_rng(1)
    if name == "latent":
        latents(path, lot)
    else:
        path.write_bytes((GOLDEN / f"{name}.kvlog").read_bytes())
    with kv.open(path, "a") as store:
        own, dtype = store.sequence(store.sequences()[0]), store.model.numpy_dtype
        end = min(50, *(open_.first for open_ in own._open.values()))
        layers = {n: layer.streams for n, layer in enumerate(store.model.layers) if layer.streams}
        before = {n: own.read(n, dtype=np.float32) for n in layers}
        new = {n: tuple(lot.standard_normal((3, s.heads, s.dim)).astype(dtype) for s in of) for n, of in layers.items()}
        own.summarize(5, end, new)
        store.sync()
        with kv.open(path) as reader:
            for n, sequence in itertools.product(layers, (own, reader.sequence(own.name))):
                got = sequence.read(n, dtype=np.float32)
                for x, old, given in zip(got, before[n], new[n], strict=True):
                    assert np.array_equal(x, np.concatenate([old[:5], given.astype(np.float32), old[end:]]))
                k, v = (np.concatenate(got, axis=2), got[0]) if name == "latent" else got
                q = query(n, 2 * k.shape[1], k.shape[2])
                wanted = reference(q, k, v, 0.2)
                assert np.abs(sequence.attend(n, q, scale=0.2) - wanted).max() <= 1e-3 * np.abs(wanted).max()


def test_info_tells_of_summaries(whole):
    path, _ = whole
    found = CliRunner().invoke(app, ["info", str(path)])
    assert "Summaries" in found.stdout
    assert ["a", "1", str(END - FIRST)] in [line.split() for line in found.stdout.splitlines()]
    (told,) = json.loads(CliRunner().invoke(app, ["info", str(path), "--json"]).stdout)["sequences"]
    assert (told["summaries"], told["summarized_tokens"]) == (1, END - FIRST)


def test_a_summary_that_a_crash_cut_short_is_none_and_never_becomes_one(tmp_path):
    """Power fails behind every program while tokens are summarised, and then others are, from the same token on."""
    path, parts = tmp_path / "c", data(130, 1)
    old, new, later = data(60, 5), data(60, 6), data(20, 8)
    with make(path) as store:
        append(store.sequence("a"), parts)
        store.sequence("a").summarize(5, 70, dict(enumerate(old)))
    before, recorder = path.read_bytes(), Recorder()
    with recorder.recording():
        store = kv.open(path, "a")
        store.sequence("a").summarize(5, 128, dict(enumerate(new)))
        store.sync()
        store.abandon()
    states = [(put(parts, 5, old), [(65, 70)]), (put(parts, 5, new), [(65, 128)])]
    found, orphans = set(), 0
    for count in range(len(recorder.asked) + 1):
        for lot in [random.Random(count) if count % 2 else None]:
            path.write_bytes(after_loss(before, recorder.asked, count, 64, lot))
            sidecar_path(path).unlink(missing_ok=True)
            with kv.open(path, "a") as store:
                own = store.sequence("a")
                state = int(own.evicted(0) == [(65, 128)])
                found.add(state)
                check(own, *states[state])
                orphans += len(own._index._pending)
                own.summarize(5, 128, {0: later[0], 1: data(30, 9)[1]})
                store.compact()
            with kv.open(path) as store:
                for layer, given in ((0, later[0]), (1, data(30, 9)[1])):
                    for got, was, x in zip(store.sequence("a").read(layer), parts[layer], given, strict=True):
                        assert np.array_equal(got, np.concatenate([was[:5], x, was[128:]]))
    assert found == {0, 1}
    assert orphans > 0


def records_in(path):
    """(byte in the file, header) of all records, in log order."""
    device = Device.open(path)
    found = [(device.file_offset(one.place.block, one.place.offset), one.header) for one in Log(device).poll()]
    device.close()
    return found


def test_a_frame_of_a_summary_that_is_lost_is_told_and_repaired(tmp_path):
    """Without its DROP record there is none."""
    path, parts = tmp_path / "c", data(LENGTH, 1)
    with make(path) as store:
        append(store.sequence("a"), parts)
        store.sync()
        store.sequence("a").summarize(FIRST, END, dict(enumerate(data(COUNT, 7))))
        store.sync()
        append(store.sequence("a"), data(70, 2))
    at = next(at for at, h in records_in(path) if int(h["kind"]) == Kind.DROP) + 20
    broken = copy_of(path, tmp_path, lambda raw: raw.__setitem__(at, raw[at] ^ 1))
    assert verify_log(broken).verdict == "damaged"
    kv.repair(broken, tmp_path / "new")
    assert verify_log(tmp_path / "new").verdict == "clean"
    for log in (broken, tmp_path / "new"):
        with kv.open(log, recovery="skip-damaged") as store:
            for got, was in zip(store.sequence("a").read(0), parts[0], strict=True):
                assert np.array_equal(got[:LENGTH], was)


@pytest.mark.parametrize("stream", [kv.StreamId.K, kv.StreamId.V])
def test_half_a_summary_is_none(stream, tmp_path):
    """Rows of one stream are lost: never are others read in their place, and what is repaired has none of them."""
    path, parts, new = tmp_path / "c", data(LENGTH, 1), data(COUNT, 7)
    forged(path, lambda kind, h, _: kind != Kind.GROUP or (int(h["first_layer"]), int(h["stream"])) != (1, stream))
    with kv.open(path) as store:
        assert len(store.sequence("a")) == FIRST
    with kv.open(path, recovery="skip-damaged") as store:
        own = store.sequence("a")
        assert np.array_equal(own.read(0)[0], np.delete(put(parts, FIRST, new)[0][0], range(FIRST + COUNT, END), 0))
        for use in (own.read, lambda layer: own.attend(layer, query())):
            with pytest.raises(CorruptRecord, match="lost"):
                use(1)
        assert np.array_equal(own.read(1, slice(END, None))[1], parts[1][1][END:])
    assert verify_log(path).verdict == "damaged"
    report = kv.repair(path, tmp_path / "new")
    assert [*report.sequences[0].lost_ranges] == [(FIRST, END)]
    with kv.open(tmp_path / "new", "a") as store:
        check(store.sequence("a"), parts, [(FIRST, END)])
        append(store.sequence("a"), data(10, 3))
    assert verify_log(tmp_path / "new").verdict == "clean"


def forged(path, change):
    """A log with a summary whose records are changed: change(kind, header, body), body an array, in log order."""
    with make(path) as store:
        append(store.sequence("a"), data(LENGTH, 1))
        sequence = store.sequence("a")
        real = store.log_records

        def log(records, *check):
            own = []
            for record in records:
                header, body = record.header.copy(), np.frombuffer(bytes(record.body), np.uint8).copy()
                kept = change(int(header["kind"]), header, body)
                own += [] if kept is False else [Record(header, body)]
            real(own, *check)

        store.log_records = log
        sequence.summarize(FIRST, END, dict(enumerate(data(COUNT, 7))))


def set_position(stream, row, field, value):
    def change(kind, header, body):
        if kind == Kind.GROUP and int(header["stream"]) == stream and int(header["first_layer"]) == 1:
            at = int(header["error_bytes"])
            body[at : at + COUNT * POSITION.itemsize].view(POSITION)[field][row] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_position(kv.StreamId.K, 2, "position", FIRST - 1),
        set_position(kv.StreamId.V, 2, "position", END),
        set_position(kv.StreamId.K, 3, "visible_from", FIRST),
        set_position(kv.StreamId.V, 3, "visible_from", (1 << 48) + 1),
        set_position(kv.StreamId.V, 3, "visible_from", END + 1),
    ],
    ids=["before", "behind", "seen too early", "never seen", "streams that differ"],
)
def test_positions_that_no_writer_writes(tmp_path, change):
    """The log opens; who asks for rows of that layer is told."""
    forged(tmp_path / "c", change)
    with kv.open(tmp_path / "c") as store:
        own = store.sequence("a")
        own.read(0)
        for use in (own.summaries, own.read, lambda layer: own.attend(layer, query())):
            with pytest.raises(CorruptRecord, match="summary"):
                use(1)
    assert verify_log(tmp_path / "c").verdict == "damaged"


def test_a_full_device_refuses_a_summary_as_a_whole(tmp_path):
    store, parts = make(tmp_path / "c", capacity=14 * 4096), data(128, 0)
    sequence = store.sequence("a")
    append(sequence, parts)
    with contextlib.suppress(NoSpace):
        for n in itertools.count(1):
            append(sequence, data(64, n))
            parts = join(parts, data(64, n))
    assert store.device.erased_blocks < 3
    with pytest.raises(NoSpace):
        sequence.summarize(0, 128, dict(enumerate(data(70, 5))))
    check(sequence, parts)
    assert not sequence.summaries(0)
    store.abandon()


def test_tokens_behind_a_window_do_not_come_back_when_the_rows_that_stood_for_them_are_cleaned(tmp_path):
    """What a summary took is gone in all layers, whichever of their blocks is cleaned first."""
    parts = data(200, 1)
    with make(tmp_path / "c", window=64, capacity=64 * 4096) as store:
        sequence = store.sequence("a")
        append(sequence, parts)
        sequence.summarize(140, 160, dict(enumerate(data(10, 50))))
        append(sequence, data(100, 7))
        store.sync()
        maps = store.index.sequences[1].maps
        summaries = [one for (layer, _), own in maps.items() if layer == 1 for one in own.summaries()]
        assert store._cleaner.empty({part.place.block for one in summaries for part in one.coded.parts})
    with kv.open(tmp_path / "c", "a") as store:
        sequence = store.sequence("a")
        with contextlib.suppress(ShapeError):  # the window has gone on
            sequence.truncate(200)
        own = sequence.read(1)[0].view(np.uint16)
        gone = parts[1][0][140:160].view(np.uint16)
        assert not any(np.array_equal(one, row) for one in own for row in gone)
        if len(sequence) == 200:
            assert sequence.evicted(1) == sequence.evicted(0)
