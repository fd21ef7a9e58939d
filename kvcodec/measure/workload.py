"""What a device is made to do: sequences that come and go, and when the wear that this gives is steady."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvcodec.errors import SpecError
from kvcodec.measure.endurance import Amplification

ORDERS = ("oldest", "random")


@dataclass(frozen=True)
class Workload:
    """Sequences of `lengths` tokens, one after the other, each length drawn at random. While the next one would make
    the device fuller than `fill`, a sequence is dropped: the oldest one, or one at random.
    """

    lengths: tuple[int, ...]
    fill: float = 0.9
    drop: str = "oldest"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise SpecError(f"lengths of sequences are {self.lengths}, want 1 token or more")
        if not 0 < self.fill < 1:
            raise SpecError(f"a device filled to {self.fill:g}, want a share between 0 and 1")
        if self.drop not in ORDERS:
            raise SpecError(f"sequences dropped {self.drop!r}, want {' or '.join(ORDERS)}")

    def turns(self, sizes: Callable[[int], float], capacity: float) -> Iterator[Turn]:
        """Without end. sizes: bytes that a sequence of so many tokens leaves. Raises SpecError if one is too large."""
        draw, held, total, number = np.random.default_rng(self.seed), dict[int, float](), 0.0, 0
        while True:
            number += 1
            tokens = self.lengths[int(draw.integers(len(self.lengths)))]
            size, dropped = sizes(tokens), list[int]()
            if size > self.fill * capacity:
                raise SpecError(f"a sequence of {tokens} tokens takes {size:.0f} bytes of a device of {capacity:.0f}")
            while total + size > self.fill * capacity:
                at = 0 if self.drop == "oldest" else int(draw.integers(len(held)))
                dropped.append(list(held)[at])
                total -= held.pop(dropped[-1])
            held[number], total = size, total + size
            yield Turn(tuple(dropped), number, tokens)


class Turn(NamedTuple):
    """Sequences that are dropped, then one that begins, and how long it gets."""

    dropped: tuple[int, ...]
    begun: int
    tokens: int


class Mark(NamedTuple):
    """What had been done after some appends, in bytes: host and framed without copies, programmed with them. erases: of
    all blocks.
    """

    appends: int
    host: int
    framed: int
    programmed: int
    copied: int
    erases: int


class Steadiness:
    """Marks of rounds in which each block was erased once on average.

    Wear is steady once the amplification of the last quarter of all rounds differs from that of the quarter before by
    no more than a hundredth, and both are `rounds` long or longer. Quarters, since cleaning gets better for hundreds of
    rounds, as what lasts gathers in blocks of its own, and by too little for a few of them to show it.
    """

    def __init__(self, blocks: int, rounds: int = 16) -> None:
        self._blocks, self._rounds = blocks, rounds
        self.marks: list[Mark] = []

    def take(self, mark: Mark) -> None:
        """A mark, if a round is over."""
        if not self.marks or mark.erases - self.marks[-1].erases >= self._blocks:
            self.marks.append(mark)

    @property
    def _quarter(self) -> int:
        """Of all rounds."""
        return (len(self.marks) - 1) // 4

    @property
    def is_steady(self) -> bool:
        if self._quarter < self._rounds:
            return False
        before, middle, last = (self.marks[-1 - n * self._quarter] for n in (2, 1, 0))
        earlier, later = (_amplification(a, b) for a, b in ((before, middle), (middle, last)))
        return abs(later - earlier) <= 0.01 * earlier

    def go_on(self, mark: Mark, appends: int) -> Mark:
        """What `appends` in all come to if they go on from `mark` as the last quarter of all rounds did."""
        since, until = self.marks[-1 - self._quarter], self.marks[-1]
        times = (appends - mark.appends) / (until.appends - since.appends)
        rates = (b - a for a, b in zip(since, until, strict=True))
        return Mark(*(round(a + times * rate) for a, rate in zip(mark, rates, strict=True)))


def amplification_of(mark: Mark) -> Amplification:
    """Of all that was done."""
    return Amplification(mark.host, mark.framed, mark.programmed - mark.copied, mark.copied)


def _amplification(a: Mark, b: Mark) -> float:
    return (b.programmed - a.programmed) / (b.host - a.host)
