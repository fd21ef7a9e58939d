"""How a vector is coded by trellis codes: the part of a codec spec that is theirs."""

from __future__ import annotations

from dataclasses import dataclass

from kvcodec.shaped_spec import ShapedSpec

MAX_CODE_BYTES = 512


@dataclass(frozen=True)
class TrellisSpec(ShapedSpec):
    """size: bytes of a vector's bits. See ShapedSpec."""

    kind, example, most = "trellis codes", "B98", MAX_CODE_BYTES
