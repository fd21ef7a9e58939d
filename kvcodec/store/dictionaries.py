"""Dictionary sets of a log: DICTIONARY records, found by hash, and codecs that take them (formats/dictionary.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kvcodec.codecs import Codec, codec_for
from kvcodec.codecs.dictionary import MAX_DIM, Dictionary, DictionarySet, Use
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.rows import RowCodec, row_codec_for
from kvcodec.errors import CorruptRecord, MissingDictionary, ShapeError, SpecError, UnsupportedVersion
from kvcodec.flash.image import Bytes
from kvcodec.layout import DICTIONARY_USE, DtypeId, Kind, StreamId, Transform
from kvcodec.log.frame import Record, new_record
from kvcodec.log.located import Located
from kvcodec.log.reader import Log
from kvcodec.sparse_spec import MAX_DICTIONARY, Pursuit
from kvcodec.spec import CodecSpec
from kvcodec.store.model import Stream

_NO_HASH = bytes(16)


class Dictionaries:
    """The sets that a store knows: those in its log, and those that its caller brought.

    A set in the log is loaded, and its hash checked, when it is first asked for. pursuit: by which a writer codes over
    any of them, None for each set's own; it is to be set before one is asked for.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._places: dict[bytes, list[Located]] = {}
        self._sets: dict[bytes, DictionarySet] = {}
        self.pursuit: Pursuit | None = None

    def add(self, own: DictionarySet) -> None:
        """Know a set that the caller brought."""
        self._sets[own.hash] = own.with_pursuit(self.pursuit)

    def enter(self, one: Located) -> None:
        """Know a DICTIONARY record of the log. Raises CorruptRecord, UnsupportedVersion."""
        h, at = one.header, self._log.device.file_offset(one.place.block, one.place.offset)
        atoms, first, count = (int(h[name]) for name in ("atoms", "first_atom", "chunk"))
        if any(h["parent_hash"].tobytes()) or int(h["transform"]) not in list(Transform):
            raise UnsupportedVersion(f"at byte {at}: DICTIONARY record with a parent or an unknown transform")
        good = (
            int(h["sequence"]) == 0
            and 1 <= atoms <= MAX_DICTIONARY
            and 1 <= count <= atoms - first
            and int(h["matrix"]) < int(h["matrices"])
            and 1 <= int(h["head_dim"]) <= MAX_DIM
            and int(h["uses"]) >= 1
            and int(h["mean"]) <= 1
            and (int(h["transform"]) == Transform.PRE_ROPE) == (int(h["pairs"]) > 0)
            and 2 * int(h["pairs"]) <= int(h["head_dim"])
            and h["basis_hash"].tobytes() != _NO_HASH
        )
        if not good or int(h["body_bytes"]) != count * int(h["head_dim"]) + (0 if first else _head_bytes(h)):
            raise CorruptRecord(at, "fields of a DICTIONARY record")
        for other in self._places.get(h["basis_hash"].tobytes(), ())[:1]:
            self._check_alike(at, h, other.header, ("matrices",))
        for other in self._of_matrix(h["basis_hash"].tobytes(), int(h["matrix"]))[:1]:
            self._check_alike(at, h, other.header, ("atoms", "head_dim", "uses", "transform", "mean", "pairs"))
        self._places.setdefault(h["basis_hash"].tobytes(), []).append(one)

    def _of_matrix(self, basis: bytes, matrix: int) -> list[Located]:
        return [one for one in self._places.get(basis, ()) if int(one.header["matrix"]) == matrix]

    @staticmethod
    def _check_alike(at: int, header: np.void, other: np.void, fields: tuple[str, ...]) -> None:
        if any(int(header[name]) != int(other[name]) for name in fields):
            raise CorruptRecord(at, "a DICTIONARY record that contradicts another one of its set")

    @property
    def nbytes(self) -> int:
        """Bytes of the log's DICTIONARY records."""
        sizes = (int(one.header["header_bytes"]) + int(one.header["body_bytes"]) for one in self._records())
        return sum(sizes)

    def _records(self) -> Iterator[Located]:
        return (one for records in self._places.values() for one in records)

    def held(self) -> list[bytes]:
        """Names of the sets that the log holds whole."""
        return [basis for basis in self._places if self.holds(basis)]

    def holds(self, basis: bytes) -> bool:
        """Whether the log holds all of a set."""
        return basis in self._places and self._missing(basis) is None

    def is_sound(self, basis: bytes) -> bool:
        """Whether the log holds all of a set, and it is what its hash says."""
        return self.holds(basis) and not self.flaws(basis)

    def flaws(self, basis: bytes) -> list[Located]:
        """The records of a set in the log that are not what its hash says; none if they are."""
        try:
            self._load(basis)
        except CorruptRecord:
            return self._places[basis]
        return []

    def find(self, basis: bytes) -> DictionarySet:
        """The set of that hash. Raises MissingDictionary, CorruptRecord."""
        if basis not in self._sets:
            why = self._missing(basis)
            if why is not None:
                path = self._log.device.image.path
                raise MissingDictionary(
                    basis, f"{path}: dictionary set {basis.hex()}: {why}; pass dictionary= (--dictionary)"
                )
            self._sets[basis] = self._load(basis).with_pursuit(self.pursuit)
        return self._sets[basis]

    def _missing(self, basis: bytes) -> str | None:
        """What is missing of a set in the log; None if nothing is."""
        records = self._places.get(basis)
        if not records:
            return "the log does not hold it"
        held: dict[int, int] = {}
        chunks = {(int(one.header["matrix"]), int(one.header["first_atom"])): one.header for one in records}
        for (matrix, first), header in sorted(chunks.items()):
            if first == held.get(matrix, 0):
                held[matrix] = first + int(header["chunk"])
        sizes = {int(r.header["matrix"]): int(r.header["atoms"]) for r in records}
        count = int(records[0].header["matrices"])
        whole = sum(held.get(n, 0) == size for n, size in sizes.items())
        return None if whole == count else f"the log holds {whole} of its {count} dictionaries"

    def _load(self, basis: bytes) -> DictionarySet:
        records = self._places[basis]
        first = records[0]
        at = self._log.device.file_offset(first.place.block, first.place.offset)
        by_matrix: dict[int, dict[int, Located]] = {}
        for one in records:
            by_matrix.setdefault(int(one.header["matrix"]), {})[int(one.header["first_atom"])] = one
        try:
            found = DictionarySet(tuple(self._load_matrix(chunks) for _, chunks in sorted(by_matrix.items())))
        except (ShapeError, SpecError, KeyError) as error:  # KeyError: chunks of different splits
            raise CorruptRecord(at, f"DICTIONARY record: {error}") from None
        if found.hash != basis:
            raise CorruptRecord(at, f"dictionary set {basis.hex()} has the hash {found.hash.hex()}")
        return found

    def _load_matrix(self, chunks: dict[int, Located]) -> Dictionary:
        header, body = self._log.load(chunks[0].place)
        dim, parts = int(header["head_dim"]), [body[_head_bytes(header) :]]
        uses, mean, rotation = _read_head(header, body)
        there = int(header["chunk"])
        while there < int(header["atoms"]):
            parts.append(self._log.load(chunks[there].place)[1])
            there += int(chunks[there].header["chunk"])
        atoms = np.concatenate(parts).view(np.int8).reshape(-1, dim)
        return Dictionary(atoms, uses, mean, rotation)


def _head_bytes(header: np.void) -> int:
    uses = int(header["uses"]) * DICTIONARY_USE.itemsize
    return uses + (4 * int(header["head_dim"]) if int(header["mean"]) else 0) + 8 * int(header["pairs"])


def _read_head(header: np.void, body: Bytes) -> tuple[tuple[Use, ...], np.ndarray, Rotation | None]:
    size = int(header["uses"]) * DICTIONARY_USE.itemsize
    if body[:size].view(DICTIONARY_USE)["reserved"].any():
        raise SpecError("a reserved field of a use is set")
    try:
        uses = tuple((int(u["layer"]), StreamId(int(u["stream"]))) for u in body[:size].view(DICTIONARY_USE))
    except ValueError as error:
        raise SpecError(str(error)) from None
    end = _head_bytes(header)
    steps = body[end - 8 * int(header["pairs"]) : end].copy().view("<u8")
    mean = body[size : end - steps.nbytes].copy().view("<f4").astype(np.float32)
    return uses, mean, Rotation(steps) if len(steps) else None


def dictionary_records(own: DictionarySet, limit: int) -> Iterator[Record]:
    """DICTIONARY records of a set, of at most about `limit` bytes each."""
    for number, one in enumerate(own.dictionaries):
        chunk = max(1, (limit - len(one.head())) // one.dim)
        for first in range(0, one.size, chunk):
            atoms = one.atoms[first : first + chunk]
            head = b"" if first else one.head()
            yield new_record(
                Kind.DICTIONARY, head + atoms.tobytes(), basis_hash=np.void(own.hash), atoms=one.size,
                first_atom=first, chunk=len(atoms), matrix=number, matrices=len(own.dictionaries), head_dim=one.dim,
                uses=len(one.uses), transform=one.transform, mean=one.has_mean,
                pairs=0 if one.rotation is None else one.rotation.pairs,
            )  # fmt: skip


class StreamCodecs(NamedTuple):
    """What the rows of one stream of a layer are coded with."""

    dictionaries: Dictionaries
    layer: int
    stream: Stream
    dtype: DtypeId

    def codec(self, spec: CodecSpec) -> Codec:
        """The codec of records. Raises MissingDictionary."""
        return codec_for(spec, self.stream.id, self.dictionary(spec))

    def rows(self, spec: CodecSpec) -> RowCodec:
        """The codec of rows one by one. Raises SpecError, MissingDictionary."""
        return row_codec_for(spec, self.stream.id, self.dictionary(spec))

    def dictionary(self, spec: CodecSpec) -> Dictionary | None:
        if spec.sparse is None:
            return None
        found = self.dictionaries.find(spec.sparse.basis).find(self.layer, self.stream.id)
        if found is None:
            basis, where = spec.sparse.basis, f"layer {self.layer}, stream {self.stream.name}"
            raise MissingDictionary(basis, f"dictionary set {basis.hex()} has none for {where}")
        if (found.size, found.dim) != (spec.sparse.size, self.stream.dim):
            shape = f"{found.size} atoms of {found.dim} channels"
            raise CorruptRecord(
                0, f"{spec.sparse.size} atoms of {self.stream.dim} channels, its dictionary has {shape}"
            )
        return found
