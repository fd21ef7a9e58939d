"""Grouped integers: `group` numbers share a scale and a zero. See formats: x = s * (code + z / parts)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvcodec import layout
from kvcodec.codecs.codec import Encoded, aligned_zeros, freeze, split_records, take_body, take_out
from kvcodec.codecs.sections import HeadSections, grouped_sections, padded_tokens, scale_shape
from kvcodec.errors import CorruptRecord
from kvcodec.kernels import dequantize, floats, quantize, steps
from kvcodec.kernels.tiles import Head
from kvcodec.layout import Axis, DtypeId, StreamId
from kvcodec.spec import CodecSpec

_LEAST_TOKEN_GROUP = 64
_STREAMED_BYTES = 1 << 24  # rows beyond this pass the caches by
_FORMS = {DtypeId.BFLOAT16: floats.BFLOAT16, DtypeId.FLOAT16: floats.FLOAT16}


class GroupedCodec:
    """INT8, INT4 or INT2 with a bfloat16 scale and an int16 zero a group. See `Codec`.

    |x - decoded| <= 1/2 step, plus the float32 rounding of x / step: at most 2.5e-4 steps where |min| is 2047 steps,
    2e-3 where it is INT8's 16383, 2**-15 if symmetric; plus that of the dtype decoded to. Not symmetric, a constant
    group of 0, of any float16 or of bfloat16 from 2**-123 (INT8: 2**-120) comes back exactly.
    """

    def __init__(self, spec: CodecSpec, stream: StreamId) -> None:
        self.spec = spec
        self._grid = steps.GRIDS[spec.bits]
        self._described: dict[tuple[int, int, int], tuple[Head, bool]] = {}
        self.channel_lane = stream == StreamId.V
        self.token_group = _LEAST_TOKEN_GROUP
        if spec.axis == Axis.CHANNEL:
            self.token_group = layout.align(_LEAST_TOKEN_GROUP, spec.group)

    def at(self, first: int) -> Self:  # noqa: ARG002
        """See `Codec`: rows are coded as they are."""
        return self

    def sections(self, tokens: int, dim: int) -> HeadSections:
        """Bytes of one head's sections in a record of `tokens` rows of `dim` channels."""
        spec = self.spec
        return grouped_sections(
            tokens,
            dim,
            bits=spec.bits,
            axis=spec.axis,
            group=spec.group,
            symmetric=spec.symmetric,
            channel_lane=self.channel_lane,
        )

    def encode(
        self,
        rows: NDArray[np.uint16],
        dtype: DtypeId,
        tokens: int,
        *,
        alike: bool = False,  # noqa: ARG002
    ) -> Encoded:
        """See `Codec`. Rows with a NaN or Inf give unspecified codes: find_nonfinite first."""
        records = split_records(rows, tokens)
        _, heads, dim = rows.shape
        head, whole = self._describe(tokens, dim, heads)
        shape = records, heads, head.total
        body = take_out(None, shape, np.uint8) if whole else aligned_zeros(shape)
        rows, figures = freeze(rows), np.empty((records, heads), np.int32)
        work = take_out(None, (quantize.work_bytes(tokens, dim),), np.uint8)
        quantize.quantize_records(
            rows.ctypes.data,
            dtype == DtypeId.FLOAT16,
            figures.size,
            head,
            self._grid,
            body.ctypes.data,
            figures.ctypes.data,
            work.ctypes.data,
        )
        return Encoded(body, figures.astype(np.uint16))

    def decode(
        self,
        body: NDArray[np.uint8],
        tokens: int,
        dim: int,
        dtype: DtypeId,
        *,
        as_float32: bool = False,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """See `Codec`. Clamped to the greatest finite number of the dtype decoded to, then rounded to nearest."""
        heads = body.shape[-2] if body.ndim > 1 else 0
        head, _ = self._describe(tokens, dim, heads)
        body = take_body(body, head.total)
        self._check_scales(body, tokens, dim)
        shape = (len(body) * tokens, heads, dim)
        rows = take_out(out, shape, np.float32 if as_float32 else np.uint16)
        form = floats.FLOAT32 if as_float32 else _FORMS[dtype]
        if as_float32 and rows.nbytes >= _STREAMED_BYTES and not rows.ctypes.data % layout.TILE_ROW:
            form = floats.FLOAT32 if tokens % 4 or dim % layout.TILE_LANES else floats.STREAMED
        padded = layout.align(tokens, 4) * layout.align(dim, layout.TILE_LANES)
        work = take_out(None, (dequantize.work_bytes(dim) + 4 * padded,), np.uint8)
        dequantize.dequantize_records(
            body.ctypes.data,
            len(body) * heads,
            head,
            self._grid,
            form,
            rows.ctypes.data,
            work.ctypes.data,
        )
        return rows

    def _describe(self, tokens: int, dim: int, heads: int) -> tuple[Head, bool]:
        """What kernels have to know of a head, and whether coding writes every byte of it: nothing is padded."""
        key = tokens, dim, heads
        if key not in self._described:
            spec, sections = self.spec, self.sections(tokens, dim)
            per_channel, lane = spec.axis == Axis.CHANNEL, self.channel_lane
            rows, columns = scale_shape(tokens, dim, spec.axis, spec.group, lane)
            places = (columns, heads, sections.scales, sections.zeros, sections.total)
            head = Head(tokens, dim, spec.bits, spec.group, per_channel, spec.symmetric, lane, *places)
            whole = tokens == padded_tokens(tokens, lane) and dim % layout.TILE_LANES == 0
            self._described[key] = head, whole and 2 * rows * columns == sections.scales
        return self._described[key]

    def validate(self, body: NDArray[np.uint8], tokens: int, dim: int) -> None:
        """Raise CorruptRecord where a scale in use is not a finite bfloat16 of at least 2**-126; ShapeError."""
        self._check_scales(take_body(body, self.sections(tokens, dim).total), tokens, dim)

    def _check_scales(self, body: NDArray[np.uint8], tokens: int, dim: int) -> None:
        rows, columns = scale_shape(tokens, dim, self.spec.axis, self.spec.group, self.channel_lane)
        used = dim if self.spec.axis == Axis.CHANNEL else tokens
        scales, _, _ = _view_body(body)
        row = int(steps.find_bad_scale(scales, rows, columns, used))
        if row >= 0:
            head, first = row // rows, row % rows * columns
            found = scales[head, first : first + used]
            column = int(np.argmax((found < steps.LEAST_NORMAL) | (found >= steps.INFINITE)))
            at = head * body.shape[2] + 2 * (first + column)
            raise CorruptRecord(at, f"scale 0x{found[column]:04x} is not a finite bfloat16 of at least 2**-126")


def _view_body(body: NDArray[np.uint8]) -> tuple[NDArray[np.uint16], NDArray[np.int16], NDArray[np.uint32]]:
    """Scales, zeros and tiles of a body, a row each head of each record."""
    heads = body.reshape(-1, body.shape[2])
    return heads.view(np.uint16), heads.view(np.int16), heads.view(np.uint32)
