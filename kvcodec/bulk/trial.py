"""Codecs on trial: the rows of a dump coded by each of them, without a log, and what that does to attention."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.bulk.chunks import Progress, no_progress, token_chunks
from kvcodec.bulk.comparison import AttentionTotal, total_attention
from kvcodec.bulk.dump_model import STREAMS
from kvcodec.bulk.selection import Layers, pick_layers
from kvcodec.bulk.trial_coder import ARTICLE, ArticleCoder, CodebookCoder, Coder, SpecCoder
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.dumps import open_dump
from kvcodec.dumps.dump import Dump
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import StreamId
from kvcodec.measure.attention import AttentionError, attention_error
from kvcodec.measure.error import RowError, finite_or_none
from kvcodec.sparse_spec import Pursuit
from kvcodec.spec import CodecSpec
from kvcodec.store.opening import load_dictionary

FilePath = str | os.PathLike[str]
DEFAULT = (ARTICLE, "dict/s8/c6/ef")
PURSUITS = tuple(Pursuit)
SINKS = 4
_WORK = 24  # copies of a chunk's 16-bit rows that are in memory: floats, codes, float64


@dataclass(frozen=True)
class TrialRow:
    """One codec. codec: its spec, or "article". atoms: of which file, "random" for the article's, empty where none.
    pursuit: omp, ormp, mp, or of the article "products". vectors: how many were coded, one a token and head. nbytes: of
    their codes, padding included. k, v: errors of these rows. attention: None where no layer has queries.
    """

    codec: str
    atoms: str
    pursuit: str
    vectors: int
    nbytes: int
    k: RowError
    v: RowError
    attention: AttentionTotal | None

    @property
    def bytes_a_vector(self) -> float:
        return self.nbytes / self.vectors if self.vectors else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an infinite number is None."""
        return {
            "codec": self.codec, "atoms": self.atoms, "pursuit": self.pursuit, "vectors": self.vectors,
            "bytes_a_vector": self.bytes_a_vector if self.vectors else None,
            "k": finite_or_none(self.k.relative), "v": finite_or_none(self.v.relative),
            "attention": None if self.attention is None else self.attention.as_dict(),
        }  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """What the codecs made of a dump: of these layers, the tokens behind the sinks."""

    dump: str
    tokens: int
    layers: tuple[int, ...]
    sinks: int
    rows: tuple[TrialRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an infinite number is None."""
        about = {"dump": self.dump, "tokens": self.tokens, "layers": list(self.layers), "sinks": self.sinks}
        return about | {"codecs": [row.as_dict() for row in self.rows]}


def try_codecs(
    dump: FilePath,
    codecs: Sequence[str] = DEFAULT,
    *,
    dictionary: FilePath | DictionarySet | None = None,
    pursuits: Sequence[str] = PURSUITS,
    layers: Layers = None,
    sinks: int = SINKS,
    mapping: Sequence[str] = (),
    kv_heads: int | None = None,
    head_dim: int | None = None,
    progress: Progress | None = None,
) -> Trial:
    """Code K and V of a dump by each of some codecs, K and V alike, and measure the rows that decoding gives.

    codecs: specs, and "article", the 18-byte coder of kvcodec.dictionary.baseline. A `dict` spec is tried over the
    article's random codebook by OMP, and over `dictionary` (a .kvdict file or a set), if there is one, by each of
    `pursuits`; a `pq` or `tcq` spec by such codes of `dictionary`. layers: "0-3,17", by default all. sinks: first
    tokens that are not coded; attention sees them as they are. mapping, kv_heads, head_dim: as open_dump takes them.
    progress: called with (done, total) in layers times codecs. Memory: about 32 MiB; of a layer with queries all its
    rows, twice.

    Raises what open_dump raises; SpecError for what is no codec, or a layer that the dictionary does not know.
    """
    coders = _make_coders(codecs, dictionary, [Pursuit.parse(pursuit) for pursuit in pursuits])
    tell = progress or no_progress
    with open_dump(dump, mapping=mapping, kv_heads=kv_heads, head_dim=head_dim) as source:
        chosen = pick_layers(layers, source.layers, str(source.path))
        if not 0 <= sinks < source.tokens:
            raise SpecError(f"sinks is {sinks}, want 0 or more, and fewer than the dump's {source.tokens} tokens")
        for coder in coders:
            for layer in chosen:
                coder.check(layer, source.shape(layer, StreamId.K)[2], source.shape(layer, StreamId.V)[2])
        rows = []
        for n, coder in enumerate(coders):

            def tell_layer(done: int, n: int = n) -> None:
                tell(n * len(chosen) + done, len(coders) * len(chosen))

            rows.append(_try(source, coder, chosen, sinks, tell_layer))
    return Trial(str(dump), source.tokens, chosen, sinks, tuple(rows))


def _make_coders(
    codecs: Sequence[str], dictionary: FilePath | DictionarySet | None, pursuits: Sequence[Pursuit]
) -> list[Coder]:
    own = None if dictionary is None else load_dictionary(dictionary)
    name = "a set" if dictionary is None or isinstance(dictionary, DictionarySet) else Path(dictionary).name
    coders: list[Coder] = []
    for text in codecs:
        if text == ARTICLE:
            coders.append(ArticleCoder())
            continue
        spec = CodecSpec.parse(text)
        if spec.shaped is not None:
            coders.append(SpecCoder(text, own, name))
            continue
        if spec.sparse is None:
            coders.append(SpecCoder(text))
            continue
        coders.append(CodebookCoder(text))
        coders += [SpecCoder(text, own.with_pursuit(pursuit), name, pursuit) for pursuit in pursuits if own]
    if not coders:
        raise SpecError("no codec to try")
    return coders


def _try(dump: Dump, coder: Coder, layers: Sequence[int], sinks: int, tell: Callable[[int], None]) -> TrialRow:
    errors, nbytes, vectors = {stream: RowError(None, stream.name) for stream in STREAMS}, 0, 0
    found: list[AttentionError] = []
    for n, layer in enumerate(layers):
        queries = dump.queries(layer)
        kept: list[NDArray[Any]] = []
        widest = max(heads * dim for _, heads, dim in (dump.shape(layer, stream) for stream in STREAMS))
        for stream in STREAMS:
            heads = dump.shape(layer, stream)[1]
            parts = [dump.rows(layer, stream, 0, sinks).astype(np.float32)]
            for start, stop in token_chunks(dump.tokens - sinks, _WORK * 2 * widest):
                rows = dump.rows(layer, stream, sinks + start, sinks + stop)
                coded = coder.code(rows, layer, stream, sinks + start)
                errors[stream].add(rows.reshape(-1, 1, 1), coded.rows.reshape(-1, 1, 1))
                nbytes, vectors = nbytes + coded.nbytes, vectors + heads * len(rows)
                parts += [coded.rows] if queries else []
            kept.append(np.concatenate(parts))
        if queries is not None:
            own = [dump.rows(layer, stream, 0, dump.tokens) for stream in STREAMS]
            try:
                found.append(attention_error(queries.q, queries.positions, queries.scale, queries.window, *own, *kept))
            except ShapeError as error:
                raise ShapeError(f"{dump.path}: queries of layer {layer}: {error}") from None
        tell(n + 1)
    k, v = errors.values()
    return TrialRow(coder.codec, coder.atoms, coder.pursuit, vectors, nbytes, k, v, total_attention(found))
