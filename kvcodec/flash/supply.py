"""The erase blocks that a device has left: which are erased, how worn they are, and which are used no more."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

from kvcodec.errors import NoSpace, WornOut
from kvcodec.flash.allocation import order_erased
from kvcodec.layout import Lane, RetireCause

HELD_BLOCKS = 2  # erased ones that rows are not given: for DROP records, and for copies


class BlockSupply:
    """Blocks 0 to blocks - 1. A device fills it when it is surveyed.

    Attributes: blocks (capacity in erase blocks), most_blocks (that should be in use at most, see `limit`),
    erase_counts, retired (blocks that are used no more), failing (blocks that are to be retired).
    """

    def __init__(self, blocks: int, path: Path) -> None:
        self.blocks = self.most_blocks = self._allowed = blocks
        self.erase_counts: dict[int, int] = {}
        self.retired: dict[int, RetireCause] = {}
        self.failing: dict[int, RetireCause] = {}
        self._path = path  # for errors
        self._erased: set[int] = set()
        self._untouched = 0  # from here on no block was ever used

    def next_blocks(self, n: int, lane: Lane = Lane.FRESH) -> list[int]:
        """The n erased blocks that will be opened next in a lane, see order_erased. Raises NoSpace."""
        if not n:
            return []
        fresh = list(itertools.islice((b for b in range(self._untouched, self.blocks) if b not in self.retired), n))
        candidates = order_erased([*fresh, *self._erased], self.erase_counts, lasting=lane == Lane.KEPT)
        if self.erased_blocks < n:
            raise self.no_space(n, self.erased_blocks)
        return candidates[:n]

    def no_space(self, wanted: int, left: int) -> NoSpace:
        """The error for erased blocks that are not there: WornOut where blocks had to be retired."""
        kind = WornOut if self.retired or self.failing else NoSpace
        return kind(errno.ENOSPC, f"{wanted} erased blocks wanted, {left} left", str(self._path))

    @property
    def erased_blocks(self) -> int:
        """How many blocks can be opened."""
        return max(0, min(self._free, self._allowed - self._used))

    @property
    def _free(self) -> int:
        bad = sum(block >= self._untouched for block in self.retired)
        return len(self._erased) + self.blocks - self._untouched - bad

    @property
    def _used(self) -> int:
        return self.blocks - len(self.retired) - self._free

    def limit(self, most: int) -> None:
        """Have at most so many blocks in use. Where more are, HELD_BLOCKS more can be opened, so that what is in
        them can be given up, and fewer with each that is erased.
        """
        self.most_blocks = min(most, self.blocks)
        self._allowed = max(self.most_blocks, self._used + HELD_BLOCKS)

    def _tighten(self) -> None:
        """A block was erased."""
        self._allowed = max(self.most_blocks, min(self._allowed, self._used + HELD_BLOCKS))

    def retire(self, block: int, cause: RetireCause) -> None:
        """Use a block no more."""
        self.retired[block] = cause
        self.failing.pop(block, None)
        self._erased.discard(block)
