"""Dumps: queries, what is no dump, and what opening one leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from kvcodec.dumps import open_dump
from kvcodec.dumps.safetensors import SafetensorsDump
from kvcodec.errors import DtypeError, DumpError
from kvcodec.layout import DtypeId
from tests.test_dumps import BF16, GEMMA, K, V, dump, rows

# ---- queries


def test_the_real_dump():
    with open_dump(GEMMA) as got, safe_open(GEMMA, "numpy") as library:
        assert got.layers == (5, 8, 17)
        assert got.dtype == BF16
        assert got.dtype_id == DtypeId.BFLOAT16
        for layer in got.layers:
            for stream, letter in ((K, "k"), (V, "v")):
                assert got.shape(layer, stream) == (512, 1, 256)
                part = library.get_slice(f"{letter}.{layer}")[100:300]
                assert got.rows(layer, stream, 100, 300).tobytes() == part.tobytes()
            queries = got.queries(layer)
            np.testing.assert_array_equal(queries.q, library.get_tensor(f"q.{layer}").astype(np.float32))
            np.testing.assert_array_equal(queries.positions, library.get_tensor("q_pos"))
            assert (queries.q.dtype, queries.positions.dtype) == (np.float32, np.int64)
            assert queries.scale == 0.0625
            assert queries.window == (512 if layer == 8 else None)


QUERIES = {"k.0": rows(1), "v.0": rows(2), "q.0": np.ones((6, 2, 4), np.float16), "q_pos": np.array([3, 6])}


@pytest.mark.parametrize(
    ("metadata", "window"),
    [({}, None), ({"sliding_window": "9"}, None), ({"global_layers": "1"}, None),
     ({"sliding_window": "9", "global_layers": "1,2"}, 9), ({"sliding_window": "9", "global_layers": " 0, 2"}, None),
     ({"sliding_window": "9", "global_layers": ""}, 9)],
)  # fmt: skip
def test_queries_and_windows(tmp_path, metadata, window):
    with dump(tmp_path, QUERIES, {"logit_scale": "0.5"} | metadata) as got:
        queries = got.queries(0)
        assert (queries.q.shape, queries.positions.tolist(), queries.scale) == ((6, 2, 4), [3, 6], 0.5)
        assert queries.window == window


def test_no_queries(tmp_path):
    for missing in ("q.0", "q_pos"):
        with dump(tmp_path, {name: a for name, a in QUERIES.items() if name != missing}) as got:
            assert got.queries(0) is None


@pytest.mark.parametrize(
    ("change", "metadata", "error", "text"),
    [
        ({}, {}, DumpError, "no metadata logit_scale"),
        ({}, {"logit_scale": "x"}, DumpError, "logit_scale is 'x'"),
        ({}, {"logit_scale": "nan"}, DumpError, "logit_scale is 'nan'"),
        ({}, {"logit_scale": "-1"}, DumpError, "logit_scale"),
        ({}, {"logit_scale": "1", "sliding_window": "0", "global_layers": ""}, DumpError, "sliding_window is 0"),
        ({}, {"logit_scale": "1", "sliding_window": "4", "global_layers": "a"}, DumpError, "global_layers is 'a'"),
        ({"q.0": np.ones((6, 2, 5), np.float32)}, {"logit_scale": "1"}, DumpError, "'q.0' of shape"),
        ({"q.0": np.ones((5, 2, 4), np.float32)}, {"logit_scale": "1"}, DumpError, "a multiple of 3 heads"),
        ({"q.0": np.ones((6, 2, 4), np.int32)}, {"logit_scale": "1"}, DtypeError, "'q.0' is I32"),
        ({"q_pos": np.ones(2, np.float32)}, {"logit_scale": "1"}, DumpError, "'q_pos' is F32"),
        ({"q_pos": np.ones((1, 2), np.int32)}, {"logit_scale": "1"}, DumpError, "'q_pos' is I32"),
    ],
)
def test_queries_refused(tmp_path, change, metadata, error, text):
    with dump(tmp_path, QUERIES | change, metadata) as got, pytest.raises(error, match=text) as caught:
        got.queries(0)
    assert "dump.safetensors" in str(caught.value)


# ---- files


def test_what_is_no_dump(tmp_path):
    with pytest.raises(DumpError, match="cannot open: No such file"):
        open_dump(tmp_path / "none.safetensors")
    with pytest.raises(DumpError, match="null"):
        SafetensorsDump("a\0b")
    fifo = tmp_path / "fifo.safetensors"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path / "fifo", tmp_path / "directory.safetensors", tmp_path):
        if path.name == "fifo":
            os.mkfifo(path)
        if path.name.startswith("directory"):
            path.mkdir()
        with pytest.raises(DumpError, match=r"not a regular file|Is a directory"):
            open_dump(path)
    (tmp_path / "cache.pt").write_bytes(bytes(50))
    with pytest.raises(DumpError, match=r"\.pt files are not read, want \.safetensors, \.npz, \.npy"):
        open_dump(tmp_path / "cache.pt")
    (tmp_path / "cache.kvlog").write_bytes(b"\x89KVLOG\r\n" + bytes(50))
    with pytest.raises(DumpError, match="a kvcodec log, not a dump"):
        open_dump(tmp_path / "cache.kvlog")
    save_file({"k.0": rows(1), "v.0": rows(2)}, tmp_path / "odd_name")
    with open_dump(tmp_path / "odd_name") as got:
        assert got.layers == (0,)


def test_nothing_leaks(tmp_path):
    """A dump that is opened, read, refused and closed leaves no file or map open, and no warning."""
    code = """
import gc, os, sys
from pathlib import Path
from kvcodec.dumps import open_dump
from kvcodec.errors import KvcodecError
before = len(os.listdir("/proc/self/fd"))
for mapping in ((), ("k=no.{layer}", "v=no.{layer}"), ("bad",)):
    try:
        with open_dump(sys.argv[1], mapping=mapping) as dump:
            rows = dump.rows(5, 1, 0, 512)
            dump.queries(5)
    except KvcodecError:
        pass
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert sys.argv[1] not in Path("/proc/self/maps").read_text()
assert "safetensors" not in sys.modules
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, str(GEMMA)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert (done.returncode, done.stderr) == (0, "")
