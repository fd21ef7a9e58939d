"""Spans that are coded while the one before them is written: the same log, and nothing half done after a failure."""

import hashlib
import itertools
import os

import ml_dtypes
import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk import chunks
from kvcodec.bulk.encode import encode_dump
from kvcodec.errors import NonFiniteError
from kvcodec.log.tail import Tail
from tests.test_bulk import make_dump

CHUNK = 64  # tokens


@pytest.fixture(name="small_chunks", autouse=True)
def small_chunks_fixture(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1)


def encode(tmp_path, monkeypatch, threads, **options):
    """Bytes of a log whose device and sessions got the same random numbers each time."""
    counter = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(os, "urandom", lambda n: hashlib.sha512(b"%d" % next(counter)).digest()[:n])
        encode_dump(make_dump(tmp_path / "chat.safetensors", 700), tmp_path / "a.kvlog", overwrite=True,
                    threads=threads, **options)  # fmt: skip
    return (tmp_path / "a.kvlog").read_bytes()


@pytest.mark.parametrize(
    "options", [{}, {"device": "slc"}, {"residual": 0}, {"residual": 0, "sinks": 100, "k": "int8/token/g16"}]
)
def test_the_log_does_not_depend_on_threads(tmp_path, monkeypatch, options):
    logs = [encode(tmp_path, monkeypatch, threads, **options) for threads in (1, 2, 3)]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.parametrize("ahead", [False, True])
def test_what_is_bad_in_a_later_span_leaves_the_spans_before(tmp_path, ahead):
    model = kv.Model.uniform(layers=2, kv_heads=2, head_dim=16)
    rows = np.random.default_rng(0).standard_normal((512, 2, 16)).astype(ml_dtypes.bfloat16)
    bad = rows.copy()
    bad[300, 1, 3] = np.nan
    spans = [(at, at + CHUNK) for at in range(0, len(rows), CHUNK)]
    seen = []
    with kv.open(tmp_path / "a.kvlog", "w", model=model, residual=20, threads=2) as store:
        sequence = store.sequence("a")
        with pytest.raises(NonFiniteError, match="token 300"):
            sequence.append_spans(
                [0, 1], spans, lambda layer, _, a, b, __: (bad if layer else rows)[a:b], seen.append, ahead=ahead
            )
        assert seen == spans[:4]
        assert len(sequence) == 4 * CHUNK
        sequence.append_spans([0, 1], spans[4:], lambda _, __, a, b, ___: rows[a:b], seen.append, ahead=ahead)
        assert seen == spans
        sequence.append_spans([0, 1], [], lambda *_: rows, seen.append, ahead=ahead)
        newest = sequence.read(1, slice(-20, None))[0]
        assert np.array_equal(newest, rows[-20:])
    with kv.open(tmp_path / "b.kvlog", "w", model=model, residual=20) as store:
        for layer in range(2):
            store.sequence("a").append(layer, rows, rows)
        wanted = store.sequence("a").read(1)
    with kv.open(tmp_path / "a.kvlog") as store:
        assert all(map(np.array_equal, store.sequence("a").read(1), wanted))


def test_rows_of_another_dtype_are_rounded_into_the_room(tmp_path):
    model = kv.Model.uniform(layers=1, kv_heads=2, head_dim=16)
    rows = np.random.default_rng(0).standard_normal((100, 2, 16)).astype(np.float32)
    with kv.open(tmp_path / "a.kvlog", "w", model=model) as store:
        store.sequence("a").append_spans([0], [(0, 100)], lambda *_: rows, lambda _: None, ahead=False)
        assert np.array_equal(store.sequence("a").read(0)[1], rows.astype(ml_dtypes.bfloat16))


def test_a_tail_keeps_what_is_not_dropped():
    tail = Tail()
    tail.extend(5)[:] = range(5)
    tail.extend(40)[:] = 7
    tail.drop(3)
    assert len(tail) == 42
    assert tail.first(3).tolist() == [3, 4, 7]
    tail.drop(40)
    assert tail.rest(1).tolist() == [7]
    tail.extend(64 << 20)[:] = 1
    tail.drop((64 << 20) + 1)
    assert tail.rest(0).tolist() == [1]
