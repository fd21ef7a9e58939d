"""kvcodec info"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.info_report import gather_info, print_info
from kvcodec.cli.progress import progress_bar

EXAMPLE = "Example: kvcodec info cache.kvlog"


def command(log: Annotated[Path, typer.Argument(metavar="LOG", help="The log.")], json: options.Json = False) -> None:
    """Show what a log holds and what it takes. Sizes, ratios to 16-bit rows, write amplification, wear."""
    with reported(log=log), progress_bar("info", wanted=not json):
        report = gather_info(log)
    print_info(report, json=json)
