"""Figures of how far next-token distributions are from those of a reference, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Score(NamedTuple):
    """Means over the scored tokens of a text, or over texts. kl: nats, of the reference from the coded distribution.
    loss: nats by which the text is less likely. kl_error, loss_error: standard errors, see mean_of_blocks; loss's is
    that of the paired differences. agreement: share of tokens whose most likely word is the same.
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


def mean_of_blocks(numbers: NDArray[np.float64], block: int) -> tuple[float, float]:
    """The mean of numbers (n,) in the order of a text, and its standard error, from runs of about `block` of them taken
    as independent: neighbours are not. With fewer than two numbers the error is 0.
    """
    count, mean = len(numbers), float(numbers.mean())
    parts = np.array_split(numbers - mean, min(count, max(2, count // block)))
    sums = np.array([part.sum() for part in parts])
    return mean, float(np.sqrt((sums * sums).sum() * len(sums) / max(len(sums) - 1, 1)) / count)


def mean_score(scores: Sequence[Score]) -> Score:
    """Of several texts, each of the same weight."""
    count = len(scores)
    kl, kl_errors, loss, loss_errors, agreement = zip(*scores, strict=True)
    return Score(
        sum(kl) / count, math.hypot(*kl_errors) / count, sum(loss) / count, math.hypot(*loss_errors) / count,
        sum(agreement) / count,
    )  # fmt: skip
