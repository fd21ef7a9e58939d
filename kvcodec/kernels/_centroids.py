"""What product codes do with vectors: the centroid of 256 that misses least, sums of rows. See _vectors.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._products import add_pairs
from kvcodec.kernels._vectors import I16X16, INT, all_of, broadcast, call, compiled, load, memory, pick, store

CENTROIDS = 256
TRIES = 4  # shapes that are tried together
_cgutils: Any = cgutils
_LANES = 8
_FLOAT, _I8, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_I32, _LANES)
_VECTOR = ir.VectorType(_FLOAT, _LANES)
_MOST = 3e38


def load_float(address: Any) -> Any:
    """A float32."""
    return memory(address, 1, np.float32)[0]


@compiled(load_float, types.float32, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, _FLOAT)


def store_float(number: Any, address: Any) -> None:
    """A float32."""
    memory(address, 1, np.float32)[0] = number


@compiled(store_float, types.void, types.float32, INT)
def _(b: Any, number: Any, address: Any) -> None:
    store(b, number, address)


def _missed(squares: Any, dots: Any, factor: Any) -> Any:
    return memory(squares, CENTROIDS, np.float32) - factor * memory(dots, CENTROIDS, np.float32)


def store_least_of_four(squares: Any, dots: Any, factors: Any, to: Any) -> None:
    """4 float32: the least of squares - factor * dots, 256 float32 each, for each of 4 factors."""
    for n, factor in enumerate(memory(factors, TRIES, np.float32)):
        memory(to, TRIES, np.float32)[n] = _missed(squares, dots, factor).min()


@compiled(store_least_of_four, types.void, INT, INT, INT, INT)
def _(b: Any, squares: Any, dots: Any, factors: Any, to: Any) -> None:
    own = [broadcast(b, load(b, _plus(b, factors, 4 * n), _FLOAT), _VECTOR) for n in range(TRIES)]
    least = [_cgutils.alloca_once_value(b, all_of(_VECTOR, _MOST)) for _ in own]
    with cgutils.for_range(b, ir.Constant(_I64, CENTROIDS // _LANES)) as loop:
        at = b.shl(loop.index, ir.Constant(_I64, 5))
        square, dot = load(b, b.add(squares, at), _VECTOR), load(b, b.add(dots, at), _VECTOR)
        for place, factor in zip(least, own, strict=True):
            b.store(_smaller(b, b.fsub(square, b.fmul(factor, dot)), b.load(place)), place)
    for n, place in enumerate(least):
        lanes = b.load(place)
        for step in (4, 2, 1):
            lanes = _smaller(b, lanes, pick(b, lanes, lanes, [(k + step) % _LANES for k in range(_LANES)]))
        store(b, b.extract_element(lanes, ir.Constant(ir.IntType(32), 0)), _plus(b, to, 4 * n))


def find_least(squares: Any, dots: Any, factors: Any, least: Any) -> Any:
    """Number of the first centroid where squares - factor * dots is the least that store_least_of_four found of the
    first of the factors; 0 if it is nowhere.
    """
    found = _missed(squares, dots, memory(factors, 1, np.float32)[0]) == memory(least, 1, np.float32)[0]
    return np.int64(found.argmax())


@compiled(find_least, types.int64, INT, INT, INT, INT)
def _(b: Any, squares: Any, dots: Any, factors: Any, least: Any) -> Any:
    factor, own = (broadcast(b, load(b, at, _FLOAT), _VECTOR) for at in (factors, least))
    found = _cgutils.alloca_once_value(b, ir.Constant(_I64, 0))
    count = ir.Constant(_I64, CENTROIDS // _LANES)
    with cgutils.for_range(b, count) as loop:  # from the last on, so that the first one stays
        n = b.sub(b.sub(count, ir.Constant(_I64, 1)), loop.index)
        at = b.shl(n, ir.Constant(_I64, 5))
        square, dot = load(b, b.add(squares, at), _VECTOR), load(b, b.add(dots, at), _VECTOR)
        alike = b.bitcast(b.fcmp_ordered("==", b.fsub(square, b.fmul(factor, dot)), own), _I8)
        first = call(b, "llvm.cttz.i8", _I8, alike, ir.Constant(ir.IntType(1), 0))
        number = b.add(b.shl(n, ir.Constant(_I64, 3)), b.zext(first, _I64))
        b.store(b.select(b.icmp_unsigned("==", alike, ir.Constant(_I8, 0)), b.load(found), number), found)
    return b.load(found)


def sum_woven(rows: Any, stride: Any, pairs: Any, count: Any, to: Any) -> None:
    """16 int32: int16 pairs, `count` of them, times as many rows of 16 channels of two numbers each, `stride` bytes
    apart; the sums are exact.
    """
    total = np.zeros(16, np.int32)
    for n in range(count):
        both = memory(rows + n * stride, 32, np.int16).astype(np.int32) * np.tile(
            memory(pairs + 4 * n, 2, np.int16), 16
        )
        total += both.reshape(16, 2).sum(axis=1, dtype=np.int32)
    memory(to, 16, np.int32)[:] = total


@compiled(sum_woven, types.void, INT, INT, INT, INT, INT)
def _(b: Any, rows: Any, stride: Any, pairs: Any, count: Any, to: Any) -> None:
    own = [_cgutils.alloca_once_value(b, all_of(_WORDS, 0)) for _ in range(2)]
    with cgutils.for_range(b, count) as loop:
        pair = load(b, b.add(pairs, b.shl(loop.index, ir.Constant(_I64, 2))), _I32)
        numbers = b.bitcast(broadcast(b, pair, _WORDS), I16X16)
        row = b.add(rows, b.mul(loop.index, stride))
        for n, place in enumerate(own):
            products = add_pairs(b, load(b, _plus(b, row, 32 * n), I16X16), numbers)
            b.store(b.add(b.load(place), products), place)
    for n, place in enumerate(own):
        store(b, b.load(place), _plus(b, to, 32 * n))


def _plus(b: Any, address: Any, count: int) -> Any:
    return b.add(address, ir.Constant(address.type, count))


def _smaller(b: Any, one: Any, two: Any) -> Any:
    return b.select(b.fcmp_ordered("<", one, two), one, two)
