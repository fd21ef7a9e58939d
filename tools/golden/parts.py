"""Parts of split records, and copies of records: which of them count."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from kvcodec.layout import StreamId
from kvcodec.log.frame import Record
from kvcodec.store.model import Model, Stream
from kvcodec.store.records import OpenSpan, step_records
from tools.golden.fixed import noise
from tools.golden.forge import Forge, Forgeries
from tools.golden.forged import forged_group, forged_sequence, forged_step, with_body

CASES = Forgeries()


@CASES.good("split-copied", "parts of a split record in two frames, the last one first, one of them twice")
def _(forge: Forge) -> None:
    forge.begin()
    k, v = forged_group(), forged_group(StreamId.V)
    assert k.split is not None
    low, high = k.split(1)
    lsn = forge.lsn + 1
    for record in (high, low, high):
        forge.lsn = lsn - 1
        forge.frame(forge.seal(record))
    forge.frame(forge.seal(v))


@CASES.good("highest-lsn", "a copy of an older record that stands behind the newer one does not win")
def _(forge: Forge) -> None:
    forge.begin()
    forge.lsn = 20
    forge.frame(forge.seal(forged_step(0, 4)))
    forge.lsn = 10
    older = forged_step(0, 4)
    forge.frame(forge.seal(with_body(older, bytes(len(older.body)))))


def _split_pair(forge: Forge, first: Record, second: Record) -> None:
    """Two records that pose as parts of one, since they share an lsn, over whole ones."""
    forge.begin()
    forge.frame(forge.seal(forged_step(0, 16)))
    sealed = forge.seal(first)
    forge.lsn -= 1
    forge.frame(sealed, forge.seal(second))


@CASES.bad("split-overlap", "parts of a split record that overlap: a head is missing", frozen=False)
def _(forge: Forge) -> None:
    model = Model.uniform(1, 4, 16)
    forge.frame(forge.seal(model.record()))
    forge.frame(forge.seal(forged_sequence().record(), model_hash=np.void(model.hash)))
    streams = [Stream(s, 4, 16) for s in (StreamId.K, StreamId.V)]
    spans = [OpenSpan(0, s, 0, noise((4, 4, 16), s.id).astype(ml_dtypes.bfloat16).view(np.uint16)) for s in streams]
    record = step_records(1, spans, limit=1 << 20)[0]
    assert record.split is not None
    low, rest = record.split(2)
    sealed = forge.seal(low)
    forge.lsn -= 1
    forge.frame(sealed, forge.seal(rest, first_head=1))


@CASES.bad("split-tokens", "parts of a split record that differ in tokens", frozen=False)
def _(forge: Forge) -> None:
    first, second = forged_step(0, 4).split, forged_step(0, 8).split
    assert first is not None
    assert second is not None
    _split_pair(forge, first(1)[0], second(1)[1])


@CASES.bad("split-kinds", "parts of a split record that differ in kind", frozen=False)
def _(forge: Forge) -> None:
    first, second = forged_group().split, forged_step(0, 16).split
    assert first is not None
    assert second is not None
    _split_pair(forge, first(1)[0], second(1)[1])
