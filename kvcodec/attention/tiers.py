"""Attention in two tiers: the first atoms of all codes over a dictionary, and all atoms of the blocks that matter most.

docs/attention.md says which these are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from concurrent.futures import Executor
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.columns import FORM, PLACE, START, place_column
from kvcodec.attention.predicted import pair_predictions
from kvcodec.attention.run import Crew, Memory, Prepared, Task, Wave, cut_chunks, products_of, tables_of, turned_of
from kvcodec.attention.state import AttentionState
from kvcodec.attention.strips import BLOCK, Form
from kvcodec.attention.tables import used_headers
from kvcodec.errors import SpecError
from kvcodec.sparse_spec import MAX_ATOMS, SparseCodes

_VALUED = 3  # column of a table of streams
_FIRST = place_column(0)
_FORMS = slice(_FIRST + FORM, None, place_column(1) - _FIRST)


class Tiers(NamedTuple):
    """low: atoms that are read of all tokens. share: of the blocks of 64, of which all are."""

    low: int
    share: Fraction


def take_tiers(tiers: Any, coded: Iterable[SparseCodes]) -> Tiers:
    """What `tiers=` says. coded: how the streams are coded over dictionaries, as far as they are. Raises SpecError."""
    try:
        low, share = operator.index(tiers[0]), float(tiers[1])
        if len(tiers) != 2:
            raise ValueError
    except (TypeError, ValueError, LookupError):
        raise SpecError(f"tiers is {tiers!r}, want (atoms, share of the blocks), such as (3, 0.1)") from None
    if not 0 <= share <= 1:
        raise SpecError(f"tiers: a share of {share:g}, want 0 to 1")
    specs = list(coded)
    most = max((MAX_ATOMS if codes.error else codes.atoms for codes in specs), default=MAX_ATOMS)
    if not 1 <= low <= most:
        raise SpecError(f"tiers: the first {low} atoms, want 1 to {most}")
    for codes in specs:
        codes.first_bytes(low)
    return Tiers(low, Fraction(str(share)))


class Tiered:
    """Attention in two tiers, with all tables made that do not hang on which blocks are chosen. See run.Prepared."""

    def __init__(self, task: Task, tiers: Tiers, *, threads: int = 1, pool: Executor | None = None) -> None:
        from kvcodec.kernels.peaks import find_peaks

        self._find, self._share, self._threads, self._pool = find_peaks, tiers.share, threads, pool
        forms, lower = _lower_forms(task.forms, tiers.low)
        self._task = task = task._replace(forms=forms)
        scored = [n for n, use in enumerate(task.uses) if use.scored]  # before all others
        self._few = [_lower_strips(strips, scored, forms, lower) for strips in task.strips]
        self._tiered = [(a != b).any(axis=1) for a, b in zip(task.strips, self._few, strict=True)]
        strips, table, streams = tables_of(task._replace(strips=task.strips + self._few))
        self._products = products_of(task, used_headers(strips, table, len(streams)), streams)
        self._crew = Crew(task, self._products, room=0, threads=threads, pool=pool)
        lowered = task._replace(strips=self._few)
        first, streams = tables_of(lowered)[0], streams[: len(scored)].copy()
        streams[:, _VALUED] = 0
        self._turned = turned_of(lowered, first, table, streams)
        rest = self._products.lookups, *task.queries, task.query_bits, task.per_head, task.widest
        self._given = first, table, streams, *rest
        self._peaks = np.empty((task.queries.numbers.shape[1], len(first)), np.int32)
        chunks = cut_chunks(self._few)
        self._parts = Wave.of(chunks, task.kv_heads, len(self._few), threads).parts if chunks else []

    def run(self) -> list[AttentionState]:
        """States of each query."""
        self._crew.multiply()
        if self._parts:
            self._crew.run(self._score, self._parts)
        chosen, begin = [], 0
        for whole, few, tiered in zip(self._task.strips, self._few, self._tiered, strict=True):
            top = _choose_blocks(whole, self._peaks[:, begin : begin + len(whole)], tiered, self._share)
            chosen.append(np.where(top[:, None], whole, few))
            begin += len(whole)
        task = self._task._replace(strips=chosen)
        return Prepared(task, threads=self._threads, pool=self._pool, products=self._products).run()

    def _score(self, items: NDArray[np.int64], memory: Memory) -> None:
        self._find(items, *self._given, memory.scratch, self._peaks)


def prepare(task: Task, tiers: Tiers | None, *, threads: int = 1, pool: Executor | None = None) -> Prepared | Tiered:
    """Attention with all tables made, in two tiers or in one. Raises SpecError."""
    for strips in task.strips:
        pair_predictions(strips, task.forms, len(task.uses))
    if tiers is None:
        return Prepared(task, threads=threads, pool=pool)
    return Tiered(task, tiers, threads=threads, pool=pool)


def _lower_forms(forms: list[Form], low: int) -> tuple[list[Form], NDArray[np.int64]]:
    """Forms, and behind them those of the first `low` atoms; for each form the number of that, or its own."""
    out, numbers = list(forms), []
    for form in forms:
        lowered = form.lowered(low)
        if lowered not in out:
            out.append(lowered)
        numbers.append(out.index(lowered))
    return out, np.array(numbers, np.int64)


def _lower_strips(
    strips: NDArray[np.int64], scored: list[int], forms: list[Form], lower: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The same strips, read with the first atoms alone where some of their keys are codes over a dictionary."""
    coded, own = np.array([form.coded for form in forms], bool), strips[:, _FORMS]
    keyed = coded[own[:, scored]].any(axis=1, keepdims=True)
    few = strips.copy()
    few[:, _FORMS] = np.where(keyed, lower[own], own)
    return few


def _choose_blocks(
    strips: NDArray[np.int64], peaks: NDArray[np.int32], tiered: NDArray[np.bool_], share: Fraction
) -> NDArray[np.bool_]:
    """Which of a query's strips are read in full, those of a block alike. peaks (heads, strips): see kernels.peaks.
    tiered: strips of which some are not; all others are.
    """
    top, rows = ~tiered, np.flatnonzero(tiered)
    if not len(rows):
        return top
    liked = (peaks - peaks.max(axis=1, keepdims=True)).max(axis=0)[rows]  # MASKED leaves room for it
    blocks = np.stack([strips[rows, _FIRST + PLACE], strips[rows, _FIRST + START] // BLOCK])
    begins = np.concatenate([[True], (blocks[:, 1:] != blocks[:, :-1]).any(axis=0)])
    best = np.maximum.reduceat(liked, np.flatnonzero(begins))
    chosen = np.zeros(len(best), bool)
    chosen[np.argsort(-best, kind="stable")[: math.ceil(share * len(best))]] = True
    top[rows] = chosen[np.cumsum(begins) - 1]
    return top
