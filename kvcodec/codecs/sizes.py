"""Bytes that a spec takes, told without its codec: no kernel is loaded for them."""

from __future__ import annotations

from kvcodec.codecs.sections import HeadSections, grouped_sections, raw_sections, sparse_sections
from kvcodec.layout import CHANNEL_LANE_TOKENS, TILE_LANES, Axis, CodecId, StreamId, align
from kvcodec.spec import CodecSpec


def head_sections(spec: CodecSpec, stream: StreamId, tokens: int, dim: int) -> HeadSections:
    """Bytes of one head's sections in a GROUP record of `tokens` rows of `dim` channels."""
    if spec.codec == CodecId.RAW:
        return raw_sections(tokens, dim)
    if (own := spec.sparse or spec.shaped) is not None:
        return sparse_sections(tokens, own.code_bytes)
    return grouped_sections(
        tokens,
        dim,
        bits=spec.bits,
        axis=spec.axis,
        group=spec.group,
        symmetric=spec.symmetric,
        channel_lane=stream == StreamId.V,
    )


def token_group(spec: CodecSpec) -> int:
    """Tokens of a full GROUP record."""
    if spec.is_trained:
        return spec.group
    return align(CHANNEL_LANE_TOKENS, spec.group) if spec.axis == Axis.CHANNEL else CHANNEL_LANE_TOKENS


def step_row_bytes(spec: CodecSpec, dim: int) -> int:
    """Bytes of one token's row of one head in a STEP record: raw, or codes with one scale a token."""
    if spec.codec == CodecId.RAW:
        return 2 * dim
    own = spec.sparse or spec.shaped
    if own is not None:
        return own.row_bytes
    groups = -(-dim // spec.group)
    return groups * (2 if spec.symmetric else 4) + align(dim, TILE_LANES) * spec.bits // 8
