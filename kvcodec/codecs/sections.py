"""Sizes of the sections of one head in a GROUP record (formats/grouped-integers.md, formats/raw.md)."""

from __future__ import annotations

from typing import NamedTuple

from kvcodec.layout import CHANNEL_LANE_TOKENS, TILE_LANES, TILE_ROW, Axis, align


class HeadSections(NamedTuple):
    """Bytes of one head's sections in a grouped record, each padded to a tile row, in the order they stand."""

    scales: int
    zeros: int
    codes: int

    @property
    def metadata(self) -> int:
        return self.scales + self.zeros

    @property
    def total(self) -> int:
        return self.scales + self.zeros + self.codes


def padded_tokens(tokens: int, channel_lane: bool) -> int:
    """Tokens of a tile row of one head, padded: to 64 in channel-lane tiles, to 16 in token-lane tiles."""
    return align(tokens, CHANNEL_LANE_TOKENS if channel_lane else TILE_LANES)


def scale_shape(tokens: int, dim: int, axis: int, group: int, channel_lane: bool) -> tuple[int, int]:
    """Shape of one head's scales (and zeros), C order.

    Per channel: (token groups of g, channels padded to 16). Per token: (channel groups of g, padded tokens).
    """
    if axis == Axis.CHANNEL:
        return -(-tokens // group), align(dim, TILE_LANES)
    return -(-dim // group), padded_tokens(tokens, channel_lane)


def grouped_sections(
    tokens: int, dim: int, *, bits: int, axis: int, group: int, symmetric: bool, channel_lane: bool
) -> HeadSections:
    """Sizes of the sections of one head in a record of `tokens` rows of `dim` channels."""
    rows, columns = scale_shape(tokens, dim, axis, group, channel_lane)
    scales = align(2 * rows * columns, TILE_ROW)
    codes = padded_tokens(tokens, channel_lane) * align(dim, TILE_LANES) * bits // 8
    return HeadSections(scales, 0 if symmetric else scales, align(codes, TILE_ROW))


def sparse_sections(tokens: int, code_bytes: int) -> HeadSections:
    """Sizes of the sections of one head in a record of vectors over a dictionary, of `code_bytes` bytes each."""
    padded = align(tokens, CHANNEL_LANE_TOKENS)
    return HeadSections(2 * padded, 0, code_bytes * padded)


def raw_sections(tokens: int, dim: int) -> HeadSections:
    """Sizes of the sections of one head in a raw GROUP record: 16-bit rows, token by token."""
    return HeadSections(0, 0, align(2 * tokens * dim, TILE_ROW))
