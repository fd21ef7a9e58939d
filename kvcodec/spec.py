"""Codec specs: text such as "int4/channel/g64" or "dict/s8/c6/ef", and the dataclass behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvcodec.errors import SpecError
from kvcodec.layout import CHANNEL_LANE_TOKENS, Axis, CodecId, GroupFlag
from kvcodec.product_spec import ProductSpec
from kvcodec.sparse_spec import SparseCodes
from kvcodec.trellis_spec import TrellisSpec

_BITS = {CodecId.INT8: 8, CodecId.INT4: 4, CodecId.INT2: 2}
_NAMES = {CodecId.RAW: "raw"} | {codec: f"int{bits}" for codec, bits in _BITS.items()} | {CodecId.DICTIONARY: "dict"}
_NAMES |= {CodecId.PRODUCT: "pq", CodecId.TRELLIS: "tcq"}
KNOWN_CODECS = tuple(_NAMES)
GROUPED_CODECS = tuple(_BITS)
_TRAINED = (CodecId.DICTIONARY, CodecId.PRODUCT, CodecId.TRELLIS)
_AXES = {Axis.CHANNEL: "channel", Axis.TOKEN: "token"}
_GROUP_STEP = 16
_GROUP_MAX = 4096


@dataclass(frozen=True)
class CodecSpec:
    """How one stream is coded.

    codec: raw 16-bit, grouped integers, or what was trained. axis: `channel` has one scale a channel for `group`
    consecutive tokens (for K), `token` one scale a token for `group` consecutive channels (for V). group: a multiple of
    16; 32, 64 and 128 are the fast ones. symmetric: no zero points.
    Over a dictionary (`sparse`) and by product or trellis codes (`product`, `trellis`) axis is `token`, each vector
    having one scale, and group is the tokens of a record, a multiple of 64.
    """

    codec: CodecId
    axis: Axis = Axis.NONE
    group: int = 0
    symmetric: bool = False
    sparse: SparseCodes | None = None
    product: ProductSpec | None = None
    trellis: TrellisSpec | None = None

    def __post_init__(self) -> None:
        if self.codec not in _NAMES:
            raise SpecError(f"codec {int(self.codec)} is unknown")
        if (self.sparse is not None) != (self.codec == CodecId.DICTIONARY):
            raise SpecError(f"{_NAMES[self.codec]}: dict has codes over a dictionary, and no other codec has them")
        if (self.product is not None) != (self.codec == CodecId.PRODUCT):
            raise SpecError(f"{_NAMES[self.codec]}: pq has product codes, and no other codec has them")
        if (self.trellis is not None) != (self.codec == CodecId.TRELLIS):
            raise SpecError(f"{_NAMES[self.codec]}: tcq has trellis codes, and no other codec has them")
        if self.codec == CodecId.RAW:
            if self.axis != Axis.NONE or self.group or self.symmetric:
                raise SpecError("raw takes no axis, group or symmetry")
            return
        if self.is_trained and (self.axis != Axis.TOKEN or self.symmetric):
            raise SpecError(f"{_NAMES[self.codec]} has one scale a token, and no symmetry")
        if self.axis not in _AXES:
            raise SpecError(f"{_NAMES[self.codec]} needs an axis: channel or token")
        step = CHANNEL_LANE_TOKENS if self.is_trained else _GROUP_STEP
        if self.group <= 0 or self.group % step or self.group > _GROUP_MAX:
            raise SpecError(f"group is {self.group}, want a multiple of {step} up to {_GROUP_MAX}")

    @property
    def is_trained(self) -> bool:
        """Whether vectors are coded over a dictionary, or by product or trellis codes."""
        return self.sparse is not None or self.shaped is not None

    @property
    def shaped(self) -> ProductSpec | TrellisSpec | None:
        """Product codes or trellis codes, whose rows are a gain, a shape and bytes."""
        return self.product or self.trellis

    @property
    def trained_as(self) -> str:
        """What a vector is coded by, in errors."""
        return self.shaped.kind if self.shaped else "dictionary"

    @property
    def wants(self) -> str:
        """The same with its article."""
        return self.trained_as if self.shaped else f"a {self.trained_as}"

    @property
    def basis(self) -> bytes:
        """Names the set that vectors are coded over; empty if there is none, or the spec is bound to none yet."""
        own = self.sparse or self.shaped
        return own.basis if own else b""

    @property
    def size(self) -> int:
        """Atoms of the dictionary, or bytes of the codes, that the spec is bound to; else 0."""
        own = self.sparse or self.shaped
        return own.size if own else 0

    @property
    def bounded(self) -> bool:
        """Whether no vector errs by more than a bound, those whose codes would being kept otherwise."""
        own = self.sparse or self.shaped
        return own is not None and own.bounded

    @property
    def error(self) -> int:
        """Relative error in 1/32768 at which pursuit stops, or that no vector exceeds of a bounded spec; 0 for none."""
        own = self.sparse or self.shaped
        return own.error if own is not None else 0

    @property
    def bits(self) -> int:
        """Bits of one code; 16 for raw."""
        if self.shaped is not None:
            return 8
        return self.sparse.bits if self.sparse else _BITS.get(self.codec, 16)

    @property
    def flags(self) -> GroupFlag:
        own = self.sparse
        sets = GroupFlag.SETS if own and own.sets else GroupFlag.NONE
        bounded = GroupFlag.BOUNDED if self.bounded else GroupFlag.NONE
        return (GroupFlag.SYMMETRIC if self.symmetric else GroupFlag.NONE) | sets | bounded

    def bound_to(self, size: int, basis: bytes) -> CodecSpec:
        """This spec over a dictionary of `size` atoms of the set named `basis`, or by so many bytes of codes. Raises
        SpecError for another codec.
        """
        if self.product is not None:
            return replace(self, product=self.product.bound_to(size, basis))
        if self.trellis is not None:
            return replace(self, trellis=self.trellis.bound_to(size, basis))
        if self.sparse is None:
            raise SpecError(f"{self} takes no dictionary")
        return replace(self, sparse=self.sparse.bound_to(size, basis))

    def with_bound(self, error: float) -> CodecSpec:
        """This spec with a bound on the relative error of every vector, if it is of trained codes and has none."""
        if self.product is not None:
            return replace(self, product=self.product.with_bound(error))
        if self.trellis is not None:
            return replace(self, trellis=self.trellis.with_bound(error))
        return self if self.sparse is None else replace(self, sparse=self.sparse.with_bound(error))

    def with_atoms(self, atoms: int) -> CodecSpec:
        """This spec with room for another number of atoms. Raises SpecError for another codec."""
        if self.sparse is None:
            raise SpecError(f"{self} has no atoms")
        return replace(self, sparse=self.sparse.with_atoms(atoms))

    @classmethod
    def parse(cls, text: str | CodecSpec) -> CodecSpec:
        """The spec that `text` names. Raises SpecError with the part that is not understood.

        >>> CodecSpec.parse("int4/channel/g64").group
        64
        """
        if isinstance(text, CodecSpec):
            return text
        name, *parts = text.strip().split("/")
        codec = next((c for c, n in _NAMES.items() if n == name), None)
        if codec is None:
            raise SpecError(f"codec spec {text!r}: {name!r} is unknown, want {' or '.join(_NAMES.values())}")
        try:
            return _parse_trained(codec, parts) if codec in _TRAINED else _parse_grouped(codec, parts)
        except SpecError as error:
            raise SpecError(f"codec spec {text!r}: {error}") from None

    def __str__(self) -> str:
        if self.codec == CodecId.RAW:
            return "raw"
        if self.is_trained:
            parts = [_NAMES[self.codec], str(self.sparse or self.shaped), f"g{self.group}"]
            return "/".join(part for part in parts if part)
        sym = "/sym" if self.symmetric else ""
        return f"{_NAMES[self.codec]}/{_AXES[self.axis]}/g{self.group}{sym}"


def _parse_group(part: str) -> int | None:
    digits = part[1:]
    return int(digits) if part[:1] == "g" and digits.isascii() and digits.isdigit() and len(part) < 8 else None


def _parse_grouped(codec: CodecId, parts: list[str]) -> CodecSpec:
    axis, group, symmetric = Axis.NONE, 0 if codec == CodecId.RAW else 64, False
    for part in parts:
        size = _parse_group(part)
        if part in _AXES.values():
            axis = next(a for a, n in _AXES.items() if n == part)
        elif part == "sym":
            symmetric = True
        elif size is not None:
            group = size
        else:
            raise SpecError(f"{part!r} is unknown, want channel, token, gN or sym")
    return CodecSpec(codec, axis, group, symmetric)


def _parse_trained(codec: CodecId, parts: list[str]) -> CodecSpec:
    groups = [size for part in parts if (size := _parse_group(part)) is not None]
    group, rest = groups[-1] if groups else CHANNEL_LANE_TOKENS, [p for p in parts if _parse_group(p) is None]
    if codec == CodecId.PRODUCT:
        return CodecSpec(codec, Axis.TOKEN, group, product=ProductSpec.parse(rest))
    if codec == CodecId.TRELLIS:
        return CodecSpec(codec, Axis.TOKEN, group, trellis=TrellisSpec.parse(rest))
    return CodecSpec(codec, Axis.TOKEN, group, sparse=SparseCodes.parse(rest))
