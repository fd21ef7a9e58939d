"""A sequence that is cut, evicted from or summarised for ever fills no device: what says so ends in time."""

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.layout import DropScope, Kind
from kvcodec.log.sidecar import sidecar_path
from tests.test_lifecycle import append, check, data, make
from tests.test_plain_reader import read_packaged, read_plainly

SMALL = {"device": "page=64,unit=64,block=2048", "capacity": 32 * 2048}


def summary_records(store):
    """DROP records that make summaries, of all that the log holds."""
    return [
        one for one in store.known.table()
        if int(one.header["kind"]) == Kind.DROP and int(one.header["scope"]) == DropScope.SUMMARY
    ]  # fmt: skip


def settled(sequence):
    """Tokens that no residual window holds."""
    sequence.take_up()
    return min(open_.first for open_ in sequence._open.values())


def check_reopened(path, before):
    """That a log tells the same as before, without its sidecar too, and to the plain reader."""
    assert read_packaged(path) == before
    sidecar_path(path).unlink()
    assert read_packaged(path) == read_plainly(path) == before
    assert verify_log(path).verdict == "clean"


@pytest.mark.parametrize("what", ["truncate", "evict"])
def test_a_sequence_that_is_cut_or_evicted_from_for_ever_fills_no_device(tmp_path, what):
    """What says so ends with the rows that it is about, or with a record that says more."""
    with make(tmp_path / "c", capacity=(20 if what == "truncate" else 14) * 4096) as store:
        sequence, kept = store.sequence("a"), data(64, 1)
        append(sequence, kept)
        for n in range(1100 if what == "truncate" else 420):
            append(sequence, rows := data(1 if what == "truncate" else 64, n))
            if what == "truncate":
                sequence.truncate(64)
            else:
                kept = rows
                sequence.evict(len(sequence) - 128, len(sequence) - 64)
        length = len(sequence)
    for mode in "ra":
        with kv.open(tmp_path / "c", mode) as store:
            if what == "truncate":
                check(store.sequence("a"), kept)
            else:
                assert store.sequence("a").evicted(0) == [(0, length - 64)]
                for got, wanted in zip(store.sequence("a").read(1), kept[1], strict=True):
                    assert np.array_equal(got, wanted)
    assert verify_log(tmp_path / "c").verdict == "clean"


@pytest.mark.parametrize(("window", "layers"), [(0, [0, 1]), (64, [0])])
def test_a_sequence_may_be_summarised_for_ever(tmp_path, window, layers):
    """Each summary takes the one before. A layer with a window may be left out of it."""
    path = tmp_path / "c"
    with make(path, window=window, **SMALL) as store:
        own = store.sequence("p")
        for n in range(600):
            append(own, data(16, n))
            if end := settled(own):
                own.summarize(0, end, {layer: data(2, n)[layer] for layer in layers})
        assert len(summary_records(store)) < 60
        store.compact()
    check_reopened(path, read_packaged(path))
    with kv.open(path) as store:
        (only,) = store.sequence("p").summaries(0)
        assert (only.first, only.rows) == (0, 2)
        for got, wanted in zip(store.sequence("p").read(0), data(2, 599)[0], strict=True):
            assert np.array_equal(got[:2].view(np.uint16), wanted.view(np.uint16))


def test_a_summary_that_leaves_out_a_layer_does_not_end_one_that_did_not(tmp_path):
    """The rows of that layer are those of the older one."""
    path = tmp_path / "c"
    with make(path, window=64, **SMALL) as store:
        own = store.sequence("p")
        append(own, data(48, 1))
        own.summarize(0, 32, dict(enumerate(data(2, 2))))
        for n in range(300):
            if len(own) < 64:
                append(own, data(1, n))
            own.summarize(0, 32, {0: data(2, n)[0]})
        store.compact()
        assert len(summary_records(store)) == 2
        assert [each.rows for each in own.summaries(1)] == [2]
        for got, wanted in zip(own.read(1), data(2, 2)[1], strict=True):
            assert np.array_equal(got[:2].view(np.uint16), wanted.view(np.uint16))
    check_reopened(path, read_packaged(path))


def test_a_summary_ends_what_was_evicted_before(tmp_path):
    path = tmp_path / "c"
    with make(path, **SMALL) as store:
        own, done = store.sequence("p"), 0
        for n in range(300):
            append(own, data(16, n))
            if (end := settled(own)) > done:
                own.evict(done, end)
                own.summarize(0, end, dict(enumerate(data(2, n))))
                done = end
        store.compact()
        drops = [one for one in store.known.table() if int(one.header["kind"]) == Kind.DROP]
        assert len(drops) < 10
    check_reopened(path, read_packaged(path))
