"""Naive twins of the pursuits, under the kernels' names. Nothing here imports kvcodec.

omp, ormp, top_dots, and those with integers (fix_rows, mp_integers, quantize_integers) are the definitions, bit for
bit, a vector at a time. exact_omp and exact_ormp are what all of them approximate: float64 least squares on the atoms
themselves, no Gram matrix, no update of anything.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

f = np.float32
DEPENDENT, NOISE = f(2.0**-12), f(2.0**-18)
LEAST, MOST = f(2.0**-30), f(2.0**30)
F32_MAX = float(np.finfo(np.float32).max)


def choose_scale(greatest):
    """A power of two that brings a number out of range to [1, 2), or as near as a normal one can."""
    if greatest == 0 or LEAST <= greatest <= MOST:
        return f(1)
    exponent = int(np.floor(np.log2(np.float64(greatest))))
    return f(2.0 ** -min(max(exponent, -126), 126))


def pursue(p, gram, energy, bound, s, choose):
    """(indices, coefficients, count, residuals) of one vector."""
    scale = choose_scale(np.abs(p).max(initial=0))
    p = p * scale
    left = gram.diagonal().copy()
    taken, rows, inverses, steps, residuals = [], [], [], [], []
    lower = np.zeros((s, s), np.float32)
    energy, noise = np.float64(energy), f(0)
    while len(taken) < s and not f(energy) <= bound:
        atom = choose(p, left, noise)
        if atom is None:
            break
        if not taken:
            noise = abs(p[atom]) * NOISE
        k = len(taken)
        lower[k, :k] = [rows[j][atom] * inverses[j] for j in range(k)]
        inverse = f(1) / left[atom]
        step = p[atom] * inverse
        energy = max(energy - np.float64(p[atom]) * np.float64(step) / np.float64(scale) ** 2, np.float64(0))
        row = gram[atom]
        for j in range(k):
            row = row - lower[k, j] * rows[j]
        p = p - step * row
        left = left - row * inverse * row
        for found, one in ((taken, atom), (rows, row), (inverses, inverse), (steps, step), (residuals, f(energy))):
            found.append(one)
    return finish(taken, lower, steps, scale, residuals + [f(energy)] * (s - len(taken)), s)


def finish(taken, lower, steps, scale, residuals, s):
    """Back substitution, and what stands in places without an atom."""
    steps, coefficients = list(steps), []
    for r in reversed(range(len(taken))):
        number = np.float64(steps[r])
        for c in range(r + 1, len(taken)):
            number = number - np.float64(lower[c, r]) * np.float64(steps[c])
        steps[r] = f(number)
        coefficients.insert(0, f(min(max(number / np.float64(scale), -F32_MAX), F32_MAX)))
    rest = s - len(taken)
    return taken + [0] * rest, coefficients + [f(0)] * rest, len(taken), residuals


def choose_greatest(p, left, noise):
    usable = np.where(left > DEPENDENT, np.abs(p), f(0))
    atom = int(np.argmax(usable)) if len(p) else 0
    return atom if len(p) and usable[atom] > noise else None


def choose_best(p, left, noise):
    gains = np.where(left > DEPENDENT, p * p / np.maximum(left, DEPENDENT), f(0))
    atom = int(np.argmax(gains)) if len(p) else 0
    return atom if len(p) and gains[atom] > 0 and abs(p[atom]) > noise else None


def collect(found, s):
    """Arrays of what was found of each vector."""
    indices, coefficients, counts, residuals = zip(*found, strict=True) if found else ((),) * 4
    n = len(found)
    return (
        np.array(indices, np.uint16).reshape(n, s), np.array(coefficients, np.float32).reshape(n, s),
        np.array(counts, np.int64), np.array(residuals, np.float32).reshape(n, s),
    )  # fmt: skip


def omp(projections, gram, energies, bounds, s):
    with np.errstate(all="ignore"):
        rows = zip(projections, energies, bounds, strict=True)
        return collect([pursue(p, gram, e, b, s, choose_greatest) for p, e, b in rows], s)


def ormp(projections, gram, energies, bounds, s):
    with np.errstate(all="ignore"):
        rows = zip(projections, energies, bounds, strict=True)
        return collect([pursue(p, gram, e, b, s, choose_best) for p, e, b in rows], s)


def top_dots(projections, s):
    """(indices, coefficients, counts)."""
    found = []
    for p in projections:
        order = [n for n in np.argsort(-np.abs(p), kind="stable")[:s] if p[n] != 0]
        rest = s - len(order)
        found.append((order + [0] * rest, [*p[order], *[f(0)] * rest], len(order), [0] * s))
    return collect(found, s)[:3]


def mp_integers(vectors, atoms, fraction, s, bounds=None):
    """(indices, coefficients, counts, squares of residuals, the last vector's projections), with Python's integers; the
    residual is made.
    """
    found, projections, left = [], [], []
    bounds = [-1] * len(vectors) if bounds is None else bounds
    long = atoms.astype(object)
    squares = (long * long).sum(axis=1)
    for x, bound in zip(vectors.astype(object), bounds, strict=True):
        residual, code = x * 2**fraction, {}
        projections = long @ residual
        for _ in range(2 * s):
            atom = int(np.argmax(np.abs(projections)))
            coefficient = round_product(int(projections[atom]), int(squares[atom]))
            if len(code) == s or coefficient == 0 or (residual * residual).sum() <= bound:
                break
            code[atom] = code.get(atom, 0) + coefficient
            residual = residual - coefficient * long[atom]
            projections = long @ residual
        rest = s - len(code)
        left.append((residual * residual).sum())
        found.append(([*code, *[0] * rest], [*code.values(), *[0] * rest], len(code), [0] * s))
    n = len(found)
    indices, coefficients = (np.array([c[j] for c in found]).reshape(n, s) for j in (0, 1))
    counts = np.array([c[2] for c in found], np.int64)
    own = indices.astype(np.uint16), coefficients.astype(np.int32), counts
    return *own, np.array(left, np.int64), np.array(projections, np.int64)


def round_product(projection, square):
    """projection / square, with the reciprocal that the kernel has."""
    reciprocal = (2**40 + square // 2) // square if square >= 512 else 0
    return (projection * reciprocal + 2**39) >> 40


def fix_rows(rows, mean, bits):
    """(int16 vectors, exponents) of float32 rows less a mean, with fractions: nothing is lost before the end."""
    vectors, exponents = [], []
    for row in rows:
        exact = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(row, mean, strict=True)]
        peak = max(exponent_of(a) for a in (*row, *mean))
        unit = Fraction(2) ** (peak - 180)
        whole = [
            int(Fraction(float(a)) / unit // 1) - int(Fraction(float(b)) / unit // 1)
            for a, b in zip(row, mean, strict=True)
        ]
        assert all(abs(w * unit - e) <= 2 * unit for w, e in zip(whole, exact, strict=True))
        shift = max(map(abs, whole), default=0).bit_length() - bits
        half = Fraction(1, 2) if shift > 0 else 0
        vectors.append([min(int((w * Fraction(2) ** -shift + half) // 1), 2**bits - 1) for w in whole])
        exponents.append(peak - 180 + shift)
    return np.array(vectors, np.int16).reshape(rows.shape), np.array(exponents, np.int32)


def exponent_of(number):
    """The exponent field of a float32, 1 of a subnormal."""
    return max(int(np.float32(number).view(np.uint32)) >> 23 & 255, 1)


def quantize_integers(vectors, atoms, fraction, indices, coefficients, counts, exponents, bits):
    """(codes, scales): Python's integers and fractions."""
    codes, scales = np.zeros(indices.shape, np.int8), np.zeros(len(vectors), np.uint16)
    for i, x in enumerate(vectors.astype(object)):
        used = int(counts[i])
        chosen = atoms[indices[i, :used]].astype(object)
        best, found, scale = 0, [0] * used, Fraction(0)
        peak = max((abs(int(c)) for c in coefficients[i, :used]), default=0)
        for n in range(8 if peak else 0):
            code = descend(x, chosen, coefficients[i, :used].tolist(), peak, n, bits, fraction)
            along = sum(c * int(a @ x) for c, a in zip(code, chosen, strict=True)) << fraction
            total = sum((c * a for c, a in zip(code, chosen, strict=True)), 0 * x)
            square = int(total @ total)
            gain = along // square * along + (((along % square << 15) // square * along) >> 15) if along > 0 else 0
            if gain > best:
                best, found, scale = gain, code, Fraction(along, square << fraction)
        codes[i, :used] = found
        scales[i] = round_bfloat16(scale * Fraction(2) ** int(exponents[i]))
    return codes, scales


def descend(x, chosen, coefficients, peak, n, bits, fraction):
    """Codes in steps of which the greatest coefficient has fewer, the greater n is."""
    most = 2 ** (bits - 1) - 1
    step = max((peak << 12) // (16 * most + 8 - n * most), 1)
    code = [max(-most, min(most, (2 * (c << 8) + step) // (2 * step))) for c in coefficients]
    for _ in range(3):
        for j, atom in enumerate(chosen):
            residual = (x << (fraction + 8)) - step * sum((c * a for c, a in zip(code, chosen, strict=True)), 0 * x)
            width = step * int(atom @ atom)
            code[j] = max(-most, min(most, code[j] + (2 * int(atom @ residual) + width) // (2 * width)))
    return code


def round_bfloat16(number):
    """Bits of the nearest bfloat16, halves up, at most the greatest finite one."""
    if number <= 0:
        return 0
    exponent = -300
    while number >= Fraction(2) ** (exponent + 8):
        exponent += 1
    whole = int(number / Fraction(2) ** exponent + Fraction(1, 2))  # 128 to 256
    if exponent + 134 <= 0:
        return int(whole * Fraction(2) ** (exponent + 133) + Fraction(1, 2))
    return min(((exponent + 134) << 7) + whole - 128, 0x7F7F)


def exact_omp(atoms, x, s):
    """(indices, error) of one vector: float64, the refit by lstsq."""
    taken, residual = [], x
    for _ in range(s):
        dots = np.abs(atoms @ residual)
        dots[taken] = 0
        taken.append(int(np.argmax(dots)))
        residual = x - atoms[taken].T @ np.linalg.lstsq(atoms[taken].T, x, rcond=None)[0]
    return taken, float(np.linalg.norm(residual))


def exact_ormp(atoms, x, s):
    """The same, each atom tried: that whose refit leaves the least."""
    taken, residual = [], x
    for _ in range(s):
        basis = np.linalg.qr(atoms[taken].T)[0]
        rest = atoms - (atoms @ basis) @ basis.T
        gains = (rest @ residual) ** 2 / np.maximum((rest * rest).sum(axis=1), 1e-12)
        gains[taken] = 0
        taken.append(int(np.argmax(gains)))
        basis = np.linalg.qr(atoms[taken].T)[0]
        residual = x - basis @ (basis.T @ x)
    return taken, float(np.linalg.norm(residual))
