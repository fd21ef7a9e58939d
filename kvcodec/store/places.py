"""Where attention finds the tokens of one stream: records in the map, open rows in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvcodec.attention.rows import Found
from kvcodec.attention.strips import Form, Spans, form_of, raw_form
from kvcodec.codecs import codec_for
from kvcodec.errors import CorruptRecord
from kvcodec.layout import TILE_LANES, CodecId, DtypeId
from kvcodec.log.reader import Log, Place
from kvcodec.store.extents import Extent, ExtentMap
from kvcodec.store.index import read_spec
from kvcodec.store.model import Stream
from kvcodec.store.outgoing import Outgoing, is_coded
from kvcodec.store.reading import load_part, read_codes, read_extent
from kvcodec.store.window import OpenRows

_STAGED_MAX = 256  # records of which a copy is kept


class _Mapped(NamedTuple):
    """A record that kernels read where it lies in the file: from which byte on, and how."""

    byte: int
    form: Form


class StreamPlaces:
    """Finds the tokens of one stream of a layer. A record is checked, checksum and scales, when it is first met.

    What is known of records stays known as long as the extent map only grows.
    """

    def __init__(self, log: Log, extents: ExtentMap, stream: Stream, dtype: DtypeId) -> None:
        self._log, self._extents, self._stream, self._dtype = log, extents, stream, dtype
        self._forms: list[Form] = []
        self._forget(0)

    def _forget(self, first: int) -> None:
        self._known = Spans()  # places are bytes of the file, forms those of this object
        self._first = self._end = first
        self._blocks: dict[tuple[int, int], Place] = {}
        self._staged: dict[tuple[int, int], Found] = {}
        self._changes = self._extents.changes

    def find(self, first: int, end: int, open_: OpenRows | None, outgoing: Outgoing, forms: list[Form]) -> Found:
        """Tokens first … end - 1, as far as they are there. Raises CorruptRecord."""
        found = Found(forms)
        border = end if open_ is None else max(first, min(end, open_.first))
        if self._changes != self._extents.changes or not self._first <= first <= self._end:
            self._forget(first)
        rest = self._extents.covering(max(first, self._end), border) if self._end < border else []
        learnt = self._learn(rest)
        self._add_known(first, border, found)
        for extent in rest[learnt:]:
            self._add_staged(extent, found)
        if open_ is not None and border < end:
            rows = open_.rows[border - open_.first : end - open_.first]
            if is_coded(open_):
                found.add_codes(border, rows, outgoing.policy.spec, self._stream.id, self._stream.dim)
            else:
                found.add_raw(border, rows, self._dtype)
        return found

    def check(self) -> None:
        """Raises CorruptRecord if a block was erased in which records are known."""
        for place in self._blocks.values():
            self._log.check_unerased(place)

    def _learn(self, extents: list[Extent]) -> int:
        """Enter the records at the end of what is known, up to the first one that has to be staged: how many."""
        rows: list[tuple[int, int, int, int, int]] = []
        for extent in extents:
            mapped = self._map(extent)
            if mapped is None:
                break
            if mapped.form not in self._forms:
                self._forms.append(mapped.form)
            number, start = self._forms.index(mapped.form), extent.first - extent.coded.first
            rows.append((extent.first, extent.end, mapped.byte, number, start))
            place = extent.coded.parts[0].place
            self._blocks[place.block, place.generation] = place
            self._end = extent.end
        if rows:
            columns = np.array(rows, np.int64).T
            self._known = Spans.join([self._known, Spans(*(np.ascontiguousarray(c) for c in columns))])
            self._staged.clear()  # most of them were waiting, and are in the map now
        return len(rows)

    def _add_known(self, first: int, end: int, found: Found) -> None:
        known = self._known
        lo, hi = np.searchsorted(known.end, first, side="right"), np.searchsorted(known.first, end)
        if lo < hi:
            image = self._log.device.image
            view = image.view(0, image.size)
            found.kept.append(view)
            numbers = np.array([found.number(form) for form in self._forms], np.int64)
            part = Spans(*(column[lo:hi] for column in known))
            found.parts.append(part._replace(place=part.place + view.ctypes.data, form=numbers[part.form]))

    def _map(self, extent: Extent) -> _Mapped | None:
        """Where a checked record lies in the map, or None if it has to be staged: it waits for its unit to fill, its
        heads lie in several places, it holds rows coded one by one, or raw rows that are no whole vectors.
        """
        coded, stream = extent.coded, self._stream
        part = coded.parts[0]
        raw = coded.step is not None and coded.step.codec == CodecId.RAW
        if len(coded.parts) > 1 or self._log.waits(part.place) or (coded.step is not None and not raw):
            return None
        header, body, byte = load_part(self._log, coded, part)
        if raw:
            form = raw_form(2 * stream.dim, 2 * stream.dim * part.heads, self._dtype)
        else:
            spec = read_spec(header)
            form = form_of(spec, stream.id, coded.tokens, stream.dim, self._dtype)
            try:
                codec_for(spec, stream.id).validate(body.reshape(part.heads, -1), coded.tokens, stream.dim)
            except CorruptRecord as error:
                raise CorruptRecord(byte + error.offset, error.why) from None
        self._log.check_unerased(part.place)
        return None if form.bits == 16 and stream.dim % TILE_LANES else _Mapped(byte, form)

    def _add_staged(self, extent: Extent, found: Found) -> None:
        own = self._staged.get((extent.coded.lsn, extent.first))
        if own is None:
            self._stage(extent, own := Found([]))
            if len(self._staged) < _STAGED_MAX:
                self._staged[extent.coded.lsn, extent.first] = own
        found.take(own)

    def _stage(self, extent: Extent, found: Found) -> None:
        """A record's tokens, copied to where a kernel can read them."""
        coded, stream = extent.coded, self._stream
        if coded.step is not None and coded.step.codec != CodecId.RAW:
            found.add_codes(extent.first, read_codes(self._log, extent, stream), coded.step, stream.id, stream.dim)
            return
        header, _, _ = load_part(self._log, coded, coded.parts[0])
        if coded.step is not None or int(header["codec"]) == CodecId.RAW:
            rows = read_extent(self._log, extent, stream, self._dtype, as_float32=False)
            found.add_raw(extent.first, rows[extent.first - coded.first : extent.end - coded.first], self._dtype)
            return
        spec = read_spec(header)
        heads = [load_part(self._log, coded, part)[1].reshape(part.heads, -1) for part in coded.parts]
        body = np.concatenate(heads)
        codec_for(spec, stream.id).validate(body, coded.tokens, stream.dim)
        for part in coded.parts:
            self._log.check_unerased(part.place)
        form = form_of(spec, stream.id, coded.tokens, stream.dim, self._dtype)
        found.add_body(extent.first, extent.end, body, form, extent.first - coded.first)
