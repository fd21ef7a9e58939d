"""Tables that need no rich, which takes long to import: plain text that fits the line, not on a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence

from kvcodec.cli import output

_WIDTH = 80  # of a line where nobody says otherwise, as rich has it
_BETWEEN = "  "


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, title: str = "") -> None:
    """What output.print_table prints."""
    rows = list(rows)
    lines = [] if sys.stdout.isatty() else _lay_out(columns, rows, left)
    if not lines:
        output.print_table(columns, rows, left=left, title=title)
        return
    if title:
        output.print_line()
        output.print_line(title)
    for line in lines:
        print(line)


def _lay_out(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Lines of a table; none if they are to be folded, or a text takes closer looking."""
    cells = [*([columns] if any(columns) else []), *rows]
    if not all(text.isascii() and text.isprintable() for row in cells for text in row):
        return []
    widths = [max(len(row[n]) for row in [columns, *rows]) for n in range(len(columns))]
    if sum(widths) + len(_BETWEEN) * len(widths) > _line_width():
        return []
    return [
        _BETWEEN.join(
            text.ljust(width) if n < left else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _line_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit():
        return int(columns)
    for stream in (sys.__stdin__, sys.__stderr__, sys.__stdout__):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            return os.get_terminal_size(stream.fileno()).columns or _WIDTH  # type: ignore[union-attr]
    return _WIDTH
