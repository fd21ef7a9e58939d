"""How many threads a job has, and work shared among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from kvcodec.errors import SpecError

T = TypeVar("T")
THREADS_MAX = 256


def thread_count(asked: int | None) -> int:
    """`asked`, or as many as there are cores for this process. Raises SpecError unless it is 1 to 256."""
    if asked is None:
        return min(THREADS_MAX, len(os.sched_getaffinity(0)))
    if not 1 <= asked <= THREADS_MAX:
        raise SpecError(f"threads is {asked}, want 1 to {THREADS_MAX}")
    return asked


def share_work(work: Callable[[T], None], pieces: Iterable[T], threads: int) -> None:
    """`work` for each piece, in order where there is one thread. Raises what any of it raises, the others stopped."""
    if threads == 1:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(threads, "kvcodec") as pool:
        futures: list[Future[None]] = [pool.submit(work, piece) for piece in pieces]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        for future in futures:
            if not future.cancelled():
                future.result()
