"""What a comparison found, by layer and in total."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvcodec.measure.attention import AttentionError, OutputError
from kvcodec.measure.error import RowError, finite_or_none


@dataclass(frozen=True)
class LayerError:
    """Errors of one layer. attention: None if the dump has no queries for it."""

    layer: int
    k: RowError
    v: RowError
    attention: AttentionError | None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an infinite number is None."""
        attention = None if self.attention is None else self.attention.as_dict()
        return {"layer": self.layer, "k": self.k.as_dict(), "v": self.v.as_dict(), "attention": attention}


@dataclass(frozen=True)
class AttentionTotal:
    """Attention errors of all layers that have queries.

    logit_max: of all logits; logit_rms: over all logits. k_only, v_only, both: root of the mean square over the
    layers of the relative error of their attention outputs.
    """

    layers: int
    logits: int
    logit_max: float
    logit_rms: float
    k_only: float
    v_only: float
    both: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an infinite number is None."""
        return {name: finite_or_none(getattr(self, name)) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class Comparison:
    """Errors of `other` against `dump`.

    sequence: of `other`, if it is a log. k, v: errors of all layers together; their worst channel and token have no
    meaning there and are left out of as_dict().
    """

    dump: str
    other: str
    sequence: str | None
    tokens: int
    layers: tuple[LayerError, ...]
    k: RowError
    v: RowError

    @property
    def attention(self) -> AttentionTotal | None:
        """None if no layer has queries."""
        return total_attention([layer.attention for layer in self.layers if layer.attention is not None])

    @property
    def largest_relative(self) -> float:
        """The largest relative error that K or V of any layer has."""
        return max(rows.relative for layer in self.layers for rows in (layer.k, layer.v))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an infinite number is None."""
        total = {
            name: {key: value for key, value in rows.as_dict().items() if key in ("relative", "snr_db", "max_abs")}
            for name, rows in (("k", self.k), ("v", self.v))
        }
        attention = self.attention
        return {
            "dump": self.dump,
            "other": self.other,
            "sequence": self.sequence,
            "tokens": self.tokens,
            "largest_relative": finite_or_none(self.largest_relative),
            "layers": [layer.as_dict() for layer in self.layers],
            "total": total | {"attention": None if attention is None else attention.as_dict()},
        }


def total_attention(found: list[AttentionError]) -> AttentionTotal | None:
    """Of layers that have queries; None if there are none."""
    if not found:
        return None
    logits = sum(a.logits for a in found)
    return AttentionTotal(
        len(found),
        logits,
        max(a.logit_max for a in found),
        math.sqrt(sum(a.logit_rms**2 * a.logits for a in found) / logits),
        _mean_square(found, lambda a: a.k_only),
        _mean_square(found, lambda a: a.v_only),
        _mean_square(found, lambda a: a.both),
    )


def _mean_square(found: list[AttentionError], kind: Callable[[AttentionError], OutputError]) -> float:
    return math.sqrt(sum(kind(a).relative ** 2 for a in found) / len(found))
