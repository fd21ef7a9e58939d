"""Scores and attention by the peers, each checked before it is timed."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.bench import ggml
from kvcodec.bench.attention_data import Cache, attend
from kvcodec.bench.ggml import Ggml
from kvcodec.bench.ggml_attention import FlashAttention
from kvcodec.bench.peers import Peers
from kvcodec.bench.row import Contender, Entry, require_close

_GGML = {"q4_0": ggml.Q4_0, "q8_0": ggml.Q8_0, "f16": ggml.F16}
# against float64 attention over the numbers that the peer has: ggml rounds the query to q8_0 for quantized keys, and
# adds values of f16 in f16, which costs 1 % with 8,192 tokens and 4 % with 65,536; torch rounds weights to bfloat16
_OWN = {"q4_0": 0.02, "q8_0": 0.02, "f16": 0.1, "f32": 1e-4, "bf16": 0.02}
# against attention over the numbers that all have: the loss of 4 bits
_ALL = _OWN | {"q4_0": 0.3}
_TORCH = {"f32": "float32", "bf16": "bfloat16"}


def enter_attention(peers: Peers, data: Cache, *, bound: str = "") -> list[Entry]:
    """All peers' attention of data.q over data.k and data.v; the unit is a token and a query head.

    bound: READ if the cache is so large that it comes from memory.
    """
    wanted = cache(lambda: attend(*data))
    entries: list[Entry] = []
    for kind in _GGML:
        make = partial(_ggml_attention, data=data, kind=kind, bound=bound, wanted=wanted)
        entries.append(peers.enter("ggml", f"ggml flash {kind}", make))
    for kind in _TORCH:
        take = partial(_torch_attention, data=data, kind=kind, bound=bound, wanted=wanted)
        entries.append(peers.enter("torch", f"torch SDPA {kind}", take))
    entries.append(peers.enter("numpy", "numpy f32", lambda _: _numpy_attention(data, bound, wanted)))
    return entries


def _ggml_attention(library: Ggml, data: Cache, kind: str, bound: str, wanted: Any) -> Contender:
    q_heads, tokens = len(data.q), data.k.shape[1]
    name, attention = f"ggml flash {kind}", FlashAttention(library, _GGML[kind], *data)

    def check() -> None:
        own = attend(data.q, *attention.dequantize())
        require_close(name, attention.output, own, _OWN[kind], "attention over its own numbers")
        require_close(name, attention.output, wanted(), _ALL[kind])

    moved = 2 * data.k.size // ggml.BLOCK * ggml.BLOCK_BYTES[_GGML[kind]]
    return Contender(name, attention.run, tokens * q_heads, moved, bound, check)


def _torch_attention(torch: Any, data: Cache, kind: str, bound: str, wanted: Any) -> Contender:
    dtype = getattr(torch, _TORCH[kind])
    name, out = f"torch SDPA {kind}", np.empty(data.q.shape, np.float32)
    q, k, v = (torch.from_numpy(a).to(dtype)[None] for a in (data.q[:, None], data.k, data.v))
    attention = torch.nn.functional.scaled_dot_product_attention
    shared = {"enable_gqa": True} if len(data.q) != len(data.k) else {}

    def run() -> None:
        with torch.inference_mode():
            out[:] = attention(q, k, v, **shared)[0, :, 0].float().numpy()

    moved = 2 * data.k.size * k.element_size()
    units = len(data.q) * data.k.shape[1]
    return Contender(name, run, units, moved, bound, lambda: require_close(name, out, wanted(), _ALL[kind]))


def _numpy_attention(data: Cache, bound: str, wanted: Any) -> Contender:
    per_head, scale = len(data.q) // len(data.k), np.float32(1 / math.sqrt(data.q.shape[1]))
    q, out = data.q * scale, np.empty_like(data.q)

    def run() -> None:
        for head in range(len(data.k)):
            mine = slice(head * per_head, (head + 1) * per_head)
            weights = q[mine] @ data.k[head].T
            np.exp(weights - weights.max(axis=1, keepdims=True), out=weights)
            out[mine] = weights @ data.v[head] / weights.sum(axis=1, keepdims=True)

    units = len(data.q) * data.k.shape[1]
    return Contender("numpy f32", run, units, 2 * data.k.nbytes, bound,
                     lambda: require_close("numpy f32", out, wanted(), _ALL["f32"]))  # fmt: skip


def enter_scores(peers: Peers, q: NDArray[np.float32], k: NDArray[np.float32], *, bound: str = "") -> list[Entry]:
    """All peers' products of one query (dim,) with keys (tokens, dim); the unit is a token."""
    entries = []
    for kind in ("q4_0", "q8_0"):
        make = partial(_ggml_scores, q=q, k=k, kind=kind, bound=bound)
        entries.append(peers.enter("ggml", f"ggml vec_dot {kind}", make))
    entries.append(peers.enter("numpy", "numpy f32", lambda _: _numpy_scores(q, k, bound)))
    return entries


def _ggml_scores(library: Ggml, q: NDArray[np.float32], k: NDArray[np.float32], kind: str, bound: str) -> Contender:
    name, out = f"ggml vec_dot {kind}", np.empty(len(k), np.float32)
    rows, query = library.quantize(_GGML[kind], k), library.quantize(ggml.Q8_0, q)
    run = library.dot_loop(_GGML[kind], rows, query, len(q), out)

    def check() -> None:
        keys, rounded = np.empty_like(k), np.empty_like(q)
        library.dequantizer(_GGML[kind], rows, keys)()
        library.dequantizer(ggml.Q8_0, query, rounded)()
        require_close(name, out, keys.astype(np.float64) @ rounded, 1e-5, "products of its own numbers")
        require_close(name, out, k @ q, _ALL[kind])

    return Contender(name, run, len(k), rows.nbytes, bound, check)


def _numpy_scores(q: NDArray[np.float32], k: NDArray[np.float32], bound: str) -> Contender:
    out = np.empty(len(k), np.float32)

    def check() -> None:
        require_close("numpy f32", out, k.astype(np.float64) @ q, 1e-5)

    return Contender("numpy f32", lambda: np.dot(k, q, out=out), len(k), k.nbytes, bound, check)
