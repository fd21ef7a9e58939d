"""Rows of scores and whole attention on a cache of INT4, and of codes over a dictionary. Times are those of a token and
a query head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.arrays import Scores, prepare_arrays
from kvcodec.attention.run import Prepared
from kvcodec.attention.tiers import Tiered
from kvcodec.bench.attention_data import attend, make_cache, make_codes, make_dictionary, make_values
from kvcodec.bench.attention_peers import enter_attention, enter_scores
from kvcodec.bench.peers import Peers
from kvcodec.bench.product_rows import product_rows
from kvcodec.bench.rebuilt_rows import rebuilt_rows
from kvcodec.bench.row import OURS, READ, Contender, Entry, Row, WrongResult, require_close
from kvcodec.bench.scale import HEAD_DIM, KV_HEADS, Scale
from kvcodec.bench.trellis_rows import trellis_rows
from kvcodec.codecs import EncodedArray, decode_array, encode_array
from kvcodec.layout import StreamId

_NAMES = {16: OURS, 8: f"{OURS}, 8-bit query"}
_Q_HEADS = 32
_SHARED = 4  # query heads of one KV head
_ATOMS = 1024
_SPARSE = {"u16": "dict/s8", "ef": "dict/s8/c6/ef"}  # 26 and 17 bytes a vector
_INT4 = f"{OURS}, INT4"
_FEW = 2048  # tokens that stay in the caches of two cores


def attention_rows(scale: Scale) -> list[Row]:
    """Scores in cache and from memory; attention of one head, of heads that share KV heads, and from memory."""
    one, shared, far = scale.context, f"{_Q_HEADS} heads on {KV_HEADS}", scale.long_context
    return [
        Row("score-cache", "scores of one query", f"{scale.cached_tokens} tokens x {HEAD_DIM}", "token",
            lambda peers, _: _scores(peers, scale.cached_tokens, "")),
        Row("score-memory", "the same, from memory", f"{scale.score_tokens} tokens x {HEAD_DIM}", "token",
            lambda peers, _: _scores(peers, scale.score_tokens, READ)),
        Row("attend-1-head", "attention of one query", f"{one} tokens, 1 head x {HEAD_DIM}", "token",
            lambda peers, _: _attention(peers, 1, 1, one, "")),
        Row("attend-32-heads", "the same, heads that share KV heads", f"{one} tokens, {shared} x {HEAD_DIM}",
            "token", lambda peers, _: _attention(peers, _Q_HEADS, KV_HEADS, one, "")),
        Row("attend-memory", "the same, from memory", f"{far} tokens, {KV_HEADS} heads x {HEAD_DIM}",
            "token", lambda peers, _: _attention(peers, KV_HEADS, KV_HEADS, far, READ)),
        Row("attend-2-threads", "heads that share KV heads, on 2 threads", f"{_FEW} tokens, {shared} x {HEAD_DIM}",
            "token", lambda _peers, _: _threads(_FEW)),
        *(row for name, spec in _SPARSE.items() for row in _dictionary_rows(scale, name, spec)),
        *product_rows(scale),
        *trellis_rows(scale),
        *rebuilt_rows(scale),
    ]  # fmt: skip


def _dictionary_rows(scale: Scale, name: str, spec: str) -> list[Row]:
    tokens, far, shared = scale.context, scale.long_context, f"{_SHARED} heads on 1"
    atoms = f"{spec}, {_ATOMS} atoms"
    return [
        Row(f"score-dict-{name}-1-head", "scores of one query, over a dictionary",
            f"{atoms}, {tokens} tokens x {HEAD_DIM}", "token", lambda _peers, _: _sparse_scores(spec, 1, tokens)),
        Row(f"score-dict-{name}-{_SHARED}-heads", "the same, heads that share a KV head",
            f"{atoms}, {tokens} tokens, {shared} x {HEAD_DIM}", "token",
            lambda _peers, _: _sparse_scores(spec, _SHARED, tokens)),
        Row(f"attend-dict-{name}-memory", "attention over a dictionary, from memory",
            f"{atoms}, {far} tokens, {KV_HEADS} heads x {HEAD_DIM}", "token",
            lambda peers, _: _sparse_attention(peers, spec, KV_HEADS, KV_HEADS, far, READ)),
        Row(f"attend-dict-{name}-32-heads", "the same, heads that share KV heads",
            f"{atoms}, {tokens} tokens, {_Q_HEADS} heads on {KV_HEADS} x {HEAD_DIM}", "token",
            lambda peers, _: _sparse_attention(peers, spec, _Q_HEADS, KV_HEADS, tokens, "")),
    ]  # fmt: skip


def _sparse_scores(spec: str, heads: int, tokens: int) -> Sequence[Entry]:
    """Scores over a dictionary, the query's products with the atoms included, and those of INT4."""
    q, k = make_cache(heads, 1, 1).q, make_values(1, tokens, 1)
    both = {OURS: make_codes(spec, make_dictionary(_ATOMS), 1, tokens, StreamId.K)}
    both[_INT4] = _encode(k, "int4/channel/g64", "k")
    entries: list[Entry] = []
    for name, coded in both.items():
        scores, rows = Scores(q, coded, scale=None, query_bits=16), decode_array(coded, dtype=np.float32)[:, 0]
        wanted = q.astype(np.float64) @ rows.astype(np.float64).T / math.sqrt(HEAD_DIM)

        def check(name: str = name, scores: Scores = scores, wanted: NDArray[np.float64] = wanted) -> None:
            require_close(name, scores.run() * (math.log(2) / 65536), wanted, 1e-3)

        entries.append(Contender(name, scores.run, tokens * heads, coded.nbytes, "", check))
    return entries


def _sparse_attention(peers: Peers, spec: str, q_heads: int, kv_heads: int, tokens: int, bound: str) -> Sequence[Entry]:
    """Attention where keys and values are codes over a dictionary, INT4, and the peers on as many tokens."""
    data, atoms = make_cache(q_heads, kv_heads, tokens), make_dictionary(_ATOMS)
    sparse = tuple(make_codes(spec, atoms, kv_heads, tokens, stream) for stream in (StreamId.K, StreamId.V))
    int4 = _encode(data.k, "int4/channel/g64", "k"), _encode(data.v, "int4/token/g64", "v")
    entries: list[Entry] = []
    for name, (k, v), tolerance in ((OURS, sparse, 1e-3), (_INT4, int4, 5e-4)):
        prepared, wanted = prepare_arrays(data.q, k, v), _attend_decoded(data.q, k, v)

        def check(
            name: str = name,
            prepared: Prepared | Tiered = prepared,
            wanted: NDArray[np.float64] = wanted,
            tolerance: float = tolerance,
        ) -> None:
            require_close(name, prepared.run()[0].output(), wanted, tolerance)

        entries.append(Contender(name, prepared.run, tokens * q_heads, k.nbytes + v.nbytes, bound, check))
    return [*entries, *enter_attention(peers, data, bound=bound)]


def _scores(peers: Peers, tokens: int, bound: str) -> Sequence[Entry]:
    q, k = make_cache(1, 1, 1).q[0], make_values(1, tokens, 1)[0]
    coded = _encode(k[None], "int4/channel/g64", "k")
    wanted = decode_array(coded, dtype=np.float32)[:, 0].astype(np.float64) @ q.astype(np.float64) / math.sqrt(HEAD_DIM)
    entries: list[Entry] = []
    for bits, tolerance in ((16, 1e-3), (8, 0.05)):
        scores = Scores(q[None], coded, scale=None, query_bits=bits)

        def check(scores: Scores = scores, name: str = _NAMES[bits], tolerance: float = tolerance) -> None:
            require_close(name, scores.run()[0] * (math.log(2) / 65536), wanted, tolerance)

        entries.append(Contender(_NAMES[bits], scores.run, tokens, coded.nbytes, bound, check))
    return [*entries, *enter_scores(peers, q, k, bound=bound)]


def _attention(peers: Peers, q_heads: int, kv_heads: int, tokens: int, bound: str) -> Sequence[Entry]:
    data = make_cache(q_heads, kv_heads, tokens)
    k, v = _encode(data.k, "int4/channel/g64", "k"), _encode(data.v, "int4/token/g64", "v")
    wanted = _attend_decoded(data.q, k, v)
    entries: list[Entry] = []
    for bits, tolerance in ((16, 5e-4), (8, 0.05)):
        prepared = prepare_arrays(data.q, k, v, query_bits=bits)

        def check(
            prepared: Prepared | Tiered = prepared, name: str = _NAMES[bits], tolerance: float = tolerance
        ) -> None:
            require_close(name, prepared.run()[0].output(), wanted, tolerance)

        moved = k.nbytes + v.nbytes
        entries.append(Contender(_NAMES[bits], prepared.run, tokens * q_heads, moved, bound, check))
    return [*entries, *enter_attention(peers, data, bound=bound)]


def _threads(tokens: int) -> Sequence[Entry]:
    """Two threads, and as what to compare them with one: work in cache."""
    data = make_cache(_Q_HEADS, KV_HEADS, tokens)
    k, v = _encode(data.k, "int4/channel/g64", "k"), _encode(data.v, "int4/token/g64", "v")
    one = prepare_arrays(data.q, k, v)
    pool = ThreadPoolExecutor(2)
    two = prepare_arrays(data.q, k, v, threads=2, pool=pool)

    def check() -> None:
        if not np.array_equal(one.run()[0].outputs, two.run()[0].outputs):
            raise WrongResult("two threads give other integers than one")

    units, moved = tokens * _Q_HEADS, k.nbytes + v.nbytes
    return [Contender(OURS, two.run, units, moved, "", check), Contender("1 thread", one.run, units, moved)]


def _encode(heads: NDArray[np.float32], spec: str, stream: str) -> EncodedArray:
    return encode_array(np.ascontiguousarray(heads.transpose(1, 0, 2)), spec, stream=stream)


def _attend_decoded(q: NDArray[np.float32], k: EncodedArray, v: EncodedArray) -> NDArray[np.float64]:
    rows = [decode_array(one, dtype=np.float32).transpose(1, 0, 2) for one in (k, v)]
    return attend(q, *rows)
