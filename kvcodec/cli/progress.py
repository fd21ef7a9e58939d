"""A progress bar on stderr for work longer than a second, on terminals only."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

_DELAY = 1.0  # seconds


@contextlib.contextmanager
def progress_bar(label: str, *, wanted: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Gives a function of (done, total). Shows nothing unless `wanted` and stderr is a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=None)
    lock, over = threading.Lock(), False

    def start() -> None:
        with lock:
            if not over:
                bar.start()

    timer = threading.Timer(_DELAY, start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total)
    finally:
        timer.cancel()
        with lock:
            over = True
            bar.stop()
