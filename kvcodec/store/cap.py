"""A cap on the bytes of a log, and which sequence goes when it is reached."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvcodec.errors import SpecError
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import Kind
from kvcodec.log.frame import Record
from kvcodec.store.index import LogIndex

POLICIES = ("refuse", "lru")
_LEAST_BLOCKS = 6  # two that are open, and room to clean


class Cap:
    """At most `blocks` erase blocks are in use. lru: where that is not enough the sequence goes that was used least
    recently, be it read or appended to.

    The order of uses outlives a writer: a sequence whose rows were only read is named once more in the log, so that the
    last record that names a sequence tells its age.
    """

    def __init__(self, size: int, policy: str, geometry: Geometry) -> None:
        self.blocks, self.lru = size // geometry.block_bytes, policy == "lru"
        if policy not in POLICIES:
            raise SpecError(f"when_full is {policy!r}, want {' or '.join(POLICIES)}")
        if self.blocks < _LEAST_BLOCKS:
            least = _LEAST_BLOCKS * geometry.block_bytes
            raise SpecError(f"cap is {size} bytes, want {least} or more: {_LEAST_BLOCKS} erase blocks of this device")
        self._uses: dict[int, None] = {}  # ids, the one used last at the end

    def touch(self, number: int) -> None:
        """A sequence was used."""
        self._uses.pop(number, None)
        self._uses[number] = None

    def oldest(self, index: LogIndex, spared: Collection[int]) -> int | None:
        """Id of the sequence that was used least recently, None if there is none but those spared."""
        order = {number: n for n, number in enumerate(self._uses)}
        ages = {
            number: (number in order, order.get(number, own.last_lsn))
            for number, own in index.sequences.items() if number not in spared
        }  # fmt: skip
        return min(ages, key=ages.__getitem__, default=None)

    def spared(self, records: Sequence[Record]) -> set[int]:
        """Ids of sequences that records are for, or stand on. What is of no sequence is for the one used last."""
        found = {int(record.header["sequence"]) for record in records}
        found |= {int(record.header["parent"]) for record in records if record.kind == Kind.SEQUENCE}
        return found | set(list(self._uses)[-1:] if 0 in found else ())

    def records(self, index: LogIndex) -> list[Record]:
        """What keeps the order of uses for the next writer."""
        if not self.lru:
            return []
        used = [index.sequences[number] for number in self._uses if number in index.sequences]
        others = [own.last_lsn for own in index.sequences.values() if own not in used]
        ages = [max(others, default=0), *(own.last_lsn for own in used)]
        return [] if ages == sorted(ages) else [own.info.record() for own in used]
