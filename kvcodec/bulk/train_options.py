"""What is to be trained: options of kvcodec.train, and the dictionaries that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvcodec.bulk.selection import Layers, describe_numbers, pick_layers
from kvcodec.codecs.uses import Use
from kvcodec.codecs.vectors import SIDE_BYTES
from kvcodec.dictionary.budget import LEAST_GROUPS
from kvcodec.dictionary.products import LEAST_SAMPLE, SAMPLE
from kvcodec.dictionary.rates import LEAST_CODE_BYTES
from kvcodec.dumps.dump import Dump
from kvcodec.dumps.names import PAIRS
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import StreamId
from kvcodec.product_spec import MAX_GROUPS
from kvcodec.trellis_spec import MAX_CODE_BYTES

SHARES = ("none", "layers", "all")
CODECS = ("dict", "pq", "tcq")
METRICS = {"dict": ("none", "query")} | dict.fromkeys(CODECS[1:], ("none", "query", "gradient"))
_BUDGETS = {"pq": LEAST_GROUPS, "tcq": LEAST_CODE_BYTES}, {"pq": MAX_GROUPS, "tcq": MAX_CODE_BYTES}
DEFAULT_BUDGETS = {"pq": 32.0, "tcq": 98.0}
ROPES = ("post", "pre")
_NAMES = {stream.name.lower(): stream for pair in PAIRS for stream in pair}
_MOST_HELD = 0.5


@dataclass(frozen=True)
class TrainOptions:
    """As kvcodec.train takes them, which see. Raises SpecError for what cannot be meant."""

    streams: tuple[StreamId, ...]
    layers: Layers
    share: str
    rope: str
    rope_base: float | None
    metric: str
    ridge: float
    fraction: float
    sinks: int
    codec: str = "dict"

    def __post_init__(self) -> None:
        metrics = METRICS.get(self.codec, ())
        for name, known in (("codec", CODECS), ("share", SHARES), ("rope", ROPES), ("metric", metrics)):
            if getattr(self, name) not in known:
                raise SpecError(f"{name} is {getattr(self, name)!r}, want {' or '.join(known)}")
        if not 0 < self.fraction <= _MOST_HELD:
            raise SpecError(f"held-out is {self.fraction:g}, want dumps or a fraction above 0 and up to {_MOST_HELD:g}")
        if self.sinks < 0 or not 0 < self.ridge < 1e6:
            raise SpecError(f"sinks {self.sinks} and ridge {self.ridge:g}: want 0 or more, and a positive number")
        self._check_streams()

    def _check_streams(self) -> None:
        special = "rope pre" if self.rope == "pre" else ""
        measured = "" if self.metric == "none" else f"metric {self.metric}"
        if measured and self.codec != "dict":
            if not set(self.streams) <= set(PAIRS[0]):
                raise SpecError(f"{measured} is for K and V, not for latents")
        else:
            special = special or measured
        if special and StreamId.K not in self.streams:
            raise SpecError(f"{special} is for K, and K is not among the streams")
        if self.share == "all" and len(self.streams) > 1 and (special or measured):
            whose = f"{special} is for K alone" if special else f"{measured} is another one for K than for V"
            raise SpecError(f"{whose}: share layers, not all")

    def unrotates(self, unit: Unit) -> bool:
        """Whether a unit is of keys from before their rotary embedding."""
        return self.rope == "pre" and unit.stream == StreamId.K

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, all that a result hangs on beside the layers."""
        names = [stream.name.lower() for stream in self.streams]
        kept = ("share", "rope", "rope_base", "metric", "ridge", "fraction", "sinks")
        return {name: getattr(self, name) for name in kept} | {"streams": names}


@dataclass(frozen=True)
class ProductSettings:
    """budget: bytes of a vector, on average over all that a model holds. sample: vectors of a stream that are looked
    at, most. context: tokens of a text that codes are for, None if layers are to count alike. seed: of all that is
    drawn by lot. codec: pq or tcq. predict: of pq, V from the codes of K. Raises SpecError.
    """

    budget: float = DEFAULT_BUDGETS["pq"]
    sample: int = SAMPLE
    context: int | None = None
    seed: int = 0
    codec: str = "pq"
    predict: bool = False

    def __post_init__(self) -> None:
        least, most = (bytes_[self.codec] + SIDE_BYTES for bytes_ in _BUDGETS)
        if not least <= self.budget <= most:
            raise SpecError(f"budget is {self.budget:g} bytes of a vector, want {least} to {most}")
        if self.predict and self.codec != "pq":
            raise SpecError("predict is for codec pq")
        for name, low in (("sample", LEAST_SAMPLE), ("context", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and not low <= value < 1 << 63:
                raise SpecError(f"{name} is {value}, want {low} or more")

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, all that a result hangs on."""
        return asdict(self)


def parse_streams(asked: str | Sequence[str]) -> tuple[StreamId, ...]:
    """K and V of "k,v", in this order, or C and KR of "c,kr". Raises SpecError."""
    names = [part.strip().lower() for part in (asked.split(",") if isinstance(asked, str) else asked)]
    asked_for = {_NAMES[name] for name in names if name in _NAMES}
    if len(asked_for) != len(names) or not any(asked_for and asked_for <= set(pair) for pair in PAIRS):
        raise SpecError(f"streams {asked!r}, want k, v or k,v, or of latents c, kr or c,kr")
    return tuple(sorted(asked_for))


@dataclass(frozen=True)
class Unit:
    """One dictionary to train: for the streams `uses`."""

    number: int
    uses: tuple[Use, ...]

    @property
    def stream(self) -> StreamId | None:
        """Which one, None where both of a layer share."""
        streams = {stream for _, stream in self.uses}
        return streams.pop() if len(streams) == 1 else None

    def describe(self) -> str:
        """Such as "layer 5 K" or "layers 0-17 K"."""
        layers = sorted({layer for layer, _ in self.uses})
        streams = " and ".join(sorted({stream.name for _, stream in self.uses}))
        return f"layer{'s' if len(layers) > 1 else ''} {describe_numbers(layers)} {streams}"


def plan_units(options: TrainOptions, dumps: Sequence[Dump]) -> tuple[Unit, ...]:
    """The dictionaries to train, for the layers that every dump has. Raises SpecError, ShapeError."""
    layers = pick_layers(options.layers, dumps[0].layers, str(dumps[0].path))
    for dump in dumps[1:]:
        pick_layers(list(layers), dump.layers, str(dump.path))
        for use in ((layer, stream) for layer in layers for stream in options.streams):
            if dump.shape(*use)[1:] != dumps[0].shape(*use)[1:]:
                raise ShapeError(
                    f"{dump.path}: layer {use[0]} {use[1].name} has (heads, dim) {dump.shape(*use)[1:]}, "
                    f"{dumps[0].path} has {dumps[0].shape(*use)[1:]}"
                )
    uses = [(layer, stream) for layer in layers for stream in options.streams]
    if options.share == "none":
        groups: list[tuple[Use, ...]] = [(use,) for use in uses]
    elif options.share == "layers":
        groups = [tuple(use for use in uses if use[1] == stream) for stream in options.streams]
    else:
        groups = [tuple(uses)]
    return tuple(Unit(number, group) for number, group in enumerate(groups))
