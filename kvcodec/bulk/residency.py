"""Keeping the pages of a mapped log out of a job's memory: what has been read is not needed again.

Pages of a mapped file count as a process's memory while they are mapped. Letting go of them costs little: they stay in
the kernel's cache, and a later touch maps them again.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator

from kvcodec.flash.device import Device

_PERIOD = 0.005  # seconds


def release_pages(device: Device) -> None:
    """Let go of all pages of the file that are mapped now."""
    base = device.image.view(0, 1).base
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    if base is not None:
        base.madvise(mmap.MADV_DONTNEED)


@contextlib.contextmanager
def releasing_pages(device: Device) -> Iterator[None]:
    """Lets go of pages again and again while the block runs, for work that reads a whole log in one call."""
    over = threading.Event()

    def release() -> None:
        while not over.wait(_PERIOD):
            release_pages(device)

    thread = threading.Thread(target=release, name="kvcodec-pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        release_pages(device)
