"""From a stream's open rows to records: what leaves the window, and what a STEP keeps of the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvcodec.codecs.bitmap import greatest_head
from kvcodec.codecs.rows import RowCodec, codes_rows
from kvcodec.codecs.sizes import token_group
from kvcodec.layout import MAX_TOKEN, CodecId, DtypeId
from kvcodec.log.frame import Record
from kvcodec.spec import CodecSpec
from kvcodec.store.dictionaries import StreamCodecs
from kvcodec.store.model import Stream
from kvcodec.store.policy import StreamPolicy
from kvcodec.store.reading import widen
from kvcodec.store.records import RAW, OpenSpan, group_records, laid_records
from kvcodec.store.window import OpenRows, Rows, leaving

if TYPE_CHECKING:
    from kvcodec.codecs.predicted_rows import GivenRows


class Ending(NamedTuple):
    """A record, and the token behind its last one: records go into the log in the order in which tokens end."""

    end: int
    record: Record


class Left(NamedTuple):
    """What an append does to one stream: records of what leaves its window, and the rows that are open then.

    handed: those are the heir's from here on.
    """

    endings: list[Ending]
    opened: OpenRows
    handed: bool = False


@dataclass(frozen=True)
class Outgoing:
    """How one stream of one layer of a sequence leaves memory.

    With no residual window and a codec that gives each row codes of its own, rows behind the sinks are coded as they
    come and only laid into groups later; else rows stay raw until they leave.
    heir: what takes over as soon as no token group is begun whose rows are codes already, None if nothing does.
    given: codes of K, of all tokens behind the sinks that an append may code, where V is predicted from them. laid: the
    token behind those of K that have left; those of V leave no sooner. length: of the sequence, where this stream is
    ahead of others: the window is that of tokens which all have.
    """

    sequence: int
    codecs: StreamCodecs
    policy: StreamPolicy
    window: int
    largest: int
    heir: Outgoing | None = None
    given: GivenRows | None = None
    laid: int = 0
    length: int = MAX_TOKEN

    @property
    def newest(self) -> Outgoing:
        """The heir if there is one."""
        return self.heir or self

    def ahead_of(self, length: int) -> Outgoing:
        """The same in a sequence of `length` tokens."""
        return replace(self, length=length, heir=self.heir and self.heir.ahead_of(length))

    def over(self, size: int, basis: bytes) -> Outgoing:
        """The same over a dictionary of `size` atoms of the set named `basis`, without an heir."""
        policy = replace(self.policy, spec=self.policy.spec.bound_to(size, basis))
        return replace(self, policy=policy, heir=None)

    def over_newest(self) -> Outgoing:
        """The same over the newest set that grew out of its policy's."""
        codes, sets = self.policy.spec.sparse, self.codecs.dictionaries
        if codes is None or (basis := sets.newest(codes.basis)) == codes.basis:
            return self
        own = sets.find(basis).find(self.layer, self.stream.id)
        return self if own is None else self.over(own.size, basis)

    def begun(self, steps: Sequence[CodecSpec | None]) -> Outgoing:
        """That of a token group which was begun before its dictionary grew: it is finished as it was begun.

        steps: codecs of the STEP records of its rows.
        """
        spec = steps[0] if len(set(steps)) == 1 else None
        if spec is None or spec.sparse is None or self.policy.spec.sparse is None:
            return self
        older, newest = self.over(spec.sparse.size, spec.sparse.basis), self.newest
        return newest if older.policy.spec != spec or older == newest else replace(older, heir=newest)

    @property
    def layer(self) -> int:
        return self.codecs.layer

    @property
    def stream(self) -> Stream:
        return self.codecs.stream

    @property
    def dtype(self) -> DtypeId:
        return self.codecs.dtype

    @cached_property
    def token_group(self) -> int:
        """Tokens of a full GROUP record."""
        spec, dim = self.policy.spec, self.stream.dim
        if spec.codec == CodecId.RAW:
            return self.raw_group
        tokens, codes = token_group(spec), spec.sparse or spec.shaped
        while codes and codes.bounded and tokens > 1 and 4 * greatest_head(codes, tokens, dim) > 7 * self.largest:
            tokens //= 2  # what a bound makes raw may outgrow a small block
        return tokens

    @cached_property
    def raw_group(self) -> int:
        """Tokens of a raw GROUP record: up to 64, as many as let one head take at most `largest` bytes."""
        tokens = token_group(RAW)
        while tokens > 1 and 2 * self.stream.dim * tokens > self.largest:
            tokens //= 2
        return tokens

    @cached_property
    def row_codec(self) -> RowCodec | None:
        """The codec of rows behind the sinks, if they are coded one by one."""
        own = self.policy.residual == 0 and codes_rows(self.policy.spec)
        return self.codecs.rows(self.policy.spec, self.given) if own else None

    def begin(self, first: int) -> OpenRows:
        """Open rows of which none is there yet."""
        return OpenRows(self._none(coded=self.row_codec is not None and first >= self.policy.sinks), first, first)

    def _none(self, *, coded: bool) -> npt.NDArray[Any]:
        codec = self.row_codec
        if coded and codec is not None:
            return np.empty((0, self.stream.heads, codec.row_bytes(self.stream.dim)), np.uint8)
        return np.empty((0, self.stream.heads, self.stream.dim), np.uint16)

    def append(self, open_: OpenRows, rows: Rows) -> Left:
        """Records of what leaves once `rows` are there, and the open rows then."""
        if self.heir is not None:
            return self._hand_over(self.heir, open_, rows)
        codec = self.row_codec
        if codec is None:
            return self._leave_raw(open_.extended(rows))
        records: list[Ending] = []
        if not is_coded(open_):
            records, open_, _ = self._leave_raw(open_.extended(rows), sinks_only=True)
            if open_.first < self.policy.sinks:
                return Left(records, open_)
            rows = open_.rows.copy()
            open_ = OpenRows(self._none(coded=True), open_.first, open_.first)
        end = open_.end + len(rows)
        fill = min(-(open_.end - open_.first) % self.token_group, len(rows))
        whole = fill + (len(rows) - fill) // self.token_group * self.token_group
        if self.given is not None and (self.laid - open_.first) % self.token_group:
            fill = whole = len(rows)  # groups of K end elsewhere: those of V wait for them as codes
        if fill:
            laid, open_, _ = self._leave_coded(open_.extended(codec.at(open_.end).encode(rows[:fill], self.dtype)), end)
            records += laid
        if whole > fill:
            records += self._leave_groups(open_.end, rows[fill:whole], end)
            open_ = OpenRows(self._none(coded=True), end - (len(rows) - whole), end - (len(rows) - whole))
        if whole < len(rows):
            open_ = open_.extended(codec.at(open_.end).encode(rows[whole:], self.dtype))
        return Left(records, open_)

    def _hand_over(self, heir: Outgoing, open_: OpenRows, rows: Rows) -> Left:
        """Fill the token group that is begun, if its rows are codes, and leave the rest of `rows` to the heir."""
        if not is_coded(open_):
            return heir.append(open_, rows)._replace(handed=True)
        fill = -(open_.end - open_.first) % self.token_group
        begun = replace(self, heir=None).append(open_, rows[:fill]) if fill else Left([], open_)
        if len(rows) <= fill:
            return begun
        rest = heir.append(heir.begin(begun.opened.end), rows[fill:])
        return Left(begun.endings + rest.endings, rest.opened, handed=True)

    def _leave_groups(self, first: int, rows: Rows, end: int) -> list[Ending]:
        """Records of whole token groups that come at once: the bytes of laid codes, and their errors are known.

        end: the token that comes next once all is appended.
        """
        tokens, codec = self.token_group, self.codecs.codec(self.policy.spec, self.given)
        groups = range(first, first + len(rows), tokens)
        skipped = sum(not self._needed(start + tokens, end) for start in groups) * tokens
        if skipped == len(rows):
            return []
        start, rest = first + skipped, rows[skipped:]
        made = group_records(self.sequence, self.layer, self.stream, start, rest, codec, self.dtype, tokens)
        return [Ending(start + (n + 1) * tokens, record) for n, record in enumerate(made)]

    def append_read(self, open_: OpenRows, count: int, read: Callable[[Rows], None]) -> Left:
        """`append` of `count` rows that `read` puts where it is told: mostly where they are coded from."""
        if self.heir is not None and not is_coded(open_):
            return self.heir.append_read(open_, count, read)._replace(handed=True)
        if self.row_codec is None:
            longer = open_.lengthened(count)
            read(longer.newest(count))
            return self._leave_raw(longer)
        rows = np.empty((count, self.stream.heads, self.stream.dim), np.uint16)
        read(rows)
        return self.append(open_, rows)

    def _leave_raw(self, open_: OpenRows, *, sinks_only: bool = False) -> Left:
        policy = self.policy
        groups = {"token_group": self.token_group, "sink_group": self.raw_group}
        end = self._ripe(open_.end - policy.residual) + policy.residual
        going = list(leaving(open_.first, end, residual=policy.residual, sinks=policy.sinks, **groups))
        if sinks_only:
            going = [item for item in going if item.sink]
        records: list[Ending] = []
        needed = [item for item in going if self._needed(item.first + item.tokens, open_.end)]
        for (sink, tokens), alike in itertools.groupby(needed, key=lambda item: (item.sink, item.tokens)):
            own = list(alike)
            first, spec = own[0].first, RAW if sink else policy.spec
            rows = open_.rows[first - open_.first : own[-1].first + tokens - open_.first]
            codec = self.codecs.codec(spec, None if sink else self.given)
            made = group_records(self.sequence, self.layer, self.stream, first, rows, codec, self.dtype, tokens)
            records += (Ending(first + (n + 1) * tokens, record) for n, record in enumerate(made))
        gone = sum(item.tokens for item in going)
        return Left(records, open_.without(gone) if gone else open_)

    def _leave_coded(self, open_: OpenRows, end: int) -> Left:
        """Records of whole token groups of codes. end: the token that comes next once all is appended."""
        tokens, codec = self.token_group, self.codecs.rows(self.policy.spec)
        groups = (self._ripe(open_.end) - open_.first) // tokens
        skipped = sum(not self._needed(open_.first + (n + 1) * tokens, end) for n in range(groups))
        first = open_.first + skipped * tokens
        rows, records = open_.rows[skipped * tokens : groups * tokens], []
        if len(rows):
            made = laid_records(self.sequence, self.layer, self.stream, first, rows, codec, tokens)
            records = [Ending(first + (n + 1) * tokens, record) for n, record in enumerate(made)]
        return Left(records, open_.without(groups * tokens) if groups else open_)

    def _ripe(self, end: int) -> int:
        """Up to where tokens before `end` may leave."""
        return end if self.given is None else min(end, self.laid)

    def _needed(self, end: int, length: int) -> bool:
        """Whether tokens before `end` are still in the layer's window when the stream has `length` tokens."""
        return not self.window or end > min(length, self.length) - self.window

    def span(self, open_: OpenRows, journal: CodecSpec = RAW, *, anew: bool = False) -> OpenSpan | None:
        """The open rows that no record holds yet, or with anew all; raw rows coded as `journal` says. None if there are
        none.
        """
        fresh = open_.first if anew else max(open_.logged, open_.first)
        if fresh >= open_.end:
            return None
        rows, spec = open_.rows[fresh - open_.first :], self.policy.spec
        if not is_coded(open_):
            journal = RAW if spec.bounded else journal  # a crash keeps the bound
            raw = journal.codec == CodecId.RAW
            rows, spec = (rows if raw else self.codecs.rows(journal).at(fresh).encode(rows, self.dtype)), journal
        return OpenSpan(self.layer, self.stream, fresh, rows, spec)

    def read(self, open_: OpenRows, index: npt.NDArray[np.int64], *, as_float32: bool) -> npt.NDArray[Any]:
        """Open rows number `index`, as 16-bit patterns or float32."""
        codec = self.row_codec
        if is_coded(open_) and codec is not None:
            low, high = (int(index.min()), int(index.max()) + 1) if len(index) else (0, 0)
            codec = codec.at(open_.first + low)
            whole = codec.decode(open_.rows[low:high], self.stream.dim, self.dtype, as_float32=as_float32)
            return whole[index - low]
        return widen(open_.rows[index], self.dtype, as_float32=as_float32)


def behind_keys(left: Left, source: Left | None) -> Left:
    """With records that go into the log behind those of the K that they stand on. source: what becomes of that."""
    if source is None:
        return left
    ends = [ending.end for ending in source.endings]
    moved = [own._replace(end=next((end for end in ends if end >= own.end), own.end)) for own in left.endings]
    return left._replace(endings=moved)


def is_coded(open_: OpenRows) -> bool:
    """Whether open rows are codes, not 16-bit patterns."""
    return bool(open_.rows.dtype == np.uint8)
