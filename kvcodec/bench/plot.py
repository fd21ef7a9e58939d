"""Bar chart of ratios: how many times as long as kvcodec each peer takes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from kvcodec.bench.report import Report
from kvcodec.bench.row import OURS
from kvcodec.errors import LogExists, SpecError


def check_plot(path: Path, *, overwrite: bool) -> None:
    """Raise SpecError if there is no matplotlib or it knows no such format, LogExists if `path` is there already."""
    if path.suffix.lstrip(".") not in _load("matplotlib.backends.backend_agg").FigureCanvasAgg.filetypes:
        raise SpecError(f"--plot {path}: the format is told by the name, want one such as .png or .svg")
    if path.exists() and not overwrite:
        raise LogExists(17, "exists already", str(path))


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
    figure: Any = _load("matplotlib.figure").Figure(figsize=(9, 1.5 + 0.25 * len(bars)), layout="constrained")
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


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise SpecError("--plot needs matplotlib: pip install 'kvcodec-flash[bench]'") from None
