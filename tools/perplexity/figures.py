"""Figures of how far next-token distributions are from those of a reference, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Score(NamedTuple):
    """Means over the scored tokens of a text, or over texts. kl: nats, of the reference from the coded distribution.
    loss: nats by which the text is less likely. kl_error, loss_error: standard errors, tokens taken as independent;
    loss's is that of the paired differences. agreement: share of tokens whose most likely word is the same.
    """

    kl: float
    kl_error: float
    loss: float
    loss_error: float
    agreement: float

    @property
    def change(self) -> float:
        """Of the perplexity, in percent."""
        return 100 * math.expm1(self.loss)

    @property
    def change_error(self) -> float:
        """Standard error of `change`."""
        return 100 * math.exp(self.loss) * self.loss_error


def mean_score(scores: Sequence[Score]) -> Score:
    """Of several texts, each of the same weight."""
    count = len(scores)
    kl, kl_errors, loss, loss_errors, agreement = zip(*scores, strict=True)
    return Score(
        sum(kl) / count, math.hypot(*kl_errors) / count, sum(loss) / count, math.hypot(*loss_errors) / count,
        sum(agreement) / count,
    )  # fmt: skip
