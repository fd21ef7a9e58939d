"""Entering GROUP and STEP records by the thousand.

Records that differ in nothing but checksums, lsn, sequence, first token and place are checked once: what is asked of a
record (LogIndex.rows_of) depends on no more than the rest, the model of its sequence, and the first token's range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvcodec.errors import FormatError
from kvcodec.layout import COUNTER_LIMIT, HEADERS, MAX_TOKEN, RECORD_HEADER, Kind
from kvcodec.log.located import RecordTable
from kvcodec.store.packed import Rows, coded_at

if TYPE_CHECKING:
    from kvcodec.store.index import LogIndex
    from kvcodec.store.sequence_index import RowsOf, SequenceIndex

Words = npt.NDArray[np.uint64]
KINDS = (Kind.GROUP, Kind.STEP, Kind.ROWS)
_VARYING = ("header_crc", "body_crc", "lsn", "sequence", "first_token")
_ODD = [np.uint64(pow(0x9E3779B97F4A7C15, n, 1 << 64)) for n in range(1, 34)]  # a shape's digest multiplies by them


def _mask(kind: Kind) -> Words:
    dtype = HEADERS[kind]
    mask = np.zeros((), dtype)
    for name in dtype.names or ():
        if name not in _VARYING:
            mask[name] = np.frombuffer(b"\xff" * dtype[name].itemsize, dtype[name])[0]
    return np.frombuffer(mask.tobytes(), "<u8")


_MASKS = {kind: _mask(kind) for kind in KINDS}


class _Shape(NamedTuple):
    """What records that are checked once are to each stream that they hold rows of, and whether they hold all heads."""

    rows: list[RowsOf]
    whole: bool


class _Alike(NamedTuple):
    """Records of one kind in log order. chosen: which of the run. shape: the shape of each."""

    chosen: Any
    shapes: list[_Shape]
    shape: npt.NDArray[np.intp]


def enter_run(index: LogIndex, run: RecordTable) -> bool:
    """Enter records of KINDS in log order. False, with nothing entered, if they want to be looked at one by one.

    Raises CorruptRecord where the parts of a split record contradict each other.
    """
    kinds, common = run.kinds, run.columns(RECORD_HEADER)
    lsns = np.ascontiguousarray(common["lsn"])
    split = np.zeros(len(run), np.bool_)
    for kind in KINDS:
        columns = run.columns(HEADERS[kind])
        split |= (kinds == kind) & (columns["heads"] != columns["all_heads"])
    if not _ascending(lsns, split) or int(lsns[-1]) >= COUNTER_LIMIT:
        return False
    ids, sequence = np.unique(common["sequence"], return_inverse=True)
    if not all(number in index.sequences for number in ids.tolist()):
        return False
    owners = [index.sequences[number] for number in ids.tolist()]
    models = {id(owner.model): n for n, owner in enumerate(owners)}
    model = np.array([models[id(owner.model)] for owner in owners], np.uint64)[sequence]
    found = [_find_alike(index, run, kind, kinds, model) for kind in KINDS]
    if any(alike is None for alike in found):
        return False
    parts = [part for kind, alike in zip(KINDS, found, strict=True) if alike is not None and len(alike.shape)
             for part in _enter_alike(owners, run, kind, alike, sequence)]  # fmt: skip
    for n, owner, rows in sorted(parts, key=lambda part: part[0]):
        index.add_rows_of(run[n], owner, rows)
    return True


def _ascending(lsns: Words, split: npt.NDArray[np.bool_]) -> bool:
    """Whether no two records have one lsn but for the parts of a split one."""
    above, same = lsns[1:] > lsns[:-1], lsns[1:] == lsns[:-1]
    return bool(np.all(above | (same & split[1:] & split[:-1])))


def _find_alike(
    index: LogIndex, run: RecordTable, kind: Kind, kinds: npt.NDArray[np.uint8], model: Words
) -> _Alike | None:
    """The records of a kind by shape; None if one is not as it should be."""
    own = kinds == kind
    chosen: Any = slice(None) if own.all() else np.flatnonzero(own)
    words, mask, which = run.words[chosen], _MASKS[kind], model[chosen]
    if not len(words):
        return _Alike(chosen, [], np.empty(0, np.intp))
    digest = which * _ODD[-1]
    for n in np.flatnonzero(mask).tolist():
        digest += (words[:, n] & mask[n]) * _ODD[n]
    _, samples, shape = np.unique(digest, return_index=True, return_inverse=True)
    same = which == which[samples][shape]
    for n in np.flatnonzero(mask).tolist():
        same &= ((words[:, n] ^ words[samples, n][shape]) & mask[n]) == 0
    if not same.all():
        return None
    numbers = np.arange(len(run))[chosen]
    try:
        rows = [index.rows_like((words[n, : len(mask)] & mask).tobytes(), run[int(numbers[n])]) for n in samples]
    except FormatError:
        return None
    firsts = run.columns(HEADERS[kind])["first_token"][chosen]
    tokens = np.array([of[0].coded.tokens for of in rows], np.uint64)[shape]
    if int(firsts.max()) > MAX_TOKEN or int((firsts + tokens).max()) > MAX_TOKEN:
        return None
    return _Alike(chosen, [_Shape(of, of[0].coded.parts[0].heads == of[0].heads) for of in rows], shape)


def _enter_alike(
    owners: Sequence[SequenceIndex], run: RecordTable, kind: Kind, alike: _Alike, sequence: npt.NDArray[np.intp]
) -> Iterator[tuple[int, SequenceIndex, list[RowsOf]]]:
    """Enter the records that hold all heads. Gives the others: number in the run, sequence, rows."""
    code = sequence[alike.chosen] * len(alike.shapes) + alike.shape
    order = np.argsort(code, kind="stable")
    code, columns = code[order], run.columns(HEADERS[kind])
    lsns, firsts = (columns[name][alike.chosen][order].astype(np.int64) for name in ("lsn", "first_token"))
    places, numbers = run.places[alike.chosen][order], np.arange(len(run))[alike.chosen][order]
    starts = [0, *(np.flatnonzero(code[1:] != code[:-1]) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(code)], strict=True):
        number, shape = divmod(int(code[start]), len(alike.shapes))
        owner, whole = owners[number], alike.shapes[shape].whole
        for of in alike.shapes[shape].rows if whole else ():
            owner.add_rows(of.key, Rows(of.coded, lsns[start:end], firsts[start:end], places[start:end]))
        for n in range(start, end) if not whole else ():
            own = int(lsns[n]), int(firsts[n]), places[n].item()
            yield (
                int(numbers[n]),
                owner,
                [of._replace(coded=coded_at(of.coded, *own)) for of in alike.shapes[shape].rows],
            )
