"""Records in which every vector meets an error bound: as codes where it does so, else as INT4 or raw.

What the codes are is each codec's own. A record has *room* for codes of one length; where vectors can be coded by codes
of several lengths, its room is what makes it smallest, and vectors that need more are kept otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.bitmap import CODES, INT4, INT4_SPEC, RAW, Mixed, bitmap_bytes, join_rows, row_sizes, take_mixed
from kvcodec.codecs.codec import Encoded, split_records
from kvcodec.codecs.rows import GroupedRows
from kvcodec.codecs.vectors import VectorCodec, figures_of, narrow, widen
from kvcodec.errors import CorruptRecord, SpecError
from kvcodec.kernels.steps import INFINITE, LEAST_NORMAL
from kvcodec.layout import CHANNEL_LANE_TOKENS, DtypeId, StreamId, align
from kvcodec.sparse_spec import ERROR_STEPS
from kvcodec.spec import CodecSpec

_SLACK = 1 - 2.0**-40  # whoever adds up the squares in another order finds the bound met too
_AT_ONCE = 4096  # vectors


class BoundedRecord(NamedTuple):
    """A coded record. errors: uint16 (heads,), Q15. spec: with the room that it has."""

    mixed: Mixed
    errors: NDArray[np.uint16]
    spec: CodecSpec


class Tried(NamedTuple):
    """Vectors as codes, which are of their codec's kind. need: int64 (n,), the room with which the bound is met, beyond
    all rooms where it is not. rows: float32 (n, d), decoded.
    """

    codes: Any
    need: NDArray[np.int64]
    rows: NDArray[np.float32]


class _Met(NamedTuple):
    """Vectors as codes and otherwise. kinds: INT4 or RAW, what they are otherwise; int4: coded rows. rows: float32 by
    kind (3, n, d) that are decoded.
    """

    tried: Tried
    kinds: NDArray[np.uint8]
    int4: NDArray[np.uint8]
    rows: NDArray[np.float32]


class BoundedCodec(VectorCodec):
    """Records of vectors none of which errs by more than the spec's bound.

    For every vector x and its decoded row y in 16 bits, |x - y| <= bound * |x|, in float64.
    """

    @property
    @abstractmethod
    def rooms(self) -> dict[int, int]:
        """Bytes of a coded row by the rooms that a record may have."""

    @abstractmethod
    def with_room(self, room: int) -> CodecSpec:
        """The spec of a record of that room."""

    @abstractmethod
    def with_spec(self, spec: CodecSpec) -> Self:
        """The codec of records of that spec, which is of another room."""

    @abstractmethod
    def try_codes(
        self,
        vectors: NDArray[np.float32],
        places: NDArray[np.int64],
        limits: NDArray[np.float64],
        dtype: DtypeId,
    ) -> Tried:
        """Vectors (n, d) as codes. places: (n,) positions. limits: (n,), squared errors that are within the bound."""

    @abstractmethod
    def lay_codes(self, codes: Any, part: slice, kept: NDArray[np.bool_], tokens: int, room: int) -> NDArray[np.uint8]:
        """Sections (heads, bytes) of a record of `part` of the codes, token by token; zeros for those not `kept`."""

    @abstractmethod
    def are_used(self, codes: Any) -> NDArray[np.bool_]:
        """Which codes, of take_codes, are not those of zeros that stand for a row that is kept otherwise."""

    @cached_property
    def _int4(self) -> GroupedRows:
        return GroupedRows(INT4_SPEC, StreamId.K)

    def encode(
        self,
        rows: NDArray[np.uint16],  # noqa: ARG002
        dtype: DtypeId,  # noqa: ARG002
        tokens: int,  # noqa: ARG002
        *,
        alike: bool = False,  # noqa: ARG002
    ) -> Encoded:
        """Raises SpecError: such records are not of one size. See `encode_records`."""
        raise SpecError(f"{self.spec} makes records of different sizes: only a log holds them")

    def encode_records(self, rows: NDArray[np.uint16], dtype: DtypeId, tokens: int) -> list[BoundedRecord]:
        """Records of `tokens` tokens each for finite rows (records * tokens, heads, dim). ShapeError."""
        records, (_, heads, dim) = split_records(rows, tokens), rows.shape
        self.rows.check_dim(dim)
        made: list[BoundedRecord] = []
        step = max(1, _AT_ONCE // (tokens * heads))
        for first in range(0, records, step):
            part = rows[first * tokens : (first + step) * tokens]
            met = self._meet(np.ascontiguousarray(part), dtype, self.rows.positions(len(rows))[first * tokens :])
            for start in range(0, len(met.kinds), tokens * heads):
                own = slice(start, start + tokens * heads)
                bits = part.reshape(-1, dim)[own].reshape(tokens, heads, dim)
                made.append(self._record(met, own, bits, dtype))
        return made

    def decode_mixed(
        self, body: NDArray[np.uint8], bitmap: int, tokens: int, dim: int, dtype: DtypeId, heads: int, *, wide: bool
    ) -> NDArray[Any]:
        """Rows (tokens, heads, dim) of a body with a bitmap of that many bytes: uint16 bits of dtype, or float32.

        Raises CorruptRecord with the byte of the body where it is not what an encoder writes.
        """
        mixed, codes = self._take_mixed(body, bitmap, tokens, dim, heads)
        rows = self.rebuild(codes).reshape(tokens, heads, dim)
        rows = self.rows.turn(rows, self.rows.positions(tokens))
        out: NDArray[Any] = rows if wide else narrow(rows, dtype)
        int4, raw = mixed.rows(INT4, dim), mixed.rows(RAW, dim)
        by_head = out.transpose(1, 0, 2)
        by_head[mixed.kinds == INT4] = self._int4.decode(int4[:, None], dim, dtype, as_float32=wide)[:, 0]
        bits = np.ascontiguousarray(raw).view("<u2")
        by_head[mixed.kinds == RAW] = widen(bits, dtype) if wide else bits
        return out

    def check_mixed(self, body: NDArray[np.uint8], bitmap: int, tokens: int, dim: int, heads: int) -> Mixed:
        """The parts of such a body. Raises CorruptRecord as decode_mixed does."""
        return self._take_mixed(body, bitmap, tokens, dim, heads)[0]

    def _take_mixed(self, body: NDArray[np.uint8], bitmap: int, tokens: int, dim: int, heads: int) -> tuple[Mixed, Any]:
        mixed = take_mixed(body, bitmap, heads, tokens, self.sections(tokens, dim).total, dim)
        try:
            codes = self.take_codes(mixed.sections[None], tokens)
        except CorruptRecord as error:
            raise CorruptRecord(bitmap + error.offset, error.why) from None
        _check_unused(mixed, self.are_used(codes), bitmap)
        _check_scales(mixed.rows(INT4, dim), mixed, len(body), dim)
        return mixed, codes

    def recode(self, rows: NDArray[np.uint16], dtype: DtypeId) -> NDArray[np.uint16]:
        """Rows (tokens, heads, dim) as a record of them is decoded."""
        return self.decode_record(self.encode_records(rows, dtype, len(rows))[0], len(rows), dtype)

    def decode_record(self, one: BoundedRecord, tokens: int, dtype: DtypeId) -> NDArray[np.uint16]:
        """Rows (tokens, heads, dim) of a record."""
        body, stored, dim = one.mixed.join(), one.mixed.bitmap_bytes, self.rows.dim
        own, heads = self.with_spec(one.spec), len(one.mixed.kinds)
        if not stored:
            return own.decode(body.reshape(heads, -1), tokens, dim, dtype)
        return own.decode_mixed(body, stored, tokens, dim, dtype, heads, wide=False)

    def _meet(self, part: NDArray[np.uint16], dtype: DtypeId, positions: NDArray[np.int64]) -> _Met:
        """Vectors of rows (tokens, heads, d) both ways."""
        heads, dim = part.shape[1:]
        bits = part.reshape(-1, dim)
        vectors, places = widen(bits, dtype), np.repeat(positions[: len(part)], heads)
        limits = _squares(vectors) * (self.spec.error / ERROR_STEPS) ** 2 * _SLACK
        tried = self.try_codes(vectors, places, limits, dtype)
        int4 = self._int4.encode(bits[:, None], dtype)
        coarse = self._int4.decode(int4, dim, dtype, as_float32=True)[:, 0]
        _, small, whole = row_sizes(dim).tolist()
        fine = (missed(vectors, coarse, dtype) <= limits) & (small < whole)
        kinds = np.where(fine, INT4, RAW).astype(np.uint8)
        return _Met(tried, kinds, int4[:, 0], np.stack([tried.rows, coarse, vectors]))

    def _record(self, met: _Met, part: slice, bits: NDArray[np.uint16], dtype: DtypeId) -> BoundedRecord:
        """A record of `part` of the vectors, (tokens * heads, d), whose bits are (tokens, heads, d)."""
        tokens, heads, dim = bits.shape
        need, others = met.tried.need[part], met.kinds[part]
        room = self._choose_room(need, others, heads, tokens)
        kinds = np.where(need <= room, CODES, others)
        sections = self.lay_codes(met.tried.codes, part, kinds == CODES, tokens, room)
        by_head = np.ascontiguousarray(kinds.reshape(tokens, heads).T)
        int4 = met.int4[part].reshape(tokens, heads, -1).swapaxes(0, 1)[by_head == INT4]
        raw = bits.swapaxes(0, 1)[by_head == RAW].astype("<u2").view(np.uint8)
        back = met.rows[:, part][kinds, np.arange(len(kinds))].reshape(bits.shape)
        figures = figures_of(widen(bits, dtype), back, 1)[0]
        mixed = Mixed(by_head, sections, join_rows(by_head, int4, raw, dim))
        return BoundedRecord(mixed, figures, self.with_room(room))

    def _choose_room(self, need: NDArray[np.int64], others: NDArray[np.uint8], heads: int, tokens: int) -> int:
        """The room with which a record of vectors is smallest; of those, with which most vectors are codes."""
        places, bitmap = heads * align(tokens, CHANNEL_LANE_TOKENS), bitmap_bytes(heads, tokens)
        rooms, sizes = self.rooms, row_sizes(self.rows.dim)[others]

        def cost(room: int) -> tuple[int, int, int]:
            beyond = need > room
            count = int(np.count_nonzero(beyond))
            return places * rooms[room] + int(sizes[beyond].sum()) + bitmap * (count > 0), count, room

        return min(rooms, key=cost)


def missed(vectors: NDArray[np.float32], rows: NDArray[np.float32], dtype: DtypeId) -> NDArray[np.float64]:
    """float64 (n,): squared errors of rows (n, d) once they are rounded to 16 bits."""
    return _squares(vectors.astype(np.float64) - widen(narrow(rows, dtype), dtype))


def _squares(x: NDArray[Any]) -> NDArray[np.float64]:
    """float64 (n,): squared lengths of (n, d), added up channel by channel."""
    wide = x.astype(np.float64)
    sums: NDArray[np.float64] = np.add.reduce(np.ascontiguousarray((wide * wide).T), axis=0)
    return sums


def _check_unused(mixed: Mixed, used: NDArray[np.bool_], start: int) -> None:
    """Raise CorruptRecord where a row that is kept otherwise has codes. start: of the sections in the body."""
    bad = np.flatnonzero(used & (mixed.kinds.T.reshape(-1) != CODES))
    if len(bad):
        token, head = divmod(int(bad[0]), len(mixed.kinds))
        raise CorruptRecord(start + head * mixed.sections.shape[1], f"row {token} of a head: codes beside another row")


def _check_scales(int4: NDArray[np.uint8], mixed: Mixed, end: int, dim: int) -> None:
    """Raise CorruptRecord where a scale of an INT4 row is none. end: of the body."""
    scales = np.ascontiguousarray(int4[:, : 2 * -(-dim // INT4_SPEC.group)]).view("<u2")
    bad = np.flatnonzero(((scales < LEAST_NORMAL) | (scales >= INFINITE)).any(axis=1))
    if len(bad):
        kinds = mixed.kinds.reshape(-1)
        at = int(np.flatnonzero(kinds == INT4)[bad[0]])
        place = end - len(mixed.others) + int(row_sizes(dim)[kinds[:at]].sum())
        raise CorruptRecord(place, f"row {at % mixed.kinds.shape[1]} of a head: a scale that is not a normal bfloat16")
