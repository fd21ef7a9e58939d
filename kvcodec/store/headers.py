"""Codec specs in the headers of records and in policies: the fields that say them, and back."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kvcodec.codecs.sections import HeadSections
from kvcodec.codecs.sizes import head_sections
from kvcodec.errors import SpecError
from kvcodec.layout import Axis, CodecId, GroupFlag
from kvcodec.sparse_spec import SparseCodes
from kvcodec.spec import CodecSpec
from kvcodec.store.model import Stream

_SPARSE = ("atoms", "coefficient_bits", "low_atoms", "error_bound", "dictionary_atoms")


def sparse_fields(spec: CodecSpec) -> dict[str, Any]:
    """Fields of codes over a dictionary; none for other codecs."""
    codes = spec.sparse
    if codes is None:
        return {}
    numbers = codes.atoms, codes.bits, codes.low, codes.error, codes.size
    return {"basis_hash": np.void(codes.basis), **dict(zip(_SPARSE, numbers, strict=True))}


def read_spec(header: np.void, axis: int | None = None) -> CodecSpec:
    """Codec spec of a record's header or of a policy. axis: where it has none. Raises SpecError or ValueError."""
    own = int(header["axis"]) if axis is None else axis
    return _spec(int(header["codec"]), own, int(header["group"]), int(header["flags"]), _read_sparse(header))


def _read_sparse(header: np.void) -> tuple[Any, ...]:
    """The fields of codes over a dictionary; none if all of them are zero, or the header has none."""
    if "basis_hash" not in (header.dtype.names or ()):
        return ()
    numbers, basis = tuple(int(header[f]) for f in _SPARSE), header["basis_hash"].tobytes()
    return (*numbers, basis) if any(numbers) or any(basis) else ()


@functools.lru_cache(1024)
def _spec(codec: int, axis: int, group: int, flags: int, sparse: tuple[Any, ...]) -> CodecSpec:
    dictionary = codec == CodecId.DICTIONARY
    if flags & ~int(GroupFlag.SETS | GroupFlag.BOUNDED if dictionary else GroupFlag.SYMMETRIC):
        raise SpecError("an unknown flag is set")
    if not dictionary:
        if sparse:
            raise SpecError("fields of codes over a dictionary are set")
        return CodecSpec(CodecId(codec), Axis(axis), group, bool(flags & GroupFlag.SYMMETRIC))
    if not sparse or not sparse[-2] or not any(sparse[-1]):
        raise SpecError("codes over no dictionary")
    atoms, bits, low, error, size, basis = sparse
    sets, bounded = bool(flags & GroupFlag.SETS), bool(flags & GroupFlag.BOUNDED)
    codes = SparseCodes(atoms, bits, sets, low, error, size, basis, bounded)
    return CodecSpec(CodecId.DICTIONARY, Axis(axis), group, sparse=codes)


@functools.lru_cache(1024)
def sections_of(spec: CodecSpec, stream: Stream, tokens: int) -> HeadSections:
    """Bytes of one head's sections in a GROUP record."""
    return head_sections(spec, stream.id, tokens, stream.dim)
