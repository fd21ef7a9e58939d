"""What the worked example holds, the log whose bytes formats/*.md show."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from kvcodec import layout
from kvcodec.codecs import codec_for
from kvcodec.layout import Kind, StreamId
from kvcodec.log.frame import Record, new_record
from kvcodec.store.model import Layer, Model
from kvcodec.store.records import OpenSpan, group_records, step_records


def example_model() -> Model:
    """One layer, one head of 16 channels."""
    return Model((Layer.kv(1, 16, rope_base=10000.0),), name="tiny")


def example_rows() -> tuple[Any, Any]:
    """K[t, c] = t + c / 4 and V[t, c] = c - 8, sixteen tokens of one head."""
    t, c = np.arange(16, dtype=np.float32)[:, None], np.arange(16, dtype=np.float32)
    both = t + c / 4, np.broadcast_to(c - 8, (16, 16))
    k, v = (np.ascontiguousarray(x.astype(ml_dtypes.bfloat16)).view(np.uint16)[:, None] for x in both)
    return k, v


def example_records() -> list[Record]:
    """GROUP of K, GROUP of V, a raw GROUP of K's first two tokens, a STEP of token 16, a DROP from token 16 on."""
    k_stream, v_stream = example_model().layers[0].streams
    (k, v), dtype = example_rows(), layout.DtypeId.BFLOAT16
    k_codec, v_codec = codec_for("int4/channel/g16", StreamId.K), codec_for("int4/token/g16/sym", StreamId.V)
    return [
        *group_records(1, 0, k_stream, 0, k, k_codec, dtype, 16),
        *group_records(1, 0, v_stream, 0, v, v_codec, dtype, 16),
        *group_records(1, 0, k_stream, 0, k[:2], codec_for("raw", StreamId.K), dtype, 2),
        *step_records(1, [OpenSpan(0, k_stream, 16, k[:1]), OpenSpan(0, v_stream, 16, v[:1])], limit=1 << 20),
        new_record(Kind.DROP, b"", sequence=1, first_token=16),
    ]
