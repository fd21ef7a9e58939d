"""The model, the sequence and the records that forged logs begin from."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from kvcodec import layout
from kvcodec.codecs import codec_for
from kvcodec.layout import StreamId
from kvcodec.log.frame import Record
from kvcodec.store.coding import Coding, Wish
from kvcodec.store.model import Model, Stream
from kvcodec.store.policy import SequenceInfo
from kvcodec.store.records import OpenSpan, group_records, step_records
from tools.golden.fixed import noise


def forged_model() -> Model:
    """The model of forged logs."""
    return Model.uniform(1, 2, 16)


def forged_sequence(number: int = 1, name: str = "a") -> SequenceInfo:
    """A sequence of a forged log."""
    wish = Wish.parse({"k": "int4/channel/g16", "v": "int4/token/g16", "residual": 0, "sinks": 0}, "forged")
    return SequenceInfo(number, name, forged_model().hash, Coding(wish).policy(forged_model(), None))


def forged_rows(tokens: int, seed: int) -> Any:
    """Bits of some rows."""
    return noise((tokens, 2, 16), seed).astype(ml_dtypes.bfloat16).view(np.uint16)


def forged_group(stream: StreamId = StreamId.K) -> Record:
    """A GROUP record of 16 tokens."""
    spec = {s.stream: s.policy.spec for s in forged_sequence().policy.rules}[stream]
    whole = Stream(stream, 2, 16)
    codec = codec_for(spec, stream)
    return group_records(1, 0, whole, 0, forged_rows(16, stream), codec, layout.DtypeId.BFLOAT16, 16)[0]


def forged_step(token: int = 0, tokens: int = 1) -> Record:
    """A STEP record of K and V."""
    k, v = forged_model().layers[0].streams
    spans = [OpenSpan(0, s, token, forged_rows(tokens, 7 + s.id + token)) for s in (k, v)]
    return step_records(1, spans, limit=1 << 20)[0]


def with_body(record: Record, body: bytes) -> Record:
    """The record with another body."""
    return Record(record.header, body)
