"""kvcodec info"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.info_report import gather_info, print_info
from kvcodec.cli.kvdict_report import is_kvdict, print_kvdict
from kvcodec.cli.progress import progress_bar

EXAMPLE = "Example: kvcodec info cache.kvlog"


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG|KVDICT", help="The log, or a .kvdict file.")],
    json: options.Json = False,
) -> None:
    """Show what a log holds and what it takes. Sizes, ratios to 16-bit rows, write amplification, wear.

    Of a .kvdict file its dictionaries, its product and trellis codes, and their errors.
    """
    with reported(log=log), progress_bar("info", wanted=not json):
        if is_kvdict(log):
            from kvcodec.dictionary.artefact import read_artefact

            artefact = read_artefact(log)
        else:
            artefact, report = None, gather_info(log)
    if artefact is not None:
        print_kvdict(log, artefact, json=json)
    else:
        print_info(report, json=json)
