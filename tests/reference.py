"""Naive twins of the kernels, under the kernels' names. Nothing here imports kvcodec; obvious is all it has to be."""

from __future__ import annotations

import ml_dtypes
import numpy as np

F32_MAX = np.float32(3.4028234663852886e38)
PARTS = {2: 16, 4: 16, 8: 2}  # of a step, in which zeros are counted
REACH = {2: 2047, 4: 2047, 8: 16383}  # steps that a zero may be away


def widen_rows(rows, half):
    """float32 of 16-bit floats' bits."""
    return rows.view(np.float16 if half else ml_dtypes.bfloat16).astype(np.float32)


def find_nonfinite(rows, half):
    """Flat position of the first NaN or Inf, or -1."""
    bad = np.flatnonzero(~np.isfinite(widen_rows(rows, half)))
    return int(bad[0]) if bad.size else -1


def choose_steps(x, symmetric, bits=4):
    """(scale, zero in parts of a step) of one group of float32 numbers."""
    f = np.float32
    lo, hi = x.min(), x.max()
    top = 2**bits - 1
    least = max(hi * f(1 / top) - lo * f(1 / top), abs(lo) * f(1 / REACH[bits]))
    if symmetric:
        least = np.abs(x).max() * f(1 / (2 ** (bits - 1) - 1))
    least = max(least, f(2.0**-126))
    scale = np.uint32((int(least.view(np.uint32)) + 0xFFFF) & 0xFFFF0000).view(np.float32)
    inverse = f(1) / scale
    if symmetric:
        return scale, -(2 ** (bits - 1)) * PARTS[bits]
    return scale, int(np.clip(np.rint(lo * inverse * f(PARTS[bits])), -32768, 32767))


def round_group(x, scale, zero, symmetric, bits=4):
    """Codes of one group."""
    steps = x * (np.float32(1) / scale)
    if symmetric:
        most = 2 ** (bits - 1) - 1
        return (np.clip(np.rint(steps), -most, most) + most + 1).astype(np.uint8)
    return np.clip(np.rint(steps - np.float32(zero) / np.float32(PARTS[bits])), 0, 2**bits - 1).astype(np.uint8)


def scale_group(codes, scale, zero, greatest=F32_MAX, bits=4):
    """float32 numbers of one group's codes."""
    with np.errstate(over="ignore"):
        decoded = scale * (codes.astype(np.float32) + np.float32(zero) / np.float32(PARTS[bits]))
    return np.clip(decoded, -greatest, greatest)


def walk_groups(tokens, dim, group, per_channel):
    """(row of scales, lane, index of the group's numbers) of each group of a head."""
    lanes, count = (dim, tokens) if per_channel else (tokens, dim)
    for row, first in enumerate(range(0, count, group)):
        for lane in range(lanes):
            span = slice(first, min(first + group, count))
            yield row, lane, (span, lane) if per_channel else (lane, span)


def pad(n, to):
    return -(-n // to) * to


def place_in_token_tiles(t, c, dim, bits):
    """(byte, lowest bit) of the code of token t, channel c."""
    span = 32 // bits  # channels of a row
    byte = ((t // 16 * (dim // span) + c // span) * 16 + t % 16) * 4 + c % 4
    return byte, c % span // 4 * bits


def place_in_channel_tiles(t, c, dim, bits):
    """(byte, lowest bit) of the code of token t, channel c."""
    span = 32 // bits  # tokens of a row
    rows = 64 // span
    byte = (((t // 64 * (dim // 16) + c // 16) * rows + t % 64 // span) * 16 + c % 16) * 4 + t % 4
    return byte, t % span // 4 * bits


def pack_tiles(codes, bits, place):
    """Bytes of the tiles of codes (tokens, dim), both padded."""
    tiles = np.zeros(codes.size * bits // 8, np.uint8)
    for t, c in np.ndindex(codes.shape):
        byte, low = place(t, c, codes.shape[1], bits)
        tiles[byte] |= codes[t, c] << low
    return tiles.tobytes()


def unpack_tiles(tiles, tokens, dim, bits, place):
    """Codes (tokens, dim), both padded."""
    codes = np.zeros((tokens, dim), np.uint8)
    for t, c in np.ndindex(codes.shape):
        byte, low = place(t, c, dim, bits)
        codes[t, c] = tiles[byte] >> low & 2**bits - 1
    return codes


def pack_token_tiles(codes, bits=4):
    """Bytes of token-lane tiles."""
    return pack_tiles(codes, bits, place_in_token_tiles)


def pack_channel_tiles(codes, bits=4):
    """Bytes of channel-lane tiles."""
    return pack_tiles(codes, bits, place_in_channel_tiles)


def unpack_token_tiles(tiles, tokens, dim, bits=4):
    """Codes of token-lane tiles."""
    return unpack_tiles(tiles, tokens, dim, bits, place_in_token_tiles)


def unpack_channel_tiles(tiles, tokens, dim, bits=4):
    """Codes of channel-lane tiles."""
    return unpack_tiles(tiles, tokens, dim, bits, place_in_channel_tiles)


def sum_squares(x):
    """Sum of squares in float64: down each channel, then over the channels, one addition after the other."""
    total = np.float64(0)
    for channel in np.add.accumulate(x.astype(np.float64) ** 2, axis=0)[-1]:
        total += channel
    return total


def relate_error(error, square):
    """Q15 of the root of their ratio."""
    return 0 if square == 0 else int(min(np.rint(32768 * np.sqrt(error / square)), 65535))


def scale_table(tokens, dim, group, per_channel, channel_lane):
    """Shape of a head's table of scales."""
    if per_channel:
        return -(-tokens // group), pad(dim, 16)
    return -(-dim // group), pad(tokens, 64 if channel_lane else 16)


def quantize_records(rows, half, group, per_channel, symmetric, channel_lane, bits):
    """(bytes, Q15 error) of one head of one record; rows: uint16 (tokens, dim)."""
    tokens, dim = rows.shape
    x = widen_rows(rows, half)
    table = scale_table(tokens, dim, group, per_channel, channel_lane)
    scales, zeros = np.zeros(table, np.uint16), np.zeros(table, np.int16)
    codes = np.zeros((pad(tokens, 64 if channel_lane else 16), pad(dim, 16)), np.uint8)
    missed = np.zeros((tokens, dim), np.float32)
    for row, lane, at in walk_groups(tokens, dim, group, per_channel):
        scale, zero = choose_steps(x[at], symmetric, bits)
        scales[row, lane], zeros[row, lane] = int(scale.view(np.uint32)) >> 16, zero
        coded = round_group(x[at], scale, zero, symmetric, bits)
        codes[:tokens, :dim][at] = coded
        missed[at] = x[at] - scale_group(coded, scale, zero, bits=bits)
    body = b""
    for part in [scales] if symmetric else [scales, zeros]:
        body += part.tobytes() + bytes(-part.nbytes % 64)
    body += pack_channel_tiles(codes, bits) if channel_lane else pack_token_tiles(codes, bits)
    return body, relate_error(sum_squares(missed), sum_squares(x))


def dequantize_records(body, tokens, dim, form, group, per_channel, symmetric, channel_lane, bits):
    """Rows (tokens, dim) of one head of one record; form: numpy dtype of the output."""
    table = scale_table(tokens, dim, group, per_channel, channel_lane)
    size = 2 * table[0] * table[1]
    body = np.frombuffer(body, np.uint8)
    scales = body[:size].view(np.uint16).reshape(table)
    start = pad(size, 64)
    zeros = np.full(table, -(2 ** (bits - 1)) * PARTS[bits], np.int16)
    if not symmetric:
        zeros = body[start : start + size].view(np.int16).reshape(table)
        start *= 2
    unpack = unpack_channel_tiles if channel_lane else unpack_token_tiles
    codes = unpack(body[start:], pad(tokens, 64 if channel_lane else 16), pad(dim, 16), bits)[:tokens, :dim]
    greatest = np.float32(ml_dtypes.finfo(form).max)
    out = np.zeros((tokens, dim), np.float32)
    for row, lane, at in walk_groups(tokens, dim, group, per_channel):
        scale = np.uint32(int(scales[row, lane]) << 16).view(np.float32)
        out[at] = scale_group(codes[at], scale, zeros[row, lane], greatest, bits)
    return out.astype(form)


def find_bad_scale(scales):
    """Index of the first scale, of uint16 bits, that is no finite bfloat16 of at least 2**-126; or -1."""
    values = scales.view(ml_dtypes.bfloat16).astype(np.float64)
    for i, value in enumerate(values):
        if not (np.isfinite(value) and value >= 2.0**-126):
            return i
    return -1
