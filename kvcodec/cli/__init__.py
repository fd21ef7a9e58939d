"""The command line. Typer and rich come with the extra `cli`; without them `main` says so."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> None:
    """The console script `kvcodec`. Exits 0 fine, 1 the thing checked is bad, 2 wrong use or unreadable input."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        print(f"kvcodec: {error.name} is missing: pip install 'kvcodec-flash[cli]'", file=sys.stderr)
        sys.exit(2)
    try:
        from kvcodec.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code)
