"""Second moments that trainings of codes measure errors with: (kv_heads, dim, dim), float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def query_moment(q: Tensor, kv_heads: int) -> Tensor:
    """Mean of q qT over all positions of q (q_heads, tokens, dim) and the heads of a kv head."""
    rows = q.detach().float().unflatten(0, (kv_heads, -1)).flatten(1, 2)
    return (rows.transpose(1, 2) @ rows / rows.shape[1]).cpu().contiguous()


def gradient_moment(gradients: Tensor, rows: Tensor, losses: int) -> Tensor:
    """Sum of n^2 g gT over tokens, divided by how many losses the gradients g (kv_heads, tokens, dim) are of.

    n: the norm of each of `rows` (tokens, kv_heads, dim): a codec codes x / n, and an error of that counts n times.
    """
    norms = rows.to(gradients.device, torch.float32).norm(dim=2).T[..., None]
    scaled = gradients.float() * norms
    return (scaled.transpose(1, 2) @ scaled / losses).cpu().contiguous()


def output_moment(attention: Any, kv_heads: int, q_heads: int, dim: int) -> Tensor | None:
    """Sum of WT W over the query heads of a kv head, W a head's part of the output projection, of which an error of V
    goes through; None where `attention` has no o_proj of the usual form.
    """
    weights = getattr(getattr(attention, "o_proj", None), "weight", None)
    if not isinstance(weights, torch.Tensor) or weights.ndim != 2 or weights.shape[1] != q_heads * dim:
        return None
    parts = weights.detach().float().unflatten(1, (q_heads, dim)).transpose(0, 1)  # (q_heads, width, dim)
    return (parts.transpose(1, 2) @ parts).unflatten(0, (kv_heads, -1)).sum(1).cpu().contiguous()
