"""How large and how long: the sizes that rows are made of, and the time that they may take."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_DIM = 128
KV_HEADS = 8
GROUP = 64  # numbers that share a scale, and tokens of a record


@dataclass(frozen=True)
class Scale:
    """Tokens are multiples of GROUP.

    cached_tokens: of one head, coded in cache; memory_tokens: so many that nothing stays in a cache. context: tokens
    that one query attends to. score_tokens, long_context: of one head and of KV_HEADS, from memory. probe_bytes: of
    the bandwidth probes. dump_bytes, records: of the dump that is encoded, of the log that is opened.
    rounds: turns of each contender, fewer (but least_rounds) where they would take more than row_seconds.
    batch_seconds: what is shorter runs several times a turn.
    """

    cached_tokens: int = 4096
    memory_tokens: int = 1 << 18
    context: int = 8192
    score_tokens: int = 1 << 20
    long_context: int = 1 << 16
    probe_bytes: int = 128 << 20
    dump_bytes: int = 1 << 30
    records: int = 100_000
    rounds: int = 21
    least_rounds: int = 5
    row_seconds: float = 8.0
    batch_seconds: float = 0.01


FULL = Scale()
QUICK = Scale(
    cached_tokens=1024,
    memory_tokens=1 << 14,
    context=1024,
    score_tokens=1 << 14,
    long_context=1024,
    probe_bytes=8 << 20,
    dump_bytes=8 << 20,
    records=512,
    rounds=5,
    least_rounds=2,
    row_seconds=0.05,
    batch_seconds=0.001,
)
