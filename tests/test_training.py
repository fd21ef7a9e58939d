"""Training dictionaries: the learning, the streams it learns from, the command, and the 18-byte baseline."""

import json
import threading
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import kvcodec as kv
from kvcodec.bulk.train import train_dumps
from kvcodec.bulk.train_checkpoint import SUFFIX
from kvcodec.bulk.train_options import parse_streams
from kvcodec.bulk.train_rows import BLOCK, DumpVectors, Part, find_rope, fingerprint_dump, query_metric
from kvcodec.codecs.dictionary import Dictionary
from kvcodec.codecs.pursuit import pursue
from kvcodec.codecs.rotation import Rotation
from kvcodec.dictionary import baseline
from kvcodec.dictionary.artefact import read_artefact
from kvcodec.dictionary.coder import Coder
from kvcodec.dictionary.learning import Moments, choose_new, descend, find_useless
from kvcodec.dictionary.settings import Settings, memory_bytes
from kvcodec.dictionary.space import Space
from kvcodec.dictionary.training import measure_errors, train_dictionary
from kvcodec.dictionary.vectors import ArrayVectors, read_blocks, read_parts, split_batches
from kvcodec.dumps import open_dump
from kvcodec.errors import (
    CorruptRecord,
    DtypeError,
    DumpError,
    LogExists,
    NonFiniteError,
    ShapeError,
    SpecError,
)
from kvcodec.layout import StreamId, Transform
from kvcodec.sparse_spec import SparseCodes
from tests.test_cli import invoke, refused

BF16 = np.dtype(ml_dtypes.bfloat16)
USES = ((3, StreamId.K),)
SMALL = {"atoms": 24, "sparsity": 3, "epochs": 2}


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def planted(atoms, count, sparsity, noise=0.0, seed=1):
    """Vectors that are sums of a few atoms each."""
    lot = np.random.default_rng(seed)
    out = np.zeros((count, atoms.shape[1]), np.float32)
    for n in range(count):
        chosen = lot.choice(len(atoms), sparsity, replace=False)
        out[n] = (lot.choice([-1, 1], sparsity) * lot.uniform(0.5, 1.5, sparsity)) @ atoms[chosen]
    return out + (noise * lot.standard_normal(out.shape)).astype(np.float32)


def directions(count, dim, seed=0):
    return unit(np.random.default_rng(seed).standard_normal((count, dim)))


def learn(rows, held=None, *, metric=None, rotation=None, **settings):
    held = rows[: len(rows) // 4] if held is None else held
    chosen = Settings(**({"atoms": 32, "sparsity": 3, "mean": False} | settings))
    return train_dictionary(ArrayVectors(rows), ArrayVectors(held), chosen, USES, metric=metric, rotation=rotation)


def make_dump(path, tokens=300, layers=(0, 1), heads=2, dim=16, seed=0, pre=False, queries=False, **metadata):
    lot = np.random.default_rng(seed)
    tensors, rope = {}, Rotation.of_base(10_000.0, dim)
    for layer in layers:
        for stream in "kv":
            atoms = directions(20, dim, 10 * layer + (stream == "v"))
            rows = planted(atoms, tokens * heads, 2, 0.05, int(lot.integers(1 << 30))).reshape(tokens, heads, dim)
            if stream == "k":
                turned = rope.turn(rows, np.arange(tokens))
                tensors |= {f"k_pre.{layer}": rows.astype(BF16)} if pre else {}
                rows = turned
            tensors[f"{stream}.{layer}"] = rows.astype(BF16)
        if queries:
            tensors[f"q.{layer}"] = (lot.standard_normal((2 * heads, 8, dim)) * np.arange(1, dim + 1)).astype(BF16)
    if queries:
        tensors["q_pos"] = np.arange(8, dtype=np.int32)
    save_file(tensors, path, {"rope_bases": "10000", "logit_scale": "0.25"} | metadata)
    return path


@pytest.fixture(name="dumps", scope="module")
def dumps_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    return [make_dump(folder / f"{n}.safetensors", seed=n, pre=True, queries=True) for n in range(2)]


# -- learning ------------------------------------------------------------------------------------------------------


def test_a_planted_dictionary_is_recovered():
    atoms = directions(32, 24)
    found = learn(planted(atoms, 3000, 3), epochs=12, batch=300)
    products = np.abs(atoms @ unit(found.dictionary.atoms.astype(np.float32)).T).max(axis=1)
    assert (products > 0.99).sum() >= 28
    assert found.error < 0.25 * found.curve[0]


def test_the_error_falls_from_epoch_to_epoch():
    found = learn(planted(directions(48, 24), 2000, 3, 0.05), epochs=5, patience=5)
    assert all(after < before for before, after in zip(found.curve, found.curve[1:], strict=False))
    assert (found.stopped, len(found.curve), found.vectors, found.held_out) == ("epochs", 6, 2000, 500)


def test_errors_are_those_of_the_int8_atoms_on_held_out_vectors():
    atoms = directions(48, 24)
    held = planted(atoms, 300, 3, 0.05, seed=9)
    found = learn(planted(atoms, 1000, 3, 0.05), held, mean=True)
    own, errors = found.dictionary, found.dictionary.errors
    assert errors.shape == (3,)
    assert np.all(np.diff(errors) < 0)
    for count in (1, 2, 3):
        codes = pursue(held, own, SparseCodes(atoms=count, bits=8, size=own.size))
        scales = codes.scales.view(ml_dtypes.bfloat16).astype(np.float32)
        rows = np.einsum(
            "ns,nsd->nd", codes.coefficients * scales[:, None], own.atoms[codes.indices].astype(np.float32)
        )
        error = np.linalg.norm(held - rows - own.mean) / np.linalg.norm(held)
        assert error == pytest.approx(errors[count - 1], rel=0.02)
    assert found.error == pytest.approx(errors[-1], rel=1e-4)
    assert measure_errors(own, ArrayVectors(held), 3)[1] == found.error


def test_the_codec_codes_over_what_was_trained_in_a_metric():
    rows = planted(directions(48, 24), 1000, 3, 0.05)
    half = np.random.default_rng(1).standard_normal((24, 24))
    found = learn(rows, metric=(half @ half.T / 24 + 0.2 * np.eye(24)).astype(np.float32), epochs=2)
    own = found.dictionary
    assert own.atoms.flags.c_contiguous
    codes = pursue(rows[:250], own, SparseCodes(atoms=3, bits=8, size=own.size))
    scales = codes.scales.view(ml_dtypes.bfloat16).astype(np.float32)
    wrong = rows[:250] - np.einsum("ns,nsd->nd", codes.coefficients * scales[:, None], own.atoms[codes.indices] * 1.0)
    assert np.linalg.norm(wrong) / np.linalg.norm(rows[:250]) == pytest.approx(found.error, rel=0.02)


def test_training_stops_when_the_error_no_longer_falls_or_time_is_up():
    rows = planted(directions(32, 16), 800, 2, 0.1)
    found = learn(rows, epochs=60, patience=2, gain=0.05)
    assert found.stopped == "converged"
    assert len(found.curve) < 20
    asked = []
    settings = Settings(atoms=32, sparsity=2, epochs=60, batch=100)
    late = train_dictionary(
        ArrayVectors(rows), ArrayVectors(rows), settings, USES, over=lambda: asked.append(0) or len(asked) > 3
    )
    assert (late.stopped, len(asked), len(late.curve)) == ("time", 4, 2)


def test_the_same_for_a_seed_and_another_for_another():
    rows = planted(directions(48, 16), 900, 3, 0.1)
    a, b, c = (learn(rows, seed=seed, epochs=2).dictionary.atoms for seed in (5, 5, 6))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_the_mean_helps_where_there_is_one():
    rows = planted(directions(64, 16), 1500, 3) + np.linspace(1, 3, 16, dtype=np.float32)
    with_mean, without = (learn(rows, mean=mean, epochs=4) for mean in (True, False))
    assert with_mean.dictionary.has_mean
    assert not without.dictionary.has_mean
    assert with_mean.error < without.error


def test_a_metric_lowers_the_error_in_that_metric():
    rows = np.random.default_rng(3).standard_normal((2000, 16)).astype(np.float32)
    metric = np.diag(np.geomspace(8, 0.05, 16)).astype(np.float32)
    seen, plain = learn(rows, metric=metric, epochs=4), learn(rows, epochs=4)
    wanted = Dictionary(plain.dictionary.atoms, USES, metric=metric)
    assert seen.dictionary.errors[-1] < measure_errors(wanted, ArrayVectors(rows[:500]), 3)[0][-1]
    blind = measure_errors(plain.dictionary, ArrayVectors(rows[:500]), 3)[1]
    assert seen.error > blind  # what it costs elsewhere
    with pytest.raises(SpecError, match="positive definite"):
        learn(rows, metric=-metric)


def test_a_space_is_that_of_the_metric():
    lot = np.random.default_rng(0)
    half = lot.standard_normal((12, 12))
    metric, mean = (half @ half.T + np.eye(12)).astype(np.float32), lot.standard_normal(12).astype(np.float32)
    rows = lot.standard_normal((9, 12)).astype(np.float32)
    space = Space(mean, metric)
    inside = space.enter(rows)
    wanted = np.einsum("nd,de,ne->n", rows - mean, metric, rows - mean)
    assert np.allclose((inside**2).sum(axis=1), wanted, rtol=1e-4)
    assert np.allclose(space.leave(inside), rows - mean, atol=1e-4)
    assert space.energy(rows) == pytest.approx(float(np.einsum("nd,de,ne->", rows, metric, rows)), rel=1e-4)


def test_moments_and_descent_are_those_of_the_definition():
    atoms = directions(20, 12)
    rows = planted(directions(20, 12, 5), 400, 3, 0.1)
    codes = Coder(atoms, 3).code(rows)
    dense = np.zeros((400, 20))
    for place in range(3):
        dense[np.arange(400), codes.indices[:, place]] += codes.coefficients[:, place]
    moments = Moments(20, 12)
    moments.add(rows, codes)
    assert np.allclose(moments.a, dense.T @ dense, atol=1e-3)
    assert np.allclose(moments.b, dense.T @ rows, atol=1e-3)
    assert moments.uses.sum() == np.count_nonzero(codes.coefficients)
    moved = descend(atoms, moments)
    wanted = atoms.astype(np.float64)
    for n in range(20):
        step = dense.T[n] @ (rows - dense @ wanted) / (dense.T[n] @ dense.T[n])
        wanted[n] += step
    lengths = np.linalg.norm(wanted, axis=1)
    assert np.allclose(moved, wanted / lengths[:, None], atol=1e-4)
    assert np.allclose(moments.a, (dense * lengths).T @ (dense * lengths), atol=1e-2)
    left = [np.linalg.norm(rows - d @ m) for d, m in ((dense, atoms), (dense * lengths, moved))]
    assert left[1] < left[0]


def test_an_atom_without_uses_stays():
    moments = Moments(4, 8)
    atoms = directions(4, 8)
    assert np.allclose(descend(atoms, moments), atoms, atol=1e-6)


def test_dead_atoms_and_twins_are_found_and_replaced():
    atoms = directions(6, 8)
    atoms[4] = unit(atoms[1] + 0.01 * atoms[0])
    atoms[5] = -atoms[2]
    uses = np.array([9, 9, 5, 0, 5, 9])
    useless = find_useless(Coder(atoms, 2), uses, 3)
    assert useless.tolist() == [2, 3, 4]
    candidates = np.stack([np.zeros(8, np.float32), 5 * atoms[0], *(3 * directions(2, 8, 7)), -directions(1, 8, 7)[0]])
    before = atoms.copy()
    new = choose_new(atoms, useless, candidates)
    assert new.tolist() == [2, 3]  # the last candidate is like the third, the first two are none
    assert np.allclose(atoms[[2, 3]], directions(2, 8, 7), atol=1e-6)
    assert np.array_equal(atoms[[0, 1, 4, 5]], before[[0, 1, 4, 5]])


def test_training_replaces_what_is_of_no_use():
    rows = planted(directions(16, 24), 600, 2, 0.01)
    found = learn(rows, atoms=96, sparsity=2, epochs=4, least=8)
    assert found.replaced > 0
    gram = Coder(unit(found.dictionary.atoms.astype(np.float32)), 1).gram - np.eye(96)
    assert np.abs(gram).max() < 0.999


def test_too_few_distinct_vectors_are_refused():
    rows = np.repeat(directions(10, 16), 30, axis=0)
    with pytest.raises(SpecError, match=r"32 atoms: only \d+ of 128 training vectors are distinct"):
        learn(rows)
    with pytest.raises(SpecError, match="no vectors"):
        learn(rows[:0])


def test_vectors_of_zeros_do_no_harm():
    rows = planted(directions(48, 16), 600, 3)
    rows[::3] = 0
    assert learn(rows, epochs=1).error < 1


def test_settings_are_checked():
    for name, value in (("atoms", 0), ("atoms", 70_000), ("sparsity", 33), ("epochs", 0), ("seed", -1), ("batch", -1)):
        with pytest.raises(SpecError, match=f"{name} is {value}, want"):
            Settings(**{name: value})
    for wrong in ({"memory": 0}, {"gain": 1}):
        with pytest.raises(SpecError, match="memory is"):
            Settings(**wrong)
    assert Settings(atoms=4096).batch_size == 4096


# -- streams -------------------------------------------------------------------------------------------------------


def test_blocks_and_batches_cover_all_vectors_once():
    rows = np.arange(230, dtype=np.float64).reshape(115, 2)
    vectors = ArrayVectors(rows, 10)
    assert vectors.counts == [10] * 11 + [5]
    assert np.array_equal(read_blocks(vectors, [11, 0]), rows[[*range(110, 115), *range(10)]])
    assert read_blocks(vectors, []).shape == (0, 2)
    assert [len(part) for part in read_parts(vectors, 35)] == [40, 40, 35]
    batches = split_batches(np.arange(12), vectors.counts, 30)
    assert [len(batch) for batch in batches] == [3, 3, 3, 3]
    assert len(split_batches(np.arange(12), vectors.counts, 10_000)) == 1
    with pytest.raises(ShapeError, match="want"):
        ArrayVectors(rows[0])


class Endless:
    """Blocks that are made when they are read: more of them than memory holds."""

    def __init__(self, blocks, dim=16):
        self.dim, self.counts, self._atoms = dim, [BLOCK] * blocks, directions(48, dim)

    def read(self, block):
        lot = np.random.default_rng(block)
        rows = lot.standard_normal((BLOCK, 2)).astype(np.float32)
        return (
            rows[:, :1] * self._atoms[lot.integers(48, size=BLOCK)]
            + rows[:, 1:] * self._atoms[lot.integers(48, size=BLOCK)]
        )


def test_memory_does_not_grow_with_the_vectors():
    settings = Settings(atoms=64, sparsity=2, epochs=1, batch=512, mean=True)
    peaks = []
    for blocks in (40, 640):
        tracemalloc.start()
        train_dictionary(Endless(blocks), Endless(8), settings, USES)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < memory_bytes(settings, 16)
    assert peaks[1] < 640 * BLOCK * 16 * 4  # all vectors


def test_vectors_of_dumps_are_all_heads_of_their_tokens(dumps):
    with open_dump(dumps[0]) as a, open_dump(dumps[1]) as b:
        vectors = DumpVectors([Part(a, 4, 100), Part(b, 10, 20)], [(0, StreamId.V), (1, StreamId.V)])
        assert vectors.counts == [128, 64, 20] * 2
        rows = np.concatenate([a.rows(1, StreamId.V, 4, 68)]).astype(np.float32).reshape(-1, 16)
        assert np.array_equal(vectors.read(3), rows)


def test_k_is_turned_back_where_the_dump_has_none_from_before(tmp_path):
    def read(pre=False, base=None, **metadata):
        with open_dump(make_dump(tmp_path / "a.safetensors", pre=pre, **metadata)) as dump:
            vectors = DumpVectors([Part(dump, 0, 300)], [(1, StreamId.K)], unrotate=True, rope_base=base)
            return read_blocks(vectors, range(5))

    wanted, found = read(pre=True), read()
    assert np.abs(found - wanted).max() < 0.03  # bfloat16 of the turned rows
    assert np.array_equal(read(base=10_000.0, rope_bases="500"), found)
    assert np.abs(read(rope_bases="500") - wanted).max() > 0.5


def test_rope_turns_pairs_of_halves():
    rope = Rotation.of_base(100.0, 4, 2.0)
    assert np.allclose(rope.frequencies, [0.5, 0.05])
    rows = np.array([[1, 0, 0, 1, 7]], np.float32)
    turned = rope.turn(rows, np.array([2]))
    assert np.allclose(turned, [[np.cos(1), -np.sin(0.1), np.sin(1), np.cos(0.1), 7]], atol=1e-6)
    assert np.allclose(rope.undo(turned, np.array([2])), rows, atol=1e-6)
    for base, dims in ((0.0, 4), (10.0, 3), (float("inf"), 4)):
        with pytest.raises(SpecError, match="rope base"):
            Rotation.of_base(base, dims)


def test_what_a_dump_says_of_its_rope(tmp_path):
    def found(**metadata):
        with open_dump(make_dump(tmp_path / "a.safetensors", tokens=4, **metadata)) as dump:
            return find_rope(dump, 1, None).frequencies

    assert np.allclose(found(rope_bases="7,500"), 500.0 ** (-np.arange(0, 16, 2) / 16))
    assert np.allclose(found(rope_dims="8", rope_scales="1,4"), 10_000.0 ** (-np.arange(0, 8, 2) / 8) / 4)
    for metadata in ({"rope_bases": "x"}, {"rope_bases": "1,"}, {"rope_dims": "32"}):
        with pytest.raises(DumpError):
            found(**metadata)
    with pytest.raises(SpecError, match="rope_layout"):
        found(rope_layout="interleaved")
    save_file({f"{s}.0": np.zeros((4, 1, 8), np.float32) for s in "kv"}, tmp_path / "b.safetensors")
    with open_dump(tmp_path / "b.safetensors") as dump, pytest.raises(SpecError, match="--rope-base"):
        find_rope(dump, 0, None)
    tensors = {f"{s}.0": np.zeros((4, 1, 8), np.float32) for s in "kv"}
    save_file(tensors | {"rope_freq.0": np.array([0.5, 0.25], np.float32)}, tmp_path / "c.safetensors")
    with open_dump(tmp_path / "c.safetensors") as dump:
        assert find_rope(dump, 0, None).frequencies.tolist() == [0.5, 0.25]


def test_the_metric_is_the_queries_second_moment(dumps, tmp_path):
    with open_dump(dumps[0]) as a, open_dump(dumps[1]) as b:
        moments = [q.T @ q / np.trace(q.T @ q) for q in (d.queries(1).q.reshape(-1, 16).astype(float) for d in (a, b))]
        wanted = (moments[0] + moments[1]) / 2 * 16 + 0.5 * np.eye(16)
        assert np.allclose(query_metric([a, b], [1], 0.5), wanted, atol=1e-4)
        queries, rope = a.queries(1), Rotation.of_base(10_000.0, 16)
        back = rope.undo(queries.q.transpose(1, 0, 2), queries.positions).reshape(-1, 16).astype(float)
        wanted = back.T @ back / np.square(back).sum() * 16 + 0.5 * np.eye(16)
        assert np.allclose(query_metric([a], [1], 0.5, unrotate=True), wanted, atol=1e-4)
    tensors = {f"{s}.0": np.zeros((4, 2, 8), np.float32) for s in "kv"}
    moment = np.stack([np.eye(8), np.diag(np.arange(8))]).astype(np.float32)
    save_file(tensors | {"q_cov.0": moment}, tmp_path / "a.safetensors")
    with open_dump(tmp_path / "a.safetensors") as dump:
        wanted = np.diag(1.0 + np.arange(8)) * 8 / 36 + 0.1 * np.eye(8)
        assert np.allclose(query_metric([dump], [0], 0.1), wanted, atol=1e-5)
    save_file(tensors, tmp_path / "b.safetensors")
    with open_dump(tmp_path / "b.safetensors") as dump, pytest.raises(DumpError, match=r"neither q_cov\.0 nor q\.0"):
        query_metric([dump], [0], 0.1)


def test_tensors_for_training_are_checked(tmp_path):
    tensors = {"k.0": np.zeros((4, 1, 8), np.float32), "v.0": np.zeros((4, 1, 6), np.float32)}

    def metric(moment):
        save_file(tensors | {"q_cov.0": moment}, tmp_path / "a.safetensors")
        with open_dump(tmp_path / "a.safetensors") as dump:
            query_metric([dump], [0], 0.1)

    for moment, error in (
        (np.zeros((1, 8, 8), np.int32), DtypeError),
        (np.zeros((2, 8, 8), np.float32), DumpError),
        (np.zeros((8, 8), np.float32), DumpError),
        (np.full((1, 8, 8), np.inf, np.float32), DumpError),
    ):
        with pytest.raises(error, match=r"'q_cov\.0'"):
            metric(moment)
    with pytest.raises(DumpError, match="no metric"):
        metric(np.zeros((1, 8, 8), np.float32))
    with open_dump(tmp_path / "a.safetensors") as dump, pytest.raises(ShapeError, match="V has 6 channels, others 8"):
        DumpVectors([Part(dump, 0, 4)], [(0, StreamId.K), (0, StreamId.V)])


def test_a_fingerprint_tells_dumps_apart(tmp_path):
    path = tmp_path / "a"
    data = bytearray(np.random.default_rng(0).bytes(3 << 20))
    path.write_bytes(data)
    first = fingerprint_dump(path)
    data[-1] ^= 1
    path.write_bytes(data)
    assert fingerprint_dump(path) != first
    assert len(first) == 16


# -- the job -------------------------------------------------------------------------------------------------------


def test_a_dictionary_for_each_layer_and_stream(dumps, tmp_path):
    lines, steps = [], []
    report = kv.train(
        dumps, tmp_path / "m.kvdict", **SMALL, threads=1, tell=lines.append, progress=lambda *done: steps.append(done)
    )
    found = read_artefact(tmp_path / "m.kvdict")
    assert [one.uses for one in found.dictionaries.dictionaries] == [
        ((layer, stream),) for layer in (0, 1) for stream in (StreamId.K, StreamId.V)
    ]
    assert {(one.size, one.dim, len(one.errors)) for one in found.dictionaries.dictionaries} == {(24, 16, 3)}
    assert (report.tokens, report.held_out, report.resumed) == (2 * 266, 60, 0)
    assert report.hash == found.dictionaries.hash.hex()
    told = found.information
    assert [d["fingerprint"] for d in told["dumps"]] == [fingerprint_dump(p) for p in dumps]
    assert told["dictionaries"][1]["streams"] == ["v"]
    assert told["dictionaries"][0]["vectors"] == 2 * 532
    assert told["settings"]["atoms"] == 24
    assert steps[-1] == (4000, 4000)
    assert steps == sorted(steps)
    assert [line.partition(" error ")[0] for line in lines[-2:]] == [
        "layer 1 V: epoch 1, held-out",
        "layer 1 V: done, held-out",
    ]
    assert not (tmp_path / f"m.kvdict{SUFFIX}").exists()


def test_sinks_are_left_out_and_held_out_dumps_are_measured_on(dumps, tmp_path):
    report = train_dumps(dumps[0], tmp_path / "m.kvdict", **SMALL, layers="1", streams="v", held_out=dumps[1], sinks=20)
    assert (report.tokens, report.held_out, len(report.units)) == (280, 280, 1)
    assert read_artefact(tmp_path / "m.kvdict").information["held_out"][0]["name"] == "1.safetensors"


def test_layers_may_share(dumps, tmp_path):
    for share, uses in (
        ("layers", [[(0, 1), (1, 1)], [(0, 2), (1, 2)]]),
        ("all", [[(0, 1), (0, 2), (1, 1), (1, 2)]]),
    ):
        report = train_dumps(dumps, tmp_path / "m.kvdict", **SMALL, share=share, overwrite=True)
        assert [[tuple(map(int, use)) for use in unit.dictionary.uses] for unit in report.units] == uses
    assert report.units[0].name == "layers 0-1 K and V"


def test_k_from_before_rotation_and_its_metric(dumps, tmp_path):
    report = train_dumps(dumps, tmp_path / "m.kvdict", **SMALL, rope="pre", metric="query", layers="0")
    k, v = (unit.dictionary for unit in report.units)
    assert (k.transform, v.transform) == (Transform.PRE_ROPE, Transform.NONE)
    assert k.metric is not None
    assert v.metric is None
    back = read_artefact(tmp_path / "m.kvdict").dictionaries
    assert back.find(0, StreamId.K).transform == Transform.PRE_ROPE
    assert np.array_equal(back.find(0, StreamId.K).metric, k.metric)
    plain = train_dumps(dumps, tmp_path / "n.kvdict", **SMALL, layers="0", streams="k")
    pre = train_dumps(dumps, tmp_path / "o.kvdict", **SMALL, layers="0", streams="k", rope="pre")
    assert pre.units[0].about["error"] < plain.units[0].about["error"]  # the planted atoms are those from before


class InterruptedHere(Exception):
    pass


def test_the_file_hangs_neither_on_threads_nor_on_an_interruption(dumps, tmp_path):
    one, two, resumed = (tmp_path / f"{name}.kvdict" for name in ("one", "two", "resumed"))
    train_dumps(dumps, one, **SMALL, threads=1)
    train_dumps(dumps, two, **SMALL, threads=2)
    assert one.read_bytes() == two.read_bytes()

    def interrupt(line):
        if line.startswith("layer 1 K"):
            raise InterruptedHere

    partial = tmp_path / f"resumed.kvdict{SUFFIX}"
    with pytest.raises(InterruptedHere):
        train_dumps(dumps, resumed, **SMALL, threads=1, tell=interrupt)
    assert not resumed.exists()
    assert sorted(p.name for p in partial.iterdir()) == ["0.kvdict", "1.kvdict", "job.json"]
    (partial / "1.kvdict").write_bytes(b"torn")
    with pytest.raises(SpecError, match=r"\(--resume\) goes on"):
        train_dumps(dumps, resumed, **SMALL)
    with pytest.raises(SpecError, match="was begun with settings"):
        train_dumps(dumps, resumed, **(SMALL | {"atoms": 25}), resume=True)
    report = train_dumps(dumps, resumed, **SMALL, threads=2, resume=True)
    assert report.resumed == 1
    assert resumed.read_bytes() == one.read_bytes()
    assert not partial.exists()


def test_what_an_interrupted_training_left_may_be_begun_anew(dumps, tmp_path):
    out, partial = tmp_path / "m.kvdict", tmp_path / f"m.kvdict{SUFFIX}"
    partial.mkdir()
    assert train_dumps(dumps, out, **SMALL, layers="0", resume=True).resumed == 0  # killed before its job was there
    partial.mkdir()
    (partial / "job.json").write_text("{")
    with pytest.raises(SpecError, match="cannot be gone on with"):
        train_dumps(dumps, tmp_path / "m.kvdict", **SMALL, layers="0", resume=True, overwrite=True)
    (partial / "0.kvdict").write_bytes(out.read_bytes())
    assert train_dumps(dumps, out, **SMALL, layers="0", overwrite=True).resumed == 0
    assert not partial.exists()


def test_a_failure_stops_the_other_threads_and_is_what_is_raised(dumps, tmp_path):
    def fail(line):
        if line.startswith("layer 0 V"):
            raise InterruptedHere

    with pytest.raises(InterruptedHere):
        train_dumps(dumps, tmp_path / "m.kvdict", **(SMALL | {"epochs": 200}), threads=2, tell=fail)
    assert not [t for t in threading.enumerate() if t.name.startswith("kvcodec")]


def test_time_is_shared_by_the_dictionaries(dumps, tmp_path):
    report = train_dumps(dumps, tmp_path / "m.kvdict", **(SMALL | {"epochs": 10_000}), time=0.4, threads=1)
    assert {unit.about["stopped"] for unit in report.units} <= {"time", "converged"}
    assert report.seconds < 20


def test_what_cannot_be_meant_is_refused(dumps, tmp_path):
    out = tmp_path / "m.kvdict"
    for wrong, error, said in (
        ({"share": "some"}, SpecError, "share is 'some', want none or layers or all"),
        ({"rope": "x"}, SpecError, "rope is 'x'"),
        ({"metric": "x"}, SpecError, "metric is 'x'"),
        ({"rope": "pre", "share": "all"}, SpecError, "rope pre is for K alone"),
        ({"metric": "query", "streams": "v"}, SpecError, "K is not among the streams"),
        ({"streams": "k,k"}, SpecError, "streams 'k,k'"),
        ({"held_out": 0.7}, SpecError, "held-out is 0.7"),
        ({"held_out": 0.0}, SpecError, "held-out is 0"),
        ({"held_out": []}, SpecError, "no dump is held out"),
        ({"sinks": -1}, SpecError, "sinks -1"),
        ({"sinks": 280}, SpecError, "none to train on"),
        ({"time": 0}, SpecError, "time is 0"),
        ({"layers": "7"}, SpecError, "layers 7, want some of 0-1"),
        ({"atoms": 5000}, SpecError, "5000 atoms: only"),
        ({"sparsity": 40}, SpecError, "sparsity is 40"),
        ({"threads": 0}, SpecError, "threads is 0"),
    ):
        with pytest.raises(error, match=said):
            train_dumps(dumps, out, **(SMALL | wrong), overwrite=True)
    with pytest.raises(SpecError, match="no dump"):
        train_dumps([], out)
    with pytest.raises(FileNotFoundError):
        train_dumps(dumps, tmp_path / "nowhere" / "m.kvdict", **SMALL)
    assert not out.exists()
    out.write_bytes(b"mine")
    with pytest.raises(LogExists):
        train_dumps(dumps, out, **SMALL)
    assert out.read_bytes() == b"mine"
    assert parse_streams(["v", "k"]) == (StreamId.K, StreamId.V)


def test_bad_dumps_are_named(dumps, tmp_path):
    other = make_dump(tmp_path / "a.safetensors", dim=8, tokens=100)
    with pytest.raises(ShapeError, match="layer 0 K"):
        train_dumps([dumps[0], other], tmp_path / "m.kvdict", **SMALL)
    rows = np.zeros((100, 1, 8), np.float32)
    rows[50, 0, 3] = np.nan
    save_file({"k.0": rows, "v.0": rows}, tmp_path / "b.safetensors")
    with pytest.raises(NonFiniteError, match="layer 0, stream K, token 50, head 0, channel 3"):
        train_dumps(tmp_path / "b.safetensors", tmp_path / "m.kvdict", **SMALL, threads=1)
    save_file({"k.0": np.full_like(rows, 1e15), "v.0": rows}, tmp_path / "b.safetensors")
    with pytest.raises(SpecError, match="layer 0 K has numbers beyond 1e"):
        train_dumps(tmp_path / "b.safetensors", tmp_path / "m.kvdict", **SMALL, threads=1)
    for pre, error in ((np.zeros((9, 1, 8), np.float32), DumpError), (np.zeros((100, 1, 8), np.float16), DtypeError)):
        save_file({"k.0": rows, "v.0": rows, "k_pre.0": pre}, tmp_path / "b.safetensors", {"rope_bases": "100"})
        with pytest.raises(error, match=r"k_pre\.0"):
            train_dumps(tmp_path / "b.safetensors", tmp_path / "n.kvdict", **SMALL, rope="pre", threads=1)


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command_prints_its_figures(dumps, tmp_path):
    arguments = ("--atoms", 24, "--sparsity", 3, "--epochs", 2, "--layers", "0")
    out = invoke("train", *dumps, "-o", tmp_path / "m.kvdict", *arguments).stdout
    assert "2 dictionaries, 896 B, " in out
    assert "trained on 532 tokens in " in out
    assert [line.split()[:3] for line in out.splitlines()[-3:-1]] == [["layer", "0", "K"], ["layer", "0", "V"]]
    told = json.loads(invoke("train", *dumps, "-o", tmp_path / "m.kvdict", *arguments, "--force", "--json").stdout)
    assert told["hash"] == read_artefact(tmp_path / "m.kvdict").dictionaries.hash.hex()
    assert [one["name"] for one in told["dictionaries"]] == ["layer 0 K", "layer 0 V"]
    assert invoke("train", *dumps, "-o", tmp_path / "m.kvdict", *arguments, "--force", "--quiet").stdout == ""
    held = invoke(
        "train", dumps[0], "-o", tmp_path / "n.kvdict", *arguments, "--json", "--held-out", dumps[1], "--no-mean"
    )
    assert json.loads(held.stdout)["held_out"] == 296
    part = invoke(
        "train", dumps[0], "-o", tmp_path / "o.kvdict", *arguments, "--json", "--held-out", "0.25", "--resume"
    )
    assert json.loads(part.stdout)["held_out"] == 75


def test_the_command_refuses_in_one_line(dumps, tmp_path, capsys):
    out = tmp_path / "m.kvdict"
    assert "share is 'x'" in refused(capsys, "train", dumps[0], "-o", out, "--share", "x")
    assert refused(capsys, "train", tmp_path / "none.safetensors", "-o", out).endswith("No such file or directory")
    out.write_bytes(b"")
    assert refused(capsys, "train", dumps[0], "-o", out) == f"{out}: exists already, --force replaces it"


# -- the baseline --------------------------------------------------------------------------------------------------


def test_the_baseline_takes_18_bytes_and_the_six_greatest_products():
    book = baseline.random_codebook(16, 3)
    assert book.shape == (2048, 16)
    assert np.allclose(np.linalg.norm(book, axis=1), 1, atol=1e-6)
    rows = (20 * np.random.default_rng(0).standard_normal((300, 16))).astype(np.float32)
    rows[7] = 1000 * book[5]
    codes = baseline.encode_vectors(rows, book)
    assert (codes.dtype, codes.shape) == (np.uint8, (300, 18))
    decoded = baseline.decode_vectors(codes, book)
    for n in (0, 1, 299):
        products = book @ rows[n]
        six = np.argsort(-np.abs(products))[:6]
        assert np.allclose(decoded[n], np.rint(products[six]) @ book[six], atol=1e-4)
    own = codes.view(baseline.CODE)[7, 0]
    assert own["atom"][0] == 5
    assert own["coefficient"].max() == 127
    assert baseline.decode_vectors(codes[:0], book).shape == (0, 16)


def test_the_baseline_refuses_what_it_cannot_read():
    book = baseline.random_codebook(8)
    with pytest.raises(ShapeError):
        baseline.encode_vectors(np.zeros((3, 9), np.float32), book)
    with pytest.raises(ShapeError):
        baseline.decode_vectors(np.zeros((3, 17), np.uint8), book)
    with pytest.raises(ShapeError):
        baseline.random_codebook(0)
    codes = baseline.encode_vectors(np.ones((3, 8), np.float32), book)
    codes[2, 1] = 0xFF
    with pytest.raises(CorruptRecord, match="at byte 36"):
        baseline.decode_vectors(codes, book)


def test_the_public_name_is_the_job():
    assert kv.train is train_dumps
    assert Path(kv.train.__code__.co_filename).name == "train.py"
