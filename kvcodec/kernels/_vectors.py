"""What _simd.py, _lanes.py and the others are made of: vectors as a type, SIMD levels, how an operation is declared.

An operation is a plain Python function, its portable twin on numpy arrays, which is what runs with NUMBA_DISABLE_JIT=1;
below it stands what numba compiles in its stead. Levels differ only in how they multiply bytes (_products.py). A level
above the processor's runs with its instructions spelled out: slow, and the same numbers.

Addresses are plain integers: a record may lie anywhere in the map. Vectors need not be aligned.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import register_model

from kvcodec.errors import SpecError

LEVELS = ("portable", "avx2", "avx512vnni")
FEATURES: dict[str, bool] = dict(llvmlite.binding.get_host_cpu_features())
HAS_AVX2 = bool(FEATURES.get("avx2"))
HAS_VNNI = all(FEATURES.get(f) for f in ("avx512f", "avx512bw", "avx512vl", "avx512vnni"))


def find_level() -> str:
    """KVCODEC_SIMD, else the highest level that this processor has. Raises SpecError for a level that is none."""
    asked = os.environ.get("KVCODEC_SIMD") or ("avx512vnni" if HAS_VNNI else "avx2" if HAS_AVX2 else "portable")
    if asked not in LEVELS:
        raise SpecError(f"KVCODEC_SIMD is {asked!r}, want one of {', '.join(LEVELS)}")
    return asked


LEVEL = find_level()


class Vector(types.Type):
    """numba's type of a vector of `lanes` integers of `bits` bits, or of float32."""

    def __init__(self, bits: int, lanes: int, *, floats: bool = False) -> None:
        self.ir = ir.VectorType(ir.FloatType() if floats else ir.IntType(bits), lanes)
        super().__init__(name=f"{'float' if floats else 'int'}{bits}x{lanes}")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.ir)


Bytes, Lanes, Longs = Vector(8, 64), Vector(32, 16), Vector(64, 8)
INT, WORD, LONG = types.intp, types.int32, types.int64
I16X16, I16X32, I64X8 = (ir.VectorType(ir.IntType(b), n) for b, n in ((16, 16), (16, 32), (64, 8)))


def compiled(twin: Callable[..., Any], result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], None]:
    """Have numba compile calls of `twin` with these argument types to what a generator (builder, *values) builds."""

    def register(generate: Callable[..., Any]) -> None:
        case = signature(result, *arguments)
        template = type(f"_{twin.__name__}", (ConcreteTemplate,), {"key": twin, "cases": [case]})
        infer_global(twin, types.Function(template))

        def lower(context: Any, builder: Any, _: Any, args: Any) -> Any:
            _allow_null(builder.function)
            out = generate(builder, *args)
            return context.get_dummy_value() if result is types.void else out

        lower_builtin(twin, *arguments)(lower)

    return register


def _allow_null(function: ir.Function) -> None:
    """Have LLVM take no address for an invalid one.

    It writes addresses of integers as offsets from null. numba optimizes a part again where that is inlined, and what
    is read or written at an offset from null would then be undefined, and with it the way there.
    """
    set.add(function.attributes, "null_pointer_is_valid")  # llvmlite does not know it


def all_of(vector: ir.VectorType, value: float) -> ir.Constant:
    """A constant vector."""
    return ir.Constant(vector, [value] * vector.count)


def pick(b: Any, one: Any, other: Any, lanes: list[int]) -> Any:
    """The lanes of these numbers of two vectors, those of `other` counted behind those of `one`."""
    return b.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


def broadcast(b: Any, value: Any, vector: ir.VectorType) -> Any:
    """A vector that holds one value in all lanes."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = b.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return pick(b, first, undefined, [0] * vector.count)


def call(b: Any, name: str, result: ir.Type, *args: Any) -> Any:
    """Call an intrinsic of LLVM's."""
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


def load(b: Any, address: Any, kind: ir.Type) -> Any:
    """What lies at an address, wherever that is."""
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = 1
    return value


def store(b: Any, value: Any, address: Any) -> None:
    """Put a value at an address, wherever that is."""
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = 1


def memory(address: Any, count: int, dtype: Any) -> Any:
    """A writable view of memory."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype)
