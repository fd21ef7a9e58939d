"""Logs with product codes: whole ones, and those whose records by them are not what they ought to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import kvcodec
from kvcodec.codecs import codec_for
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.predicted_rows import GivenRows
from kvcodec.codecs.prediction import Prediction
from kvcodec.codecs.product import Product
from kvcodec.codecs.product_rows import ProductRows
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import Analysis
from kvcodec.codecs.uses import Use
from kvcodec.layout import ALIGNMENT, DtypeId, StreamId
from kvcodec.log.frame import Record
from kvcodec.spec import CodecSpec
from kvcodec.store.coding import Coding, Wish
from kvcodec.store.model import Model, Stream
from kvcodec.store.policy import SequenceInfo
from kvcodec.store.records import OpenSpan, group_records, step_records
from kvcodec.store.set_records import dictionary_records, set_records
from tools.golden.coded import CHUNK, Coded, put
from tools.golden.dictionaries import ROTATION
from tools.golden.fixed import fixed_random, noise
from tools.golden.forge import Forge, Forgeries
from tools.golden.forged import forged_model, with_body
from tools.golden.whole import SLC_LIKE, fill, write_log

CASES = Forgeries()
COMPONENTS = 6
Change = Callable[[Record], Record]


def make_product(uses: tuple[Use, ...], dim: int, ends: Sequence[int], rotation: Rotation | None = None) -> Product:
    """Of noise: what its codes are like does not matter."""
    seed, components = 200 + 10 * uses[0][0] + uses[0][1], ends[-1]
    steps = np.arange(255, dtype=np.uint16)
    return Product(
        np.rint(4000 * noise((components, dim), seed)).astype(np.int16),
        np.rint(60 * noise((components, 256), seed + 1)).astype(np.int8), np.array(ends),
        np.concatenate([[0], 0x3F00 + 2 * steps]).astype(np.uint16), 0x3400 + 16 * steps[:16], uses,
        noise((dim,), seed + 2) / np.float32(8),
        Analysis(
            noise((components + 1, dim), seed + 3), np.full(components, 0.02, np.float32),
            np.full(components, 1 / components, np.float32),
        ),
        rotation, 3.5,
    )  # fmt: skip


@CASES.made("product", "product codes of different groups for each stream, keys from before their rotary embedding")
def _(path: Path) -> None:
    model, ends = Model.uniform(2, 2, 16), ([2, 5, 6], [6], [1, 2, 3, 4, 5], [3, 6])
    uses = [(n, stream) for n in range(2) for stream in (StreamId.K, StreamId.V)]
    own = DictionarySet(
        products=tuple(
            make_product((use,), 16, end, ROTATION if use[1] == StreamId.K else None)
            for use, end in zip(uses, ends, strict=True)
        )
    )
    write_log(path, model, 150, k="pq", v="pq/g128", dictionary=own, residual={"k": 8, "v": 0}, sinks=4)


@CASES.made("product-rows", "K by product codes for both layers, V over dictionaries of the same set; a row at a time")
def _(path: Path) -> None:
    """The second writer takes up codes as they are, and rows that were journaled."""
    model = Model.uniform(2, 1, 16, dtype="float16")
    codes = make_product(((0, StreamId.K), (1, StreamId.K)), 16, [2, 4, 6])
    atoms = [Dictionary(quantize_atoms(noise((20, 16), 240 + n)), ((n, StreamId.V),)) for n in range(2)]
    options: dict[str, Any] = {"k": "pq", "v": "dict/s3", "residual": 0, "sinks": 2, "device": SLC_LIKE}
    how: dict[str, Any] = {"durability": "step", "journal": "int4/token/g16/sym"}
    own = DictionarySet(tuple(atoms), (codes,))
    with kvcodec.open(path, "w", model=model, capacity=1 << 20, dictionary=own, **options, **how) as store:
        fill(store.sequence("a"), 0, 10, 1)
        fill(store.sequence("a"), 10, 1, 2)
    with fixed_random("product-rows", session=2), kvcodec.open(path, "a", **how) as store:
        fill(store.sequence("a"), 11, 60, 3)


def predict(source: Product, use: Use, ends: Sequence[int]) -> Product:
    """Product codes of V that is predicted from K by noise."""
    basis = np.rint(3000 * noise((len(source.basis), 16), 260 + use[0])).astype(np.int16)
    scales = (0x3380 + 16 * np.arange(16)).astype(np.uint16)
    return replace(make_product((use,), 16, ends), prediction=Prediction(basis, scales, source.name))


@CASES.made("predicted", "V predicted from the codes of its K, a row at a time; a record that a second writer finishes")
def _(path: Path) -> None:
    model = Model.uniform(2, 2, 16)
    keys = [make_product(((n, StreamId.K),), 16, [2, 4, 6], [ROTATION, None][n]) for n in range(2)]
    values = [predict(own, (n, StreamId.V), [3, 6]) for n, own in enumerate(keys)]
    how: dict[str, Any] = {"k": "pq", "v": "pq", "residual": 0, "sinks": 2, "device": SLC_LIKE}
    own = DictionarySet(products=(*keys, *values))
    with kvcodec.open(path, "w", model=model, capacity=1 << 20, dictionary=own, **how) as store:
        fill(store.sequence("a"), 0, 40, 1)
    with fixed_random("predicted", session=2), kvcodec.open(path, "a") as store:
        fill(store.sequence("a"), 40, 60, 3)


# -- what a reader must reject -------------------------------------------------------------------------------------


PQ = Coded("pq", lambda atoms: DictionarySet((atoms,), (make_product(((0, StreamId.K),), 16, [2, 4, 6]),)))


def bad_book(name: str, shows: str, error: str = "CorruptRecord", *, at: str = "open", **fields: Any) -> None:
    """Register a log with a CODEBOOK record of changed fields."""

    @CASES.bad(name, f"a CODEBOOK record with {shows}", error, at=at, frozen=False)
    def _(forge: Forge) -> None:
        PQ.begin(forge, **fields)
        PQ.add_groups(forge)


PQ.bad_group(CASES, "product-no-basis", "no hash", basis_hash=bytes(16))
PQ.bad_group(CASES, "product-no-groups", "no groups", dictionary_atoms=0)
PQ.bad_group(CASES, "product-many-groups", "129 groups", dictionary_atoms=129, code_bytes=64 * 129)
PQ.bad_group(CASES, "product-atoms", "atoms of a vector", atoms=1)
PQ.bad_group(CASES, "product-low", "atoms of a first tier", low_atoms=1)
PQ.bad_group(CASES, "product-bits", "bits of coefficients", coefficient_bits=4)
PQ.bad_group(CASES, "product-bound", "an error bound", error_bound=1)
PQ.bad_group(CASES, "product-flags", "a flag of dictionaries", flags=2)
PQ.bad_group(CASES, "product-axis", "one scale a channel", axis=1)
PQ.bad_group(CASES, "product-group", "records of 48 tokens", group=48)
PQ.bad_group(CASES, "product-size", "more groups than its sections have", dictionary_atoms=4)
bad_book("book-form", "an unknown form", "UnsupportedVersion", form=3)
bad_book("book-reserved", "a reserved field set", "UnsupportedVersion", reserved_form=1)
bad_book("book-sequence", "a sequence", sequence=1)
bad_book("book-number", "codebook 1 of 1", codebook=1)
bad_book("book-hash", "a hash of zeros", basis_hash=bytes(16))
bad_book("book-long", "more bytes than there are", first_byte=2001)
bad_book("book-size", "another size than the record before it", all_bytes=1 << 20)
bad_book("book-count", "another count of codebooks than the record before it", codebooks=2)
bad_book("book-matrices", "another count of dictionaries than the records before it", matrices=2)
bad_book("book-missing", "the name of another set, so that bytes are missing", "MissingDictionary", at="read",
         basis_hash=b"\2" * 16)  # fmt: skip
bad_book("book-gap", "bytes that the record before it has", "MissingDictionary", at="read", first_byte=1999)


@CASES.bad("book-changed", "product codes of a set whose hash is not its name", at="read")
def _(forge: Forge) -> None:
    def change(record: Record) -> Record:
        body = bytearray(bytes(record.body))
        body[-1] ^= 1
        return with_body(record, bytes(body))

    PQ.begin(forge, change)
    PQ.add_groups(forge)


@CASES.bad("book-head", "product codes that end in the middle, and whose head says so", at="read", frozen=False)
def _(forge: Forge) -> None:
    """Records of the whole length, the first of them with a head of fewer components."""
    first, second = list(set_records(PQ.set, CHUNK))[1:]
    body = bytearray(bytes(first.body))
    body[0] -= 1
    forge.frame(forge.seal(forged_model().record()))
    forge.frame(*(forge.seal(one) for one in dictionary_records(PQ.set, CHUNK)))
    forge.frame(forge.seal(with_body(first, bytes(body))), forge.seal(second))
    forge.frame(forge.seal(PQ.policy().record()))
    PQ.add_groups(forge)


@CASES.bad("product-shape", "a shape of 16 in a GROUP record", at="read", frozen=False)
def _(forge: Forge) -> None:
    PQ.add_changed(forge, PQ.group(), put(ALIGNMENT + 64 + 5, 16))


@CASES.bad("product-row-shape", "a shape of 16 in a ROWS record", at="read", frozen=False)
def _(forge: Forge) -> None:
    PQ.add_changed(forge, PQ.rows(), put(1, 16))


@CASES.bad("product-other-groups", "a ROWS record of four groups, by product codes of three", at="read", frozen=False)
def _(forge: Forge) -> None:
    PQ.add_changed(forge, with_body(PQ.rows(), bytes(12)), put(0, 0), dictionary_atoms=4)


PQ.bad_policy(CASES, "product-policy")
PQ.bad_step(CASES, "step-of-product")


@CASES.bad("grown-codebooks", "a DICTIONARY record of a set that grew, and has codebooks", frozen=False)
def _(forge: Forge) -> None:
    PQ.begin(forge)
    (grown,) = dictionary_records(PQ.set, 1 << 16)
    forge.frame(forge.seal(grown, parent_hash=np.void(b"\3" * 16), grown=1, first_atom=20, atoms=40))


# -- V that is predicted -------------------------------------------------------------------------------------------


def predicted_set(**changed: Any) -> DictionarySet:
    """K, and V that is predicted from its codes, or from others."""
    keys = make_product(((0, StreamId.K),), 16, [2, 4, 6])
    values = predict(keys, (0, StreamId.V), [3, 6])
    own = DictionarySet(products=(keys, values))
    told = values.prediction
    assert told is not None
    object.__setattr__(own, "products", (keys, replace(values, prediction=replace(told, **changed))))
    return own


def begin_predicted(forge: Forge, own: DictionarySet) -> None:
    """MODEL, CODEBOOK and SEQUENCE records."""
    wish = Wish.parse({"k": "pq", "v": "pq", "residual": 0, "sinks": 0}, "forged")
    policy = Coding(wish).policy(forged_model(), None, own)
    forge.frame(forge.seal(forged_model().record()))
    forge.frame(*(forge.seal(one) for one in set_records(own, CHUNK)))
    forge.frame(forge.seal(SequenceInfo(1, "a", forged_model().hash, policy).record()))
    forge.begin_block(2)


def predicted_groups(own: DictionarySet, basis: bytes = b"") -> tuple[Record, Record]:
    """GROUP records of 64 tokens of K and of V, by a set or by one that only has its name."""
    streams = [Stream(stream, 2, 16) for stream in (StreamId.K, StreamId.V)]
    rows = [noise((64, 2, 16), stream.id).astype(ml_dtypes.bfloat16).view(np.uint16) for stream in streams]
    keys, values = own.products
    specs = [CodecSpec.parse("pq").bound_to(product.groups, basis or own.hash) for product in own.products]
    coded = ProductRows(specs[0], keys).encode(rows[0], DtypeId.BFLOAT16)
    codecs = [
        codec_for(specs[0], StreamId.K, keys),
        codec_for(specs[1], StreamId.V, values, GivenRows(keys, coded)),
    ]
    made = zip(streams, rows, codecs, strict=True)
    k, v = (group_records(1, 0, *one[:1], 0, *one[1:], DtypeId.BFLOAT16, 64)[0] for one in made)
    return k, v


@CASES.bad("predicted-alone", "V predicted from K that is raw", at="read", frozen=False)
def _(forge: Forge) -> None:
    own = predicted_set()
    rows = noise((64, 2, 16), 1).astype(ml_dtypes.bfloat16).view(np.uint16)
    raw = step_records(1, [OpenSpan(0, Stream(StreamId.K, 2, 16), 0, rows)], limit=1 << 20)
    begin_predicted(forge, own)
    forge.frame(*(forge.seal(one) for one in raw), forge.seal(predicted_groups(own)[1]))


@CASES.bad("predicted-bounded", "a bound on errors of V that is predicted", at="read", frozen=False)
def _(forge: Forge) -> None:
    own = predicted_set()
    keys, values = predicted_groups(own)
    begin_predicted(forge, own)
    forge.frame(forge.seal(keys), forge.seal(values, flags=4, error_bound=9000))


@CASES.bad("predicted-name", "V predicted from books that the K of its set has not", at="read", frozen=False)
def _(forge: Forge) -> None:
    wrong = predicted_set(source=bytes(16))
    begin_predicted(forge, wrong)
    forge.frame(*(forge.seal(one) for one in predicted_groups(predicted_set(), wrong.hash)))
