"""From where each stream's tokens lie to strips: runs of tokens that kernels take in one go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.columns import FORM, KEPT, PLACE, POSITION, START, TOKENS, place_column
from kvcodec.attention.dictionaries import Atoms
from kvcodec.attention.products import Books
from kvcodec.attention.trained import Trained, header_at, header_of
from kvcodec.attention.trellises import Paths
from kvcodec.codecs import codec_for
from kvcodec.codecs.product import Product
from kvcodec.codecs.sections import scale_shape, sparse_sections
from kvcodec.errors import SpecError
from kvcodec.layout import CHANNEL_LANE_TOKENS, TILE_LANES, Axis, CodecId, DtypeId, StreamId
from kvcodec.sparse_spec import SparseCodes
from kvcodec.spec import CodecSpec

BLOCK = CHANNEL_LANE_TOKENS
_NOTHING = np.empty(0, np.int64)
_REBUILT = {DtypeId.BFLOAT16: 1, DtypeId.FLOAT16: 2}


class Form(NamedTuple):
    """How kernels read a record: the columns of kernels.forms.Form, what its codec is, and whether it is a copy of one
    in memory.
    """

    bits: int
    by_channel: int
    group: int
    zeros: int
    codes: int
    columns: int
    head_stride: int
    row_stride: int
    half: int
    terms: int = 0
    sets: int = 0
    low: int = 0
    read: int = 0
    dictionary: int = 0
    rebuilt: int = 0
    copied: int = 0

    def bytes_read(self, tokens: int, dim: int) -> int:
        """Bytes of one head that a strip of `tokens` tokens reads, whole tiles of them, but for rows kept otherwise."""
        if self.bits == 16:
            return 2 * tokens * dim
        tiles = -(-tokens // TILE_LANES) * TILE_LANES
        if self.terms:
            return BLOCK * (self.read + -(-self.terms * self.bits // 8)) + 2 * tiles
        scales = dim * -(-tokens // self.group) if self.by_channel else tiles * -(-dim // self.group)
        return tiles * dim * self.bits // 8 + scales * (4 if self.zeros else 2)

    @property
    def coded(self) -> bool:
        """Whether it is of codes over a dictionary, where they lie."""
        return bool(self.terms) and bool(self.bits) and not self.copied

    def lowered(self, low: int) -> Form:
        """The form of each row's first `low` atoms; the form itself where nothing is left out. Raises SpecError."""
        if not self.coded or self.terms <= low:
            return self
        own = header_at(self.dictionary)
        assert isinstance(own, Atoms)
        codes = SparseCodes(self.terms, self.bits, bool(self.sets), self.low, size=own.size)
        return self._replace(terms=low, low=0, read=codes.first_bytes(low))


def form_table(forms: list[Form]) -> NDArray[np.int64]:
    """Forms as kernels take them, a row each."""
    table = np.array(forms, np.int64).reshape(-1, len(Form._fields))
    return np.ascontiguousarray(table[:, : Form._fields.index("copied")])


def grouped_form(spec: CodecSpec, stream: StreamId, tokens: int, dim: int) -> Form:
    """Form of a GROUP record of grouped integers: `tokens` tokens of `dim` channels a head."""
    codec = codec_for(spec, stream)
    sections = codec.sections(tokens, dim)
    columns = scale_shape(tokens, dim, spec.axis, spec.group, codec.channel_lane)[1]
    zeros = 0 if spec.symmetric else sections.scales
    by_channel = int(spec.axis == Axis.CHANNEL)
    return Form(spec.bits, by_channel, spec.group, zeros, sections.metadata, columns, sections.total, 0, 0)


def raw_form(head_stride: int, row_stride: int, dtype: DtypeId) -> Form:
    """Form of raw rows: bytes from one head to the next, and from one token to the next."""
    return Form(16, 0, 0, 0, 0, 0, head_stride, row_stride, int(dtype == DtypeId.FLOAT16))


def sparse_form(codes: SparseCodes, tokens: int, atoms: Atoms, rebuilt: int = 0) -> Form:
    """Form of a GROUP record of `tokens` rows of codes over a dictionary. rebuilt: see kernels/forms.py."""
    codes = codes.bound_to(atoms.size, codes.basis)
    sections = sparse_sections(tokens, codes.code_bytes)
    strides = codes.index_bytes, sections.total, codes.code_bytes
    kept = codes.atoms, int(codes.sets), codes.low, codes.index_bytes
    return Form(codes.bits, 0, 0, 0, sections.metadata, *strides, 0, *kept, atoms.address, rebuilt)


def product_form(tokens: int, books: Books, rebuilt: int = 0) -> Form:
    """Form of a GROUP record of `tokens` rows of product codes. rebuilt: see kernels/forms.py."""
    return _shaped_form(tokens, books.groups, books.address, rebuilt)


def trellis_form(tokens: int, paths: Paths, rebuilt: int) -> Form:
    """Form of a GROUP record of `tokens` rows of trellis codes. rebuilt: see kernels/forms.py; above 0."""
    return _shaped_form(tokens, paths.code_bytes, paths.address, rebuilt)


def _shaped_form(tokens: int, size: int, address: int, rebuilt: int) -> Form:
    """Of rows whose codes have so many bytes."""
    sections = sparse_sections(tokens, size)
    return Form(0, 0, 0, 0, sections.metadata, size, sections.total, size, 0, size, 0, 0, size, address, rebuilt)


def form_of(
    spec: CodecSpec,
    stream: StreamId,
    tokens: int,
    dim: int,
    dtype: DtypeId,
    trained: Trained | None = None,
    *,
    mixed: bool = False,
) -> Form:
    """Form of a GROUP record; of what takes something trained, good as long as that is there. Raises SpecError.

    mixed: some of its rows are kept otherwise.
    """
    if spec.is_trained:
        return _trained_form(spec, tokens, trained, _REBUILT[dtype] if mixed else 0, _REBUILT[dtype])
    if spec.codec == CodecId.RAW:
        return raw_form(codec_for(spec, stream).sections(tokens, dim).total, 2 * dim, dtype)
    return grouped_form(spec, stream, tokens, dim)


def _trained_form(spec: CodecSpec, tokens: int, trained: Trained | None, rebuilt: int, turned: int) -> Form:
    """rebuilt: what the form says where no row turns; turned: where rows do, are of trellis codes, or predicted."""
    predicted = isinstance(trained, Product) and trained.prediction is not None
    if trained is not None and (trained.rotation is not None or spec.trellis is not None or predicted):
        rebuilt = turned
    header = None if trained is None else header_of(trained, rebuilding=bool(rebuilt))
    if spec.sparse is not None and isinstance(header, Atoms):
        return sparse_form(spec.sparse, tokens, header, rebuilt)
    if spec.product is not None and isinstance(header, Books):
        return product_form(tokens, header, rebuilt)
    if spec.trellis is not None and isinstance(header, Paths):
        return trellis_form(tokens, header, rebuilt)
    raise SpecError(f"{spec} needs {spec.wants}")


class Spans(NamedTuple):
    """Where the tokens of one stream lie, in token order: int64 arrays of one length.

    first, end: tokens of the sequence. place: address of the record's first head, or of its first row. form: number of
    the record's form. start: token of the record that is token `first` of the sequence. kept: address of the record's
    table of rows kept otherwise, or 0.
    """

    first: NDArray[np.int64] = _NOTHING
    end: NDArray[np.int64] = _NOTHING
    place: NDArray[np.int64] = _NOTHING
    form: NDArray[np.int64] = _NOTHING
    start: NDArray[np.int64] = _NOTHING
    kept: NDArray[np.int64] = _NOTHING

    @classmethod
    def join(cls, parts: list[Spans]) -> Spans:
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True))) if parts else cls()


def cut_strips(streams: list[Spans], ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Strips (n, columns of kernels/forms.py) of the tokens of ranges (m, 2), ascending; no query is turned yet.

    Raises LookupError where a stream lacks a token. A strip lies within one range, and within 64 tokens of one record
    of each stream that begin at a multiple of 64.
    """
    edges = [ranges.reshape(-1)]
    for spans in streams:
        edges += [spans.first, spans.end, _block_edges(spans)]
    cuts = np.unique(np.concatenate(edges))
    first, end = cuts[:-1], cuts[1:]
    within = np.searchsorted(ranges[:, 0], first, side="right") - 1
    inside = (within >= 0) & (end <= ranges[np.maximum(within, 0), 1]) if len(ranges) else np.zeros(len(first), bool)
    first, end = first[inside], end[inside]
    strips = np.zeros((len(first), place_column(len(streams))), np.int64)
    strips[:, TOKENS], strips[:, POSITION] = end - first, first
    for n, spans in enumerate(streams):
        at = np.searchsorted(spans.first, first, side="right") - 1
        if len(at) and (at[0] < 0 or (end > spans.end[at]).any()):
            raise LookupError
        column = place_column(n)
        strips[:, column + PLACE], strips[:, column + FORM] = spans.place[at], spans.form[at]
        strips[:, column + START] = spans.start[at] + first - spans.first[at]
        strips[:, column + KEPT] = spans.kept[at]
    return strips


def _block_edges(spans: Spans) -> NDArray[np.int64]:
    """Tokens of the sequence at which a record's blocks of 64 tokens begin."""
    blocks = (spans.start + spans.end - spans.first - 1) // BLOCK - spans.start // BLOCK
    total = int(blocks.sum())
    if not total:
        return _NOTHING
    which = np.repeat(np.arange(len(blocks)), blocks)
    number = np.arange(total) - np.repeat(np.cumsum(blocks) - blocks, blocks) + 1
    edges: NDArray[np.int64] = spans.first[which] + (spans.start[which] // BLOCK + number) * BLOCK - spans.start[which]
    return edges


def tile_ranges(spans: Spans, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranges (m, 2) of whole tiles of 16 tokens, as the records of a stream have them, that hold ascending tokens.

    Tiles that follow each other are one range, so that all tokens are read as a slice of them is. Raises LookupError
    where a token is lacking.
    """
    at = np.searchsorted(spans.first, tokens, side="right") - 1
    if len(at) and (at[0] < 0 or (tokens >= spans.end[at]).any()):
        raise LookupError
    inside = spans.start[at] + tokens - spans.first[at]
    begin = spans.first[at] + inside // TILE_LANES * TILE_LANES - spans.start[at]
    first, end = np.maximum(begin, spans.first[at]), np.minimum(begin + TILE_LANES, spans.end[at])
    apart, edge = first[1:] > end[:-1], np.ones(min(len(tokens), 1), bool)
    return np.stack([first[np.concatenate([edge, apart])], end[np.concatenate([apart, edge])]], axis=1)
