"""Parts of dumps and sequences, several dumps, every sequence, formats and threads."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.compare import compare
from kvcodec.bulk.decode import decode_all, decode_log, file_stem
from kvcodec.bulk.decode_rows import Readers
from kvcodec.bulk.encode import encode_dump, encode_dumps
from kvcodec.bulk.selection import describe_numbers, pick_layers, pick_tokens
from kvcodec.bulk.threads import share_work
from kvcodec.bulk.verify import verify_log
from kvcodec.dumps import open_dump
from kvcodec.errors import DumpError, IdentityMismatch, NonFiniteError, ShapeError, SpecError, UnknownSequence
from kvcodec.layout import StreamId
from tests.caches import rows, same
from tests.test_bulk import dump_fixture, log_fixture, make_dump, names, write_dump  # noqa: F401

K, V = StreamId.K, StreamId.V
REAL = Path(__file__).parent / "data" / "gemma3_270m_512_3layers.safetensors"


# -- layers and tokens ---------------------------------------------------------------------------------------------


def test_ranges():
    assert pick_layers("0-1, 17", (0, 1, 5, 17), "x") == (0, 1, 17)
    assert pick_layers([5, 0], (0, 1, 5, 17), "x") == (0, 5)
    assert pick_layers(None, (0, 5), "x") == (0, 5)
    cases = (("10:20", 10, 20), (":20", 0, 20), ("10:", 10, 30), (":", 0, 30), ("30:30", 30, 30), (None, 0, 30))
    for asked, first, end in (*cases, (slice(3, 5), 3, 5), (slice(None), 0, 30)):
        assert pick_tokens(asked, 30, "x") == range(first, end)
    assert describe_numbers((0, 1, 2, 5, 17, 18)) == "0-2,5,17-18"


@pytest.mark.parametrize("asked", ["", "x", "1-", "-1", "3-1", "1,,2", "99", "0-70000", "0-999999999", [], [7]])
def test_layers_refused(dump, tmp_path, asked):
    with pytest.raises(SpecError, match=r"chat\.safetensors: layers"):
        encode_dump(dump, tmp_path / "b.kvlog", layers=asked)
    assert not (tmp_path / "b.kvlog").exists()


@pytest.mark.parametrize(
    "asked", ["", "1", "a:b", "-3:", "2:1", "0:301", "301:", "1:2:3", "9" * 30 + ":", slice(-1, None), slice(0, 9, 2)]
)
def test_tokens_refused(dump, log, tmp_path, asked):
    with pytest.raises(SpecError, match=r"chat\.safetensors: tokens"):
        encode_dump(dump, tmp_path / "b.kvlog", tokens=asked)
    with pytest.raises(SpecError, match="sequence 'chat': tokens"):
        decode_log(log, tmp_path / "b.safetensors", tokens=asked)


def test_a_part_of_a_dump_is_encoded(tmp_path):
    dump = make_dump(tmp_path / "chat.safetensors", 300, (0, 1, 5))
    report = encode_dump(dump, tmp_path / "a.kvlog", k="raw", v="raw", layers="1-1,5", tokens="30:200")
    assert (report.tokens, report.layers) == (170, 2)
    with kv.open(tmp_path / "a.kvlog") as store, open_dump(dump) as whole:
        assert [bool(layer.streams) for layer in store.model.layers] == [False, True, False, False, False, True]
        assert same(store.sequence("chat").read(5)[1], whole.rows(5, V, 30, 200))


def test_a_part_of_a_sequence_is_decoded(tmp_path, log):
    report = decode_log(log, tmp_path / "b.safetensors", layers="1", tokens="100:164")
    assert (report.tokens, report.layers, report.first) == (64, 1, 100)
    with kv.open(log) as store, open_dump(tmp_path / "b.safetensors") as part:
        assert (part.layers, part.tokens, part.metadata["first_token"]) == ((1,), 64, "100")
        assert same(part.rows(1, K, 0, 64), store.sequence("chat").read(1, slice(100, 164))[0])
    with pytest.raises(SpecError, match="layers 2, want some of 0-1"):
        decode_log(log, tmp_path / "c.safetensors", layers=[0, 2])
    assert decode_log(log, tmp_path / "c.safetensors", tokens="7:7").tokens == 0


def test_a_sliding_window_forgets(tmp_path):
    dump = make_dump(tmp_path / "chat.safetensors", 1000, (0, 1, 2), sliding_window="100", global_layers="1")
    log = tmp_path / "a.kvlog"
    encode_dump(dump, log, residual=16)
    assert verify_log(log).verdict == "clean"
    report = decode_log(log, tmp_path / "b.npz")
    assert (report.tokens, report.first, report.forgotten) == (100, 900, 900)
    with np.load(tmp_path / "b.npz") as library:
        assert library["positions"].tolist() == list(range(900, 1000))
    assert decode_log(log, tmp_path / "c.safetensors", layers="1").tokens == 1000
    assert decode_log(log, tmp_path / "d.safetensors", tokens="950:960").tokens == 10
    assert decode_log(log, tmp_path / "e.safetensors", recovery="skip-damaged").tokens == 100
    with pytest.raises(SpecError, match="tokens below 900 are behind"):
        decode_log(log, tmp_path / "f.safetensors", tokens="899:960")
    with pytest.raises(DumpError, match="nothing else"):
        decode_log(log, tmp_path / "f.npy")
    result = compare(dump, log)
    assert [layer.k.tokens for layer in result.layers] == [100, 1000, 100]
    assert result.layers[0].k.worst_token.token >= 900
    assert result.largest_relative < 0.2


# -- several dumps, every sequence ---------------------------------------------------------------------------------


def test_several_dumps_become_sequences(tmp_path):
    dumps = [make_dump(tmp_path / f"{name}.safetensors", n) for name, n in (("a", 100), ("b", 70))]
    told = []
    reports = encode_dumps(dumps, tmp_path / "l.kvlog", progress=lambda *at: told.append(at))
    assert [(r.sequence, r.tokens, r.own.tokens) for r in reports] == [("a", 100, 100), ("b", 70, 70)]
    assert told[-1] == (340, 340)
    assert told == sorted(told)
    encode_dumps([make_dump(tmp_path / "c.safetensors", 9)], tmp_path / "l.kvlog", append=True)
    with kv.open(tmp_path / "l.kvlog") as store:
        assert store.sequences() == ["a", "b", "c"]


def test_several_dumps_are_refused_as_one(tmp_path):
    (tmp_path / "x").mkdir()
    one, twin = make_dump(tmp_path / "a.safetensors", 70), make_dump(tmp_path / "x" / "a.safetensors", 70)
    other = make_dump(tmp_path / "b.safetensors", 70, heads=3)
    log = tmp_path / "l.kvlog"
    for dumps, error, text in (
        ([one, twin], SpecError, "would both be sequence 'a'"),
        ([], SpecError, "no dump"),
        ([one, other], IdentityMismatch, "belongs to"),
        ([one, tmp_path / "none.safetensors"], DumpError, "cannot open"),
    ):
        with pytest.raises(error, match=text):
            encode_dumps(dumps, log)
        assert not any(name.startswith((".", "l.")) for name in names(tmp_path))
    encode_dump(make_dump(tmp_path / "first.safetensors", 70), log)
    before = log.read_bytes()
    bad = rows(0, "k", 70)
    bad[3] = np.nan
    write_dump(tmp_path / "b.safetensors", {f"{s}.{n}": rows(n, s, 70) for n in (0, 1) for s in "kv"} | {"k.1": bad})
    with pytest.raises(NonFiniteError):
        encode_dumps([one, other], log, append=True)
    assert log.read_bytes() == before


def test_every_sequence_is_decoded(tmp_path):
    odd = ("plain", "a/b", "..", ".hidden", "ü ~", "x" * 700, "%2F")
    dump = make_dump(tmp_path / "chat.safetensors", 70)
    for name in odd:
        encode_dump(dump, tmp_path / "a.kvlog", sequence=name, append=(tmp_path / "a.kvlog").exists())
    told = []
    reports = decode_all(tmp_path / "a.kvlog", tmp_path / "out", format="npz", progress=lambda *at: told.append(at))
    assert [r.sequence for r in reports] == list(odd)
    assert len(names(tmp_path / "out")) == len(odd)
    assert {"plain.npz", "a%2Fb.npz", "%2E..npz", "%2Ehidden.npz", "%252F.npz"} <= set(names(tmp_path / "out"))
    assert told == sorted(told)
    assert told[-1] == (140 * len(odd), 140 * len(odd))
    with pytest.raises(DumpError, match=r"plain\.npz: exists"):
        decode_all(tmp_path / "a.kvlog", tmp_path / "out", format="npz")
    (tmp_path / "out" / "plain.npz").write_bytes(b"")
    decode_all(tmp_path / "a.kvlog", tmp_path / "out", format="npz", overwrite=True, tokens=":64")
    with open_dump(tmp_path / "out" / "plain.npz") as got:
        assert got.tokens == 64
    with pytest.raises(UnknownSequence):
        decode_log(tmp_path / "a.kvlog", tmp_path / "b.npz", sequence="none")


def test_files_have_a_name_each():
    many = ["a", "A", "a/b", "a%2Fb", ".", "%2E", "x" * 300, "x" * 301, "ü" * 99]
    assert len({file_stem(name) for name in many}) == len(many)
    assert all(len(os.fsencode(file_stem(name))) <= 200 for name in many)


# -- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, "float16", "float32"])
def test_every_format_holds_the_same_rows(tmp_path, log, dtype):
    for name in ("safetensors", "npz", "npy"):
        decode_log(log, tmp_path / f"b.{name}", dtype=dtype)
        decode_log(log, tmp_path / f"{name}.any", dtype=dtype, format=name)
        assert (tmp_path / f"b.{name}").read_bytes() == (tmp_path / f"{name}.any").read_bytes()
    with open_dump(tmp_path / "b.safetensors") as a:
        for name in ("npz", "npy"):
            with open_dump(tmp_path / f"b.{name}") as b:
                assert a.dtype == b.dtype
                for layer in (0, 1):
                    for stream in (K, V):
                        assert a.rows(layer, stream, 0, 300).tobytes() == b.rows(layer, stream, 0, 300).tobytes()
    if dtype is None:
        encode_dump(tmp_path / "b.npy", tmp_path / "again.kvlog", k="raw", v="raw")
        assert compare(tmp_path / "b.npz", tmp_path / "again.kvlog").largest_relative == 0


def test_formats_refused(tmp_path, log):
    with pytest.raises(SpecError, match="format is 'pt', want one of safetensors, npz, npy"):
        decode_log(log, tmp_path / "b", format="pt")
    dump = write_dump(
        tmp_path / "d.safetensors",
        {"k.0": rows(0, "k", 70, 2, 32), "v.0": rows(0, "v", 70, 4, 16)},
    )
    encode_dump(dump, tmp_path / "d.kvlog")
    with pytest.raises(ShapeError, match="layers differ in shape"):
        decode_log(tmp_path / "d.kvlog", tmp_path / "b.npy")
    assert not (tmp_path / "b.npy").exists()


# -- threads -------------------------------------------------------------------------------------------------------


def test_threads_change_nothing(tmp_path):
    dump = make_dump(tmp_path / "chat.safetensors", 500, (0, 1, 2, 3, 4))
    found = []
    for threads in (1, 2, 5):
        log, out = tmp_path / "a.kvlog", tmp_path / "b.safetensors"
        encode_dump(dump, log, threads=threads, overwrite=True)
        told = []
        decode_log(log, out, threads=threads, overwrite=True, progress=lambda *at, told=told: told.append(at))
        assert told == sorted(told)
        assert told[-1] == (2500, 2500)
        with kv.open(log) as store:
            found.append((out.read_bytes(), store.stats().as_dict()))
    assert found[0] == found[1] == found[2]
    for threads in (0, -1, 257):
        with pytest.raises(SpecError, match=f"threads is {threads}, want 1 to 256"):
            encode_dump(dump, tmp_path / "b.kvlog", threads=threads)
        with pytest.raises(SpecError, match="threads is"):
            decode_log(log, out, threads=threads)


@pytest.mark.parametrize("threads", [1, 3])
def test_what_a_thread_raises_is_raised(threads):
    seen = []

    def work(n):
        seen.append(n)
        if n == 5:
            raise ZeroDivisionError
        time.sleep(0.001)  # else the others may be done before they are told to stop

    with pytest.raises(ZeroDivisionError):
        share_work(work, range(1000), threads)
    assert len(seen) < 1000


def test_a_log_that_is_replaced_while_it_is_read(dump, log):
    def open_another():
        encode_dump(dump, log, overwrite=True)
        return kv.open(log)

    with kv.open(log) as store:
        readers = Readers(store, "chat", open_another)
        with readers.lend() as one:
            assert len(one) == 300
            with pytest.raises(SpecError, match="was replaced while it was read"), readers.lend():
                pass
        readers.close()


def test_a_spec_file_and_the_models_identity_go_into_the_log(tmp_path):
    (tmp_path / "spec.toml").write_text('k = "int8/channel/g64"\nresidual = 16\n[[layer]]\nlayers = 17\nv = "raw"\n')
    (tmp_path / "config.json").write_text('{"model_type": "gemma3"}')
    (tmp_path / "other.json").write_text('{"model_type": "llama"}')
    log = tmp_path / "a.kvlog"
    options = {"spec": tmp_path / "spec.toml", "model_file": tmp_path / "config.json", "shard": "1/2"}
    encode_dump(REAL, log, **options)
    with kv.open(log) as store:
        assert (store.model.shard, store.model.shards, len(store.model.fingerprint)) == (1, 2, 32)
        policy = store.index.sequences[1].info.policy
        assert [str(policy.at(n, s).spec) for n in (8, 17) for s in (kv.StreamId.K, kv.StreamId.V)] == [
            "int8/channel/g64", "int4/token/g64", "int8/channel/g64", "raw",
        ]  # fmt: skip
    for wrong in ({"model_file": tmp_path / "other.json"}, {"shard": "0/2"}):
        with pytest.raises(IdentityMismatch, match=r"fingerprint|shard"):
            encode_dump(REAL, log, append=True, sequence="b", **(options | wrong))
    encode_dump(REAL, log, append=True, sequence="b", **options)
    by_hand = store.model.fingerprint.hex()
    encode_dump(REAL, log, append=True, sequence="c", model_file=by_hand, shard="1/2")
    with pytest.raises(DumpError, match="cannot open"):
        encode_dump(REAL, log, append=True, sequence="d", model_file="nowhere", shard="1/2")
    with pytest.raises(SpecError, match="0/8"):
        encode_dump(REAL, log, append=True, sequence="c", shard="2")
