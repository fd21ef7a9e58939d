"""What forged logs with product or trellis codes begin from: K by them, V over a dictionary of the same set."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from kvcodec.codecs import codec_for
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.layout import DtypeId, StreamId
from kvcodec.log.frame import Record
from kvcodec.spec import CodecSpec
from kvcodec.store.coding import Coding, Wish
from kvcodec.store.model import Stream
from kvcodec.store.policy import SequenceInfo
from kvcodec.store.records import OpenSpan, group_records, step_records
from kvcodec.store.set_records import set_records
from tools.golden.fixed import noise
from tools.golden.forge import Forge, Forgeries
from tools.golden.forged import forged_model, forged_step, with_body

Change = Callable[[Record], Record]
CHUNK = 2000  # bytes of a codebook in a record
_POLICY_ATOMS = 46  # the byte of a SEQUENCE record's body with the atoms of the first rule


def put(at: int, number: int) -> Callable[[bytearray], None]:
    """A change of one byte."""

    def change(body: bytearray) -> None:
        body[at] = number

    return change


class Coded:
    """codec: of K, `pq` or `tcq`. make: its codes, in a set with the dictionary of V that is given."""

    def __init__(self, codec: str, make: Callable[[Dictionary], DictionarySet]) -> None:
        self.codec, self._make = codec, make

    @cached_property
    def set(self) -> DictionarySet:
        """What K and V are coded by."""
        return self._make(Dictionary(quantize_atoms(noise((20, 16), 250)), ((0, StreamId.V),)))

    def policy(self) -> SequenceInfo:
        """A sequence whose streams are coded by it."""
        wish = Wish.parse({"k": self.codec, "v": "dict/s3", "residual": 0, "sinks": 0}, "forged")
        return SequenceInfo(1, "a", forged_model().hash, Coding(wish).policy(forged_model(), None, self.set))

    def spec(self, stream: StreamId) -> CodecSpec:
        """Of one of its streams."""
        return self.policy().policy.at(0, stream).spec

    def group(self, stream: StreamId = StreamId.K) -> Record:
        """A GROUP record of 64 tokens."""
        spec, rows = self.spec(stream), noise((64, 2, 16), stream).astype(ml_dtypes.bfloat16).view(np.uint16)
        codec = codec_for(spec, stream, self.set.find_for(spec, 0, stream))
        return group_records(1, 0, Stream(stream, 2, 16), 0, rows, codec, DtypeId.BFLOAT16, 64)[0]

    def rows(self, number: int = 3) -> Record:
        """A ROWS record of one token of K, all of whose bytes are a number."""
        spec = self.spec(StreamId.K)
        assert spec.shaped is not None
        rows = np.full((1, 2, spec.shaped.row_bytes), number, np.uint8)
        return step_records(1, [OpenSpan(0, Stream(StreamId.K, 2, 16), 0, rows, spec)], limit=1 << 20)[0]

    def begin(self, forge: Forge, change: Change = lambda record: record, **fields: Any) -> None:
        """MODEL, DICTIONARY and CODEBOOK records, of which the last one is changed, and a SEQUENCE."""
        *others, last = set_records(self.set, CHUNK)
        forge.frame(forge.seal(forged_model().record()))
        forge.frame(*(forge.seal(one) for one in others))
        forge.frame(forge.seal(change(last), **fields))
        forge.frame(forge.seal(self.policy().record()))

    def add_groups(self, forge: Forge) -> None:
        """GROUP records of both streams, in a block of their own."""
        forge.begin_block(2)
        forge.frame(forge.seal(self.group()), forge.seal(self.group(StreamId.V)))

    def add_changed(self, forge: Forge, record: Record, change: Callable[[bytearray], None], **fields: Any) -> None:
        """All that, with a record of K whose body is changed."""
        body = bytearray(bytes(record.body))
        change(body)
        self.begin(forge)
        forge.begin_block(2)
        forge.frame(forge.seal(with_body(record, bytes(body)), **fields), forge.seal(self.group(StreamId.V)))

    def bad_group(self, cases: Forgeries, name: str, shows: str, **fields: Any) -> None:
        """Register a log with a GROUP record of K of changed fields."""

        @cases.bad(name, f"a GROUP record of {self.codec} with {shows}", frozen=False)
        def _(forge: Forge) -> None:
            self.begin(forge)
            forge.begin_block(2)
            forge.frame(forge.seal(self.group(), **fields))

    def bad_policy(self, cases: Forgeries, name: str) -> None:
        """Register a log with a policy by its codes that has atoms of a vector."""

        @cases.bad(name, f"a policy of {self.codec} with atoms of a vector", frozen=False)
        def _(forge: Forge) -> None:
            record = self.policy().record()
            body = bytearray(bytes(record.body))
            body[_POLICY_ATOMS] = 1
            forge.frame(forge.seal(forged_model().record()))
            forge.frame(forge.seal(with_body(record, bytes(body))))

    def bad_step(self, cases: Forgeries, name: str) -> None:
        """Register a log with a STEP record by its codes."""

        @cases.bad(name, f"a STEP record of {self.codec}, which has no room to name its codes", frozen=False)
        def _(forge: Forge) -> None:
            self.begin(forge)
            forge.frame(forge.seal(forged_step(0), codec=self.spec(StreamId.K).codec, group=64))
