"""How much a model minds an error of K or V: gradients of its loss with respect to rows that are far back.

The loss is of labels that the model's own distribution is asked for, so that the moments are Fisher information: to
second order the Kullback-Leibler divergence that an error of a row causes. Only the attention of far tokens counts, as
near ones are seen uncoded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tools.capture.attention import Call, attend, replaced_attention
from tools.capture.failure import CaptureError
from tools.capture.head import Head
from tools.capture.moments import gradient_moment
from tools.capture.recorder import Layer

GRADIENTS = {"k": "k_grad", "v": "v_grad", "k_pre": "k_grad_pre"}


class FarGradients:
    """Gradients with respect to K and V of one text, as seen by tokens at least `far` positions later.

    head: of the model. seed: of the labels. Losses are those of the second half of the text.
    """

    def __init__(self, head: Head, far: int, seed: int) -> None:
        self._head, self._far, self._seed = head, far, seed
        self._nudges: dict[int, tuple[Tensor, Tensor]] = {}  # zeros that far attention adds to K and V
        self._losses = 0

    def run(self, ids: Tensor) -> Tensor:
        """Runs the model forth and back on `ids` (tokens,): hidden states (tokens, width)."""
        model = self._head.model
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            with torch.enable_grad(), replaced_attention(model, self._attend):
                hidden = self._head.hidden(ids)
                first = len(ids) // 2
                self._losses = len(ids) - first
                hidden[first:].backward(self._slopes(hidden[first:].detach()))
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)
        return hidden.detach()

    def _attend(self, call: Call) -> Tensor:
        nudges = torch.zeros_like(call.k, requires_grad=True), torch.zeros_like(call.v, requires_grad=True)
        self._nudges[call.layer] = nudges
        return attend(call, *nudges, self._far)

    def _slopes(self, hidden: Tensor) -> Tensor:
        """Gradient of the sum of all losses with respect to hidden states."""
        generator, parts = torch.Generator().manual_seed(self._seed), []
        for chunk in self._head.chunks(len(hidden)):
            some = hidden[chunk].clone().requires_grad_()
            logits = self._head.logits(some)
            labels = torch.multinomial(logits.detach().softmax(-1).cpu(), 1, generator=generator)[:, 0]
            loss = torch.nn.functional.cross_entropy(logits, labels.to(logits.device), reduction="sum")
            parts.append(torch.autograd.grad(loss, some)[0])
        return torch.cat(parts)

    def moments(self, number: int, layer: Layer, sinks: int) -> dict[str, Tensor]:
        """k_grad, v_grad, and k_grad_pre where the layer keeps K from before its rotation, of all tokens but the first
        `sinks`. Raises CaptureError.
        """
        k, v = (nudge.grad for nudge in self._nudges[number])
        assert k is not None
        assert v is not None
        slopes = {"k": k, "v": v}
        if "k_pre" in layer.rows:
            assert layer.turn is not None
            with torch.enable_grad():
                before = torch.zeros_like(k, requires_grad=True)
                (slopes["k_pre"],) = torch.autograd.grad(layer.turn(before), before, k)
        found = {}
        for name, own in slopes.items():
            moment = gradient_moment(own[:, sinks:], layer.rows[name][sinks:], self._losses)
            if not bool(torch.isfinite(moment).all()):
                raise CaptureError(f"gradients of {name}.{number} are not finite: another --run-dtype?")
            found[GRADIENTS[name]] = moment
        return found
