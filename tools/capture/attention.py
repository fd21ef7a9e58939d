"""A model's attention, taken over: where far tokens are seen by other rows than near ones, and how.

A cache that is coded holds its newest tokens as they are: a query sees a token's own row while the token is near, and
what its code decodes to from then on. Every model of transformers asks ALL_ATTENTION_FUNCTIONS for its attention by a
name that stands in its configuration; under a name of our own it is ours, and masks are ours to make.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tools.capture.failure import CaptureError
from tools.capture.recorder import find_layers, read_window

_NAME = "kvcodec"
_ROWS = 256  # queries at a time


class Call(NamedTuple):
    """One layer's attention over a whole text. q: (q_heads, tokens, dim). k, v: (kv_heads, tokens, dim), K rotated.
    window: tokens that a query sees, its own included; None for all. scale, softcap: of logits.
    """

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    window: int | None
    scale: float
    softcap: float | None


@contextlib.contextmanager
def replaced_attention(model: Any, attend: Callable[[Call], Tensor]) -> Iterator[None]:
    """Within, `attend` is the attention of all layers of `model`; it returns (q_heads, tokens, dim).

    Raises CaptureError for a model that can't be recorded, and where one asks for what `Call` has no word for.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    text = model.config.get_text_config()
    windows = {n: read_window(attention, text, n) for n, attention in find_layers(model).items()}
    seen: set[int] = set()

    def function(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> tuple[Any, None]:
        number, unknown = int(module.layer_idx), [n for n in ("s_aux", "position_bias") if options.get(n) is not None]
        if unknown or mask is not None or len(q) > 1:
            raise CaptureError(f"{type(module).__name__} asks for attention of a kind that can't be taken over")
        seen.add(number)
        scale = float(options["scaling"]) if options.get("scaling") is not None else float(module.head_dim) ** -0.5
        out = attend(Call(number, q[0], k[0], v[0], windows[number], scale, options.get("softcap")))
        return out.transpose(0, 1)[None].contiguous(), None

    configs = {id(c): c for c in (text, *(attention.config for attention in find_layers(model).values()))}
    names = {key: config._attn_implementation for key, config in configs.items()}
    ALL_ATTENTION_FUNCTIONS[_NAME] = function
    try:
        for config in configs.values():
            config._attn_implementation = _NAME
        yield
        if seen and seen != windows.keys():
            missing = ", ".join(map(str, sorted(windows.keys() - seen)))
            raise CaptureError(f"attention of layers {missing} went another way: this model can't be recorded")
    finally:
        for key, config in configs.items():
            config._attn_implementation = names[key]
        del ALL_ATTENTION_FUNCTIONS[_NAME]


def attend(call: Call, delta_k: Tensor | None = None, delta_v: Tensor | None = None, far: int = 0) -> Tensor:
    """Causal attention (q_heads, tokens, dim) in which tokens at least `far` positions back are seen as K + delta_k
    and V + delta_v, nearer ones as K and V. Memory goes with the tokens, also where gradients are wanted.
    """
    parts = []
    for start in range(0, call.q.shape[1], _ROWS):
        arguments = call, delta_k, delta_v, far, start
        if torch.is_grad_enabled():
            from torch.utils.checkpoint import checkpoint

            parts.append(checkpoint(_attend_rows, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(_attend_rows(*arguments))
    return torch.cat(parts, 1)


def _attend_rows(call: Call, delta_k: Tensor | None, delta_v: Tensor | None, far: int, start: int) -> Tensor:
    """Of the queries from `start` on. With deltas of zeros the result is that without, bit for bit."""
    heads, q_heads = call.k.shape[0], call.q.shape[0]
    q = call.q[:, start : start + _ROWS]
    stop = start + q.shape[1]
    first = 0 if call.window is None else max(0, start - call.window + 1)
    back = torch.arange(start, stop, device=q.device)[:, None] - torch.arange(first, stop, device=q.device)
    hidden = back < 0 if call.window is None else (back < 0) | (back >= call.window)
    reach = max(0, stop - far - first)  # columns of which any is far for any query
    is_far = (back[:, :reach] >= far).to(q.dtype)
    queries = (q * call.scale).reshape(heads, -1, q.shape[2])
    logits = (queries @ call.k[:, first:stop].transpose(1, 2)).reshape(q_heads, stop - start, -1)
    if delta_k is not None and reach:
        more = (queries @ delta_k[:, first : first + reach].transpose(1, 2)).reshape(q_heads, stop - start, -1)
        logits = torch.cat([logits[..., :reach] + more * is_far, logits[..., reach:]], -1)
    if call.softcap is not None:
        logits = torch.tanh(logits / call.softcap) * call.softcap
    weights = logits.masked_fill(hidden, float("-inf")).softmax(-1, dtype=torch.float32).to(q.dtype)
    out = weights.reshape(heads, -1, stop - first) @ call.v[:, first:stop]
    if delta_v is not None and reach:
        far_weights = (weights[..., :reach] * is_far).reshape(heads, -1, reach)
        out = out + far_weights @ delta_v[:, first : first + reach]
    return out.reshape(q_heads, stop - start, -1)
