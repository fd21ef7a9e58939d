"""Whether a device's erase blocks take the records that a policy makes."""

from __future__ import annotations

from kvcodec.codecs.sizes import head_sections, token_group
from kvcodec.errors import SpecError
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import ALIGNMENT, HEADERS, CodecId, Kind, align
from kvcodec.log.plan import frame_end
from kvcodec.spec import CodecSpec
from kvcodec.store.model import Model, Stream
from kvcodec.store.policy import Policy


def check_groups(policy: Policy, model: Model, geometry: Geometry) -> None:
    """Raises SpecError where one head of a full group fits no erase block, so that its tokens could never leave memory.
    Raw and bounded groups take fewer tokens in small blocks.
    """
    for number, layer in enumerate(model.layers):
        for stream in layer.streams:
            spec = policy.at(number, stream.id).spec
            shrinks = spec.codec == CodecId.RAW or spec.bounded
            if not shrinks and _takes(spec, stream, geometry) > geometry.block_bytes:
                raise SpecError(
                    f"layer {number}, stream {stream.id.name.lower()}: {spec} codes {token_group(spec)} tokens of a "
                    f"head at once, and that fits no erase block of {geometry.block_bytes} bytes"
                )


def _takes(spec: CodecSpec, stream: Stream, geometry: Geometry) -> int:
    """Bytes of a block that has a group of one head and nothing else."""
    body = align(2, ALIGNMENT) + head_sections(spec, stream.id, token_group(spec), stream.dim).total
    return frame_end(geometry.unit_bytes, HEADERS[Kind.GROUP].itemsize + body, Kind.GROUP)
