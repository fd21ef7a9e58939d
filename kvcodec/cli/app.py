"""The application: its commands, and what becomes of wrong use, an interrupt or a closed pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kvcodec._version import __version__
from kvcodec.cli import bench, compact, decode, diff, drift, drop, encode, fork, info, train, verify, wear
from kvcodec.cli.failures import print_failure, reported
from kvcodec.cli.quick import leave_pipe, print_any_name

_INTERRUPTED = 130
_WRONG_USE = 2

app = typer.Typer(
    name="kvcodec",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _module in (encode, decode, info, verify, diff, drop, fork, compact, train, drift, wear, bench):
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
    print_any_name()
    try:
        code = app(list(arguments), prog_name="kvcodec", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        return _INTERRUPTED
    except BrokenPipeError:
        return leave_pipe()
    except SystemExit as error:  # by click, which ends the process with 1 where a pipe is closed
        return leave_pipe() if error.code == 1 else _WRONG_USE
    except Exception as error:
        if not hasattr(error, "format_message"):  # what Typer raises for wrong use, whichever click it brings
            raise
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "kvcodec"
        print_failure(f"{error.format_message().rstrip('.')}; see {where} --help")
        return _WRONG_USE
    return code if isinstance(code, int) else 0


def fail(error: Exception, *, dump: Path | None, log: Path) -> int:
    """Say in one line what a command raised; the exit code."""
    with contextlib.suppress(typer.Exit), reported(dump=dump, log=log):
        raise error
    return _WRONG_USE
