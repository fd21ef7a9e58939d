"""Tables and JSON on stdout. Colours and bold only on a terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on one line."""
    print(json.dumps(value, allow_nan=False))


def print_line(text: str = "") -> None:
    """A line of text as it is, but for what is not printable in it."""
    print("".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, title: str = "") -> None:
    """A table; the first `left` columns are flush left, the others flush right."""
    from rich.console import Console
    from rich.table import Table

    console = Console(
        file=sys.stdout,
        color_system="auto" if sys.stdout.isatty() else None,
        markup=False,
        highlight=False,
        emoji=False,
    )
    table = Table(box=None, pad_edge=False, show_header=any(columns), header_style="bold", padding=(0, 2, 0, 0))
    for n, name in enumerate(columns):
        table.add_column(name, justify="left" if n < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    if title:
        print_line()
        print_line(title)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())


def size(count: float) -> str:
    """Bytes for a reader: 512 B, 1.60 MiB."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in _UNITS:
        count /= 1024
        if count < 1024 or unit == _UNITS[-1]:
            break
    return f"{count:.2f} {unit}"


def number(value: float, form: str, unit: str = "") -> str:
    """A figure in the given form; a dash where there is none."""
    if math.isnan(value):
        return "-"
    return ("inf" if math.isinf(value) else format(value, form)) + unit


def ratio(value: float) -> str:
    """How many times smaller: 3.56x."""
    return number(value, ".2f", "x")
