"""Sets of a log: dictionaries and what else was trained, found by hash, and codecs that take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from kvcodec.codecs import Codec, codec_for
from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.codecs.rows import RowCodec, row_codec_for
from kvcodec.codecs.uses import count_pairs
from kvcodec.errors import CorruptRecord, MissingDictionary, ShapeError, SpecError, UnsupportedVersion
from kvcodec.flash.image import Bytes
from kvcodec.layout import DtypeId, StreamId
from kvcodec.log.located import Located
from kvcodec.log.reader import Log
from kvcodec.sparse_spec import MAX_GROWTHS, Pursuit
from kvcodec.spec import CodecSpec
from kvcodec.store.codebooks import join_set, load_codebooks, split_records
from kvcodec.store.growths import WHOLE, Growth, Missing, count_missing, record_bytes
from kvcodec.store.model import Stream
from kvcodec.store.set_records import check_alike, check_header, head_bytes, number_of, parent_of, read_head

if TYPE_CHECKING:
    from kvcodec.codecs.codec import Trained
    from kvcodec.codecs.predicted_rows import GivenRows
    from kvcodec.codecs.product import Product


class Dictionaries:
    """The sets that a store knows: those in its log, and those that its caller brought.

    A set in the log is loaded, and its hash checked, when it is first asked for. One that grew out of another needs
    that, wherever it comes from. A log may hold a set in several forms: whole, and grown out of others. pursuit: by
    which a writer codes over any of them, None for each set's own; it is to be set before one is asked for.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._forms: dict[bytes, dict[bytes, list[Located]]] = {}  # by hash, by the parent's: their records
        self._firsts: dict[tuple[bytes, bytes, int, int], np.void] = {}  # headers that others are compared with
        self._sets: dict[bytes, DictionarySet] = {}
        self.pursuit: Pursuit | None = None
        self._depths: dict[bytes, int] = {}  # of loaded sets: how often they grew

    def add(self, own: DictionarySet) -> None:
        """Know a set that the caller brought."""
        self._sets[own.hash] = own.with_pursuit(self.pursuit)

    def add_grown(self, own: DictionarySet, parent: DictionarySet) -> None:
        """Know a set that grew out of another one, as it is in memory: with what a log does not hold of it."""
        self._sets[own.hash], self._depths[own.hash] = own, self.depth(parent.hash) + 1

    def enter(self, one: Located) -> None:
        """Know a DICTIONARY or CODEBOOK record of the log. Raises CorruptRecord, UnsupportedVersion."""
        header, at = one.header, self._log.device.file_offset(one.place.block, one.place.offset)
        check_header(header, at)
        basis, parent = header["basis_hash"].tobytes(), parent_of(header)
        keys = (basis, parent, 0, 0), (basis, parent, *number_of(header))  # of its form, and of its own kind and number
        for key in keys:
            check_alike(header, self._firsts.get(key, header), at)
        for key in keys:
            self._firsts.setdefault(key, header)
        self._forms.setdefault(basis, {}).setdefault(parent, []).append(one)

    def adopt(self, other: Dictionaries) -> None:
        """Know what another one of the same log knows of sets that are loaded or were brought."""
        self.pursuit = other.pursuit
        self._sets, self._depths = other._sets | self._sets, other._depths | self._depths

    def move(self, one: Located) -> None:
        """A record that is known has been copied."""
        header = one.header
        records = self._forms.get(header["basis_hash"].tobytes(), {}).get(parent_of(header), [])
        records[:] = [one if int(known.header["lsn"]) == int(header["lsn"]) else known for known in records]

    @property
    def nbytes(self) -> int:
        """Bytes of the log's DICTIONARY and CODEBOOK records."""
        return record_bytes(self.records())

    @property
    def growths(self) -> list[Growth]:
        """The sets in the log that grew out of others, wherever those are, and have all their records there."""
        forms = [(basis, *form) for basis, own in self._forms.items() for form in own.items()]
        grown = [form for form in forms if form[1] != WHOLE and not count_missing(form[2])]
        return [Growth(basis, parent, record_bytes(records)) for basis, parent, records in grown]

    def records(self) -> Iterator[Located]:
        """All DICTIONARY and CODEBOOK records of the log."""
        return (one for forms in self._forms.values() for records in forms.values() for one in records)

    def held(self) -> list[bytes]:
        """Names of the sets that the log holds whole, but for what one that grew has from a set that was brought."""
        return [basis for basis in self._forms if self.holds(basis)]

    def holds(self, basis: bytes) -> bool:
        """Whether the log holds all of a set, or all that one that was brought lacks of it."""
        return self._missing(basis) is None

    def is_sound(self, basis: bytes) -> bool:
        """Whether the log holds all of a set, and it is what its hash says."""
        return self.holds(basis) and not self.flaws(basis)

    def flaws(self, basis: bytes) -> list[Located]:
        """The records of a set in the log that are not what its hash says; none if they are."""
        try:
            self._load(basis, ())
        except (CorruptRecord, MissingDictionary):
            return [one for records in self._forms[basis].values() for one in records]
        return []

    def find(self, basis: bytes) -> DictionarySet:
        """The set of that hash. Raises MissingDictionary, CorruptRecord."""
        return self._find(basis, ())

    def _find(self, basis: bytes, heirs: tuple[bytes, ...]) -> DictionarySet:
        """heirs: the sets that grew out of it and are being loaded."""
        if basis not in self._sets:
            missing = self._missing(basis)
            if missing is not None:
                path, wanted = self._log.device.image.path, missing.basis
                for_whom = "" if wanted == basis else f"dictionary set {basis.hex()} grew out of another: "
                raise MissingDictionary(
                    wanted,
                    f"{path}: {for_whom}dictionary set {wanted.hex()}: {missing.why}; pass dictionary= (--dictionary)",
                )
            self._sets[basis] = self._load(basis, heirs).with_pursuit(self.pursuit)
        return self._sets[basis]

    def newest(self, basis: bytes) -> bytes:
        """The set that grew out of this one last, step by step, as far as the log has it sound; itself if none did."""
        line = [basis]
        while True:
            heirs = [heir for heir, forms in self._forms.items() if line[-1] in forms and heir not in line]
            sound = [heir for heir in heirs if self._can_load(heir)]
            if not sound:
                return line[-1]
            line.append(sound[-1])

    def depth(self, basis: bytes) -> int:
        """How often a set that `find` found grew."""
        return self._depths.get(basis, 0)

    def _can_load(self, basis: bytes) -> bool:
        try:
            self.find(basis)
        except (CorruptRecord, MissingDictionary):
            return False
        return True

    def _missing(self, basis: bytes, seen: dict[bytes, Missing | None] | None = None) -> Missing | None:
        """What is missing of a set's records in the log, or of those of a set that it grew out of; None if nothing is.

        seen: what is known. Nothing is told to be missing of sets that grew out of themselves: loading them says so.
        """
        seen = {} if seen is None else seen
        found: Missing | None = Missing(basis, "the log does not hold it")
        seen[basis] = None
        for parent, records in self._forms.get(basis, {}).items():
            why = count_missing(records)
            if why:
                found = Missing(basis, why)
                continue
            known = parent == WHOLE or parent in self._sets or len(seen) > MAX_GROWTHS
            found = None if known else seen[parent] if parent in seen else self._missing(parent, seen)
            if found is None:
                break
        seen[basis] = found
        return found

    def _load(self, basis: bytes, heirs: tuple[bytes, ...]) -> DictionarySet:
        forms = self._forms[basis]
        whole = [parent for parent, records in forms.items() if not count_missing(records)]
        parent = next((p for p in whole if p == WHOLE or p in self._sets or self.holds(p)), whole[0])
        records, first = forms[parent], forms[parent][0]
        at = self._log.device.file_offset(first.place.block, first.place.offset)
        if basis in heirs or len(heirs) > MAX_GROWTHS:
            raise CorruptRecord(at, f"dictionary set {basis.hex()} grew out of itself, or over {MAX_GROWTHS} times")
        before = None if parent == WHOLE else self._find(parent, (*heirs, basis))
        depth = 0 if before is None else self.depth(parent) + 1
        if depth > MAX_GROWTHS:
            raise CorruptRecord(at, f"dictionary set {basis.hex()} grew over {MAX_GROWTHS} times")
        by_matrix: dict[int, dict[int, Located]] = {}
        atoms, codebooks = split_records(records)
        for one in atoms:
            by_matrix.setdefault(int(one.header["matrix"]), {})[int(one.header["first_atom"])] = one
        try:
            if before is None:
                own = [self._load_matrix(chunks) for _, chunks in sorted(by_matrix.items())]
            else:
                own = [self._grow_matrix(one, by_matrix.get(n, {})) for n, one in enumerate(before.dictionaries)]
            if len(own) != int(first.header["matrices"]):
                raise SpecError(f"{len(own)} dictionaries, want {int(first.header['matrices'])}")
            found = join_set(own, load_codebooks(self._log, codebooks))
        except (ShapeError, SpecError, UnsupportedVersion, KeyError) as error:  # KeyError: chunks of different splits
            raise CorruptRecord(at, f"DICTIONARY record: {error}") from None
        if found.hash != basis:
            raise CorruptRecord(at, f"dictionary set {basis.hex()} has the hash {found.hash.hex()}")
        self._depths[basis] = depth
        return found

    def _load_matrix(self, chunks: dict[int, Located]) -> Dictionary:
        header, body = self._log.load_one(chunks[0])
        dim, parts = int(header["head_dim"]), [body[head_bytes(header) :]]
        uses, mean, rotation = read_head(header, body)
        parts += self._load_atoms(chunks, int(header["chunk"]), int(header["atoms"]))
        atoms = np.concatenate(parts).view(np.int8).reshape(-1, dim)
        return Dictionary(atoms, uses, mean, rotation)

    def _grow_matrix(self, before: Dictionary, chunks: dict[int, Located]) -> Dictionary:
        """A dictionary of the parent with the atoms of the records that its set has of it."""
        if not chunks:
            return before
        first = min(chunks)
        header = chunks[first].header
        own = tuple(int(header[name]) for name in ("head_dim", "uses", "transform", "mean", "pairs"))
        known = before.dim, len(before.uses), before.transform, before.has_mean, count_pairs(before.rotation)
        if first != before.size or own != known:
            raise SpecError("a set that contradicts the one that it grew out of")
        parts = list(self._load_atoms(chunks, first, int(header["atoms"])))
        return before.grown(np.concatenate(parts).view(np.int8).reshape(-1, before.dim))

    def _load_atoms(self, chunks: dict[int, Located], there: int, end: int) -> Iterator[Bytes]:
        """Bytes of atoms number `there` to `end`, of records that hold nothing else. Raises KeyError."""
        while there < end:
            yield self._log.load_one(chunks[there])[1]
            there += int(chunks[there].header["chunk"])


class StreamCodecs(NamedTuple):
    """What the rows of one stream of a layer are coded with."""

    dictionaries: Dictionaries
    layer: int
    stream: Stream
    dtype: DtypeId

    def codec(self, spec: CodecSpec, given: GivenRows | None = None) -> Codec:
        """The codec of records. given: where V is predicted from the codes of K, those of its tokens; without them it
        neither codes nor decodes. Raises MissingDictionary.
        """
        return codec_for(spec, self.stream.id, self.trained(spec), given or self._no_keys(spec))

    def rows(self, spec: CodecSpec, given: GivenRows | None = None) -> RowCodec:
        """The codec of rows one by one; given as in `codec`. Raises SpecError, MissingDictionary."""
        return row_codec_for(spec, self.stream.id, self.trained(spec), given or self._no_keys(spec))

    def is_predicted(self, spec: CodecSpec) -> bool:
        """Whether V that is coded so stands on the codes of its K. Raises MissingDictionary, CorruptRecord."""
        if spec.product is None or self.stream.id != StreamId.V:
            return False
        return cast("Product", self.trained(spec)).prediction is not None

    def source(self, basis: bytes) -> Product:
        """The product codes that a set has for the K of this layer. Raises MissingDictionary, CorruptRecord."""
        found = self.dictionaries.find(basis).find_product(self.layer, StreamId.K)
        if found is None:
            raise MissingDictionary(
                basis, f"dictionary set {basis.hex()} has no product codes for layer {self.layer} k"
            )
        return found

    def _no_keys(self, spec: CodecSpec) -> GivenRows | None:
        if not self.is_predicted(spec):
            return None
        from kvcodec.codecs.predicted_rows import GivenRows  # kernels are for those who read rows
        from kvcodec.codecs.vectors import SIDE_BYTES

        source = self.source(spec.basis)
        return GivenRows(source, np.zeros((0, self.stream.heads, source.groups + SIDE_BYTES), np.uint8))

    def trained(self, spec: CodecSpec) -> Trained | None:
        """What vectors are coded by, None for a spec that takes nothing. Raises MissingDictionary, CorruptRecord."""
        if not spec.is_trained:
            return None
        found = self.dictionaries.find(spec.basis).find_for(spec, self.layer, self.stream.id)
        what, parts = spec.trained_as, "atoms" if spec.sparse else "groups" if spec.product else "bytes"
        if found is None:
            where = f"layer {self.layer}, stream {self.stream.name}"
            raise MissingDictionary(spec.basis, f"dictionary set {spec.basis.hex()} has no {what} for {where}")
        if (found.size, found.dim) != (spec.size, self.stream.dim):
            shape = f"{found.size} {parts} of {found.dim} channels"
            raise CorruptRecord(0, f"{spec.size} {parts} of {self.stream.dim} channels, the {what} of its set: {shape}")
        if spec.bounded and spec.product is not None and cast("Product", found).prediction is not None:
            raise CorruptRecord(0, "a bound on errors of V that is predicted from the codes of its K")
        return found
