"""What cleaning asks of those who know which records are alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvcodec.flash.block import Block
from kvcodec.log.located import Located


class Keeper(Protocol):
    """Who knows what is alive."""

    def dead_bytes(self) -> NDArray[np.float64]:
        """Bytes in each block of the device that are worth nothing, (blocks present,); of a block in which there is
        nothing else all of it.
        """
        ...

    def filled_bytes(self) -> NDArray[np.float64]:
        """Bytes of the records in each block of the device, dead or alive, (blocks present,): the rest is padding, and
        what was never programmed.
        """
        ...

    def choose(self, block: int, records: Sequence[Located]) -> Sequence[Located]:
        """Those of a block's records that are alive."""
        ...

    def moved(self, copies: Sequence[Located]) -> None:
        """Records are where these copies of them are."""
        ...

    def erased(self, block: Block) -> None:
        """A block is gone."""
        ...
