"""Rows of attention in tiers beside reading all atoms. Times are those of a token and a query head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.arrays import prepare_arrays
from kvcodec.attention.state import AttentionState
from kvcodec.bench.attention_data import attend, make_cache, make_codes, make_dictionary
from kvcodec.bench.peers import Peers
from kvcodec.bench.row import OURS, READ, Contender, Entry, Row, require_close
from kvcodec.bench.scale import HEAD_DIM, KV_HEADS, Scale
from kvcodec.codecs import EncodedArray, decode_array
from kvcodec.layout import CHANNEL_LANE_TOKENS, StreamId

_ATOMS = 1024
_LOW, _SHARE = 3, 0.1
_SPECS = {"u16": "dict/s16/c6", "ef": f"dict/s16/c6/ef/low{_LOW}"}
_ALL = f"{OURS}, all atoms"
_SHARED = 4  # query heads of one KV head
_STREAMS = StreamId.K, StreamId.V


def tier_rows(scale: Scale) -> list[Row]:
    """Of each kind of indices, a query head for each KV head, and four: from memory."""
    rows, tokens = [], scale.long_context
    for name, spec in _SPECS.items():
        for per_head, what in ((1, f"attention in tiers ({_LOW}, {_SHARE})"), (_SHARED, "the same, four heads on one")):
            heads = f"{per_head * KV_HEADS} heads on {KV_HEADS} x {HEAD_DIM}"
            shape = f"{spec}, {_ATOMS} atoms, {tokens} tokens, {heads}"
            label = f"attend-tiers-{name}-{per_head}-head{'s' * (per_head > 1)}"
            rows.append(Row(label, what, shape, "token", partial(_tiers, spec, per_head, tokens)))
    return rows


def _tiers(spec: str, per_head: int, tokens: int, _peers: Peers, _folder: Path) -> Sequence[Entry]:
    heads, own = per_head * KV_HEADS, make_dictionary(_ATOMS)
    k, v = (make_codes(spec, own, KV_HEADS, tokens, stream) for stream in _STREAMS)
    q = make_cache(heads, 1, 1).q
    entries: list[Entry] = []
    for name, tiers in ((OURS, (_LOW, _SHARE)), (_ALL, None)):
        prepared = prepare_arrays(q, k, v, tiers=tiers)
        (state,) = prepared.run()

        def check(name: str = name, whole: bool = tiers is None, found: AttentionState = state) -> None:
            rows = [_decode(one) for one in (k, v)]
            if not whole:
                few = [_decode(make_codes(spec, own, KV_HEADS, tokens, stream, kept=_LOW)) for stream in _STREAMS]
                top = _choose(q, few[0])
                for full, low in zip(rows, few, strict=True):
                    full[:, ~top] = low[:, ~top]
            require_close(name, found.output(), attend(q, *rows), 2e-3)

        entries.append(Contender(name, prepared.run, tokens * heads, state.bytes_read, READ, check))
    return entries


def _decode(encoded: EncodedArray) -> NDArray[np.float32]:
    """Rows (heads, tokens, dim)."""
    return np.asarray(decode_array(encoded, dtype=np.float32).transpose(1, 0, 2))


def _choose(q: NDArray[np.float32], k: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Tokens of the blocks that queries like best, by keys (heads, tokens, dim) of whole blocks."""
    liked = np.full(k.shape[1], -np.inf)
    for head, numbers in enumerate(q):
        logits = k[head * len(k) // len(q)] @ numbers / math.sqrt(q.shape[1])
        liked = np.maximum(liked, logits - logits.max())
    best = liked.reshape(-1, CHANNEL_LANE_TOKENS).max(axis=1)
    top = np.zeros(len(best), bool)
    top[np.argsort(-best, kind="stable")[: math.ceil(_SHARE * len(best))]] = True
    return np.repeat(top, CHANNEL_LANE_TOKENS)
