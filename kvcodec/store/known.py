"""The records that the blocks of a log hold: what its sidecar lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvcodec.flash.block import Block
from kvcodec.log.located import Located, RecordTable, join_records
from kvcodec.log.order import order_records


class KnownRecords:
    """Kept up by a writer, dead records as well as live ones."""

    def __init__(self) -> None:
        self._parts: list[Sequence[Located]] = []

    def add(self, located: Sequence[Located]) -> None:
        """These were appended, copied or read."""
        self._parts.append(located)

    def table(self) -> RecordTable:
        """All, in the order in which they were added."""
        self._parts = [join_records(self._parts)]
        return join_records(self._parts)

    def forget(self, block: Block) -> None:
        """A block was erased."""
        known = self.table()
        places = known.places
        gone = (places["block"] == block.number) & (places["generation"] == block.generation)
        self._parts = [RecordTable(known.entries[np.flatnonzero(~gone)])]

    def ordered(self) -> RecordTable:
        """As a log gives them: by lsn, and of a record that was copied only the copy."""
        return order_records([self.table()])
