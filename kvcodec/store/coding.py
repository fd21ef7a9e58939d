"""How sequences to come shall be coded: what a caller or a TOML spec file asks for, turned into a Policy."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.errors import SpecError
from kvcodec.layout import StreamId
from kvcodec.sparse_spec import ERROR_STEPS, parse_bound
from kvcodec.spec import CodecSpec
from kvcodec.store.model import Model, Stream
from kvcodec.store.policy import Policy, Rule, StreamPolicy

DEFAULTS = {
    StreamId.K: StreamPolicy(CodecSpec.parse("int4/channel/g64")),
    StreamId.V: StreamPolicy(CodecSpec.parse("int4/token/g64")),
    StreamId.C: StreamPolicy(CodecSpec.parse("int4/channel/g64")),
    StreamId.KR: StreamPolicy(CodecSpec.parse("raw")),
}
_STREAMS = {s.name.lower(): s for s in StreamId}
_SIZES = ("residual", "sinks")
_SIZE_BITS = 64


@dataclass(frozen=True)
class Wish:
    """What is asked for; what a field does not name stays as it was. Sizes may differ by stream."""

    specs: Mapping[StreamId, CodecSpec] = field(default_factory=dict)
    residual: Mapping[StreamId, int] = field(default_factory=dict)
    sinks: Mapping[StreamId, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, asked: Mapping[str, Any], where: str) -> Wish:
        """From `k`, `v`, `c`, `kr` (codec specs), `residual` and `sinks` (a number, or one for each stream).

        Raises SpecError, which begins with `where`.
        """
        wanted = {name: asked[name] for name in _STREAMS if asked.get(name) is not None}
        for name, spec in wanted.items():
            if not isinstance(spec, str | CodecSpec):
                raise SpecError(f"{where}: {name} = {spec!r}, want a codec spec such as 'int4/channel/g64'")
        specs = {_STREAMS[name]: CodecSpec.parse(spec) for name, spec in wanted.items()}
        sizes = {name: _parse_size(asked.get(name), f"{where}: {name}") for name in _SIZES}
        return cls(specs, **sizes)

    def over(self, stream: StreamId, before: StreamPolicy) -> StreamPolicy:
        """The policy of a stream that had `before`."""
        return StreamPolicy(
            self.specs.get(stream, before.spec),
            self.residual.get(stream, before.residual),
            self.sinks.get(stream, before.sinks),
        )


@dataclass(frozen=True)
class Coding:
    """A wish for all layers, and wishes for some of them (or None: for all) that go above it, the last one winning."""

    base: Wish = field(default_factory=Wish)
    layers: tuple[tuple[frozenset[int] | None, Wish], ...] = ()
    max_error: float | None = None  # of every vector whose trained codes' spec says nothing of errors

    def under(self, wish: Wish) -> Coding:
        """With `wish`, for all layers, above it."""
        return self if wish == Wish() else replace(self, layers=(*self.layers, (None, wish)))

    def policy(self, model: Model, before: Policy | None, dictionary: DictionarySet | None = None) -> Policy:
        """The policy for `model` of sequences to come; what is not asked for is as `before`, else the default.

        dictionary: the set that `dict`, `pq` and `tcq` specs are bound to. Raises SpecError where one finds nothing in
        it, and for a max_error if there is no such spec.
        """
        for numbers, _ in self.layers:
            if beyond := [n for n in sorted(numbers or ()) if n >= len(model.layers)]:
                raise SpecError(f"layer {beyond[0]}: the model has layers 0 to {len(model.layers) - 1}")
        rules = []
        for stream in sorted({s.id for layer in model.layers for s in layer.streams}):
            own = _fill([self._bound_at(model, n, stream, before, dictionary) for n in range(len(model.layers))])
            first = 0
            for n in range(1, len(own) + 1):
                if n == len(own) or own[n] != own[first]:
                    rules.append(Rule(stream, range(first, n), own[first]))
                    first = n
        if self.max_error is not None and not any(rule.policy.spec.is_trained for rule in rules):
            raise SpecError(f"max_error is {self.max_error:.3g}, and no stream has trained codes")
        return Policy(tuple(rules))

    def _bound_at(
        self, model: Model, layer: int, stream: StreamId, before: Policy | None, dictionary: DictionarySet | None
    ) -> StreamPolicy | None:
        """None where a layer without the stream would need a dictionary, or other codes, for it."""
        policy = self._at(layer, stream, before)
        shape = next((s for s in model.layers[layer].streams if s.id == stream), None)
        if shape is None:
            return None if policy.spec.is_trained else policy
        return replace(policy, spec=bind(policy.spec, layer, shape, dictionary))

    def _at(self, layer: int, stream: StreamId, before: Policy | None) -> StreamPolicy:
        known = before is not None and before.covers(layer, stream)
        policy = self.base.over(stream, before.at(layer, stream) if before and known else DEFAULTS[stream])
        for numbers, wish in self.layers:
            if numbers is None or layer in numbers:
                policy = wish.over(stream, policy)
        return policy if self.max_error is None else replace(policy, spec=policy.spec.with_bound(self.max_error))


def _fill(policies: list[StreamPolicy | None]) -> list[StreamPolicy]:
    """Policies of all layers, those that do not matter being that of a layer beside them."""
    last = next(policy for policy in policies if policy is not None)
    return [last := policy or last for policy in policies]


def bind(spec: CodecSpec, layer: int, stream: Stream, dictionary: DictionarySet | None) -> CodecSpec:
    """A spec over what a set has for a stream, where it takes that and is bound to none yet. Raises SpecError."""
    if not spec.is_trained or (spec.basis and dictionary is None):
        return spec
    where = f"layer {layer}, stream {stream.name}: {spec}"
    what, whose = spec.trained_as, "dictionary's atoms" if spec.sparse else spec.trained_as
    if dictionary is None:
        raise SpecError(f"{where} needs {spec.wants}: pass dictionary= (--dictionary)")
    own = dictionary.find_for(spec, layer, stream.id)
    if own is None:
        raise SpecError(f"{where}: the set {dictionary.hash.hex()} has no {what} for it")
    if own.dim != stream.dim:
        raise SpecError(f"{where}: {stream.dim} channels, its {whose} have {own.dim}")
    if spec.shaped is not None and not isinstance(own, Dictionary):
        try:
            spec.shaped.check_budget(own.budget)
        except SpecError as error:
            raise SpecError(f"{where}: {error}") from None
    return spec.bound_to(own.size, dictionary.hash)


def ask(spec: str | Path | Coding | None, asked: Mapping[str, Any], where: str) -> Coding:
    """What a spec (a TOML file, or a Coding) and arguments beside it, which go above it, ask for. Raises SpecError."""
    coding = spec if isinstance(spec, Coding) else read_spec_file(spec) if spec is not None else Coding()
    coding, most = coding.under(Wish.parse(asked, where)), asked.get("max_error")
    if most is None:
        return coding
    if not isinstance(most, float | int) or isinstance(most, bool):
        raise SpecError(f"{where}: max_error = {most!r}, want a number")
    return replace(coding, max_error=parse_bound(most) / ERROR_STEPS)


def read_spec_file(path: str | Path) -> Coding:
    """A TOML spec file: k, v, c, kr, residual, sinks, and [[layer]] tables with `layers = "0-3,17"` and the same keys.

    Raises SpecError naming the file and what in it is wrong.
    """
    try:
        with open(path, "rb") as file:
            return _read_table(tomllib.load(file), str(path))
    except SpecError:
        raise
    except (ValueError, RecursionError) as error:  # of TOML, and of numbers that are too long to be shown
        raise SpecError(f"{path}: {error}") from None


def _read_table(table: dict[str, Any], path: str) -> Coding:
    own = table.pop("layer", [])
    if not isinstance(own, list) or not all(isinstance(t, dict) for t in own):
        raise SpecError(f"{path}: layer: want [[layer]] tables")
    _refuse_unknown(table, set(_STREAMS) | set(_SIZES), path)
    layers: list[tuple[frozenset[int] | None, Wish]] = []
    for n, one in enumerate(own, 1):
        where = f"{path}: [[layer]] {n}"
        _refuse_unknown(one, {"layers", *_STREAMS, *_SIZES}, where)
        if "layers" not in one:
            raise SpecError(f'{where}: which layers? Say layers = "0-3,17"')
        layers.append((parse_layers(one["layers"], where), Wish.parse(one, where)))
    return Coding(Wish.parse(table, path), tuple(layers))


def parse_layers(text: Any, where: str) -> frozenset[int]:
    """Layer numbers of "0-3,17", of one number, or of a list of numbers. Raises SpecError."""
    parts = text.split(",") if isinstance(text, str) else [str(n) for n in (text if isinstance(text, list) else [text])]
    numbers: set[int] = set()
    for part in parts:
        first, dash, last = part.strip().partition("-")
        ends = [first, last if dash else first]
        if not all(e.isascii() and e.isdigit() and len(e) < 6 for e in ends) or int(ends[0]) > int(ends[1]):
            raise SpecError(f"{where}: layers {part.strip()!r}, want numbers and ranges such as 0-3,17")
        numbers |= set(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(numbers)


def _refuse_unknown(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise SpecError(f"{where}: {key!r} is unknown, want {', '.join(sorted(known))}")


def _parse_size(size: Any, where: str) -> dict[StreamId, int]:
    if size is None:
        return {}
    sizes = size if isinstance(size, Mapping) else dict.fromkeys(_STREAMS, size)
    for name, number in sizes.items():
        whole = isinstance(number, int) and not isinstance(number, bool) and number.bit_length() < _SIZE_BITS
        if name not in _STREAMS or not whole:
            raise SpecError(f"{where}: {name} = {number!r}, want a whole number, or one for each of k, v, c, kr")
    return {_STREAMS[name]: number for name, number in sizes.items()}
