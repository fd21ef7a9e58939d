"""The coded K that an array of V stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcodec.codecs.codec import take_body
from kvcodec.codecs.predicted_rows import GivenRows
from kvcodec.codecs.product import Product
from kvcodec.codecs.product_rows import ProductCodec
from kvcodec.errors import CorruptRecord, SpecError
from kvcodec.layout import StreamId

if TYPE_CHECKING:
    from kvcodec.codecs.array import EncodedArray


def given_rows(given: EncodedArray) -> GivenRows:
    """All rows of K in product codes. Raises SpecError for what is not that, CorruptRecord with a byte of `given`."""
    if given.stream != StreamId.K or not isinstance(given.dictionary, Product):
        raise SpecError(f"given: {given.stream.name.lower()} as {given.spec}, want k in product codes")
    codec = ProductCodec(given.spec, given.dictionary, given.first)
    parts = []
    for name, body, tokens in (
        ("full", given.full, codec.token_group),
        ("tail", given.tail, given.tokens - len(given.full) * codec.token_group),
    ):
        if not len(body):
            continue
        own = take_body(body, codec.sections(tokens, given.dim).total)
        try:
            parts.append(codec.take_codes(own, tokens).reshape(-1, own.shape[1], codec.rows.width))
        except CorruptRecord as error:
            raise CorruptRecord(error.offset, f"{name} of given: {error.why}") from None
    empty = np.zeros((0, given.heads, codec.rows.width), np.uint8)
    return GivenRows(given.dictionary, np.concatenate([empty, *parts]), given.first)
