"""V predicted from the codes of its K: coding, arrays, bytes, sets, and how it is trained."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.bulk.drift import measure_drift
from kvcodec.bulk.trial import try_codecs
from kvcodec.codecs import codec_for
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.given import given_rows
from kvcodec.codecs.predicted_rows import GivenRows, PredictedRows
from kvcodec.codecs.prediction import GivenCodes, Prediction
from kvcodec.codecs.product_bytes import product_from_bytes
from kvcodec.codecs.product_rows import ProductRows
from kvcodec.codecs.rotation import Rotation
from kvcodec.dictionary.artefact import Artefact, read_artefact, write_artefact
from kvcodec.dictionary.prediction import find_rest, take_pairs
from kvcodec.dictionary.product import fit_product
from kvcodec.dictionary.products import Stream, train_products
from kvcodec.dictionary.spectrum import find_spectrum
from kvcodec.dictionary.vectors import ArrayVectors
from kvcodec.dumps import open_dump
from kvcodec.errors import CorruptRecord, DtypeError, ShapeError, SpecError
from kvcodec.layout import DtypeId, StreamId
from kvcodec.spec import CodecSpec
from tests.product_twin import rebuild_predicted
from tests.test_cli import invoke
from tests.test_product import backwards, relative, vectors
from tests.test_product_codec import product
from tests.test_product_training import make_dump
from tools.capture.failure import CaptureError
from tools.perplexity.coding import Coding

K, V = StreamId.K, StreamId.V
DIM = 24
BF = ml_dtypes.bfloat16


def predicted(source, seed=1, dim=8, uses=((0, V),), **changed):
    """V of random numbers, predicted from `source` by random numbers."""
    rng = np.random.default_rng(seed)
    scales = (2.0 ** np.arange(-4, 4, 0.5) * 3e-7).astype(BF).view(np.uint16)
    basis = rng.integers(-9000, 9000, (len(source.basis), dim)).astype(np.int16)
    own = product(dim, uses=uses, seed=seed, **changed)
    return replace(own, prediction=Prediction(basis, scales, source.name))


def random_codes(own, count, seed=0):
    """Coded rows (count, groups + 2) of product codes."""
    rng = np.random.default_rng(seed)
    coded = rng.integers(0, 256, (count, own.groups + 2)).astype(np.uint8)
    coded[:, 1] %= 16
    return coded


def pairs(count, seed=0):
    """K, and V of which most is a linear map of K."""
    keys = vectors(count, DIM, seed, sinks=0)
    mix = np.random.default_rng(7).standard_normal((DIM, DIM)) / np.sqrt(DIM)
    other = vectors(count, DIM, seed + 1000, sinks=0)
    return keys, (keys @ mix + 0.3 * other).astype(np.float32)


@pytest.fixture(name="trained", scope="module")
def trained_fixture():
    """K, V that is predicted from it, and V by itself."""
    keys, values = pairs(5000)
    own = fit_product(find_spectrum(keys, None), keys, 6, ((0, K),))
    rest = find_rest(own, take_pairs(ArrayVectors(keys), ArrayVectors(values), 5000), None)
    told = fit_product(rest.spectrum, values, 4, ((0, V),), prediction=rest.prediction, given=rest.given)
    return own, told, fit_product(find_spectrum(values, None), values, 4, ((0, V),))


# -- vectors -------------------------------------------------------------------------------------------------------


def test_a_decoded_vector_is_that_of_the_twin(trained):
    source, own, _ = trained
    keys, values = pairs(30, 3)
    told = GivenCodes(source, source.code(keys))
    coded = own.code(values, told)
    back = own.rebuild(coded, told)
    for n in range(30):
        gain = own.gain_table[coded.gains[n]]
        scale, factor = (
            F.astype(BF).astype(np.float32)
            for F in (
                gain * own.shape_table[coded.shapes[n]], gain * own.prediction.scale_table[told.coded.shapes[n]]
            )
        )  # fmt: skip
        twin = rebuild_predicted(
            (coded.codes[n], own.basis, own.books, own.ends.tolist(), scale),
            (told.coded.codes[n], own.prediction.basis, source.books, source.ends.tolist(), factor),
            gain * own.mean,
        )
        assert np.array_equal(back[n], twin)


def test_what_k_tells_need_not_be_coded(trained):
    source, own, plain = trained
    keys, values = pairs(1000, 4)
    told = GivenCodes(source, source.code(keys))
    error = relative(values, own.rebuild(own.code(values, told), told))
    assert error < 0.7 * relative(values, plain.rebuild(plain.code(values)))
    wrong = GivenCodes(source, source.code(keys[::-1]))
    assert relative(values, own.rebuild(own.code(values, wrong), wrong)) > 1.5 * error


def test_no_other_gain_or_code_misses_less(trained):
    """The basis has most components, so that the gain is about the best one."""
    source, own, _ = trained
    assert len(own.basis) > 16
    keys, values = pairs(60, 5)
    told = GivenCodes(source, source.code(keys))
    coded = own.code(values, told)

    def missed(changed):
        return np.square(own.rebuild(changed, told) - values, dtype=np.float64).sum(axis=1)

    base, better, rng = missed(coded), 0, np.random.default_rng(0)
    for step in (-2, -1, 1, 2):
        gains = np.clip(coded.gains.astype(int) + step, 1, 255).astype(np.uint8)
        better += int((missed(coded._replace(gains=gains)) < base * (1 - 1e-3)).sum())
    for _ in range(20):
        codes = coded.codes.copy()
        codes[np.arange(60), rng.integers(0, own.groups, 60)] = rng.integers(0, 256, 60)
        better += int((missed(coded._replace(codes=codes)) < base * (1 - 1e-3)).sum())
    assert better <= 15  # of 1,440: rounding, and codes were chosen before the gain was


def test_a_vector_does_not_hang_on_its_neighbours_and_zeros_stay(trained):
    source, own, _ = trained
    keys, values = pairs(2100, 6)
    values[7] = keys[9] = 0
    told = GivenCodes(source, source.code(keys))
    whole = own.code(values, told)
    assert whole.gains[7] == 0
    back = own.rebuild(whole, told)
    assert not back[7].any()
    for part in (slice(7, 8), slice(1000, 1100), slice(0, 2100)):
        some = own.code(values[part], told.part(part))
        assert all(np.array_equal(one, all_[part]) for one, all_ in zip(some, whole, strict=True))
        assert np.array_equal(own.rebuild(some, told.part(part)), back[part])


def test_codes_that_do_not_fit_are_refused(trained):
    source, own, plain = trained
    keys, values = pairs(5)
    told = GivenCodes(source, source.code(keys))
    for call in (lambda g: own.code(values, g), lambda g: own.rebuild(own.code(values, told), g)):
        with pytest.raises(SpecError, match="which are not given"):
            call(None)
        with pytest.raises(SpecError, match="other codes"):
            call(GivenCodes(plain, plain.code(keys)))
        with pytest.raises(ShapeError, match="5 vectors, and codes of K for 4"):
            call(told.part(slice(0, 4)))
    with pytest.raises(SpecError, match="nothing is predicted here"):
        plain.code(values, told)
    for changed, error, said in (
        ({"uses": ((0, K),)}, SpecError, "stream k is predicted from no other"),
        ({"prediction": replace(own.prediction, basis=own.prediction.basis[:, 1:])}, ShapeError, "23 channels"),
        ({"gains": (own.gains + np.uint16(0x1F00))}, ShapeError, "want 256|too large"),
    ):
        with pytest.raises(error, match=said):
            replace(own, **changed)
    for changed in ({"scales": own.prediction.scales * 0}, {"source": b""}, {"basis": own.prediction.basis[:0]}):
        with pytest.raises(ShapeError, match="prediction"):
            replace(own.prediction, **changed)


# -- rows, records, arrays -----------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(1, 140), st.integers(1, 3), st.integers(1, 2), st.integers(0, 900), st.data())
def test_records_hold_the_rows_wherever_they_are_cut(tokens, heads, records, first, data):
    source = product(seed=data.draw(st.integers(0, 9)))
    own, spec, count = predicted(source, data.draw(st.integers(0, 9))), CodecSpec.parse("pq"), records * tokens
    before, behind = data.draw(st.integers(0, min(first, 5))), data.draw(st.integers(0, 5))
    total = count + before + behind
    keys = random_codes(source, total * heads).reshape(total, heads, -1)
    told = GivenRows(source, keys, first - before)
    bits = np.random.default_rng(count).standard_normal((count, heads, 8)).astype(BF).view(np.uint16)
    rows, codec = PredictedRows(spec, own, told).at(first), codec_for(spec, V, own, told).at(first)
    coded = rows.encode(bits, DtypeId.BFLOAT16)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    part = rows.at(first + start)
    assert np.array_equal(part.encode(bits[start:stop], DtypeId.BFLOAT16), coded[start:stop])
    encoded = codec.encode(bits, DtypeId.BFLOAT16, tokens)
    assert np.array_equal(rows.lay(coded, tokens, 8).body, encoded.body)
    codec.validate(encoded.body, tokens, 8)
    back = codec.decode(encoded.body, tokens, 8, DtypeId.BFLOAT16)
    assert np.array_equal(part.decode(coded[start:stop], 8, DtypeId.BFLOAT16), back[start:stop])
    given_codes = told.take(first, count, heads)
    flat = own.rebuild(own.code(bits.view(BF).astype(np.float32).reshape(-1, 8), given_codes), given_codes)
    assert np.array_equal(flat.astype(BF).view(np.uint16).reshape(back.shape), back)
    with pytest.raises(ShapeError, match="codes of K for"):
        rows.at(first + 1 + behind).encode(bits, DtypeId.BFLOAT16)
    with pytest.raises(ShapeError, match="codes of K for"):
        codec.decode(np.concatenate([encoded.body] * 2, axis=1), tokens, 8, DtypeId.BFLOAT16)


def test_arrays_of_v_stand_on_those_of_k():
    source = product(16, 12, 5, rotation=Rotation.of_base(50.0, 16))
    own = predicted(source, dim=8)
    rng = np.random.default_rng(1)
    k, v = (rng.standard_normal((150, 2, dim)).astype(np.float16) for dim in (16, 8))
    keys = kv.encode_array(k, "pq", dictionary=source, first=70)
    coded = kv.encode_array(v, "pq", stream="v", dictionary=own, first=70, given=keys)
    assert coded.nbytes == 3 * 64 * 2 * (own.groups + 2)
    back = kv.decode_array(coded)
    told = given_rows(keys).take(70, 150, 2)
    flat = v.astype(np.float32).reshape(-1, 8)
    assert np.array_equal(back, own.rebuild(own.code(flat, told), told).astype(np.float16).reshape(v.shape))
    assert np.array_equal(kv.decode_array(coded, np.array([149, 3, 64])), back[[149, 3, 64]])
    assert np.array_equal(kv.decode_array(coded, slice(60, 140)), back[60:140])
    later = kv.encode_array(v[80:], "pq", stream="v", dictionary=own, first=150, given=keys)
    assert np.array_equal(kv.decode_array(later), back[80:])
    wrong = np.linalg.norm((back.astype(float) - v)[128:, 0]) / np.linalg.norm(v[128:, 0].astype(float))
    assert coded.errors[2, 0] == pytest.approx(min(wrong * 32768, 65535), abs=1)
    none = kv.encode_array(v[:0], "pq", stream="v", dictionary=own, first=70, given=keys)
    assert kv.decode_array(none).shape == (0, 2, 8)


def test_k_that_v_cannot_stand_on_is_refused():
    source, other = product(seed=0), product(seed=5)
    own = predicted(source)
    x = np.random.default_rng(1).standard_normal((100, 2, 8)).astype(np.float32)
    keys = kv.encode_array(x, "pq", dictionary=source)

    def code(given, v=x, dictionary=own, spec="pq", **more):
        return kv.encode_array(v, spec, stream="v", dictionary=dictionary, given=given, **more)

    for given_, error, said in (
        (None, SpecError, "V is predicted from the codes of its K, which are not given"),
        (kv.encode_array(x, "pq", dictionary=other), SpecError, "given: K is in other codes than"),
        (kv.encode_array(x[:99], "pq", dictionary=source), ShapeError, "tokens 64 to 100 .*codes of K for 0 to 99"),
        (kv.encode_array(x[:, :1], "pq", dictionary=source), ShapeError, "of 2 heads, .* of 1"),
        (kv.encode_array(x, "pq", dictionary=source, first=1), ShapeError, "tokens 0 to 64 .* for 1 to 101"),
        (kv.encode_array(x, "int4/token/g32"), SpecError, "given: k as int4/token/g32, want k in product codes"),
        (code(keys), SpecError, "given: v as pq"),
        (x, DtypeError, "given: type is ndarray"),
    ):
        with pytest.raises(error, match=said):
            code(given_)
        with pytest.raises(error, match=said):
            kv.decode_array(replace(code(keys), given=given_))
    with pytest.raises(SpecError, match="nothing is predicted here"):
        code(keys, dictionary=product(uses=((0, V),)))
    with pytest.raises(SpecError, match="predicts nothing"):
        code(keys, dictionary=None, spec="int4/token/g32")
    with pytest.raises(SpecError, match="which are not given"):
        ProductRows(CodecSpec.parse("pq"), own)
    with pytest.raises(SpecError, match="V that is predicted from the codes of its K has no bound on errors"):
        codec_for("pq/max0.3", V, own, given_rows(keys))
    bad = keys.tail.copy()
    bad[0, 1, 64 + 3] = 16
    with pytest.raises(CorruptRecord, match="tail of given: row 3 of a head: shape 16") as error:
        kv.decode_array(replace(code(keys), given=replace(keys, tail=bad)))
    assert error.value.offset == bad.shape[2] + 67


# -- bytes, files, sets --------------------------------------------------------------------------------------------


def test_bytes_hold_the_prediction_and_nothing_else_does():
    source = product()
    own = predicted(source)
    data = np.frombuffer(own.to_bytes(), np.uint8)
    back = product_from_bytes(data)
    assert back.to_bytes() == data.tobytes()
    assert np.array_equal(back.prediction.basis, own.prediction.basis)
    components, plain = len(source.basis), replace(own, prediction=None)
    assert len(data) - len(plain.to_bytes()) == 2 * 16 + 2 * components * 8 + 16
    assert source.name == product_from_bytes(np.frombuffer(source.to_bytes(), np.uint8)).name
    start = len(plain.to_bytes()) - len(own.books) * 256  # of the scales
    for place, number, said in (
        (12, 0, "bytes, want"),
        (12, components + 1, "bytes, want"),
        (start, 0, "positive"),
        (start + 30, 0x7F80, "positive"),
        (start + 30, 0x7000, "too large"),
        (start + 32, 0x8000, "from -32767"),
        (18, K, "stream k is predicted from no other"),
    ):
        bad = data.copy()
        bad[place : place + 2] = np.array([number], "<u2").view(np.uint8)
        with pytest.raises((ShapeError, SpecError), match=said):
            product_from_bytes(bad)


def test_a_set_has_what_v_is_predicted_from(tmp_path):
    source = product(uses=((0, K), (1, K)))
    own, path = predicted(source, uses=((0, V), (1, V))), tmp_path / "m.kvdict"
    whole = DictionarySet(products=(own, source))
    write_artefact(path, Artefact(whole, {}))
    assert read_artefact(path).dictionaries.hash == whole.hash
    assert whole.hash != DictionarySet(products=(replace(own, prediction=None), source)).hash
    lines = [line.split() for line in invoke("info", path).stdout.splitlines()[-2:]]
    assert [line[6:] for line in lines] == [["from", "k", "-"], ["-"]]
    for others in ((), (product(uses=((0, K),)),), (product(seed=4, uses=((0, K), (1, K))),)):
        with pytest.raises(SpecError, match=r"layer [01] V is predicted from codes of K that are not in the set"):
            DictionarySet(products=(own, *others))
    forged = replace(own, prediction=replace(own.prediction, source=bytes(16)))
    object.__setattr__(whole, "products", (forged, source))
    write_artefact(path, Artefact(whole, {}), overwrite=True)
    with pytest.raises(CorruptRecord, match="not in the set"):
        read_artefact(path)


# -- training ------------------------------------------------------------------------------------------------------


def test_one_budget_for_k_and_what_it_leaves_of_v():
    keys, values = pairs(3000)
    plain = [Stream(((0, stream),), ArrayVectors(x), ArrayVectors(x[:500])) for stream, x in ((K, keys), (V, values))]
    told = [plain[0], replace(plain[1], source=0)]
    alone, trained = (train_products(own, 8.0, alike=False) for own in (plain, told))
    assert sum(own.product.groups for own in trained) == sum(own.product.groups for own in alone) == 12
    assert trained[0].product.groups > alone[0].product.groups  # its codes serve V too
    assert trained[1].product.groups < alone[1].product.groups
    assert trained[0].error < alone[0].error
    assert trained[1].error < alone[1].error
    assert trained[1].as_dict()["predicted"] is True
    held = GivenCodes(trained[0].product, trained[0].product.code(keys[:500]))
    own = trained[1].product
    assert trained[1].error == pytest.approx(relative(values[:500], own.rebuild(own.code(values[:500], held), held)))
    again = train_products(told, 8.0, alike=False, map_=backwards)
    assert [one.product.to_bytes() for one in again] == [one.product.to_bytes() for one in trained]


def test_pairs_are_of_the_same_tokens():
    keys, values = np.arange(1, 401, dtype=np.float32)[:, None], np.arange(1, 401, dtype=np.float32)[:, None] * 2
    keys[5] = values[399] = 0
    found = take_pairs(ArrayVectors(keys, 10), ArrayVectors(values, 10), 200)
    assert np.array_equal(found.values, 2 * found.keys)
    assert 180 <= len(found.keys) <= 200
    with pytest.raises(ShapeError, match="a K for each V"):
        take_pairs(ArrayVectors(keys[:390], 10), ArrayVectors(values, 10), 200)
    with pytest.raises(SpecError, match="zeros"):
        take_pairs(ArrayVectors(keys * 0), ArrayVectors(values), 200)


@pytest.fixture(name="dumps", scope="module")
def dumps_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    return [make_dump(folder / f"{n}.safetensors", n) for n in range(2)]


def test_the_command_trains_what_diff_and_drift_try(dumps, tmp_path):
    out = tmp_path / "m.kvdict"
    told = invoke(
        "train", *dumps, "-o", out, "--codec", "pq", "--budget", "6", "--sample", "400", "--metric", "gradient",
        "--rope", "pre", "--predict", "--json",
    )  # fmt: skip
    products = json.loads(told.stdout)["products"]
    assert [one["predicted"] for one in products] == [False, True] * 2
    own = read_artefact(out)
    assert own.information["settings"]["predict"] is True
    assert [one.prediction is None for one in own.dictionaries.products] == [True, False] * 2
    again = kv.train(
        dumps, tmp_path / "n.kvdict", codec="pq", budget=6, sample=400, metric="gradient", rope="pre", predict=True,
        threads=1,
    )  # fmt: skip
    assert again.hash == own.dictionaries.hash.hex()
    (row,) = try_codecs(dumps[0], ["pq"], dictionary=out, sinks=4).rows
    (text,) = measure_drift(dumps[:1], spec="pq", dictionary=out).texts
    errors = []
    with open_dump(dumps[0]) as dump:
        for layer in (0, 1):
            k, v = (dump.rows(layer, stream, 0, 400) for stream in (K, V))
            keys = kv.encode_array(k, "pq", dictionary=own.dictionaries.find_product(layer, K))
            values = own.dictionaries.find_product(layer, V)
            coded = kv.encode_array(v, "pq", stream="v", dictionary=values, given=keys)
            errors.append(np.array([kv.decode_array(coded, dtype=np.float32), v]))
    back, rows = np.array(errors).transpose(1, 0, 2, 3, 4)
    assert row.v.relative == pytest.approx(relative(rows[:, 4:], back[:, 4:]), rel=1e-3)
    blocks = [np.linalg.norm((back - rows)[:, at : at + 64], axis=(1, 3)) for at in range(0, 400, 64)]
    sizes = [np.linalg.norm(rows[:, at : at + 64], axis=(1, 3)) for at in range(0, 400, 64)]
    shares = np.square(np.array(blocks) / sizes).mean(axis=(1, 2))
    assert text.curves["v"].error() == pytest.approx(np.sqrt(shares.mean()), rel=1e-2)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"streams": "v"}, "predict: V is predicted from the K of its layer; want streams k,v"),
        ({"streams": "k"}, "want streams k,v"),
        ({"share": "all"}, "want streams k,v, and share none or layers"),
        ({"codec": "dict"}, "predict is for codec pq"),
    ],
)
def test_a_prediction_that_cannot_be_is_refused(dumps, tmp_path, changed, said):
    out = tmp_path / "m.kvdict"
    with pytest.raises(SpecError, match=said):
        kv.train(dumps, out, **({"codec": "pq", "predict": True} | changed))
    assert not out.exists()


def test_layers_may_share_a_prediction(dumps, tmp_path):
    out = tmp_path / "m.kvdict"
    kv.train(dumps, out, codec="pq", budget=6, sample=400, predict=True, share="layers", layers="0-1")
    values = read_artefact(out).dictionaries.find_product(1, V)
    assert values.uses == ((0, V), (1, V))
    assert values.prediction is not None


def test_perplexity_codes_v_by_its_k(dumps, tmp_path):
    source = product(12, 6, 3)
    own, path = predicted(source, dim=12), tmp_path / "m.kvdict"
    write_artefact(path, Artefact(DictionarySet(products=(source, own)), {}))
    coding = Coding.parse(f"pq @{path}")
    k, v = (np.random.default_rng(n).standard_normal((100, 2, 12)).astype(BF).astype(np.float32) for n in range(2))
    keys = coding.code(0, K, k, BF, 2)
    values = coding.code(0, V, v, BF, 2, keys.encoded)
    k[:2], v[:2] = k[2], v[2]  # as sinks are coded
    told = kv.encode_array(k, "pq", dictionary=source)
    back = kv.decode_array(kv.encode_array(v, "pq", stream="v", dictionary=own, given=told), dtype=np.float32)
    assert np.array_equal(values.rows[2:], back[2:])
    assert values.counts["nbytes"] == 2 * 128 * (own.groups + 2)
    with pytest.raises(CaptureError, match="not given"):
        coding.code(0, V, v, BF, 2)
