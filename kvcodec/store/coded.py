"""A record as one stream sees it, and the stretch of its tokens that is read from it."""

from __future__ import annotations

from typing import NamedTuple

from kvcodec.log.located import Place
from kvcodec.spec import CodecSpec


class Part(NamedTuple):
    """Rows of some heads of a record: where the record lies, and where in its body the rows begin.

    size: bytes of codes, scales and zeros, or of raw rows. coded: whether they are codes. atoms: that a vector over a
    dictionary has room for, in a GROUP. bitmap: bytes of the bitmap of rows that are not codes, where body_offset is.
    positions: bytes of what rows that stand for several tokens say of that, right before body_offset.
    """

    place: Place
    first_head: int
    heads: int
    body_offset: int
    size: int = 0
    coded: bool = False
    atoms: int = 0
    bitmap: int = 0
    positions: int = 0


class Coded(NamedTuple):
    """A whole record as one stream sees it: its tokens, and its parts by head (one unless it was split; none of tokens
    that were evicted).

    step: the codec of rows in a STEP record, which a GROUP record will supersede: a writer that takes up the log holds
    them open. None for a GROUP.
    stands_for: of a summary the token behind those, from `first` on, that its rows stand for; 0 of all others.
    """

    lsn: int
    step: CodecSpec | None
    first: int
    tokens: int
    parts: tuple[Part, ...]
    stands_for: int = 0


def evicted(first: int, tokens: int, lsn: int) -> Coded:
    """What holds tokens that a DROP record of that lsn evicted."""
    return Coded(lsn, None, first, tokens, ())


class Extent(NamedTuple):
    """Tokens first … end - 1 are read from `coded`."""

    first: int
    end: int
    coded: Coded
