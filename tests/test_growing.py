"""Dictionaries that grow: samples of what is coded badly, new atoms, sets in a log that name their parent."""

import dataclasses
import itertools
import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.cli.app import run
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.rows import row_codec_for
from kvcodec.dictionary.coder import Coder
from kvcodec.dictionary.growing import Sample, _moments_of_new, _round_atoms, learn_atoms, relative_errors
from kvcodec.errors import MissingDictionary, NoSpace, SpecError
from kvcodec.flash.device import Device
from kvcodec.layout import DtypeId, Kind, StreamId
from kvcodec.log.frame import Record
from kvcodec.store.headers import read_spec
from kvcodec.store.reading import read_extent
from kvcodec.store.set_records import dictionary_records
from tools.golden.grown import chain, grow

BF16 = ml_dtypes.bfloat16
DIM, ATOMS, HEADS = 16, 40, 2
MODEL = kv.Model.uniform(2, HEADS, DIM)
SPECS = {"k": "dict/s3/c8/ef", "v": "dict/s2/low1"}
SMALL = "page=512,unit=64,block=8192"
STREAMS = (StreamId.K, StreamId.V)


def make_dictionary(layer=0, stream=StreamId.K, mean=0.0, **options):
    atoms = np.random.default_rng([layer, stream]).standard_normal((ATOMS, DIM))
    return Dictionary(quantize_atoms(atoms), ((layer, stream),), np.full(DIM, mean, np.float32), **options)


def make_set():
    return DictionarySet(tuple(make_dictionary(n, s, 0.1) for n in range(2) for s in STREAMS))


def drifted(count, seed, hidden=12, dim=DIM):
    """Vectors that are two of a few directions of which no dictionary knows."""
    rng, unknown = np.random.default_rng(seed), np.random.default_rng(99).standard_normal((hidden, dim))
    weights = rng.standard_normal((count, hidden)) * (
        rng.permuted(np.arange(hidden) < 2 + np.zeros((count, 1)), axis=1)
    )
    return (weights @ unknown).astype(np.float32)


ROWS = {(n, s): drifted(2000 * HEADS, [n, s]).reshape(2000, HEADS, DIM).astype(BF16) for n in range(2) for s in STREAMS}


def open_log(path, mode="w", **options):
    if mode == "w":
        options = {"model": MODEL, **SPECS, "dictionary": make_set(), "sinks": 3, "residual": 0, **options}
    return kv.open(path, mode, **options)


def append(store, first, end, name="a"):
    store.sequence(name).append_layers({n: [ROWS[n, s][first:end] for s in STREAMS] for n in range(2)})


def check_log(path, tokens, name="a", dictionary=None):
    """Every row is what its own record's set makes of the original one. Returns the sets by stream, in token order."""
    used = {}
    with kv.open(path, dictionary=dictionary) as store:
        sequence, index = store.sequence(name), store.index
        assert len(sequence) == tokens
        for (layer, stream), extents in index.sequences[index.by_name[name]].maps.items():
            codecs, sets = sequence._codecs[layer, stream], []
            for extent in extents.covering(0, tokens):
                coded, want = extent.coded, ROWS[layer, stream][extent.first : extent.end].view(np.uint16)
                got = read_extent(store.log, extent, codecs, as_float32=False)
                got = got[extent.first - coded.first : extent.end - coded.first]
                spec = coded.step or read_spec(store.log.load(coded.parts[0].place)[0])
                if spec.sparse is not None:
                    own = index.dictionaries.find(spec.sparse.basis).find(layer, stream)
                    codec = row_codec_for(spec, stream, own)
                    want = codec.decode(codec.encode(want, DtypeId.BFLOAT16), DIM, DtypeId.BFLOAT16)
                    sets += [spec.sparse.basis] if sets[-1:] != [spec.sparse.basis] else []
                assert np.array_equal(got, want)
            assert len(set(sets)) == len(sets)  # no set comes back once another took over
            used[layer, stream] = sets
        parents = {growth.basis: growth.parent for growth in index.dictionaries.growths}
    for sets in used.values():
        for older, newer in itertools.pairwise(sets):
            while newer != older:
                newer = parents[newer]
    return used


# -- samples -------------------------------------------------------------------------------------------------------


def naive_sample(rows, errors, capacity, seed, bound):
    """Algorithm R, vector by vector."""
    lot, kept, bad = np.random.default_rng(list(seed)), [], 0
    for row, error in zip(rows, errors, strict=True):
        if error > bound:
            bad += 1
            if len(kept) < capacity:
                kept.append(row)
            elif (place := int(lot.integers(bad))) < capacity:
                kept[place] = row
    return kept, bad


@given(st.integers(0, 1 << 20), st.integers(1, 20), st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=30)
def test_a_sample_does_not_hang_on_how_vectors_come(seed, capacity, parts):
    rng = np.random.default_rng(seed)
    rows, errors = rng.standard_normal((sum(parts), 3)).astype(np.float32), rng.uniform(0, 1, sum(parts))
    sample, at = Sample(capacity, 3, (seed,), 0.4), 0
    for count in parts:
        sample.add(rows[at : at + count], errors[at : at + count])
        at += count
    kept, bad = naive_sample(rows, errors, capacity, (seed,), 0.4)
    assert (sample.bad, sample.seen, sample.count) == (bad, len(rows), len(kept))
    assert sample.rows[: sample.count].tolist() == [row.tolist() for row in kept]


def test_every_bad_vector_is_as_likely_to_be_kept():
    hits = np.zeros(40)
    for seed in range(600):
        sample = Sample(10, 1, (seed,), None)
        sample.add(np.arange(80, dtype=np.float32)[:, None], np.tile([0.1, 0.9], 40))
        hits[(sample.rows[:, 0] // 2).astype(int)] += 1
    assert sample.bad == 40
    assert abs(hits / 600 - 0.25).max() < 0.09  # 5 standard deviations


# -- new atoms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [False, True])
def test_what_vectors_lack_is_learnt(metric):
    scale = np.diag(np.linspace(0.3, 3, DIM)).astype(np.float32) if metric else None
    own = make_dictionary(mean=0.2, metric=scale)
    hidden = np.random.default_rng(99).standard_normal((12, DIM))
    rows = drifted(400, 1) + np.float32(0.2)
    learnt = learn_atoms(own, rows, 12, 2)
    assert learnt.after < 0.6 * learnt.before
    unit = learnt.atoms / np.linalg.norm(learnt.atoms.astype(float), axis=1, keepdims=True)
    near = np.abs(unit @ (hidden / np.linalg.norm(hidden, axis=1, keepdims=True)).T).max(axis=0)
    assert (near > 0.97).sum() >= 6
    child, new = own.grown(learnt.atoms), drifted(500, 2) + np.float32(0.2)
    assert np.array_equal(child.atoms[:ATOMS], own.atoms)
    assert child.metric is own.metric
    before, after = (np.sqrt(np.square(relative_errors(new, d, 2)).mean()) for d in (own, child))
    assert after < 0.6 * before


def test_what_vectors_have_is_not_learnt_again():
    own = make_dictionary()
    rng = np.random.default_rng(3)
    taken = rng.standard_normal((400, ATOMS)) * rng.permuted(np.arange(ATOMS) < 2 + np.zeros((400, 1)), axis=1)
    rows = (taken @ own.atoms + 10 * rng.standard_normal((400, DIM))).astype(np.float32)
    assert learn_atoms(own, rows, 8, 3) is None
    assert learn_atoms(own, np.zeros((40, DIM), np.float32), 8, 3) is None


def test_errors_are_those_of_the_codec():
    own = make_dictionary(mean=0.3)
    rows = drifted(50, 4)
    rows[7] = 0
    codec = row_codec_for(kv.CodecSpec.parse("dict/s3"), StreamId.K, own)
    back = codec.decode(codec.encode(rows.astype(BF16).view(np.uint16)[:, None], DtypeId.BFLOAT16), DIM,
                        DtypeId.BFLOAT16, as_float32=True)[:, 0]  # fmt: skip
    wide = rows.astype(BF16).astype(np.float32)
    errors = relative_errors(wide, own, 3)
    assert errors[7] == 0
    wanted = np.linalg.norm(back - wide, axis=1) / np.maximum(np.linalg.norm(wide, axis=1), 1e-30)
    assert np.allclose(np.delete(errors, 7), np.delete(wanted, 7), rtol=1e-5)


def test_moments_are_of_what_the_old_atoms_leave():
    rng = np.random.default_rng(5)
    atoms = rng.standard_normal((30, DIM)).astype(np.float32)
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    rows = drifted(60, 6)
    codes = Coder(atoms, 4).code(rows)
    dense = np.zeros((60, 30))
    for place in range(4):
        dense[np.arange(60), codes.indices[:, place]] += codes.coefficients[:, place]
    moments = _moments_of_new(rows, codes, atoms, 20)
    new, left = dense[:, 20:], rows - dense[:, :20] @ atoms[:20]
    assert np.allclose(moments.a, new.T @ new, atol=1e-4)
    assert np.allclose(moments.b, new.T @ left, atol=1e-4)
    assert np.array_equal(moments.uses, (new != 0).sum(axis=0))


def test_new_atoms_are_as_long_as_the_others():
    atoms = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 3e-6, 4e-6]], np.float32)
    rounded = _round_atoms(atoms, 100.0)
    assert np.allclose(np.linalg.norm(rounded.astype(float), axis=1), 100, atol=2)
    assert np.abs(_round_atoms(atoms, 200.0)).max() == 127  # as long as int8 lets one be


# -- a session -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("residual", [0, 20])
def test_a_session_grows_its_dictionaries_and_codes_better(tmp_path, residual):
    path = tmp_path / "a.kvlog"
    with open_log(path, residual=residual, grow=8, growths=3) as store, kv.open(path) as reader:
        for first in range(0, 600, 40):
            append(store, first, first + 40)
            if first % 120 == 0:  # a reader follows, whatever set comes
                store.sync()
                reader.sequence("a").read(1)
        live = [store.sequence("a").read(n) for n in range(2)]
    used = check_log(path, 600)
    assert all(len(sets) >= 2 for sets in used.values())
    assert verify_log(path).verdict == "clean"
    with kv.open(path) as store:
        sequence, stats = store.sequence("a"), store.stats().as_dict()
        for n in range(2):
            for was, got, stream in zip(live[n], sequence.read(n), STREAMS, strict=True):
                assert np.array_equal(was.view(np.uint16), got.view(np.uint16))
                wide, back = (x.astype(np.float32).reshape(600, -1) for x in (ROWS[n, stream][:600], got))
                errors = np.linalg.norm(wide - back, axis=1) / np.linalg.norm(wide, axis=1)
                assert np.mean(errors[450:550]) < 0.85 * np.mean(errors[10:80])
        grown = store.index.dictionaries.growths
        sizes = [own.size for own in store.index.dictionaries.find(grown[-1].basis).dictionaries]
        assert ATOMS + 8 <= max(sizes) <= ATOMS + 8 * len(grown)
        assert (stats["growths"], stats["grown_bytes"]) == (len(grown), sum(growth.nbytes for growth in grown))
        assert len(grown) <= 3
        assert len(stats["dictionaries"]) == len(grown) + 1
        new = DIM * sum(size - ATOMS for size in sizes)
        assert new < stats["grown_bytes"] <= new + 128 * len(grown) * 4
        check_attention(sequence)


def check_attention(sequence):
    """Over records of several sets at once."""
    q = np.random.default_rng(7).standard_normal((2 * HEADS, DIM)).astype(np.float32)
    k, v = (x.astype(np.float64) for x in sequence.read(0))
    for head, got in enumerate(sequence.attend(0, q)):
        logits = k[:, head // 2] @ q[head] / np.sqrt(DIM)
        weights = np.exp(logits - logits.max())
        want = weights @ v[:, head // 2] / weights.sum()
        assert np.abs(got - want).max() < 0.01


def test_threads_change_nothing(tmp_path):
    held = []
    for threads in (1, 4):
        path = tmp_path / f"{threads}.kvlog"
        with open_log(path, grow=6, threads=threads, durability="step") as store:
            for first in range(0, 336, 48):
                append(store, first, first + 48)
        with kv.open(path) as store:
            held.append(
                (store.stats().dictionaries, [x.tobytes() for n in range(2) for x in store.sequence("a").read(n)])
            )
    assert held[0] == held[1]
    assert len(held[0][0]) > 1


@given(
    st.integers(0, 12), st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 70), st.sampled_from(["", "crash", "close", "other"])), min_size=6, max_size=10),
)  # fmt: skip
@settings(max_examples=6)
def test_a_token_group_is_over_one_set_whatever_happens(tmp_path_factory, residual, atoms, steps):
    """Rows are coded once, over the set of their group, through growths, crashes and new writers."""
    path, there, other = tmp_path_factory.mktemp("g") / "a.kvlog", 0, 0
    store = open_log(path, residual=residual, grow=atoms, durability="step")
    for count, then in steps:
        append(store, there, there + count)
        there += count
        if then == "other":  # another sequence over the same sets
            append(store, other, other + count, "b")
            other += count
        elif then:
            store.abandon() if then == "crash" else store.close()
            store = open_log(path, "a", grow=atoms, durability="step")
    store.abandon()
    check_log(path, there)
    if other:
        check_log(path, other, "b")


def test_a_writer_goes_on_over_the_newest_set(tmp_path):
    path = tmp_path / "a.kvlog"
    with open_log(path) as store:
        append(store, 0, 50)
        basis = store.index.default.at(0, StreamId.K).spec.sparse.basis
    sets = [make_set()]
    for atoms in (5, 7):
        sets.append(grow(sets[-1], atoms, [0, 3], seed=atoms))
    aside = grow(sets[0], 4, [1])
    with open_log(path, "a") as store:
        for own, parent in ((aside, sets[0]), (sets[1], sets[0]), (sets[2], sets[1])):
            store.log_records(list(dictionary_records(own, 100, parent)))
        append(store, 50, 60)  # taken up after that
        assert store.index.dictionaries.newest(basis) == sets[2].hash
        assert store.index.dictionaries.depth(sets[2].hash) == 2
        append(store, 60, 300)
        append(store, 0, 100, "b")
    used = check_log(path, 300)
    assert used[0, StreamId.K] == used[1, StreamId.V] == [sets[0].hash, sets[2].hash]
    with kv.open(path) as store:  # attention takes a dictionary that did not grow as the one that it was
        first, last = (store.index.dictionaries.find(own.hash).dictionaries for own in (sets[0], sets[2]))
        assert [one is other for one, other in zip(first, last, strict=True)] == [False, True, True, False]
    assert check_log(path, 100, "b")[0, StreamId.K] == [sets[2].hash]


def test_what_is_left_of_a_growth_is_written_again(tmp_path):
    path, parent = tmp_path / "a.kvlog", make_set()
    child = grow(parent, 9, [0, 2])
    records = list(dictionary_records(child, 132, parent))
    assert len(records) == 6
    with open_log(path) as store:
        append(store, 0, 80)
    for count in (1, 3, 5):
        with open_log(path, "a") as store:
            store.log_records(records[:count])
        with kv.open(path) as store:
            assert store.stats().growths == 0
            assert store.index.dictionaries.newest(parent.hash) == parent.hash
            with pytest.raises(MissingDictionary, match="grown"):
                store.index.dictionaries.find(child.hash)
        assert verify_log(path).verdict == "clean"
    with open_log(path, "a") as store:
        store.log_records(records)
        append(store, 80, 200)
    assert check_log(path, 200)[0, StreamId.V] == [parent.hash, child.hash]


def test_power_is_lost_at_every_program(tmp_path, monkeypatch):
    """Before each program of the device, and in the middle of it: what was acknowledged is there, and no damage."""
    path, states, acknowledged = tmp_path / "a.kvlog", [], 0
    program = Device.program

    def lose(device, block, unit, data, first_frames):
        whole = path.read_bytes()
        at, half = device.file_offset(block, unit * device.geometry.unit_bytes), bytes(data)[: len(data) // 2]
        torn = whole[:at].ljust(at, b"\0") + half + whole[at + len(half) :]
        states.append((acknowledged, whole, torn))
        program(device, block, unit, data, first_frames)

    with open_log(path, grow=8, growths=2, durability="step", device=SMALL, sinks=0) as store:
        for first in range(0, 60, 30):
            append(store, first, first + 30)
        acknowledged = 60
        monkeypatch.setattr(Device, "program", lose)
        for first in range(60, 150, 15):
            append(store, first, first + 15)
            acknowledged = first + 15
        monkeypatch.undo()
        assert store.stats().growths
        rows = [x.tobytes() for n in range(2) for x in store.sequence("a").read(n)]
    crashed, growths = tmp_path / "b.kvlog", set()
    for tokens, *images in states:
        for image in images:
            crashed.write_bytes(image)
            assert image is images[0] or verify_log(crashed).verdict in ("clean", "torn tail")
            with kv.open(crashed) as store:
                sequence = store.sequence("a")
                assert len(sequence) >= tokens
                got = [x.tobytes() for n in range(2) for x in sequence.read(n)]
                assert all(whole.startswith(part) for whole, part in zip(rows, got, strict=True))
                growths.add(store.stats().growths)
    assert {0, 1} <= growths


def test_no_room_for_new_atoms_is_no_failure(tmp_path, monkeypatch):
    path = tmp_path / "a.kvlog"
    with open_log(path, grow=8) as store:
        log = store.log_records

        def refuse(records: list[Record]):
            if any(int(record.header["kind"]) == Kind.DICTIONARY for record in records):
                raise NoSpace(28, "full")
            log(records)

        monkeypatch.setattr(store, "log_records", refuse)
        for first in range(0, 400, 40):
            append(store, first, first + 40)
        assert store.stats().growths == 0
    assert len(check_log(path, 400)[0, StreamId.K]) == 1


def test_a_bound_on_errors_is_kept_over_all_sets(tmp_path):
    path = tmp_path / "a.kvlog"
    with open_log(path, k="dict/s6/max0.4", v="dict/s6/ef/e0.3", grow=8, growths=2) as store:
        for first in range(0, 600, 50):
            append(store, first, first + 50)
        assert store.stats().growths
        got, vectors = store.sequence("a").read(0)[0], store.stats().sequences[0].vectors
    wide, back = (x.astype(np.float64) for x in (ROWS[0, StreamId.K][:600], got))
    assert (np.linalg.norm(wide - back, axis=2) <= 0.4 * np.linalg.norm(wide, axis=2)).all()
    with open_log(tmp_path / "b.kvlog", k="dict/s6/max0.4", v="dict/s6/ef/e0.3") as store:
        append(store, 0, 600)
        before = store.stats().sequences[0].vectors
    assert vectors.int4 + vectors.raw < before.int4 + before.raw


def test_a_log_without_its_first_set_names_it(tmp_path):
    path, own = tmp_path / "a.kvlog", make_set()
    with open_log(path, embed=False, grow=8, growths=2) as store:
        for first in range(0, 400, 40):
            append(store, first, first + 40)
    with kv.open(path) as store:
        assert store.stats().dictionaries == ()
        grown = store.stats().growths
        assert grown
        with pytest.raises(MissingDictionary, match=own.hash.hex()) as error:
            store.sequence("a").read(0, slice(350, 360))  # over a set that the log has all records of
        assert error.value.basis == own.hash
    assert own.hash.hex() in verify_log(path).error
    assert verify_log(path, dictionary=own).verdict == "clean"
    check_log(path, 400, dictionary=own)
    with open_log(path, "a", dictionary=own) as store:  # now the log takes it up
        append(store, 400, 420)
    with kv.open(path) as store:
        assert len(store.stats().dictionaries) == grown + 1
    assert len(check_log(path, 420)[0, StreamId.K]) > 1


def test_rows_that_wait_need_no_dictionary_yet(tmp_path):
    """A sequence over a set that nobody has can still be appended to as far as its window goes."""
    path, other = tmp_path / "a.kvlog", grow(make_set(), 3, [0])
    with open_log(path, residual=50, dictionary=other, embed=False) as store:
        append(store, 0, 10)
    with open_log(path, "a", dictionary=make_set(), **SPECS, residual=0, grow=4) as store:
        append(store, 10, 30)
        append(store, 0, 300, "b")
        append(store, 300, 400, "b")
        assert store.stats().growths
        with pytest.raises(MissingDictionary):
            append(store, 30, 200)
        assert len(store.sequence("a")) == 30
    check_log(path, 30)
    check_log(path, 400, "b")


def test_a_set_may_be_in_a_log_whole_and_grown(tmp_path):
    path, parent = tmp_path / "a.kvlog", make_set()
    child = grow(parent, 6, [1])
    with open_log(path, embed=False) as store:
        store.log_records(list(dictionary_records(child, 4096, parent)))
    with open_log(path, "a", dictionary=child, **SPECS) as store:  # its parent is not there
        append(store, 0, 100)
    with kv.open(path) as store:
        assert store.index.dictionaries.find(child.hash).hash == child.hash
    assert check_log(path, 100)[0, StreamId.K] == [child.hash]


def test_a_set_grows_64_times_and_no_more(tmp_path):
    records, last = chain(64)
    path = tmp_path / "a.kvlog"
    model = kv.Model.uniform(1, HEADS, DIM)
    from tools.golden.dictionaries import forged_set

    with kv.open(path, "w", model=model, k="dict/s2", v="dict/s2", dictionary=forged_set(), residual=0, sinks=0) as s:
        s.log_records(records)
    with kv.open(path, "a", grow=2) as store:
        for first in range(0, 300, 60):
            store.sequence("a").append(0, *(ROWS[0, s][first : first + 60] for s in STREAMS))
        assert store.index.dictionaries.depth(last.hash) == 64
        assert store.stats().growths == 64
    with kv.open(path) as store:
        assert store.index.dictionaries.newest(forged_set().hash) == last.hash
        assert len(store.sequence("a").read(0)[1]) == 300


REFUSED = [
    ({"grow": 8, "k": "raw", "v": "int4/token/g16", "dictionary": None}, "no stream"),
    ({"grow": 65500}, "65536"),
    ({"grow": -1}, "grow is -1"),
    ({"grow": 8, "growths": 65}, "growths 65"),
    ({"grow": 8, "growths": 0}, "growths 0"),
]


@pytest.mark.parametrize(("options", "why"), REFUSED)
def test_refused_growth(tmp_path, options, why):
    with pytest.raises(SpecError, match=why):
        open_log(tmp_path / "a.kvlog", **options)
    assert not list(tmp_path.iterdir())


def test_a_reader_does_not_grow(tmp_path):
    open_log(tmp_path / "a.kvlog").close()
    with pytest.raises(SpecError, match="writer"):
        kv.open(tmp_path / "a.kvlog", grow=3)


def test_encode_grows(tmp_path, capsys):
    """From the command line; not where it could be interrupted and lose what it had seen."""
    from kvcodec.dictionary.artefact import Artefact, write_artefact

    write_artefact(tmp_path / "own.kvdict", Artefact(make_set(), {}))
    np.savez(
        tmp_path / "a.npz",
        **{f"{s.name.lower()}.{n}": rows[:600].astype(np.float32) for (n, s), rows in ROWS.items()},
    )
    log, command = tmp_path / "a.kvlog", ["encode", str(tmp_path / "a.npz")]
    options = ["--k", "dict/s3", "--v", "dict/s3", "--dictionary", str(tmp_path / "own.kvdict"), "--grow", "8"]
    assert run([*command, str(log), *options, "--growths", "2"]) == 0
    assert "dictionaries grew" in capsys.readouterr().out
    assert run(["info", str(log)]) == 0
    assert "grown in" in capsys.readouterr().out
    assert run(["info", str(log), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert 1 <= told["growths"] <= 2
    assert 0 < told["grown_bytes"] < told["dictionary_bytes"]
    again = tmp_path / "b.kvlog"
    assert run([*command, str(again), *options, "--growths", "2", "--threads", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["dictionaries"] == told["dictionaries"]
    assert run([*command, str(tmp_path / "c.kvlog"), *options, "--resume"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert run(["encode", "--append", "--resume", str(tmp_path / "a.npz"), str(log)]) == 0  # it is of this dump


def test_a_dictionary_keeps_what_it_knew_when_it_grows():
    errors = np.array([0.5, 0.4], np.float32)
    own = make_dictionary(metric=np.eye(DIM, dtype=np.float32), errors=errors)
    grown = own.grown(np.ones((3, DIM), np.int8))
    assert (grown.size, grown.uses) == (ATOMS + 3, own.uses)
    assert np.array_equal(grown.errors, errors)
    own.gram.sum()
    own.release()
    assert "gram" not in own.__dict__
    assert np.array_equal(own.gram, dataclasses.replace(own).gram)
