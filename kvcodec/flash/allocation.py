"""Which erased blocks to open next. Numbers in, numbers out: the same rules for a device and a simulation of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_WORN_APART = 0.05  # of the mean of erases that a block may be before it when it is opened for what lasts
_LEAST_APART = 2


def order_erased(blocks: Iterable[int], erases: Mapping[int, int], *, lasting: bool) -> list[int]:
    """Erased blocks in the order in which they are to be opened.

    erases: of all blocks that were ever opened. For what is new the least worn block comes first. For what has proved
    to last the most worn, so that it rests; but none that is far before the others: what was taken to last may die
    soon after all, and the same blocks would take it again and again.
    """
    if not lasting:
        return sorted(blocks, key=lambda block: (erases.get(block, 0), block))
    mean = sum(erases.values()) / max(1, len(erases))
    most = mean + max(_LEAST_APART, _WORN_APART * mean)

    def rank(block: int) -> tuple[bool, int, int]:
        count = erases.get(block, 0)
        return count > most, count if count > most else -count, block

    return sorted(blocks, key=rank)
