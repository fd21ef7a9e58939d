"""Products of int16 vectors with int8 atoms. See _vectors.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from kvcodec.kernels._vectors import HAS_AVX2, I16X16, INT, LEVEL, WORD, all_of, call, compiled, load, memory

I8X16, I32X8, I32X16 = (ir.VectorType(ir.IntType(bits), n) for bits, n in ((8, 16), (32, 8), (32, 16)))
STEP = 16  # channels
PAIRS = HAS_AVX2 and LEVEL != "portable"  # vpmaddwd: products of words, and sums of two of them


def multiply_words(vector: Any, atom: Any, count: Any) -> Any:
    """Sum of `count` products, a multiple of STEP, modulo 2**32: int16 at one address, int8 at another."""
    words, bytes_ = memory(vector, count, np.int16), memory(atom, count, np.int8)
    return np.int32((words.astype(np.int32) * bytes_).sum(dtype=np.int32))


@compiled(multiply_words, WORD, INT, INT, INT)
def _(b: Any, vector: Any, atom: Any, count: Any) -> Any:
    kind = I32X8 if PAIRS else I32X16
    sums = cgutils.alloca_once_value(b, all_of(kind, 0))  # type: ignore[no-untyped-call]
    step = ir.Constant(count.type, STEP)
    with cgutils.for_range_slice(b, ir.Constant(count.type, 0), count, step) as (n, _):
        words, bytes_ = load(b, b.add(vector, b.shl(n, ir.Constant(n.type, 1))), I16X16), load(b, b.add(atom, n), I8X16)
        if PAIRS:
            products = call(b, "llvm.x86.avx2.pmadd.wd", I32X8, words, b.sext(bytes_, I16X16))
        else:
            products = b.mul(b.sext(words, I32X16), b.sext(bytes_, I32X16))
        b.store(b.add(b.load(sums), products), sums)
    return call(b, f"llvm.vector.reduce.add.v{kind.count}i32", ir.IntType(32), b.load(sums))
