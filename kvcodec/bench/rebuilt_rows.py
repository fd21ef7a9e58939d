"""Rows of attention on vectors rebuilt from codes: keys from before their rotary embedding, and an error bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.arrays import Scores
from kvcodec.bench.attention_data import attend, make_codes, make_dictionary, make_values
from kvcodec.bench.row import OURS, Contender, Entry, Row, require_close
from kvcodec.bench.scale import HEAD_DIM, Scale
from kvcodec.codecs import EncodedArray, decode_array, encode_array
from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.layout import StreamId
from kvcodec.store.model import Layer, Model
from kvcodec.store.opening import open_store

_ATOMS = 1024
_TURNED = {HEAD_DIM: "dict/s8/c6/ef", 256: "dict/s16/c6/ef"}  # by channels
_SHARED = 4  # query heads of one KV head
_BOUND = 0.3
_OTHERS = 8  # one of so many rows is none of the dictionary's


def rebuilt_rows(scale: Scale) -> list[Row]:
    """Scores of keys from before their rotary embedding; attention on a log with an error bound."""
    tokens = scale.context
    rows = [
        Row(
            f"score-turned-{dim}-{heads}-heads" if heads > 1 else f"score-turned-{dim}-1-head",
            "scores of keys from before their rotary embedding",
            f"{spec}, {_ATOMS} atoms, {tokens} tokens, {heads} heads on 1 x {dim}",
            "token",
            lambda _peers, _, dim=dim, spec=spec, heads=heads: _scores(spec, dim, heads, tokens),  # type: ignore[misc]
        )
        for dim, spec in _TURNED.items()
        for heads in (1, _SHARED)
    ]
    bounded = f"dict/s8/c6/ef/max{_BOUND}, {tokens} tokens, {_SHARED} heads on 1 x {HEAD_DIM}"
    return [
        *rows,
        Row("attend-bounded-log", "attention on a log with an error bound", bounded, "token",
            lambda _peers, directory: _bounded(directory, tokens)),
    ]  # fmt: skip


def _scores(spec: str, dim: int, heads: int, tokens: int) -> Sequence[Entry]:
    """Keys from before rotation; keys over as large a dictionary that tables of products serve; INT4."""
    q = np.random.default_rng(0).standard_normal((heads, dim), np.float32)
    k = np.ascontiguousarray(make_values(1, tokens, 1, dim=dim).transpose(1, 0, 2))
    contenders = {
        OURS: make_codes(spec, make_dictionary(_ATOMS, dim, turned=True), 1, tokens, StreamId.K),
        f"{OURS}, after rotation": make_codes(spec, make_dictionary(_ATOMS, dim), 1, tokens, StreamId.K),
        f"{OURS}, INT4": encode_array(k, "int4/channel/g64", stream="k"),
    }
    return [_score_entry(name, q, coded) for name, coded in contenders.items()]


def _score_entry(name: str, q: NDArray[np.float32], coded: EncodedArray) -> Contender:
    scores, rows = Scores(q, coded, scale=None, query_bits=16), decode_array(coded, dtype=np.float32)[:, 0]
    wanted = q.astype(np.float64) @ rows.astype(np.float64).T / math.sqrt(coded.dim)

    def check() -> None:
        require_close(name, scores.run() * (math.log(2) / 65536), wanted, 1e-3)

    return Contender(name, scores.run, coded.tokens * len(q), coded.nbytes, "", check)


def _bounded(directory: Path, tokens: int) -> Sequence[Entry]:
    """A log whose rows are codes, but for some that are kept as INT4; one of INT4 alone; whole calls of both."""
    own = make_dictionary(_ATOMS)
    both = Dictionary(own.atoms, ((0, StreamId.K), (0, StreamId.V)))
    rows = [_make_rows(both, tokens, stream) for stream in (StreamId.K, StreamId.V)]
    q = np.random.default_rng(0).standard_normal((_SHARED, HEAD_DIM), np.float32)
    spec = f"dict/s8/c6/ef/max{_BOUND}"
    entries: list[Entry] = []
    for name, k, v in ((OURS, spec, spec), (f"{OURS}, INT4", "int4/channel/g64", "int4/token/g64")):
        path, dictionary = directory / f"{len(entries)}.kvlog", None if entries else DictionarySet((both,))
        layers = Model((Layer.kv(1, HEAD_DIM),))
        with open_store(path, "w", model=layers, k=k, v=v, dictionary=dictionary, residual=0, sinks=0) as store:
            store.sequence("a").append(0, *rows)
        entries.append(_log_entry(name, path, q, tokens))
    return entries


def _log_entry(name: str, path: Path, q: NDArray[np.float32], tokens: int) -> Contender:
    sequence = open_store(path).sequence("a")
    k, v = (x.transpose(1, 0, 2) for x in sequence.read(0, dtype=np.float32))
    wanted, state = attend(q, k, v), sequence.attend(0, q, return_state=True)[1]

    def check() -> None:
        require_close(name, sequence.attend(0, q), wanted, 1e-3)

    return Contender(name, lambda: sequence.attend(0, q), tokens * len(q), state.bytes_read, "", check)


def _make_rows(own: Dictionary, tokens: int, stream: StreamId) -> NDArray[np.float32]:
    """float32 (tokens, 1, dim): vectors over a dictionary, and others."""
    rows = decode_array(make_codes("dict/s6/c6/ef", own, 1, tokens, stream), dtype=np.float32)
    rows[::_OTHERS] = make_values(1, tokens, int(stream), 0.0).transpose(1, 0, 2)[::_OTHERS]
    return rows
