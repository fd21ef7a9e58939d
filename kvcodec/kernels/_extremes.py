"""The least and the greatest of 16-bit floats, found on their bits.

Three folds hold both: the least and the greatest bits as unsigned integers, and the greatest as signed ones. Of
negative floats the greatest bits are the least float.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._floats_simd import branch, offset
from kvcodec.kernels._vectors import I16X16, INT, compiled, load, memory, pick, store

ROW = 64  # bytes
FOLDS = {  # of this many tokens: the lanes of two vectors that meet the others; within 8 lanes as long as it can be
    2: ([*range(4), *range(16, 20), *range(8, 12), *range(24, 28)], 4),
    4: ([n + s for n in (0, 4, 16, 20, 8, 12, 24, 28) for s in (0, 1)], 2),
    8: ([n for i in range(0, 16, 2) for n in (i, 16 + i)], 1),
    16: ([*range(8), *range(16, 24)], 8),
}
FOLDED = [8 * h + n for h in (0, 1) for n in (0, 2, 4, 6, 1, 3, 5, 7)]  # where token after token is then


def find_extremes(start: Any, step: Any, count: Any) -> Any:
    """Least and greatest, 16 uint16 each, of the 16-bit floats at `count` addresses; -0 is less than 0."""
    bits = np.stack([memory(start + step * n, 16, np.uint16) for n in range(count)])
    keys = bits ^ np.where(bits > 0x7FFF, np.uint16(0xFFFF), np.uint16(0x8000))
    return np.take_along_axis(bits, np.stack([keys.argmin(axis=0), keys.argmax(axis=0)]), axis=0)


def note_channel_extremes(start: Any, step: Any, count: Any, extremes: Any) -> None:
    """16 least and, a row behind them, 16 greatest of the 16-bit floats at `count` addresses, at least one."""
    least, greatest = find_extremes(start, step, count)
    memory(extremes, 16, np.uint16)[:] = least
    memory(extremes + ROW, 16, np.uint16)[:] = greatest


@compiled(note_channel_extremes, types.void, INT, INT, INT, INT)
def _(b: Any, start: Any, step: Any, count: Any, extremes: Any) -> None:
    least, greatest = _order_extremes(b, *_fold_rows(b, start, step, b.mul(count, step)))
    store(b, least, extremes)
    store(b, greatest, offset(b, extremes, ROW))


def fold_rows(start: Any, stride: Any, tokens: Any, count: Any, folded: Any) -> None:
    """For each token the three folds, 16 lanes each, of 16 * count 16-bit floats.

    start: of the first token's; stride: bytes to the next one's.
    """
    for t in range(tokens):
        bits = memory(start + stride * t, 16 * count, np.uint16).reshape(count, 16)
        rows = bits.min(0), bits.max(0), bits.view(np.int16).max(0).view(np.uint16)
        memory(folded + 96 * t, 48, np.uint16)[:] = np.concatenate(rows)


@compiled(fold_rows, types.void, INT, INT, INT, INT, INT)
def _(b: Any, start: Any, stride: Any, tokens: Any, count: Any, folded: Any) -> None:
    size = b.mul(count, ir.Constant(count.type, 32))
    four = b.icmp_signed("==", count, ir.Constant(count.type, 4))
    with cgutils.for_range(b, tokens) as loop:
        at = b.add(start, b.mul(loop.index, stride))
        to = b.add(folded, b.mul(loop.index, ir.Constant(count.type, 96)))

        step = ir.Constant(count.type, 32)
        rows = branch(b, four, partial(_fold_four, b, at), partial(_fold_rows, b, at, step, size))
        for k, row in enumerate(rows):
            store(b, row, offset(b, to, 32 * k))


def note_token_extremes(folded: Any, extremes: Any) -> None:
    """16 least and, a row behind them, 16 greatest of as many tokens, each folded to three rows."""
    rows = memory(folded, 16 * 48, np.uint16).reshape(16, 3, 16)
    least, greatest, signed = rows[:, 0].min(1), rows[:, 1].max(1), rows[:, 2].view(np.int16).max(1).view(np.uint16)
    memory(extremes, 16, np.uint16)[:] = np.where(greatest > 0x7FFF, greatest, least)
    memory(extremes + ROW, 16, np.uint16)[:] = np.where(signed > 0x7FFF, least, signed)


@compiled(note_token_extremes, types.void, INT, INT)
def _(b: Any, folded: Any, extremes: Any) -> None:
    least, greatest = _order_extremes(b, *(_fold_tokens(b, folded, n, 0, 16) for n in range(3)))
    store(b, pick(b, least, least, FOLDED), extremes)
    store(b, pick(b, greatest, greatest, FOLDED), offset(b, extremes, ROW))


def _fold_tokens(b: Any, folded: Any, kind: int, first: int, tokens: int) -> Any:
    """One kind of rows of some tokens, folded to 16 / tokens lanes each: all that are left of a token side by side."""
    if tokens == 1:
        return load(b, offset(b, folded, 96 * first + 32 * kind), I16X16)
    one = _fold_tokens(b, folded, kind, first, tokens // 2)
    other = _fold_tokens(b, folded, kind, first + tokens // 2, tokens // 2)
    lanes, away = FOLDS[tokens]
    return _fold(b, kind, pick(b, one, other, lanes), pick(b, one, other, [n + away for n in lanes]))


def _fold(b: Any, kind: int, one: Any, other: Any) -> Any:
    compare = b.icmp_signed if kind == 2 else b.icmp_unsigned
    return b.select(compare("<" if kind == 0 else ">", one, other), one, other)


def _fold_four(b: Any, start: Any) -> list[Any]:
    """_fold_rows of 64 floats."""
    rows = [load(b, offset(b, start, 32 * n), I16X16) for n in range(4)]
    return [_fold(b, k, _fold(b, k, *rows[:2]), _fold(b, k, *rows[2:])) for k in range(3)]


def _fold_rows(b: Any, start: Any, step: Any, size: Any) -> list[Any]:
    """The three folds of 16 floats every `step` bytes, over `size` bytes."""
    first = load(b, start, I16X16)
    slots = [cgutils.alloca_once_value(b, first) for _ in range(3)]  # type: ignore[no-untyped-call]
    with cgutils.for_range_slice(b, step, size, step) as (n, _):
        new = load(b, b.add(start, n), I16X16)
        for k, slot in enumerate(slots):
            b.store(_fold(b, k, new, b.load(slot)), slot)
    return [b.load(slot) for slot in slots]


def _order_extremes(b: Any, least: Any, greatest: Any, signed: Any) -> tuple[Any, Any]:
    """Least and greatest floats. Of negative ones the greatest bits are the least; the least bits, if all are."""
    nothing = ir.Constant(least.type, None)
    low = b.select(b.icmp_signed("<", greatest, nothing), greatest, least)
    return low, b.select(b.icmp_signed("<", signed, nothing), least, signed)
