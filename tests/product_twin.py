"""Naive product codes: one vector, one shape, one group, one centroid after the other."""

import numpy as np

F = np.float32


def chain(products):
    """Rounded sum in order."""
    total = F(0)
    for product in products:
        total = F(total + product)
    return total


def code_vector(y, books, ends, shapes, tries):
    """(codes, shape) of a vector in the basis: of the shapes that are tried the one that misses least, then the first
    of the centroids that miss least.
    """
    starts = [0, *ends[:-1]]
    square = [[chain(F(b * b) for b in books[s:e, k]) for k in range(256)] for s, e in zip(starts, ends, strict=True)]
    dot = [
        [chain(F(v * b) for v, b in zip(y[s:e], books[s:e, k], strict=True)) for k in range(256)]
        for s, e in zip(starts, ends, strict=True)
    ]
    best = None
    for j in tries:
        factor = F(F(2) / shapes[j])
        missed = [[F(s - F(factor * d)) for s, d in zip(*rows, strict=True)] for rows in zip(square, dot, strict=True)]
        total = F(F(shapes[j] * shapes[j]) * chain(min(row) for row in missed))
        if best is None or total < best[0]:
            best = total, [row.index(min(row)) for row in missed], j
    return best[1], best[2]


def rebuild_vector(codes, basis, books, ends, scale, gain, mean):
    """float32 (d,)."""
    total, begin = np.zeros(basis.shape[1], np.int64), 0
    for k, end in zip(codes, ends, strict=True):
        for i in range(begin, end):
            total += int(books[i, k]) * basis[i].astype(np.int64)
        begin = end
    return np.array([F(F(F(t) * scale) + F(gain * m)) for t, m in zip(total, mean, strict=True)], F)


def rebuild_predicted(own, told, mean):
    """float32 (d,) of V that is predicted from K. own, told: (codes, basis, books, ends, scale) of V and of K, with the
    basis of the prediction; mean: times the gain.
    """
    out = rebuild_vector(*own, F(1), mean)
    return np.array([F(a + b) for a, b in zip(out, rebuild_vector(*told, F(0), mean * F(0)), strict=True)], F)
