"""Vectors from memory and back: `Bytes` is a row of a tile, 64 bytes, `Lanes` 16 int32, `Longs` 8 int64.

How many registers a 64-byte vector takes is LLVM's business. See _vectors.py; _lanes.py computes with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kvcodec.kernels import _lanes  # noqa: F401  what is loaded can be computed with
from kvcodec.kernels._vectors import (
    HAS_AVX2,
    I16X16,
    INT,
    LONG,
    WORD,
    Bytes,
    Lanes,
    Longs,
    all_of,
    call,
    compiled,
    load,
    memory,
    pick,
    store,
)


def load_bytes(address: Any) -> Any:
    """Bytes: a row of 64."""
    return memory(address, 64, np.uint8).copy()


@compiled(load_bytes, Bytes, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, Bytes.ir)


def load_lanes(address: Any) -> Any:
    """Lanes of 16 int32."""
    return memory(address, 16, np.int32).copy()


@compiled(load_lanes, Lanes, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, Lanes.ir)


def load_unsigned(address: Any) -> Any:
    """Lanes of 16 uint16."""
    return memory(address, 16, np.uint16).astype(np.int32)


@compiled(load_unsigned, Lanes, INT)
def _(b: Any, address: Any) -> Any:
    return b.zext(load(b, address, I16X16), Lanes.ir)


def load_signed(address: Any) -> Any:
    """Lanes of 16 int16."""
    return memory(address, 16, np.int16).astype(np.int32)


@compiled(load_signed, Lanes, INT)
def _(b: Any, address: Any) -> Any:
    return b.sext(load(b, address, I16X16), Lanes.ir)


def load_half(address: Any) -> Any:
    """One int16."""
    return memory(address, 1, np.int16)[0]


@compiled(load_half, types.int16, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, ir.IntType(16))


def store_half(half: Any, address: Any) -> None:
    """One int16."""
    memory(address, 1, np.int16)[0] = half


@compiled(store_half, types.void, types.int16, INT)
def _(b: Any, half: Any, address: Any) -> None:
    store(b, half, address)


def load_word(address: Any) -> Any:
    """One int32."""
    return memory(address, 1, np.int32)[0]


@compiled(load_word, WORD, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, ir.IntType(32))


def load_long(address: Any) -> Any:
    """One int64."""
    return memory(address, 1, np.int64)[0]


@compiled(load_long, LONG, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, ir.IntType(64))


def store_long(number: Any, address: Any) -> None:
    """One int64."""
    memory(address, 1, np.int64)[0] = number


@compiled(store_long, types.void, LONG, INT)
def _(b: Any, number: Any, address: Any) -> None:
    store(b, number, address)


def load_longs(address: Any) -> Any:
    """Longs: 8 int64."""
    return memory(address, 8, np.int64).copy()


@compiled(load_longs, Longs, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, Longs.ir)


def store_longs(longs: Any, address: Any) -> None:
    """Longs as 8 int64."""
    memory(address, 8, np.int64)[:] = longs


@compiled(store_longs, types.void, Longs, INT)
def _(b: Any, longs: Any, address: Any) -> None:
    store(b, longs, address)


def widen_lanes(address: Any) -> Any:
    """Longs of 8 int32."""
    return memory(address, 8, np.int32).astype(np.int64)


@compiled(widen_lanes, Longs, INT)
def _(b: Any, address: Any) -> Any:
    return b.sext(load(b, address, ir.VectorType(ir.IntType(32), 8)), Longs.ir)


def store_word(word: Any, address: Any) -> None:
    """One int32."""
    memory(address, 1, np.int32)[0] = word


@compiled(store_word, types.void, WORD, INT)
def _(b: Any, word: Any, address: Any) -> None:
    store(b, word, address)


def store_lanes(lanes: Any, address: Any) -> None:
    """Lanes as 16 int32."""
    memory(address, 16, np.int32)[:] = lanes


@compiled(store_lanes, types.void, Lanes, INT)
def _(b: Any, lanes: Any, address: Any) -> None:
    store(b, lanes, address)


def store_weights(lanes: Any, halves: Any, bytes_: Any, low: Any) -> None:
    """16 weights as int16; and as bytes, high ones and, `low` behind them, low ones: high * 256 + low, both signed."""
    memory(halves, 16, np.int16)[:] = lanes.astype(np.int16)
    memory(bytes_, 16, np.int8)[:] = ((lanes + 128) >> 8).astype(np.int8)
    memory(bytes_ + low, 16, np.int8)[:] = lanes.astype(np.int8)


@compiled(store_weights, types.void, Lanes, INT, INT, INT)
def _(b: Any, lanes: Any, halves: Any, bytes_: Any, low: Any) -> None:
    narrow = _narrow(b, lanes)
    store(b, narrow, halves)
    lows = b.and_(narrow, all_of(I16X16, 255))
    highs = b.lshr(b.add(narrow, all_of(I16X16, 128)), all_of(I16X16, 8))
    if HAS_AVX2:
        both = call(b, "llvm.x86.avx2.packuswb", ir.VectorType(ir.IntType(8), 32), highs, lows)
        halves_ = [[*range(n, n + 8), *range(n + 16, n + 24)] for n in (0, 8)]
    else:
        both, byte = None, ir.VectorType(ir.IntType(8), 16)
        highs, lows = b.trunc(highs, byte), b.trunc(lows, byte)
    store(b, highs if both is None else pick(b, both, both, halves_[0]), bytes_)
    store(b, lows if both is None else pick(b, both, both, halves_[1]), b.add(bytes_, low))


def _narrow(b: Any, lanes: Any) -> Any:
    """int16 of lanes that fit it."""
    if not HAS_AVX2:
        return b.trunc(lanes, I16X16)
    packed = call(b, "llvm.x86.avx2.packssdw", I16X16, *(pick(b, lanes, lanes, list(range(n, n + 8))) for n in (0, 8)))
    return pick(b, packed, packed, [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)])


def store_numbers(lanes: Any, address: Any) -> None:
    """16 numbers as int16, which they fit."""
    memory(address, 16, np.int16)[:] = lanes.astype(np.int16)


@compiled(store_numbers, types.void, Lanes, INT)
def _(b: Any, lanes: Any, address: Any) -> None:
    store(b, _narrow(b, lanes), address)


def store_small_weights(lanes: Any, halves: Any, bytes_: Any) -> None:
    """16 weights of 8 bits as int16 and as bytes."""
    memory(halves, 16, np.int16)[:] = lanes.astype(np.int16)
    memory(bytes_, 16, np.int8)[:] = lanes.astype(np.int8)


@compiled(store_small_weights, types.void, Lanes, INT, INT)
def _(b: Any, lanes: Any, halves: Any, bytes_: Any) -> None:
    narrow = _narrow(b, lanes)
    store(b, narrow, halves)
    store(b, b.trunc(narrow, ir.VectorType(ir.IntType(8), 16)), bytes_)


def prefetch(address: Any) -> None:
    """Have the line at an address come to the second cache. Any address will do."""


@compiled(prefetch, types.void, INT)
def _(b: Any, address: Any) -> None:
    pointer = b.inttoptr(address, ir.IntType(8).as_pointer())
    hints = [ir.Constant(ir.IntType(32), n) for n in (0, 3, 1)]  # read, first cache, data
    call(b, "llvm.prefetch.p0", ir.VoidType(), pointer, *hints)
