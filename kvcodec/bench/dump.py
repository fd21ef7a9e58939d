"""A dump to encode: the same rows in each layer."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.dumps.safetensors_writer import SafetensorsWriter


def write_dump(path: Path, layers: int, k: NDArray[np.float32], v: NDArray[np.float32]) -> None:
    """Tensors k.L and v.L, bfloat16 (tokens, heads, dim), as safetensors. k, v: float32 (heads, tokens, dim)."""
    rows = {s: x.transpose(1, 0, 2).astype(ml_dtypes.bfloat16) for s, x in (("k", k), ("v", v))}
    tensors = [(f"{s}.{layer}", rows[s].dtype, rows[s].shape) for layer in range(layers) for s in rows]
    with SafetensorsWriter(path, tensors, {}, overwrite=True) as writer:
        for name, _, _ in tensors:
            writer.write(name, 0, rows[name[0]])
        writer.commit()
