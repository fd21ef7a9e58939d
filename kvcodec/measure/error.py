"""How far decoded rows are from the original ones: in total, and where it is worst."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import DtypeError, NonFiniteError, ShapeError

_FLOATS = tuple(np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64))


class WorstChannel(NamedTuple):
    """The channel whose numbers, over all tokens, have the largest relative error."""

    head: int
    channel: int
    relative: float


class WorstToken(NamedTuple):
    """The token whose row, over all heads, has the largest relative error. Counted from the first one that was fed."""

    token: int
    relative: float


def as_float64(
    array: NDArray[Any], name: str, *, layer: int | None = None, first_token: int = 0, first_head: int = 0
) -> NDArray[np.float64]:
    """A float64 copy of (tokens, heads, dim) bfloat16, float16, float32 or float64.

    Raises DtypeError, ShapeError naming `name`, and NonFiniteError with the first place of a NaN or infinity.
    """
    if array.dtype not in _FLOATS:
        raise DtypeError(f"{name}: dtype is {array.dtype}, want bfloat16, float16, float32 or float64")
    if array.ndim != 3:
        raise ShapeError(f"{name}: shape is {array.shape}, want (tokens, heads, dim)")
    wide = array.astype(np.float64)
    finite = np.isfinite(wide)
    if not finite.all():
        token, head, channel = (int(i) for i in np.argwhere(~finite)[0])
        raise NonFiniteError(layer, name, first_token + token, first_head + head, channel)
    return wide


def relative_error(error_square: float, original_square: float) -> float:
    """Root of the quotient of two sums of squares; 0 for 0/0, infinite where only the original is 0."""
    if error_square == 0:
        return 0.0
    return math.sqrt(error_square / original_square) if original_square > 0 else math.inf


def finite_or_none(number: float) -> float | None:
    """JSON has no infinity: None instead."""
    return number if math.isfinite(number) else None


class RowError:
    """Error of the rows of one (layer, stream), block after block, in float64; memory is that of a block.

    layer, stream: only for the text of errors.

    >>> error = RowError()
    >>> error.add(np.ones((2, 1, 4), np.float32), np.full((2, 1, 4), 1.5, np.float32))
    >>> error.relative
    0.5
    """

    def __init__(self, layer: int | None = None, stream: str = "rows") -> None:
        self._layer, self._stream = layer, stream
        self._error: NDArray[np.float64] = np.zeros((0, 0))
        self._original: NDArray[np.float64] = np.zeros((0, 0))
        self._worst_token: WorstToken | None = None
        self.tokens = 0
        self.max_abs = 0.0

    def add(self, original: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Feeds the next tokens: both (tokens, heads, dim) of a floating dtype, not necessarily the same.

        Raises ShapeError, DtypeError, NonFiniteError; then the block has not been counted.
        """
        if original.shape != decoded.shape:
            raise ShapeError(f"{self._stream}: decoded {decoded.shape}, original {original.shape}")
        wide = as_float64(original, self._stream, layer=self._layer, first_token=self.tokens)
        name = f"{self._stream} (decoded)"
        error = as_float64(decoded, name, layer=self._layer, first_token=self.tokens)
        if self.tokens and wide.shape[1:] != self._error.shape:
            raise ShapeError(f"{self._stream}: (heads, dim) is {wide.shape[1:]}, was {self._error.shape} before")
        if not wide.size:
            return
        error -= wide
        self.max_abs = max(self.max_abs, float(np.abs(error).max()))
        np.square(error, out=error)
        np.square(wide, out=wide)
        self._note_worst_token(error.sum(axis=(1, 2)), wide.sum(axis=(1, 2)))
        if not self.tokens:
            self._error, self._original = (np.zeros(wide.shape[1:]) for _ in range(2))
        self._error += error.sum(axis=0)
        self._original += wide.sum(axis=0)
        self.tokens += wide.shape[0]

    @property
    def relative(self) -> float:
        """Frobenius norm of the error over that of the original; infinite if only the latter is 0."""
        return relative_error(float(self._error.sum()), float(self._original.sum()))

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio in decibels; infinite without error."""
        relative = self.relative
        return math.inf if relative == 0 else -20 * math.log10(relative)

    @property
    def worst_channel(self) -> WorstChannel | None:
        """None before the first token. The first of equals."""
        if not self.tokens:
            return None
        index = int(np.argmax(_ratios(self._error, self._original)))
        head, channel = divmod(index, self._error.shape[1])
        return WorstChannel(
            head, channel, relative_error(float(self._error[head, channel]), float(self._original[head, channel]))
        )

    @property
    def worst_token(self) -> WorstToken | None:
        """None before the first token. The first of equals."""
        return self._worst_token

    def as_dict(self) -> dict[str, Any]:
        """For JSON: an infinite number is None, and so is what needs a token when there was none."""
        channel, token = self.worst_channel, self.worst_token
        return {
            "tokens": self.tokens,
            "relative": finite_or_none(self.relative),
            "snr_db": finite_or_none(self.snr_db),
            "max_abs": self.max_abs,
            "worst_channel": channel and channel._asdict() | {"relative": finite_or_none(channel.relative)},
            "worst_token": token and token._asdict() | {"relative": finite_or_none(token.relative)},
        }

    def _note_worst_token(self, error: NDArray[np.float64], original: NDArray[np.float64]) -> None:
        index = int(np.argmax(_ratios(error, original)))
        relative = relative_error(float(error[index]), float(original[index]))
        if self._worst_token is None or relative > self._worst_token.relative:
            self._worst_token = WorstToken(self.tokens + index, relative)


def _ratios(error: NDArray[np.float64], original: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quotients as relative_error() takes the root of: 0/0 is 0."""
    ratios = np.where(error > 0, np.inf, 0.0)
    np.divide(error, original, out=ratios, where=original > 0)
    return ratios
