"""Extents by the thousand: as arrays, of which an extent is made when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvcodec.log.located import PLACE, Place
from kvcodec.store.coded import Coded, Extent, Part

Ints = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Records of one stream, each with all heads, that differ in nothing but lsn, first token and place; or one whose
    parts lie in several places, which is its own pattern.

    pattern: what they share. lsns, firsts: int64 (records,). places: (records,) of generation, block, offset.
    """

    pattern: Coded
    lsns: Ints
    firsts: Ints
    places: npt.NDArray[np.void]

    def records(self) -> Iterator[Coded]:
        """Each of them."""
        for lsn, first, place in zip(self.lsns.tolist(), self.firsts.tolist(), self.places.tolist(), strict=True):
            yield coded_at(self.pattern, lsn, first, place)


def rows_of_one(coded: Coded) -> Rows:
    """One record as such rows."""
    places = np.array([tuple(coded.parts[0].place)] if coded.parts else [(0, 0, 0)], PLACE)
    return Rows(coded, np.array([coded.lsn], np.int64), np.array([coded.first], np.int64), places)


class Packed:
    """Disjoint extents in token order, each of a whole record.

    firsts, ends: int64 (extents,). which: the pattern of each. The records' lsns and places as in Rows.
    """

    def __init__(
        self, patterns: Sequence[Coded], which: Ints, lsns: Ints, firsts: Ints, places: npt.NDArray[np.void]
    ) -> None:
        self._patterns = patterns
        self._which, self._lsns, self._places = which, lsns, places
        self._own = False  # whether the places are nobody else's
        self.firsts = firsts
        self.ends = firsts + np.array([pattern.tokens for pattern in patterns], np.int64)[which]
        breaks = np.flatnonzero(firsts[1:] != self.ends[:-1])
        begun, ended = np.append(firsts[:1], firsts[breaks + 1]), np.append(self.ends[breaks], self.ends[-1])
        self._runs = np.stack([begun, ended], axis=1)

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def end(self) -> int:
        """The token after the last one."""
        return int(self.ends[-1])

    @property
    def reach(self) -> int:
        """The first token, counted from 0, that no extent holds."""
        first, end = self._runs[0].tolist()
        return 0 if first else int(end)

    @property
    def held(self) -> int:
        """How many tokens are held."""
        return int((self.ends - self.firsts).sum())

    def runs(self) -> Iterator[tuple[int, int]]:
        """Stretches of tokens that are held without a gap, the last one first."""
        yield from map(tuple, self._runs[::-1].tolist())

    def span(self, first: int, end: int) -> slice:
        """Which extents hold any of the tokens first … end - 1."""
        low = int(np.searchsorted(self.ends, first, "right"))
        return slice(low, max(low, int(np.searchsorted(self.firsts, end))))

    def extents(self, part: slice) -> list[Extent]:
        """These extents, as such."""
        columns = (self.firsts, self.ends, self._which, self._lsns, self._places)
        rows = zip(*(column[part].tolist() for column in columns), strict=True)
        return [
            Extent(first, end, coded_at(self._patterns[which], lsn, first, place))
            for first, end, which, lsn, place in rows
        ]

    def tally(self, part: slice) -> Iterator[tuple[Coded, int, int]]:
        """Of these extents, by pattern: the pattern, how many, and their tokens."""
        for n, count in enumerate(np.bincount(self._which[part], minlength=len(self._patterns)).tolist()):
            if count:
                yield self._patterns[n], count, count * self._patterns[n].tokens

    def move(self, coded: Coded) -> bool:
        """Have a record lie where this part of it says; False if it is none of these."""
        at = int(np.searchsorted(self.firsts, coded.first))
        if at == len(self.firsts) or int(self.firsts[at]) != coded.first or int(self._lsns[at]) != coded.lsn:
            return False
        pattern = self._patterns[int(self._which[at])]
        if len(pattern.parts) > 1:
            self._patterns = list(self._patterns)
            self._patterns[int(self._which[at])] = moved(pattern, coded.parts[0])
        else:
            self._places = self._places.copy() if not self._own else self._places
            self._own = True
            self._places[at] = tuple(coded.parts[0].place)
        return True

    def take(self, chosen: Any) -> Packed | None:
        """Some of the extents (a mask, numbers or a slice); None if there are none."""
        firsts = self.firsts[chosen]
        if not len(firsts):
            return None
        return Packed(self._patterns, self._which[chosen], self._lsns[chosen], firsts, self._places[chosen])

    def joined(self, later: Packed) -> Packed:
        """With extents that all lie behind these."""
        which = np.concatenate([self._which, later._which + len(self._patterns)])
        columns = ((a, b) for a, b in zip(self._columns(), later._columns(), strict=True))
        lsns, firsts, places = (np.concatenate(pair) for pair in columns)
        return Packed([*self._patterns, *later._patterns], which, lsns, firsts, places)

    def _columns(self) -> tuple[Ints, Ints, npt.NDArray[np.void]]:
        return self._lsns, self.firsts, self._places


def coded_at(pattern: Coded, lsn: int, first: int, place: tuple[int, int, int]) -> Coded:
    """The record of this pattern, lsn, first token and place."""
    if len(pattern.parts) > 1:
        return pattern
    part = pattern.parts[0]._replace(place=Place(*place))
    return Coded(lsn, pattern.step, first, pattern.tokens, (part,), pattern.stands_for)


def moved(coded: Coded, part: Part) -> Coded:
    """A record with a part of it at another place."""
    return coded._replace(
        parts=tuple(own._replace(place=part.place) if own.first_head == part.first_head else own for own in coded.parts)
    )


def pack(chunks: Sequence[Rows]) -> Packed | None:
    """Extents of records that all have different lsns; None if records overlap in a way that takes closer looking.

    Rows of STEP records that lie within one GROUP record of a higher lsn are no extents.
    """
    which = np.repeat(np.arange(len(chunks)), [len(rows.lsns) for rows in chunks])
    tokens = np.array([rows.pattern.tokens for rows in chunks], np.int64)[which]
    step = np.array([rows.pattern.step is not None for rows in chunks])[which]
    lsns, firsts = (np.concatenate([rows[i] for rows in chunks]) for i in (1, 2))
    places = np.concatenate([rows.places for rows in chunks])
    order = np.argsort(firsts, kind="stable")
    if step.any() and not step.all():
        groups, steps = order[~step[order]], order[step[order]]
        if not _disjoint(firsts[groups], tokens[groups]):
            return None
        over = groups[np.maximum(np.searchsorted(firsts[groups], firsts[steps], "right") - 1, 0)]
        inside = (firsts[over] <= firsts[steps]) & (firsts[steps] + tokens[steps] <= firsts[over] + tokens[over])
        dead = np.zeros(len(firsts), np.bool_)
        dead[steps] = inside & (lsns[steps] < lsns[over])
        order = order[~dead[order]]
    if not _disjoint(firsts[order], tokens[order]):
        return None
    return Packed([rows.pattern for rows in chunks], which[order], lsns[order], firsts[order], places[order])


def _disjoint(firsts: Ints, tokens: Ints) -> bool:
    return bool(np.all(firsts[1:] >= firsts[:-1] + tokens[:-1]))
