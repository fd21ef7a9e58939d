"""Product and trellis codes in logs: sets in CODEBOOK records, sequences through a store, what is refused."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk import chunks
from kvcodec.bulk.encode import encode_dump
from kvcodec.bulk.trial import try_codecs
from kvcodec.bulk.verify import verify_log
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.rotation import Rotation
from kvcodec.dictionary.artefact import Artefact, read_artefact, write_artefact
from kvcodec.dictionary.product import gain_table
from kvcodec.dumps import open_dump
from kvcodec.errors import CorruptRecord, MissingDictionary, SpecError
from kvcodec.layout import Kind, StreamId
from kvcodec.measure.budget import cache_bytes
from kvcodec.spec import CodecSpec
from kvcodec.store.set_records import set_records
from tests.attention_reference import attend, relative_error
from tests.test_bulk import REAL
from tests.test_cli import invoke, refused
from tests.test_product_codec import product, wide_set
from tests.trellis_codes import trellis

K, V = StreamId.K, StreamId.V
MODEL = kv.Model.uniform(3, 2, 8)
TURN = Rotation.of_base(50.0, 8)
SMALL = {"device": "page=512,unit=64,block=8192", "capacity": 1 << 20}
SINKS, TOKENS = 3, 200


OF_V = ((0, V),), ((1, V), (2, V))


def make_set(budget=32.0, k="pq", v="pq"):
    """Codes of another size for each stream, keys as before their rotary embedding; layer 2 shares V's."""
    products = [product(8, 6, 2 + n, ((n, K),), TURN, seed=n) for n in range(3) if k == "pq"]
    products += [product(8, 6, 3 + 2 * n, uses, seed=3 + n) for n, uses in enumerate(OF_V) if v == "pq"]
    trellises = [trellis(8, 4 + n, ((n, K),), TURN, rates=(1 + n,) * (4 + n)) for n in range(3) if k == "tcq"]
    trellises += [trellis(8, 7, uses, rates=(3, 1 + n, 2, 3, 1, 2, 2)) for n, uses in enumerate(OF_V) if v == "tcq"]
    both = [tuple(replace(one, budget=budget) for one in own) for own in (products, trellises)]
    return DictionarySet((), *both)


def make_mixed():
    """Product codes of K, dictionaries of V."""
    atoms = [quantize_atoms(np.random.default_rng(n).standard_normal((40, 8))) for n in range(3)]
    dictionaries = tuple(Dictionary(own, ((n, V),)) for n, own in enumerate(atoms))
    return DictionarySet(dictionaries, make_set().products[:3])


def rows(layer, stream):
    numbers = np.random.default_rng(10 * layer + stream).standard_normal((TOKENS, 2, 8))
    return numbers.astype(ml_dtypes.bfloat16)


def fill(store, first, end, name="a"):
    for layer in range(3):
        store.sequence(name).append(layer, rows(layer, K)[first:end], rows(layer, V)[first:end])


def read(path, name="a", **options):
    """All rows of a sequence, as one list of arrays of bits."""
    with kv.open(path, **options) as store:
        return [own.view(np.uint16) for layer in range(3) for own in store.sequence(name).read(layer)]


def coded_rows(own, layer, stream, first=SINKS):
    """What an array of the rows from `first` on decodes to."""
    codes, trellis_codes = own.find_product(layer, stream), own.find_trellis(layer, stream)
    encoded = kv.encode_array(rows(layer, stream)[first:], "pq" if codes else "tcq", stream=stream.name.lower(),
                              dictionary=codes or trellis_codes, first=first)  # fmt: skip
    return kv.decode_array(encoded).view(np.uint16)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# -- whole logs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"residual": 9}, {"residual": 0}, {"residual": {"k": 0, "v": 5}, "durability": "step"}, {"k": "pq/B32/g128"},
    {"residual": 0, "threads": 2, "durability": "step", "v": "pq/g64"}, {"k": "tcq/B32/g128", "v": "pq"},
    {"residual": 0, "durability": "step", "k": "tcq", "v": "tcq/B32"},
], ids=str)  # fmt: skip
def test_a_log_gives_what_arrays_give(tmp_path, options):
    """Written in two sessions, of which the first one crashes where steps are durable."""
    kinds = {name: options.get(name, "pq").split("/")[0] for name in "kv"}
    own, path = make_set(**kinds), tmp_path / "a.kvlog"
    first = {
        "k": "pq",
        "v": "pq/B32",
        "sinks": SINKS,
        "residual": 2,
        "model": MODEL,
        "dictionary": own,
        **SMALL,
    } | options
    later = {key: value for key, value in options.items() if key in ("durability", "threads")}
    store = kv.open(path, "w", **first)
    for start in range(0, 90, 30):
        fill(store, start, start + 30)
    (store.abandon if "durability" in options else store.close)()
    with kv.open(path, "a", **later) as store:
        assert len(store.sequence("a")) == 90
        for start in range(90, TOKENS, 55):
            fill(store, start, start + 55)
        live = [x.view(np.uint16) for layer in range(3) for x in store.sequence("a").read(layer)]
    back, keys = read(path), [(layer, stream) for layer in range(3) for stream in (K, V)]
    assert same(back, live)
    for (layer, stream), got in zip(keys, back, strict=True):
        residual = first["residual"]
        left = residual.get(stream.name.lower(), 0) if isinstance(residual, dict) else residual
        group = 128 if "g128" in first[stream.name.lower()] else 64
        end = TOKENS if not left else SINKS + (TOKENS - SINKS - left) // group * group
        raw = rows(layer, stream).view(np.uint16)
        assert np.array_equal(got[:SINKS], raw[:SINKS])
        assert np.array_equal(got[end:], raw[end:])
        assert np.array_equal(got[SINKS:end], coded_rows(own, layer, stream)[: end - SINKS])
    with kv.open(path) as store:
        stats = store.stats()
        assert stats.dictionaries == (own.hash.hex(),)
        assert own.nbytes < stats.dictionary_bytes < own.nbytes + 128 * 20
        policy = store.index.sequences[1].info.policy
        assert [policy.at(layer, K).spec.size for layer in range(3)] == [2, 3, 4] if kinds["k"] == "pq" else [1, 2, 3]
        assert policy.at(1, V).spec == policy.at(2, V).spec
    assert verify_log(path).verdict == "clean"


def test_a_set_of_both_kinds_and_a_log_that_only_names_it(tmp_path):
    own, options = make_mixed(), {"k": "pq", "v": "dict/s3", "residual": 0, "model": MODEL, **SMALL}
    whole, named = tmp_path / "a.kvlog", tmp_path / "b.kvlog"
    for path, embed in ((whole, True), (named, False)):
        with kv.open(path, "w", dictionary=own, embed=embed, **options) as store:
            fill(store, 0, 100)
    assert same(read(whole), read(named, dictionary=own))
    for missing in ({}, {"dictionary": make_set()}, {"dictionary": DictionarySet(own.dictionaries)}):
        with pytest.raises(MissingDictionary, match=own.hash.hex()) as error:
            read(named, **missing)
        assert error.value.basis == own.hash
    before = named.read_bytes()
    with pytest.raises(MissingDictionary):
        kv.open(named, "a")
    assert named.read_bytes() == before
    assert own.hash.hex() in verify_log(named).error
    assert verify_log(named, dictionary=own).verdict == "clean"
    with kv.open(whole, "a", dictionary=own) as store:  # it holds the set already
        assert store.stats().dictionary_bytes < own.nbytes + 128 * 20
        fill(store, 100, 130)
    with kv.open(named, "a", dictionary=own) as store:  # and this one takes it up now
        fill(store, 100, 130)
    assert same(read(whole), read(named))


def test_product_codes_beside_dictionaries_that_grow(tmp_path):
    own, path = make_mixed(), tmp_path / "a.kvlog"
    with kv.open(path, "w", k="pq", v="dict/s3", residual=0, model=MODEL, dictionary=own, grow=2, **SMALL) as store:
        for start in range(0, TOKENS, 50):
            fill(store, start, start + 50)
        assert store.stats().growths
        live = [x.view(np.uint16) for layer in range(3) for x in store.sequence("a").read(layer)]
    assert same(read(path), live)
    for layer in range(3):
        assert np.array_equal(live[2 * layer][4:], coded_rows(own, layer, K, 4))
    with kv.open(path, "a") as store:
        fill(store, 0, 5)
        outgoing = store.sequence("a")._outgoing
        assert outgoing[0, K].newest.policy.spec.basis == own.hash != outgoing[0, V].newest.policy.spec.basis
    assert verify_log(path).verdict == "clean"


def test_programmed_bytes_of_32_byte_vectors(tmp_path):
    """14 times fewer than 16 bits, every overhead but the set counted: d = 256, no residual window, tlc."""
    layers, tokens, path = 18, 4096, tmp_path / "a.kvlog"
    own = product(256, 30, 30, tuple((n, stream) for n in range(layers) for stream in (K, V)))
    with kv.open(
        path, "w", model=kv.Model.uniform(layers, 1, 256), k="pq/g256", v="pq/g256", residual=0, device="tlc",
        dictionary=DictionarySet(products=(own,)),
    ) as store:  # fmt: skip
        bits = np.random.default_rng(0).standard_normal((tokens, 1, 256), np.float32).astype(ml_dtypes.bfloat16)
        for layer in range(layers):
            store.sequence("a").append(layer, bits, bits)
    with kv.open(path) as store:
        stats = store.stats()
    assert stats.raw16_bytes == 2 * layers * tokens * 512
    assert stats.ratio(stats.programmed_bytes - stats.dictionary_bytes) >= 15
    assert stats.bytes_per_number == 32 / 256


# -- damage --------------------------------------------------------------------------------------------------------


def codebook_places(path):
    """(byte of the file, header) of each CODEBOOK record."""
    with kv.open(path) as store:
        sets = store.index.dictionaries
        return [
            (store.device.file_offset(one.place.block, one.place.offset), one.header.copy())
            for one in sets.records()
            if int(one.header["kind"]) == Kind.CODEBOOK
        ]


def test_a_flip_in_a_codebook_takes_no_tokens_from_whoever_has_the_set(tmp_path):
    own, path = make_set(), tmp_path / "a.kvlog"
    kv.open(path, "w", model=MODEL, **SMALL).close()
    with kv.open(path, "a", k="pq", v="pq", residual=0, dictionary=own) as store:
        fill(store, 0, 100)
    whole, places = read(path), codebook_places(path)
    assert {int(header["codebook"]) for _, header in places} == set(range(5))
    assert len(places) > 5  # they are of more than one record each
    data = bytearray(path.read_bytes())
    at, header = places[3]
    data[at + int(header["header_bytes"]) + 100] ^= 4
    path.write_bytes(data)
    report = verify_log(path)
    assert report.verdict == "damaged"
    assert any(bad.start <= at < bad.end for bad in report.damage)
    with pytest.raises(MissingDictionary, match="of its 5 codebooks"):
        read(path, recovery="skip-damaged")
    assert same(read(path, recovery="skip-damaged", dictionary=own), whole)


def test_a_crash_within_a_set_leaves_none(tmp_path):
    """The records of a set come before all that is coded by it; what is there of one is taken up again whole."""
    own, path = make_mixed(), tmp_path / "a.kvlog"
    with kv.open(path, "w", model=MODEL, **SMALL) as store:
        some = list(set_records(own, store.step_limit))
        store.log_records(some[:-1])
        assert store.stats().dictionaries == ()
    with kv.open(path) as store, pytest.raises(MissingDictionary, match="2 of its 3 codebooks"):
        store.index.dictionaries.find(own.hash)
    with kv.open(path, "a", k="pq", v="dict/s3", residual=0, dictionary=own) as store:
        fill(store, 0, 70)
        assert store.stats().dictionaries == (own.hash.hex(),)
    assert len(read(path)) == 6
    with kv.open(path) as store:
        assert [one.to_bytes() for one in store.index.dictionaries.find(own.hash).products] == [
            one.to_bytes() for one in own.products
        ]


# -- what is refused -----------------------------------------------------------------------------------------------


def test_refused_bindings(tmp_path):
    path, own, paths = tmp_path / "a.kvlog", make_set(budget=50.0), make_set(50.0, v="tcq")
    wide = DictionarySet(products=tuple(product(16, 6, 3, ((n, s),)) for n in range(3) for s in (K, V)))
    for options, why in (
        ({"k": "pq"}, "layer 0, stream k: pq/g64 needs product codes: pass dictionary="),
        ({"k": "pq", "dictionary": wide}, "8 channels, its product codes have 16"),
        ({"k": "dict/s2", "dictionary": own}, "has no dictionary for it"),
        ({"v": "pq", "dictionary": DictionarySet(products=own.products[:3])}, "has no product codes for it"),
        ({"k": "pq/B32", "dictionary": own}, "k: pq/B32/g64: B32, .* were trained for a budget of 50 bytes"),
        ({"k": "pq", "v": "pq", "dictionary": own, "grow": 4}, "product codes do not grow"),
        ({"k": "tcq"}, "layer 0, stream k: tcq/g64 needs trellis codes: pass dictionary="),
        ({"k": "tcq", "dictionary": own}, "has no trellis codes for it"),
        ({"v": "tcq/B32", "dictionary": paths}, "v: tcq/B32/g64: B32, .* were trained for a budget of 50 bytes"),
        ({"k": "int4/channel", "v": "tcq", "dictionary": paths, "grow": 4}, "trellis codes do not grow"),
        ({"durability": "step", "journal": "pq"}, "journal pq/g64: want raw"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=why):
            kv.open(path, "w", model=MODEL, **options)
        assert not path.exists()


def test_budgets_are_compared_wherever_codes_are_taken():
    own = make_set(budget=50.0)
    x = rows(0, V)
    for spec in ("pq", "pq/B50", "pq/B50.01"):  # in sixteenths of a byte
        assert kv.encode_array(x, spec, stream="v", dictionary=own.find_product(0, V)).spec.product.budget == 0
    with pytest.raises(SpecError, match="B32, and the product codes were trained for a budget of 50 bytes"):
        kv.encode_array(x, "pq/B32", stream="v", dictionary=own.find_product(0, V))
    unknown = replace(own.find_product(0, V), budget=0.0)
    assert kv.encode_array(x, "pq/B32", stream="v", dictionary=unknown).nbytes
    trained = DictionarySet(products=tuple(replace(one, budget=24.0) for one in wide_set().products))
    with pytest.raises(SpecError, match="budget of 24 bytes"):
        try_codecs(REAL, ["pq/B32"], dictionary=trained)
    with pytest.raises(SpecError, match="multiple of 1/16"):
        replace(own.products[0], budget=0.01)
    with pytest.raises(SpecError, match="no size before the codes are known"):
        cache_bytes(MODEL, 100, k="pq", v="raw", residual=0, sinks=0)


@pytest.mark.parametrize("specs", [
    {"k": "pq", "v": "pq"}, {"k": "pq", "v": "int4/token/g16"}, {"k": "raw", "v": "pq"}, {"k": "tcq", "v": "pq"},
    {"k": "pq", "v": "tcq"},
], ids=str)  # fmt: skip
def test_attention_reads_them_in_the_log_and_in_memory(tmp_path, specs):
    path, lot = tmp_path / "a.kvlog", np.random.default_rng(8)
    queries = lot.standard_normal((3, 2, 8)).astype(np.float32)

    def check(sequence):
        for layer in range(2):
            k, v = sequence.read(layer, dtype=np.float32)
            for q in queries:
                assert relative_error(sequence.attend(layer, q), attend(q, k, v)[0]) < 1e-3

    own = make_set(k="tcq" if specs["k"] == "tcq" else "pq", v="tcq" if specs["v"] == "tcq" else "pq")
    with kv.open(path, "w", model=MODEL, residual=0, dictionary=own, **specs, **SMALL) as store:
        fill(store, 0, 100)  # a record, and rows that wait for theirs
        check(store.sequence("a"))
    with kv.open(path) as store:
        check(store.sequence("a"))


@pytest.mark.parametrize(("codec", "error"), [("pq", 0.1), ("pq", 0.5), ("tcq", 0.1)])
def test_a_bound_holds_through_a_log_and_attention_reads_what_is_kept_otherwise(tmp_path, codec, error):
    path, spec, own = tmp_path / "a.kvlog", f"{codec}/max{error}", make_set(k=codec, v=codec)
    with kv.open(path, "w", model=MODEL, k=spec, v=spec, residual=5, sinks=2, dictionary=own, **SMALL) as store:
        fill(store, 0, 70)
    with kv.open(path, "a") as store:
        fill(store, 70, TOKENS)
    with kv.open(path) as store:
        sequence = store.sequence("a")
        for layer in range(3):
            k, v = sequence.read(layer, dtype=np.float32)
            for got, stream in ((k, K), (v, V)):
                was = rows(layer, stream).astype(np.float32)
                assert (np.linalg.norm(got - was, axis=2) <= error * np.linalg.norm(was, axis=2) * (1 + 1e-5)).all()
            q = np.random.default_rng(9).standard_normal((2, 8)).astype(np.float32)
            assert relative_error(sequence.attend(layer, q), attend(q, k, v)[0]) < 1e-3
    assert verify_log(path).verdict == "clean"


@pytest.mark.parametrize(("codec", "said"), [("pq", "2 groups of 8 channels"), ("tcq", "1 bytes of 8 channels")])
def test_a_record_of_codes_of_another_size_than_its_stream_has(tmp_path, codec, said):
    path, own = tmp_path / "a.kvlog", make_set(k=codec)
    with kv.open(path, "w", model=MODEL, k=codec, residual=0, dictionary=own, embed=False, **SMALL) as store:
        fill(store, 0, 70)
    if codec == "pq":
        other = DictionarySet(products=(product(8, 6, 5, ((0, K),), TURN), *own.products[1:]))
    else:
        others = (trellis(8, 6, ((0, K),), TURN, rates=(3,) * 6), *own.trellises[1:])
        other = DictionarySet(products=own.products, trellises=others)
    other.__dict__["hash"] = own.hash
    with kv.open(path, dictionary=other) as store, pytest.raises(CorruptRecord, match=said):
        store.sequence("a").read(0)
    assert verify_log(path, dictionary=other).verdict == "damaged"


# -- commands ------------------------------------------------------------------------------------------------------


@pytest.fixture(name="artefact", scope="module")
def artefact_fixture(tmp_path_factory):
    path = tmp_path_factory.mktemp("set") / "m.kvdict"
    own = (replace(one, budget=6.0, rotation=None) for one in wide_set().products)
    write_artefact(path, Artefact(DictionarySet(products=tuple(own)), {}))
    return path


@pytest.fixture(name="wide_trellises", scope="module")
def wide_trellises_fixture(tmp_path_factory):
    """A file with trellis codes of the dump's keys, and product codes of its values."""
    path, products = tmp_path_factory.mktemp("set") / "t.kvdict", wide_set().products[1::2]
    codes = [trellis(256, 8, ((layer, K),), seed=layer, rates=(5, 4, 3, 3, 2, 2, 1, 1)) for layer in (5, 8, 17)]
    made = tuple(replace(one, gains=gain_table(1e-6, 1e-3), budget=6.0) for one in codes)
    write_artefact(path, Artefact(DictionarySet((), products, made), {}))
    return path


@pytest.mark.parametrize("codec", ["pq", "tcq"])
def test_commands_take_them(tmp_path, capsys, artefact, wide_trellises, codec):
    log, out, artefact = (
        tmp_path / "a.kvlog",
        tmp_path / "out.safetensors",
        {"pq": artefact, "tcq": wide_trellises}[codec],
    )
    said = refused(capsys, "encode", REAL, log, "--k", f"{codec}/B32", "--dictionary", artefact)
    assert "budget of 6 bytes" in said
    assert not list(tmp_path.iterdir())
    options = ("--k", f"{codec}/B6", "--v", "pq", "--dictionary", artefact, "--residual", "0", "--sequence", "a")
    invoke("encode", REAL, log, *options)
    shown = invoke("info", log).stdout
    assert f"{codec}/g64" in shown
    assert "dictionary sets" in shown
    assert "clean" in invoke("verify", log).stdout
    invoke("decode", log, out)
    own = read_artefact(artefact).dictionaries
    with open_dump(REAL) as was, open_dump(out) as got:
        for layer, stream in ((5, K), (17, V)):
            spec, id_ = codec if stream == K else "pq", stream.name.lower()
            codes = own.find_for(CodecSpec.parse(spec), layer, stream)
            coded = kv.encode_array(was.rows(layer, stream, 4, 512), spec, stream=id_, dictionary=codes)
            again = got.rows(layer, stream, 4, 512).view(np.uint16)
            assert np.array_equal(again, kv.decode_array(coded).view(np.uint16))
    assert f"{codec}/g64" in invoke("drift", log, "--dictionary", artefact).stdout


@pytest.mark.parametrize("codec", ["pq", "tcq"])
def test_an_interrupted_encode_goes_on(tmp_path, monkeypatch, artefact, wide_trellises, codec):
    class Interrupted(Exception):
        pass

    def interrupt(done, total):
        if done > total // 2:
            raise Interrupted

    artefact = {"pq": artefact, "tcq": wide_trellises}[codec]
    options = {"k": f"{codec}/B6", "v": "pq", "dictionary": artefact, "resume": True}
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1 << 16)
    log, whole = tmp_path / "a.kvlog", tmp_path / "whole.kvlog"
    with pytest.raises(Interrupted):
        encode_dump(REAL, log, progress=interrupt, **options)
    same_codes = read_artefact(artefact).dictionaries
    other = DictionarySet((), same_codes.products[::-1], same_codes.trellises)
    with pytest.raises(SpecError, match="begun with other options"):
        encode_dump(REAL, log, **options | {"dictionary": other})
    encode_dump(REAL, log, **options)
    encode_dump(REAL, whole, **options)
    with kv.open(log) as one, kv.open(whole) as two:
        (name,) = one.sequences()
        for layer in (5, 8, 17):
            pairs = zip(one.sequence(name).read(layer), two.sequence(name).read(layer), strict=True)
            assert all(np.array_equal(a.view(np.uint16), b.view(np.uint16)) for a, b in pairs)


def test_keys_of_before_their_rotation_begin_at_0(tmp_path):
    turned = tuple(replace(one, rotation=Rotation.of_base(1e4, 256)) for one in wide_set().products[::2])
    with pytest.raises(SpecError, match="choose tokens that begin at 0"):
        encode_dump(REAL, tmp_path / "a.kvlog", k="pq", dictionary=DictionarySet(products=turned), tokens="64:200")
    assert not list(tmp_path.iterdir())
