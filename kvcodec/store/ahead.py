"""Coding what an append brings: all streams in parallel, and of a long append one span while the last is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from kvcodec.log.frame import Record
from kvcodec.store.outgoing import Ending, Left
from kvcodec.store.sequence_index import Key
from kvcodec.store.window import OpenRows

Span = tuple[int, int]  # tokens first … end - 1
Outcome = Left | Exception


class Coded(NamedTuple):
    """What an append does: the records that it logs, in their order, and the rows that are open then.

    handed: streams whose open rows are those of their Outgoing's heir from here on.
    """

    records: list[Record]
    opened: dict[Key, OpenRows]
    handed: list[Key]


def code_streams(
    map_: Callable[[Callable[[Key], Outcome], Sequence[Key]], Iterable[Outcome]],
    keys: Sequence[Key],
    append: Callable[[Key, Left | None], Left],
    sources: Mapping[Key, Key],
) -> Coded:
    """`append` for each key, by a parallel map. A failure is raised when no thread works on the windows any more.

    sources: streams that stand on what becomes of others, which are among the keys; those are done, and logged, first.
    """
    lefts: dict[Key, Left] = {}

    def code(key: Key) -> Outcome:
        try:
            return append(key, lefts[sources[key]] if key in sources else None)
        except Exception as error:
            return error

    for own in ([key for key in keys if key not in sources], [key for key in keys if key in sources]):
        done = list(zip(own, map_(code, own), strict=True))
        for key, left in done:
            if isinstance(left, Exception):
                raise left
            lefts[key] = left
    endings: list[Ending] = [ending for left in lefts.values() for ending in left.endings]
    opened = {key: left.opened for key, left in lefts.items()}
    handed = [key for key, left in lefts.items() if left.handed]
    return Coded([e.record for e in sorted(endings, key=lambda e: e.end)], opened, handed)


def code_spans(
    spans: Sequence[Span],
    opened: Mapping[Key, OpenRows],
    code: Callable[[Span, Mapping[Key, OpenRows]], Coded],
    commit: Callable[[Coded, Span], None],
    *,
    ahead: bool,
) -> None:
    """`code` each span from the rows that were `opened` by the one before, and `commit` it.

    ahead: a span is coded, by a thread of its own, while the one before it is committed.
    """
    if not spans:
        return
    with ThreadPoolExecutor(1, "kvcodec-ahead") as pool:
        coded = code(spans[0], opened)
        for done, span in itertools.pairwise(spans):
            later = pool.submit(code, span, coded.opened).result if ahead else partial(code, span, coded.opened)
            commit(coded, done)
            coded = later()
        commit(coded, spans[-1])
