"""Attention in float64, to measure integer attention with."""

from __future__ import annotations

import math

import numpy as np


def attend(q, k, v, scale=None):
    """(outputs, log of the sum of exponentials) of q (heads, dim) on k, v (tokens, KV heads, dim)."""
    scale = k.shape[2] ** -0.5 if scale is None else scale
    k, v, q = (np.asarray(a, np.float64) for a in (k, v, q))
    outputs, sums = np.zeros((len(q), v.shape[2])), np.full(len(q), -math.inf)
    for h in range(len(q) if len(k) else 0):
        kv_head = h * k.shape[1] // len(q)
        logits = k[:, kv_head] @ q[h] * scale
        weights = np.exp(logits - logits.max())
        outputs[h] = weights @ v[:, kv_head] / weights.sum()
        sums[h] = math.log(weights.sum()) + logits.max()
    return outputs, sums


def relative_error(found, wanted):
    """Frobenius norm of the error over that of what is wanted."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def worst_error(found, wanted):
    """The largest relative error of a query."""
    return max(map(relative_error, found, wanted))
