"""INT4 in plain NumPy, asymmetric, two codes a byte: what one would write without kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.bench.scale import GROUP, HEAD_DIM
from kvcodec.layout import Axis
from kvcodec.spec import CodecSpec

_GREATEST = np.float32(15)


class NumpyCodec:
    """values: float32 (tokens, HEAD_DIM), tokens a multiple of GROUP. decoded: the same, after dequantize()."""

    def __init__(self, values: NDArray[np.float32], spec: CodecSpec) -> None:
        self._groups: NDArray[Any] = values.reshape(-1, GROUP, HEAD_DIM // GROUP, GROUP)
        self._axis = 1 if spec.axis == Axis.CHANNEL else 3
        self.decoded = np.empty_like(values)
        self._codes = np.empty(0, np.uint8)
        self._least = self._step = np.empty(0, np.float32)

    def quantize(self) -> None:
        """Codes, two a byte, and the least number and step of each group."""
        self._least = self._groups.min(axis=self._axis, keepdims=True)
        greatest = self._groups.max(axis=self._axis, keepdims=True)
        self._step = (greatest - self._least) / _GREATEST
        codes = np.rint((self._groups - self._least) / self._step).astype(np.uint8)
        self._codes = codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)

    def dequantize(self) -> None:
        """Into decoded."""
        out = self.decoded.reshape(self._groups.shape)
        out[..., 0::2], out[..., 1::2] = self._codes & np.uint8(15), self._codes >> np.uint8(4)
        out *= self._step
        out += self._least
