"""Dictionaries that grow: new atoms for what a writer's session codes badly, as sets that grew out of others.

A writer shows the vectors that it appends, and each dictionary's sample keeps some of those that are coded badly
(dictionary/growing.py). Once half of a set's samples are full, their dictionaries learn new atoms, all at one step; if
any learnt some, there is a new set. All of it hangs on what was appended and in which appends, not on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.codecs.vectors import widen
from kvcodec.dictionary.growing import Learnt, Sample, learn_atoms, relative_errors
from kvcodec.errors import CorruptRecord, MissingDictionary, NoSpace
from kvcodec.layout import Transform
from kvcodec.log.frame import Record
from kvcodec.sparse_spec import MAX_DICTIONARY, MAX_GROWTHS
from kvcodec.store.dictionaries import Dictionaries
from kvcodec.store.growths import Seen
from kvcodec.store.set_records import dictionary_records

VECTORS = 16  # of a sample for each atom to learn
_PATIENCE = 8  # the most that the bad vectors before another attempt double to: 2 ** 8 samples


class Step(NamedTuple):
    """A set, and the one that grows out of it."""

    parent: DictionarySet
    child: DictionarySet


class Map(Protocol):
    """Calls the first argument with each item of the second, perhaps in parallel; the results in their order."""

    def __call__(self, work: Callable[[Any], Any], keys: Sequence[Any], /) -> list[Any]: ...


class _Watched:
    """A dictionary of a set, and the sample of what it codes badly. sparsity: atoms of a vector."""

    def __init__(self, dictionary: Dictionary, number: int, sparsity: int, atoms: int) -> None:
        self.dictionary, self._number, self.sparsity, self._atoms = dictionary, number, sparsity, atoms
        self._failures = 0
        known = len(dictionary.errors) >= sparsity
        bound = float(dictionary.errors[sparsity - 1]) if known else None
        self.sample = Sample(VECTORS * atoms, dictionary.dim, (number, dictionary.size), bound)

    @property
    def is_full(self) -> bool:
        """Whether an attempt is due: after each that failed twice as many bad vectors later."""
        return self.sample.bad >= len(self.sample.rows) << min(self._failures, _PATIENCE)

    def show(self, seen: Sequence[Seen]) -> None:
        for one in seen:
            rows = widen(one.rows, one.dtype).reshape(-1, self.dictionary.dim)
            self.sample.add(rows, relative_errors(rows, self.dictionary, self.sparsity))

    def learn(self) -> Learnt | None:
        return learn_atoms(self.dictionary, self.sample.rows[: self.sample.count], self._atoms, self.sparsity)

    def fail(self) -> None:
        self._failures += 1
        self.sample.clear()

    def heir(self, dictionary: Dictionary) -> _Watched:
        """The same of the set that grew: a sample that is not full goes on unless the dictionary has new atoms."""
        if dictionary is self.dictionary:
            return self
        return _Watched(dictionary, self._number, self.sparsity, self._atoms)


class Growing:
    """What makes the sets of a writer grow: by `atoms` atoms a dictionary, `times` times at most.

    A dictionary does not grow beyond 65,536 atoms, nor one of keys before their rotary embedding.
    """

    def __init__(self, dictionaries: Dictionaries, atoms: int, times: int, map_: Map) -> None:
        self._dictionaries, self._atoms, self._map = dictionaries, atoms, map_
        self._watched: dict[bytes, dict[int, _Watched]] = {}
        self._left, self._retired = times, list[Dictionary]()

    def show(self, seen: Sequence[Seen]) -> None:
        """Take a look at rows that were appended."""
        if not self._left:
            return
        found: dict[tuple[bytes, int], list[Seen]] = {}
        for one in seen:
            codes = one.spec.sparse
            if codes is not None and len(one.rows) and (number := self._number(codes.basis, one)) is not None:
                found.setdefault((codes.basis, number), []).append(one)
        shown = [(watched, own) for (basis, n), own in found.items() if (watched := self._watch(basis, n, own[0]))]
        self._map(lambda pair: pair[0].show(pair[1]), shown)

    def _number(self, basis: bytes, seen: Seen) -> int | None:
        """Which dictionary of a set codes the rows; None if there is none: rows that wait in a window need none yet."""
        try:
            own = self._dictionaries.find(basis).dictionaries
        except (MissingDictionary, CorruptRecord):
            return None
        return next((n for n, one in enumerate(own) if (seen.layer, seen.stream) in one.uses), None)

    def _watch(self, basis: bytes, number: int, seen: Seen) -> _Watched | None:
        """None of a dictionary that cannot grow."""
        known = self._watched.setdefault(basis, {})
        if number not in known:
            own = self._dictionaries.find(basis).dictionaries[number]
            if own.transform != Transform.NONE or own.size + self._atoms > MAX_DICTIONARY:
                return None
            assert seen.spec.sparse is not None
            known[number] = _Watched(own, number, seen.spec.sparse.atoms, self._atoms)
        return known[number]

    def grow(self, log: Callable[[Sequence[Record]], None], limit: int) -> Iterator[Step]:
        """Let the sets grow for which it is time: `log` their records, of bodies of about `limit` bytes.

        One that finds no room, by NoSpace, does not grow, and none after it.
        """
        for basis in list(self._watched):
            step = self._learn(basis)
            if step is None:
                continue
            try:
                log(list(dictionary_records(step.child, limit, step.parent)))
            except NoSpace:
                self._stop()
                return
            self._adopt(step)
            yield step
            self._retired += set(step.parent.dictionaries) - set(step.child.dictionaries)
            for own in self._retired:  # some of them may have finished token groups since they were
                own.release()

    def _learn(self, basis: bytes) -> Step | None:
        """None if it is not time, or nothing is to be had."""
        known = self._watched.get(basis, {})
        full = [number for number, one in known.items() if one.is_full]
        if not full or 2 * len(full) < len(known) or self._dictionaries.depth(basis) >= MAX_GROWTHS:
            return None
        found = self._map(_Watched.learn, [known[number] for number in full])
        learnt = {number: one for number, one in zip(full, found, strict=True) if one is not None}
        for number in full:
            if number not in learnt:
                known[number].fail()
        return self._step(basis, learnt) if learnt else None

    def _step(self, basis: bytes, learnt: dict[int, Learnt]) -> Step:
        parent = self._dictionaries.find(basis)
        own = (one.grown(learnt[n].atoms) if n in learnt else one for n, one in enumerate(parent.dictionaries))
        return Step(parent, DictionarySet(tuple(own)))

    def _adopt(self, step: Step) -> None:
        """The log has the new set: it takes the place of its parent."""
        self._dictionaries.add_grown(step.child, step.parent)
        known = self._watched.pop(step.parent.hash)
        self._watched[step.child.hash] = {n: one.heir(step.child.dictionaries[n]) for n, one in known.items()}
        self._left -= 1
        if not self._left:
            self._stop()

    def _stop(self) -> None:
        """Grow no more."""
        self._left = 0
        self._watched.clear()
