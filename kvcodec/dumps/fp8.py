"""Dumps in 8-bit floats (safetensors' F8_E4M3): one byte a number, and perhaps one scale a tensor.

The scale of a tensor NAME that is K or V (S is `k` or `v`) of layer L is a tensor of one number, float32, float16 or
bfloat16, or a number in the metadata, under any one of the names `NAME.scale`, `NAME_scale`, `S.L.scale`, `S_scale.L`;
in the metadata also `S_scale`, for all layers. Without a scale the numbers stand for themselves. Rows come out as
bfloat16: exactly without a scale, else multiplied in float32 and rounded to nearest even.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.dumps.names import Source, shown
from kvcodec.dumps.tensors import Entry
from kvcodec.errors import DumpError
from kvcodec.layout import StreamId

FP8 = "F8_E4M3"
_SCALE_CODES = ("F32", "F16", "BF16")

ReadNumber = Callable[[str], float]  # the only number of the tensor of that name


def widening_table(scale: float | None) -> NDArray[np.uint16]:
    """Bits of the bfloat16 number that each of the 256 codes stands for; NaN stays NaN."""
    numbers = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    if scale is not None:
        with np.errstate(over="ignore", under="ignore"):  # what overflows becomes Inf, which a store refuses
            numbers *= np.float32(scale)
    with np.errstate(over="ignore", under="ignore"):
        table: NDArray[np.uint16] = numbers.astype(ml_dtypes.bfloat16).view(np.uint16)
    return table


def find_scale(
    source: Source,
    layer: int,
    stream: StreamId,
    tensors: Mapping[str, Entry],
    metadata: Mapping[str, str],
    read: ReadNumber,
) -> float | None:
    """The scale of one (layer, stream), None without one. Raises DumpError if there are several, or for no number."""
    s = stream.name.lower()
    names = dict.fromkeys((f"{source.name}.scale", f"{source.name}_scale", f"{s}.{layer}.scale", f"{s}_scale.{layer}"))
    found = {f"tensor {shown(name)}": name for name in names if name in tensors}
    texts = {f"metadata {shown(name)}": metadata[name] for name in [*names, f"{s}_scale"] if name in metadata}
    if len(found) + len(texts) > 1:
        raise DumpError(f"layer {layer} {stream.name} has several scales: {', '.join([*found, *texts])}")
    for what, name in found.items():
        entry = tensors[name]
        if entry.code not in _SCALE_CODES or math.prod(entry.shape) != 1 or entry.flaw:
            raise DumpError(f"{what} is {entry.code} {list(entry.shape)}, want one number, F32, F16 or BF16")
        return _check(read(name), what)
    for what, text in texts.items():
        try:
            return _check(float(text), what)
        except ValueError as error:
            raise DumpError(f"{what} is {shown(text)}, want a positive number") from error
    return None


def _check(scale: float, what: str) -> float:
    if not (math.isfinite(scale) and scale > 0):
        raise DumpError(f"{what} is {scale}, want a positive number")
    return scale
