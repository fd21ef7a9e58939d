"""Whole dumps and logs: encode, decode, compare, verify."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.bulk import chunks
from kvcodec.bulk.compare import compare
from kvcodec.bulk.decode import decode_log
from kvcodec.bulk.encode import encode_dump
from kvcodec.bulk.verify import verify_log
from kvcodec.dumps import open_dump
from kvcodec.dumps.safetensors import SafetensorsWriter
from kvcodec.errors import (
    CorruptRecord,
    DeviceBusy,
    DtypeError,
    DumpError,
    IdentityMismatch,
    LogExists,
    NonFiniteError,
    ShapeError,
    SpecError,
    UnknownSequence,
)
from kvcodec.layout import StreamId
from kvcodec.store.model import Layer, Stream
from tests.caches import rows, same

REAL = Path(__file__).parent / "data" / "gemma3_270m_512_3layers.safetensors"
TINY = "page=512,unit=64,block=8192"
BF16 = ml_dtypes.bfloat16


def write_dump(path, tensors, **metadata):
    declared = [(name, array.dtype, array.shape) for name, array in tensors.items()]
    with SafetensorsWriter(path, declared, metadata, overwrite=True) as writer:
        for name, array in tensors.items():
            writer.write(name, 0, array)
        writer.commit()
    return path


def make_dump(path, tokens=300, layers=(0, 1), dtype=BF16, heads=2, dim=16, **metadata):
    tensors = {f"{s}.{n}": rows(n, s, tokens, heads, dim, dtype) for n in layers for s in "kv"}
    return write_dump(path, tensors, **metadata)


@pytest.fixture
def dump(tmp_path):
    return make_dump(tmp_path / "chat.safetensors")


@pytest.fixture
def log(tmp_path, dump):
    encode_dump(dump, tmp_path / "a.kvlog", residual=16)
    return tmp_path / "a.kvlog"


def names(path):
    return sorted(p.name for p in Path(path).iterdir())


# -- encode and decode ---------------------------------------------------------------------------------------------


def test_raw_rows_come_back_bit_for_bit(tmp_path, dump):
    report = encode_dump(dump, tmp_path / "a.kvlog", k="raw", v="raw")
    assert (report.sequence, report.tokens, report.layers) == ("chat", 300, 2)
    assert report.own.payload_bytes == report.own.raw16_bytes == 300 * 2 * 2 * 2 * 16 * 2
    decoded = decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors")
    assert (decoded.tokens, decoded.dtype, decoded.lost) == (300, "bfloat16", ())
    assert decoded.dump_bytes == (tmp_path / "b.safetensors").stat().st_size
    with open_dump(dump) as a, open_dump(tmp_path / "b.safetensors") as b:
        assert b.metadata["kv_heads"] == "2"
        assert b.metadata["head_dim"] == "16"
        assert b.metadata["source"] == "a.kvlog"
        for layer in a.layers:
            for stream in (StreamId.K, StreamId.V):
                assert same(a.rows(layer, stream, 0, 300), b.rows(layer, stream, 0, 300))


def test_decoding_gives_what_a_sequence_reads(tmp_path, log):
    kv.decode(log, tmp_path / "b.safetensors")
    kv.decode(log, tmp_path / "wide.safetensors", dtype="float32")
    kv.decode(log, tmp_path / "half.safetensors", dtype="float16")
    with kv.open(log) as store, open_dump(tmp_path / "b.safetensors") as b:
        narrow, wide = store.sequence("chat").read(1), store.sequence("chat").read(1, dtype=np.float32)
        assert same(b.rows(1, StreamId.V, 0, 300), narrow[1])
    with open_dump(tmp_path / "wide.safetensors") as w, open_dump(tmp_path / "half.safetensors") as h:
        assert np.array_equal(w.rows(1, StreamId.V, 0, 300), wide[1])
        assert same(h.rows(1, StreamId.V, 0, 300), wide[1].astype(np.float16))


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 14])
def test_the_chunks_change_nothing(tmp_path, dump, monkeypatch, chunk_bytes):
    encode_dump(dump, tmp_path / "a.kvlog")
    decode_log(tmp_path / "a.kvlog", tmp_path / "a.safetensors")
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
    told = []
    encode_dump(dump, tmp_path / "b.kvlog", progress=lambda *at: told.append(at))
    assert told[-1] == (600, 600)
    assert len(told) > 2
    assert told == sorted(told)
    decode_log(tmp_path / "b.kvlog", tmp_path / "b.safetensors", progress=lambda *at: told.append(at))
    assert told[-1] == (600, 600)
    left, right = (compare(dump, tmp_path / f"{n}.safetensors").as_dict()["layers"] for n in "ab")
    assert left == right
    with open_dump(tmp_path / "a.safetensors") as a, open_dump(tmp_path / "b.safetensors") as b:
        assert same(a.rows(1, StreamId.K, 0, 300), b.rows(1, StreamId.K, 0, 300))


@given(st.integers(0, 1000), st.integers(0, 1 << 24))
def test_chunks_cover_all_tokens_in_order(tokens, token_bytes):
    ranges = list(chunks.token_chunks(tokens, token_bytes))
    assert [t for start, stop in ranges for t in range(start, stop)] == list(range(tokens))
    assert all(
        start % 64 == 0 and (stop - start) * token_bytes <= max(64 * token_bytes, 32 << 20) for start, stop in ranges
    )


def test_layers_keep_their_numbers_windows_and_name(tmp_path):
    metadata = {"sliding_window": "512", "global_layers": "2", "model": "m" * 300}
    dump = make_dump(tmp_path / "d.safetensors", 70, (2, 5), **metadata)
    encode_dump(dump, tmp_path / "a.kvlog")
    with kv.open(tmp_path / "a.kvlog") as store:
        model = store.model
    assert [bool(layer.streams) for layer in model.layers] == [False, False, True, False, False, True]
    assert [model.layers[n].window for n in (2, 5)] == [0, 512]
    assert model.name == "m" * 255
    decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors")
    with open_dump(tmp_path / "b.safetensors") as b:
        assert b.layers == (2, 5)
        assert (b.metadata["sliding_window"], b.metadata["global_layers"]) == ("512", "2")


def test_k_and_v_may_differ_in_shape(tmp_path):
    tensors = {"k.0": rows(0, "k", 90, 2, 32), "v.0": rows(0, "v", 90, 4, 16)}
    dump = write_dump(tmp_path / "d.safetensors", tensors)
    encode_dump(dump, tmp_path / "a.kvlog", residual=0)
    with kv.open(tmp_path / "a.kvlog") as store:
        assert store.model.layers == (Layer((Stream(StreamId.K, 2, 32), Stream(StreamId.V, 4, 16))),)
    decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors")
    with open_dump(tmp_path / "b.safetensors") as b:
        assert "kv_heads" not in b.metadata
    assert compare(dump, tmp_path / "b.safetensors").largest_relative < 0.2


def test_float32_is_rounded_to_the_dtype_asked_for(tmp_path):
    dump = make_dump(tmp_path / "d.safetensors", 70, dtype=np.float32)
    for dtype, wanted in ((None, "bfloat16"), ("float16", "float16")):
        encode_dump(dump, tmp_path / "a.kvlog", dtype=dtype, k="raw", v="raw", overwrite=True)
        with kv.open(tmp_path / "a.kvlog") as store:
            assert store.model.dtype == wanted
            got = store.sequence("d").read(0)[0]
        assert same(got, rows(0, "k", 70, dtype=np.float32).astype(got.dtype))


def test_the_dtype_of_a_16_bit_dump_is_its_own(tmp_path, dump):
    with pytest.raises(SpecError, match="the dump holds bfloat16"):
        encode_dump(dump, tmp_path / "a.kvlog", dtype="float16")
    encode_dump(dump, tmp_path / "a.kvlog", dtype="bfloat16")


def test_names_and_shapes_of_others(tmp_path):
    tensors = {f"m.{n}.{s}": rows(0, s[0], 70).reshape(70, 32) for n in range(2) for s in ("key", "value")}
    dump = write_dump(tmp_path / "d.safetensors", tensors)
    mapping = ("k=m.{layer}.key", "v=m.{layer}.value")
    report = encode_dump(dump, tmp_path / "a.kvlog", mapping=mapping, kv_heads=2, sequence="x")
    assert (report.sequence, report.layers) == ("x", 2)
    result = compare(dump, tmp_path / "a.kvlog", mapping=mapping, head_dim=16)
    assert result.sequence == "x"
    assert result.largest_relative < 0.2
    with pytest.raises(DumpError, match="no tensor is known"):
        compare(dump, dump, mapping=mapping, head_dim=16)


def test_an_empty_dump_is_a_sequence_without_tokens(tmp_path):
    dump = make_dump(tmp_path / "d.safetensors", 0)
    assert encode_dump(dump, tmp_path / "a.kvlog").tokens == 0
    assert decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors").tokens == 0
    assert verify_log(tmp_path / "a.kvlog").verdict == "clean"
    assert compare(dump, tmp_path / "a.kvlog").largest_relative == 0


def test_a_number_beyond_float16_is_refused(tmp_path):
    big = np.full((70, 1, 16), 1e6, BF16)
    dump = write_dump(tmp_path / "d.safetensors", {"k.0": big, "v.0": big})
    encode_dump(dump, tmp_path / "a.kvlog")
    with pytest.raises(NonFiniteError, match="as float16"):
        decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors", dtype="float16")
    with pytest.raises(SpecError, match="dtype is 'int8'"):
        decode_log(tmp_path / "a.kvlog", tmp_path / "b.safetensors", dtype="int8")
    assert not (tmp_path / "b.safetensors").exists()


# -- what stays when it fails --------------------------------------------------------------------------------------


def test_an_existing_log_is_replaced_only_when_asked(tmp_path, dump, log):
    before = log.read_bytes()
    with pytest.raises(LogExists):
        encode_dump(dump, log)
    assert log.read_bytes() == before
    encode_dump(dump, log, overwrite=True, sequence="new")
    with kv.open(log) as store:
        assert store.sequences() == ["new"]


def test_a_log_with_a_writer_is_not_replaced(dump, log):
    with kv.open(log, "a"), pytest.raises(DeviceBusy):
        encode_dump(dump, log, overwrite=True)


def test_an_existing_dump_is_replaced_only_when_asked(tmp_path, dump, log):
    with pytest.raises(DumpError, match="exists"):
        decode_log(log, dump)
    decode_log(log, dump, overwrite=True)
    assert compare(dump, log).largest_relative == 0


def test_input_and_output_must_differ(tmp_path, dump, log):
    os.link(dump, tmp_path / "same")
    with pytest.raises(SpecError, match="the dump itself"):
        encode_dump(dump, tmp_path / "same", overwrite=True)
    with pytest.raises(SpecError, match="the log itself"):
        decode_log(log, log, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_nan_leaves_nothing_behind(tmp_path, overwrite):
    k = rows(0, "k", 200)
    k[150, 1, 3] = np.nan
    dump = write_dump(tmp_path / "d.safetensors", {"k.0": k, "v.0": rows(0, "v", 200)})
    before = names(tmp_path)
    with pytest.raises(NonFiniteError) as caught:
        encode_dump(dump, tmp_path / "a.kvlog", overwrite=overwrite)
    assert (caught.value.layer, caught.value.token, caught.value.head, caught.value.channel) == (0, 150, 1, 3)
    assert names(tmp_path) == before


def test_a_failure_in_the_middle_leaves_the_old_log(tmp_path, dump, log):
    def stop(done, total):
        raise RuntimeError("stop")

    before, listed = log.read_bytes(), names(tmp_path)
    with pytest.raises(RuntimeError, match="stop"):
        encode_dump(dump, log, overwrite=True, progress=stop)
    with pytest.raises(RuntimeError, match="stop"):
        decode_log(log, tmp_path / "b.safetensors", progress=stop)
    assert log.read_bytes() == before
    assert names(tmp_path) == listed


@pytest.mark.parametrize("job", ["encode", "decode"])
def test_a_kill_leaves_nothing_under_the_final_name(tmp_path, dump, log, job):
    code = (
        "import os, signal, sys, kvcodec as kv\n"
        "def kill(done, total):\n"
        "    if done > total // 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "kv.encode(sys.argv[1], sys.argv[2], progress=kill) if sys.argv[3] == 'encode' else "
        "kv.decode(sys.argv[4], sys.argv[2], progress=kill)\n"
    )
    out = tmp_path / "out"
    run = subprocess.run([sys.executable, "-c", code, str(dump), str(out), job, str(log)], cwd=Path.cwd())
    assert run.returncode == -signal.SIGKILL
    assert not out.exists()
    left = [name for name in names(tmp_path) if name.startswith(".")]
    assert all(name.endswith((".kvlog.new", ".kvlog.new.idx", ".tmp")) for name in left)
    assert left


def test_a_missing_directory_is_named(tmp_path, dump):
    with pytest.raises(FileNotFoundError) as caught:
        encode_dump(dump, tmp_path / "no" / "a.kvlog")
    assert caught.value.filename == str(tmp_path / "no")


def test_a_bad_spec_or_name_leaves_nothing(tmp_path, dump):
    before = names(tmp_path)
    for wrong in ({"k": "int9"}, {"device": "drum"}, {"sequence": "a\nb"}, {"append": True, "overwrite": True}):
        with pytest.raises(SpecError):
            encode_dump(dump, tmp_path / "a.kvlog", **wrong)
    assert names(tmp_path) == before


# -- append --------------------------------------------------------------------------------------------------------


def test_append_adds_a_sequence(tmp_path, dump, log):
    other = make_dump(tmp_path / "other.safetensors", 100)
    report = encode_dump(other, log, append=True)
    assert [s.name for s in report.stats.sequences] == ["chat", "other"]
    assert report.own.tokens == 100
    assert report.own.codecs == ("k=int4/channel/g64", "v=int4/token/g64")
    with pytest.raises(UnknownSequence, match="name one of: 'chat', 'other'"):
        decode_log(log, tmp_path / "b.safetensors")
    with pytest.raises(UnknownSequence, match="no sequence 'x' of"):
        compare(dump, log, sequence="x")
    assert decode_log(log, tmp_path / "b.safetensors", sequence="other").tokens == 100
    assert compare(dump, log, sequence="chat").largest_relative < 0.2
    assert verify_log(log).verdict == "clean"


def test_append_takes_float32_as_the_log_does(tmp_path):
    half = make_dump(tmp_path / "half.safetensors", 70, dtype=np.float16)
    wide = make_dump(tmp_path / "wide.safetensors", 70, dtype=np.float32)
    encode_dump(half, tmp_path / "a.kvlog")
    encode_dump(wide, tmp_path / "a.kvlog", append=True)
    assert compare(half, tmp_path / "a.kvlog", sequence="wide").largest_relative < 0.2


def test_a_refused_append_leaves_the_log_as_it_was(tmp_path, dump, log):
    before = log.read_bytes()
    k = rows(0, "k", 70)
    k[69] = np.inf
    bad = {f"{s}.{n}": rows(n, s, 70) for n in range(2) for s in "kv"} | {"k.1": k}
    cases = {
        SpecError: (dump, "holds a sequence 'chat' already"),
        IdentityMismatch: (make_dump(tmp_path / "x.safetensors", 70, heads=3), "belongs to"),
        NonFiniteError: (write_dump(tmp_path / "y.safetensors", bad), "layer 1"),
    }
    for kind, (source, match) in cases.items():
        with pytest.raises(kind, match=match):
            encode_dump(source, log, append=True, k="raw")
    windows = make_dump(tmp_path / "z.safetensors", 70, sliding_window="8", global_layers="0")
    with pytest.raises(IdentityMismatch):
        encode_dump(windows, log, append=True)
    with pytest.raises(FileNotFoundError):
        encode_dump(dump, tmp_path / "none.kvlog", append=True)
    assert log.read_bytes() == before


# -- compare -------------------------------------------------------------------------------------------------------


def test_a_log_and_its_decoded_dump_compare_alike(tmp_path, dump, log):
    decode_log(log, tmp_path / "b.kvlog")  # the name says nothing
    (one, other) = (compare(dump, path).as_dict() for path in (log, tmp_path / "b.kvlog"))
    assert one["layers"] == other["layers"]
    assert one["total"] == other["total"]
    assert (one["sequence"], other["sequence"]) == ("chat", None)
    assert one["total"]["attention"] is None


def test_the_errors_are_those_of_the_rows(tmp_path):
    original = {f"{s}.{n}": rows(n, s, 70, dtype=np.float32) for n in range(2) for s in "kv"}
    changed = {name: array.copy() for name, array in original.items()}
    changed["v.1"][7, 1, 5] += 3
    result = compare(write_dump(tmp_path / "a.safetensors", original), write_dump(tmp_path / "b.safetensors", changed))
    v = result.layers[1].v
    assert v.relative == pytest.approx(3 / np.linalg.norm(original["v.1"]), rel=1e-6)
    assert (v.worst_token.token, v.worst_channel[:2]) == (7, (1, 5))
    assert [layer.k.relative for layer in result.layers] == [0, 0]
    both = np.linalg.norm([np.linalg.norm(original[f"v.{n}"]) for n in range(2)])
    assert result.v.relative == pytest.approx(3 / both, rel=1e-6)
    assert result.largest_relative == v.relative


def test_what_cannot_be_compared_is_said(tmp_path, dump, log):
    with pytest.raises(ShapeError, match="300 tokens, want 70"):
        compare(make_dump(tmp_path / "x.safetensors", 70), log)
    with pytest.raises(ShapeError, match="layers 0,1, want 0,1,2"):
        compare(make_dump(tmp_path / "x.safetensors", 300, (0, 1, 2)), log)
    with pytest.raises(ShapeError, match=r"layer 0: \(heads, dim\)"):
        compare(make_dump(tmp_path / "x.safetensors", 300, heads=4), log)
    with pytest.raises(DumpError, match="a kvcodec log, not a dump"):
        compare(log, dump)


def test_k_by_channel_beats_k_by_token_on_a_real_dump(tmp_path):
    encode_dump(REAL, tmp_path / "channel.kvlog")
    encode_dump(REAL, tmp_path / "token.kvlog", k="int4/token/g64")
    channel, token = (compare(REAL, tmp_path / f"{name}.kvlog") for name in ("channel", "token"))
    for a, b in zip(channel.layers, token.layers, strict=True):
        assert a.attention.k_only.relative < b.attention.k_only.relative
        assert a.attention.v_only == b.attention.v_only
    assert channel.attention.k_only < token.attention.k_only / 4
    assert channel.attention.both < 0.06
    assert channel.attention.logits == sum(layer.attention.logits for layer in channel.layers)


# -- verify --------------------------------------------------------------------------------------------------------


def flipped(log, tmp_path, at):
    """A copy of a log and its sidecar with one bit of byte `at` flipped."""
    data = bytearray(log.read_bytes())
    data[at] ^= 1
    copy = tmp_path / "flipped.kvlog"
    copy.write_bytes(data)
    Path(f"{copy}.idx").write_bytes(Path(f"{log}.idx").read_bytes())
    return copy


def inside_record(log, n):
    """A byte of the file in the body of the nth record of layer 1's V."""
    with kv.open(log) as store:
        place = list(store.index.sequences[1].maps[1, StreamId.V])[n].coded.parts[0].place
        return store.device.file_offset(place.block, place.offset + 200)


def test_a_clean_log_is_clean(log):
    report = verify_log(log)
    assert report.verdict == "clean"
    assert report.damage == report.gaps == ()
    assert report.torn is None
    assert [(s.name, s.tokens, s.lost) for s in report.sequences] == [("chat", 300, ())]
    with kv.open(log) as store:
        stats = store.stats()
    assert report.frames == stats.frames
    assert report.units * 16384 == stats.programmed_bytes
    told = []
    verify_log(log, progress=lambda *at: told.append(at))
    assert told[-1] == (1000, 1000)
    assert told == sorted(told)


@pytest.mark.parametrize("device", ["tlc", TINY])
def test_every_flipped_bit_of_a_programmed_unit_is_found(tmp_path, dump, device):
    log = tmp_path / "a.kvlog"
    encode_dump(dump, log, device=device, residual=16)
    with kv.open(log) as store:
        places = [
            (store.device, block, unit)
            for block in range(store.device.present_blocks())
            for unit in np.flatnonzero(store.device.programmed(block)).tolist()
        ]
        size = store.device.geometry.unit_bytes
        starts = [device_.file_offset(block, unit * size) for device_, block, unit in places]
    rng = np.random.default_rng(0)
    for start in rng.choice(starts, 25):
        at = int(start) + int(rng.integers(size))
        copy = flipped(log, tmp_path, at)
        before = copy.read_bytes()
        report = verify_log(copy)
        assert report.verdict == "damaged"
        assert any(bad.start <= at < bad.end for bad in report.damage)
        assert copy.read_bytes() == before


def test_lost_tokens_are_named_and_the_others_can_be_saved(tmp_path):
    dump = make_dump(tmp_path / "chat.safetensors", 3000, heads=1)
    log = tmp_path / "a.kvlog"
    encode_dump(dump, log, device=TINY, residual=16)
    copy = flipped(log, tmp_path, inside_record(log, 20))
    report = verify_log(copy)
    assert report.verdict == "damaged"
    (checked,) = report.sequences
    assert checked.tokens == 3000
    assert 0 < checked.lost_tokens < 3000
    assert any(one.layer == 1 and one.stream == "v" for one in checked.lost)
    for recovery in ("torn-tail", "absolute"):
        with pytest.raises(CorruptRecord):
            decode_log(copy, tmp_path / "b.safetensors", recovery=recovery)
    assert decode_log(copy, tmp_path / "c.safetensors", recovery="point-in-time").tokens < 3000
    saved = decode_log(copy, tmp_path / "b.safetensors", recovery="skip-damaged")
    assert saved.tokens == 3000 - checked.lost_tokens
    assert list(saved.lost) == checked.lost_ranges
    with kv.open(log) as store, open_dump(tmp_path / "b.safetensors") as b:
        whole = store.sequence("chat").read(1)[1]
        positions = np.empty(saved.tokens, np.int64)
        b._read("positions", 0, positions)
        assert same(b.rows(1, StreamId.V, 0, saved.tokens), whole[positions])


def test_a_torn_tail_is_told_from_damage(tmp_path, dump):
    log = tmp_path / "a.kvlog"
    store = kv.open(log, "w", model=kv.Model.uniform(2, 2, 16), residual=0, device="page=512,unit=64,block=65536")
    for layer in range(2):
        store.sequence("a").append(layer, rows(layer, "k", 200), rows(layer, "v", 200))
    store.sync()
    for layer in range(2):
        store.sequence("a").append(layer, rows(layer, "k", 200), rows(layer, "v", 200))
    store.abandon()
    report = verify_log(log)
    assert report.verdict == "torn tail"
    assert report.torn is not None
    (checked,) = report.sequences
    assert checked.tokens >= 200
    assert checked.lost == ()
    with kv.open(log, "a") as store:
        store.sequence("b").append(0, rows(0, "k", 1), rows(0, "v", 1))
    report = verify_log(log)
    assert report.verdict == "clean"
    assert [gap.kind for gap in report.gaps] == ["gap"]


@pytest.mark.parametrize("copy", [0, 1])
def test_a_bad_superblock_copy_is_damage(tmp_path, log, copy):
    bad = flipped(log, tmp_path, copy * 4096 + 20)
    report = verify_log(bad)
    assert report.verdict == "damaged"
    assert [(d.start, d.end) for d in report.damage] == [(copy * 4096, copy * 4096 + 4096)]
    assert report.sequences[0].lost == ()


def test_a_lost_model_leaves_orphans(tmp_path):
    dump = make_dump(tmp_path / "chat.safetensors", 600, heads=1)
    log = tmp_path / "a.kvlog"
    encode_dump(dump, log, device=TINY, residual=16)
    with kv.open(log) as store:
        at = store.device.file_offset(0, store.device.geometry.unit_bytes + 8)
    report = verify_log(flipped(log, tmp_path, at))
    assert report.verdict == "damaged"
    assert report.sequences == () or report.sequences[0].lost
    assert report.as_dict()["verdict"] == "damaged"


def test_what_is_no_log_is_unreadable(tmp_path, dump):
    report = verify_log(dump)
    assert report.verdict == "unreadable"
    assert "not a kvcodec log" in report.error
    empty = tmp_path / "empty"
    empty.touch()
    assert verify_log(empty).verdict == "unreadable"
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DumpError, match="not a regular file"):
        verify_log(tmp_path / "fifo")


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=64))
def test_verify_survives_any_bytes(tmp_path_factory, cut, junk):
    folder = tmp_path_factory.mktemp("junk")
    dump = make_dump(folder / "chat.safetensors", 20, heads=1)
    log = folder / "a.kvlog"
    encode_dump(dump, log, device=TINY)
    data = log.read_bytes()
    at = cut * len(data) // 2001
    log.write_bytes(data[:at] + junk + data[at + len(junk) :])
    verify_log(log).as_dict()
    log.write_bytes(data[:at])
    assert verify_log(log).verdict != "clean"


def test_verify_writes_nothing(log):
    before = log.read_bytes(), Path(f"{log}.idx").read_bytes()
    verify_log(log)
    assert (log.read_bytes(), Path(f"{log}.idx").read_bytes()) == before


def test_a_dtype_that_is_none_is_refused(tmp_path):
    integers = np.zeros((4, 1, 16), np.int32)
    dump = write_dump(tmp_path / "d.safetensors", {"k.0": integers, "v.0": integers})
    with pytest.raises(DtypeError):
        encode_dump(dump, tmp_path / "a.kvlog")
