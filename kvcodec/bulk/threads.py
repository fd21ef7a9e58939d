"""How many threads a job has, and work shared among them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from kvcodec.errors import SpecError

T = TypeVar("T")
THREADS_MAX = 256


class Stopped(Exception):
    """Raised by work that was told to stop: other work failed, or there was an interrupt."""


def thread_count(asked: int | None) -> int:
    """`asked`, or as many as there are cores for this process. Raises SpecError unless it is 1 to 256."""
    if asked is None:
        return min(THREADS_MAX, len(os.sched_getaffinity(0)))
    if not 1 <= asked <= THREADS_MAX:
        raise SpecError(f"threads is {asked}, want 1 to {THREADS_MAX}")
    return asked


def share_work(
    work: Callable[[T], None], pieces: Iterable[T], threads: int, stop: threading.Event | None = None
) -> None:
    """`work` for each piece, in order where there is one thread. Raises what any of it raises, the others stopped.

    stop: set as soon as one fails or there is an interrupt, for work that looks at it and then raises Stopped.
    """
    if threads == 1:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(threads, "kvcodec") as pool:
        futures: list[Future[None]] = [pool.submit(work, piece) for piece in pieces]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if stop is not None and any(not future.done() or future.exception() for future in futures):
                stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        failed = [error for future in futures if not future.cancelled() and (error := future.exception())]
        for error in sorted(failed, key=lambda error: isinstance(error, Stopped)):
            raise error
