"""A picture of errors over positions."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from kvcodec.bulk.drift import DriftReport
from kvcodec.errors import LogExists, SpecError


def check_drift_plot(path: Path, *, overwrite: bool) -> None:
    """Raise SpecError if there is no matplotlib or it knows no such format, LogExists if `path` is there already."""
    if path.suffix.lstrip(".") not in _load("matplotlib.backends.backend_agg").FigureCanvasAgg.filetypes:
        raise SpecError(f"--plot {path}: the format is told by the name, want one such as .png or .svg")
    if path.exists() and not overwrite:
        raise LogExists(17, "exists already", str(path))


def plot_drift(report: DriftReport, path: Path) -> None:
    """Write the chart: one panel a stream, one line a text."""
    streams = sorted({name for text in report.texts for name in text.curves})
    if not streams:
        raise SpecError("--plot: no record tells its error")
    figure: Any = _load("matplotlib.figure").Figure(figsize=(8, 1 + 2.6 * len(streams)), layout="constrained")
    panels = figure.subplots(len(streams), 1, sharex=True, squeeze=False)[:, 0]
    for axes, stream in zip(panels, streams, strict=True):
        for text in report.texts:
            if stream in text.curves:
                curve, stretches = text.curves[stream], list(text.bins(report.every))
                middles = [(start + end) / 2 for start, end in stretches]
                axes.plot(
                    middles, [curve.error(*stretch) for stretch in stretches], marker=".", label=Path(text.name).name
                )
        axes.set_ylabel(f"relative error of {stream}")
        axes.set_ylim(bottom=0)
    panels[0].legend(fontsize=7)
    panels[-1].set_xlabel("position in the text, tokens")
    figure.savefig(path)


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise SpecError("--plot needs matplotlib: pip install 'kvcodec-flash[bench]'") from None
