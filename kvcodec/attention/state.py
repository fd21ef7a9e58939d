"""What attention leaves of some tokens: integers, which merge with those of other tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import ShapeError
from kvcodec.layout import TILE_LANES

_TOTAL_POINT, _OUTPUT_POINT = 36, 47  # bits behind the point: 20 + 16 of a sum of Q16 shares; of outputs


@dataclass(frozen=True, eq=False)
class AttentionState:
    """Softmax-weighted sums of the values of some tokens, for each query head.

    states: int64 (heads, 3): exponent of the shares, their sum, exponent of the outputs. outputs: int64 (heads, dim).
    Softmax's denominator is sum * 2**(exponent - 36), its numerators outputs * 2**(exponent - 47). tokens: how many;
    bytes_read: of codes, scales, zeros and raw rows that were read for them.
    """

    states: NDArray[np.int64]
    outputs: NDArray[np.int64]
    tokens: int = 0
    bytes_read: int = 0

    def output(self) -> NDArray[np.float32]:
        """Attention (heads, dim); zeros for a head that has seen no token."""
        top, total, scale = self.states.T
        seen = total > 0
        quotient = self.outputs / np.where(seen, total, 1)[:, None]
        exponent = np.where(seen, scale - top + _TOTAL_POINT - _OUTPUT_POINT, 0)
        with np.errstate(over="ignore"):
            return np.ldexp(quotient, exponent[:, None].astype(np.int64)).astype(np.float32)

    def log_sum_exp(self) -> NDArray[np.float64]:
        """Natural logarithm of softmax's denominator (heads,); -inf of no token."""
        top, total, _ = self.states.T
        seen = total > 0
        bits = np.log2(np.where(seen, total, 1)) + np.where(seen, top, 0) - _TOTAL_POINT
        return np.where(seen, bits * math.log(2), -np.inf)

    def merge(self, other: AttentionState) -> AttentionState:
        """The state of this one's tokens and the other's, which must be for the same queries and scale.

        Integers are added and nothing is scaled but by shifts: which store held a token makes no difference beyond the
        last bits that shifts drop. Raises ShapeError.
        """
        from kvcodec.kernels.attend import merge_slots

        if self.outputs.shape != other.outputs.shape:
            raise ShapeError(f"states are of shapes {self.outputs.shape} and {other.outputs.shape}: other queries")
        dim = self.outputs.shape[1]
        whole = (0, 0), (0, -dim % TILE_LANES)  # kernels take whole vectors
        outputs = np.stack([np.pad(self.outputs, whole), np.pad(other.outputs, whole)])
        states = np.stack([self.states, other.states])
        merge_slots(np.array([[0, 1]], np.int64), states, outputs)
        tokens, bytes_read = self.tokens + other.tokens, self.bytes_read + other.bytes_read
        return AttentionState(states[0], outputs[0, :, :dim].copy(), tokens, bytes_read)
