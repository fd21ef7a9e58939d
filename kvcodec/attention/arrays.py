"""Attention on arrays that were encoded outside any log: kvcodec.attend."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.columns import POSITION
from kvcodec.attention.query import QUERY_BITS, Queries, quantize_queries, take_queries
from kvcodec.attention.run import Prepared, StreamUse, Task
from kvcodec.attention.state import AttentionState
from kvcodec.attention.strips import Form, Spans, cut_strips, form_of, form_table
from kvcodec.attention.tables import QueryTables, used_headers
from kvcodec.attention.tiers import Tiered, prepare, take_tiers
from kvcodec.attention.turned import TurnedQueries
from kvcodec.codecs import EncodedArray, codec_for, decode_array, encode_array
from kvcodec.codecs.codec import take_body, take_out
from kvcodec.codecs.given import given_rows
from kvcodec.codecs.predicted_rows import GivenRows
from kvcodec.codecs.product import MISSING, Product
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import TILE_LANES, CodecId, StreamId, align

_NATS = math.log(2) / 65536  # of a unit of a logit


@overload
def attend_arrays(
    q: NDArray[Any], k: EncodedArray, v: EncodedArray, *, scale: float | None = ..., query_bits: int = ...,
    tiers: tuple[int, float] | None = ..., return_state: Literal[False] = ...,
) -> NDArray[np.float32]: ...  # fmt: skip
@overload
def attend_arrays(
    q: NDArray[Any], k: EncodedArray, v: EncodedArray, *, scale: float | None = ..., query_bits: int = ...,
    tiers: tuple[int, float] | None = ..., return_state: Literal[True],
) -> tuple[NDArray[np.float32], AttentionState]: ...  # fmt: skip
def attend_arrays(
    q: NDArray[Any],
    k: EncodedArray,
    v: EncodedArray,
    *,
    scale: float | None = None,
    query_bits: int = 16,
    tiers: tuple[int, float] | None = None,
    return_state: bool = False,
) -> Any:
    """Decode attention of one query position, (heads, dim) float32, on encoded keys and values with integers alone.

    q: (heads, k's dim), a multiple of k's heads, of which those that follow each other share a KV head. k: encoded as
    stream "k"; v: as stream "v". scale: of the logits, 1 / sqrt(dim) unless given. query_bits: 16, or 8 for the fast
    and coarse mode (outputs off by percents). tiers: (low, share), such as (3, 0.1): of codes over a dictionary the
    first `low` atoms are read, and all atoms of that share of the blocks of 64 tokens, those that query heads like best
    by their first atoms. return_state: also the state, which merges with that of other tokens.
    Raises ShapeError, DtypeError, NonFiniteError, SpecError.
    """
    (state,) = prepare_arrays(q, k, v, scale=scale, query_bits=query_bits, tiers=tiers).run()
    return (state.output(), state) if return_state else state.output()


def prepare_arrays(
    q: NDArray[Any],
    k: EncodedArray,
    v: EncodedArray,
    *,
    scale: float | None = None,
    query_bits: int = 16,
    tiers: tuple[int, float] | None = None,
    threads: int = 1,
    pool: Executor | None = None,
) -> Prepared | Tiered:
    """What attend_arrays runs, for those who run it more than once."""
    check_bits(query_bits)
    if k.tokens != v.tokens or k.heads != v.heads:
        raise ShapeError(f"k is {k.tokens} x {k.heads}, v {v.tokens} x {v.heads}: want the same tokens and heads")
    if k.stream == StreamId.V or v.stream != StreamId.V:
        raise SpecError(f"k is of stream {k.stream.name.lower()}, v of {v.stream.name.lower()}: want k and v")
    taken = None if tiers is None else take_tiers(tiers, [e.spec.sparse for e in (k, v) if e.spec.sparse is not None])
    forms: list[Form] = []
    kept: list[object] = []
    spans = [_spans(_pad_rows(e), forms, kept) for e in (k, v)]
    uses = [StreamUse(k.dim, True, False, True), StreamUse(v.dim, False, True, False)]
    if v.given is not None and (v.given is not k or v.first != k.first):
        spans.insert(1, _given_spans(v, v.given, forms, kept))
        uses.insert(1, StreamUse(v.given.dim, False, False, True))
    task = Task(_quantize(q, k, scale), [_cut(spans, k)], tuple(uses), forms, k.heads, query_bits, kept)
    return prepare(task, taken, threads=threads, pool=pool)


def score_arrays(
    q: NDArray[Any], k: EncodedArray, *, scale: float | None = None, query_bits: int = 16
) -> NDArray[np.float32]:
    """Logits (query heads, tokens) of one query position, in nats, with integers alone: what chooses tokens.

    Arguments as of attend_arrays.
    """
    check_bits(query_bits)
    return Scores(q, k, scale=scale, query_bits=query_bits).run().astype(np.float32) * np.float32(_NATS)


class Scores:
    """Logits of encoded keys with all tables made: int32 (query heads, tokens), Q16 in log2 units."""

    def __init__(self, q: NDArray[Any], k: EncodedArray, *, scale: float | None, query_bits: int) -> None:
        from kvcodec.kernels.attend import score_strips
        from kvcodec.kernels.forms import scratch_bytes
        from kvcodec.kernels.tables import make_tables

        forms: list[Form] = []
        self._kept: list[object] = []  # what the strips' addresses point into
        spans = [_spans(_pad_rows(k), forms, self._kept)]
        queries = _quantize(q, k, scale)
        heads = queries.numbers.shape[1]
        dim, strips = align(k.dim, TILE_LANES), _cut(spans, k)
        tables = form_table(forms), np.array([[dim, 0, 1, 0, 1]], np.int64)
        asked = np.zeros(len(strips), np.int64)
        self._kept.append(TurnedQueries(strips, asked, tables[0], queries, [(0, dim, 0)]))
        products = QueryTables(used_headers(strips, tables[0], 1), [0], queries, k.heads)
        work, memory = (take_out(None, (n,), np.uint8) for n in (products.work_bytes, scratch_bytes(dim, 1)))
        self._logits = np.empty((heads, k.tokens), np.int32)
        arguments: Any = *queries, query_bits, heads // k.heads, dim, memory, self._logits
        self._kernel = partial(score_strips, strips, *tables, products.lookups, *arguments)
        self._tables = partial(make_tables, products.jobs, *queries, work) if len(products.jobs) else None
        self._kept.append(products)

    def run(self) -> NDArray[np.int32]:
        """The logits, in the same memory each time."""
        if self._tables:
            self._tables()
        self._kernel()
        return self._logits


def _quantize(q: NDArray[Any], k: EncodedArray, scale: float | None) -> Queries:
    wide = take_queries(np.asarray(q)[None], (k.dim,), k.heads)
    return quantize_queries(wide, (k.dim,), k.dim**-0.5 if scale is None else scale)


def _cut(spans: list[Spans], keys: EncodedArray) -> NDArray[np.int64]:
    tokens = keys.tokens
    strips = cut_strips(spans, np.array([[0, tokens]] if tokens else np.empty((0, 2)), np.int64).reshape(-1, 2))
    strips[:, POSITION] += keys.first
    return strips


def check_bits(query_bits: int) -> None:
    """Raises SpecError."""
    if query_bits not in QUERY_BITS:
        raise SpecError(f"query_bits is {query_bits}, want {' or '.join(map(str, QUERY_BITS))}")


def _pad_rows(encoded: EncodedArray) -> EncodedArray:
    """The same tokens, raw rows of them padded to whole vectors of 16 channels: kernels read no others."""
    if encoded.spec.codec != CodecId.RAW or encoded.dim % TILE_LANES == 0:
        return encoded
    rows = decode_array(encoded)
    wide = np.zeros((*rows.shape[:2], align(encoded.dim, TILE_LANES)), rows.dtype)
    wide[..., : encoded.dim] = rows
    return encode_array(wide, encoded.spec, stream=encoded.stream)


def _given_codes(encoded: EncodedArray) -> GivenRows | None:
    """What the codec of V that is predicted takes that decodes none of it: no rows of K. Raises SpecError."""
    if encoded.given is None:
        if isinstance(encoded.dictionary, Product) and encoded.dictionary.prediction is not None:
            raise SpecError(MISSING)
        return None
    return given_rows(replace(encoded.given, tokens=0, full=encoded.given.full[:0], tail=encoded.given.tail[:0]))


def _given_spans(v: EncodedArray, given: EncodedArray, forms: list[Form], kept: list[object]) -> Spans:
    """Where the codes of K lie that v is predicted from. Raises ShapeError where they are not those of its tokens."""
    own, shift = _spans(given, forms, kept), given.first - v.first
    if given.heads != v.heads or not shift <= 0 <= v.tokens <= given.tokens + shift:
        raise ShapeError(
            f"v: tokens {v.first} to {v.first + v.tokens} of {v.heads} heads, and codes of K for {given.first} to "
            f"{given.first + given.tokens} of {given.heads}"
        )
    return own._replace(first=own.first + shift, end=own.end + shift)


def _spans(encoded: EncodedArray, forms: list[Form], kept: list[object]) -> Spans:
    """Where an encoded array's tokens lie; the forms of its records join `forms`, what they lie in `kept`.

    Raises ShapeError if the records are not those of as many tokens and heads, SpecError, CorruptRecord.
    """
    dictionary = getattr(encoded, "dictionary", None)
    codec = codec_for(encoded.spec, encoded.stream, dictionary, _given_codes(encoded))
    kept.append(dictionary)
    split = len(encoded.full) * codec.token_group
    rest = encoded.tokens - split
    if not (0 <= rest < codec.token_group and len(encoded.tail) == bool(rest)):
        raise ShapeError(f"{encoded.stream.name.lower()}: {encoded.tokens} tokens are not what its records hold")
    parts = []
    for body, first, tokens in ((encoded.full, 0, codec.token_group), (encoded.tail, split, rest)):
        if len(body):
            if body.shape[1] != encoded.heads:
                name = encoded.stream.name.lower()
                raise ShapeError(f"{name}: records of {body.shape[1]} heads, want {encoded.heads}")
            own = take_body(body, codec.sections(tokens, encoded.dim).total)
            codec.validate(own, tokens, encoded.dim)
            kept.append(own)
            forms.append(form_of(encoded.spec, encoded.stream, tokens, encoded.dim, encoded.dtype, dictionary))
            number = np.arange(len(own), dtype=np.int64)
            begin, place = first + number * tokens, own.ctypes.data + number * own.strides[0]
            form, zeros = np.full(len(own), len(forms) - 1), np.zeros(len(own), np.int64)
            parts.append(Spans(begin, begin + tokens, place, form, zeros, zeros))
    return Spans.join(parts)
