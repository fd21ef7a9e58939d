"""Changes of bytes and of structs' fields, to values that programs are known to trip over."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from tests.fuzz.choices import Choices
from tests.fuzz.image_structs import Struct

_FLOATS = [struct.pack("<e", x) for x in (np.nan, np.inf, -np.inf, -1.0, 65504.0, 6e-8)]
_FLOATS += [struct.pack("<f", x) for x in (np.nan, np.inf, -np.inf, -1.0, 3.4e38, 1e-45, 0.0)]
_FLOATS += [b"\x80\x7f", b"\x80\xff", b"\xff\x7f", b"\x7f\x7f", b"\x00\x80"]  # of bfloat16
_WIDTHS = (1, 2, 4, 8)


def interesting(old: int, width: int, choices: Choices) -> int:
    """Another value of an unsigned field of `width` bytes."""
    top = (1 << 8 * width) - 1
    values = (
        0, 1, old + 1, old - 1, top, top - 1, top >> 1, (top >> 1) + 1, old << 1, old >> 1,
        old ^ 1 << choices.below(64), choices.number(1), choices.number(2), choices.number(8),
        1 << choices.below(64), old + choices.number(1) * 8,
        old - choices.number(1) * 8, (1 << 62) - 1, 1 << 48, 1 << 31, 0x7FC0,
    )  # fmt: skip
    return choices.pick(values) & top


def change_field(image: bytearray, among: Sequence[Struct], choices: Choices) -> None:
    """Set a field of one of some structs: to an interesting value, or to that of another struct of its sort."""
    if not among:
        return
    one = choices.pick(among)
    if one.end > len(image):
        return
    name = choices.pick(one.dtype.names or ())
    kind, offset, *_ = (one.dtype.fields or {})[name]
    at, width = one.at + offset, kind.itemsize
    if choices.below(4) == 3:
        other = choices.pick([s for s in among if s.dtype == one.dtype and s.end <= len(image)])
        image[at : at + width] = image[other.at + offset : other.at + offset + width]
    elif width in _WIDTHS and kind.kind in "ui":
        old = int.from_bytes(image[at : at + width], "little")
        image[at : at + width] = interesting(old, width, choices).to_bytes(width, "little")
    else:
        change_bytes(image, at, at + width, choices)


def change_bytes(image: bytearray, start: int, end: int, choices: Choices) -> None:
    """Change some of the bytes from `start` to `end`, and no others."""
    end = min(end, len(image))
    if start >= end:
        return
    at = start + choices.below(end - start)
    what = choices.below(5)
    if what == 0:
        image[at] ^= 1 << choices.below(8)
    elif what == 1:
        new = choices.pick(_FLOATS)
        at -= (at - start) % 2
        image[at : min(end, at + len(new))] = new[: end - at]
    elif what == 2:
        size = min(choices.number(), end - at)
        image[at : at + size] = choices.take(1) * size
    elif what == 3:
        width = min(choices.pick(_WIDTHS), end - at)
        old = int.from_bytes(image[at : at + width], "little")
        image[at : at + width] = interesting(old, width, choices).to_bytes(width, "little")
    else:
        source, size = start + choices.below(end - start), choices.number()
        piece = image[source : min(source + size, end)][: end - at]
        image[at : at + len(piece)] = piece
