"""Codec specs in the headers of records and in policies: the fields that say them, and back."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kvcodec.codecs.sections import HeadSections
from kvcodec.codecs.sizes import head_sections
from kvcodec.errors import SpecError
from kvcodec.layout import Axis, CodecId, GroupFlag
from kvcodec.product_spec import ProductSpec
from kvcodec.sparse_spec import SparseCodes
from kvcodec.spec import CodecSpec
from kvcodec.store.model import Stream
from kvcodec.trellis_spec import TrellisSpec

_SPARSE = ("atoms", "coefficient_bits", "low_atoms", "error_bound", "dictionary_atoms")
_FLAGS: dict[int, GroupFlag] = {  # of codecs that take what was trained
    CodecId.DICTIONARY: GroupFlag.SETS | GroupFlag.BOUNDED,
    CodecId.PRODUCT: GroupFlag.BOUNDED,
    CodecId.TRELLIS: GroupFlag.BOUNDED,
}


def sparse_fields(spec: CodecSpec) -> dict[str, Any]:
    """Fields of vectors coded by what was trained; none for other codecs."""
    if not spec.is_trained:
        return {}
    own = spec.sparse
    codes = (own.atoms, own.bits, own.low, own.error) if own else (0, 0, 0, spec.error)
    return {"basis_hash": np.void(spec.basis), **dict(zip(_SPARSE, (*codes, spec.size), strict=True))}


def read_spec(header: np.void, axis: int | None = None) -> CodecSpec:
    """Codec spec of a record's header or of a policy. axis: where it has none. Raises SpecError or ValueError."""
    own = int(header["axis"]) if axis is None else axis
    return _spec(int(header["codec"]), own, int(header["group"]), int(header["flags"]), _read_sparse(header))


def _read_sparse(header: np.void) -> tuple[Any, ...]:
    """The fields of what was trained; none if all of them are zero, or the header has none."""
    if "basis_hash" not in (header.dtype.names or ()):
        return ()
    numbers, basis = tuple(int(header[f]) for f in _SPARSE), header["basis_hash"].tobytes()
    return (*numbers, basis) if any(numbers) or any(basis) else ()


@functools.lru_cache(1024)
def _spec(codec: int, axis: int, group: int, flags: int, sparse: tuple[Any, ...]) -> CodecSpec:
    if flags & ~int(_FLAGS.get(codec, GroupFlag.SYMMETRIC)):
        raise SpecError("an unknown flag is set")
    if codec not in _FLAGS:
        if sparse:
            raise SpecError("fields of codes over a dictionary are set")
        return CodecSpec(CodecId(codec), Axis(axis), group, bool(flags & GroupFlag.SYMMETRIC))
    if not sparse or not sparse[-2] or not any(sparse[-1]):
        raise SpecError("codes over no dictionary")
    atoms, bits, low, error, size, basis = sparse
    bounded = bool(flags & GroupFlag.BOUNDED)
    if codec != CodecId.DICTIONARY:
        if any((atoms, bits, low)) or bounded != (error > 0):
            raise SpecError("fields of codes over a dictionary are set, or a bound without its flag")
        if codec == CodecId.PRODUCT:
            return CodecSpec(CodecId.PRODUCT, Axis(axis), group, product=ProductSpec(0.0, size, basis, error))
        return CodecSpec(CodecId.TRELLIS, Axis(axis), group, trellis=TrellisSpec(0.0, size, basis, error))
    sets = bool(flags & GroupFlag.SETS)
    codes = SparseCodes(atoms, bits, sets, low, error, size, basis, bounded)
    return CodecSpec(CodecId.DICTIONARY, Axis(axis), group, sparse=codes)


@functools.lru_cache(1024)
def sections_of(spec: CodecSpec, stream: Stream, tokens: int) -> HeadSections:
    """Bytes of one head's sections in a GROUP record."""
    return head_sections(spec, stream.id, tokens, stream.dim)
