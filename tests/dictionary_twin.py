"""Naive twins of the dictionary codec's kernels, a row at a time. Nothing here imports kvcodec."""

from __future__ import annotations

import ml_dtypes
import numpy as np

F32_MAX = float(np.finfo(np.float32).max)
LEAST, GREATEST = 0x0080, 0x7F7F  # bfloat16 bits of scales
FIRSTS, FEWER = {4: 7.9, 5: 15.7, 6: 31.7, 8: 127.5}, {4: 0.2, 5: 0.4, 6: 0.8, 8: 2}


def count_low_bits(atoms, terms):
    return max((atoms // terms).bit_length() - 1, 0)


def pack_set(indices, atoms):
    """Bytes of one nondecreasing set."""
    terms = len(indices)
    if terms == 0:
        return b""
    low = count_low_bits(atoms, terms)
    number = 0
    for j, index in enumerate(map(int, indices)):
        number |= index % 2**low << j * low
        number |= 1 << terms * low + (index >> low) + j
    bits = terms * low + terms + (atoms - 1 >> low)
    return number.to_bytes(-(-bits // 8), "little")


def unpack_set(packed, atoms, terms):
    """Indices, or None if the bytes are no set."""
    low, number = count_low_bits(atoms, terms), int.from_bytes(packed, "little")
    unary = number >> terms * low
    places = [p for p in range(unary.bit_length()) if unary >> p & 1]
    if len(places) != terms or places[-1] >= terms + (atoms - 1 >> low):
        return None
    indices = [p - j << low | (number >> j * low) % 2**low for j, p in enumerate(places)]
    return indices if max(indices) < atoms else None


def cut_sets(row, low):
    """The sets of a row: one, or the first `low` and the others."""
    return [part for part in (row[:low], row[low:]) if len(part)]


def pack_sets(row, atoms, low):
    return b"".join(pack_set(part, atoms) for part in cut_sets(row, low))


def unpack_sets(packed, atoms, terms, low):
    indices = []
    for count in filter(None, (low, terms - low)):
        size = len(pack_set([0] * count, atoms))
        found, packed = unpack_set(packed[:size], atoms, count), packed[size:]
        if found is None:
            return None
        indices += found
    return indices


def pack_bits(codes, bits):
    number = sum(int(code) % 2**bits << j * bits for j, code in enumerate(codes))
    return number.to_bytes(-(-len(codes) * bits // 8), "little")


def order_sets(indices, codes, used, low):
    """(indices, codes) of a row, sorted and filled."""
    out = []
    for first, last in ((0, low), (low, len(indices))):
        own = sorted((int(indices[j]), j) for j in range(first, min(last, used)))
        pairs = [(index, int(codes[j])) for index, j in own]
        out += pairs + [(pairs[-1][0] if pairs else 0, 0)] * (last - first - len(pairs))
    return [index for index, _ in out], [code for _, code in out]


def solve_codes(indices, coefficients, projections, gram, norms, bits):
    """Codes of all given atoms, in the order in which they were given; None if there is nothing to code."""
    f, used = np.float32, len(indices)
    sizes64 = norms[indices].astype(np.float64)
    order = sorted(range(used), key=lambda j: abs(coefficients[j]))
    peak = max((abs(float(c)) / n for c, n in zip(coefficients, sizes64, strict=True) if n > 0), default=0)
    if not 0 < peak < np.inf:
        return None
    atoms, norm = indices[order], sizes64[order[-1]]
    sizes = (sizes64[order] / norm).astype(f)
    sides = (projections[atoms].astype(np.float64) / (peak * norm)).astype(f)
    if not (np.isfinite(sides).all() and np.isfinite(sizes).all() and np.isfinite(1 / sizes).all()):
        return None
    matrix, inverses, targets = gram[np.ix_(atoms, atoms)].copy(), np.zeros(used, f), np.zeros(used, f)
    for k in range(used):
        if matrix[k, k] > f(2.0**-16):
            inverses[k] = f(1) / np.sqrt(matrix[k, k])
        targets[k] = sides[k] * inverses[k]
        matrix[k] *= inverses[k]
        sides = sides - targets[k] * matrix[k]
        matrix[k + 1 :] -= np.outer(matrix[k, k + 1 :], matrix[k])
    widths = f(FIRSTS[bits]) - np.arange(16, dtype=f) * f(FEWER[bits])
    most = f(2 ** (bits - 1) - 1)
    codes, trials = np.zeros((used, 16), f), np.zeros((used, 16), f)
    along, square = np.zeros(16, f), np.zeros(16, f)
    for k in reversed(range(used)):
        sums = np.zeros(16, f)
        for a in range(k + 1, used):
            sums = sums + matrix[k, a] * trials[a]
        rest = (targets[k] * widths - sums) * (inverses[k] / sizes[k])
        codes[k] = np.rint(np.clip(rest, -most, most))
        trials[k] = codes[k] * sizes[k]
        sums = sums + trials[k] * matrix[k, k]
        along, square = along + targets[k] * sums, square + sums * sums
    gains = along * abs(along) / np.maximum(square, f(2.0**-100))
    out = np.zeros(used, np.int8)
    out[order] = codes[:, gains.argmax()].astype(np.int8)
    return out


def project_codes(codes, indices, projections, gram, norms):
    """Inner products in float64 of the sum of codes times atoms with x and with itself."""
    lengths = codes.astype(np.float64) * norms[indices].astype(np.float64)
    along = square = 0.0
    for j in np.flatnonzero(codes):
        inner = 0.0
        for k in range(j):
            inner += lengths[k] * float(gram[indices[j], indices[k]])
        along += lengths[j] * float(projections[indices[j]])
        square += lengths[j] * (lengths[j] * float(gram[indices[j], indices[j]]) + 2.0 * inner)
    return along, square


def float_of_scale(bits):
    return np.uint16(bits).view(ml_dtypes.bfloat16).astype(np.float64)


def quantize_coefficients(indices, coefficients, used, projections, gram, norms, energy, bits):
    """(codes, scale, residual) of one row."""
    none = np.zeros(len(indices), np.int8), LEAST, np.float32(np.clip(energy, 0, F32_MAX))
    with np.errstate(all="ignore"):
        own = solve_codes(indices[:used], coefficients[:used], projections, gram, norms, bits) if used else None
        if own is None:
            return none
        along, square = project_codes(own, indices[:used], projections, gram, norms)
        if not (along > 0 and square > 0):
            return none
        best = np.float32(np.clip(along / square, 2.0**-126, F32_MAX))
        low = min(int(best.view(np.uint32)) >> 16, GREATEST)
        choices = []
        for scale in (low, min(low + 1, GREATEST)):
            number = float_of_scale(scale)
            choices.append((number * (number * square - 2.0 * along), scale))
        change, scale = min(choices)
        if not change < 0:
            return none
    codes = np.zeros(len(indices), np.int8)
    codes[:used] = own
    left = float(energy) + change
    return codes, scale, np.float32(max(left, 0.0) if left <= F32_MAX else F32_MAX)


def rebuild_row(atoms, mean, indices, codes, scale, dtype):
    """One vector in a dtype, saturated."""
    sums = sum(int(c) * atoms[i].astype(np.int64) for i, c in zip(indices, codes, strict=True))
    with np.errstate(over="ignore"):
        numbers = sums.astype(np.float32) * float_of_scale(scale).astype(np.float32) + mean
    most = np.float32(ml_dtypes.finfo(dtype).max)
    return np.clip(numbers, -most, most).astype(dtype)
