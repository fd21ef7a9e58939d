"""Strips through the kernel, on as many threads as there are: chunk by chunk, heads apart where that fills threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.columns import FORM, KEPT, TOKENS, place_column
from kvcodec.attention.query import Queries
from kvcodec.attention.state import AttentionState
from kvcodec.attention.strips import Form, form_table
from kvcodec.attention.tables import QueryTables, bucket_room, used_headers
from kvcodec.attention.turned import TurnedQueries
from kvcodec.codecs.codec import take_out
from kvcodec.layout import TILE_LANES, align

CHUNK = 64  # strips: 4,096 tokens where they are whole; states are merged in this order whatever the threads
_WAVE_BYTES = 64 << 20  # of outputs that wait to be merged
_MANY = 1 << 32  # more tokens than a strip has


class StreamUse(NamedTuple):
    """What one stream is for. dim: channels; scored: multiplied by the query; valued: by the weights; token_lane: its
    tiles' lanes are tokens.
    """

    dim: int
    scored: bool
    valued: bool
    token_lane: bool


class Task(NamedTuple):
    """Attention of several queries, each over its own strips, on streams of one shape.

    strips: one table for each query. uses: of the streams, the one with the values last. forms: the rows that strips
    name. kept: what the strips' addresses point into.
    """

    queries: Queries
    strips: list[NDArray[np.int64]]
    uses: tuple[StreamUse, ...]
    forms: list[Form]
    kv_heads: int
    query_bits: int
    kept: object = None

    @property
    def per_head(self) -> int:
        """Query heads of a KV head."""
        return int(self.queries.numbers.shape[1]) // self.kv_heads

    @property
    def widest(self) -> int:
        """Channels of a stream at most, padded."""
        return max(align(use.dim, TILE_LANES) for use in self.uses)


class Memory(NamedTuple):
    """What one thread works in: for strips, for buckets of values, for tables of products."""

    scratch: NDArray[np.uint8]
    buckets: NDArray[np.uint8]
    work: NDArray[np.uint8]


class Crew:
    """As many threads, each with memory of its own. pool: runs all parts of the work but one, which the caller does."""

    def __init__(self, task: Task, products: QueryTables, *, room: int, threads: int, pool: Executor | None) -> None:
        from kvcodec.kernels.forms import scratch_bytes
        from kvcodec.kernels.tables import make_tables

        self.threads, self._pool, self._make_tables = max(1, threads), pool, make_tables
        sizes = scratch_bytes(task.widest, len(task.uses)), room, products.work_bytes
        self._memories = [Memory(*(take_out(None, (n,), np.uint8) for n in sizes)) for _ in range(self.threads)]
        self._queries, self._products = task.queries, products
        self._jobs = np.array_split(products.jobs, self.threads) if len(products.jobs) else []

    def multiply(self) -> None:
        """Make the tables of products."""
        if self._jobs:
            self.run(lambda jobs, memory: self._make_tables(jobs, *self._queries, memory.work), self._jobs)

    def run(self, work: Callable[[NDArray[np.int64], Memory], None], parts: list[NDArray[np.int64]]) -> None:
        """Do `work` on each part; there are at most as many as threads."""
        if self._pool is None:
            for part in parts:
                work(part, self._memories[0])
            return
        others: list[Future[None]] = []
        try:
            for part, memory in zip(parts[1:], self._memories[1:], strict=False):
                others.append(self._pool.submit(work, part, memory))
            work(parts[0], self._memories[0])
        finally:
            wait(others)
        for other in others:
            other.result()


class Prepared:
    """Attention with all its tables made: `run` may be called again and again, by one thread at a time.

    products: of the queries, if their tables have been made already.
    """

    def __init__(
        self, task: Task, *, threads: int = 1, pool: Executor | None = None, products: QueryTables | None = None
    ) -> None:
        from kvcodec.kernels import attend as kernels
        from kvcodec.kernels.softmax import EMPTY

        self._kernels, self._task, self._made = kernels, task, products is not None
        count, heads, _ = task.queries.numbers.shape
        dim = align(task.uses[-1].dim, TILE_LANES)
        chunks = cut_chunks(task.strips)
        wave = max(1, _WAVE_BYTES // (8 * heads * dim))
        self._states = np.full((count + min(wave, len(chunks)), heads, 3), (EMPTY, 0, EMPTY), np.int64)
        self._outputs = np.zeros((len(self._states), heads, dim), np.int64)
        self._waves = [
            Wave.of(chunks[n : n + wave], task.kv_heads, count, threads) for n in range(0, len(chunks), wave)
        ]
        strips, forms, streams = tables_of(task)
        self._turned = turned_of(task, strips, forms, streams)
        used = used_headers(strips, forms, len(streams))
        self._products = products or products_of(task, used, streams)
        rest = self._products.lookups, *task.queries, task.query_bits, task.per_head, task.widest
        self._given = strips, forms, streams, *rest
        self._counts = [(int(t[:, 0].sum()), count_bytes(task, t)) for t in task.strips]
        room = bucket_room(used[-1], task.per_head)
        self._crew = Crew(task, self._products, room=room, threads=threads, pool=pool)

    def run(self) -> list[AttentionState]:
        """States of each query."""
        if not self._made:
            self._crew.multiply()
        for wave in self._waves:
            self._crew.run(self._attend, wave.parts)
            self._kernels.merge_slots(wave.slots, self._states, self._outputs)
        dim = self._task.uses[-1].dim
        return [
            AttentionState(self._states[n].copy(), self._outputs[n, :, :dim].copy(), *counted)
            for n, counted in enumerate(self._counts)
        ]

    def _attend(self, items: NDArray[np.int64], memory: Memory) -> None:
        self._kernels.attend_items(items, *self._given, *memory[:2], self._states, self._outputs)


class _Chunk(NamedTuple):
    """Strips first … last - 1, counted over all queries, of one query; new: it is the query's first chunk."""

    query: int
    first: int
    last: int
    new: bool


def cut_chunks(strips: list[NDArray[np.int64]]) -> list[_Chunk]:
    """Chunks of each query's strips."""
    chunks, begin = [], 0
    for query, table in enumerate(strips):
        end = begin + len(table)
        chunks += [_Chunk(query, n, min(n + CHUNK, end), n == begin) for n in range(begin, end, CHUNK)]
        begin = end
    return chunks


class Wave(NamedTuple):
    """Chunks whose outputs wait together: their items, a part for each thread, and how they are merged in order.

    The first chunk of a query goes to the query's own slot; the others to slots behind those of all queries.
    """

    parts: list[NDArray[np.int64]]
    slots: NDArray[np.int64]

    @classmethod
    def of(cls, chunks: list[_Chunk], kv_heads: int, queries: int, threads: int) -> Wave:
        """Heads go apart where there are fewer than two chunks for a thread."""
        pieces = min(kv_heads, max(1, -(-2 * threads // len(chunks)))) if threads > 1 else 1
        edges = [kv_heads * n // pieces for n in range(pieces + 1)]
        items = [
            (c.first, c.last, edges[n], edges[n + 1], c.query, c.query if c.new else queries + slot)
            for n in range(pieces)
            for slot, c in enumerate(chunks)
        ]
        slots = [(c.query, queries + slot) for slot, c in enumerate(chunks) if not c.new]
        parts = np.array_split(np.array(items, np.int64), min(threads, len(items)))
        return cls([np.ascontiguousarray(part) for part in parts], np.array(slots, np.int64).reshape(-1, 2))


def tables_of(task: Task) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Strips of all queries, forms and streams, as kernels take them."""
    strips = np.concatenate(task.strips) if task.strips else np.empty((0, place_column(len(task.uses))), np.int64)
    streams, at = [], 0
    for use in task.uses:
        streams.append((align(use.dim, TILE_LANES), at, use.scored, use.valued, use.token_lane))
        at += align(use.dim, TILE_LANES) if use.scored else 0
    return (
        np.ascontiguousarray(strips),
        form_table(task.forms),
        np.array(streams, np.int64),
    )


def turned_of(
    task: Task, strips: NDArray[np.int64], forms: NDArray[np.int64], streams: NDArray[np.int64]
) -> TurnedQueries:
    """Queries turned for the keys of strips, those of all queries, in which their addresses are entered."""
    asked = np.repeat(np.arange(len(task.strips)), [len(own) for own in task.strips])
    scored = [(n, *row[:2]) for n, row in enumerate(streams.tolist()) if row[2]]
    return TurnedQueries(strips, asked, forms, task.queries, scored)


def products_of(task: Task, used: NDArray[np.int64], streams: NDArray[np.int64]) -> QueryTables:
    """Tables of products with what scored streams are coded over."""
    return QueryTables(used * streams[:, 2:3], streams[:, 1].tolist(), task.queries, task.kv_heads)


def count_bytes(task: Task, strips: NDArray[np.int64]) -> int:
    """Bytes of records and raw rows that strips read, all KV heads."""
    total = kept = 0
    for n, use in enumerate(task.uses):
        dim = align(use.dim, TILE_LANES)
        column = place_column(n)
        alike, times = np.unique(strips[:, TOKENS] + _MANY * strips[:, column + FORM], return_counts=True)
        for one, number in zip(alike.tolist(), times.tolist(), strict=True):
            total += number * task.forms[one // _MANY].bytes_read(one % _MANY, dim)
        if strips[:, column + KEPT].any():
            from kvcodec.kernels.kept import count_kept

            kept += int(count_kept(strips, n, form_table(task.forms), task.kv_heads))
    return total * task.kv_heads + kept
