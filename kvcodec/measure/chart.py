"""Charts by matplotlib, where it is there."""

from __future__ import annotations

import errno
import importlib
from pathlib import Path
from typing import Any

from kvcodec.errors import LogExists, SpecError


def check_chart(path: Path, *, overwrite: bool) -> None:
    """Raise SpecError if there is no matplotlib or it knows no such format, LogExists if `path` is there already."""
    if path.suffix.lstrip(".") not in _load("matplotlib.backends.backend_agg").FigureCanvasAgg.filetypes:
        raise SpecError(f"--plot {path}: the format is told by the name, want one such as .png or .svg")
    if path.exists() and not overwrite:
        raise LogExists(errno.EEXIST, "exists already", str(path))


def make_figure(width: float, height: float) -> Any:
    """A matplotlib Figure of that many inches. Raises SpecError if there is no matplotlib."""
    return _load("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise SpecError("--plot needs matplotlib: pip install 'kvcodec-flash[bench]'") from None
