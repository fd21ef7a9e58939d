"""Attention that is refused: arguments, damaged records, erased blocks. Never a wrong number, and nothing changes."""

from __future__ import annotations

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.errors import CorruptRecord, DtypeError, NonFiniteError, ShapeError, SpecError, StoreClosed
from kvcodec.layout import StreamId
from tests.caches import TINY
from tests.test_attention_store import check, make, put, queries


def test_what_is_refused_changes_nothing(tmp_path):
    model = kv.Model((kv.Layer.kv(2, 16), kv.Layer(), kv.Layer.kv(2, 16, window=50)))
    path = tmp_path / "c"
    with make(path, model=model) as store:
        put(store, 0, 200)
        put(store, 0, 200, layer=2)
        store.sync()
        sequence, q = store.sequence("a"), queries()
        before, log = sequence.attend(0, q), path.read_bytes()
        nan = q.copy()
        nan[1, 2] = np.nan
        for error, words, arguments in [
            (ShapeError, "layer 3: the model has layers 0 to 2", {"layer": 3}),
            (ShapeError, "layer 1 keeps no cache", {"layer": 1}),
            (ShapeError, "q: shape is", {"q": q[:, :8]}),
            (ShapeError, "q: shape is", {"q": q[:3]}),
            (ShapeError, "q: shape is", {"q": q[0]}),
            (DtypeError, "got int64", {"q": q.astype(np.int64)}),
            (DtypeError, "got complex64", {"q": q.astype(np.complex64)}),
            (NonFiniteError, "head 1, channel 2", {"q": nan}),
            (SpecError, "scale is 0", {"scale": 0.0}),
            (SpecError, "scale is inf", {"scale": np.inf}),
            (SpecError, "scale is", {"scale": 1.7e308}),
            (SpecError, "query_bits is 12", {"query_bits": 12}),
            (SpecError, "window is 0, want 1 or more", {"window": 0}),
            (SpecError, "window and tokens exclude each other", {"window": 5, "tokens": [3]}),
            (ShapeError, "tokens: 200 is out of range, the layer holds 0 to 199", {"tokens": [200]}),
            (ShapeError, "out of range", {"tokens": [-201]}),
            (ShapeError, "tokens: got float64", {"tokens": [0.5]}),
            (ShapeError, "tokens: 100 is out of range, the layer holds 150 to 199", {"layer": 2, "tokens": [100]}),
            (ShapeError, "out of range", {"layer": 2, "tokens": slice(0, 100)}),
        ]:
            with pytest.raises(error, match=words):
                sequence.attend(**({"layer": 0, "q": q} | arguments))
        for batch, many in (([], q[None][:0]), ([sequence], queries(n=2)), ([sequence], q)):
            with pytest.raises(ShapeError):
                store.attend(0, batch, many)
        assert np.array_equal(sequence.attend(0, q), before)
        assert path.read_bytes() == log
    with pytest.raises(StoreClosed):
        sequence.attend(0, q)


def test_a_damaged_record_takes_nothing_from_the_others(tmp_path):
    path = tmp_path / "c"
    with make(path, residual=0, sinks=0) as store:
        put(store, 0, 640)
    with kv.open(path) as store:
        part = extents_of(store)[8].coded.parts[0]
        at = store.device.file_offset(part.place.block, part.place.offset) + 300
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with kv.open(path) as store:
        sequence = store.sequence("a")
        check(sequence, tokens=slice(0, 64))
        with pytest.raises(CorruptRecord):
            sequence.attend(0, queries())
        check(sequence, tokens=slice(0, 512))
        check(sequence, tokens=slice(64, 128))


def extents_of(store, stream=StreamId.K):
    return store.sequence("a")._index.maps[0, stream].covering(0, 1 << 40)


def zero_slots(path, device, place, units=None):
    """Have a record's first unit, or its block, look erased."""
    whole = device.geometry.block_bytes // device.geometry.unit_bytes
    with path.open("r+b") as file:
        file.seek(device._spare_offset(place.block, place.offset // device.geometry.unit_bytes if units else 0))
        file.write(bytes(16 * (units or whole)))


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("stream", [StreamId.K, StreamId.V])
def test_a_damaged_record_is_no_wrong_number(tmp_path, stream):
    path = tmp_path / "c"
    with make(path, residual=0, sinks=0) as store:
        put(store, 0, 256)
    with kv.open(path) as store:
        place = extents_of(store, stream)[2].coded.parts[0].place
        at = store.device.file_offset(place.block, place.offset) + 200
    with kv.open(path) as store:
        flip(path, at)  # after opening: a record is checked when attention first meets it
        check(store.sequence("a"), tokens=slice(0, 128))
        for tokens in (None, slice(128, 192), [130]):
            with pytest.raises(CorruptRecord):
                store.sequence("a").attend(0, queries(), tokens=tokens)
        check(store.sequence("a"), tokens=slice(192, 256))
        flip(path, at)
        check(store.sequence("a"))


def test_an_erased_block_is_no_wrong_number(tmp_path):
    path = tmp_path / "c"
    with make(path, residual=0, sinks=0, device=TINY) as store:
        put(store, 0, 512)
    with kv.open(path) as store:
        check(store.sequence("a"))
        place = extents_of(store)[4].coded.parts[0].place
        zero_slots(path, store.device, place)
        with pytest.raises(CorruptRecord, match="was erased"):
            store.sequence("a").attend(0, queries())


def test_tokens_that_damage_took_are_named(tmp_path):
    path = tmp_path / "c"
    with make(path, residual=0, sinks=0, device=TINY) as store:
        for first in range(0, 512, 64):
            put(store, first, first + 64)
            store.sync()
    with kv.open(path) as store:
        place = extents_of(store)[3].coded.parts[0].place
        zero_slots(path, store.device, place, 1)
    with kv.open(path, recovery="skip-damaged") as store:
        sequence = store.sequence("a")
        with pytest.raises(CorruptRecord, match="are lost"):
            sequence.attend(0, queries())
        check(sequence, tokens=slice(0, 192))
        check(sequence, tokens=slice(256, 512))
