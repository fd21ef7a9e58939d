"""Grouped integers: `group` numbers share a scale and a zero. See formats: x = s * (code + z / parts)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec import layout
from kvcodec.codecs.codec import Encoded, freeze, split_records, take_body
from kvcodec.codecs.sections import HeadSections, grouped_sections, padded_tokens, scale_shape
from kvcodec.errors import CorruptRecord
from kvcodec.kernels import dequantize, figure, floats, quantize, steps
from kvcodec.layout import Axis, DtypeId, StreamId
from kvcodec.spec import CodecSpec

_LEAST_TOKEN_GROUP = 64
_MEASURED_AT_ONCE = 64  # heads, to bound memory
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
        self.channel_lane = stream == StreamId.V
        self.token_group = _LEAST_TOKEN_GROUP
        if spec.axis == Axis.CHANNEL:
            self.token_group = layout.align(_LEAST_TOKEN_GROUP, spec.group)

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

    def encode(self, rows: NDArray[np.uint16], dtype: DtypeId, tokens: int) -> Encoded:
        """See `Codec`. Rows with a NaN or Inf give unspecified codes: find_nonfinite first."""
        records = split_records(rows, tokens)
        _, heads, dim = rows.shape
        sections = self.sections(tokens, dim)
        body = np.zeros((records, heads, sections.total), np.uint8)
        figures = np.empty((records, heads), np.int32)
        scratch, lanes = _allocate_scratch(tokens, dim, self.channel_lane)
        keys, lane_floats = np.empty((2, lanes), np.uint16), np.empty((5, lanes), np.float32)
        squares, sums = np.empty(dim, np.float32), np.empty((2, dim))
        quantize.quantize_records(
            freeze(rows),
            dtype == DtypeId.FLOAT16,
            tokens,
            self.spec.group,
            self._grid,
            self.spec.axis == Axis.CHANNEL,
            self.spec.symmetric,
            self.channel_lane,
            _view_body(body),
            (sections.scales, sections.zeros),
            (*scratch, keys, lane_floats, squares, sums),
            figures.reshape(-1),
        )
        self._measure_undecided(rows, dtype, tokens, body, figures)
        return Encoded(body, figures.astype(np.uint16))

    def _measure_undecided(
        self, rows: NDArray[np.uint16], dtype: DtypeId, tokens: int, body: NDArray[np.uint8], figures: NDArray[np.int32]
    ) -> None:
        """Fill in the figures that quantize_records left UNDECIDED."""
        undecided = np.flatnonzero(figures == figure.UNDECIDED)
        dim, heads = rows.shape[2], body.reshape(-1, 1, body.shape[2])
        for first in range(0, len(undecided), _MEASURED_AT_ONCE):
            chosen = undecided[first : first + _MEASURED_AT_ONCE]
            decoded = self.decode(heads[chosen], tokens, dim, dtype, as_float32=True)
            half, sums = dtype == DtypeId.FLOAT16, np.empty((2, dim))
            figure.measure_errors(freeze(rows), half, tokens, chosen, decoded, sums, figures.reshape(-1))

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
        scratch, lanes = _allocate_scratch(tokens, dim, self.channel_lane)
        dequantize.dequantize_records(
            _view_body(body),
            tokens,
            self.spec.group,
            self._grid,
            self.spec.axis == Axis.CHANNEL,
            self.spec.symmetric,
            self.channel_lane,
            (sections.scales, sections.zeros),
            (*scratch, np.empty((2, lanes), np.float32)),
            floats.FLOAT32 if as_float32 else _FORMS[dtype],
            halves,
            full,
        )
        return full if as_float32 else halves

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


def _allocate_scratch(tokens: int, dim: int, channel_lane: bool) -> tuple[tuple[NDArray[Any], ...], int]:
    """What both kernels work in, one head at a time, and the lanes that its groups may have at once.

    Values; padded codes, as bytes and as words; a row of tile lanes.
    """
    padded = padded_tokens(tokens, channel_lane), layout.align(dim, layout.TILE_LANES)
    codes = np.zeros(padded, np.uint8)
    row = np.empty(padded[1], np.uint32)
    return (np.empty((16, dim), np.float32), codes, codes.view(np.uint32), row), max(padded[1], layout.TILE_LANES)


def _view_body(body: NDArray[np.uint8]) -> tuple[NDArray[np.uint16], NDArray[np.int16], NDArray[np.uint32]]:
    """Scales, zeros and tiles of a body, a row each head of each record."""
    heads = body.reshape(-1, body.shape[2])
    return heads.view(np.uint16), heads.view(np.int16), heads.view(np.uint32)
