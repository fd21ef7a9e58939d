"""Which layers and tokens of a dump or a sequence are meant: "0-3,17" and "128:512"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.dumps.dump import Dump
from kvcodec.errors import SpecError
from kvcodec.layout import StreamId
from kvcodec.store.coding import parse_layers

Layers = str | Iterable[int] | None  # "0-3,17", or numbers; None for all
Tokens = str | slice | None  # "A:B", A or B or both may be missing, or a slice; None for all
_TOKENS = re.compile("([0-9]{0,18}):([0-9]{0,18})", re.ASCII)


def pick_layers(asked: Layers, there: Sequence[int], what: str) -> tuple[int, ...]:
    """Layer numbers, ascending. `what` holds the layers `there` and begins errors. Raises SpecError."""
    if asked is None:
        return tuple(there)
    numbers = parse_layers(asked if isinstance(asked, str) else list(asked), what)
    missing = sorted(numbers - set(there))
    if missing or not numbers:
        wanted = f"layers {missing[0]}" if missing else "layers: none"
        raise SpecError(f"{what}: {wanted}, want some of {describe_numbers(there)}")
    return tuple(sorted(numbers))


def pick_tokens(asked: Tokens, length: int, what: str) -> range:
    """Token numbers of a range in 0:length. Raises SpecError for another one."""
    if asked is None:
        return range(length)
    if isinstance(asked, str):
        match = _TOKENS.fullmatch(asked.strip())
        if match is None:
            raise SpecError(f'{what}: tokens {asked!r}, want a range such as 128:512, ":512" or "128:"')
        first, end = (int(text) if text else None for text in match.groups())
    else:
        first, end = asked.start, asked.stop
        if asked.step not in (None, 1) or any(n is not None and n < 0 for n in (first, end)):
            raise SpecError(f"{what}: tokens {asked}, want 0 <= start <= stop, one by one")
    first, end = first or 0, length if end is None else end
    if not first <= end <= length:
        raise SpecError(f"{what}: tokens {first}:{end}, want a range in 0:{length}")
    return range(first, end)


def describe_numbers(numbers: Sequence[int]) -> str:
    """Ascending numbers as "0-3,17"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class DumpPart:
    """Some layers and tokens of a dump, which is what is encoded: layers keep their numbers, tokens count from 0.

    Attributes: path, metadata, dtype_id, streams as of the dump; layers (ascending), tokens (how many), first (which
    token of the dump the first one is).
    """

    def __init__(self, dump: Dump, layers: Layers = None, tokens: Tokens = None) -> None:
        self._dump, self.path, self.metadata, self.dtype_id = dump, dump.path, dump.metadata, dump.dtype_id
        self.streams = dump.streams
        self.layers = pick_layers(layers, dump.layers, str(dump.path))
        picked = pick_tokens(tokens, dump.tokens, str(dump.path))
        self.first, self.tokens = picked.start, len(picked)

    def shape(self, layer: int, stream: StreamId) -> tuple[int, int, int]:
        """(tokens, heads, dim)."""
        return self.tokens, *self._dump.shape(layer, stream)[1:]

    def rows(
        self, layer: int, stream: StreamId, start: int, stop: int, room: NDArray[np.uint16] | None = None
    ) -> NDArray[Any]:
        """Rows (tokens, heads, dim) of the tokens start <= t < stop of this part. room: as of Dump.rows, which see."""
        return self._dump.rows(layer, stream, self.first + start, self.first + stop, room)
