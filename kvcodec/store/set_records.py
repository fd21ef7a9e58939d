"""Records of a set: DICTIONARY records of its dictionaries, CODEBOOK records of what else it has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvcodec.codecs.dictionary import MAX_DIM, DictionarySet
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.uses import Use, count_pairs, uses_from_bytes
from kvcodec.errors import CorruptRecord, UnsupportedVersion
from kvcodec.flash.image import Bytes
from kvcodec.layout import DICTIONARY_USE, Kind, Transform
from kvcodec.log.frame import Record, new_record
from kvcodec.sparse_spec import MAX_DICTIONARY
from kvcodec.store.codebooks import check_codebook, codebook_records, codebooks_of
from kvcodec.store.growths import WHOLE, parent_is_good


def set_records(own: DictionarySet, limit: int) -> Iterator[Record]:
    """All records of a set, of at most about `limit` bytes each."""
    yield from dictionary_records(own, limit)
    yield from codebook_records(own, limit)


def dictionary_records(own: DictionarySet, limit: int, parent: DictionarySet | None = None) -> Iterator[Record]:
    """DICTIONARY records of a set, of at most about `limit` bytes each; with a parent, of what it has grown by."""
    before = parent.dictionaries if parent is not None else ()
    sizes = [one.size for one in before] or [0] * len(own.dictionaries)
    grown = sum(one.size > size for one, size in zip(own.dictionaries, sizes, strict=True)) if before else 0
    codebooks = 0 if before else len(codebooks_of(own))
    for number, (one, there) in enumerate(zip(own.dictionaries, sizes, strict=True)):
        chunk = max(1, (limit - len(one.head())) // one.dim)
        for first in range(there, one.size, chunk):
            atoms = one.atoms[first : first + chunk]
            head = b"" if first else one.head()
            yield new_record(
                Kind.DICTIONARY, head + atoms.tobytes(), basis_hash=np.void(own.hash),
                parent_hash=np.void(WHOLE if parent is None else parent.hash), atoms=one.size, first_atom=first,
                chunk=len(atoms), matrix=number, matrices=len(own.dictionaries), head_dim=one.dim,
                uses=len(one.uses), transform=one.transform, mean=one.has_mean, pairs=count_pairs(one.rotation),
                codebooks=codebooks, grown=grown,
            )  # fmt: skip


def check_header(header: np.void, at: int) -> None:
    """Raises CorruptRecord, UnsupportedVersion for fields of a record of a set at byte `at` that no writer writes."""
    if int(header["kind"]) == Kind.CODEBOOK:
        check_codebook(header, at)
        return
    atoms, first, count = (int(header[name]) for name in ("atoms", "first_atom", "chunk"))
    if int(header["transform"]) not in list(Transform):
        raise UnsupportedVersion(f"at byte {at}: DICTIONARY record with an unknown transform")
    good = (
        int(header["sequence"]) == 0
        and 1 <= atoms <= MAX_DICTIONARY
        and 1 <= count <= atoms - first
        and int(header["matrix"]) < int(header["matrices"])
        and 1 <= int(header["head_dim"]) <= MAX_DIM
        and int(header["uses"]) >= 1
        and int(header["mean"]) <= 1
        and (int(header["transform"]) == Transform.PRE_ROPE) == (int(header["pairs"]) > 0)
        and 2 * int(header["pairs"]) <= int(header["head_dim"])
        and header["basis_hash"].tobytes() != WHOLE
        and parent_is_good(header)
    )
    if not good or int(header["body_bytes"]) != count * int(header["head_dim"]) + (0 if first else head_bytes(header)):
        raise CorruptRecord(at, "fields of a DICTIONARY record")


def check_alike(header: np.void, other: np.void, at: int) -> None:
    """Raises CorruptRecord for a record at byte `at` that contradicts another one of its set."""
    same_kind = int(header["kind"]) == int(other["kind"])
    fields = ["matrices", "codebooks"]
    if same_kind and int(header["kind"]) == Kind.CODEBOOK:
        fields += ["form", "all_bytes"] if header["codebook"] == other["codebook"] else []
    elif same_kind:
        own = ["atoms", "head_dim", "uses", "transform", "mean", "pairs"]
        fields += ["grown", *(own if header["matrix"] == other["matrix"] else [])]
    if any(int(header[name]) != int(other[name]) for name in fields):
        raise CorruptRecord(at, f"a {Kind(int(header['kind'])).name} record that contradicts another one of its set")


def parent_of(header: np.void) -> bytes:
    """Name of the set that the record's own grew out of; WHOLE if there is none."""
    return WHOLE if int(header["kind"]) == Kind.CODEBOOK else header["parent_hash"].tobytes()


def number_of(header: np.void) -> tuple[int, int]:
    """Kind and number of what the record has a part of, in its set."""
    kind = int(header["kind"])
    return kind, int(header["codebook" if kind == Kind.CODEBOOK else "matrix"])


def head_bytes(header: np.void) -> int:
    """Bytes before the atoms of the first DICTIONARY record of a dictionary."""
    uses = int(header["uses"]) * DICTIONARY_USE.itemsize
    return uses + (4 * int(header["head_dim"]) if int(header["mean"]) else 0) + 8 * int(header["pairs"])


def read_head(header: np.void, body: Bytes) -> tuple[tuple[Use, ...], np.ndarray, Rotation | None]:
    """What these say: uses, mean and rotation. Raises SpecError, UnsupportedVersion."""
    size = int(header["uses"]) * DICTIONARY_USE.itemsize
    end = head_bytes(header)
    steps = body[end - 8 * int(header["pairs"]) : end].copy().view("<u8")
    mean = body[size : end - steps.nbytes].copy().view("<f4").astype(np.float32)
    return uses_from_bytes(body[:size]), mean, Rotation(steps) if len(steps) else None
