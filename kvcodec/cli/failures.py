"""Errors as one line on stderr, `kvcodec: FILE: what, what to do`, and exit code 2."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from kvcodec import errors

_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (errors.LogExists, "--force replaces it"),
    (errors.DeviceBusy, "try again when it is done"),
    (errors.NoSpace, "free some and run it again"),
    (errors.UnknownSequence, "--sequence picks one"),
    (errors.BadMagic, "want a log that kvcodec wrote"),
    (errors.UnsupportedVersion, "want the kvcodec that wrote it"),
    (errors.IdentityMismatch, "append only what belongs to the same model"),
    (errors.FormatError, "kvcodec verify tells what is whole, decode --recovery skip-damaged saves it"),
    (errors.NonFiniteError, "nothing was written"),
)
_DUMP_ERRORS = (errors.DumpError, errors.NonFiniteError, errors.DtypeError, errors.ShapeError)


def print_failure(text: str) -> None:
    """One line on stderr, whatever the text holds."""
    print(f"kvcodec: {_one_line(text)}", file=sys.stderr)


@contextlib.contextmanager
def reported(*, dump: Path | None = None, log: Path | None = None) -> Iterator[None]:
    """Turns what kvcodec or the file system raises into one line and exit code 2.

    dump, log: the file that an error is about if it doesn't say.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except (errors.KvcodecError, OSError) as error:
        print_failure(_describe(error, dump, log))
        raise typer.Exit(2) from None


def _describe(error: Exception, dump: Path | None, log: Path | None) -> str:
    advice = next((text for kind, text in _ADVICE if isinstance(error, kind)), "")
    about, what = dump if isinstance(error, _DUMP_ERRORS) else log, str(error)
    if isinstance(error, OSError):
        about, what = Path(error.filename) if error.filename else log, error.strerror or what
    elif isinstance(error, errors.SpecError):
        about = None
    if isinstance(error, errors.LogExists):
        what = "exists already"
    elif isinstance(error, errors.DumpError) and what.endswith(": exists"):
        what, advice = f"{what} already", "--force replaces it"
    elif what.endswith("is not a regular file"):
        advice = ""
    for path in (dump, log):
        for joint in (": ", " "):
            if path is not None and what.startswith(f"{path}{joint}"):
                about, what = path, what.removeprefix(f"{path}{joint}")
    return ": ".join([*([str(about)] if about else []), ", ".join([what, advice] if advice else [what])])


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
