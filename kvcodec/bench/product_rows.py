"""Rows of scores and attention on product codes, in place. Times are those of a token and a query head."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.arrays import Scores, prepare_arrays
from kvcodec.attention.run import Prepared
from kvcodec.attention.tiers import Tiered
from kvcodec.bench.attention_data import (
    PRODUCT_DIM,
    attend,
    make_cache,
    make_product,
    make_product_codes,
    make_values,
)
from kvcodec.bench.attention_peers import enter_attention
from kvcodec.bench.peers import Peers
from kvcodec.bench.row import OURS, READ, Contender, Entry, Row, require_close
from kvcodec.bench.scale import Scale
from kvcodec.codecs import EncodedArray, decode_array, encode_array
from kvcodec.layout import StreamId

_GROUPS = ((30, 30), (43, 18), (22, 22))  # of K and V: 32 bytes a vector, alike and apart; 24 bytes
_INT4 = f"{OURS}, INT4"
_SHARED = 4  # query heads of one KV head
_Q_HEADS, _KV_HEADS = 32, 8
_FAR_HEADS = 4  # KV heads, from memory


def product_rows(scale: Scale) -> list[Row]:
    """Scores of one head and of four; attention from memory, and of heads that share KV heads."""
    tokens, far = scale.context, scale.long_context
    rows = [
        Row(f"score-pq-{heads}-head" + "s" * (heads > 1), "scores of one query, by product codes",
            f"{_GROUPS[0][0]} groups, {tokens} tokens, {heads} heads on 1 x {PRODUCT_DIM}", "token",
            lambda _peers, _, heads=heads: _scores(heads, tokens))  # type: ignore[misc]
        for heads in (1, _SHARED)
    ]  # fmt: skip
    for k, v in _GROUPS:
        name, groups = f"attend-pq-{k}-{v}", f"{k} groups of K, {v} of V"
        rows += [
            Row(f"{name}-memory", "attention on product codes, from memory",
                f"{groups}, {far} tokens, {_FAR_HEADS} heads x {PRODUCT_DIM}", "token",
                lambda peers, _, k=k, v=v: _attention(peers, (k, v), _FAR_HEADS, _FAR_HEADS, far, READ)),  # type: ignore[misc]
            Row(f"{name}-32-heads", "the same, heads that share KV heads",
                f"{groups}, {tokens} tokens, {_Q_HEADS} heads on {_KV_HEADS} x {PRODUCT_DIM}", "token",
                lambda peers, _, k=k, v=v: _attention(peers, (k, v), _Q_HEADS, _KV_HEADS, tokens, "")),  # type: ignore[misc]
        ]  # fmt: skip
    return rows


def _scores(heads: int, tokens: int) -> Sequence[Entry]:
    """Scores, what is made once for a query included, and those of INT4."""
    q = np.random.default_rng(0).standard_normal((heads, PRODUCT_DIM), np.float32)
    k = make_values(1, tokens, 1, dim=PRODUCT_DIM).transpose(1, 0, 2)
    contenders = {
        OURS: make_product_codes(make_product(_GROUPS[0][0], StreamId.K), 1, tokens),
        _INT4: encode_array(np.ascontiguousarray(k), "int4/channel/g64", stream="k"),
    }
    entries: list[Entry] = []
    for name, coded in contenders.items():
        scores, rows = Scores(q, coded, scale=None, query_bits=16), decode_array(coded, dtype=np.float32)[:, 0]
        wanted = q.astype(np.float64) @ rows.astype(np.float64).T / math.sqrt(PRODUCT_DIM)

        def check(name: str = name, scores: Scores = scores, wanted: NDArray[np.float64] = wanted) -> None:
            require_close(name, scores.run() * (math.log(2) / 65536), wanted, 1e-3)

        entries.append(Contender(name, scores.run, tokens * heads, coded.nbytes, "", check))
    return entries


def _attention(
    peers: Peers, groups: tuple[int, int], q_heads: int, kv_heads: int, tokens: int, bound: str
) -> Sequence[Entry]:
    """Attention by product codes, by INT4, and the peers on as many tokens."""
    data = make_cache(q_heads, kv_heads, tokens, PRODUCT_DIM)
    streams = zip(groups, (StreamId.K, StreamId.V), strict=True)
    k, v = (make_product_codes(make_product(count, stream), kv_heads, tokens) for count, stream in streams)
    int4 = _encode(data.k, "int4/channel/g64", "k"), _encode(data.v, "int4/token/g64", "v")
    entries: list[Entry] = []
    for name, both in ((OURS, (k, v)), (_INT4, int4)):
        prepared = prepare_arrays(data.q, *both)
        wanted = attend(data.q, *(decode_array(one, dtype=np.float32).transpose(1, 0, 2) for one in both))

        def check(
            name: str = name, prepared: Prepared | Tiered = prepared, wanted: NDArray[np.float64] = wanted
        ) -> None:
            require_close(name, prepared.run()[0].output(), wanted, 1e-3)

        moved = sum(one.nbytes for one in both)
        entries.append(Contender(name, prepared.run, tokens * q_heads, moved, bound, check))
    return [*entries, *enter_attention(peers, data, bound=bound)]


def _encode(heads: NDArray[np.float32], spec: str, stream: str) -> EncodedArray:
    return encode_array(np.ascontiguousarray(heads.transpose(1, 0, 2)), spec, stream=stream)
