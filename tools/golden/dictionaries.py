"""Logs with dictionaries: whole ones, and those whose records over a dictionary are not what they ought to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import kvcodec
from kvcodec.codecs import codec_for
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.rotation import Rotation
from kvcodec.layout import ALIGNMENT, DtypeId, StreamId
from kvcodec.log.frame import Record
from kvcodec.store.coding import Coding, Wish
from kvcodec.store.model import Model, Stream
from kvcodec.store.policy import SequenceInfo
from kvcodec.store.records import OpenSpan, group_records, step_records
from kvcodec.store.set_records import dictionary_records
from tools.golden.fixed import noise
from tools.golden.forge import Forge, Forgeries
from tools.golden.forged import forged_model, with_body
from tools.golden.whole import fill, write_log

CASES = Forgeries()
ROTATION = Rotation(np.array([2935890503282001226, 1 << 60, 3, (1 << 64) - 1, 0], np.uint64))
SPECS = {"k": "dict/s4/c6/ef/low1", "v": "dict/s3/c8"}
Change = Callable[[Record], Record]


def make_set(model: Model, size: int, *, mean: bool = False, rotation: Rotation | None = None) -> DictionarySet:
    """A set for all streams of a model: V of all layers shares one dictionary. rotation: of K."""
    layers = range(len(model.layers))
    uses = [((n, StreamId.K),) for n in layers] + [tuple((n, StreamId.V) for n in layers)]
    dim = model.layers[0].streams[0].dim
    return DictionarySet(
        tuple(
            Dictionary(
                quantize_atoms(noise((size, dim), 50 + i)),
                use,
                noise((dim,), 90 + i) if mean else np.zeros(0),
                None if use[0][1] == StreamId.V else rotation,
            )
            for i, use in enumerate(uses)
        )
    )


@CASES.made("dictionary", "indices of 16 bits, K and V over dictionaries that are in the log, sinks, residual rows")
def _(path: Path) -> None:
    model = Model.uniform(2, 1, 16)
    specs = {"k": "dict/s4", "v": "dict/s5/c5/low2"}
    write_log(path, model, 150, **specs, dictionary=make_set(model, 40), residual=8, sinks=4)


@CASES.made("dictionary-sets", "sets of indices in one tier and in two, means, rows coded one by one, 4 bits")
def _(path: Path) -> None:
    model = Model.uniform(1, 2, 24)
    specs = {"k": "dict/s6/c4/ef", "v": "dict/s7/c6/ef/low3/g128"}
    write_log(path, model, 150, **specs, dictionary=make_set(model, 75, mean=True), residual=0, sinks=2)


@CASES.made("dictionary-bound", "as many atoms as an error bound asks for: records of different sizes")
def _(path: Path) -> None:
    model, own = Model.uniform(1, 1, 16), make_set(Model.uniform(1, 1, 16), 64)
    options: dict[str, Any] = {"k": "dict/e0.4/ef", "v": "dict/s16/e0.6", "residual": 0, "sinks": 0}
    with kvcodec.open(
        path, "w", model=model, device="page=512,unit=64,block=8192", capacity=1 << 20, dictionary=own, **options
    ) as store:
        fill(store.sequence("a"), 0, 64, 1)
        fill(store.sequence("a"), 64, 70, 2)


@CASES.made("dictionary-rotated", "keys from before their rotary embedding, at positions in several records")
def _(path: Path) -> None:
    model = Model.uniform(2, 2, 16)
    specs = {"k": "dict/s4/c6/ef", "v": "dict/s3/max0.7", "residual": 0, "sinks": 3}
    write_log(path, model, 140, **specs, dictionary=make_set(model, 50, mean=True, rotation=ROTATION))


@CASES.made("dictionary-parts", "dictionaries of several records each, rows of two layers and both streams in one ROWS")
def _(path: Path) -> None:
    model = Model.uniform(2, 1, 16, dtype="float16")
    spec = "dict/s4/c6/ef"
    write_log(path, model, 10, k=spec, v=spec, dictionary=make_set(model, 130, mean=True), residual=0, sinks=0)


# -- what a reader must reject -------------------------------------------------------------------------------------


def forged_set() -> DictionarySet:
    """The set of forged logs."""
    return make_set(forged_model(), 20)


def forged_policy(specs: Mapping[str, str] = SPECS) -> SequenceInfo:
    """A sequence whose streams are coded over it."""
    wish = Wish.parse({**specs, "residual": 0, "sinks": 0}, "forged")
    return SequenceInfo(1, "a", forged_model().hash, Coding(wish).policy(forged_model(), None, forged_set()))


def forged_group(stream: StreamId = StreamId.K, specs: Mapping[str, str] = SPECS, atoms: int = 0) -> Record:
    """A GROUP record of 64 tokens; of some of them, at the end, the rows are atoms, and then there are only 62."""
    spec = {s.stream: s.policy.spec for s in forged_policy(specs).policy.rules}[stream]
    dictionary = forged_set().find(0, stream)
    assert dictionary is not None
    numbers, tokens = noise((64, 2, 16), stream), 62 if atoms else 64
    numbers[tokens - atoms : tokens] = dictionary.atoms[:atoms, None]
    rows = numbers[:tokens].astype(ml_dtypes.bfloat16).view(np.uint16)
    codec = codec_for(spec, stream, dictionary)
    return group_records(1, 0, Stream(stream, 2, 16), 0, rows, codec, DtypeId.BFLOAT16, tokens)[0]


def forged_rows() -> Record:
    """A ROWS record of one token of K."""
    spec = forged_policy().policy.at(0, StreamId.K).spec
    rows = np.zeros((1, 2, spec.sparse.row_bytes if spec.sparse else 0), np.uint8)
    rows[..., 2:5] = 0x10, 0xC0, 0x01  # sets of atom 0
    return step_records(1, [OpenSpan(0, Stream(StreamId.K, 2, 16), 0, rows, spec)], limit=1 << 20)[0]


def begin(
    forge: Forge, change: Change = lambda record: record, specs: Mapping[str, str] = SPECS, **fields: Any
) -> None:
    """MODEL, DICTIONARY records, of which the first one is changed, and a SEQUENCE."""
    first, *others = dictionary_records(forged_set(), 1 << 16)
    forge.frame(forge.seal(forged_model().record()))
    forge.frame(forge.seal(change(first), **fields), *(forge.seal(one) for one in others))
    forge.frame(forge.seal(forged_policy(specs).record()))


def bad_group(name: str, shows: str, error: str = "CorruptRecord", *, frozen: bool = False, **fields: Any) -> None:
    """Register a log with a GROUP record of changed fields."""

    @CASES.bad(name, f"a GROUP record over a dictionary with {shows}", error, frozen=frozen)
    def _(forge: Forge) -> None:
        begin(forge)
        forge.frame(forge.seal(forged_group(), **fields))


def bad_chunk(name: str, shows: str, error: str = "CorruptRecord", *, at: str = "open", **fields: Any) -> None:
    """Register a log with a DICTIONARY record of changed fields."""

    @CASES.bad(name, f"a DICTIONARY record with {shows}", error, at=at, frozen=False)
    def _(forge: Forge) -> None:
        begin(forge, **fields)
        forge.frame(forge.seal(forged_group()), forge.seal(forged_group(StreamId.V)))


def bad_body(name: str, shows: str, place: int, value: bytes, stream: StreamId = StreamId.V) -> None:
    """Register a log with a GROUP record that has these bytes behind its error figures."""

    def make(own: StreamId) -> Record:
        record = forged_group(own)
        body = bytearray(bytes(record.body))
        if own == stream:
            body[ALIGNMENT + place : ALIGNMENT + place + len(value)] = value
        return with_body(record, bytes(body))

    @CASES.bad(name, shows, at="read")
    def _(forge: Forge) -> None:
        begin(forge)
        forge.frame(forge.seal(make(StreamId.K)), forge.seal(make(StreamId.V)))


bad_group("sparse-no-basis", "no hash", basis_hash=bytes(16), frozen=True)
bad_group("sparse-no-atoms", "a vector of no atoms", atoms=0)
bad_group("sparse-many-atoms", "a vector of 33 atoms", atoms=33)
bad_group("sparse-low", "a first tier of all atoms", low_atoms=4)
bad_group("sparse-bits", "coefficients of 7 bits", coefficient_bits=7)
bad_group("sparse-bound", "an error bound of 1", error_bound=1 << 15)
bad_group("sparse-empty", "a dictionary of no atoms", dictionary_atoms=0)
bad_group("sparse-symmetric", "a flag of grouped integers", flags=3)
bad_group("sparse-group", "records of 48 tokens", group=48)
bad_group("sparse-axis", "one scale a channel", axis=1)
bad_group("sparse-size", "another size of its dictionary than its sections have", dictionary_atoms=4000)
bad_chunk("chunk-parent", "a parent, and the first of all atoms", parent_hash=b"\1" * 16, grown=1)
bad_chunk("chunk-grown", "no parent, and a number of dictionaries that grew", grown=1)
bad_chunk("chunk-transform", "an unknown transform", "UnsupportedVersion", transform=2)
bad_chunk("chunk-unturned", "a transform without pairs", transform=1)
bad_chunk("chunk-turned", "pairs without a transform", pairs=1)
bad_chunk("chunk-pairs", "more pairs than channels", transform=1, pairs=9)
bad_chunk("chunk-sequence", "a sequence", sequence=1)
bad_chunk("chunk-empty", "no atoms", chunk=0)
bad_chunk("chunk-long", "more atoms than there are", first_atom=1)
bad_chunk("chunk-matrix", "dictionary 2 of 2", matrix=2)
bad_chunk("chunk-dim", "atoms of no channels", head_dim=0)
bad_chunk("chunk-uses", "no use", uses=0)
bad_chunk("chunk-mean", "two means", mean=2)
bad_chunk("chunk-hash", "a hash of zeros", basis_hash=bytes(16))
bad_chunk("chunk-missing", "the name of another set, so that one dictionary is missing", "MissingDictionary",
          at="read", basis_hash=b"\2" * 16)  # fmt: skip
bad_body("index-beyond", "an index of 20 atoms that is 20", 2 * 64, b"\x14\0")
bad_body("sparse-scale", "an infinite scale", 6, b"\x80\x7f")
bad_body("set-empty", "a set whose unary part is empty", 2 * 64, bytes(64 * 5), StreamId.K)


@CASES.bad("atom-changed", "a set of dictionaries whose hash is not its name", at="read")
def _(forge: Forge) -> None:
    def change(record: Record) -> Record:
        body = bytearray(bytes(record.body))
        body[-1] ^= 1
        return with_body(record, bytes(body))

    begin(forge, change)
    forge.frame(forge.seal(forged_group()), forge.seal(forged_group(StreamId.V)))


@CASES.bad("step-of-atoms", "a STEP record over a dictionary, which has no room to name it", frozen=False)
def _(forge: Forge) -> None:
    begin(forge)
    forge.frame(forge.seal(forged_rows(), kind=4, header_bytes=96))


@CASES.bad("rows-of-integers", "a ROWS record of grouped integers", frozen=False)
def _(forge: Forge) -> None:
    begin(forge)
    forge.frame(forge.seal(forged_rows(), codec=3))
