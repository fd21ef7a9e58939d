"""Keys from before their rotary embedding: angles, codecs at positions, logs that hold them."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import kvcodec as kv
from kvcodec.attention.arrays import score_arrays
from kvcodec.bulk.drift import measure_drift
from kvcodec.bulk.encode import encode_dump
from kvcodec.bulk.train_rows import find_rotation
from kvcodec.bulk.verification import Verdict
from kvcodec.bulk.verify import verify_log
from kvcodec.codecs import codec_for, decode_array, encode_array
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.rows import row_codec_for
from kvcodec.dictionary.artefact import Artefact, read_artefact, write_artefact
from kvcodec.dumps import open_dump
from kvcodec.errors import ShapeError, SpecError
from kvcodec.kernels.rotation import make_points
from kvcodec.layout import DtypeId, StreamId, Transform
from kvcodec.spec import CodecSpec
from tests.rotation_twin import cosine_of_point, turn_of, turn_rows

BF16 = ml_dtypes.bfloat16
DIM, HEADS, K, V = 32, 2, StreamId.K, StreamId.V
ROPE = Rotation.of_base(1000.0, 24)  # of 32 channels 8 do not turn
SMALL = "page=512,unit=64,block=16384"


def make_dictionary(uses=((0, K),), rotation=ROPE, mean=True, seed=0):
    rng = np.random.default_rng(seed)
    atoms = quantize_atoms(rng.standard_normal((80, DIM)))
    return Dictionary(atoms, uses, rng.standard_normal(DIM).astype(np.float32) if mean else np.zeros(0), rotation)


def make_set():
    return DictionarySet((make_dictionary(), make_dictionary(((0, V),), None, seed=1)))


def keys(tokens, seed=0):
    """Rows (tokens, heads, dim), turned sums of a few atoms with noise, and what they are before that."""
    rng, own = np.random.default_rng(seed), make_dictionary()
    picked = own.atoms[rng.integers(0, 80, (tokens, HEADS, 3))].sum(axis=2) / 64
    before = picked + own.mean + 0.02 * rng.standard_normal(picked.shape)
    return ROPE.turn(before, np.arange(tokens)).astype(BF16), before


def relative(rows, back):
    wide = np.asarray(rows).astype(np.float64)
    return np.linalg.norm(np.asarray(back).astype(np.float64) - wide) / np.linalg.norm(wide)


# -- angles --------------------------------------------------------------------------------------------------------


def test_points_of_the_circle_lie_far_from_halves():
    exact = np.cos(np.arange(4096) * (2 * np.pi / 4096)) * 2**30
    assert np.abs(np.abs(exact - np.floor(exact)) - 0.5).min() > 1e-4  # no rounding hangs on the last bits of a libm
    assert make_points().tolist() == [cosine_of_point(n) for n in range(4096)]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40))
def test_a_turn_is_that_of_the_twin_and_near_the_true_one(angles):
    angles = [*angles, 0, 2**64 - 1, 2**51, 2**51 - 1, 2**63]
    ones = np.repeat(np.float32([1, 0]), len(angles))[None]
    turned = Rotation(np.array(angles, np.uint64)).turn(ones, np.ones(1, np.int64)).reshape(2, -1)
    exact = np.array([turn_of(1, angle) for angle in angles]).T
    assert np.array_equal(turned, exact.astype(np.float32) * np.float32(2**-30))
    true = np.array(angles, float) / 2**64 * 2 * np.pi
    assert np.abs(exact / 2**30 - np.stack([np.cos(true), np.sin(true)])).max() < 2**-28


def test_rows_turn_as_the_twin_turns_them_and_back():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((9, HEADS, DIM)).astype(np.float32)
    positions = np.array([0, 1, 2, 63, 64, 1000, 131_071, 2**30, 2**40])
    turned = ROPE.turn(rows, positions)
    for head in range(HEADS):
        assert np.array_equal(turned[:, head], turn_rows(rows[:, head], positions, ROPE.steps))
    assert np.array_equal(turned[..., 24:], rows[..., 24:])
    assert np.abs(ROPE.undo(turned, positions) - rows).max() < 1e-6
    angles = np.multiply.outer(positions[:7], ROPE.frequencies)
    exact = rows[:7, 0, :12] * np.cos(angles) - rows[:7, 0, 12:24] * np.sin(angles)
    assert np.abs(turned[:7, 0, :12] - exact).max() < 1e-5
    assert rows.shape == turned.shape


def test_what_a_rotation_refuses():
    for steps in ([1.5], [-1], [[1]]):
        with pytest.raises(ShapeError, match="want a uint64 for each"):
            Rotation(np.array(steps))
    for bad in ([], [-0.1], [7.0], [[0.5]], [np.nan]):
        with pytest.raises(SpecError, match="frequencies"):
            Rotation.of_frequencies(np.array(bad, float))
    with pytest.raises(ShapeError, match="steps"):
        Rotation(np.zeros(0))
    with pytest.raises(ShapeError, match="rows"):
        ROPE.turn(np.zeros((2, 16)), np.arange(2))
    with pytest.raises(ShapeError, match="17 pairs"):
        make_dictionary(rotation=Rotation(np.arange(17)))
    with pytest.raises(SpecError, match="stream v has no rotary"):
        make_dictionary(((0, K), (0, V)))
    for make in (codec_for, row_codec_for):
        with pytest.raises(SpecError, match="stream v by codes of keys"):
            make(CodecSpec.parse("dict/s4"), V, make_dictionary())


# -- codecs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["dict/s5/c6", "dict/s6/c8/ef/low2", "dict/e0.2"])
def test_arrays_are_coded_at_their_positions(spec):
    x, before = keys(200)
    own, plain = make_dictionary(), make_dictionary(rotation=None)
    turned = encode_array(x, spec, dictionary=own)
    back = decode_array(turned, dtype=np.float32)
    assert 10 * relative(x, back) < relative(x, decode_array(encode_array(x, spec, dictionary=plain)))
    unturned = decode_array(encode_array(before.astype(np.float32), spec, dictionary=plain), dtype=np.float32)
    assert relative(ROPE.turn(unturned, np.arange(200)), back) < 0.1
    chosen = np.array([199, 3, 70, 140, 141, 64, 3])
    assert np.array_equal(decode_array(turned, chosen, np.float32), back[chosen])
    assert encode_array(x[:128], spec, dictionary=own).tail.shape[0] == 0  # no rest


def test_a_decoded_vector_is_rebuilt_and_then_turned():
    x, _ = keys(64)
    codec = codec_for(CodecSpec.parse("dict/s4/c6"), K, make_dictionary()).at(1000)
    same = codec_for(CodecSpec.parse("dict/s4/c6"), K, make_dictionary(rotation=None))
    body = codec.encode(x.view(np.uint16), DtypeId.BFLOAT16, 64).body
    flat = same.decode(body, 64, DIM, DtypeId.BFLOAT16, as_float32=True)
    turned = codec.decode(body, 64, DIM, DtypeId.BFLOAT16, as_float32=True)
    for head in range(HEADS):
        assert np.array_equal(turned[:, head], turn_rows(flat[:, head], 1000 + np.arange(64), ROPE.steps))


@pytest.mark.parametrize("first", [0, 5, 64, 4096, 2**40])
def test_attention_on_arrays_knows_where_they_begin(first):
    x, _ = keys(200)
    own, q = make_dictionary(), np.random.default_rng(2).standard_normal((4, DIM)).astype(np.float32)
    k = encode_array(x, "dict/s5", dictionary=own, first=first)
    wide, v = decode_array(k, dtype=np.float32), encode_array(x, "raw", stream="v")
    again = kv.attend(q, encode_array(wide.astype(np.float32), "raw", dtype=BF16), v)
    assert relative(again, kv.attend(q, k, v)) < 5e-3
    logits = np.einsum("hgd,thd->hgt", q.reshape(HEADS, 2, DIM), wide).reshape(4, -1) / np.sqrt(DIM)
    assert np.abs(score_arrays(q, k) - logits).max() < 5e-3


def test_a_mean_that_a_large_scale_leaves_no_bits_is_nothing():
    """Of a row without coefficients, which no encoder gives such a scale: not minus one unit of that."""
    mean = np.full(DIM, -0.5, np.float32)
    own = Dictionary(make_dictionary().atoms, ((0, K),), mean, Rotation(np.zeros(8, np.uint64)))
    x = np.random.default_rng(0).standard_normal((64, 1, DIM)).astype(np.float32)
    x[5] = -0.5
    k = encode_array(x, "dict/s4", dictionary=own)
    k.full[0, 0, 10:12] = 0x00, 0x46
    q = np.random.default_rng(1).standard_normal((2, DIM)).astype(np.float32)
    missed = np.abs(score_arrays(q, k) - q @ decode_array(k, dtype=np.float32)[:, 0].T / np.sqrt(DIM)).max(axis=1)
    assert (missed <= np.abs(q @ mean) / np.sqrt(DIM) + 1e-3).all()


@pytest.mark.parametrize("first", [-1, 1.5, 2**48, 2**63, "a"])
def test_an_array_that_begins_nowhere_is_refused(first):
    with pytest.raises(SpecError, match="first is"):
        encode_array(keys(3)[0], "dict/s5", dictionary=make_dictionary(), first=first)


# -- logs ----------------------------------------------------------------------------------------------------------


def write(path, x, cuts, spec, residual=0, sinks=3):
    options = {"k": spec, "v": "dict/s4", "residual": residual, "sinks": sinks}
    model = kv.Model((kv.Layer.kv(HEADS, DIM),))
    with kv.open(path, "w", model=model, device=SMALL, capacity=1 << 20, dictionary=make_set(), **options) as store:
        for first, end in zip([0, *cuts], [*cuts, len(x)], strict=True):
            store.sequence("a").append(0, x[first:end], x[first:end])
            store.sync()
    return path


@pytest.mark.parametrize("spec", ["dict/s5/c6", "dict/s12/c8/max0.1"])
@pytest.mark.parametrize("residual", [0, 20])
def test_how_keys_come_does_not_change_what_is_read(spec, residual, tmp_path):
    x, _ = keys(300)
    found = []
    for n, cuts in enumerate(([], [1, 2, 3, 64, 67, 68, 131, 250], list(range(40, 60)))):
        path = write(tmp_path / f"{n}.kvlog", x, cuts, spec, residual)
        with kv.open(path) as store:
            own = store.sequence("a")
            found.append(own.read(0, dtype=np.float32)[0])
            chosen = np.array([299, 5, 130, 7, 66])
            assert np.array_equal(own.read(0, chosen, dtype=np.float32)[0], found[-1][chosen])
        assert np.array_equal(found[-1], found[0])
        assert verify_log(path).verdict == Verdict.CLEAN
    assert relative(x, found[0]) < 0.1
    if "max" in spec:
        wide = x.astype(np.float64)
        errors = np.linalg.norm(found[0].astype(BF16).astype(np.float64) - wide, axis=-1)
        assert (errors <= 0.1 * np.linalg.norm(wide, axis=-1)).all()


def test_a_writer_that_comes_back_goes_on_at_its_position(tmp_path):
    x, _ = keys(150)
    path = write(tmp_path / "a.kvlog", x[:101], [50], "dict/s5/c6")
    with kv.open(path, "a") as store:
        store.sequence("a").append(0, x[101:], x[101:])
        live = store.sequence("a").read(0, dtype=np.float32)[0]
    whole = write(tmp_path / "b.kvlog", x, [], "dict/s5/c6")
    with kv.open(path) as one, kv.open(whole) as two:
        rows = one.sequence("a").read(0, dtype=np.float32)[0]
        assert np.array_equal(rows, two.sequence("a").read(0, dtype=np.float32)[0])
        assert np.array_equal(rows, live)


def test_attention_sees_turned_keys(tmp_path):
    x, _ = keys(260)
    q = np.random.default_rng(1).standard_normal((4, DIM)).astype(np.float32)
    for spec in ("dict/s5/c6", "dict/s6/c6/ef/max0.4"):
        with kv.open(write(tmp_path / f"{spec[-1]}.kvlog", x, [100, 230], spec)) as store:
            own = store.sequence("a")
            k, v = own.read(0, dtype=np.float32)
            logits = np.einsum("hgd,thd->hgt", q.reshape(HEADS, 2, DIM), k) / np.sqrt(DIM)
            weights = np.exp(logits - logits.max(axis=2, keepdims=True))
            want = np.einsum("hgt,thd->hgd", weights / weights.sum(axis=2, keepdims=True), v).reshape(4, DIM)
            assert relative(want, own.attend(0, q)) < 1e-3
    encoded = encode_array(x, "dict/s5/c6", dictionary=make_dictionary())
    values = encode_array(x, "int4/token/g32", stream="v")
    wide = decode_array(encoded, dtype=np.float32)
    scores = kv.attend(q, encoded, values)
    again = kv.attend(q, encode_array(wide.astype(BF16), "raw"), values)
    assert relative(again, scores) < 2e-3


# -- training, files, commands -------------------------------------------------------------------------------------


def test_a_file_keeps_the_rotation(tmp_path):
    own = make_set()
    write_artefact(tmp_path / "a.kvdict", Artefact(own, {}))
    back = read_artefact(tmp_path / "a.kvdict").dictionaries
    assert back.hash == own.hash != DictionarySet((make_dictionary(rotation=None), own.dictionaries[1])).hash
    assert back.find(0, K).rotation == ROPE
    assert back.find(0, K).transform == Transform.PRE_ROPE
    assert back.find(0, V).rotation is None


def test_a_dump_is_encoded_and_its_drift_measured_at_positions(tmp_path):
    x, _ = keys(200)
    save_file({"k.0": x, "v.0": x}, tmp_path / "a.safetensors")
    write_artefact(tmp_path / "d.kvdict", Artefact(make_set(), {}))
    options = {"k": "dict/s5", "v": "dict/s5", "dictionary": tmp_path / "d.kvdict"}
    encode_dump(tmp_path / "a.safetensors", tmp_path / "a.kvlog", residual=0, sinks=0, **options)
    with kv.open(tmp_path / "a.kvlog") as store:
        assert relative(x, store.sequence("a").read(0)[0]) < 0.05
    (drift,) = measure_drift([tmp_path / "a.safetensors"], dictionary=make_set(), spec="dict/s5").texts
    assert drift.curves["k"].error() < 0.05 < drift.curves["v"].error()


def test_a_part_that_begins_later_is_refused(tmp_path):
    x, _ = keys(200)
    save_file({"k.0": x, "v.0": x}, tmp_path / "a.safetensors")
    options = {"k": "dict/s5", "v": "raw", "dictionary": make_set()}
    with pytest.raises(SpecError, match="tokens from 10 on, and k is coded as before its rotary embedding"):
        encode_dump(tmp_path / "a.safetensors", tmp_path / "a.kvlog", tokens="10:150", **options)
    assert not (tmp_path / "a.kvlog").exists()
    encode_dump(tmp_path / "a.safetensors", tmp_path / "a.kvlog", tokens="0:150", **options)


def test_turned_dictionaries_do_not_grow(tmp_path):
    options = {"model": kv.Model((kv.Layer.kv(HEADS, DIM),)), "dictionary": make_set(), "k": "dict/s5"}
    with pytest.raises(SpecError, match="before their rotary embedding do not grow"):
        kv.open(tmp_path / "a", "w", grow=4, v="raw", **options)
    assert not (tmp_path / "a").exists()
    kv.open(tmp_path / "a", "w", grow=4, v="dict/s5", **options).close()


def test_layers_that_turn_otherwise_share_no_dictionary(tmp_path):
    rows = np.ones((20, 1, 8), np.float32)
    save_file(
        {"k.0": rows, "v.0": rows, "k.1": rows, "v.1": rows}, tmp_path / "a.safetensors", {"rope_bases": "100,500"}
    )
    with open_dump(tmp_path / "a.safetensors") as dump:
        assert find_rotation([dump, dump], ((1, K),), None) == Rotation.of_base(500.0, 8)
        with pytest.raises(SpecError, match="turned otherwise"):
            find_rotation([dump], ((0, K), (1, K)), None)
