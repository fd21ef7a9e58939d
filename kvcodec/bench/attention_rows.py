"""Rows of scores and whole attention on a cache of INT4. Times are those of a token and a query head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.arrays import Scores, prepare_arrays
from kvcodec.attention.run import Prepared
from kvcodec.bench.attention_data import attend, make_cache, make_values
from kvcodec.bench.attention_peers import enter_attention, enter_scores
from kvcodec.bench.peers import Peers
from kvcodec.bench.row import OURS, READ, Contender, Entry, Row, WrongResult, require_close
from kvcodec.bench.scale import HEAD_DIM, KV_HEADS, Scale
from kvcodec.codecs import EncodedArray, decode_array, encode_array

_NAMES = {16: OURS, 8: f"{OURS}, 8-bit query"}
_Q_HEADS = 32
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
    ]  # fmt: skip


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

        def check(prepared: Prepared = prepared, name: str = _NAMES[bits], tolerance: float = tolerance) -> None:
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
