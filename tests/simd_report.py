"""What a process finds of the attention kernels at its SIMD level: run as a program, it writes a JSON file.

python -m tests.simd_report FILE            solves the problems; attention kernels are compiled, not from a cache
python -m tests.simd_report FILE CPU        compiles products for a processor that need not be there, and runs nothing
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.compiling import compile_in_turn

KERNELS = "attend_items", "score_strips", "merge_slots"


def use_a_store() -> None:
    """Attention on records in the map, on open rows of all sorts, by two threads and a reader."""
    import kvcodec as kv

    rng = np.random.default_rng(0)
    model = kv.Model((kv.Layer.kv(2, 16), kv.Layer.mla(32, 16), kv.Layer.kv(1, 24, window=50)))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.kvlog"
        with kv.open(path, "w", model=model, residual=16, sinks=4, durability="step", threads=2) as store:
            sequence = store.sequence("a")
            shapes = [((2, 16), (2, 16)), ((1, 32), (1, 16)), ((1, 24), (1, 24))]
            sequence.append_layers(
                {n: [rng.standard_normal((150, *s)).astype(np.float32) for s in own] for n, own in enumerate(shapes)}
            )
            attend_all(sequence)
        with kv.open(path) as store:
            attend_all(store.sequence("a"))


def attend_all(sequence) -> None:
    for layer, channels in enumerate((16, 48, 24)):
        for dtype in (np.float32, np.float64):
            state = sequence.attend(layer, np.ones((4, channels), dtype), scale=0.1, return_state=True)[1]
            state.merge(state)
        sequence.attend(layer, np.ones((4, channels)), scale=0.1, query_bits=8, tokens=[140, 120])


def import_attend():
    """Modules of the attention kernels, which are compiled whatever the cache holds, and put there for other tests; the
    kernels of codecs, of which nothing is asked, may come from theirs.
    """
    from kvcodec.kernels import _jit

    class Unread(_jit._KernelCache):
        def load_overload(self, sig, target_context):
            return None

    read, _jit._KernelCache = _jit._KernelCache, Unread
    from kvcodec.kernels import attend, tables

    _jit._KernelCache = read
    return attend, tables


def solve_all() -> dict:
    attend, tables = import_attend()
    from kvcodec.attention.arrays import score_arrays
    from kvcodec.codecs import encode_array
    from kvcodec.kernels._vectors import LEVEL, find_level
    from tests.attention_problems import hash_problems

    found = {"level": LEVEL, "hash": hash_problems()}
    os.environ.pop("KVCODEC_SIMD", None)
    compiled = hasattr(attend.attend_items, "signatures")
    if compiled and find_level() == LEVEL:  # one level will do, the processor's: the other kernels are compiled for it
        score_arrays(np.ones((2, 16)), encode_array(np.ones((20, 1, 16), np.float32), "raw"))
        use_a_store()
    kernels = {name: getattr(attend, name) for name in KERNELS} | {"make_tables": tables.make_tables}
    if compiled:
        found["signatures"] = {name: len(kernel.signatures) for name, kernel in kernels.items()}
        found["cached"] = sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels.values())
        found["llvm"] = {name: "".join(kernel.inspect_llvm().values()) for name, kernel in kernels.items()}
        found["assembly"] = {name: "".join(kernel.inspect_asm().values()) for name, kernel in kernels.items()}
    return found


def compile_products() -> dict:
    """Code for a processor with every level's instructions, which NUMBA_CPU_NAME names: of `dot_tiles` by itself."""
    from kvcodec.kernels import _vectors

    _vectors.HAS_AVX2 = _vectors.HAS_VNNI = True
    from numba import njit, types

    from kvcodec.kernels.dot import dot_tiles
    from kvcodec.kernels.forms import Weights

    @njit
    def kernel(place, count, stride, bits, first, end, halves, bytes_, width, ahead, sums):
        dot_tiles(place, count, stride, bits, (first, end), Weights(halves, bytes_), width, ahead, sums)

    kernel.compile((types.int64,) * 11)
    return {"assembly": {"dot_tiles": "".join(kernel.inspect_asm().values())}}


if __name__ == "__main__":
    compile_in_turn()
    Path(sys.argv[1]).write_text(json.dumps(compile_products() if len(sys.argv) > 2 else solve_all()))
