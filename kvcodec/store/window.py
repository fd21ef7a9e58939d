"""The open rows of one stream: the newest tokens, in memory, until whole token groups leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Leaving:
    """Tokens that leave the window together: `sink` ones stay raw for good, the others are whole token groups."""

    first: int
    tokens: int
    sink: bool


class OpenRows:
    """Rows from token `first` on: 16-bit patterns (tokens, heads, dim), or codes uint8 (tokens, heads, row bytes).
    Those before `logged` are in the log as STEPs.

    `extended` never changes what is visible: a caller adopts its result, or drops it and nothing has happened.
    """

    def __init__(self, rows: npt.NDArray[Any], first: int, logged: int) -> None:
        self._buffer, self._start, self._stop = rows, 0, len(rows)
        self.first, self.logged = first, logged

    @property
    def rows(self) -> npt.NDArray[Any]:
        return self._buffer[self._start : self._stop]

    @property
    def end(self) -> int:
        """The token that comes next."""
        return self.first + self._stop - self._start

    def extended(self, rows: npt.NDArray[Any]) -> OpenRows:
        """With `rows` behind. Shares the buffer where there is room: only one such successor may be adopted."""
        out = self.lengthened(len(rows))
        out.newest(len(rows))[...] = rows
        return out

    def lengthened(self, need: int) -> OpenRows:
        """`extended` by `need` rows that the caller fills; nobody else may see them before."""
        out = OpenRows(self._buffer, self.first, self.logged)
        if len(self._buffer) - self._stop < need or not self._buffer.flags.writeable:
            live = self.rows
            room = len(live) + max(need, len(live), 16)
            out._buffer = np.empty((room, *live.shape[1:]), live.dtype)
            out._buffer[: len(live)] = live
            out._start, out._stop = 0, len(live)
        else:
            out._start, out._stop = self._start, self._stop
        out._stop += need
        return out

    def newest(self, count: int) -> npt.NDArray[Any]:
        """The last `count` rows."""
        return self._buffer[self._stop - count : self._stop]

    def cut(self, end: int) -> OpenRows:
        """Without the rows from token `end` on."""
        return OpenRows(self.rows[: end - self.first].copy(), self.first, min(self.logged, end))

    def without(self, tokens: int) -> OpenRows:
        """Without the oldest `tokens` rows; a buffer that has grown far beyond its rows is given back."""
        out = OpenRows(self._buffer, self.first + tokens, max(self.logged, self.first + tokens))
        out._start, out._stop = self._start + tokens, self._stop
        if len(self._buffer) > 2 * (out._stop - out._start) + 256:
            out._buffer = out.rows.copy()
            out._start, out._stop = 0, len(out._buffer)
        return out


def leaving(
    first: int, end: int, *, residual: int, sinks: int, token_group: int, sink_group: int = 64
) -> Iterator[Leaving]:
    """What leaves a window of tokens first … end - 1, oldest first, so that `residual` tokens stay.

    Sinks leave in groups of `sink_group`, the last one smaller.
    """
    while True:
        sink = first < sinks
        tokens = min(sinks - first, sink_group) if sink else token_group
        if first + tokens > end - residual:
            return
        yield Leaving(first, tokens, sink)
        first += tokens
