"""How far next-token distributions are from those of a reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tools.capture.head import Head
from tools.perplexity.figures import Score, mean_of_blocks


def score(
    head: Head, reference: Tensor, others: Sequence[Tensor], targets: Tensor, block: int
) -> tuple[float, list[Score]]:
    """The reference's perplexity, and a score of each of `others`: all hidden states (positions, width), of which
    position i predicts targets[i]. block: see mean_of_blocks.
    """
    losses: list[list[Tensor]] = [[] for _ in (reference, *others)]
    divergences: list[list[Tensor]] = [[] for _ in others]
    agreements: list[list[Tensor]] = [[] for _ in others]
    with torch.no_grad():
        for chunk in head.chunks(len(targets)):
            wanted = targets[chunk, None].to(reference.device)
            own = head.logits(reference[chunk]).log_softmax(-1)
            losses[0].append(-own.gather(1, wanted)[:, 0])
            for n, hidden in enumerate(others):
                coded = head.logits(hidden[chunk]).log_softmax(-1)
                losses[n + 1].append(-coded.gather(1, wanted)[:, 0])
                divergences[n].append((own.exp() * (own - coded)).sum(-1))
                agreements[n].append((own.argmax(-1) == coded.argmax(-1)).float())
    plain = torch.cat(losses[0]).double()
    scores = []
    for loss, kl, agreement in zip(losses[1:], divergences, agreements, strict=True):
        figures = torch.cat(kl).double(), torch.cat(loss).double() - plain
        means = [number for own in figures for number in mean_of_blocks(own.cpu().numpy(), block)]
        scores.append(Score(*means, float(torch.cat(agreement).mean())))
    return math.exp(float(plain.mean())), scores
