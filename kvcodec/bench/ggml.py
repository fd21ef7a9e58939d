"""ggml through the shared libraries that llama-cpp-python builds: quantized rows, dot products, graphs.

The libraries are loaded as they are; llama_cpp itself is not imported. Interface: ggml.h, ggml-cpu.h, ggml-quants.h.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import jit

F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8  # enum ggml_type
BLOCK = 32  # values of a q4_0 or q8_0 block: a float16 scale and 16 or 32 bytes of codes
BLOCK_BYTES = {F16: 64, Q4_0: 18, Q8_0: 34}
_pointer, _int64, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_DOT = ctypes.CFUNCTYPE(  # pointers as integers: a compiled loop calls it
    None,
    ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t,
    ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int,
)  # fmt: skip


class InitParameters(ctypes.Structure):
    """struct ggml_init_params"""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", _pointer), ("no_alloc", ctypes.c_bool)]


class Plan(ctypes.Structure):
    """struct ggml_cplan, and some room behind it for what later versions add."""

    _fields_ = [
        ("work_size", ctypes.c_size_t), ("work_data", _pointer), ("n_threads", ctypes.c_int), ("threadpool", _pointer),
        ("abort_callback", _pointer), ("abort_callback_data", _pointer), ("use_ref", ctypes.c_bool),
        ("room", ctypes.c_uint8 * 64),
    ]  # fmt: skip


@jit
def dot_rows(dot: Any, dim: Any, rows: Any, row_bytes: Any, count: Any, query: Any, out: Any) -> None:
    """Call dot(dim, out, 0, row, 0, query, 0, 1) for each of `count` rows; addresses and sizes are uint64."""
    for t in range(count):
        step = np.uint64(t)
        dot(
            dim,
            np.uint64(out + np.uint64(4) * step),
            np.uint64(0),
            np.uint64(rows + row_bytes * step),
            np.uint64(0),
            query,
            np.uint64(0),
            np.int32(1),
        )


class Ggml:
    """The functions that the bench calls. Arrays are contiguous; nothing is checked."""

    def __init__(self, folder: Path) -> None:
        base = ctypes.CDLL(str(_library(folder, "ggml-base")), mode=ctypes.RTLD_GLOBAL)
        cpu = ctypes.CDLL(str(_library(folder, "ggml-cpu")), mode=ctypes.RTLD_GLOBAL)
        row = (_pointer, _pointer, _int64)
        self._quantize = {
            Q4_0: _declare(cpu, "quantize_row_q4_0", None, *row),
            Q8_0: _declare(cpu, "quantize_row_q8_0", None, *row),
            F16: _declare(base, "ggml_fp32_to_fp16_row", None, *row),
        }
        self._dequantize = {
            Q4_0: _declare(base, "dequantize_row_q4_0", None, *row),
            Q8_0: _declare(base, "dequantize_row_q8_0", None, *row),
            F16: _declare(base, "ggml_fp16_to_fp32_row", None, *row),
        }
        self.init = _declare(base, "ggml_init", _pointer, InitParameters)
        self.free = _declare(base, "ggml_free", None, _pointer)
        self.new_tensor = _declare(base, "ggml_new_tensor_4d", _pointer, _pointer, ctypes.c_int, *[_int64] * 4)
        self.data = _declare(base, "ggml_get_data", _pointer, _pointer)
        self.flash_attention = _declare(base, "ggml_flash_attn_ext", _pointer, *[_pointer] * 5, *[_float] * 3)
        self.new_graph = _declare(base, "ggml_new_graph", _pointer, _pointer)
        self.build = _declare(base, "ggml_build_forward_expand", None, _pointer, _pointer)
        # the true result is shorter than Plan: a struct of more than 16 bytes goes through a pointer to ours
        self.plan = _declare(cpu, "ggml_graph_plan", Plan, _pointer, ctypes.c_int, _pointer)
        self.compute = _declare(cpu, "ggml_graph_compute", ctypes.c_int, _pointer, ctypes.POINTER(Plan))
        _declare(cpu, "ggml_cpu_init", None)()
        self._dots = {
            kind: _DOT(ctypes.cast(getattr(cpu, f"ggml_vec_dot_{name}_q8_0"), _pointer).value or 0)
            for kind, name in ((Q4_0, "q4_0"), (Q8_0, "q8_0"))
        }
        self.version = _describe(base, cpu)

    def quantizer(self, kind: int, values: NDArray[np.float32], rows: NDArray[np.uint8]) -> Callable[[], None]:
        """One call that quantizes all values as one row. rows: uint8 of values.size / BLOCK * BLOCK_BYTES[kind]."""
        return partial(self._quantize[kind], values.ctypes.data, rows.ctypes.data, values.size)

    def dequantizer(self, kind: int, rows: NDArray[np.uint8], values: NDArray[np.float32]) -> Callable[[], None]:
        """The way back."""
        return partial(self._dequantize[kind], rows.ctypes.data, values.ctypes.data, values.size)

    def dequantize_at(self, kind: int, address: int, values: NDArray[np.float32]) -> None:
        """Rows in ggml's own memory to `values`."""
        self._dequantize[kind](address, values.ctypes.data, values.size)

    def quantize(self, kind: int, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Rows of the last axis as bytes, uint8 (..., bytes of a row)."""
        rows = np.empty((*values.shape[:-1], values.shape[-1] // BLOCK * BLOCK_BYTES[kind]), np.uint8)
        self.quantizer(kind, values, rows)()
        return rows

    def dot_loop(
        self, kind: int, rows: NDArray[np.uint8], query: NDArray[np.uint8], dim: int, out: NDArray[np.float32]
    ) -> Callable[[], None]:
        """One compiled loop over rows (tokens, bytes), a vec_dot each with query, a q8_0 row. out: (tokens,)."""
        addresses = (np.uint64(rows.ctypes.data), np.uint64(rows.shape[1]), np.uint64(len(rows)))
        last = (np.uint64(query.ctypes.data), np.uint64(out.ctypes.data))
        return partial(dot_rows, self._dots[kind], np.int32(dim), *addresses, *last)


def load_ggml() -> Ggml:
    """Raises ModuleNotFoundError, or OSError and AttributeError if the libraries are others than expected."""
    found = importlib.util.find_spec("llama_cpp")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'llama_cpp'")
    return Ggml(Path(found.origin).parent / "lib")


def _library(folder: Path, name: str) -> Path:
    for suffix in (".so", ".dylib"):
        path = folder / f"lib{name}{suffix}"
        if path.exists():
            return path
    raise OSError(f"no lib{name} in {folder}")


def _declare(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


def _describe(base: ctypes.CDLL, cpu: ctypes.CDLL) -> str:
    """Version, commit and the SIMD that it was built with."""
    texts = [_declare(base, name, ctypes.c_char_p)().decode() for name in ("ggml_version", "ggml_commit")]
    features = ("avx2", "avx512", "avx512_vnni", "avx_vnni", "neon", "dotprod")
    built = [f for f in features if getattr(cpu, f"ggml_cpu_has_{f}", lambda: 0)()]
    return f"{texts[0]} ({texts[1]}), {' '.join(built) or 'no SIMD'}"
