"""One query token's attention by ggml's flash attention, K and V in a ggml type."""

from __future__ import annotations

import ctypes
import math
import weakref

import numpy as np
from numpy.typing import NDArray

from kvcodec.bench.bandwidth import allocate_words
from kvcodec.bench.ggml import F32, Ggml, InitParameters
from kvcodec.bench.row import WrongResult

_ROOM = 16 << 20  # for the graph, the query and the output
_SUCCESS = 0


class FlashAttention:
    """A graph of one ggml_flash_attn_ext, computed on one thread. run() raises WrongResult if ggml refuses.

    q: float32 (q_heads, dim); k, v: float32 (kv_heads, tokens, dim), quantized to `kind` here. output: float32
    (q_heads, dim), what the last run left.
    """

    def __init__(
        self, ggml: Ggml, kind: int, q: NDArray[np.float32], k: NDArray[np.float32], v: NDArray[np.float32]
    ) -> None:
        self._ggml, (q_heads, dim), (kv_heads, tokens, _) = ggml, q.shape, k.shape
        k_rows, v_rows = ggml.quantize(kind, k), ggml.quantize(kind, v)
        self._memory = allocate_words((k_rows.nbytes + v_rows.nbytes + _ROOM) // 4096 * 4096)
        context = ggml.init(InitParameters(self._memory.nbytes, self._memory.ctypes.data, False))
        weakref.finalize(self, ggml.free, context)
        query = ggml.new_tensor(context, F32, dim, 1, q_heads, 1)
        keys, values = (ggml.new_tensor(context, kind, dim, tokens, kv_heads, 1) for _ in range(2))
        for tensor, array in ((query, q), (keys, k_rows), (values, v_rows)):
            ctypes.memmove(ggml.data(tensor), array.ctypes.data, array.nbytes)
        result = ggml.flash_attention(context, query, keys, values, None, 1 / math.sqrt(dim), 0.0, 0.0)
        self._graph = ggml.new_graph(context)
        ggml.build(self._graph, result)
        self._plan = ggml.plan(self._graph, 1, None)
        self._work = np.zeros(self._plan.work_size + 64, np.uint8)
        self._plan.work_data = self._work.ctypes.data
        pointer = ctypes.cast(ggml.data(result), ctypes.POINTER(ctypes.c_float))
        self.output = np.ctypeslib.as_array(pointer, (q_heads, dim))
        self._kind, self._shape = kind, k.shape
        self._places = ggml.data(keys), ggml.data(values)

    def dequantize(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """K and V as ggml sees them, float32 (kv_heads, tokens, dim)."""
        k, v = np.empty(self._shape, np.float32), np.empty(self._shape, np.float32)
        for place, out in zip(self._places, (k, v), strict=True):
            self._ggml.dequantize_at(self._kind, place, out)
        return k, v

    def run(self) -> None:
        """Compute the output."""
        if self._ggml.compute(self._graph, ctypes.byref(self._plan)) != _SUCCESS:
            raise WrongResult("ggml_graph_compute failed")
