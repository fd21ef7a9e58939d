"""The records of a sequence as a store writes them, by their sizes alone: what a simulation of wear appends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvcodec.codecs.rows import codes_rows
from kvcodec.codecs.sizes import head_sections, step_row_bytes, token_group
from kvcodec.errors import SpecError
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import ALIGNMENT, FRAME_OVERHEAD, GROUP_HEADER, STEP_HEADER, CodecId, Kind, align
from kvcodec.log.frame import Record
from kvcodec.measure.simulation import Step
from kvcodec.measure.sized import RecordShape
from kvcodec.spec import CodecSpec
from kvcodec.store.model import Model, Stream
from kvcodec.store.policy import Policy, Rule, SequenceInfo, StreamPolicy
from kvcodec.store.records import RAW, OpenSpan, step_limit, step_records
from kvcodec.store.window import leaving

_NAME = "00000000"  # of a sequence, of the length that all have

_Span = tuple[Stream, int, int, CodecSpec]  # first token, tokens
_Logged = tuple[RecordShape, int, int]  # first token, and the one behind the last


@dataclass
class _Open:
    """The open rows of a stream, in all layers: see OpenRows."""

    stream: Stream
    policy: StreamPolicy
    first: int = 0
    logged: int = 0


class Course:
    """What sequences of a model write. Its layers are alike and have no windows; residual, sinks and codecs are those
    of `policies`, one a stream. journal: of rows that are to be durable, None if none is before a sync.
    """

    def __init__(
        self, model: Model, policies: tuple[StreamPolicy, ...], geometry: Geometry, journal: CodecSpec | None
    ) -> None:
        first = model.layers[0]
        if any(layer != first or layer.window for layer in model.layers):
            raise SpecError("wear is told of models whose layers are alike, without sliding windows")
        self.model, self.geometry, self.journal = model, geometry, journal
        self._streams, self._policies = first.streams, policies
        self._groups: dict[tuple[int, CodecSpec, int], RecordShape] = {}
        self._steps: dict[tuple[_Span, ...], list[_Logged]] = {}

    @cached_property
    def policy(self) -> Policy:
        """As a log keeps it."""
        rules = [
            Rule(stream.id, range(len(self.model.layers)), own)
            for stream, own in zip(self._streams, self._policies, strict=True)
        ]
        return Policy(tuple(sorted(rules, key=lambda rule: rule.stream)))

    @cached_property
    def begins(self) -> list[RecordShape]:
        """Records that a log begins with: MODEL, and the policy of sequences to come."""
        return [_shape_of(one) for one in (self.model.record(), self._info(0, "").record())]

    @cached_property
    def sequence(self) -> RecordShape:
        """The SEQUENCE record of one sequence; its name has eight characters."""
        return _shape_of(self._info(1, _NAME).record())

    @cached_property
    def drop(self) -> RecordShape:
        """The DROP record of one sequence."""
        return RecordShape(Kind.DROP, 0)

    def _info(self, number: int, name: str) -> SequenceInfo:
        return SequenceInfo(number, name, self.model.hash, self.policy)

    def steps(self, tokens: int, *, at_once: int = 1, sync_every: int = 0) -> Iterator[tuple[Step, bool]]:
        """Appends of a sequence of so many tokens, and whether each is durable. Behind the last one, and after every
        `sync_every` tokens, all open rows are logged by a sync.
        """
        open_ = [_Open(s, p) for s, p in zip(self._streams, self._policies, strict=True)]
        for start in range(0, tokens, at_once):
            end = min(start + at_once, tokens)
            groups = self._leave(open_, end)
            steps = self._log(open_, end) if self.journal is not None else []
            yield Step(groups, steps), self.journal is not None
            if end == tokens or (sync_every and end // sync_every > start // sync_every):
                yield Step((), self._log(open_, end)), True

    def final_bytes(self, tokens: int, **how: int) -> float:
        """About what a sequence takes of a device once it is synced: records that are alive, their frames, padding of
        appends that are durable, and their share of block headers.
        """
        ends, made = dict[int, int](), list[tuple[Step, bool]]()
        for step, durable in self.steps(tokens, **how):
            ends.update((stream, end) for _, stream, end in step.groups)
            made.append((step, durable))
        total, units = 0, self.geometry.units_per_block
        for step, durable in made:
            own = [shape.size for shape, _, _ in step.groups]
            own += (shape.size for shape, _, end in step.steps if any(end > ends.get(s, 0) for s in shape.weights))
            if own:
                total += FRAME_OVERHEAD + sum(align(size, ALIGNMENT) for size in own)
                total += self.geometry.unit_bytes // 2 if durable else 0
        return total * units / (units - 1)

    def _leave(self, open_: list[_Open], end: int) -> list[tuple[RecordShape, int, int]]:
        """Groups that leave the windows, in the order of the log."""
        found = []
        for own in open_:
            raw = self._raw_group(own.stream)
            spec = own.policy.spec
            tokens = raw if spec.codec == CodecId.RAW else token_group(spec)
            how = {"residual": own.policy.residual, "sinks": own.policy.sinks}
            for item in leaving(own.first, end, token_group=tokens, sink_group=raw, **how):
                shape = self._group(own.stream, RAW if item.sink else spec, item.tokens)
                own.first = item.first + item.tokens
                found.append((own.first, shape, int(own.stream.id)))
            own.logged = max(own.logged, own.first)
        found.sort(key=lambda one: one[0])
        ends = list(dict.fromkeys(end for end, _, _ in found))
        layers = range(len(self.model.layers))
        return [(s, id_, at) for at in ends for _ in layers for end, s, id_ in found if end == at]

    def _raw_group(self, stream: Stream) -> int:
        """See Outgoing.raw_group."""
        tokens = token_group(RAW)
        while tokens > 1 and 2 * stream.dim * tokens > self.geometry.block_bytes // 2:
            tokens //= 2
        return tokens

    def _group(self, stream: Stream, spec: CodecSpec, tokens: int) -> RecordShape:
        key = stream.id, spec, tokens
        if key not in self._groups:
            each = head_sections(spec, stream.id, tokens, stream.dim).total

            def of(heads: int) -> RecordShape:
                errors = align(2 * heads, ALIGNMENT)
                weights = {int(stream.id): heads * each + GROUP_HEADER.itemsize}
                return RecordShape(Kind.GROUP, errors + heads * each, errors, weights, heads, of)

            self._groups[key] = of(stream.heads)
        return self._groups[key]

    def _log(self, open_: list[_Open], end: int) -> list[tuple[RecordShape, int, int]]:
        """STEPs of rows that no record holds yet."""
        fresh = [own for own in open_ if own.logged < end]
        base = min((own.logged for own in fresh), default=0)
        spans = tuple((own.stream, own.logged - base, end - own.logged, self._spec(own)) for own in fresh)
        if spans not in self._steps:
            self._steps[spans] = self._make_steps(spans)
        for own in fresh:
            own.logged = end
        return [(shape, base + first, base + last) for shape, first, last in self._steps[spans]]

    def _spec(self, own: _Open) -> CodecSpec:
        """Of open rows in a STEP."""
        spec = own.policy.spec
        if own.policy.residual == 0 and codes_rows(spec) and own.first >= own.policy.sinks:
            return spec
        return RAW if self.journal is None or spec.bounded else self.journal

    def _make_steps(self, spans: tuple[_Span, ...]) -> list[_Logged]:
        layers = range(len(self.model.layers))
        rows = [np.zeros((count, s.heads, step_row_bytes(spec, s.dim)), np.uint8) for s, _, count, spec in spans]
        own = [
            OpenSpan(layer, stream, first, one, spec)
            for layer in layers
            for (stream, first, _, spec), one in zip(spans, rows, strict=True)
        ]
        made = step_records(1, own, limit=step_limit(self.geometry.block_bytes))
        return [_logged(one, [(stream, spec) for stream, _, _, spec in spans]) for one in made]


def _logged(record: Record, specs: list[tuple[Stream, CodecSpec]]) -> _Logged:
    """A STEP or ROWS record by its sizes."""
    layers, tokens, mask, first = (
        int(record.header[name]) for name in ("layers", "tokens", "streams", "first_token")
    )  # fmt: skip
    own = [(s, tokens * step_row_bytes(spec, s.dim)) for s, spec in specs if mask >> s.id & 1]

    def of(heads: int) -> RecordShape:
        weights = {int(s.id): layers * (heads * each + STEP_HEADER.itemsize) for s, each in own}
        body = layers * heads * sum(each for _, each in own)
        return RecordShape(Kind(record.kind), body, 0, weights, heads, of)

    return of(record.pieces), first, first + tokens


def _shape_of(record: Record) -> RecordShape:
    return RecordShape(Kind(record.kind), len(record.body))
