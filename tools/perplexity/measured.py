"""What was measured of one text and coding, and a file of such results, a line each, that runs add to."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvcodec.layout import StreamId
from tools.capture.failure import CaptureError
from tools.perplexity.coding import Coding
from tools.perplexity.figures import Score

Sizes = Mapping[tuple[int, StreamId], Counter[str]]
_COUNTS = "vectors", "raw", "nbytes", "headers"


class Measured(NamedTuple):
    """tokens: of the text. perplexity: over the raw cache. sizes: the counts of each stream (see Coded). windows: of
    layers, tokens that a query sees, None for all.
    """

    tokens: int
    perplexity: float
    score: Score
    sizes: Sizes
    windows: Mapping[int, int | None]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        sizes = [
            [layer, stream.name, *(counts[name] for name in _COUNTS)]
            for (layer, stream), counts in sorted(self.sizes.items())
        ]
        windows = sorted(self.windows.items())
        return self._asdict() | {"score": self.score._asdict(), "sizes": sizes, "windows": windows}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Measured:
        """The inverse of as_dict. Raises KeyError, TypeError or ValueError for what is no result."""
        sizes = {
            (layer, StreamId[stream]): Counter(dict(zip(_COUNTS, counts, strict=True)))
            for layer, stream, *counts in found["sizes"]
        }
        return cls(found["tokens"], found["perplexity"], Score(**found["score"]), sizes, dict(found["windows"]))


class Results:
    """Results of runs that need not be one: a file that holds a JSON object a line, for a text and a coding.

    settings: what all results that count here were measured with. Without a path nothing is kept. Several processes may
    add to one file; what another one has added is known after `read`.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path, self._settings = path, dict(settings)
        self._found: dict[str, Measured] = {}

    def read(self) -> None:
        """Take up all that the file holds, if there is one. Raises CaptureError."""
        if self._path is None or not self._path.exists():
            return
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CaptureError(f"{self._path}: cannot read the results: {error}") from None
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
                self._found[_key(found["of"])] = Measured.from_dict(found["measured"])
            except (KeyError, TypeError, ValueError):
                raise CaptureError(f"{self._path}: line {number} is no result of tools.perplexity") from None

    def find(self, text: str, ids: Sequence[int], coding: Coding) -> Measured | None:
        """What was measured of this text and coding, or None."""
        return self._found.get(_key(self._about(text, ids, coding)))

    def add(self, text: str, ids: Sequence[int], coding: Coding, measured: Measured) -> None:
        """Keep a result. Raises CaptureError."""
        about = self._about(text, ids, coding)
        self._found[_key(about)] = measured
        if self._path is None:
            return
        line = json.dumps({"of": about, "measured": measured.as_dict()}) + "\n"
        try:  # one write at the end of the file: lines of other processes stand before or behind it
            with open(self._path, "ab", buffering=0) as file:
                file.write(line.encode())
                os.fsync(file.fileno())
        except OSError as error:
            raise CaptureError(f"{self._path}: cannot add a result: {error}") from None

    def _about(self, text: str, ids: Sequence[int], coding: Coding) -> dict[str, Any]:
        digest = hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()
        tables = None if coding.dictionaries is None else coding.dictionaries.hash.hex()
        return self._settings | {"text": text, "ids": digest, "coding": coding.name, "tables": tables}


def _key(about: Mapping[str, Any]) -> str:
    return json.dumps(about, sort_keys=True)
