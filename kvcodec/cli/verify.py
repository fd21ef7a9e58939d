"""kvcodec verify"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import print_json, print_line, print_table, size
from kvcodec.cli.progress import progress_bar

if TYPE_CHECKING:
    from kvcodec.bulk.verification import VerifyReport

EXAMPLE = "Example: kvcodec verify cache.kvlog"
_SHOWN = 20


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log.")],
    dictionary: options.Dictionary = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check all of a log, without a write. Exit code 0 if it is what was written, 1 if not."""
    with reported(dump=log, log=log), progress_bar("verify", wanted=not (json or quiet)) as progress:
        from kvcodec.bulk.verify import verify_log

        report = verify_log(log, progress=progress, dictionary=dictionary)
    if json:
        print_json(report.as_dict())
    elif not quiet:
        _print_report(report)
    raise typer.Exit(0 if report.verdict == "clean" else 1)


def _print_report(report: VerifyReport) -> None:
    print_line(f"{report.path}: {report.verdict}" + (f": {report.error}" if report.error else ""))
    print_line(f"checked: {report.frames} frames, {report.records} records, {report.units} program units")
    if report.orphans:
        print_line(f"records that fit no sequence: {report.orphans}")
    ranges = [*report.damage, *([report.torn] if report.torn else []), *report.gaps]
    if ranges:
        rows = [(one.kind, one.why, str(one.start), str(one.end), size(one.end - one.start)) for one in ranges[:_SHOWN]]
        title = f"Byte ranges ({len(ranges)}, the first {_SHOWN} of them)" if len(ranges) > _SHOWN else "Byte ranges"
        print_table(("kind", "why", "from", "to", "size"), rows, left=2, title=title)
    if report.sequences:
        lost = [(s.name, str(s.tokens), str(s.lost_tokens), _ranges(s.lost_ranges)) for s in report.sequences]
        print_table(("sequence", "tokens", "lost", "lost tokens"), lost, title="Sequences")


def _ranges(ranges: list[tuple[int, int]]) -> str:
    more = ", ..." if len(ranges) > _SHOWN else ""
    return ", ".join(f"{first}-{end - 1}" for first, end in ranges[:_SHOWN]) + more or "none"
