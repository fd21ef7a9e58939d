"""Whole dumps and logs: what stays when a job fails, and appending to a log."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.compare import compare
from kvcodec.bulk.decode import decode_log
from kvcodec.bulk.encode import encode_dump
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import (
    DeviceBusy,
    DumpError,
    IdentityMismatch,
    LogExists,
    NonFiniteError,
    SpecError,
    UnknownSequence,
)
from kvcodec.log.sidecar import sidecar_path
from tests.caches import rows
from tests.test_bulk import dump_fixture, log_fixture, make_dump, names, write_dump  # noqa: F401

# -- what stays when it fails --------------------------------------------------------------------------------------


def test_an_existing_log_is_replaced_only_when_asked(tmp_path, dump, log):
    before = log.read_bytes()
    with pytest.raises(LogExists):
        encode_dump(dump, log)
    assert log.read_bytes() == before
    encode_dump(dump, log, overwrite=True, sequence="new")
    with kv.open(log) as store:
        assert store.sequences() == ["new"]


def test_a_log_whose_sidecar_finds_no_place_is_there_without(dump, log):
    sidecar_path(log).unlink()
    sidecar_path(log).mkdir()
    before = names(log.parent)
    encode_dump(dump, log, overwrite=True, sequence="new")
    assert names(log.parent) == before
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
    assert all(name.endswith((".encoding", ".encoding.idx", ".tmp")) for name in left)
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
