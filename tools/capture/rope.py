"""Which rotation K went through, found in what went in and came out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_TOLERANCE = 1e-3


class Rope(NamedTuple):
    """A rotary embedding. layout: "halves" (channel i is paired with i + dim/2) or "interleaved" (2i with 2i + 1).
    dim: channels that are rotated, the first ones. freq: float32 (dim / 2,), radians a position.
    Pair i turns by position / scale / base^(2i / dim) radians; both are 0 if the frequencies are not of this form.
    """

    layout: str
    dim: int
    freq: Tensor
    base: float
    scale: float


def find_rope(before: Tensor, after: Tensor, cos: Tensor, sin: Tensor) -> Rope | None:
    """The rotation from `before` to `after` (heads, tokens, channels) at positions 0, 1, ...; None if it is none.

    cos, sin: (tokens, dim), as the model hands them to its rotation.
    """
    dim = cos.shape[-1]
    if cos.shape[0] < 2 or cos.shape != sin.shape or dim % 2 or dim > before.shape[-1] or dim < 4:
        return None
    angle = torch.atan2(sin[1], cos[1])
    for layout, freq in (("halves", angle[: dim // 2]), ("interleaved", angle[::2])):
        turned = rotate(before[..., :dim], freq, layout)
        error = (turned - after[..., :dim]).norm() / after[..., :dim].norm().clamp_min(1e-30)
        if error < 10 * _TOLERANCE:
            return Rope(layout, dim, freq.cpu().contiguous(), *_fit_powers(freq.double().cpu()))
    return None


def rotate(rows: Tensor, freq: Tensor, layout: str) -> Tensor:
    """Rows (heads, tokens, dim) at positions 0, 1, ... turned as a Rope says."""
    angle = torch.arange(rows.shape[1], device=rows.device)[:, None] * freq
    if layout == "halves":
        a, b = rows.chunk(2, -1)
    else:
        a, b = rows[..., ::2], rows[..., 1::2]
    turned = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())
    return torch.cat(turned, -1) if layout == "halves" else torch.stack(turned, -1).flatten(-2)


def _fit_powers(freq: Tensor) -> tuple[float, float]:
    """(base, scale) of freq[i] = base^(-i / len(freq)) / scale, or (0, 0)."""
    if bool((freq <= 0).any()):
        return 0.0, 0.0
    logs = freq.log()
    slope = (logs[-1] - logs[0]) / (len(freq) - 1)
    if bool((logs - logs[0] - slope * torch.arange(len(freq))).abs().max() > _TOLERANCE):
        return 0.0, 0.0
    return _round(float((-slope * len(freq)).exp())), _round(float((-logs[0]).exp()))


def _round(number: float) -> float:
    """To the nearest whole number, where that is meant: 999999.7 is 1000000."""
    return float(round(number)) if abs(number - round(number)) <= _TOLERANCE * number else number
