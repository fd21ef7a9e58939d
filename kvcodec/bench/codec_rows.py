"""Rows of coding arrays and back: GroupedCodec beside ggml's q4_0 and NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.bench import ggml
from kvcodec.bench.attention_data import make_values
from kvcodec.bench.codec_numpy import NumpyCodec
from kvcodec.bench.ggml import Ggml
from kvcodec.bench.peers import Peers
from kvcodec.bench.row import OURS, READ, WRITE, Contender, Entry, Row, WrongResult
from kvcodec.bench.scale import GROUP, HEAD_DIM, Scale
from kvcodec.codecs.codec import Codec, codec_for, take_out
from kvcodec.layout import Axis, DtypeId, StreamId
from kvcodec.spec import CodecSpec

_SPECS = tuple(
    f"int{bits}/{axis}/g{GROUP}{sym}" for bits in (4, 8, 2) for axis in ("token", "channel") for sym in ("", "/sym")
)
# |x - decoded| in steps: half of one, what a scale rounded up to 8 bits adds, and the rounding of the zero
_MOST_STEPS = 0.5 * (1 + 2**-7) + 0.04
_GGML_STEPS = 1.01  # q4_0's codes end one step short on one side


def codec_rows(scale: Scale) -> list[Row]:
    """INT4 in cache and from memory, INT8 and INT2 in cache."""
    rows: list[Row] = []
    for spec in _SPECS:
        rows += _spec_rows(spec, "cache", scale.cached_tokens)
        if spec.startswith("int4"):
            rows += _spec_rows(spec, "memory", scale.memory_tokens)
    return sorted(rows, key=lambda row: row.name.startswith("dequantize"))


def _spec_rows(spec: str, place: str, tokens: int) -> list[Row]:
    name, far = f"{spec.replace(f'/g{GROUP}', '').replace('/', '-')}-{place}", place == "memory"
    shape = f"{spec}, {tokens} tokens x {HEAD_DIM}"
    return [
        Row(f"quantize-{name}", "bfloat16 to tiles", shape, "value",
            lambda peers, _: _quantize(peers, spec, tokens, READ if far else "")),
        Row(f"dequantize-{name}", "tiles to float32", shape, "value",
            lambda peers, _: _dequantize(peers, spec, tokens, WRITE if far else "")),
    ]  # fmt: skip


def _quantize(peers: Peers, text: str, tokens: int, bound: str) -> Sequence[Entry]:
    values, spec = make_values(1, tokens, 1)[0], CodecSpec.parse(text)
    bits = values.astype(ml_dtypes.bfloat16).view(np.uint16)[:, None]
    codec = _codec(spec)

    def check() -> None:
        body = codec.encode(bits, DtypeId.BFLOAT16, GROUP).body
        decoded = codec.decode(body, GROUP, HEAD_DIM, DtypeId.BFLOAT16, as_float32=True)
        _check_steps(OURS, values, decoded[:, 0], _steps(values, spec), _MOST_STEPS)

    def run() -> None:
        codec.encode(bits, DtypeId.BFLOAT16, GROUP)

    ours = Contender(OURS, run, bits.size, bits.nbytes, bound, check)
    return [ours, *(_peers_quantize(peers, values, spec, bound) if spec.bits == 4 else [])]


def _peers_quantize(peers: Peers, values: NDArray[np.float32], spec: CodecSpec, bound: str) -> list[Entry]:
    def by_ggml(library: Ggml) -> Contender:
        rows = library.quantize(ggml.Q4_0, values)
        run = library.quantizer(ggml.Q4_0, values, rows)
        check = partial(_check_ggml, library, values, rows)
        return Contender("ggml q4_0", run, values.size, values.nbytes, bound, check)

    def by_numpy(_: Any) -> Contender:
        codec = NumpyCodec(values, spec)

        def check() -> None:
            codec.dequantize()
            _check_steps("numpy", values, codec.decoded, _steps(values, spec), 0.51)

        return Contender("numpy", codec.quantize, values.size, values.nbytes, bound, check)

    entries = [peers.enter("ggml", "ggml q4_0", by_ggml)]
    return entries if spec.symmetric else [*entries, peers.enter("numpy", "numpy", by_numpy)]


def _dequantize(peers: Peers, text: str, tokens: int, bound: str) -> Sequence[Entry]:
    values, spec = make_values(1, tokens, 1)[0], CodecSpec.parse(text)
    codec = _codec(spec)
    body = codec.encode(values.astype(ml_dtypes.bfloat16).view(np.uint16)[:, None], DtypeId.BFLOAT16, GROUP).body

    out = take_out(None, (tokens, 1, HEAD_DIM), np.float32)

    def run() -> NDArray[Any]:
        return codec.decode(body, GROUP, HEAD_DIM, DtypeId.BFLOAT16, as_float32=True, out=out)

    def check() -> None:
        _check_steps(OURS, values, run()[:, 0], _steps(values, spec), _MOST_STEPS)

    ours = Contender(OURS, run, values.size, values.nbytes, bound, check)
    return [ours, *(_peers_dequantize(peers, values, spec, bound) if spec.bits == 4 else [])]


def _peers_dequantize(peers: Peers, values: NDArray[np.float32], spec: CodecSpec, bound: str) -> list[Entry]:
    def by_ggml(library: Ggml) -> Contender:
        rows, out = library.quantize(ggml.Q4_0, values), np.empty_like(values)

        def check() -> None:
            _check_ggml(library, values, rows)
            if not np.array_equal(out, _unpack_q4_0(rows)):
                raise WrongResult("ggml q4_0: the numbers are not those of its codes")

        run = library.dequantizer(ggml.Q4_0, rows, out)
        return Contender("ggml q4_0", run, values.size, values.nbytes, bound, check)

    def by_numpy(_: Any) -> Contender:
        codec = NumpyCodec(values, spec)
        codec.quantize()
        check = partial(_check_steps, "numpy", values, codec.decoded, _steps(values, spec), 0.51)
        return Contender("numpy", codec.dequantize, values.size, values.nbytes, bound, check)

    entries = [peers.enter("ggml", "ggml q4_0", by_ggml)]
    return entries if spec.symmetric else [*entries, peers.enter("numpy", "numpy", by_numpy)]


def _codec(spec: CodecSpec) -> Codec:
    """Tiles as they are used: keys have a scale a channel, values one a token."""
    return codec_for(spec, StreamId.K if spec.axis == Axis.CHANNEL else StreamId.V)


def _steps(values: NDArray[np.float32], spec: CodecSpec) -> NDArray[np.float64]:
    """Step of each value's group, float64 (tokens, dim), before the scale is rounded up."""
    axis = 1 if spec.axis == Axis.CHANNEL else 3
    groups = values.astype(np.float64).reshape(-1, GROUP, HEAD_DIM // GROUP, GROUP)
    if spec.symmetric:
        step = np.abs(groups).max(axis=axis, keepdims=True) / max(2 ** (spec.bits - 1) - 1, 1)
    else:
        step = (groups.max(axis=axis, keepdims=True) - groups.min(axis=axis, keepdims=True)) / (2**spec.bits - 1)
    return np.broadcast_to(step, groups.shape).reshape(values.shape)


def _check_steps(
    name: str, values: NDArray[np.float32], decoded: NDArray[np.float32], steps: NDArray[np.float64], most: float
) -> None:
    worst = float((np.abs(values - decoded.astype(np.float64)) / steps).max())
    if not worst <= most:
        raise WrongResult(f"{name}: a number is {worst:.3g} steps from what was coded, want at most {most:.3g}")


def _check_ggml(library: Ggml, values: NDArray[np.float32], rows: NDArray[np.uint8]) -> None:
    decoded = np.empty_like(values)
    library.dequantizer(ggml.Q4_0, rows, decoded)()
    blocks = np.abs(values.astype(np.float64)).reshape(-1, ggml.BLOCK)
    steps = np.broadcast_to(blocks.max(axis=1, keepdims=True) / 8, blocks.shape).reshape(values.shape)
    _check_steps("ggml q4_0", values, decoded, steps, _GGML_STEPS)


def _unpack_q4_0(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """float32 (tokens, dim) of q4_0 rows: low nibbles are the first half of a block, high nibbles the second."""
    blocks = rows.reshape(-1, ggml.BLOCK_BYTES[ggml.Q4_0])
    scales, codes = blocks[:, :2].copy().view(np.float16).astype(np.float32), blocks[:, 2:]
    signed = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float32) - np.float32(8)
    return (signed * scales).reshape(len(rows), -1)
