"""A picture of errors over positions."""

from __future__ import annotations

from pathlib import Path

from kvcodec.bulk.drift import DriftReport
from kvcodec.errors import SpecError
from kvcodec.measure.chart import make_figure


def plot_drift(report: DriftReport, path: Path) -> None:
    """Write the chart: one panel a stream, one line a text."""
    streams = sorted({name for text in report.texts for name in text.curves})
    if not streams:
        raise SpecError("--plot: no record tells its error")
    figure = make_figure(8, 1 + 2.6 * len(streams))
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
