"""The coded K that V of the same tokens is predicted from, as a log has it (formats/record.md#predicted-v)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.codec import take_body
from kvcodec.codecs.predicted_rows import GivenRows
from kvcodec.codecs.product_rows import ProductCodec
from kvcodec.codecs.vectors import SIDE_BYTES
from kvcodec.errors import CorruptRecord
from kvcodec.flash.image import Bytes
from kvcodec.kernels.product import SHAPES
from kvcodec.layout import StreamId
from kvcodec.log.frame import Record
from kvcodec.log.reader import Log
from kvcodec.store.dictionaries import Dictionaries, StreamCodecs
from kvcodec.store.extents import Extent, ExtentMap
from kvcodec.store.headers import read_spec
from kvcodec.store.outgoing import is_coded
from kvcodec.store.reading import load_part, read_codes
from kvcodec.store.sequence_index import Key, SequenceIndex
from kvcodec.store.window import OpenRows


class Piece(NamedTuple):
    """Coded rows uint8 (tokens, heads, row bytes) of K from token `first` on."""

    first: int
    rows: NDArray[np.uint8]


class CodedKeys:
    """K of one layer of a sequence as codes. codecs: those of K."""

    def __init__(self, log: Log, extents: ExtentMap, codecs: StreamCodecs) -> None:
        self._log, self._extents, self._codecs = log, extents, codecs

    @property
    def heads(self) -> int:
        """Of K."""
        return self._codecs.stream.heads

    def take(
        self,
        basis: bytes,
        tokens: range,
        needed: range,
        *,
        opened: OpenRows | None = None,
        records: Sequence[Record] = (),
        at: int = 0,
    ) -> GivenRows:
        """Codes of `tokens` by the set `basis`; zeros for those that are nowhere and not `needed`.

        opened: K's open rows, records: GROUP records of K that are in no log yet, both of tokens behind those of the
        log. at: the byte of the file that an error names. Raises CorruptRecord, MissingDictionary.
        """
        product = self._codecs.source(basis)
        out = np.zeros((len(tokens), self.heads, product.groups + SIDE_BYTES), np.uint8)
        known = np.zeros(len(tokens), np.bool_)
        for piece in self._pieces(basis, tokens, needed, opened, records):
            first, end = max(piece.first, tokens.start), min(piece.first + len(piece.rows), tokens.stop)
            if first < end:
                out[first - tokens.start : end - tokens.start] = piece.rows[first - piece.first : end - piece.first]
                known[first - tokens.start : end - tokens.start] = True
        lost = [token for token in needed if not known[token - tokens.start]]
        if lost:
            where = f"layer {self._codecs.layer}, token {lost[0]}"
            raise CorruptRecord(at, f"{where}: V is predicted from the codes of its K, which the log does not hold")
        if (out[:, :, 1] >= SHAPES).any():
            raise CorruptRecord(at, f"layer {self._codecs.layer}: V is predicted from codes of K with a shape of none")
        return GivenRows(product, out, tokens.start)

    def _pieces(
        self, basis: bytes, tokens: range, needed: range, opened: OpenRows | None, records: Sequence[Record]
    ) -> Iterator[Piece]:
        for extent in self._extents.covering(tokens.start, tokens.stop) if tokens else ():
            try:
                piece = self._load(basis, extent)
            except CorruptRecord:
                if extent.first < needed.stop and extent.end > needed.start:
                    raise
                continue
            if piece is not None:
                yield piece
        for record in records:
            header = cast("np.void", record.header[()])
            if int(header["first_token"]) < tokens.stop and read_spec(header).basis == basis:
                body = np.frombuffer(record.body, np.uint8)[int(header["error_bytes"]) :]
                yield Piece(int(header["first_token"]), self._rows_of_group(header, body))
        if opened is not None and is_coded(opened):
            yield Piece(opened.first, opened.rows)

    def _load(self, basis: bytes, extent: Extent) -> Piece | None:
        """The tokens of an extent; None if they are not coded by the set."""
        coded = extent.coded
        if coded.step is not None:
            if coded.step.product is None or coded.step.basis != basis:
                return None
            self._codecs.trained(coded.step)
            return Piece(extent.first, read_codes(self._log, extent, self._codecs.stream))
        parts = []
        for part in coded.parts:
            header, body, at = load_part(self._log, coded, part)
            spec = read_spec(header)
            if spec.product is None or spec.bounded or spec.basis != basis:
                return None
            try:
                parts.append(self._rows_of_group(header, body))
            except CorruptRecord as error:
                raise CorruptRecord(at + error.offset, error.why) from None
            self._log.check_unerased(part.place)
        whole = np.concatenate(parts, axis=1)
        return Piece(extent.first, whole[extent.first - coded.first : extent.end - coded.first])

    def _rows_of_group(self, header: np.void, body: Bytes) -> NDArray[np.uint8]:
        """Coded rows (tokens, heads, row bytes) of a GROUP record. CorruptRecord has a byte of the body."""
        codec = cast("ProductCodec", self._codecs.codec(read_spec(header)))
        heads, tokens = int(header["heads"]), int(header["tokens"])
        sections = take_body(body.reshape(heads, -1), codec.sections(tokens, self._codecs.stream.dim).total)
        return codec.take_codes(sections, tokens).reshape(tokens, heads, -1)


def keys_for(log: Log, dictionaries: Dictionaries, index: SequenceIndex, key: Key) -> CodedKeys | None:
    """The K that V, if the stream is that, may be predicted from; None for other streams."""
    layer, id_ = key
    keys = next((s for s in index.model.layers[layer].streams if s.id == StreamId.K), None)
    if id_ != StreamId.V or keys is None:
        return None
    codecs = StreamCodecs(dictionaries, layer, keys, index.model.dtype_id)
    return CodedKeys(log, index.maps[layer, StreamId.K], codecs)
