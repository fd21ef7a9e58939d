"""What elias_fano.py does with planes: byte k of 64 rows at once, as `Bytes`. See _vectors.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kvcodec.kernels._vectors import (
    I16X32,
    INT,
    WORD,
    Bytes,
    broadcast,
    compiled,
    memory,
    pick,
    store,
)

I8, I16, I16X64 = ir.IntType(8), ir.IntType(16), ir.VectorType(ir.IntType(16), 64)
WOVEN = [n for i in range(64) for n in (i, i + 64)]


def splat_byte(number: Any) -> Any:
    """Bytes that all hold the low 8 bits of an int32."""
    return np.full(64, number, np.uint8)


@compiled(splat_byte, Bytes, WORD)
def _(b: Any, number: Any) -> Any:
    return broadcast(b, b.trunc(number, I8), Bytes.ir)


def store_bytes(row: Any, address: Any) -> None:
    """Bytes: a row of 64."""
    memory(address, 64, np.uint8)[:] = row


@compiled(store_bytes, types.void, Bytes, INT)
def _(b: Any, row: Any, address: Any) -> None:
    store(b, row, address)


def add_bytes(one: Any, two: Any) -> Any:
    """Sums of each two bytes."""
    return one + two


@compiled(add_bytes, Bytes, Bytes, Bytes)
def _(b: Any, one: Any, two: Any) -> Any:
    return b.add(one, two)


def mask_bytes(row: Any, mask: Any) -> Any:
    """Each byte & the low 8 bits of an int32."""
    return row & np.uint8(mask & 255)


@compiled(mask_bytes, Bytes, Bytes, WORD)
def _(b: Any, row: Any, mask: Any) -> Any:
    return b.and_(row, broadcast(b, b.trunc(mask, I8), Bytes.ir))


def count_below(sums: Any, numbers: Any, limit: Any) -> Any:
    """sums + 1 where a number is less than the limit; of bytes of at most 127."""
    return sums + (numbers < limit)


@compiled(count_below, Bytes, Bytes, Bytes, Bytes)
def _(b: Any, sums: Any, numbers: Any, limit: Any) -> Any:
    return b.sub(sums, b.sext(b.icmp_signed("<", numbers, limit), Bytes.ir))


def take_codes(one: Any, two: Any, shift: Any, bits: Any) -> Any:
    """Bytes: of the 16 bits of each two bytes, the second one high, `bits` from bit `shift`, at most 7, with sign."""
    codes = ((one.astype(np.int32) | two.astype(np.int32) << 8) >> shift) & ((1 << bits) - 1)
    half = 1 << (bits - 1)
    return ((codes ^ half) - half).astype(np.uint8)


@compiled(take_codes, Bytes, Bytes, Bytes, WORD, WORD)
def _(b: Any, one: Any, two: Any, shift: Any, bits: Any) -> Any:
    byte, number = ir.Constant(I8, 255), b.trunc(bits, I8)
    lowest = ir.Constant(I8, 1)
    half = broadcast(b, b.shl(lowest, b.sub(number, lowest)), Bytes.ir)
    mask = b.lshr(byte, b.sub(ir.Constant(I8, 8), number))
    first = b.and_(mask, b.lshr(byte, b.trunc(shift, I8)))
    down = b.trunc(shift, I16)
    up = b.sub(ir.Constant(I16, 8), down)
    low = b.bitcast(b.lshr(b.bitcast(one, I16X32), broadcast(b, down, I16X32)), Bytes.ir)
    high = b.bitcast(b.shl(b.bitcast(two, I16X32), broadcast(b, up, I16X32)), Bytes.ir)
    low = b.and_(low, broadcast(b, first, Bytes.ir))
    high = b.and_(high, broadcast(b, b.xor(mask, first), Bytes.ir))
    return b.sub(b.xor(b.or_(low, high), half), half)


def store_indices(one: Any, two: Any, high: Any, shift: Any, bits: Any, last: Any, address: Any) -> None:
    """64 uint16: as take_codes without sign, up to 16 bits, with the low bits of `high` above them; at most `last`."""
    low = ((one.astype(np.int32) | two.astype(np.int32) << 8) >> shift) & ((1 << bits) - 1)
    memory(address, 64, np.uint16)[:] = np.minimum(low | high.astype(np.int32) << bits, last)


@compiled(store_indices, types.void, Bytes, Bytes, Bytes, WORD, WORD, WORD, INT)
def _(b: Any, one: Any, two: Any, high: Any, shift: Any, bits: Any, last: Any, address: Any) -> None:
    _store_joined(b, _shift_planes(b, one, two, shift), high, bits, last, address)


def store_wide_indices(
    one: Any, two: Any, three: Any, high: Any, shift: Any, bits: Any, last: Any, address: Any
) -> None:
    """`store_indices` of the 24 bits of each three bytes, from bit 1 to 7 on."""
    low = one.astype(np.int32) | two.astype(np.int32) << 8 | three.astype(np.int32) << 16
    low = (low >> shift) & ((1 << bits) - 1)
    memory(address, 64, np.uint16)[:] = np.minimum(low | high.astype(np.int32) << bits, last)


@compiled(store_wide_indices, types.void, Bytes, Bytes, Bytes, Bytes, WORD, WORD, WORD, INT)
def _(b: Any, one: Any, two: Any, three: Any, high: Any, shift: Any, bits: Any, last: Any, address: Any) -> None:
    up = b.sub(ir.Constant(I16, 16), b.trunc(shift, I16))
    upper = b.shl(b.zext(three, I16X64), broadcast(b, up, I16X64))
    _store_joined(b, b.or_(_shift_planes(b, one, two, shift), upper), high, bits, last, address)


def _shift_planes(b: Any, one: Any, two: Any, shift: Any) -> Any:
    words = b.bitcast(pick(b, one, two, WOVEN), I16X64)
    return b.lshr(words, broadcast(b, b.trunc(shift, I16), I16X64))


def _store_joined(b: Any, low: Any, high: Any, bits: Any, last: Any, address: Any) -> None:
    """All 16 bits are low ones only of a `high` that is 0."""
    wide = ir.IntType(32)
    mask = b.trunc(b.sub(b.shl(ir.Constant(wide, 1), bits), ir.Constant(wide, 1)), I16)
    by = b.select(b.icmp_signed("<", bits, ir.Constant(wide, 15)), bits, ir.Constant(wide, 15))
    upper = b.shl(b.zext(high, I16X64), broadcast(b, b.trunc(by, I16), I16X64))
    joined = b.or_(b.and_(low, broadcast(b, mask, I16X64)), upper)
    most = broadcast(b, b.trunc(last, I16), I16X64)
    store(b, b.select(b.icmp_unsigned("<", joined, most), joined, most), address)
