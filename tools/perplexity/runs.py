"""The runs of one text: over the raw cache, and over each coded one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from tools.capture.head import Head
from tools.perplexity.cache import CodedCache
from tools.perplexity.coding import Coding
from tools.perplexity.report import Measured
from tools.perplexity.score import score


def measure_text(model: Any, ids: Sequence[int], codings: Sequence[Coding], options: argparse.Namespace) -> Measured:
    """Scores on the last `options.scored` of `ids`, each predicted from all before it. Raises CaptureError."""
    tokens, head = torch.tensor(ids, dtype=torch.int64), Head(model)
    cache = CodedCache(head, options.dtype, options.residual, options.sinks)
    asked = slice(len(tokens) - options.scored - 1, -1)
    reference, others, sizes = cache.run(tokens, None)[asked], [], []
    for coding in codings:
        others.append(cache.run(tokens, coding)[asked])
        sizes.append(dict(cache.bytes))
    perplexity, scores = score(head, reference, others, tokens[-options.scored :], options.block)
    return Measured(len(tokens), perplexity, scores, sizes, cache.windows)
