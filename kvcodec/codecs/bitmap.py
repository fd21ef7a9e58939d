"""Which rows of a record are not codes, and where its body holds them (formats/dictionary.md, Rows kept otherwise)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.sections import sparse_sections
from kvcodec.codecs.sizes import step_row_bytes
from kvcodec.errors import CorruptRecord
from kvcodec.layout import ALIGNMENT, align
from kvcodec.shaped_spec import ShapedSpec
from kvcodec.sparse_spec import SparseCodes
from kvcodec.spec import CodecSpec

Bytes = NDArray[np.uint8]
CODES, INT4, RAW = 0, 1, 2  # what a row is kept as
INT4_SPEC = CodecSpec.parse("int4/token/g32")
_PER_BYTE = 4  # rows of one head
_BITS = 2 * np.arange(_PER_BYTE, dtype=np.uint8)


class Mixed(NamedTuple):
    """A record's body behind its error figures. kinds: uint8 (heads, tokens). sections: uint8 (heads, head bytes).
    others: uint8, the rows that are not codes, head by head in token order.
    """

    kinds: Bytes
    sections: Bytes
    others: Bytes

    @property
    def bitmap_bytes(self) -> int:
        """Bytes of the bitmap: none if all rows are codes."""
        return bitmap_bytes(*self.kinds.shape) if self.kinds.any() else 0

    def join(self) -> Bytes:
        """The bytes that all this is."""
        bitmap = pack_kinds(self.kinds) if self.kinds.any() else np.empty(0, np.uint8)
        return np.concatenate([bitmap, self.sections.reshape(-1), self.others])

    def heads(self, low: int, high: int, dim: int) -> Mixed:
        """What the heads from number `low` to before `high` have of it."""
        sizes = other_bytes(self.kinds, dim).sum(axis=1)
        start, end = int(sizes[:low].sum()), int(sizes[:high].sum())
        return Mixed(self.kinds[low:high], self.sections[low:high], self.others[start:end])

    def rows(self, kind: int, dim: int) -> Bytes:
        """The rows of INT4 or RAW (n, row bytes), head by head in token order."""
        sizes = other_bytes(self.kinds, dim).reshape(-1)
        own: Bytes = self.others[np.repeat(self.kinds.reshape(-1), sizes) == kind]
        return own.reshape(-1, int(row_sizes(dim)[kind]))


def join_rows(kinds: Bytes, int4: Bytes, raw: Bytes, dim: int) -> Bytes:
    """Rows of INT4 and RAW (n, row bytes), each head by head in token order, as they stand in a record."""
    places = np.repeat(kinds.reshape(-1), other_bytes(kinds, dim).reshape(-1))
    out = np.empty(len(places), np.uint8)
    out[places == INT4], out[places == RAW] = int4.reshape(-1), raw.reshape(-1)
    return out


def row_sizes(dim: int) -> NDArray[np.int64]:
    """Bytes behind the sections of a row that is CODES, INT4, RAW."""
    return np.array([0, step_row_bytes(INT4_SPEC, dim), 2 * dim], np.int64)


def other_bytes(kinds: Bytes, dim: int) -> NDArray[np.int64]:
    """Bytes of each row behind the sections."""
    sizes: NDArray[np.int64] = row_sizes(dim)[kinds]
    return sizes


def greatest_head(codes: SparseCodes | ShapedSpec, tokens: int, dim: int) -> int:
    """Bytes that one head of a record has at most, its error figure among them."""
    sections = sparse_sections(tokens, codes.code_bytes).total
    return ALIGNMENT + bitmap_bytes(1, tokens) + sections + tokens * int(row_sizes(dim).max())


def bitmap_bytes(heads: int, tokens: int) -> int:
    """Bytes of a bitmap: of each head two bits a row, filled to bytes; all filled to a tile row."""
    return align(heads * -(-tokens // _PER_BYTE), ALIGNMENT)


def pack_kinds(kinds: Bytes) -> Bytes:
    """The bitmap of kinds (heads, tokens)."""
    heads, tokens = kinds.shape
    whole = np.zeros((heads, align(tokens, _PER_BYTE)), np.uint8)
    whole[:, :tokens] = kinds
    out = np.zeros(bitmap_bytes(heads, tokens), np.uint8)
    packed = np.bitwise_or.reduce(whole.reshape(-1, _PER_BYTE) << _BITS, axis=1)
    out[: len(packed)] = packed
    return out


def unpack_kinds(bitmap: Bytes, heads: int, tokens: int) -> Bytes:
    """Kinds (heads, tokens). Raises CorruptRecord with the byte of a row of kind 3, or of a bit that stands for none;
    and for a bitmap in which all rows are codes.
    """
    used = heads * -(-tokens // _PER_BYTE)
    whole = ((bitmap[:used, None] >> _BITS) & np.uint8(3)).reshape(heads, -1)
    for bad, why in ((whole > RAW, "a row of kind 3"), (whole[:, tokens:] > 0, "bits behind the rows")):
        if bad.any():
            raise CorruptRecord(int(np.argmax(bad.any(axis=1))) * (used // heads), f"{why} in a row bitmap")
    if bitmap[used:].any():
        raise CorruptRecord(used + int(np.argmax(bitmap[used:] > 0)), "bits behind the rows in a row bitmap")
    if not whole.any():
        raise CorruptRecord(0, "a row bitmap of a record whose rows are all codes")
    kinds: Bytes = whole[:, :tokens]
    return kinds


def take_mixed(body: Bytes, stored: int, heads: int, tokens: int, head_bytes: int, dim: int) -> Mixed:
    """The parts of a body whose bitmap has `stored` bytes, each checked to be there. Raises CorruptRecord with a byte
    of the body.
    """
    sections = bitmap_bytes(heads, tokens) + heads * head_bytes
    if stored != bitmap_bytes(heads, tokens) or len(body) < sections:
        raise CorruptRecord(0, f"a row bitmap of {stored} bytes in a body of {len(body)}")
    kinds = unpack_kinds(body[:stored], heads, tokens)
    size = int(other_bytes(kinds, dim).sum())
    if len(body) != sections + size:
        why = f"{len(body) - sections} bytes of rows that are not codes, the row bitmap wants {size}"
        raise CorruptRecord(sections, why)
    return Mixed(kinds, body[stored:sections].reshape(heads, head_bytes), body[sections:])
