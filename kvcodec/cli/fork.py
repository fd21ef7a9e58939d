"""kvcodec fork"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import print_json, print_line

EXAMPLE = "Example: kvcodec fork cache.kvlog chat-1 chat-1b --keep 512"


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log.")],
    sequence: Annotated[str, typer.Argument(metavar="SEQUENCE", help="Name of the sequence.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name of the one that begins as it does.")],
    keep: Annotated[
        int | None, typer.Option("--keep", min=0, help="How many of the first tokens they share. [default: all]")
    ] = None,
    dictionary: options.Dictionary = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Begin a sequence with the first tokens of another one. Their records are shared, not copied."""
    with reported(log=log):
        import kvcodec

        with kvcodec.open(log, "a", dictionary=dictionary) as store:
            tokens = len(store.fork(sequence, new, keep))
    if json:
        print_json({"log": str(log), "sequence": new, "parent": sequence, "tokens": tokens})
    elif not quiet:
        print_line(f"{log}: sequence {new}, {tokens} tokens of {sequence}")
