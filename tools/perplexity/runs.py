"""The runs of one text: over the raw cache, and over each coded one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tools.capture.head import Head
from tools.perplexity.cache import CodedCache
from tools.perplexity.coding import Coding
from tools.perplexity.measured import Measured
from tools.perplexity.score import score


def measure_text(
    model: Any, ids: Sequence[int], codings: Sequence[Coding], options: argparse.Namespace
) -> Iterator[Measured]:
    """What each coding costs on the last `options.scored` of `ids`, each predicted from all before it: one by one, as
    they are measured. Raises CaptureError.
    """
    tokens, head = torch.tensor(ids, dtype=torch.int64), Head(model)
    cache = CodedCache(head, options.dtype, options.residual, options.sinks)
    asked = slice(len(tokens) - options.scored - 1, -1)
    reference = cache.run(tokens, None)[asked].clone()
    for coding in codings:
        coded = cache.run(tokens, coding)[asked]
        perplexity, found = score(head, reference, coded, tokens[-options.scored :], options.block)
        yield Measured(len(tokens), perplexity, found, dict(cache.bytes), dict(cache.windows))
