"""Rows of this machine's own bandwidth."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kvcodec.bench import bandwidth
from kvcodec.bench.row import READ, WRITE, Contender, Entry, Row, WrongResult
from kvcodec.bench.scale import Scale

_VALUE = np.uint64(0x0101010101010101)  # what memset leaves, too


def bandwidth_rows(scale: Scale) -> list[Row]:
    """Reading, writing and copying, each in several ways."""
    size = scale.probe_bytes
    shape = f"{size >> 20} MiB"
    return [
        Row("bandwidth-read", "sum of an array", shape, "byte", lambda *_: _readers(size)),
        Row("bandwidth-write", "one value to all of an array", shape, "byte", lambda *_: _writers(size)),
        Row("bandwidth-copy", "array to array; bytes read", shape, "byte", lambda *_: _copiers(size)),
    ]


def _readers(size: int) -> Sequence[Entry]:
    words = bandwidth.allocate_words(size)

    def check(name: str, read: Callable[[NDArray[np.uint64]], object]) -> None:
        if read(words) != len(words):
            raise WrongResult(f"{name}: the sum is wrong")

    ways: dict[str, Callable[[NDArray[np.uint64]], object]] = {
        "1 stream": bandwidth.read_stream,
        "4 streams": bandwidth.read_streams,
        "numpy sum": np.sum,
    }
    return [
        Contender(name, partial(read, words), size, size, READ, partial(check, name, read))
        for name, read in ways.items()
    ]


def _writers(size: int) -> Sequence[Entry]:
    words = bandwidth.allocate_words(size)
    ways: dict[str, Callable[[], object]] = {
        "memset": lambda: bandwidth.set_memory(words),
        "plain stores": lambda: bandwidth.write_words(words, _VALUE),
        "non-temporal stores": lambda: bandwidth.write_words_past_caches(words, _VALUE),
    }

    def check(name: str, write: Callable[[], object]) -> None:
        words.fill(0)
        write()
        if not bool((words == _VALUE).all()):
            raise WrongResult(f"{name}: not all was written")

    return [Contender(name, write, size, size, WRITE, partial(check, name, write)) for name, write in ways.items()]


def _copiers(size: int) -> Sequence[Entry]:
    source, target = bandwidth.allocate_words(size), bandwidth.allocate_words(size)
    source[:] = np.arange(len(source), dtype=np.uint64)
    ways: dict[str, Callable[[], object]] = {
        "memcpy": lambda: ctypes.memmove(target.ctypes.data, source.ctypes.data, size),
        "plain loop": lambda: bandwidth.copy_words(source, target),
    }

    def check(name: str, copy: Callable[[], object]) -> None:
        target.fill(0)
        copy()
        if not np.array_equal(source, target):
            raise WrongResult(f"{name}: the copy differs")

    return [Contender(name, copy, size, size, READ, partial(check, name, copy)) for name, copy in ways.items()]
