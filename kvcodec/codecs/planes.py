"""Coded vectors as bytes: rows that stand by themselves, and planes of 64 of them (formats/dictionary.md).

A row is a scale, indices and coefficients. A block of 64 rows holds the same fields turned: field k of all its rows
lies together, so that kernels read neighbouring tokens. Turning moves bytes and rounds nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.pursuit import Codes, empty_codes
from kvcodec.codecs.sections import sparse_sections
from kvcodec.errors import CorruptRecord
from kvcodec.kernels import coefficients, elias_fano
from kvcodec.kernels.atoms import find_bad_index
from kvcodec.layout import CHANNEL_LANE_TOKENS as BLOCK
from kvcodec.layout import align
from kvcodec.sparse_spec import SparseCodes

Bytes = NDArray[np.uint8]
_SCALE = 2  # bytes
_LIMIT = np.uint16(0x7F80)  # bits of the infinite bfloat16: no scale reaches it


def pack_rows(codes: Codes, spec: SparseCodes) -> Bytes:
    """Rows (n, row bytes) of codes. Sets of indices are sorted, in `codes` too."""
    count = len(codes.scales)
    rows = np.empty((count, spec.row_bytes), np.uint8)
    rows[:, :_SCALE] = codes.scales.astype("<u2").view(np.uint8).reshape(count, _SCALE)
    first, last = _SCALE, _SCALE + spec.index_bytes
    if spec.sets:
        coefficients.order_sets(codes.indices, codes.coefficients, codes.counts, np.int64(spec.low))
        packed = np.empty((count, spec.index_bytes), np.uint8)
        elias_fano.pack_sets(codes.indices, np.int64(spec.size), np.int64(spec.low), packed)
        rows[:, first:last] = packed
    else:
        rows[:, first:last] = codes.indices.astype("<u2").view(np.uint8).reshape(count, spec.index_bytes)
    packed = np.empty((count, spec.row_bytes - last), np.uint8)
    elias_fano.pack_bits(codes.coefficients, np.int64(spec.bits), packed)
    rows[:, last:] = packed
    return rows


def unpack_rows(rows: Bytes, spec: SparseCodes) -> Codes:
    """Codes of rows (n, row bytes); counts are how many have a coefficient, up to the last one.

    Raises CorruptRecord with the number of the first bad row.
    """
    codes = empty_codes(len(rows), spec.atoms)
    rows = np.ascontiguousarray(rows)
    first, last = _SCALE, _SCALE + spec.index_bytes
    codes.scales[:] = np.ascontiguousarray(rows[:, :first]).view("<u2")[:, 0]
    packed = np.ascontiguousarray(rows[:, first:last])
    if spec.sets:
        bad = int(elias_fano.unpack_sets(packed, np.int64(spec.size), np.int64(spec.low), codes.indices))
        if bad >= 0:
            raise CorruptRecord(bad, f"no set of {spec.atoms} indices below {spec.size}")
    else:
        codes.indices[:] = packed.view("<u2")
        bad = int(find_bad_index(codes.indices, np.int64(spec.size)))
        if bad >= 0:
            raise CorruptRecord(bad, f"index {int(codes.indices[bad].max())} of a dictionary of {spec.size} atoms")
    bad = int(elias_fano.unpack_bits(np.ascontiguousarray(rows[:, last:]), np.int64(spec.bits), codes.coefficients))
    if bad >= 0:
        raise CorruptRecord(bad, "bits behind the coefficients")
    if len(high := np.flatnonzero(codes.scales >= _LIMIT)):
        raise CorruptRecord(int(high[0]), f"scale 0x{codes.scales[high[0]]:04x} is not a finite, positive bfloat16")
    ranks = np.arange(1, spec.atoms + 1)
    codes.counts[:] = (ranks * (codes.coefficients != 0)).max(axis=1, initial=0)
    return codes


def lay_planes(rows: Bytes, tokens: int, spec: SparseCodes) -> Bytes:
    """Sections (records, heads, bytes) of rows (records * tokens, heads, row bytes)."""
    turned = turn_blocks(rows, tokens)
    records, heads, blocks = turned.shape[:3]
    sections = sparse_sections(tokens, spec.code_bytes)
    out = np.zeros((records, heads, sections.total), np.uint8)
    out[..., : sections.metadata] = _weave(turned[..., :_SCALE, :]).reshape(records, heads, -1)
    split = _SCALE + spec.index_bytes
    indices = turned[..., _SCALE:split, :]
    parts = [indices if spec.sets else _weave(indices), turned[..., split:, :]]
    codes = np.concatenate([part.reshape(records, heads, blocks, -1) for part in parts], axis=3)
    out[..., sections.metadata :] = codes.reshape(records, heads, -1)
    return out


def take_rows(body: Bytes, tokens: int, spec: SparseCodes) -> Bytes:
    """Rows (records * tokens, heads, row bytes) of sections (records, heads, bytes)."""
    records, heads, _ = body.shape
    blocks, sections = align(tokens, BLOCK) // BLOCK, sparse_sections(tokens, spec.code_bytes)
    turned = np.empty((records, heads, blocks, spec.row_bytes, BLOCK), np.uint8)
    scales = body[..., : sections.metadata].reshape(records, heads, blocks, -1)
    turned[..., :_SCALE, :] = _unweave(scales, _SCALE)
    codes = body[..., sections.metadata :].reshape(records, heads, blocks, -1)
    split = spec.index_bytes * BLOCK
    indices = codes[..., :split]
    shape = (records, heads, blocks, -1, BLOCK)
    turned[..., _SCALE : _SCALE + spec.index_bytes, :] = (
        indices.reshape(shape) if spec.sets else _unweave(indices, spec.index_bytes)
    )
    turned[..., _SCALE + spec.index_bytes :, :] = codes[..., split:].reshape(shape)
    return turn_blocks_back(turned, tokens)


def turn_blocks(rows: Bytes, tokens: int) -> Bytes:
    """Rows (records * tokens, heads, row bytes), filled up with zeros, as (records, heads, blocks, row bytes, 64)."""
    heads, width = rows.shape[1:]
    records, blocks = len(rows) // tokens, align(tokens, BLOCK) // BLOCK
    whole = np.zeros((records, blocks * BLOCK, heads, width), np.uint8)
    whole[:, :tokens] = rows.reshape(records, tokens, heads, width)
    return whole.reshape(records, blocks, BLOCK, heads, width).transpose(0, 3, 1, 4, 2)


def turn_blocks_back(turned: Bytes, tokens: int) -> Bytes:
    """The inverse."""
    records, heads, blocks, width, _ = turned.shape
    rows = turned.transpose(0, 2, 4, 1, 3).reshape(records, blocks * BLOCK, heads, width)
    return np.ascontiguousarray(rows[:, :tokens].reshape(records * tokens, heads, width))


def _weave(planes: Bytes) -> Bytes:
    """Planes of the low and the high byte of 16-bit fields (…, 2 fields, 64) as planes of the fields (…, bytes)."""
    pairs = planes.reshape(*planes.shape[:-2], -1, 2, BLOCK).swapaxes(-1, -2)
    return pairs.reshape(*planes.shape[:-2], -1)


def _unweave(fields: Bytes, width: int) -> Bytes:
    """The inverse: (…, bytes) to (…, width, 64)."""
    pairs = fields.reshape(*fields.shape[:-1], width // 2, BLOCK, 2).swapaxes(-1, -2)
    return pairs.reshape(*fields.shape[:-1], width, BLOCK)
