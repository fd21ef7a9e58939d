"""Erase blocks of a lane in the order in which a log filled them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np

from kvcodec.errors import CorruptRecord
from kvcodec.flash.block import Block
from kvcodec.flash.device import Device
from kvcodec.layout import Lane, RetireCause


class BlockOrder:
    """Blocks of one lane in use, by generation; looked up anew only when some block was opened or erased.

    A block of which no unit is good has no place in the order, nor has one of `retired` that did not erase.
    """

    def __init__(self, device: Device, lane: Lane, retired: Mapping[int, RetireCause] | None = None) -> None:
        self._device, self._lane = device, lane
        self._retired, self._retired_known = {} if retired is None else retired, 0
        self._generations = np.empty(0, np.uint64)
        self._known: dict[int, Block] = {}  # of all lanes, by number
        self._order: list[Block] = []

    def in_use(self) -> list[Block]:
        """All of them, oldest first."""
        generations = self._device.generations()
        if not np.array_equal(generations, self._generations) or len(self._retired) != self._retired_known:
            self._retired_known = len(self._retired)
            found, whole = {}, True
            for number in np.flatnonzero(generations).tolist():
                known = self._known.get(number)
                if known is not None and known.generation == int(generations[number]):
                    found[number] = known
                    continue
                try:
                    block = self._device.block(number)
                except CorruptRecord:
                    if number not in self._device.retired:
                        whole = False  # a writer may be in the middle of its header: look again next time
                    continue
                if block is not None:
                    found[number] = block
            self._known = found
            own = (block for block in found.values() if block.lane == self._lane and self._counts(block.number))
            self._order = sorted(own, key=lambda b: b.generation)
            self._generations = generations if whole else np.empty(0, np.uint64)
        return self._order

    def of_all_lanes(self) -> list[Block]:
        """All blocks that hold something, those without a place in the order too."""
        self.in_use()
        return list(self._known.values())

    def _counts(self, number: int) -> bool:
        return self._retired.get(number) != RetireCause.ERASE

    def following(self, block: Block | None) -> Block | None:
        """The block after `block`, or the first one."""
        order = self.in_use()
        i = 0 if block is None else bisect_right(order, block.generation, key=lambda b: b.generation)
        return order[i] if i < len(order) else None


class OneBlock(BlockOrder):
    """One block, as if its lane had no other."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def in_use(self) -> list[Block]:
        """That one."""
        return [self._block]
