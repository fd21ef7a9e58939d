"""kvcodec compact"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import print_json, print_line, size
from kvcodec.cli.progress import progress_bar

EXAMPLE = "Example: kvcodec compact cache.kvlog"
_SECTOR = 512  # bytes of what st_blocks counts


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log.")],
    dictionary: options.Dictionary = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Give back the bytes of what was dropped or superseded: clean all blocks that hold any of it.

    What is alive is copied byte for byte, and costs the device as much; rows that were written a step at a time are
    laid together. Readers may go on reading meanwhile. An interrupted compaction loses nothing, and the next one goes
    on.
    """
    with reported(log=log), progress_bar("compact", wanted=not (json or quiet)) as progress:
        import kvcodec

        before = log.stat().st_blocks * _SECTOR
        with kvcodec.open(log, "a", dictionary=dictionary) as store:
            programmed = store.stats().programmed_bytes
            erased = store.compact(progress)
            programmed = store.stats().programmed_bytes - programmed
        after = log.stat().st_blocks * _SECTOR
    if json:
        found = {"blocks_erased": erased, "bytes_before": before, "bytes_after": after, "programmed_bytes": programmed}
        print_json({"log": str(log)} | found)
    elif not quiet:
        print_line(f"{log}: {size(before)} on disk before, {size(after)} now")
        print_line(f"{erased} blocks erased, {size(programmed)} programmed for what is kept")
