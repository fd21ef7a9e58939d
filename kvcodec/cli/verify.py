"""kvcodec verify"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import print_json, print_line, print_table, size
from kvcodec.cli.progress import progress_bar
from kvcodec.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcodec.bulk.repair_report import RepairReport
    from kvcodec.bulk.verification import VerifyReport
    from kvcodec.log.recover import BadRange

EXAMPLE = "Example: kvcodec verify cache.kvlog"
_SHOWN = 20


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log.")],
    repair: Annotated[
        Path | None,
        typer.Option("--repair", metavar="OUT", help="Save what can be read in a new log, and list what can't."),
    ] = None,
    force: options.Force = False,
    dictionary: options.Dictionary = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check all of a log, without a write to it. Exit code 0 if it is what was written, 1 if not.

    With --repair, 0 if all of it could be saved, 1 if something was lost.
    """
    report: VerifyReport | RepairReport
    with reported(dump=log, log=log), progress_bar("verify", wanted=not (json or quiet)) as progress:
        if force and repair is None:
            raise SpecError("--force is for --repair")
        if repair is None:
            from kvcodec.bulk.verify import verify_log

            report = checked = verify_log(log, progress=progress, dictionary=dictionary)
            good = checked.verdict == "clean"
        else:
            from kvcodec.bulk.repair import repair_log

            report = saved = repair_log(log, repair, overwrite=force, progress=progress, dictionary=dictionary)
            good = saved.is_whole
    if json:
        print_json(report.as_dict())
    elif not quiet:
        _print_report(checked) if repair is None else _print_repair(saved)
    raise typer.Exit(0 if good else 1)


def _print_report(report: VerifyReport) -> None:
    print_line(f"{report.path}: {report.verdict}" + (f": {report.error}" if report.error else ""))
    print_line(f"checked: {report.frames} frames, {report.records} records, {report.units} program units")
    if report.orphans:
        print_line(f"records that fit no sequence: {report.orphans}")
    _print_ranges([*report.damage, *([report.torn] if report.torn else []), *report.gaps])
    if report.sequences:
        lost = [(s.name, str(s.tokens), str(s.lost_tokens), _ranges(s.lost_ranges)) for s in report.sequences]
        print_table(("sequence", "tokens", "lost", "lost tokens"), lost, title="Sequences")


def _print_repair(report: RepairReport) -> None:
    what = "nothing was lost" if report.is_whole else "what could be read was saved"
    print_line(f"{report.out}: {what}, {report.records} records, {len(report.sequences)} sequences")
    for name in report.sets:
        print_line(f"the trained set {name} is not what its hash says, and was left out")
    if report.missing:
        print_line(f"rows were copied that nobody could decode: {report.missing}")
    _print_ranges([*report.damage, *report.misfits])
    if report.sequences:
        saved = [(s.name, *map(str, (s.tokens, s.saved_tokens, s.lost_tokens))) for s in report.sequences]
        print_table(("sequence", "tokens", "saved", "lost"), saved, title="Sequences")
    lost = [(s.name, one) for s in report.sequences for one in s.lost]
    if lost:
        rows = [(name, str(one.layer), one.stream, f"{one.first}-{one.end - 1}") for name, one in lost[:_SHOWN]]
        print_table(("sequence", "layer", "stream", "tokens"), rows, left=1, title=_title("Lost rows", len(lost)))


def _print_ranges(ranges: Sequence[BadRange]) -> None:
    if ranges:
        rows = [(one.kind, one.why, str(one.start), str(one.end), size(one.end - one.start)) for one in ranges[:_SHOWN]]
        print_table(("kind", "why", "from", "to", "size"), rows, left=2, title=_title("Byte ranges", len(ranges)))


def _title(what: str, count: int) -> str:
    return f"{what} ({count}, the first {_SHOWN} of them)" if count > _SHOWN else what


def _ranges(ranges: list[tuple[int, int]]) -> str:
    more = ", ..." if len(ranges) > _SHOWN else ""
    return ", ".join(f"{first}-{end - 1}" for first, end in ranges[:_SHOWN]) + more or "none"
