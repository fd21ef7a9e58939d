"""Trellis codes of a stream: a static basis, rates, tables that windows of a vector's bits look into
(formats/trellis.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import Analysis, Analyzer, Transformed
from kvcodec.codecs.uses import Use
from kvcodec.errors import ShapeError
from kvcodec.kernels import trellis as kernels
from kvcodec.trellis_spec import MAX_CODE_BYTES

MAX_RATE = 8
LEAST_BRANCHES = 3  # bits of a window, at least, that are not a component's own
WINDOWS = range(8, 13)  # bits
_MOST_SUM = 2**31 - 2**15  # that a sum of products may come to: an int32 that attention has room to round
_LEAST_RATIO, _MOST_RATIO = 1e-12, 1e12
_BLOCK = 1024  # vectors that are coded at once


class TrellisCodes(NamedTuple):
    """Coded vectors. bits: uint8 (n, code bytes). gains: uint8 (n,), 0 of a vector of zeros. shapes: uint8 (n,)."""

    bits: NDArray[np.uint8]
    gains: NDArray[np.uint8]
    shapes: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Trellis(Transformed):
    """How vectors of d channels are coded by a path of bits, of which each component has a few.

    x = scale * (sum of basis rows times entries of tables) + gain * mean, turned by `rotation` if that is there. A
    component's entry is named by the last bits of the path up to its own, as many as the window has.

    rates: uint8 (components,), bits of each. tables: int16 (tables, 2**window), one for each rate that a component has,
    ascending. All else: see Transformed. Raises ShapeError, SpecError.
    """

    basis: NDArray[np.int16]
    rates: NDArray[np.uint8]
    tables: NDArray[np.int16]
    gains: NDArray[Any]
    shapes: NDArray[Any]
    uses: tuple[Use, ...]
    mean: NDArray[np.float32]
    analysis: Analysis
    rotation: Rotation | None = None
    budget: float = 0.0

    def __post_init__(self) -> None:
        self.check_transform("trellis codes")
        window = self.window
        if window not in WINDOWS or self.tables.shape[1] != 1 << window:
            raise ShapeError(
                f"tables {self.tables.shape}, want 2**{WINDOWS[0]} to 2**{WINDOWS[-1]} entries for a window"
            )
        most = min(MAX_RATE, window - LEAST_BRANCHES)
        if self.rates.shape != (len(self.basis),) or self.rates.min() < 1 or self.rates.max() > most:
            raise ShapeError(f"rates: want {len(self.basis)} of 1 to {most} bits for a window of {window}")
        if len(self.tables) != len(np.unique(self.rates)):
            raise ShapeError(f"{len(self.tables)} tables, want one for each of {len(np.unique(self.rates))} rates")
        if self.code_bytes > MAX_CODE_BYTES:
            raise ShapeError(f"{self.code_bytes} bytes of bits, want up to {MAX_CODE_BYTES}")
        if (self.largest_sums > _MOST_SUM).any():
            raise ShapeError(f"channel {int(self.largest_sums.argmax())}: sums of products above 2**31 - 2**15")

    @property
    def window(self) -> int:
        """Bits that name an entry of a table."""
        return int(self.tables.shape[-1]).bit_length() - 1

    @property
    def code_bytes(self) -> int:
        """Bytes of a vector's bits."""
        return -(-self.bits // 8)

    @property
    def bits(self) -> int:
        """Of a vector, without its gain and shape."""
        return int(self.rates.sum(dtype=np.int64))

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """int64 (components,): number of each one's table."""
        return np.unique(self.rates, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def largest_sums(self) -> NDArray[np.int64]:
        """int64 (d,): what the sum of a channel's products comes to at most, whatever its bits are."""
        greatest = np.abs(self.tables.astype(np.int64)).max(axis=1)[self.places]
        sums: NDArray[np.int64] = np.add.reduce(np.abs(self.basis.astype(np.int64)) * greatest[:, None], axis=0)
        return sums

    def to_bytes(self) -> bytes:
        """As files have them (formats/trellis.md)."""
        from kvcodec.codecs.trellis_bytes import trellis_to_bytes

        return trellis_to_bytes(self)

    @cached_property
    def _coder(self) -> _Coder:
        return _Coder(self)

    def code(self, rows: NDArray[np.float32]) -> TrellisCodes:
        """Codes of finite vectors (n, d). A vector's codes do not hang on those beside it."""
        if rows.shape[1] != self.dim:
            raise ShapeError(f"vectors have {rows.shape[1]} channels, the basis {self.dim}")
        out = TrellisCodes(
            np.zeros((len(rows), self.code_bytes), np.uint8), np.zeros(len(rows), np.uint8),
            np.zeros(len(rows), np.uint8),
        )  # fmt: skip
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            self._coder.code(rows[part], TrellisCodes(*(field[part] for field in out)))
        return out

    def rebuild(self, coded: TrellisCodes) -> NDArray[np.float32]:
        """float32 (n, d) of codes, not yet turned to their positions."""
        out = np.empty((len(coded.gains), self.dim), np.float32)
        scales, gains = self.scale_table[coded.gains, coded.shapes], self.gain_table[coded.gains]
        kernels.rebuild_trellis(
            np.pad(coded.bits, ((0, 0), (0, kernels.PADDING))), self.basis, self.rates.astype(np.int64), self.places,
            self.tables, np.int64(self.window), scales, gains, self.mean, np.empty(self.dim, np.int32), out,
        )  # fmt: skip
        return out


class _Coder:
    """Tables of an encoder."""

    def __init__(self, own: Trellis) -> None:
        self._own, self._analyzer = own, Analyzer(own)
        weights = np.square(own.analysis.units.astype(np.float64))
        ratios = np.append(weights[1:] / np.maximum(weights[:-1], 1e-300), 1.0)
        self._ratios = np.clip(ratios, _LEAST_RATIO, _MOST_RATIO).astype(np.float32)
        self._rates, self._tables = own.rates.astype(np.int64), own.tables.astype(np.float32)

    def code(self, rows: NDArray[np.float32], out: TrellisCodes) -> None:
        own, tables = self._own, self._analyzer
        found, gains, states = tables.analyze(rows), np.zeros(len(rows), np.float32), self._tables.shape[1]
        kernels.code_trellis(
            found.y, found.along, found.lengths, own.analysis.spread, tables.borders, own.analysis.units, self._rates,
            own.places, self._tables, self._ratios, tables.mean, tables.mean_square, tables.shapes,
            np.int64(own.window), out.bits, out.shapes, gains, np.empty((2, states), np.float32),
            np.empty((len(self._rates), states // 2), np.uint8), np.empty(len(self._rates), np.int64),
        )  # fmt: skip
        out.gains[...] = tables.code_gains(gains, found)
