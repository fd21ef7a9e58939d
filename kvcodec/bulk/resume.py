"""Going on with a sequence whose encoding was interrupted: does it belong to this dump, and where does it go on?

Nothing beside the log remembers the dump. What the log holds is compared with what encoding the dump would have put
there, bit by bit: rows that are still as they were, and of every layer and stream the first coded groups, the middle
one and the last. A row of a KV cache depends on all tokens before it, so that the last group of another conversation
differs wherever in it the first other token stands. Names, model and codecs must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from kvcodec.bulk.dump_model import check_same_model
from kvcodec.bulk.selection import DumpPart
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import CodecId, DropScope
from kvcodec.spec import CodecSpec
from kvcodec.store.coding import ask
from kvcodec.store.dictionaries import StreamCodecs
from kvcodec.store.ending import check_servable, drop_record
from kvcodec.store.extents import Extent
from kvcodec.store.given import CodedKeys, keys_for
from kvcodec.store.headers import read_spec
from kvcodec.store.model import Model
from kvcodec.store.opening import load_dictionary
from kvcodec.store.reading import read_extent, take_given
from kvcodec.store.rows import take_rows
from kvcodec.store.sequence_index import Key, SequenceIndex
from kvcodec.store.store import Store

if TYPE_CHECKING:
    from kvcodec.codecs.bounded import BoundedCodec

_STEPS = 4  # the newest records of open rows that are compared


def check_continues(store: Store, name: str, source: DumpPart, model: Model, asked: Mapping[str, Any]) -> None:
    """Raises SpecError or IdentityMismatch unless the sequence holds the first tokens of `source`, encoded as `asked`.

    asked: the options `k`, `v`, `residual` and `sinks`; one that is None may have been anything.
    """
    index = store.index.sequences[store.index.by_name[name]]
    check_same_model(index.model, model)
    what = f"{store.path}: sequence {name!r}"
    others = {name: value for name, value in asked.items() if name not in ("spec", "dictionary")}
    own = asked.get("dictionary")
    dictionary = load_dictionary(own) if own is not None else None
    policy = ask(asked.get("spec"), others, "encode").policy(index.model, index.info.policy, dictionary)
    for layer, id_ in index.maps:
        was, is_ = index.info.policy.at(layer, id_), policy.at(layer, id_)
        if was != is_:
            raise SpecError(f"{what} was begun with other options: layer {layer} {id_.name} as {was}, not {is_}")
    if index.length > source.tokens:
        raise SpecError(f"{what} has {index.length} tokens, more than the {source.tokens} to encode: another dump")
    for key, extent in _samples(index):
        coded = extent.coded
        if coded.first + coded.tokens <= source.tokens and not _holds(store, index, key, extent, source):
            where = f"layer {key[0]} {key[1].name}, tokens {coded.first} to {coded.first + coded.tokens - 1}"
            raise SpecError(f"{what} is not of this dump: {where} differ")


def _samples(index: SequenceIndex) -> Iterator[tuple[Key, Extent]]:
    for key, extents in index.maps.items():
        there = extents.covering(0, index.length)
        groups = [extent for extent in there if extent.coded.step is None]
        for n in sorted({0, 1, len(groups) // 2, len(groups) - 1} & set(range(len(groups)))):
            yield key, groups[n]
        for extent in [extent for extent in there if extent.coded.step is not None][-_STEPS:]:
            yield key, extent


def _holds(store: Store, index: SequenceIndex, key: Key, extent: Extent, source: DumpPart) -> bool:
    """Whether a record holds what encoding the dump's rows gives."""
    layer, id_ = key
    stream = next(s for s in index.model.layers[layer].streams if s.id == id_)
    first, tokens = extent.coded.first, extent.coded.tokens
    bits = take_rows(source.rows(layer, id_, first, first + tokens), index.model, layer, stream, first)
    codecs = StreamCodecs(store.index.dictionaries, layer, stream, index.model.dtype_id)
    keys = keys_for(store.log, store.index.dictionaries, index, key)
    held = read_extent(store.log, extent, codecs, keys, as_float32=False)
    policy = index.info.policy.at(layer, id_).spec
    own = slice(extent.first - first, extent.end - first)
    return bool(np.array_equal(held[own], _recode(store, extent, codecs, keys, bits, policy)[own]))


def _recode(
    store: Store,
    extent: Extent,
    codecs: StreamCodecs,
    keys: CodedKeys | None,
    bits: NDArray[np.uint16],
    policy: CodecSpec,
) -> NDArray[np.uint16]:
    """The rows that the record's codec makes of `bits`."""
    coded, dtype, dim = extent.coded, codecs.dtype, codecs.stream.dim
    if coded.step is None:
        header, _ = store.log.load(coded.parts[0].place)
        spec = read_spec(header)
        if spec.bounded:
            whole = spec
            if spec.sparse is not None:  # how many atoms it has was chosen for its rows, and its set may have grown
                whole = policy.bound_to(spec.sparse.size, spec.sparse.basis)
            return cast("BoundedCodec", codecs.codec(whole).at(coded.first)).recode(bits, dtype)
        codec = codecs.codec(spec, take_given(extent, spec, codecs, keys)).at(coded.first)
        body = codec.encode(bits, dtype, coded.tokens).body[0]
        return codec.decode(body, coded.tokens, dim, dtype, as_float32=False)
    if coded.step.codec == CodecId.RAW:
        return bits
    rows = codecs.rows(coded.step, take_given(extent, coded.step, codecs, keys)).at(coded.first)
    return rows.decode(rows.encode(bits, dtype), dim, dtype, as_float32=False)


def rewind(store: Store, name: str) -> None:
    """Drop what a crash left beyond the last token at which no coded group of any stream is cut.

    Streams have groups of different lengths, and a crash may leave some of them behind the others. Going on where the
    shortest ends would cut a group of another and begin the next one in the middle: right, but not what encoding
    without an interruption gives. So it is where tokens were evicted or summarised since, or a window has gone on: they
    do not come back. `store` is a writer whose sequence `name` was not taken up yet.
    """
    index = store.index.sequences[store.index.by_name[name]]
    point = before = index.length
    while True:
        for extents in index.maps.values():
            for extent in extents.covering(point - 1, point) if point else ():
                coded = extent.coded
                if coded.step is None and coded.first < point < coded.first + coded.tokens:
                    point = coded.first
        if point == before:
            break
        before = point
    if point < index.length and not _is_edited(index, point):
        store.log_records([drop_record(index.info.id, DropScope.TAIL, point)])


def _is_edited(index: SequenceIndex, point: int) -> bool:
    """Whether a sequence could not be cut at a token, or would be without what was evicted behind it."""
    try:
        check_servable(index, point)
    except ShapeError:
        return True
    gone = any(extents.evicted(point, index.length) for extents in index.maps.values())
    return gone or any(point < end for _, end in index.summarized)
