"""Where attention finds the tokens of one stream: records in the map, open rows in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.kept import find_others
from kvcodec.attention.rows import Found
from kvcodec.attention.strips import Form, Spans, form_of, raw_form
from kvcodec.errors import CorruptRecord
from kvcodec.layout import TILE_LANES, CodecId
from kvcodec.log.reader import Log, Place
from kvcodec.spec import CodecSpec
from kvcodec.store.dictionaries import StreamCodecs
from kvcodec.store.extents import Extent, ExtentMap
from kvcodec.store.headers import read_spec
from kvcodec.store.outgoing import Outgoing, is_coded
from kvcodec.store.reading import check_heads, load_part, read_codes, read_extent
from kvcodec.store.window import OpenRows

if TYPE_CHECKING:
    from kvcodec.codecs.codec import Trained

_COPIES_MAX = 256  # records of which a copy is kept


class _Mapped(NamedTuple):
    """A record that kernels read where it lies in the file: from which byte on, how, from which of its tokens, the
    address of its table of rows kept otherwise, or 0, and its bytes.
    """

    byte: int
    form: Form
    start: int
    kept: int
    size: int


class StreamPlaces:
    """Finds the tokens of one stream of a layer. A record is checked, checksum and scales, when it is first met.

    What is known of records stays known as long as the extent map only grows.
    """

    def __init__(self, log: Log, extents: ExtentMap, codecs: StreamCodecs) -> None:
        self._log, self._extents, self._codecs = log, extents, codecs
        self._stream, self._dtype = codecs.stream, codecs.dtype
        self._forms: list[Form] = []
        self._trained: list[Trained] = []  # what these forms point into
        self._forget(0)

    def _forget(self, first: int) -> None:
        self._known = Spans()  # places are bytes of the file, forms those of this object
        self._others: list[NDArray[np.int64]] = []  # tables that places name
        self._copied: list[tuple[Extent, Found]] = []  # records among them that no kernel can read in the map
        self._first = self._end = first
        self._mapped: list[tuple[Place, int]] = []  # of each place that is known: of which record, and its bytes
        self._blocks: dict[tuple[int, int], int] = {}  # the last of these places in each block
        self._waiting: dict[tuple[int, int], Found] = {}
        self._changes = self._extents.changes

    def find(
        self, first: int, end: int, open_: OpenRows | None, outgoing: Outgoing, forms: list[Form]
    ) -> tuple[Found, list[Place]]:
        """Tokens first … end - 1, as far as they are there, and a record of each block that they, or later ones, are
        read from. Raises CorruptRecord.
        """
        found = Found(forms)
        if first >= end:
            return found, []
        border = end if open_ is None else max(first, min(end, open_.first))
        if self._changes != self._extents.changes or not self._first <= first <= self._end:
            self._forget(first)
        rest = self._extents.covering(max(first, self._end), border) if self._end < border else []
        learnt = self._learn(rest)
        self._add_known(first, border, found)
        for extent in rest[learnt:]:
            self._add_waiting(extent, found)
        if open_ is not None and border < end:
            rows = open_.rows[border - open_.first : end - open_.first]
            if is_coded(open_):
                self._add_codes(found, border, rows, outgoing.policy.spec)
            else:
                found.add_raw(border, rows, self._dtype)
        before = int(np.searchsorted(self._known.end, first, side="right"))
        return found, [self._mapped[last][0] for last in self._blocks.values() if last >= before]

    def _learn(self, extents: list[Extent]) -> int:
        """Enter records at the end of what is known, up to the first one that waits for its unit to fill: how many.

        One of a summary may wait, since others behind it do not: it is copied.
        """
        rows: list[tuple[int, ...]] = []
        learnt = 0
        try:
            for extent in extents:
                place = extent.coded.parts[0].place
                waits = any(self._log.waits(part.place) for part in extent.coded.parts)
                if waits and not extent.coded.stands_for:
                    break
                mapped = None if waits else self._map(extent)
                if mapped is not None:
                    form = self._number(mapped.form)
                    rows.append((extent.first, extent.end, mapped.byte, form, mapped.start, mapped.kept))
                    self._blocks[place.block, place.generation] = len(self._mapped)
                    self._mapped.append((place, mapped.size))
                elif len(self._copied) < _COPIES_MAX:
                    self._copied.append((extent, self._copy(extent)))
                else:
                    break
                self._end = extent.end
                learnt += 1
        finally:  # a damaged record takes nothing from those before it
            if rows:
                columns = np.array(rows, np.int64).T
                self._known = Spans.join([self._known, Spans(*(np.ascontiguousarray(c) for c in columns))])
                self._waiting.clear()  # most of them are in the map now
        return learnt

    def _number(self, form: Form) -> int:
        if form not in self._forms:
            self._forms.append(form)
        return self._forms.index(form)

    def _add_known(self, first: int, end: int, found: Found) -> None:
        known = self._known
        lo, hi = np.searchsorted(known.end, first, side="right"), np.searchsorted(known.first, end)
        if lo < hi:
            if self._log.device.read_errors is not None:
                self._sense(int(lo), int(hi))
            image = self._log.device.image
            view = image.view(0, image.size)
            found.kept += [view, self._others, *self._trained]
            numbers = np.array([found.number(form) for form in self._forms], np.int64)
            part = Spans(*(column[lo:hi] for column in known))
            found.parts.append(part._replace(place=part.place + view.ctypes.data, form=numbers[part.form]))
        for extent, copy in self._copied:
            if extent.first < end and extent.end > first:
                found.take(copy)

    def _sense(self, lo: int, hi: int) -> None:
        """Kernels are about to read the units of these places. Raises Uncorrectable."""
        for place, size in self._mapped[lo:hi]:
            self._log.device.sense(place.block, place.offset, size)

    def _map(self, extent: Extent) -> _Mapped | None:
        """Where a checked record lies in the map, or None if kernels cannot read it there: its heads lie in several
        places, it holds rows coded one by one, or raw rows that are no whole vectors.
        """
        coded, stream, kept = extent.coded, self._stream, 0
        part = coded.parts[0]
        raw = coded.step is not None and coded.step.codec == CodecId.RAW
        if len(coded.parts) > 1 or (coded.step is not None and not raw):
            return None
        header, body, byte = load_part(self._log, coded, part)
        if raw:
            form = raw_form(2 * stream.dim, 2 * stream.dim * part.heads, self._dtype)
        else:
            spec = read_spec(header)
            form = self._form(spec, coded.tokens, mixed=part.bitmap > 0)
            try:
                others = check_heads(self._codecs, spec, body, coded.tokens, part)
            except CorruptRecord as error:
                raise CorruptRecord(byte + error.offset, error.why) from None
            if others.kinds.any():
                self._others.append(find_others(others.kinds, others.sections.nbytes, stream.dim))
                byte, kept = byte + part.bitmap, self._others[-1].ctypes.data
        self._log.check_unerased(part.place)
        if form.bits == 16 and stream.dim % TILE_LANES:
            return None
        size = int(header["header_bytes"]) + int(header["body_bytes"])
        return _Mapped(byte, form, extent.first - coded.first, kept, size)

    def _form(self, spec: CodecSpec, tokens: int, *, mixed: bool) -> Form:
        """Form of a GROUP record. Raises MissingDictionary."""
        trained = self._codecs.trained(spec)
        if trained is not None and trained not in self._trained:
            self._trained.append(trained)
        return form_of(spec, self._stream.id, tokens, self._stream.dim, self._dtype, trained, mixed=mixed)

    def _add_codes(self, found: Found, first: int, rows: NDArray[np.uint8], spec: CodecSpec) -> None:
        """Rows coded one by one."""
        codecs, own = self._codecs, self._stream
        found.add_codes(first, rows, codecs.rows(spec), own.id, own.dim, codecs.trained(spec))

    def _add_waiting(self, extent: Extent, found: Found) -> None:
        own = self._waiting.get((extent.coded.lsn, extent.first))
        if own is None:
            own = self._copy(extent)
            if len(self._waiting) < _COPIES_MAX:
                self._waiting[extent.coded.lsn, extent.first] = own
        found.take(own)

    def _copy(self, extent: Extent) -> Found:
        """A record's tokens, checked, and copied to where a kernel can read them."""
        found = Found([])
        coded, stream = extent.coded, self._stream
        if coded.step is not None and coded.step.codec != CodecId.RAW:
            self._add_codes(found, extent.first, read_codes(self._log, extent, stream), coded.step)
            return found
        loaded = [load_part(self._log, coded, part) for part in coded.parts]
        specs = [read_spec(header) for header, _, _ in loaded] if coded.step is None else [coded.step]
        if specs[0].codec == CodecId.RAW or any(spec != specs[0] for spec in specs):
            rows = read_extent(self._log, extent, self._codecs, as_float32=False)
            found.add_raw(extent.first, rows[extent.first - coded.first : extent.end - coded.first], self._dtype)
            return found
        heads = [
            check_heads(self._codecs, specs[0], body, coded.tokens, part)
            for part, (_, body, _) in zip(coded.parts, loaded, strict=True)
        ]
        for part in coded.parts:
            self._log.check_unerased(part.place)
        kinds, sections, rest = (np.concatenate(arrays) for arrays in zip(*heads, strict=True))
        others = find_others(kinds, sections.nbytes, stream.dim) if kinds.any() else None
        form, start = self._form(specs[0], coded.tokens, mixed=others is not None), extent.first - coded.first
        found.add_body(extent.first, extent.end, np.concatenate([sections.reshape(-1), rest]), form, start, others)
        return found
