"""What this machine's memory can do, one thread: loops that do nothing but read, write or copy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numba.core.cgutils
import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit

_intrinsic: Any = numba.extending.intrinsic
_cgutils: Any = numba.core.cgutils
_ALIGNMENT = 4096
_LANES = 4  # of 64 bits, in a non-temporal store
_STREAMS = 4


@_intrinsic  # type: ignore[untyped-decorator]
def _store_past_caches(_context: Any, words: Any, at: Any, value: Any) -> Any:  # noqa: ARG001
    """Store `value` at words[at] to words[at + 3], 32-byte aligned, without reading or keeping the cache line."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = _cgutils.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])
        vector = ir.VectorType(ir.IntType(64), _LANES)
        lanes = ir.Constant(vector, ir.Undefined)
        for lane in range(_LANES):
            lanes = builder.insert_element(lanes, arguments[2], ir.Constant(ir.IntType(32), lane))
        pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), vector.as_pointer())
        store = builder.store(lanes, pointer, align=8 * _LANES)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(words, types.intp, types.uint64), generate


@jit
def read_stream(words: NDArray[np.uint64]) -> Any:
    """Sum of all words, in the order they lie."""
    total = np.uint64(0)
    for i in range(words.shape[0]):
        total = np.uint64(total + words[i])
    return total


@jit
def read_streams(words: NDArray[np.uint64]) -> Any:
    """Sum of all words from four places at a time, 64 bytes each. Words: a multiple of 32."""
    quarter = words.shape[0] // _STREAMS
    total = np.uint64(0)
    for first in range(0, quarter, 8):
        for stream in range(_STREAMS):
            for i in range(np.uint64(stream * quarter + first), np.uint64(stream * quarter + first + 8)):
                total = np.uint64(total + words[i])
    return total


@jit
def write_words(words: NDArray[np.uint64], value: Any) -> None:
    """Plain stores of uint64 `value` to all words."""
    for i in range(words.shape[0]):
        words[i] = value


@jit
def write_words_past_caches(words: NDArray[np.uint64], value: Any) -> None:
    """Non-temporal stores of uint64 `value` to all words: a multiple of 4, 32-byte aligned."""
    for i in range(0, words.shape[0], _LANES):
        _store_past_caches(words, i, value)


@jit
def copy_words(source: NDArray[np.uint64], target: NDArray[np.uint64]) -> None:
    """Plain loads and stores."""
    for i in range(source.shape[0]):
        target[i] = source[i]


def allocate_words(size: int) -> NDArray[np.uint64]:
    """`size` bytes of ones as uint64, aligned to a page, all of them in memory."""
    raw = np.ones(size // 8 + _ALIGNMENT // 8, np.uint64)
    skipped = -raw.ctypes.data % _ALIGNMENT // 8
    return raw[skipped : skipped + size // 8]


def set_memory(words: NDArray[np.uint64]) -> None:
    """The C library's memset."""
    ctypes.memset(words.ctypes.data, 1, words.nbytes)


class Probes:
    """The yardsticks of one run of the bench: reading `size` bytes, by the way that is fastest here, and writing them.

    size: a multiple of 4096.
    """

    def __init__(self, size: int, fastest: Callable[[dict[str, Callable[[], object]]], str]) -> None:
        self.size = size
        self._words = allocate_words(size)
        ways: dict[str, Callable[[], object]] = {
            "1 stream": lambda: read_stream(self._words),
            "4 streams": lambda: read_streams(self._words),
        }
        for way in ways.values():
            way()
        self.read = ways[fastest(ways)]

    def write(self) -> None:
        """Write all of it."""
        set_memory(self._words)
