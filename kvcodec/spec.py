"""Codec specs: text such as "int4/channel/g64" or "int4/token/g32/sym", and the dataclass behind it."""

from __future__ import annotations

from dataclasses import dataclass

from kvcodec.errors import SpecError
from kvcodec.layout import Axis, CodecId, GroupFlag

_BITS = {CodecId.INT8: 8, CodecId.INT4: 4, CodecId.INT2: 2}
_NAMES = {CodecId.RAW: "raw"} | {codec: f"int{bits}" for codec, bits in _BITS.items()}
KNOWN_CODECS = tuple(_NAMES)
_AXES = {Axis.CHANNEL: "channel", Axis.TOKEN: "token"}
_GROUP_STEP = 16
_GROUP_MAX = 4096


@dataclass(frozen=True)
class CodecSpec:
    """How one stream is coded.

    codec: raw 16-bit, or grouped integers. axis: `channel` has one scale a channel for `group` consecutive
    tokens (for K), `token` one scale a token for `group` consecutive channels (for V). group: a multiple of
    16; 32, 64 and 128 are the fast ones. symmetric: no zero points.
    """

    codec: CodecId
    axis: Axis = Axis.NONE
    group: int = 0
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.codec not in _NAMES:
            raise SpecError(f"codec {int(self.codec)} is unknown")
        if self.codec == CodecId.RAW:
            if self.axis != Axis.NONE or self.group or self.symmetric:
                raise SpecError("raw takes no axis, group or symmetry")
            return
        if self.axis not in _AXES:
            raise SpecError(f"{_NAMES[self.codec]} needs an axis: channel or token")
        if self.group <= 0 or self.group % _GROUP_STEP or self.group > _GROUP_MAX:
            raise SpecError(f"group is {self.group}, want a multiple of {_GROUP_STEP} up to {_GROUP_MAX}")

    @property
    def bits(self) -> int:
        """Bits of one code; 16 for raw."""
        return _BITS.get(self.codec, 16)

    @property
    def flags(self) -> GroupFlag:
        return GroupFlag.SYMMETRIC if self.symmetric else GroupFlag.NONE

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
        axis, group, symmetric = Axis.NONE, 0 if codec == CodecId.RAW else 64, False
        for part in parts:
            if part in _AXES.values():
                axis = next(a for a, n in _AXES.items() if n == part)
            elif part == "sym":
                symmetric = True
            elif part[:1] == "g" and part[1:].isascii() and part[1:].isdigit() and len(part) < 8:
                group = int(part[1:])
            else:
                raise SpecError(f"codec spec {text!r}: {part!r} is unknown, want channel, token, gN or sym")
        try:
            return cls(codec, axis, group, symmetric)
        except SpecError as error:
            raise SpecError(f"codec spec {text!r}: {error}") from None

    def __str__(self) -> str:
        if self.codec == CodecId.RAW:
            return "raw"
        sym = "/sym" if self.symmetric else ""
        return f"{_NAMES[self.codec]}/{_AXES[self.axis]}/g{self.group}{sym}"
