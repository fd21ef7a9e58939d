"""Records in which every vector meets an error bound: as codes where it does so, else as INT4 or raw.

A vector takes atoms until what is left of it is within the bound; those whose decoded row is not, because integers
round, take more. A record has room for as many atoms as make it smallest: vectors that need more are kept otherwise.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.bitmap import CODES, INT4, INT4_SPEC, RAW, Mixed, bitmap_bytes, join_rows, row_sizes, take_mixed
from kvcodec.codecs.codec import Encoded, split_records
from kvcodec.codecs.dictionary import Dictionary
from kvcodec.codecs.planes import lay_planes, pack_rows
from kvcodec.codecs.pursuit import Codes, pursue
from kvcodec.codecs.rows import GroupedRows
from kvcodec.codecs.sparse import SparseCodec
from kvcodec.codecs.vectors import figures_of, narrow, widen
from kvcodec.errors import CorruptRecord, SpecError
from kvcodec.kernels.steps import INFINITE, LEAST_NORMAL
from kvcodec.layout import CHANNEL_LANE_TOKENS, DtypeId, StreamId, align
from kvcodec.sparse_spec import ERROR_STEPS
from kvcodec.spec import CodecSpec

_ROUNDS = 5  # of taking more atoms, all of them in the last one
_AIM = 0.97  # of the squared error that rounding left room for
_SLACK = 1 - 2.0**-40  # whoever adds up the squares in another order finds the bound met too
_AT_ONCE = 4096  # vectors


class BoundedRecord(NamedTuple):
    """A coded record. errors: uint16 (heads,), Q15. spec: with the atoms that it has room for."""

    mixed: Mixed
    errors: NDArray[np.uint16]
    spec: CodecSpec


class _Met(NamedTuple):
    """Vectors as codes and otherwise. need: atoms with which the bound is met, beyond all where it is not. kinds: INT4
    or RAW, what they are otherwise; int4: coded rows. rows: float32 by kind (3, n, d) that are decoded.
    """

    codes: Codes
    need: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    int4: NDArray[np.uint8]
    rows: NDArray[np.float32]


class BoundedCodec(SparseCodec):
    """Records of vectors over one dictionary, none of which errs by more than the spec's bound.

    For every vector x and its decoded row y in 16 bits, |x - y| <= bound * |x|, in float64.
    """

    def __init__(self, spec: CodecSpec, dictionary: Dictionary, first: int = 0) -> None:
        super().__init__(spec, dictionary, first)
        self._int4 = GroupedRows(INT4_SPEC, StreamId.K)

    @cached_property
    def _sizes(self) -> dict[int, int]:
        """Bytes of a row by atoms."""
        codes = self._rows.codes
        return {n: codes.with_atoms(n).row_bytes for n in range(codes.low + 1, codes.atoms + 1)}

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
        self._rows.check_dim(dim)
        made: list[BoundedRecord] = []
        step = max(1, _AT_ONCE // (tokens * heads))
        for first in range(0, records, step):
            part = rows[first * tokens : (first + step) * tokens]
            met = self._meet(np.ascontiguousarray(part), dtype, self._rows.positions(len(rows))[first * tokens :])
            for start in range(0, len(met.need), tokens * heads):
                own = slice(start, start + tokens * heads)
                bits = part.reshape(-1, dim)[own].reshape(tokens, heads, dim)
                made.append(self._record(_take(met, own), bits, dtype))
        return made

    def decode_mixed(
        self, body: NDArray[np.uint8], bitmap: int, tokens: int, dim: int, dtype: DtypeId, heads: int, *, wide: bool
    ) -> NDArray[Any]:
        """Rows (tokens, heads, dim) of a body with a bitmap of that many bytes: uint16 bits of dtype, or float32.

        Raises CorruptRecord with the byte of the body where it is not what an encoder writes.
        """
        mixed, codes = self._take_mixed(body, bitmap, tokens, dim, heads)
        rows = self._rows.rebuild(codes).reshape(tokens, heads, dim)
        rows = self._rows.turn(rows, self._rows.positions(tokens))
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

    def _take_mixed(
        self, body: NDArray[np.uint8], bitmap: int, tokens: int, dim: int, heads: int
    ) -> tuple[Mixed, Codes]:
        mixed = take_mixed(body, bitmap, heads, tokens, self.sections(tokens, dim).total, dim)
        try:
            codes = self._unpack(mixed.sections[None], tokens)
        except CorruptRecord as error:
            raise CorruptRecord(bitmap + error.offset, error.why) from None
        _check_unused(mixed, codes, bitmap)
        _check_scales(mixed.rows(INT4, dim), mixed, len(body), dim)
        return mixed, codes

    def recode(self, rows: NDArray[np.uint16], dtype: DtypeId) -> NDArray[np.uint16]:
        """Rows (tokens, heads, dim) as a record of them is decoded."""
        return self.decode_record(self.encode_records(rows, dtype, len(rows))[0], len(rows), dtype)

    def decode_record(self, one: BoundedRecord, tokens: int, dtype: DtypeId) -> NDArray[np.uint16]:
        """Rows (tokens, heads, dim) of a record."""
        body, stored, dim = one.mixed.join(), one.mixed.bitmap_bytes, self._rows.dictionary.dim
        own, heads = self._with(one.spec), len(one.mixed.kinds)
        if not stored:
            return own.decode(body.reshape(heads, -1), tokens, dim, dtype)
        return own.decode_mixed(body, stored, tokens, dim, dtype, heads, wide=False)

    def _with(self, spec: CodecSpec) -> BoundedCodec:
        """The codec of the same rows with another number of atoms."""
        return BoundedCodec(spec, self._rows.dictionary, self.first)

    def _meet(self, part: NDArray[np.uint16], dtype: DtypeId, positions: NDArray[np.int64]) -> _Met:
        """Vectors of rows (tokens, heads, d) both ways."""
        heads, dim = part.shape[1:]
        bits = part.reshape(-1, dim)
        vectors, places = widen(bits, dtype), np.repeat(positions[: len(part)], heads)
        limits = _squares(vectors) * (self._rows.codes.error / ERROR_STEPS) ** 2 * _SLACK
        codes, rows, errors = self._pursue(vectors, places, limits, dtype)
        need = np.where(errors <= limits, codes.counts, self._rows.codes.atoms + 1)
        int4 = self._int4.encode(bits[:, None], dtype)
        coarse = self._int4.decode(int4, vectors.shape[1], dtype, as_float32=True)[:, 0]
        _, small, whole = row_sizes(vectors.shape[1]).tolist()
        fine = (_missed(vectors, coarse, dtype) <= limits) & (small < whole)
        kinds = np.where(fine, INT4, RAW).astype(np.uint8)
        return _Met(codes, need, kinds, int4[:, 0], np.stack([rows, coarse, vectors]))

    def _pursue(
        self,
        vectors: NDArray[np.float32],
        places: NDArray[np.int64],
        limits: NDArray[np.float64],
        dtype: DtypeId,
    ) -> tuple[Codes, NDArray[np.float32], NDArray[np.float64]]:
        """Codes, the float32 rows that they are, and the squared errors of those in 16 bits. places: (n,) positions."""
        own, dictionary = self._rows.codes, self._rows.dictionary
        before = self._rows.turn_back(vectors, places)
        codes = pursue(before, dictionary, own, targets=limits)
        rows = self._rows.turn(self._rows.rebuild(codes), places)
        errors, targets = _missed(vectors, rows, dtype), limits.copy()
        for n in range(_ROUNDS):
            more = np.flatnonzero((errors > limits) & (codes.counts < own.atoms))
            if not len(more):
                break
            targets[more] *= _AIM * limits[more] / errors[more]
            aims = targets[more] if n < _ROUNDS - 1 else np.full(len(more), -1.0)
            again = pursue(before[more], dictionary, own, targets=aims)
            rows[more] = self._rows.turn(self._rows.rebuild(again), places[more])
            errors[more] = _missed(vectors[more], rows[more], dtype)
            codes.indices[more], codes.coefficients[more] = again.indices, again.coefficients
            codes.scales[more], codes.counts[more] = again.scales, again.counts
        return codes, rows, errors

    def _record(self, met: _Met, bits: NDArray[np.uint16], dtype: DtypeId) -> BoundedRecord:
        """A record of vectors (tokens * heads, d) whose bits are (tokens, heads, d)."""
        tokens, heads, dim = bits.shape
        atoms = self._choose_atoms(met, heads, tokens)
        codes = self._rows.codes.with_atoms(atoms)
        kinds = np.where(met.need <= atoms, CODES, met.kinds)
        other = kinds != CODES
        packed = pack_rows(_cut(met.codes, atoms, other), codes)
        sections = lay_planes(packed.reshape(tokens, heads, -1), tokens, codes)[0]
        by_head = np.ascontiguousarray(kinds.reshape(tokens, heads).T)
        int4 = met.int4.reshape(tokens, heads, -1).swapaxes(0, 1)[by_head == INT4]
        raw = bits.swapaxes(0, 1)[by_head == RAW].astype("<u2").view(np.uint8)
        others = join_rows(by_head, int4, raw, dim)
        back = met.rows[kinds, np.arange(len(kinds))].reshape(bits.shape)
        figures = figures_of(widen(bits, dtype), back, 1)[0]
        return BoundedRecord(Mixed(by_head, sections, others), figures, self.spec.with_atoms(atoms))

    def _choose_atoms(self, met: _Met, heads: int, tokens: int) -> int:
        """Atoms with which a record of the vectors is smallest; of those, with which most vectors are codes."""
        places, bitmap = heads * align(tokens, CHANNEL_LANE_TOKENS), bitmap_bytes(heads, tokens)
        sizes = row_sizes(self._rows.dictionary.dim)[met.kinds]

        def cost(atoms: int) -> tuple[int, int, int]:
            beyond = met.need > atoms
            others = int(np.count_nonzero(beyond))
            return places * self._sizes[atoms] + int(sizes[beyond].sum()) + bitmap * (others > 0), others, atoms

        return min(self._sizes, key=cost)


def _take(met: _Met, part: slice) -> _Met:
    own = met.codes
    codes = Codes(own.indices[part], own.coefficients[part], own.scales[part], own.counts[part])
    return _Met(codes, met.need[part], met.kinds[part], met.int4[part], met.rows[:, part])


def _cut(codes: Codes, atoms: int, other: NDArray[np.bool_]) -> Codes:
    """A copy with room for `atoms` atoms, and of some vectors none."""
    kept = ~other
    return Codes(
        codes.indices[:, :atoms] * kept[:, None], codes.coefficients[:, :atoms] * kept[:, None],
        codes.scales * kept, codes.counts * kept,
    )  # fmt: skip


def _squares(x: NDArray[Any]) -> NDArray[np.float64]:
    """float64 (n,): squared lengths of (n, d), added up channel by channel."""
    wide = x.astype(np.float64)
    sums: NDArray[np.float64] = np.add.reduce(np.ascontiguousarray((wide * wide).T), axis=0)
    return sums


def _missed(vectors: NDArray[np.float32], rows: NDArray[np.float32], dtype: DtypeId) -> NDArray[np.float64]:
    """float64 (n,): squared errors of rows once they are rounded to 16 bits."""
    return _squares(vectors.astype(np.float64) - widen(narrow(rows, dtype), dtype))


def _check_unused(mixed: Mixed, codes: Codes, start: int) -> None:
    """Raise CorruptRecord where a row that is kept otherwise has codes. start: of the sections in the body."""
    used = (codes.scales > 0) | codes.indices.any(axis=1) | codes.coefficients.any(axis=1)
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
