"""Records without bytes: what a log does with them hangs on no more than their kinds and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvcodec.layout import HEADERS, Kind
from kvcodec.log.located import NOWHERE, Place


@dataclass(eq=False)
class RecordShape:
    """What records that differ in no size have in common.

    error_bytes: of the body, that are no rows. weights: bytes of each stream (of each layer of a STEP). heads: into how
    many it could be split; of: the shape of so many of them.
    """

    kind: Kind
    body_bytes: int
    error_bytes: int = 0
    weights: Mapping[int, int] = field(default_factory=dict)
    heads: int = 1
    of: Callable[[int], RecordShape] | None = None

    def __post_init__(self) -> None:
        self._splits: dict[int, tuple[RecordShape, RecordShape]] = {}
        self.header_bytes = HEADERS[self.kind].itemsize
        self.size = self.header_bytes + self.body_bytes
        self.header = {
            "kind": int(self.kind), "header_bytes": self.header_bytes, "body_bytes": self.body_bytes,
            "error_bytes": self.error_bytes,
        }  # fmt: skip

    def split(self, heads: int) -> tuple[RecordShape, RecordShape]:
        """Shapes of the first heads and of the others."""
        if heads not in self._splits:
            assert self.of is not None
            self._splits[heads] = self.of(heads), self.of(self.heads - heads)
        return self._splits[heads]


class Origin:
    """What the parts and copies of one record share: whose it is, and for which streams it is still read.

    sequence: number, 0 if it is no sequence's.
    """

    __slots__ = ("alive", "end", "first", "parts", "sequence")

    def __init__(self, sequence: int, streams: set[int], first: int = 0, end: int = 0) -> None:
        self.sequence, self.alive, self.first, self.end = sequence, streams, first, end
        self.parts: list[SizedRecord] = []


class SizedRecord:
    """Stands for a Record that is appended, and for the Located one that it becomes, which may be appended again as a
    copy. copied: what it is a copy of.
    """

    __slots__ = ("copied", "lsn", "origin", "place", "shape")

    def __init__(
        self, shape: RecordShape, origin: Origin, place: Place = NOWHERE, lsn: int = 0,
        copied: SizedRecord | None = None,
    ) -> None:  # fmt: skip
        self.shape, self.origin, self.place, self.lsn, self.copied = shape, origin, place, lsn, copied

    @property
    def kind(self) -> int:
        return self.shape.kind

    @property
    def size(self) -> int:
        return self.shape.size

    @property
    def pieces(self) -> int:
        return self.shape.heads

    @property
    def header(self) -> Mapping[str, int]:
        """As that of a record, by the names of its fields."""
        return self.shape.header

    @property
    def split(self) -> Callable[[int], tuple[SizedRecord, SizedRecord]] | None:
        """See Record. A copy is not split."""
        return self._split if self.shape.of is not None and self.place is NOWHERE else None

    def _split(self, heads: int) -> tuple[SizedRecord, SizedRecord]:
        one, other = self.shape.split(heads)
        return SizedRecord(one, self.origin), SizedRecord(other, self.origin)

    @property
    def weight(self) -> int:
        """Its bytes while any stream is read from it."""
        return self.size if self.origin.alive else 0
