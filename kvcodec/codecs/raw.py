"""Raw rows: 16-bit floats as they are, a head's rows of one record together."""

from __future__ import annotations

from typing import Any, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.codec import Encoded, aligned_zeros, split_records, take_body, take_out
from kvcodec.codecs.sections import HeadSections, raw_sections
from kvcodec.layout import CodecId, DtypeId, StreamId
from kvcodec.spec import CodecSpec

_TOKEN_GROUP = 64


class RawCodec:
    """Bit-exact for all bit patterns, -0, subnormals and NaN among them. See `Codec`."""

    spec = CodecSpec(CodecId.RAW)
    token_group = _TOKEN_GROUP

    def __init__(self, stream: StreamId) -> None:
        self.channel_lane = stream == StreamId.V

    def at(self, first: int) -> Self:  # noqa: ARG002
        """See `Codec`: rows are coded as they are."""
        return self

    def sections(self, tokens: int, dim: int) -> HeadSections:
        """Bytes of one head's sections in a record of `tokens` rows of `dim` channels."""
        return raw_sections(tokens, dim)

    def encode(
        self,
        rows: NDArray[np.uint16],
        dtype: DtypeId,  # noqa: ARG002
        tokens: int,
        *,
        alike: bool = False,  # noqa: ARG002
    ) -> Encoded:
        """See `Codec`; the errors are 0."""
        records = split_records(rows, tokens)
        _, heads, dim = rows.shape
        body = aligned_zeros((records, heads, self.sections(tokens, dim).total))
        _view_rows(body, tokens, dim)[...] = rows.reshape(records, tokens, heads, dim).transpose(0, 2, 1, 3)
        return Encoded(body, np.zeros((records, heads), np.uint16))

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
        """See `Codec`."""
        body = take_body(body, self.sections(tokens, dim).total)
        shape = (len(body) * tokens, body.shape[1], dim)
        rows = take_out(out, shape, np.float32 if as_float32 else np.uint16)
        by_token = _view_rows(body, tokens, dim).transpose(0, 2, 1, 3)
        if as_float32:
            by_token = by_token.view(ml_dtypes.bfloat16 if dtype == DtypeId.BFLOAT16 else np.float16)
        rows.reshape(by_token.shape)[...] = by_token
        return rows

    def validate(self, body: NDArray[np.uint8], tokens: int, dim: int) -> None:
        """Any bits are rows. Raises ShapeError only."""
        take_body(body, self.sections(tokens, dim).total)


def _view_rows(body: NDArray[np.uint8], tokens: int, dim: int) -> NDArray[np.uint16]:
    """View (records, heads, tokens, dim) of a contiguous body, without its padding."""
    rows = body.view(np.uint16)[:, :, : tokens * dim]
    return np.lib.stride_tricks.as_strided(
        rows, (*rows.shape[:2], tokens, dim), (*rows.strides[:2], 2 * dim, 2), writeable=body.flags.writeable
    )
