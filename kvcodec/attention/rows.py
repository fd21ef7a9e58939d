"""Rows in memory as records that attention can read: raw ones where they are, others laid out anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.strips import Form, Spans, form_of, raw_form
from kvcodec.layout import TILE_LANES, DtypeId, StreamId, align

if TYPE_CHECKING:
    from kvcodec.codecs.codec import Trained
    from kvcodec.codecs.rows import RowCodec


class Found:
    """Where tokens of one stream were found: spans with addresses, and the arrays that those point into.

    forms: of all streams of a task; a form is entered once.
    """

    def __init__(self, forms: list[Form]) -> None:
        self.forms = forms
        self.parts: list[Spans] = []
        self.kept: list[object] = []

    def number(self, form: Form) -> int:
        """The row of a form."""
        if form not in self.forms:
            self.forms.append(form)
        return self.forms.index(form)

    def add(self, first: int, end: int, place: int, form: Form, start: int, kept: int = 0) -> None:
        """Tokens first … end - 1 are in a record at an address from its token `start` on. kept: see `Spans`."""
        row = (first, end, place, self.number(form), start, kept)
        self.parts.append(Spans(*(np.array([n], np.int64) for n in row)))

    def add_raw(self, first: int, rows: NDArray[np.uint16], dtype: DtypeId) -> None:
        """Raw rows (tokens, heads, dim), read where they are if a kernel can: whole vectors of 16 channels."""
        tokens, heads, dim = rows.shape
        if dim % TILE_LANES or rows.strides[1:] != (2 * dim, 2) or not rows.size:
            wide = np.zeros((tokens, heads, align(dim, TILE_LANES)), np.uint16)
            wide[..., :dim] = rows
            rows = wide
        self.kept.append(rows)
        if tokens:
            self.add(first, first + tokens, rows.ctypes.data, raw_form(rows.strides[1], rows.strides[0], dtype), 0)

    def add_codes(
        self,
        first: int,
        coded: NDArray[np.uint8],
        codec: RowCodec,
        stream: StreamId,
        dim: int,
        trained: Trained | None = None,
    ) -> None:
        """Rows that were coded one by one (tokens, heads, row bytes), laid into tiles, or blocks of whole vectors."""
        if tokens := len(coded):
            laid = codec.lay(coded, tokens, dim)
            form = form_of(laid.spec or codec.spec, stream, tokens, dim, DtypeId.BFLOAT16, trained)
            self.kept.append(trained)
            self.add_body(first, first + tokens, laid.body[0], form, 0)

    def add_body(
        self,
        first: int,
        end: int,
        body: NDArray[np.uint8],
        form: Form,
        start: int,
        others: NDArray[np.int64] | None = None,
    ) -> None:
        """The heads of a GROUP record of codes that was copied into memory, and the table of the rows behind them that
        are none.
        """
        body = np.ascontiguousarray(body)
        self.kept += [body, others]
        kept = 0 if others is None else others.ctypes.data
        self.add(first, end, body.ctypes.data, form._replace(copied=1), start, kept)

    def take(self, other: Found) -> None:
        """What another one has."""
        numbers = np.array([self.number(form) for form in other.forms], np.int64)
        self.parts += [part._replace(form=numbers[part.form]) for part in other.parts]
        self.kept += other.kept

    @property
    def spans(self) -> Spans:
        """All of them, in token order."""
        spans = Spans.join(self.parts)
        order = np.argsort(spans.first, kind="stable")
        return Spans(*(column[order] for column in spans))
