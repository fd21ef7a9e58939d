"""Where the tokens of one sequence are."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvcodec.layout import StreamId
from kvcodec.store.coded import Coded
from kvcodec.store.extents import ExtentMap
from kvcodec.store.model import Model
from kvcodec.store.packed import Rows, moved
from kvcodec.store.policy import SequenceInfo

Key = tuple[int, StreamId]


class RowsOf(NamedTuple):
    """A record as one stream of a sequence sees it; heads: of the stream."""

    key: Key
    coded: Coded
    heads: int


class SequenceIndex:
    """Where the tokens of one sequence are: an extent map for each (layer, stream).

    With `holes`, a sequence goes on behind tokens that damage took. is_damaged: whether frames of the log are lost.
    """

    def __init__(
        self, info: SequenceInfo, model: Model, *, holes: bool, is_damaged: Callable[[], bool] = lambda: False
    ) -> None:
        self.info, self.model, self._holes, self._is_damaged = info, model, holes, is_damaged
        self.maps: dict[Key, ExtentMap] = {
            (n, s.id): ExtentMap() for n, layer in enumerate(model.layers) for s in layer.streams
        }
        self._split: dict[tuple[int, Key], Coded] = {}
        self._pending: dict[Key, Coded] = {}  # rows of summaries that no DROP record vouches for yet
        self.records = 0
        self.last_lsn = self.named_lsn = self.begun_lsn = 0  # of its newest record, newest and first SEQUENCE record

    @property
    def length(self) -> int:
        """Tokens that can be asked for: those that every layer has, or had and then forgot because its window went on;
        with holes, up to the last one that every layer has.
        """
        if self._holes and (self._is_damaged() or self._lacks_tokens()):
            return min(extents.end for extents in self.maps.values())
        return self.settled

    def _lacks_tokens(self) -> bool:
        """Whether a layer lacks tokens before others that it holds. One with a window does where a crash cut an append
        short, of which it was not given what its window would have left.
        """
        layers = self.model.layers
        return any(own.reach < own.end for (layer, _), own in self.maps.items() if not layers[layer].window)

    @property
    def settled(self) -> int:
        """Tokens that every layer can serve without a hole in what it needs."""
        bound, before = 1 << 62, -1
        while bound != before:  # a layer with a window may have to step back behind a gap, and the others with it
            before = bound
            for (layer, _), extents in self.maps.items():
                window = self.model.layers[layer].window
                bound = min(bound, extents.run_end(window, bound) if window else extents.reach)
        return bound

    def forget_steps(self) -> None:
        """Have layers with a window forget what it has left behind, up to the last single steps there: the groups that
        took their place may be gone with their blocks, and what others stood on with them.
        """
        length = self.settled
        for (layer, _), extents in self.maps.items():
            held = self.model.layers[layer].held(length)
            left = extents.covering(0, held) if held else ()
            steps = [one.end for one in left if one.coded.step is not None and one.end <= held]
            if steps:
                extents.forget(max(steps))

    def holds_beyond(self, length: int) -> bool:
        """Whether some layer holds tokens from `length` on, or parts of a record that a crash left incomplete."""
        return bool(self._split) or any(extents.end > length for extents in self.maps.values())

    def add(self, key: Key, coded: Coded, heads: int) -> bool:
        """Enter a record's rows; the parts of one that was split count once all heads are there.

        Rows that stand for several tokens wait for `summarize`. False if the parts of one record contradict each other.
        """
        self.records += 1
        self.last_lsn = max(self.last_lsn, coded.lsn)
        part = coded.parts[0]
        if part.heads < heads:
            known = self._split.get((coded.lsn, key), coded._replace(parts=()))
            if known._replace(parts=()) != coded._replace(parts=()):
                return False
            if any(p.positions != part.positions for p in known.parts):
                return False
            others = [p for p in known.parts if (p.first_head, p.heads) != (part.first_head, part.heads)]
            coded = coded._replace(parts=tuple(sorted([*others, part], key=lambda p: p.first_head)))
            ends = [0, *(p.first_head + p.heads for p in coded.parts)]
            if any(p.first_head < end for p, end in zip(coded.parts, ends, strict=False)):
                return False
            self._split[coded.lsn, key] = coded
            if sum(p.heads for p in coded.parts) < heads:
                return True
            del self._split[coded.lsn, key]
        if part.positions:
            self._pending[key] = coded
        else:
            self.maps[key].insert(coded)
        return True

    def add_rows(self, key: Key, rows: Rows) -> None:
        """Enter records that hold all heads, as ExtentMap.insert_rows takes them."""
        self.records += len(rows.lsns)
        self.last_lsn = max(self.last_lsn, int(rows.lsns.max(initial=0)))
        self.maps[key].insert_rows(rows)

    def drop(self, first: int, lsn: int) -> None:
        for extents in self.maps.values():
            extents.drop(first, lsn)
        self._split = {k: v for k, v in self._split.items() if k[0] > lsn}

    def evict(self, first: int, end: int, lsn: int) -> None:
        """Have the rows of tokens first … end - 1 be gone, in all layers."""
        for extents in self.maps.values():
            extents.evict(first, end, lsn)

    def summarize(self, first: int, end: int, since: int, lsn: int) -> bool:
        """Have the rows that wait, of records from lsn `since` to before `lsn`, stand for tokens first … end - 1.

        A layer with a window none of whose streams has such rows is left as it is; a stream that alone lacks them has
        lost them. False, with nothing changed, if streams of a layer differ in rows, or have more than tokens.
        """
        found = {k: coded for k, coded in self._pending.items() if since <= coded.lsn < lsn and coded.first == first}
        layers = [(n, [(n, s.id) for s in layer.streams]) for n, layer in enumerate(self.model.layers)]
        for _, keys in layers:
            counts = {found[key].tokens for key in keys if key in found}
            if len(counts) > 1 or any(first + count > end for count in counts):
                return False
        for n, keys in layers:
            lost = not self.model.layers[n].window or any(key in found for key in keys)
            for key in keys if lost else ():
                self.maps[key].evict(first, end, since - 1)
                if key in found:
                    self.maps[key].insert(found[key]._replace(stands_for=end))
                else:
                    self.maps[key].lose(first, since - 1)
        self._pending = {key: coded for key, coded in self._pending.items() if coded.lsn > lsn}
        return True

    @property
    def summarized(self) -> set[tuple[int, int]]:
        """The tokens (first, end) that summaries of any layer stand for."""
        extents = (extent for own in self.maps.values() for extent in own.summaries())
        return {(extent.coded.first, extent.coded.stands_for) for extent in extents}

    def move(self, key: Key, coded: Coded) -> None:
        """A part of a record, if this sequence reads from it or may yet, lies elsewhere now."""
        self.maps[key].move(coded)
        waiting = self._pending.get(key)
        if waiting is not None and waiting.lsn == coded.lsn:
            self._pending[key] = moved(waiting, coded.parts[0])

    def share(self, parent: SequenceIndex, end: int) -> None:
        """Begin with the tokens of another sequence before `end`, as they are now."""
        self.maps = {key: extents.copied(end) for key, extents in parent.maps.items()}
