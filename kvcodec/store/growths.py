"""Sets of dictionaries that grew out of others: what headers tell of them, and what they grow from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.errors import SpecError
from kvcodec.layout import DtypeId, StreamId
from kvcodec.log.located import Located
from kvcodec.sparse_spec import HASH_BYTES, MAX_DICTIONARY
from kvcodec.spec import CodecSpec
from kvcodec.store.codebooks import count_missing_codebooks, split_records
from kvcodec.store.policy import Policy
from kvcodec.store.window import Rows

WHOLE = bytes(HASH_BYTES)  # the parent of a set that grew out of none


class Seen(NamedTuple):
    """Rows (tokens, heads, dim) of 16 bits of one stream, which `spec` codes."""

    layer: int
    stream: StreamId
    spec: CodecSpec
    rows: Rows
    dtype: DtypeId


class Growth(NamedTuple):
    """A set that grew out of another. nbytes: of its records."""

    basis: bytes
    parent: bytes
    nbytes: int


class Missing(NamedTuple):
    """A set that is not whole, and why."""

    basis: bytes
    why: str


def check_room(policy: Policy, atoms: int, find: Callable[[bytes], DictionarySet]) -> None:
    """Raises SpecError where dictionaries are to grow by `atoms` atoms, and a policy has none that can."""
    sizes, turned = [], 0
    others = [rule.policy.spec.trained_as for rule in policy.rules if rule.policy.spec.shaped]
    for rule in policy.rules if atoms else ():
        codes = rule.policy.spec.sparse
        if codes is not None:
            used = [find(codes.basis).find(layer, rule.stream) for layer in rule.layers]
            plain = [own for own in used if own is not None and own.rotation is None]
            sizes += [codes.size] if plain else []
            turned += len(used) - len(plain)
    if atoms and not sizes and turned:
        raise SpecError(f"grow is {atoms}, and dictionaries of keys from before their rotary embedding do not grow")
    if atoms and not sizes and others:
        raise SpecError(f"grow is {atoms}, and {others[0]} do not grow: no stream is coded over a dictionary")
    if atoms and not sizes:
        raise SpecError(f"grow is {atoms}, and no stream is coded over a dictionary")
    if atoms and min(sizes) + atoms > MAX_DICTIONARY:
        raise SpecError(f"grow is {atoms}: with {min(sizes)} atoms that is more than {MAX_DICTIONARY}")


def parent_is_good(header: np.void) -> bool:
    """Whether a record says as much of a parent as it must: if there is one, how many dictionaries have more atoms."""
    parent, grown, first = header["parent_hash"].tobytes(), int(header["grown"]), int(header["first_atom"])
    if parent == WHOLE:
        return grown == 0
    known = parent != header["basis_hash"].tobytes() and not int(header["codebooks"])
    return known and first > 0 and 1 <= grown <= int(header["matrices"])


def count_missing(records: Sequence[Located]) -> str:
    """What is missing of the records of one form of a set; empty if nothing is."""
    atoms, codebooks = split_records(records)
    matrices, books = (int(records[0].header[name]) for name in ("matrices", "codebooks"))
    grown = int(atoms[0].header["grown"]) if atoms else 0
    return _count_dictionaries(atoms, grown, matrices) or count_missing_codebooks(codebooks, books)


def _count_dictionaries(records: Sequence[Located], grown: int, matrices: int) -> str:
    ends: dict[int, int] = {}
    chunks = {(int(one.header["matrix"]), int(one.header["first_atom"])): one.header for one in records}
    for (matrix, first), header in sorted(chunks.items()):
        if first == ends.get(matrix, first if grown else 0):
            ends[matrix] = first + int(header["chunk"])
    sizes = {int(one.header["matrix"]): int(one.header["atoms"]) for one in records}
    whole = sum(ends.get(n) == size for n, size in sizes.items())
    count, which = (grown, "grown ") if grown else (matrices, "")
    return "" if whole == count else f"the log holds {whole} of its {count} {which}dictionaries"


def record_bytes(records: Iterable[Located]) -> int:
    """Of headers and bodies."""
    return sum(int(one.header["header_bytes"]) + int(one.header["body_bytes"]) for one in records)
