"""Take K, V and Q out of a model while it runs.

Q and K are caught on their way through `apply_rotary_pos_emb`, a function that every model of transformers with
rotary embeddings has in its own module under this name; V where it leaves `v_proj`. The cache would not do: that of
a sliding-window layer holds its window only, and none holds K before its rotation.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tools.capture.failure import CaptureError
from tools.capture.moments import output_moment, query_moment
from tools.capture.rope import Rope, find_rope

_ROTATION = "apply_rotary_pos_emb"


@dataclass
class Layer:
    """What is known of one attention layer. Rows are (tokens, kv_heads, dim), queries (q_heads, positions, dim),
    second moments of queries (kv_heads, dim, dim), float32, over all positions and the query heads of a kv head.
    turn: the model's rotation of keys (kv_heads, tokens, dim) at positions 0, 1, ...
    """

    scale: float
    window: int | None
    softcap: float | None
    rows: dict[str, Tensor] = field(default_factory=dict)
    rope: Rope | None = None
    turn: Callable[[Tensor], Tensor] | None = None
    q_heads: int = 0


def find_layers(model: Any) -> dict[int, Any]:
    """The attention modules of the text model by layer number. Raises CaptureError if there are none to record."""
    found = {
        int(module.layer_idx): module
        for name, module in model.named_modules()
        if name.endswith("self_attn") and hasattr(module, "layer_idx") and hasattr(module, "v_proj")
    }
    if not found:
        kind = model.config.model_type
        raise CaptureError(f"a model of type {kind}: no layer has a self_attn with a v_proj, that can't be recorded")
    for module in found.values():
        if not hasattr(_module_of(module), _ROTATION) or hasattr(module, "v_norm"):
            what = f"want {_ROTATION} on Q and K, and V as v_proj leaves it"
            raise CaptureError(f"{type(module).__name__} can't be recorded: {what}")
    return dict(sorted(found.items()))


def _module_of(attention: Any) -> ModuleType:
    return sys.modules[type(attention).__module__]


def read_window(attention: Any, config: Any, number: int) -> int | None:
    """Tokens that the layer attends to, its own included; None for all."""
    if hasattr(attention, "sliding_window"):
        window = attention.sliding_window
    else:
        kinds = getattr(config, "layer_types", None)
        slides = kinds[number] == "sliding_attention" if kinds else getattr(config, "use_sliding_window", True)
        window = getattr(config, "sliding_window", None) if slides else None
    return None if window is None else int(window)


class Recorder:
    """Records one run of a model; `layers` is complete afterwards.

    positions: of the queries to keep. dtype: of the rows and queries kept. pre: keep K before the rotation too, and
    the second moments of queries before it.
    """

    def __init__(self, model: Any, positions: Tensor, dtype: torch.dtype, *, pre: bool) -> None:
        self._attentions = find_layers(model)
        self._positions, self._dtype, self._pre = positions, dtype, pre
        self._current: int | None = None
        config = model.config.get_text_config()
        self.layers = {
            number: Layer(float(a.scaling), read_window(a, config, number), getattr(a, "attn_logit_softcapping", None))
            for number, a in self._attentions.items()
        }

    def run(self, forward: Callable[[], Any]) -> Any:
        """What `forward()` returns. Raises CaptureError if a layer was not seen, or its numbers don't fit `dtype`."""
        with contextlib.ExitStack() as stack, torch.no_grad():
            for number, attention in self._attentions.items():
                hooks = (
                    attention.register_forward_pre_hook(self._enter(number)),
                    attention.v_proj.register_forward_hook(self._keep_values(number)),
                )
                for hook in hooks:
                    stack.callback(hook.remove)
            for module in {_module_of(attention) for attention in self._attentions.values()}:
                stack.enter_context(_replaced(module, _ROTATION, self._recording(getattr(module, _ROTATION))))
            result = forward()
        for number, layer in self.layers.items():
            if not {"k", "v"} <= layer.rows.keys():
                raise CaptureError(f"layer {number} made no K and V of its own: this model can't be recorded")
            _, kv_heads, dim = layer.rows["v"].shape
            moment = output_moment(self._attentions[number], kv_heads, layer.q_heads, dim)
            if moment is not None:
                layer.rows["o_cov"] = moment
        return result

    def _enter(self, number: int) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._current = number

        return enter

    def _keep_values(self, number: int) -> Callable[..., None]:
        def keep(_projection: Any, _inputs: Any, out: Tensor) -> None:
            dim = int(self._attentions[number].head_dim)
            self._keep(number, "v", out[0].unflatten(-1, (-1, dim)))

        return keep

    def _recording(self, rotation: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(rotation)

        def rotate(*args: Any, **kwargs: Any) -> Any:
            rotated = rotation(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            if self._current is None or not {"q", "k", "cos", "sin"} <= given.keys():
                raise CaptureError(f"{rotation.__module__}.{_ROTATION} is of a kind that can't be recorded")
            heads_first = given.get("unsqueeze_dim", 1) == 1
            q_pre, k_pre, q, k = (
                x[0] if heads_first else x[0].transpose(0, 1) for x in (given["q"], given["k"], *rotated)
            )
            self._keep_rotated(self._current, (q_pre, k_pre), (q, k))
            layer = self.layers[self._current]
            layer.rope = find_rope(k_pre.float(), k.float(), given["cos"][0].float(), given["sin"][0].float())
            if self._pre:
                layer.turn = _turn_keys(rotation, given, heads_first=heads_first)
            return rotated

        return rotate

    def _keep_rotated(self, number: int, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> None:
        """Q and K as (heads, tokens, dim)."""
        layer, (q_pre, k_pre), (q, k) = self.layers[number], before, after
        layer.q_heads = q.shape[0]
        self._keep(number, "k", k.transpose(0, 1))
        if len(self._positions):
            self._keep(number, "q", q[:, self._positions])
        layer.rows["q_cov"] = query_moment(q, k.shape[0])
        if self._pre:
            self._keep(number, "k_pre", k_pre.transpose(0, 1))
            layer.rows["q_cov_pre"] = query_moment(q_pre, k.shape[0])

    def _keep(self, number: int, name: str, numbers: Tensor) -> None:
        kept = numbers.detach().to(self._dtype).cpu().contiguous()
        if name in self.layers[number].rows:
            raise CaptureError(f"layer {number} ran twice: this model can't be recorded")
        if not bool(torch.isfinite(kept).all()):
            raise CaptureError(f"{name}.{number} has numbers that are not finite in {self._dtype}: another --dtype?")
        self.layers[number].rows[name] = kept


def _turn_keys(rotation: Callable[..., Any], given: dict[str, Any], *, heads_first: bool) -> Callable[[Tensor], Tensor]:
    """A call of a model's rotation, with other keys."""
    rest = {name: value for name, value in given.items() if name not in ("q", "k")}

    def turn(k: Tensor) -> Tensor:
        rows = (k if heads_first else k.transpose(0, 1))[None]
        turned: Tensor = rotation(q=rows, k=rows, **rest)[1][0]
        return turned if heads_first else turned.transpose(0, 1)

    return turn


@contextlib.contextmanager
def _replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)
