"""A model that reads its context from a coded cache, as decoding token by token would have it.

One pass over a text does it: what a token leaves in the cache depends on earlier tokens alone, and so does its code.
Each query sees its own newest tokens and the sinks as they are, in 16 bits, and all others as they decode.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from kvcodec.codecs.array import EncodedArray
from kvcodec.layout import StreamId
from tools.capture.attention import Call, attend, replaced_attention
from tools.capture.head import Head
from tools.perplexity.coding import Coding


class CodedCache:
    """Runs of one model over a cache of `dtype`, of which the newest `residual` and the first `sinks` tokens stay raw.

    bytes: of the last run, the counts of each stream (see Coded). windows: of each layer, tokens that a query sees,
    None for all.
    """

    def __init__(self, head: Head, dtype: str, residual: int, sinks: int) -> None:
        self._head, self._dtype, self._residual, self._sinks = head, dtype, residual, sinks
        self._coding: Coding | None = None
        self.bytes: dict[tuple[int, StreamId], Counter[str]] = {}
        self.windows: dict[int, int | None] = {}

    def run(self, ids: Tensor, coding: Coding | None) -> Tensor:
        """Hidden states (tokens, width) of a text; without a coding the whole cache is raw. Raises CaptureError."""
        self._coding, self.bytes = coding, {}
        with torch.no_grad(), replaced_attention(self._head.model, self._attend):
            return self._head.hidden(ids)

    def _attend(self, call: Call) -> Tensor:
        k, v = (rows.to(getattr(torch, self._dtype)).to(rows.dtype) for rows in (call.k, call.v))
        own = call._replace(k=k, v=v)
        self.windows[call.layer] = call.window
        if self._coding is None:
            return attend(own)
        k_error, keys = self._code(call.layer, StreamId.K, k)
        v_error, _ = self._code(call.layer, StreamId.V, v, keys)
        return attend(own, k_error, v_error, self._residual)

    def _code(
        self, layer: int, stream: StreamId, rows: Tensor, keys: EncodedArray | None = None
    ) -> tuple[Tensor, EncodedArray]:
        """What coding adds to rows (heads, tokens, dim), and what they were coded as."""
        assert self._coding is not None
        given = np.ascontiguousarray(rows.transpose(0, 1).float().cpu().numpy())
        coded = self._coding.code(layer, stream, given, _numpy_dtype(self._dtype), self._sinks, keys)
        self.bytes[layer, stream] = coded.counts
        return torch.from_numpy(coded.rows - given).transpose(0, 1).to(rows), coded.encoded


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else np.float16)
