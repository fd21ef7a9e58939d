"""How far next-token distributions are from those of a reference."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tools.capture.head import Head
from tools.perplexity.figures import Score, mean_of_blocks


def score(head: Head, reference: Tensor, other: Tensor, targets: Tensor, block: int) -> tuple[float, Score]:
    """The reference's perplexity, and the score of `other`: both hidden states (positions, width), of which position i
    predicts targets[i]. block: see mean_of_blocks.
    """
    losses: list[Tensor] = []
    increases: list[Tensor] = []
    divergences: list[Tensor] = []
    agreements: list[Tensor] = []
    with torch.no_grad():
        for chunk in head.chunks(len(targets)):
            wanted = targets[chunk, None].to(reference.device)
            own, coded = (head.logits(hidden[chunk]).log_softmax(-1) for hidden in (reference, other))
            loss = -own.gather(1, wanted)[:, 0].double()
            losses.append(loss)
            increases.append(-coded.gather(1, wanted)[:, 0].double() - loss)
            divergences.append((own.exp() * (own - coded)).sum(-1).double())
            agreements.append((own.argmax(-1) == coded.argmax(-1)).float())
    kl, loss = (mean_of_blocks(torch.cat(parts).cpu().numpy(), block) for parts in (divergences, increases))
    return math.exp(float(torch.cat(losses).mean())), Score(*kl, *loss, float(torch.cat(agreements).mean()))
