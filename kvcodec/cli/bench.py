"""kvcodec bench"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import print_json, print_line, print_table
from kvcodec.cli.progress import progress_bar

if TYPE_CHECKING:
    from kvcodec.bench.report import Report

EXAMPLE = "Example: kvcodec bench --quick --only attend"


def command(
    only: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Rows whose names hold this, or match it as file names do.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: small arrays, few rounds, no files, no processes.")
    ] = False,
    peers: Annotated[
        str, typer.Option(help="Libraries to compare with, where they are installed.")
    ] = "ggml,torch,numpy,spams,sklearn,faiss",
    plot: Annotated[Path | None, typer.Option(help="Make a bar chart of the ratios, .png or .svg.")] = None,
    scratch: Annotated[
        Path | None, typer.Option(help="Directory for dumps and logs of up to 4 GiB. [default: the system's]")
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure how fast this machine is at it. Times, bandwidth, and ratios to other libraries, on one thread."""
    with reported(), progress_bar("bench", wanted=not (json or quiet)) as progress:
        from kvcodec.bench.plot import plot_ratios
        from kvcodec.bench.run import run_bench
        from kvcodec.measure.chart import check_chart

        if plot is not None:
            check_chart(plot, overwrite=force)
        named = [name for name in peers.split(",") if name]
        report = run_bench(only=only, quick=quick, peers=named, scratch=scratch, progress=progress)
        if plot is not None:
            plot_ratios(report, plot)
    if json:
        print_json(report.as_dict())
    elif not quiet:
        _print_report(report)
    raise typer.Exit(1 if report.bad else 0)


def _print_report(report: Report) -> None:
    from kvcodec.bench.table import format_rows

    for title, figures in (("Machine", report.machine), ("Peers", report.peers)):
        print_table(("", ""), [*figures.items()], left=2, title=title)
    print_line()
    print_line("Medians; ratio: how many times as long as kvcodec it takes")
    if report.quick:
        print_line("(--quick: a first look; what should come from memory is in a cache)")
    for line in format_rows(report.rows):
        print_line(line)
