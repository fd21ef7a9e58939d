"""A causal model in two steps: hidden states of a text, and the logits of some of them.

Logits of a whole text may need gigabytes: a vocabulary has up to 262,144 words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tools.capture.failure import CaptureError

POSITIONS = 128  # whose logits are in memory at a time


class Head:
    """The two steps of `model`. Raises CaptureError if it isn't made of a base model and a head."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._output: Any = None  # of the base model's last run
        if model.base_model is model:
            raise CaptureError(f"a model of type {model.config.model_type}: its head can't be told from the rest")

    def hidden(self, ids: Tensor) -> Tensor:
        """(tokens, width): what the head sees of a text of `ids` (tokens,)."""
        hook = self.model.base_model.register_forward_hook(self._keep)
        try:
            self.model(ids[None].to(self.model.device), use_cache=False, logits_to_keep=1)
        finally:
            hook.remove()
        states: Tensor = self._output.last_hidden_state[0]
        return states

    def _keep(self, _base: Any, _inputs: Any, output: Any) -> None:
        self._output = output

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 (positions, words) of hidden states (positions, width), as the model's own forward makes them."""
        base, output = self.model.base_model, dataclasses.replace(self._output, last_hidden_state=hidden[None])
        base.forward = lambda *_, **__: output
        try:
            logits: Tensor = self.model(torch.zeros(1, 1, dtype=torch.int64, device=hidden.device)).logits[0].float()
        finally:
            del base.forward
        return logits

    def chunks(self, count: int) -> Iterator[slice]:
        """Positions 0 to count - 1, some at a time."""
        return (slice(start, min(count, start + POSITIONS)) for start in range(0, count, POSITIONS))
