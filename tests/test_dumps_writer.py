"""Dumps: the safetensors writer."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from kvcodec.dumps import open_dump
from kvcodec.dumps.safetensors import SafetensorsWriter
from kvcodec.errors import DtypeError, DumpError, ShapeError
from tests.test_dumps import BF16, GEMMA, TOKENS, K, V

DECLARED = [
    ("k.0", np.float16, (TOKENS, 3)),
    ("q_pos", np.int64, (2,)),
    ("v.0", BF16, (TOKENS, 5, 1)),
    ("none", np.float32, (0, 9)),
]


def filled():
    return {name: (np.arange(np.prod(shape)).reshape(shape) * 7 % 50).astype(dtype) for name, dtype, shape in DECLARED}


def test_the_library_reads_what_is_written(tmp_path):
    path, arrays = tmp_path / "out.safetensors", filled()
    with SafetensorsWriter(path, DECLARED, {"a": "ü", "kv_heads": "1"}) as writer:
        for start in (4, 0, 2, 6):
            for name in ("k.0", "v.0"):
                writer.write(name, start, arrays[name][start : start + 2])
        writer.write("q_pos", 0, arrays["q_pos"][::-1][::-1])
        assert not path.exists()
        writer.commit()
    assert os.listdir(tmp_path) == ["out.safetensors"]
    with safe_open(path, "numpy") as library:
        assert library.metadata() == {"a": "ü", "kv_heads": "1"}
        assert set(library.keys()) == set(arrays)
        for name, array in arrays.items():
            got = library.get_tensor(name)
            assert (got.dtype, got.shape) == (array.dtype, array.shape)
            assert got.tobytes() == array.tobytes()
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0
    assert content[8 : 8 + length].rstrip(b" ").endswith(b"}")
    begins = [
        fields["data_offsets"][0]
        for name, fields in json.loads(content[8 : 8 + length]).items()
        if name != "__metadata__"
    ]
    assert begins == sorted(begins)
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_dump_round_trips(tmp_path):
    path = tmp_path / "copy.safetensors"
    with open_dump(GEMMA) as source:
        places = [(f"{s.name.lower()}.{layer}", layer, s) for layer in source.layers for s in (K, V)]
        declared = [(name, source.dtype, source.shape(layer, s)) for name, layer, s in places]
        with SafetensorsWriter(path, declared, source.metadata) as writer:
            for name, layer, s in places:
                for start in range(0, 512, 200):
                    writer.write(name, start, source.rows(layer, s, start, min(start + 200, 512)))
            writer.commit()
        with open_dump(path) as copy:
            assert (copy.layers, copy.dtype, copy.metadata) == (source.layers, source.dtype, source.metadata)
            for _, layer, s in places:
                assert copy.rows(layer, s, 0, 512).tobytes() == source.rows(layer, s, 0, 512).tobytes()


def written(path, value, **options):
    writer = SafetensorsWriter(path, [("a", np.float32, (2, 3))], {}, **options)
    writer.write("a", 0, np.full((2, 3), value, np.float32))
    return writer


def test_an_existing_file_is_not_overwritten_unless_asked(tmp_path):
    path = tmp_path / "out.safetensors"
    written(path, 1).commit()
    before = path.read_bytes()
    with pytest.raises(DumpError, match=r"out\.safetensors: exists"):
        written(path, 2)
    assert path.read_bytes() == before
    (tmp_path / "link").symlink_to(path)
    written(tmp_path / "link", 3, overwrite=True).commit()
    assert (tmp_path / "link").is_symlink()
    assert path.read_bytes() != before
    assert sorted(os.listdir(tmp_path)) == ["link", "out.safetensors"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path):
    path = tmp_path / "out.safetensors"
    with written(path, 1) as writer:
        path.write_bytes(b"another's")
        with pytest.raises(DumpError, match="exists"):
            writer.commit()
    assert path.read_bytes() == b"another's"
    assert os.listdir(tmp_path) == ["out.safetensors"]


def test_without_commit_nothing_is_left(tmp_path):
    path = tmp_path / "out.safetensors"
    with written(path, 1):
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []
    with pytest.raises(ZeroDivisionError), written(path, 1):
        1 / 0  # noqa: B018
    assert os.listdir(tmp_path) == []
    writer = written(path, 1)
    writer.abort()
    writer.abort()
    for call in (writer.commit, lambda: writer.write("a", 0, np.zeros((1, 3), np.float32))):
        with pytest.raises(DumpError, match="has finished"):
            call()
    written(path, 1).commit()
    assert os.listdir(tmp_path) == ["out.safetensors"]


def test_killed_before_commit_leaves_nothing_under_the_name(tmp_path):
    code = """
import os, signal, sys
import numpy as np
from kvcodec.dumps.safetensors import SafetensorsWriter
writer = SafetensorsWriter(sys.argv[1], [("a", np.float32, (2, 3))], {})
writer.write("a", 0, np.zeros((2, 3), np.float32))
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "out.safetensors"
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=Path(__file__).parents[1], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    written(path, 1).commit()
    assert path.exists()


@pytest.mark.parametrize(
    ("ranges", "missing"), [([], 0), ([(0, 3)], 3), ([(1, 7)], 0), ([(4, 7), (0, 3)], 3), ([(0, 5), (1, 2)], 5)]
)
def test_missing_rows(tmp_path, ranges, missing):
    with SafetensorsWriter(tmp_path / "out.safetensors", [("a", np.float32, (7, 2))], {}) as writer:
        for start, stop in ranges:
            writer.write("a", start, np.zeros((stop - start, 2), np.float32))
        with pytest.raises(DumpError, match=f"row {missing} of tensor 'a' was not written"):
            writer.commit()
    assert os.listdir(tmp_path) == []


def test_rows_written_in_any_order_and_twice(tmp_path):
    with SafetensorsWriter(tmp_path / "out.safetensors", [("a", np.float32, (7, 2))], {}) as writer:
        for start, stop in ((4, 6), (0, 5), (6, 7), (6, 6)):
            writer.write("a", start, np.full((stop - start, 2), start, np.float32))
        writer.commit()
    with safe_open(tmp_path / "out.safetensors", "numpy") as library:
        assert library.get_tensor("a")[:, 0].tolist() == [0, 0, 0, 0, 0, 4, 6]


def test_writer_refuses(tmp_path):
    path = tmp_path / "out.safetensors"
    for declared, error, text in (
        ([("a", np.float32, ())], ShapeError, "'a' has shape \\[\\]"),
        ([("a", np.float32, (2, -1))], ShapeError, "'a' has shape"),
        ([("a", np.complex128, (2,))], DtypeError, "'a': safetensors has no dtype complex128"),
        ([("a", np.float32, (2,)), ("a", np.float32, (2,))], DumpError, "'a' is there twice"),
        ([("__metadata__", np.float32, (2,))], DumpError, "reserved"),
    ):
        with pytest.raises(error, match=text):
            SafetensorsWriter(path, declared, {})
    with written(path, 1) as writer:
        for name, start, array, error, text in (
            ("b", 0, np.zeros((1, 3), np.float32), DumpError, "no tensor 'b' was declared"),
            ("a", 0, np.zeros((1, 3), np.float64), DtypeError, "rows are float64, want float32"),
            ("a", 0, np.zeros((1, 4), np.float32), ShapeError, r"rows have shape \[1, 4\]"),
            ("a", 0, np.zeros(3, np.float32), ShapeError, "rows have shape"),
            ("a", 1, np.zeros((2, 3), np.float32), ShapeError, "rows 1:3, want a range in 0:2"),
            ("a", -1, np.zeros((1, 3), np.float32), ShapeError, "rows -1:0"),
        ):
            with pytest.raises(error, match=text):
                writer.write(name, start, array)
    for bad, text in ((tmp_path, "not a regular file"), (Path("/dev/null"), "not a regular file"),
                      (tmp_path / "no" / "out", "cannot create"), (Path("a\0b"), "null")):  # fmt: skip
        with pytest.raises(DumpError, match=text):
            written(bad, 1, overwrite=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["pwrite", "fsync", "link"])
def test_a_disk_that_fails(tmp_path, monkeypatch, call):
    """A full disk is one error of ours, and nothing is left."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "out.safetensors"
    with written(path, 1) as writer:
        monkeypatch.setattr(os, call, fail)
        with pytest.raises(DumpError, match=r"out\.safetensors: cannot write: No space left on device"):
            writer.write("a", 0, np.zeros((2, 3), np.float32)) if call == "pwrite" else writer.commit()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_header_that_cannot_be_written_or_read(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    wanted = DumpError if isinstance(error, OSError) else KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(wanted):
            written(tmp_path / "out.safetensors", 1)
    assert os.listdir(tmp_path) == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(wanted):
            open_dump(GEMMA)
    with open_dump(GEMMA) as got, monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        with pytest.raises(wanted):
            got.rows(5, K, 0, 1)


def test_short_writes(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:1], at))
    written(tmp_path / "out.safetensors", 5).commit()
    with safe_open(tmp_path / "out.safetensors", "numpy") as library:
        np.testing.assert_array_equal(library.get_tensor("a"), np.full((2, 3), 5, np.float32))
