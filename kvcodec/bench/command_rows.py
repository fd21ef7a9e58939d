"""Rows of the commands in processes of their own: encoding a dump beside cp and fsync, and starting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import kvcodec
from kvcodec.bench.attention_data import make_values
from kvcodec.bench.dump import write_dump
from kvcodec.bench.row import OURS, Absent, Contender, Entry, Row, WrongResult, require_close
from kvcodec.bench.scale import Scale

_COMMAND = "from kvcodec.cli import main; main()"
_START_LAYERS, _START_TOKENS, _START_HEADS = 3, 512, 2
_ENCODE_LAYERS, _ENCODE_HEADS = 16, 8
_LOSS = 0.1  # relative error of K in INT4, one scale a channel


def command_rows(scale: Scale) -> list[Row]:
    """Each makes its files in the row's directory."""
    dump = f"{scale.dump_bytes >> 20} MiB of bfloat16, {_ENCODE_LAYERS} layers, {_ENCODE_HEADS} heads"
    small = f"{_START_TOKENS} tokens, {_START_LAYERS} layers, {_START_HEADS} heads"
    cores = len(os.sched_getaffinity(0))
    return [
        Row("encode", "kvcodec encode, one thread", dump, "byte",
            lambda _, folder: _encode(scale, folder, 1), slow=True),
        Row("encode-threads", f"the same, {cores} threads", dump, "byte",
            lambda _, folder: _encode(scale, folder, cores), slow=True),
        Row("start-info", "kvcodec info, a process", small, "run",
            lambda _, folder: _start_info(folder), slow=True),
        Row("start-encode", "kvcodec encode, a process", small, "run",
            lambda _, folder: _start_encode(folder), slow=True),
        Row("start-cold", "the same, kernels to be compiled", small, "run",
            lambda _, folder: _start_cold(folder), slow=True),
    ]  # fmt: skip


class _Dump:
    """A directory with a dump and the log that it becomes."""

    def __init__(self, folder: Path, layers: int, tokens: int, heads: int) -> None:
        self.dump, self.log = folder / "a.safetensors", folder / "a.kvlog"
        self._k = make_values(heads, tokens, 1)
        write_dump(self.dump, layers, self._k, make_values(heads, tokens, 2))

    def encode(self, threads: int = 1, environment: dict[str, str] | None = None) -> None:
        """`kvcodec encode`, a process."""
        arguments = ("encode", self.dump, self.log, "--force", "--quiet", "--threads", threads)
        _call_command(*arguments, environment=environment or {})

    def check(self) -> None:
        """Raises WrongResult unless the log is whole and holds all tokens, such as they were but for 4 bits."""
        _call_command("verify", self.log, "--quiet")
        with kvcodec.open(self.log) as store:
            k = store.sequence(self.dump.stem).read(0)[0]
        require_close(OURS, k.transpose(1, 0, 2), self._k, _LOSS, "K of layer 0")


def _call_command(*arguments: object, environment: dict[str, str] | None = None) -> None:
    """Run `kvcodec` in a process. Raises WrongResult unless it exits with 0."""
    _call(OURS, [sys.executable, "-c", _COMMAND, *map(str, arguments)], environment or {})


def _call(name: str, command: Sequence[str], environment: dict[str, str]) -> None:
    paths = [str(Path(kvcodec.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=os.environ | own | environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise WrongResult(f"{name}: exit code {done.returncode}: {done.stderr.strip()}")


def _encode(scale: Scale, folder: Path, threads: int) -> Sequence[Entry]:
    free = shutil.disk_usage(folder).free
    if free < 4 * scale.dump_bytes:
        return [Absent(OURS, f"{folder} has {free >> 20} MiB left, want {4 * scale.dump_bytes >> 20}")]
    tokens = scale.dump_bytes // (2 * _ENCODE_LAYERS * _ENCODE_HEADS * 128 * 2)
    here = _Dump(folder, _ENCODE_LAYERS, tokens, _ENCODE_HEADS)
    size, copy = here.dump.stat().st_size, folder / "copy"

    def check_copy() -> None:
        if copy.stat().st_size != size:
            raise WrongResult("cp: the copy is not whole")

    def make(name: str, run: Callable[[], None], check: Callable[[], None]) -> Contender:
        return Contender(name, run, size, size, check=check)

    entries = [
        make(OURS, lambda: here.encode(threads), here.check),
        make("cp, sync", lambda: _call("cp", ["sh", "-c", 'cp "$0" "$1" && sync "$1"', str(here.dump), str(copy)], {}),
             check_copy),
    ]  # fmt: skip
    if threads > 1:
        entries.append(make(f"{OURS}, 1 thread", lambda: here.encode(1), here.check))
    return entries


def _python() -> Contender:
    """The least that a process of ours can take."""
    return Contender("python -c pass", lambda: _call("python", [sys.executable, "-c", "pass"], {}), 1)


def _small(folder: Path) -> _Dump:
    here = _Dump(folder, _START_LAYERS, _START_TOKENS, _START_HEADS)
    here.encode()
    return here


def _start_info(folder: Path) -> Sequence[Entry]:
    here = _small(folder)
    return [Contender(OURS, lambda: _call_command("info", here.log), 1, check=here.check), _python()]


def _start_encode(folder: Path) -> Sequence[Entry]:
    here = _small(folder)
    return [Contender(OURS, here.encode, 1, check=here.check), _python()]


def _start_cold(folder: Path) -> Sequence[Entry]:
    here = _small(folder)

    def run() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as empty:
            here.encode(environment={"KVCODEC_CACHE_DIR": empty})

    return [Contender(OURS, run, 1, check=here.check), Contender(f"{OURS}, compiled before", here.encode, 1)]
