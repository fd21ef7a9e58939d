"""CODEBOOK records: what was trained for streams and is no dictionary, as bytes (formats/record.md).

A new form is one more in `codebooks_of`, `_read` and `join_set`; records and what is checked of them stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.errors import CorruptRecord, ShapeError, SpecError, UnsupportedVersion
from kvcodec.flash.image import Bytes
from kvcodec.layout import CodebookForm, Kind
from kvcodec.log.frame import Record, new_record
from kvcodec.log.located import Located
from kvcodec.log.reader import Log
from kvcodec.sparse_spec import HASH_BYTES

if TYPE_CHECKING:
    from kvcodec.codecs.product import Product
    from kvcodec.codecs.trellis import Trellis

    Codebooks = list[tuple[CodebookForm, Product | Trellis]]


def codebooks_of(own: DictionarySet) -> list[tuple[CodebookForm, bytes]]:
    """Form and bytes of each codebook of a set, in the order in which its hash takes them."""
    of_products = [(CodebookForm.PRODUCT, one.to_bytes()) for one in own.products]
    return of_products + [(CodebookForm.TRELLIS, one.to_bytes()) for one in own.trellises]


def join_set(dictionaries: Sequence[Dictionary], codebooks: Codebooks) -> DictionarySet:
    """The inverse, of what `load_codebooks` gave. Raises SpecError."""
    products = tuple(cast("Product", one) for form, one in codebooks if form == CodebookForm.PRODUCT)
    trellises = tuple(cast("Trellis", one) for form, one in codebooks if form == CodebookForm.TRELLIS)
    return DictionarySet(tuple(dictionaries), products, trellises)


def _read(form: CodebookForm, data: Bytes) -> Product | Trellis:
    """Raises ShapeError, SpecError, UnsupportedVersion for bytes that are none of that form."""
    from kvcodec.codecs.product_bytes import product_from_bytes  # most logs have none
    from kvcodec.codecs.trellis_bytes import trellis_from_bytes

    return product_from_bytes(data) if form == CodebookForm.PRODUCT else trellis_from_bytes(data)


def codebook_records(own: DictionarySet, limit: int) -> Iterator[Record]:
    """CODEBOOK records of a set, of at most `limit` bytes each."""
    codebooks = codebooks_of(own)
    for number, (form, data) in enumerate(codebooks):
        for first in range(0, len(data), limit):
            yield new_record(
                Kind.CODEBOOK, data[first : first + limit], basis_hash=np.void(own.hash), form=form, codebook=number,
                codebooks=len(codebooks), matrices=len(own.dictionaries), first_byte=first, all_bytes=len(data),
            )  # fmt: skip


def split_records(records: Sequence[Located]) -> tuple[list[Located], list[Located]]:
    """DICTIONARY records, and CODEBOOK records."""
    kinds = [int(one.header["kind"]) for one in records]
    both = (Kind.DICTIONARY, Kind.CODEBOOK)
    of = [[one for one, kind in zip(records, kinds, strict=True) if kind == wanted] for wanted in both]
    return of[0], of[1]


def check_codebook(header: np.void, at: int) -> None:
    """Raises CorruptRecord, UnsupportedVersion for fields of a CODEBOOK record at byte `at` that no writer writes."""
    if int(header["form"]) not in list(CodebookForm):
        raise UnsupportedVersion(f"at byte {at}: CODEBOOK record of form {int(header['form'])}")
    good = (
        int(header["sequence"]) == 0
        and int(header["codebook"]) < int(header["codebooks"])
        and 1 <= int(header["body_bytes"]) <= int(header["all_bytes"]) - int(header["first_byte"])
        and header["basis_hash"].tobytes() != bytes(HASH_BYTES)
    )
    if not good:
        raise CorruptRecord(at, "fields of a CODEBOOK record")


def count_missing_codebooks(records: Sequence[Located], count: int) -> str:
    """What is missing of the records of `count` codebooks; empty if nothing is."""
    ends: dict[int, int] = {}
    chunks = {(int(one.header["codebook"]), int(one.header["first_byte"])): one.header for one in records}
    for (number, first), header in sorted(chunks.items()):
        if first == ends.get(number, 0):
            ends[number] = first + int(header["body_bytes"])
    sizes = {int(one.header["codebook"]): int(one.header["all_bytes"]) for one in records}
    whole = sum(ends.get(n) == size for n, size in sizes.items())
    return "" if whole == count else f"the log holds {whole} of its {count} codebooks"


def load_codebooks(log: Log, records: Sequence[Located]) -> Codebooks:
    """Forms and codebooks of records that are all there. Raises CorruptRecord, KeyError for chunks of other splits."""
    chunks: dict[int, dict[int, Located]] = {}
    for one in records:
        chunks.setdefault(int(one.header["codebook"]), {})[int(one.header["first_byte"])] = one
    return [_load(log, own) for _, own in sorted(chunks.items())]


def _load(log: Log, chunks: dict[int, Located]) -> tuple[CodebookForm, Product | Trellis]:
    place, header = chunks[0].place, chunks[0].header
    form = CodebookForm(int(header["form"]))
    parts: list[Bytes] = []
    there = 0
    while there < int(header["all_bytes"]):
        parts.append(log.load_one(chunks[there])[1])
        there += len(parts[-1])
    try:
        return form, _read(form, np.concatenate(parts))
    except (ShapeError, SpecError, UnsupportedVersion) as error:
        raise CorruptRecord(log.device.file_offset(place.block, place.offset), f"CODEBOOK record: {error}") from None
