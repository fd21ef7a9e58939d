"""What trellis codes do with vectors: one step of all paths through a trellis. See _vectors.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._vectors import INT, broadcast, compiled, load, memory, pick, store

_cgutils: Any = cgutils
_LANES = 8
_MOST_BITS = 8
_AT_ONCE = 16  # branches
_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, _LANES)
_NUMBERS, _SMALL = ir.VectorType(_I32, _LANES), ir.VectorType(ir.IntType(8), _LANES)


def step_paths(
    costs: Any, to: Any, back: Any, table: Any, number: Any, ratio: Any, bits: Any, window: Any
) -> None:  # fmt: skip
    """Costs of the best paths that go on to each state of 2**window by a component of `bits` bits, of `number`.

    costs, to: float32 (2**window,), of the states before and after; a path that goes on costs ratio times what it did,
    and the square of what its entry of the table, float32 (2**window,), misses. A state is its path's last bits, the
    lowest ones last: it comes from those whose low bits are its high ones. back: uint8 (2**(window - bits),), the high
    bits of the state before, the least of equal ones. window - bits is 3 or more.
    """
    before = memory(costs, 1 << window, np.float32).reshape(1 << bits, -1)
    memory(back, before.shape[1], np.uint8)[:] = before.argmin(axis=0)
    missed = number - memory(table, 1 << window, np.float32).reshape(-1, 1 << bits)
    memory(to, 1 << window, np.float32)[:] = ((before.min(axis=0) * ratio)[:, None] + missed * missed).reshape(-1)


@compiled(step_paths, types.void, INT, INT, INT, INT, types.float32, types.float32, INT, INT)
def _(
    b: Any, costs: Any, to: Any, back: Any, table: Any, number: Any, ratio: Any, bits: Any, window: Any
) -> None:  # fmt: skip
    wide, factor = broadcast(b, number, _VECTOR), broadcast(b, ratio, _VECTOR)
    rest = b.sub(window, bits)

    def step(branches: int) -> None:
        with cgutils.for_range(b, b.shl(_word(1), b.sub(rest, _word(3)))) as loop:
            source = b.add(costs, b.shl(loop.index, _word(5)))
            least, which = _merge(b, source, b.shl(_word(4), rest), branches)
            store(b, b.trunc(which, _SMALL), b.add(back, b.shl(loop.index, _word(3))))
            at = b.mul(loop.index, _word(4 * _LANES * branches))
            _extend(b, b.fmul(least, factor), b.add(to, at), b.add(table, at), wide, branches)

    _choose(b, bits, step, 1)


def _choose(b: Any, bits: Any, step: Callable[[int], None], own: int) -> None:
    """The step of as many branches as there are: each number of bits has code of its own."""
    if own == _MOST_BITS:
        step(1 << own)
        return
    with b.if_else(b.icmp_signed("==", bits, _word(own))) as (here, others):
        with here:
            step(1 << own)
        with others:
            _choose(b, bits, step, own + 1)


def _merge(b: Any, costs: Any, stride: Any, branches: int) -> tuple[Any, Any]:
    """Of 8 neighbouring states, and those `stride` bytes on, the least costs, and the number of the first such."""
    at_once = min(branches, _AT_ONCE)

    def try_some(least: Any, which: Any, first: Any, numbers: range) -> tuple[Any, Any]:
        for n in numbers:
            own = b.add(first, _word(n))
            cost = load(b, b.add(costs, b.mul(stride, own)), _VECTOR)
            less = b.fcmp_ordered("<", cost, least)
            least = b.select(less, cost, least)
            which = b.select(less, broadcast(b, b.trunc(own, _I32), _NUMBERS), which)
        return least, which

    nothing = ir.Constant(_NUMBERS, None)
    least, which = try_some(load(b, costs, _VECTOR), nothing, _word(0), range(1, at_once))
    if branches == at_once:
        return least, which
    places = _cgutils.alloca_once_value(b, least), _cgutils.alloca_once_value(b, which)
    with _cgutils.for_range_slice(b, _word(at_once), _word(branches), _word(at_once)) as (first, _):
        found = try_some(b.load(places[0]), b.load(places[1]), first, range(at_once))
        for value, place in zip(found, places, strict=True):
            b.store(value, place)
    return b.load(places[0]), b.load(places[1])


def _extend(b: Any, own: Any, to: Any, table: Any, number: Any, branches: int) -> None:
    """Costs of 8 merged paths and all their branches, which lie one behind the other."""

    def put(cost: Any, at: Any) -> None:
        missed = b.fsub(number, load(b, b.add(table, at), _VECTOR))
        store(b, b.fadd(cost, b.fmul(missed, missed)), b.add(to, at))

    at_once = min(branches, _AT_ONCE)
    for n in range(0, _LANES * branches, _LANES * -(-branches // _LANES)):
        cost = pick(b, own, own, [(n + k) // branches for k in range(_LANES)])
        with cgutils.for_range(b, _word(-(-branches // _AT_ONCE))) as loop:
            for k in range(0, max(at_once, _LANES), _LANES):
                put(cost, b.add(_word(4 * (n + k)), b.mul(loop.index, _word(4 * _AT_ONCE))))


def _word(number: int) -> Any:
    return ir.Constant(_I64, number)
