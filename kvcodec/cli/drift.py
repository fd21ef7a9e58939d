"""kvcodec drift"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import number, print_json, print_line, print_table
from kvcodec.cli.progress import progress_bar

if TYPE_CHECKING:
    from kvcodec.bulk.drift import DriftReport

EXAMPLE = "Example: kvcodec drift chat.safetensors code.safetensors --dictionary model.kvdict --plot drift.png"


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="LOG|DUMP...", help="Logs, whose records tell their errors, or dumps, which are coded."),
    ],
    dictionary: Annotated[
        Path | None, typer.Option(help="The .kvdict file that dumps are coded over (kvcodec train).")
    ] = None,
    spec: Annotated[str, typer.Option(help="The codec of dumps: dict, pq or tcq, and how.")] = "dict/s8",
    pursuit: options.Pursuit = None,
    every: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a line of the table. [default: a sixteenth of the longest text]"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the errors over positions, .png or .svg.")] = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Tell how errors go with the position in a text, and from text to text: does a static dictionary go stale?"""
    about = sources[0] if len(sources) == 1 else None
    with reported(log=about), progress_bar("drift", wanted=not (json or quiet)) as progress:
        from kvcodec.bulk.drift import measure_drift
        from kvcodec.bulk.drift_plot import plot_drift
        from kvcodec.measure.chart import check_chart

        if plot is not None:
            check_chart(plot, overwrite=force)
        report = measure_drift(
            sources, dictionary=dictionary, spec=spec, pursuit=pursuit, every=every, progress=progress
        )
        if plot is not None:
            plot_drift(report, plot)
    if json:
        print_json(report.as_dict())
    elif not quiet:
        _print_report(report)


def _print_report(report: DriftReport) -> None:
    rows = [
        (
            text.name, stream, text.codecs.get(stream, ""), str(text.tokens), number(curve.error(), ".4f"),
            number(text.drift(stream), ".3f"), str(curve.unknown),
        )
        for text in report.texts
        for stream, curve in text.curves.items()
    ]  # fmt: skip
    columns = ("text", "stream", "codec", "tokens", "error", "drift", "unknown")
    print_table(columns, rows, left=3, title="Texts")
    print_line("error: relative, of all records that tell theirs; drift: last quarter over first")
    for text in report.texts:
        names = list(text.curves)
        stretches = [
            (f"{start}-{end - 1}", *(number(text.curves[name].error(start, end), ".4f") for name in names))
            for start, end in text.bins(report.every)
        ]
        print_table(("tokens", *names), stretches, title=text.name)
