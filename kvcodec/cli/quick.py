"""Command lines so plain that no parser is needed for them, nor the time to import one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvcodec.errors import KvcodecError

_SMALL = 1 << 28  # bytes of a log that is walked in less than a second

# options of `encode`, by the names that kvcodec.encode has for them; the application knows the others
_FLAGS = {f"--{name}": name for name in ("append", "resume", "json", "quiet")} | {"--force": "overwrite", "-q": "quiet"}
_TEXTS = {f"--{name}": name for name in ("k", "v", "device", "sequence", "layers", "tokens")}
_NUMBERS = {f"--{name}": name for name in ("residual", "sinks", "threads")}


def run_quickly(arguments: Sequence[str]) -> int | None:
    """Run a plain `info` or `encode`; the exit code, None if the application (app.py) is to run it."""
    command, own = (arguments[0], arguments[1:]) if arguments else ("", ())
    if command == "info":
        return _run_info(own)
    return _run_encode(own) if command == "encode" else None


def _run_info(arguments: Sequence[str]) -> int | None:
    """`info LOG [--json]`, unless it fails, or is long enough for a progress bar."""
    paths = [argument for argument in arguments if argument != "--json"]
    if len(paths) != 1 or paths[0].startswith("-"):
        return None
    from kvcodec.cli.info_report import gather_info, print_info

    try:
        if os.path.getsize(paths[0]) > _SMALL and not os.path.exists(f"{paths[0]}.idx"):
            return None
        report = gather_info(Path(paths[0]))
        print_any_name()
        print_info(report, json="--json" in arguments)
        sys.stdout.flush()
    except (KvcodecError, OSError):
        return None
    return 0


class EncodeLine(NamedTuple):
    """A plain `encode`: its files, and its options by the names that kvcodec.encode has for them."""

    dumps: list[Path]
    log: Path
    options: dict[str, Any]


def read_encode(arguments: Sequence[str]) -> EncodeLine | None:
    """What the arguments of `encode` say; None if it is not said plainly, or may be wrong."""
    files: list[Path] = []
    options: dict[str, Any] = {}
    left = iter(arguments)
    for argument in left:
        if argument in _FLAGS:
            options[_FLAGS[argument]] = True
        elif argument in _TEXTS or argument in _NUMBERS:
            value = next(left, "")
            if not value or value.startswith("-"):
                return None
            if argument in _NUMBERS and not (value.isascii() and value.isdigit() and 0 < int(value[:9]) < 10**8):
                return None
            options[(_TEXTS | _NUMBERS)[argument]] = value if argument in _TEXTS else int(value)
        elif argument.startswith("-") or not argument:
            return None
        else:
            files.append(Path(argument))
    return EncodeLine(files[:-1], files[-1], options) if len(files) > 1 else None


def _run_encode(arguments: Sequence[str]) -> int | None:
    line = read_encode(arguments)
    if line is None:
        return None
    from kvcodec.cli.encoding import encode_files, print_encoded

    json, quiet = (bool(line.options.pop(name, False)) for name in ("json", "quiet"))
    print_any_name()
    try:
        reports = encode_files(line.dumps, line.log, shown=not (json or quiet), **line.options)
    except (KvcodecError, OSError) as error:
        from kvcodec.cli.app import fail  # typer's time is no matter now

        return fail(error, dump=line.dumps[0] if len(line.dumps) == 1 else None, log=line.log)
    try:
        print_encoded(reports, line.log, json=json, quiet=quiet)
        sys.stdout.flush()
    except BrokenPipeError:
        return leave_pipe()
    return 0


def print_any_name() -> None:
    """Have stdout and stderr take names of files, which may be any bytes."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def leave_pipe() -> int:
    """Nobody reads stdout any more; the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit would fail again
    return 128 + signal.SIGPIPE
