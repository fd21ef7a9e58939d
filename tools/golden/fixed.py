"""Numbers and names that depend on nothing: not on the clock, the machine or chance."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np


def uuid_of(name: str) -> bytes:
    """The uuid of a golden file: that of the worked example counts up, others come from the name."""
    return bytes(range(16)) if name == "worked-example" else hashlib.sha256(name.encode()).digest()[:16]


@contextmanager
def fixed_random(name: str, session: int = 1) -> Iterator[None]:
    """Let every file uuid be the name's, and every session id `session`."""

    def urandom(size: int) -> bytes:
        return uuid_of(name) if size == 16 else session.to_bytes(size, "little")

    with mock.patch.object(os, "urandom", urandom):
        yield


def noise(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Float32 numbers of about unit variance, the same everywhere: sums of four 12-bit pieces of splitmix64."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        x = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    pieces = sum(((x >> np.uint64(12 * i)) & np.uint64(0xFFF)).astype(np.int64) for i in range(4))
    return ((pieces - 8190).astype(np.float32) / np.float32(2048)).reshape(shape)
