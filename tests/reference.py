"""Naive twins of the kernels, under the kernels' names. Nothing here imports kvcodec; obvious is all it has to be."""

from __future__ import annotations

import ml_dtypes
import numpy as np

F32_MAX = np.float32(3.4028234663852886e38)


def widen_rows(rows, half):
    """float32 of 16-bit floats' bits."""
    return rows.view(np.float16 if half else ml_dtypes.bfloat16).astype(np.float32)


def find_nonfinite(rows, half):
    """Flat position of the first NaN or Inf, or -1."""
    bad = np.flatnonzero(~np.isfinite(widen_rows(rows, half)))
    return int(bad[0]) if bad.size else -1


def choose_steps(x, symmetric):
    """(scale, zero in sixteenths) of one group of float32 numbers."""
    f = np.float32
    lo, hi = x.min(), x.max()
    least = max(hi * f(1 / 15) - lo * f(1 / 15), abs(lo) * f(1 / 2047))
    if symmetric:
        least = np.abs(x).max() * f(1 / 7)
    least = max(least, f(2.0**-126))
    scale = np.uint32((int(least.view(np.uint32)) + 0xFFFF) & 0xFFFF0000).view(np.float32)
    inverse = f(1) / scale
    zero = f(-128) if symmetric else np.clip(np.rint(lo * inverse * f(16)), -32768, 32767)
    return scale, int(zero)


def round_group(x, scale, zero, symmetric):
    """Codes of one group."""
    steps = x * (np.float32(1) / scale)
    if symmetric:
        return (np.clip(np.rint(steps), -7, 7) + 8).astype(np.uint8)
    return np.clip(np.rint(steps - np.float32(zero) / np.float32(16)), 0, 15).astype(np.uint8)


def scale_group(codes, scale, zero, greatest=F32_MAX):
    """float32 numbers of one group's codes."""
    with np.errstate(over="ignore"):
        decoded = scale * (codes.astype(np.float32) + np.float32(zero) / np.float32(16))
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


def pack_token_tiles(codes):
    """Bytes of token-lane tiles: row r, byte 4t + j is channels 8r + j (low) and 8r + 4 + j (high) of token t."""
    tokens, dim = codes.shape
    tiles = np.zeros((tokens // 16, dim // 8, 16, 4), np.uint8)
    for t in range(tokens):
        for r in range(dim // 8):
            for j in range(4):
                tiles[t // 16, r, t % 16, j] = codes[t, 8 * r + j] | codes[t, 8 * r + 4 + j] << 4
    return tiles.tobytes()


def pack_channel_tiles(codes):
    """Bytes of channel-lane tiles: row r, byte 4c + j is tokens 8r + j (low) and 8r + 4 + j (high) of channel c."""
    tokens, dim = codes.shape
    tiles = np.zeros((tokens // 64, dim // 16, 8, 16, 4), np.uint8)
    for c in range(dim):
        for r in range(tokens // 8):
            for j in range(4):
                tiles[r // 8, c // 16, r % 8, c % 16, j] = codes[8 * r + j, c] | codes[8 * r + 4 + j, c] << 4
    return tiles.tobytes()


def unpack_token_tiles(tiles, tokens, dim):
    """Codes (tokens, dim), both padded."""
    codes = np.zeros((tokens, dim), np.uint8)
    for t in range(tokens):
        for c in range(dim):
            byte = tiles[((t // 16 * (dim // 8) + c // 8) * 16 + t % 16) * 4 + c % 4]
            codes[t, c] = byte >> 4 if c % 8 >= 4 else byte & 15
    return codes


def unpack_channel_tiles(tiles, tokens, dim):
    """Codes (tokens, dim), both padded."""
    codes = np.zeros((tokens, dim), np.uint8)
    for t in range(tokens):
        for c in range(dim):
            byte = tiles[(((t // 64 * (dim // 16) + c // 16) * 8 + t % 64 // 8) * 16 + c % 16) * 4 + t % 4]
            codes[t, c] = byte >> 4 if t % 8 >= 4 else byte & 15
    return codes


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


def quantize_records(rows, half, group, per_channel, symmetric, channel_lane):
    """(bytes, Q15 error) of one head of one record; rows: uint16 (tokens, dim)."""
    tokens, dim = rows.shape
    x = widen_rows(rows, half)
    table = scale_table(tokens, dim, group, per_channel, channel_lane)
    scales, zeros = np.zeros(table, np.uint16), np.zeros(table, np.int16)
    codes = np.zeros((pad(tokens, 64 if channel_lane else 16), pad(dim, 16)), np.uint8)
    missed = np.zeros((tokens, dim), np.float32)
    for row, lane, at in walk_groups(tokens, dim, group, per_channel):
        scale, zero = choose_steps(x[at], symmetric)
        scales[row, lane], zeros[row, lane] = int(scale.view(np.uint32)) >> 16, zero
        coded = round_group(x[at], scale, zero, symmetric)
        codes[:tokens, :dim][at] = coded
        missed[at] = x[at] - scale_group(coded, scale, zero)
    body = b""
    for part in [scales] if symmetric else [scales, zeros]:
        body += part.tobytes() + bytes(-part.nbytes % 64)
    body += pack_channel_tiles(codes) if channel_lane else pack_token_tiles(codes)
    return body, relate_error(sum_squares(missed), sum_squares(x))


def dequantize_records(body, tokens, dim, form, group, per_channel, symmetric, channel_lane):
    """Rows (tokens, dim) of one head of one record; form: numpy dtype of the output."""
    table = scale_table(tokens, dim, group, per_channel, channel_lane)
    size = 2 * table[0] * table[1]
    body = np.frombuffer(body, np.uint8)
    scales = body[:size].view(np.uint16).reshape(table)
    start = pad(size, 64)
    zeros = np.full(table, -128, np.int16)
    if not symmetric:
        zeros = body[start : start + size].view(np.int16).reshape(table)
        start *= 2
    unpack = unpack_channel_tiles if channel_lane else unpack_token_tiles
    codes = unpack(body[start:], pad(tokens, 64 if channel_lane else 16), pad(dim, 16))[:tokens, :dim]
    greatest = np.float32(ml_dtypes.finfo(form).max)
    out = np.zeros((tokens, dim), np.float32)
    for row, lane, at in walk_groups(tokens, dim, group, per_channel):
        scale = np.uint32(int(scales[row, lane]) << 16).view(np.float32)
        out[at] = scale_group(codes[at], scale, zeros[row, lane], greatest)
    return out.astype(form)


def find_bad_scale(scales):
    """Index of the first scale, of uint16 bits, that is no finite bfloat16 of at least 2**-126; or -1."""
    values = scales.view(ml_dtypes.bfloat16).astype(np.float64)
    for i, value in enumerate(values):
        if not (np.isfinite(value) and value >= 2.0**-126):
            return i
    return -1
