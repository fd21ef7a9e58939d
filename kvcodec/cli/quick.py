"""Command lines so plain that no parser is needed for them, nor the time to import one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kvcodec.errors import KvcodecError

_SMALL = 1 << 28  # bytes of a log that is walked in less than a second


def run_quickly(arguments: Sequence[str]) -> bool:
    """Run `info LOG [--json]`. False if that is not the command, or it fails, or is long enough for a progress bar: the
    application (app.py) then runs it, and says what is wrong.
    """
    paths = [argument for argument in arguments[1:] if argument != "--json"]
    if list(arguments[:1]) != ["info"] or len(paths) != 1 or paths[0].startswith("-"):
        return False
    from kvcodec.cli.info_report import gather_info, print_info

    try:
        if os.path.getsize(paths[0]) > _SMALL and not os.path.exists(f"{paths[0]}.idx"):
            return False
        report = gather_info(Path(paths[0]))
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # as app.run has it
        print_info(report, json="--json" in arguments)
        sys.stdout.flush()
    except (KvcodecError, OSError):
        return False
    return True
