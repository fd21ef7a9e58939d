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
    scrub: Annotated[
        bool, typer.Option("--scrub", help="Read all blocks too, and clean those in which many bits flip.")
    ] = False,
    faults: Annotated[
        str | None, typer.Option(help="How the emulated device fails meanwhile, such as seed=1,flips=1e-6,ecc=8.")
    ] = None,
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
        with kvcodec.open(log, "a", dictionary=dictionary, faults=faults) as store:
            programmed = store.stats().programmed_bytes
            erased = store.compact(progress)
            scrubbed = store.scrub() if scrub else 0
            stats = store.stats()
            programmed = stats.programmed_bytes - programmed
        after = log.stat().st_blocks * _SECTOR
    if json:
        found = {"blocks_erased": erased, "bytes_before": before, "bytes_after": after, "programmed_bytes": programmed}
        print_json({"log": str(log)} | found | {"blocks_scrubbed": scrubbed})
    elif not quiet:
        print_line(f"{log}: {size(before)} on disk before, {size(after)} now")
        print_line(f"{erased} blocks erased, {size(programmed)} programmed for what is kept")
        if scrub:
            print_line(f"{scrubbed} blocks scrubbed, {stats.failures.corrected_bits} flipped bits corrected")
