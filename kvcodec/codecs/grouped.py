"""Grouped integers: `group` numbers share a scale and a zero. See formats: x = s * (code + z / 16)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec import layout
from kvcodec.codecs.codec import Encoded, freeze, split_records, take_body
from kvcodec.errors import CorruptRecord
from kvcodec.kernels import dequantize, quantize
from kvcodec.layout import Axis, DtypeId, HeadSections, StreamId
from kvcodec.spec import CodecSpec

_LEAST_TOKEN_GROUP = 64
_FORMS = {DtypeId.BFLOAT16: dequantize.BFLOAT16, DtypeId.FLOAT16: dequantize.FLOAT16}


class GroupedCodec:
    """INT4 with a bfloat16 scale and an int16 zero a group. See `Codec`.

    |x - decoded| <= 1/2 step, plus the float32 rounding of x / step: at most 2.5e-4 steps where |min| is 2047 steps,
    1e-6 if symmetric; plus that of the dtype decoded to. Not symmetric, a constant group of 0, of any float16 or of
    bfloat16 from 2**-123 comes back exactly.
    """

    def __init__(self, spec: CodecSpec, stream: StreamId) -> None:
        self.spec = spec
        self.channel_lane = stream == StreamId.V
        self.token_group = _LEAST_TOKEN_GROUP
        if spec.axis == Axis.CHANNEL:
            self.token_group = layout.align(_LEAST_TOKEN_GROUP, spec.group)

    def sections(self, tokens: int, dim: int) -> HeadSections:
        """Bytes of one head's sections in a record of `tokens` rows of `dim` channels."""
        spec = self.spec
        return layout.grouped_sections(
            tokens,
            dim,
            bits=spec.bits,
            axis=spec.axis,
            group=spec.group,
            symmetric=spec.symmetric,
            channel_lane=self.channel_lane,
        )

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId, tokens: int) -> Encoded:
        """See `Codec`. Rows with a NaN or Inf give unspecified codes: find_nonfinite first."""
        records = split_records(rows, tokens)
        _, heads, dim = rows.shape
        sections = self.sections(tokens, dim)
        body = np.zeros((records, heads, sections.total), np.uint8)
        errors = np.zeros((records, heads), np.uint16)
        values, codes, lanes = self._allocate_scratch(tokens, dim)
        keys, steps, sums = np.empty((2, lanes), np.uint16), np.empty((5, lanes), np.float32), np.empty(dim)
        quantize.quantize_records(
            freeze(rows),
            dtype == DtypeId.FLOAT16,
            tokens,
            self.spec.group,
            self.spec.axis == Axis.CHANNEL,
            self.spec.symmetric,
            self.channel_lane,
            body,
            (sections.scales, sections.zeros),
            (values, codes, keys, steps, sums),
            errors,
        )
        return Encoded(body, errors)

    def decode(
        self, body: NDArray[np.uint8], tokens: int, dim: int, dtype: DtypeId, *, as_float32: bool = False
    ) -> NDArray[Any]:
        """See `Codec`. Clamped to the greatest finite number of the dtype decoded to, then rounded to nearest."""
        sections = self.sections(tokens, dim)
        body = take_body(body, sections.total)
        self._check_scales(body, tokens, dim)
        shape, none = (len(body) * tokens, body.shape[1], dim), (0, 0, 0)
        halves = np.empty(none if as_float32 else shape, np.uint16)
        full = np.empty(shape if as_float32 else none, np.float32)
        values, codes, lanes = self._allocate_scratch(tokens, dim)
        dequantize.dequantize_records(
            body,
            tokens,
            self.spec.group,
            self.spec.axis == Axis.CHANNEL,
            self.spec.symmetric,
            self.channel_lane,
            (sections.scales, sections.zeros),
            (values, codes, np.empty((2, lanes), np.float32)),
            dequantize.FLOAT32 if as_float32 else _FORMS[dtype],
            halves,
            full,
        )
        return full if as_float32 else halves

    def validate(self, body: NDArray[np.uint8], tokens: int, dim: int) -> None:
        """Raise CorruptRecord where a scale in use is not a finite bfloat16 of at least 2**-126; ShapeError."""
        self._check_scales(take_body(body, self.sections(tokens, dim).total), tokens, dim)

    def _check_scales(self, body: NDArray[np.uint8], tokens: int, dim: int) -> None:
        rows, columns = layout.scale_shape(tokens, dim, self.spec.axis, self.spec.group, self.channel_lane)
        used = dim if self.spec.axis == Axis.CHANNEL else tokens
        at = int(dequantize.find_bad_scale(body, rows, columns, used))
        if at >= 0:
            bits = int(body.reshape(-1)[at : at + 2].view("<u2")[0])
            raise CorruptRecord(at, f"scale 0x{bits:04x} is not a finite bfloat16 of at least 2**-126")

    def _allocate_scratch(self, tokens: int, dim: int) -> tuple[NDArray[np.float32], NDArray[np.uint8], int]:
        """One head's values, its padded codes, and the lanes that its groups may have at once."""
        padded = layout.padded_tokens(tokens, self.channel_lane), layout.align(dim, layout.TILE_LANES)
        return np.empty((tokens, dim), np.float32), np.zeros(padded, np.uint8), max(padded)
