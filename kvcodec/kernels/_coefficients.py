"""What coefficients.py needs besides Floats: single float32 in memory, and rounding to codes. See _vectors.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kvcodec.kernels._floats_simd import FLOAT, Floats
from kvcodec.kernels._vectors import INT, WORD, all_of, broadcast, compiled, load, memory, store

MAGIC = 12582912.0  # 1.5 * 2**23: added, it rounds to nearest even


def load_float(address: Any) -> Any:
    """One float32."""
    return memory(address, 1, np.float32)[0]


@compiled(load_float, FLOAT, INT)
def _(b: Any, address: Any) -> Any:
    return load(b, address, ir.FloatType())


def store_float(number: Any, address: Any) -> None:
    """One float32."""
    memory(address, 1, np.float32)[0] = number


@compiled(store_float, types.void, FLOAT, INT)
def _(b: Any, number: Any, address: Any) -> None:
    store(b, number, address)


def float_of_scale(bits: Any) -> Any:
    """float32 of bfloat16 bits."""
    return (np.uint32(bits) << np.uint32(16)).view(np.float32)


@compiled(float_of_scale, FLOAT, WORD)
def _(b: Any, bits: Any) -> Any:
    return b.bitcast(b.shl(bits, ir.Constant(bits.type, 16)), ir.FloatType())


def splat_at(address: Any) -> Any:
    """Floats that all hold the float32 at an address."""
    return np.full(16, memory(address, 1, np.float32)[0], np.float32)


@compiled(splat_at, Floats, INT)
def _(b: Any, address: Any) -> Any:
    return broadcast(b, load(b, address, ir.FloatType()), Floats.ir)


def round_codes(floats: Any, most: Any) -> Any:
    """Whole numbers nearest to finite floats, ties to even, within +-most."""
    return np.rint(np.clip(floats, -most, most))


@compiled(round_codes, Floats, Floats, FLOAT)
def _(b: Any, floats: Any, most: Any) -> Any:
    high, low = broadcast(b, most, Floats.ir), broadcast(b, b.fneg(most), Floats.ir)
    floats = b.select(b.fcmp_ordered("<", floats, high), floats, high)
    floats = b.select(b.fcmp_ordered(">", floats, low), floats, low)
    magic = all_of(Floats.ir, MAGIC)
    return b.fsub(b.fadd(floats, magic), magic)
