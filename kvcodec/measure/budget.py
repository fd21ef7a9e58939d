"""What a cache must take, by arithmetic: the bytes that encoding it would give, without encoding it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcodec.codecs.rows import codes_rows
from kvcodec.codecs.sizes import head_sections, step_row_bytes, token_group
from kvcodec.errors import SpecError
from kvcodec.layout import CodecId, StreamId
from kvcodec.spec import CodecSpec

_RAW = CodecSpec(CodecId.RAW)
_INDEX_BYTES, _COEFFICIENT_BYTES = 2, 1  # a dictionary code's u16 and int8


class StreamShape(Protocol):
    """A kvcodec.Stream, or what looks like one."""

    @property
    def id(self) -> StreamId: ...
    @property
    def heads(self) -> int: ...
    @property
    def dim(self) -> int: ...


class LayerShape(Protocol):
    """A kvcodec.Layer, or what looks like one."""

    @property
    def streams(self) -> Sequence[StreamShape]: ...


class ModelShape(Protocol):
    """A kvcodec.Model, or what looks like one."""

    @property
    def layers(self) -> Sequence[LayerShape]: ...


@dataclass(frozen=True)
class Budget:
    """Bytes of rows, without frame and record headers.

    raw16_bytes: all in 16 bits. coded_bytes: codes and group metadata of `coded_numbers` numbers. raw_bytes: residual
    window, sinks and raw streams.
    """

    raw16_bytes: int = 0
    coded_bytes: int = 0
    coded_numbers: int = 0
    raw_bytes: int = 0

    @property
    def payload_bytes(self) -> int:
        """What Stats.payload_bytes of such a store would be."""
        return self.coded_bytes + self.raw_bytes

    @property
    def ratio(self) -> float:
        """How many times smaller than 16-bit the payload is."""
        return self.raw16_bytes / self.payload_bytes if self.payload_bytes else float("nan")

    @property
    def bytes_per_number(self) -> float:
        """Of coded groups: codes and metadata over numbers."""
        return self.coded_bytes / self.coded_numbers if self.coded_numbers else float("nan")

    def __add__(self, other: Budget) -> Budget:
        return Budget(
            self.raw16_bytes + other.raw16_bytes,
            self.coded_bytes + other.coded_bytes,
            self.coded_numbers + other.coded_numbers,
            self.raw_bytes + other.raw_bytes,
        )


def cache_bytes(
    model: ModelShape, tokens: int, *, k: str | CodecSpec, v: str | CodecSpec, residual: int, sinks: int
) -> Budget:
    """Bytes of `tokens` tokens of a model (a kvcodec.Model) once they are synced.

    k, v: codec specs; other streams are raw. The first `sinks` tokens are raw, the newest `residual` ones too, and
    what does not fill a whole token group. Raises SpecError.
    """
    if min(tokens, residual, sinks) < 0:
        raise SpecError(f"tokens {tokens}, residual {residual} and sinks {sinks} must be 0 or more")
    specs = {StreamId.K: CodecSpec.parse(k), StreamId.V: CodecSpec.parse(v)}
    total = Budget()
    for layer in model.layers:
        for stream in layer.streams:
            total += stream_bytes(stream, tokens, specs.get(stream.id, _RAW), residual, sinks)
    return total


def stream_bytes(stream: StreamShape, tokens: int, spec: CodecSpec, residual: int, sinks: int) -> Budget:
    """Bytes of one stream of one layer; the rules are those of the store's window."""
    heads, row_bytes = stream.heads, 2 * stream.heads * stream.dim
    leaving = max(0, tokens - residual)
    if sinks > leaving:
        return Budget(raw16_bytes=tokens * row_bytes, raw_bytes=tokens * row_bytes)
    group = token_group(spec)
    groups = (leaving - sinks) // group
    grouped = groups * group
    size = groups * heads * head_sections(spec, stream.id, group, stream.dim).total
    rest = tokens - sinks - grouped
    if residual == 0 and codes_rows(spec):  # each row is coded as it comes, and its codes wait for the group
        size += rest * heads * step_row_bytes(spec, stream.dim)
        grouped, rest = grouped + rest, 0
    raw = rest * row_bytes
    if sinks:
        raw += heads * head_sections(_RAW, stream.id, sinks, stream.dim).total
    if spec == _RAW:
        return Budget(raw16_bytes=tokens * row_bytes, raw_bytes=raw + size)
    return Budget(tokens * row_bytes, size, grouped * heads * stream.dim, raw)


def sparse_code_bytes(sparsity: int) -> int:
    """Bytes of the pairs of one vector coded over a dictionary: u16 index and int8 coefficient each, no scale."""
    return sparsity * (_INDEX_BYTES + _COEFFICIENT_BYTES)
