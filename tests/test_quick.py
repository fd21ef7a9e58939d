"""Command lines that need no parser, writes past the page cache, and kernels that need no compiler."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.cli import encode as encode_module
from kvcodec.cli.app import run
from kvcodec.cli.quick import read_encode, run_quickly
from kvcodec.flash import image as image_module
from kvcodec.flash.image import Image
from tests.test_bulk import make_dump

PLAIN = (
    "a.npz x.kvlog",
    "a.npz b.npz x.kvlog --force",
    "--k int8/token/g64 a.npz --v raw x.kvlog --append -q",
    "a.npz x.kvlog --residual 64 --sinks 8 --threads 2 --threads 1 --resume --json",
    "a.npz x.kvlog --device slc --sequence s --layers 0-3 --tokens 5:9 --quiet",
)
OTHER = (
    "", "a.npz", "a.npz x.kvlog --spec s.toml", "a.npz x.kvlog --k", "a.npz x.kvlog --k=raw", "a.npz x.kvlog --help",
    "a.npz x.kvlog --threads 0", "a.npz x.kvlog --sinks -1", "a.npz x.kvlog --residual ten", "-- a.npz x.kvlog",
)  # fmt: skip


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_says_what_it_says_to_the_parser(line, monkeypatch):
    """Options that were not given are left to kvcodec.encode, whose defaults are those of the command."""
    seen = {}
    monkeypatch.setattr(encode_module, "encode_files", lambda *files, **options: seen.update(options, files=files))
    monkeypatch.setattr(encode_module, "print_encoded", lambda *_, json, quiet: seen.update(json=json, quiet=quiet))
    assert run(["encode", *line.split()]) == 0
    dumps, log, options = read_encode(line.split())
    assert seen["files"] == (dumps, log)
    given = {name: value for name, value in seen.items() if value not in (None, False, ()) and name != "files"}
    shown = {"shown": True} if given.pop("shown", False) else {}
    assert shown == ({} if {"json", "quiet"} & options.keys() else {"shown": True})
    assert given == {"device": "tlc", "growths": 16} | options


@pytest.mark.parametrize("line", OTHER)
def test_other_lines_are_the_parsers(line):
    assert read_encode(line.split()) is None


def test_what_fails_quickly_fails_as_ever(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_dump(Path("a.safetensors"))
    for line in ("encode none x.kvlog", "encode a.safetensors no/x.kvlog", "encode a.safetensors x.kvlog --k int9"):
        assert run(line.split()) == 2
        slowly = capsys.readouterr()
        assert run_quickly(line.split()) == 2
        assert capsys.readouterr() == slowly
    assert run_quickly(["encode", "a.safetensors", "x.kvlog", "--json"]) == 0
    assert '"tokens"' in capsys.readouterr().out
    assert run_quickly(["encode", "a.safetensors", "x.kvlog"]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("refuses", [False, True])
def test_writes_past_the_page_cache_are_writes(tmp_path, monkeypatch, refuses):
    """Long ones of whole pages go there, and every other, and all where the disk refuses, as before."""
    real, fds = os.pwrite, []

    def watched(fd, data, offset):
        fds.append(fd)
        if refuses and fd != image.fd():
            raise OSError(errno.EINVAL, "not like this")
        return real(fd, data, offset)

    image = Image.create(tmp_path / "d")
    image.write_past_cache()
    monkeypatch.setattr(image_module.os, "pwrite", watched)
    wanted = np.random.default_rng(1).integers(0, 256, (3 << 20) + 999, np.uint8)
    memory = np.zeros((1 << 20) + 4096, np.uint8)
    whole = memory[-memory.ctypes.data % 4096 :][: 1 << 20]
    whole[:] = wanted[: 1 << 20]
    image.write(0, whole.data)
    image.write(1 << 20, wanted[1 << 20 :].data)
    image.sync()
    assert np.array_equal(image.view(0, len(wanted)), wanted)
    assert fds.count(image.fd()) == len(fds) - (fds[0] != image.fd())
    image.discard()


CODE = """
import sys, kvcodec as kv
kv.encode(*sys.argv[1:], overwrite=True)
print("numba.cpython.unicode" in sys.modules)
"""


def test_kernels_that_were_compiled_before_need_no_compiler(tmp_path):
    log = tmp_path / "a.kvlog"
    make_dump(tmp_path / "a.safetensors")
    for _ in range(2):  # the first one may compile
        command = [sys.executable, "-c", CODE, str(tmp_path / "a.safetensors"), str(log)]
        done = subprocess.run(command, cwd=Path.cwd(), capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    with kv.open(log) as store:
        assert len(store.sequence("a")) > 0
