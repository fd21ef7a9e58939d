"""What the fuzzer found, a file an input, and inputs by lot: both replayed by tests/test_fuzz_corpus.py."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

TARGETS = ("log", "dump", "kvdict", "text")
_FOLDER = Path(__file__).parent / "corpus"
_LONGEST = 64


def inputs(target: str) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each input of the corpus."""
    for path in sorted((_FOLDER / target).iterdir()):
        yield path.name, path.read_bytes()


def lot(seed: int, count: int) -> Iterator[bytes]:
    """Inputs by lot, the same for a seed everywhere."""
    chance = random.Random(seed)
    for _ in range(count):
        yield chance.randbytes(chance.randint(4, _LONGEST))
