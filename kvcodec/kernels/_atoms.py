"""What rebuilding vectors from atoms takes: 16 channels of two atoms at a time, and forms of rows. See _vectors.py."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvcodec.kernels._floats_simd import FLOAT, Floats
from kvcodec.kernels._products import _by_registers, add_pairs
from kvcodec.kernels._scaling import _clamp, _narrow_brain, _narrow_half
from kvcodec.kernels._vectors import I16X16, I16X32, INT, WORD, Lanes, broadcast, compiled, load, memory, pick, store
from kvcodec.kernels.floats import BFLOAT16, FLOAT32

_cgutils: Any = cgutils
I8X16 = ir.VectorType(ir.IntType(8), 16)


def copy_bytes(source: Any, count: Any, to: Any) -> None:
    """Copy bytes to where they do not overlap."""
    memory(to, count, np.uint8)[:] = memory(source, count, np.uint8)


@compiled(copy_bytes, types.void, INT, INT, INT)
def _(b: Any, source: Any, count: Any, to: Any) -> None:
    byte = ir.IntType(8).as_pointer()
    _cgutils.raw_memcpy(b, b.inttoptr(to, byte), b.inttoptr(source, byte), count, 1)


def weigh_atoms(sums: Any, one: Any, two: Any, pair: Any) -> Any:
    """sums + 16 channels, int8, of two atoms, each times its code: the low and the high half of an int32."""
    codes = np.array([pair], np.int32).view(np.int16).astype(np.int32)
    return sums + memory(one, 16, np.int8) * codes[0] + memory(two, 16, np.int8) * codes[1]


@compiled(weigh_atoms, Lanes, Lanes, INT, INT, WORD)
def _(b: Any, sums: Any, one: Any, two: Any, pair: Any) -> Any:
    rows = [b.sext(load(b, address, I8X16), I16X16) for address in (one, two)]
    both = pick(b, rows[0], rows[1], [n + 16 * k for n in range(16) for k in range(2)])
    codes = b.bitcast(broadcast(b, pair, Lanes.ir), I16X32)
    return b.add(sums, _by_registers(b, add_pairs, both, codes))


def store_form(floats: Any, greatest: Any, form: Any, address: Any) -> None:
    """16 floats in a form of rows, those beyond +-greatest as that."""
    numbers = np.clip(floats, -greatest, greatest)
    if form == FLOAT32:
        memory(address, 16, np.float32)[:] = numbers
    else:
        narrow = numbers.astype(ml_dtypes.bfloat16 if form == BFLOAT16 else np.float16)
        memory(address, 16, np.uint16)[:] = narrow.view(np.uint16)


@compiled(store_form, types.void, Floats, FLOAT, INT, INT)
def _(b: Any, floats: Any, greatest: Any, form: Any, address: Any) -> None:
    number = _clamp(b, [floats], greatest)[0]
    is_form = partial(b.icmp_signed, "==", form)
    with b.if_else(is_form(ir.Constant(form.type, FLOAT32))) as (wide, narrow):
        with wide:
            store(b, number, address)
        with narrow, b.if_else(is_form(ir.Constant(form.type, BFLOAT16))) as (brain, half):
            with brain:
                store(b, _narrow_brain(b, number), address)
            with half:
                store(b, _narrow_half(b, number), address)
