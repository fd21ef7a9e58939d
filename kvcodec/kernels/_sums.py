"""How exact sums become a vector again: what decoders of all static bases have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.kernels._jit import inline


@inline
def scale_sums(
    sums: NDArray[np.int32], scale: Any, gain: Any, mean: NDArray[np.float32], out: NDArray[np.float32], n: Any
) -> None:  # fmt: skip
    """out[n] = scale * sums + gain * mean. Each of the two products, and their sum, is rounded."""
    for c in range(mean.shape[0]):
        out[n, c] = np.float32(np.float32(np.float32(sums[c]) * scale) + np.float32(gain * mean[c]))
