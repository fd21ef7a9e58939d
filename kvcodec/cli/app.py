"""The application: its commands, and what becomes of wrong use, an interrupt or a closed pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kvcodec._version import __version__
from kvcodec.cli import bench, decode, diff, drift, encode, info, train, verify
from kvcodec.cli.failures import print_failure

_INTERRUPTED = 130
_WRONG_USE = 2

app = typer.Typer(
    name="kvcodec",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _module in (encode, decode, info, verify, diff, train, drift, bench):
    app.command(_module.__name__.rpartition(".")[2], epilog=_module.EXAMPLE)(_module.command)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"kvcodec {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """KV caches of language models, small enough for Flash.

    Exit codes: 0 fine, 1 the thing checked is bad, 2 wrong use or unreadable input.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Whatever fails is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names of files may be any bytes
    try:
        code = app(list(arguments), prog_name="kvcodec", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit would fail again
        return 1
    except Exception as error:
        if not hasattr(error, "format_message"):  # what Typer raises for wrong use, whichever click it brings
            raise
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "kvcodec"
        print_failure(f"{error.format_message().rstrip('.')}; see {where} --help")
        return _WRONG_USE
    return code if isinstance(code, int) else 0
