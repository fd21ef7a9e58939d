"""The command line. Typer and rich come with the extra `cli`; without them `main` says so."""

from __future__ import annotations

import importlib.util
import sys

_INTERRUPTED = 130


def main() -> None:
    """The console script `kvcodec`. Exits 0 fine, 1 the thing checked is bad, 2 wrong use or unreadable input."""
    for name in ("typer", "rich"):
        if importlib.util.find_spec(name) is None:  # they are imported when they are needed
            print(f"kvcodec: {name} is missing: pip install 'kvcodec-flash[cli]'", file=sys.stderr)
            sys.exit(2)
    try:
        from kvcodec.cli.quick import run_quickly

        if run_quickly(sys.argv[1:]):
            sys.exit(0)
        from kvcodec.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code)
