"""The index of a log: its models, its sequences, and which record holds which tokens. Rebuilt from record headers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvcodec.codecs.bitmap import bitmap_bytes, row_sizes
from kvcodec.codecs.rows import codes_rows
from kvcodec.codecs.sizes import step_row_bytes
from kvcodec.errors import CorruptRecord, SpecError, UnsupportedVersion
from kvcodec.layout import GROUP_HEADER, MAX_TOKEN, Axis, CodecId, DropScope, Kind, StreamId, Transform, align
from kvcodec.log.frame import host_bytes
from kvcodec.log.located import NOWHERE, Located, RecordTable
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery
from kvcodec.spec import KNOWN_CODECS, CodecSpec
from kvcodec.store.coded import Coded, Part
from kvcodec.store.dictionaries import Dictionaries
from kvcodec.store.entering import KINDS, enter_run
from kvcodec.store.headers import read_spec, sections_of
from kvcodec.store.model import Model, Stream, read_model
from kvcodec.store.policy import Policy, read_sequence
from kvcodec.store.positions import position_bytes
from kvcodec.store.sequence_index import RowsOf, SequenceIndex

_MANY = 64  # records that are worth entering together
_CONTRADICTION = "the parts of a split record contradict each other"


class LogIndex:
    """Everything a store knows of a log. `enter` takes what Log.poll or LaneWriter.append returned, by lsn.

    sharing: of each sequence that is or was, those that may read from its records: itself, and what was forked from it.
    default_lsn: of the record of `default`.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.models: dict[bytes, Model] = {}
        self.sequences: dict[int, SequenceIndex] = {}
        self.by_name: dict[str, int] = {}
        self.sharing: dict[int, list[SequenceIndex]] = {}
        self.last_id = self.default_lsn = 0
        self._orphans: dict[int, Located] = {}  # sequences that were forked from one that is not there
        self.default: Policy | None = None  # of sequences begun from now on
        self.dictionaries = Dictionaries(log)
        self._checked: dict[tuple[int, bytes], tuple[Model, list[RowsOf]]] = {}

    def enter(self, located: Iterable[Located]) -> None:
        """Raises CorruptRecord or UnsupportedVersion for a record that contradicts its model or its sequence."""
        if isinstance(located, RecordTable) and len(located) >= _MANY:
            self._enter_table(located)
            return
        for one in located:
            self._enter_one(one)

    def _enter_table(self, table: RecordTable) -> None:
        """Records of rows go together as far as no other record, and none of a summary, comes between them."""
        start = 0
        alone = (table.kinds == Kind.GROUP) & (table.columns(GROUP_HEADER)["position_bytes"] != 0)
        for stop in [*np.flatnonzero(~np.isin(table.kinds, KINDS) | alone).tolist(), len(table)]:
            if stop - start < _MANY or not enter_run(self, table[start:stop]):
                self.enter(list(table[start:stop]))
            if stop < len(table):
                self._enter_one(table[stop])
            start = stop + 1

    def _enter_one(self, one: Located) -> None:
        kind = int(one.header["kind"])
        if kind == Kind.MODEL:
            header, body = self.log.load_one(one)
            self.models[header["model_hash"].tobytes()] = read_model(header, body, self._at(one))
        elif kind == Kind.SEQUENCE:
            self._enter_sequence(one)
        elif kind in (Kind.DICTIONARY, Kind.CODEBOOK):
            self.dictionaries.enter(one)
        elif kind in KINDS:
            self.enter_rows(one)
        elif kind == Kind.DROP and one.place == NOWHERE:
            for sequence in self.sequences.values():
                sequence.drop(sequence.settled, int(one.header["lsn"]))
        elif kind == Kind.DROP:
            self._enter_drop(one)

    def check(self) -> None:
        """Raises CorruptRecord if a sequence stands on another one that is not there."""
        for one, why in self.orphans():
            self._want(one, False, why)

    def orphans(self) -> list[tuple[Located, str]]:
        """SEQUENCE records of sequences that stand on one that is not there, and what to say of them."""
        return [
            (one, f"sequence {number} was forked from one that is not there")
            for number, one in self._orphans.items() if number in self.sequences
        ]  # fmt: skip

    def move(self, located: Iterable[Located]) -> None:
        """Take in copies of records that are known."""
        for one in located:
            kind = int(one.header["kind"])
            if kind in (Kind.DICTIONARY, Kind.CODEBOOK):
                self.dictionaries.move(one)
            elif kind in KINDS and (owners := self.sharing.get(int(one.header["sequence"]))):
                for key, coded, _ in self.rows_of(one):
                    for owner in owners:
                        owner.move(key, coded)

    def _enter_drop(self, one: Located) -> None:
        """One of a sequence that is not there any more ends nothing."""
        h, number = one.header, int(one.header["sequence"])
        first, end, scope, lsn = (int(h[f]) for f in ("first_token", "end_token", "scope", "lsn"))
        sequence = self.sequences.get(number)
        if sequence is None:
            return
        if scope == DropScope.TAIL:
            sequence.drop(first, lsn)
        elif scope == DropScope.RANGE:
            sequence.evict(first, end, lsn)
        elif scope == DropScope.SUMMARY:
            self._want(one, sequence.summarize(first, end, int(h["summary_lsn"]), lsn), "rows of a summary differ")
        else:
            del self.sequences[number], self.by_name[sequence.info.name]
            for number, owners in list(self.sharing.items()):
                owners[:] = [owner for owner in owners if owner is not sequence]
                if not owners:
                    del self.sharing[number]

    def enter_rows(self, one: Located) -> None:
        """Enter one GROUP or STEP record."""
        self.add_rows_of(one, self._sequence(one), self.rows_of(one))

    def add_rows_of(self, one: Located, sequence: SequenceIndex, rows: Iterable[RowsOf]) -> None:
        """Enter rows of a record that `rows_of` has checked."""
        for key, coded, heads in rows:
            self._want(one, sequence.add(key, coded, heads), _CONTRADICTION)

    def rows_like(self, shape: bytes, one: Located) -> list[RowsOf]:
        """`rows_of` a record, or of another one of the same model and shape: what else `rows_of` looks at."""
        model = self._sequence(one).model
        known, rows = self._checked.get((id(model), shape), (None, []))
        if known is not model:
            rows = self.rows_of(one)
            self._checked[id(model), shape] = model, rows
        return rows

    def rows_of(self, one: Located) -> list[RowsOf]:
        """What a GROUP or STEP record holds, stream by stream. Raises CorruptRecord, UnsupportedVersion."""
        if int(one.header["kind"]) == Kind.GROUP:
            return [self._rows_of_group(one)]
        return self._rows_of_step(one)

    def _at(self, one: Located) -> int:
        return self.log.device.file_offset(one.place.block, one.place.offset)

    def _want(self, one: Located, ok: bool, why: str) -> None:
        if not ok:
            raise CorruptRecord(self._at(one), why)

    def _enter_sequence(self, one: Located) -> None:
        header, body = self.log.load_one(one)
        info = read_sequence(header, body, self._at(one))
        model = self.models.get(info.model_hash)
        if model is None:
            raise CorruptRecord(self._at(one), f"sequence {info.name!r} names a model that the log does not hold")
        most = sum(len(layer.streams) for layer in model.layers)
        self._want(one, len(info.policy.rules) <= most, "more policies than the model has streams")
        for n, layer in enumerate(model.layers):
            for stream in layer.streams:
                self._want(one, info.policy.covers(n, stream.id), f"no policy for layer {n}, stream {stream.name}")
        if not info.id:
            self.default, self.default_lsn = info.policy, int(header["lsn"])
            return
        self.last_id = max(self.last_id, info.id)
        known = self.sequences.get(info.id)
        if known is not None:
            same = (known.info.name, known.info.model_hash) == (info.name, info.model_hash)
            self._want(one, same and known.info.fork == info.fork, f"two sequences of id {info.id}")
            known.info, known.named_lsn = info, int(header["lsn"])
            known.last_lsn = max(known.last_lsn, known.named_lsn)
            return
        self._want(one, info.name not in self.by_name, f"two sequences named {info.name!r}")
        own = SequenceIndex(
            info, model, holes=self.log.recovery == Recovery.SKIP_DAMAGED, is_damaged=lambda: self.log.is_damaged
        )
        own.last_lsn = own.named_lsn = own.begun_lsn = int(header["lsn"])
        if info.parent:
            self._share(one, own)
        self.sequences[info.id], self.by_name[info.name] = own, info.id
        self.sharing.setdefault(info.id, []).append(own)

    def _share(self, one: Located, own: SequenceIndex) -> None:
        parent, end = own.info.fork
        known = self.sequences.get(parent)
        if known is None:
            self._orphans[own.info.id] = one
            return
        self._want(one, known.info.model_hash == own.info.model_hash, "a sequence was forked from one of another model")
        own.share(known, end)
        for owners in self.sharing.values():
            if known in owners:
                owners.append(own)

    def _sequence(self, one: Located) -> SequenceIndex:
        sequence = self.sequences.get(int(one.header["sequence"]))
        if sequence is None:
            raise CorruptRecord(self._at(one), f"sequence {int(one.header['sequence'])} was never begun")
        return sequence

    def _sharer(self, one: Located) -> SequenceIndex:
        """The sequence of a record of rows, or where that has ended one that shares its model."""
        return next(iter(self.sharing.get(int(one.header["sequence"]), ())), None) or self._sequence(one)

    def _stream(self, one: Located, sequence: SequenceIndex, layer: int, stream: StreamId) -> Stream:
        layers = sequence.model.layers
        found = next((s for s in layers[layer].streams if s.id == stream), None) if layer < len(layers) else None
        if found is None:
            raise CorruptRecord(self._at(one), f"the model has no stream {stream.name.lower()} in layer {layer}")
        return found

    def _check_range(self, one: Located, heads: int) -> None:
        h = one.header
        first, tokens = int(h["first_token"]), int(h["tokens"])
        self._want(one, tokens >= 1 and first + tokens <= MAX_TOKEN, f"tokens {first} + {tokens}")
        self._want(one, int(h["all_heads"]) == heads, f"{int(h['all_heads'])} heads, the model has {heads}")
        self._want(one, int(h["heads"]) >= 1 and int(h["first_head"]) + int(h["heads"]) <= heads, "head range")

    def _rows_of_group(self, one: Located) -> RowsOf:
        h, sequence = one.header, self._sharer(one)
        at = self._at(one)
        positions, is_raw = int(h["position_bytes"]), int(h["codec"]) == CodecId.RAW
        if (positions and not is_raw) or int(h["transform"]) != Transform.NONE:
            raise UnsupportedVersion(f"at byte {at}: GROUP record of codes with positions, or with a transform")
        if int(h["codec"]) not in KNOWN_CODECS:
            raise UnsupportedVersion(f"at byte {at}: GROUP record of codec {int(h['codec'])}")
        self._want(one, int(h["stream"]) in list(StreamId), f"stream {int(h['stream'])}")
        stream = self._stream(one, sequence, int(h["first_layer"]), StreamId(int(h["stream"])))
        self._check_range(one, stream.heads)
        heads, tokens = int(h["heads"]), int(h["tokens"])
        self._want(one, int(h["layers"]) == 1 and int(h["rows"]) == tokens, "layers or rows of a GROUP record")
        self._want(one, int(h["head_dim"]) == stream.dim, f"head dim {int(h['head_dim'])}, want {stream.dim}")
        try:
            spec = read_spec(h)
            sections = sections_of(spec, stream, tokens)
        except (SpecError, ValueError) as error:
            raise CorruptRecord(at, f"codec of a GROUP record: {error}") from None
        sizes = (sections.metadata, sections.codes, align(2 * heads, 64))
        stored = tuple(int(h[f]) for f in ("metadata_bytes", "code_bytes", "error_bytes"))
        self._want(one, stored == sizes, f"section sizes {stored}, want {sizes}")
        self._want(one, positions in (0, position_bytes(tokens)), f"{positions} bytes of positions of {tokens} rows")
        bitmap = int(h["bitmap_bytes"])
        others = self._check_bitmap(one, spec, stream) if bitmap else range(1)
        rest = int(h["body_bytes"]) - sizes[2] - positions - bitmap - heads * sections.total
        self._want(one, rest in others, "body length")
        atoms = spec.sparse.atoms if spec.sparse else 0
        before, size = sizes[2] + positions, host_bytes(h) - positions
        part = Part(one.place, int(h["first_head"]), heads, before, size, not is_raw, atoms, bitmap, positions)
        group = Coded(int(h["lsn"]), None, int(h["first_token"]), tokens, (part,))
        return RowsOf((int(h["first_layer"]), stream.id), group, stream.heads)

    def _check_bitmap(self, one: Located, spec: CodecSpec, stream: Stream) -> range:
        """How many bytes of rows that are not codes a record with a row bitmap may have, as far as its header says."""
        heads, tokens, stored = (int(one.header[f]) for f in ("heads", "tokens", "bitmap_bytes"))
        if not spec.bounded:
            raise UnsupportedVersion(f"at byte {self._at(one)}: GROUP record of {spec} with a row bitmap")
        wanted = bitmap_bytes(heads, tokens)
        self._want(one, stored == wanted, f"row bitmap of {stored} bytes, want {wanted}")
        sizes = row_sizes(stream.dim)[1:].tolist()
        return range(min(sizes), heads * tokens * max(sizes) + 1)

    def _rows_of_step(self, one: Located) -> list[RowsOf]:
        h, sequence = one.header, self._sharer(one)
        spec = self._step_spec(one)
        first_layer, mask, tokens = int(h["first_layer"]), int(h["streams"]), int(h["tokens"])
        ids = [i for i in StreamId if mask >> i & 1]
        self._want(one, bool(ids) and sum(1 << i for i in ids) == mask, f"streams {mask:#x}")
        position, entries = 0, []
        for layer in range(first_layer, first_layer + int(h["layers"])):
            for id_ in ids:
                stream = self._stream(one, sequence, layer, id_)
                self._check_range(one, stream.heads)
                size = tokens * int(h["heads"]) * row_bytes(spec, stream)
                part = Part(one.place, int(h["first_head"]), int(h["heads"]), position, size)
                coded = Coded(int(h["lsn"]), spec, int(h["first_token"]), tokens, (part,))
                entries.append(RowsOf((layer, id_), coded, stream.heads))
                position += size
        self._want(one, position == int(h["body_bytes"]) and position > 0, "body length")
        return entries

    def _step_spec(self, one: Located) -> CodecSpec:
        codec, axis = int(one.header["codec"]), Axis.NONE
        if codec not in KNOWN_CODECS:
            raise UnsupportedVersion(f"at byte {self._at(one)}: STEP record of codec {codec}")
        if codec != CodecId.RAW:
            axis = Axis.TOKEN
        try:
            spec = read_spec(one.header, axis)
        except (SpecError, ValueError) as error:
            raise CorruptRecord(self._at(one), f"codec of a STEP record: {error}") from None
        of_rows = int(one.header["kind"]) == Kind.ROWS
        known = spec.is_trained == of_rows and (codes_rows(spec) or not of_rows)
        self._want(one, known, f"{spec} in a STEP or ROWS record")
        return spec


def row_bytes(spec: CodecSpec, stream: Stream) -> int:
    """Bytes of one token's row of one head in a STEP record."""
    return step_row_bytes(spec, stream.dim)
