"""How a vector is coded by product codes: the part of a codec spec that is theirs."""

from __future__ import annotations

from dataclasses import dataclass

from kvcodec.shaped_spec import ShapedSpec

MAX_GROUPS = 128


@dataclass(frozen=True)
class ProductSpec(ShapedSpec):
    """size: groups, each of which has a byte. See ShapedSpec."""

    kind, example, most = "product codes", "B32", MAX_GROUPS
