"""A report for readers: lines of text, or tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from kvcodec.bench.report import Report, RowResult, Timing

_COLUMNS = ("by", "time", "GB/s", "of bandwidth", "ratio")
_LEFT = 2  # columns that are flush left


def format_rows(rows: Sequence[RowResult]) -> list[str]:
    """A line that says what a row is, then a line a contender, in columns that are as wide in all rows."""
    cells = {row.name: [_describe_timing(row, timing) for timing in row.timings] for row in rows}
    every = [_COLUMNS, *(line for lines in cells.values() for line in lines)]
    widths = [max(len(line[i]) for line in every) for i in range(len(_COLUMNS))]
    lines = [_join(_COLUMNS, widths)]
    for row in rows:
        lines.append(f"{row.name}: {row.what}, {row.shape}")
        lines += [_join(line, widths) for line in cells[row.name]]
        lines += [f"  WRONG {row.error}"] if row.error else []
        lines += [f"  {one.name} absent: {one.reason}" for one in row.absent]
    return lines


def format_markdown(report: Report) -> list[str]:
    """Machine, peers and rows."""
    figures = report.machine | {f"peer {name}": version for name, version in report.peers.items()}
    lines = ["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in figures.items()), ""]
    lines += [_bar(("row", "what", *_COLUMNS)), _bar(("---",) * (2 + len(_COLUMNS)))]
    for row in report.rows:
        what: tuple[str, ...] = (row.name, f"{row.what}, {row.shape}")
        for timing in row.timings:
            lines.append(_bar((*what, *_describe_timing(row, timing))))
            what = ("", "")
        lines += [_bar((*what, row.error, "wrong", "", "", ""))] if row.error else []
        lines += [_bar((*what, one.name, "absent", "", "", "")) for one in row.absent]
    return lines


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if i < _LEFT else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  " + "  ".join(padded).rstrip()


def _describe_timing(row: RowResult, timing: Timing) -> tuple[str, ...]:
    speed, share, ratio = timing.gb_per_s, timing.share, row.ratio(timing)
    return (
        timing.name,
        f"{format_duration(timing.ns_per_unit)} a {row.unit}",
        "-" if speed is None else f"{speed:.2f}",
        "-" if share is None else f"{100 * share:.0f} % {timing.bound}",
        "-" if ratio is None else f"{ratio:.2f}x",
    )


def format_duration(ns: float) -> str:
    """A time for readers: 0.95 ns, 3.20 ms."""
    for unit in ("ns", "µs", "ms"):
        if ns < 1000:
            return f"{ns:.3g} {unit}"
        ns /= 1000
    return f"{ns:.3g} s"
