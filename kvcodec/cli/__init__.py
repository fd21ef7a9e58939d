"""The command line. Typer and rich come with the extra `cli`; without them `main` says so."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import sys

_INTERRUPTED = 130
_YOUNG = 100_000  # objects before the collector looks for cycles: what imports make stays, and is looked at in vain
_KEPT = ((-3, 32 << 20), (-1, 1 << 30), (-8, 1))  # mallopt: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX


def main() -> None:
    """The console script `kvcodec`. Exits 0 fine, 1 the thing checked is bad, 2 wrong use or unreadable input."""
    _open_standard_streams()
    _keep_memory()
    for name in ("typer", "rich"):
        if importlib.util.find_spec(name) is None:  # they are imported when they are needed
            print(f"kvcodec: {name} is missing: pip install 'kvcodec-flash[cli]'", file=sys.stderr)
            sys.exit(2)
    try:
        from kvcodec.cli.quick import run_quickly

        code = run_quickly(sys.argv[1:])
        if code is None:
            from kvcodec.cli.app import run

            code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except OSError as error:  # commands tell of their files themselves: stdout takes no more
        print(f"kvcodec: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the flush at exit would fail again
        code = 2
    sys.exit(code)


def _open_standard_streams() -> None:
    """What is closed, as under a daemon, takes what is printed and loses it: no file is opened in its place."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115 - until the end


def _keep_memory() -> None:
    """Look for garbage seldom, and use freed memory again: chunk after chunk of a dump takes the same, and that new
    from the system costs as much as a copy.
    """
    gc.set_threshold(_YOUNG)
    with contextlib.suppress(AttributeError):  # another libc than glibc does as it does
        for parameter, value in _KEPT:
            ctypes.CDLL(None).mallopt(parameter, value)
