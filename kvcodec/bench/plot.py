"""Bar chart of ratios: how many times as long as kvcodec each peer takes."""

from __future__ import annotations

from pathlib import Path

from kvcodec.bench.report import Report
from kvcodec.bench.row import OURS
from kvcodec.errors import SpecError
from kvcodec.measure.chart import make_figure


def plot_ratios(report: Report, path: Path) -> None:
    """Write the chart. Rows without kvcodec or without a peer are left out. Raises SpecError if none is left."""
    bars = [
        (f"{row.name}: {timing.name}", ratio)
        for row in report.rows
        for timing in row.timings
        if timing.name != OURS and (ratio := row.ratio(timing)) is not None
    ]
    if not bars:
        raise SpecError("--plot: no row has both kvcodec and a peer")
    figure = make_figure(9, 1.5 + 0.25 * len(bars))
    axes = figure.subplots()
    places = range(len(bars))
    axes.barh(places, [ratio for _, ratio in bars], color=["#4477aa" if r >= 1 else "#cc6677" for _, r in bars])
    axes.set_yticks(places, [name for name, _ in bars], fontsize=7)
    axes.bar_label(axes.containers[0], [f"{ratio:.2f}" for _, ratio in bars], padding=2, fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel(f"time of the peer / time of {OURS}, one thread: {report.machine['processor']}")
    figure.savefig(path)
