"""What power may leave of frames that no sync covered yet, in front of others that stand on them."""

from unittest import mock

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.flash.device import Device
from kvcodec.layout import Lane
from kvcodec.log.reader import Log
from kvcodec.log.sidecar import sidecar_path
from tests.power import Recorder, apply, synced_and_loose
from tests.test_lifecycle import append, data, make
from tests.test_plain_reader import read_packaged, read_plainly
from tests.walked import freed, step, taken_up, walk
from tools.golden.forge import Forge

UNIT = 64


@pytest.mark.parametrize("lane", Lane)
def test_no_writer_goes_on_in_a_block_of_which_nothing_was_accepted(forge, lane):
    """The first block of a lane is lost whole, and the next one is not: whoever went on behind its frames would have
    them taken for those of the log.
    """
    if lane == Lane.KEPT:
        forge.steps(2)
        forge.begin_block(2, Lane.KEPT)
    forge.number, forge.crc = 3, 7
    for _ in range(2):
        step(forge, durable=0)
    stale = forge.block.number
    log, writers = taken_up(forge)
    assert forge.device.block(stale) is None
    own = writers[lane]
    assert (own.block, own.number, own.counters.programmed) == (None, 0, 0)
    for _ in range(2):
        own.begin_block()
    assert walk(forge)[0] == ([1, 2] if lane == Lane.KEPT else [])
    assert log.walks[lane].cursor.number == 0


def test_a_reader_that_refused_a_jump_makes_it_once_a_writer_frees_those_frames(tmp_path):
    """It was opened between a loss of power and the next writer, which gives their numbers again."""
    create = Device.create
    more = {"blocks": 9}
    with mock.patch.object(Device, "create", lambda path, geometry, **how: create(path, geometry, **how | more)):
        forge = Forge(tmp_path / "c", "x")
    forge.steps(2)
    forge.begin_kept()
    forge.steps(1)
    crc = forge.crc
    forge.begin_block(3, Lane.KEPT)
    forge.number, forge.crc = 3, 7
    step(forge, durable=0)
    stale, log = forge.block.number, Log(Device.open(forge.path))
    log.poll()
    assert log.kept.refused == {(2, 4)}
    forge.device.erase(stale)
    forge.number, forge.crc = 1, crc
    again = {"session": 2, "session_start": 2, "durable": 1}
    forge.begin_block(4, Lane.KEPT)
    gone = forge.block.number
    step(forge, **again)
    step(forge, **again)
    forge.begin_block(5, Lane.KEPT)
    step(forge, **again)
    freed(forge, Lane.KEPT, 2, 2, **again)
    forge.device.erase(gone)
    assert [int(one.header["lsn"]) for one in log.poll()] == [forge.lsn - 1, forge.lsn]
    assert log.kept.cursor.number == 5
    log.device.close()
    forge.device.close()


# -- copies ----------------------------------------------------------------------------------------------------------


def begin_anew(store):
    store.drop("x")
    return lambda: append(store.sequence("x"), data(64, 5))


def begin(store):
    store.sequence("new")
    return lambda: append(store.sequence("new"), data(64, 5))


def fork(store):
    append(store.sequence("new"), data(64, 7))
    return lambda: store.fork("new", "forked")


def cut(store):
    store.sequence("x").truncate(16)
    return lambda: (append(store.sequence("x"), data(16, 5)), store._log_open_rows())


@pytest.mark.parametrize("change", [begin_anew, begin, fork, cut])
def test_no_copy_outlives_what_it_stands_on(tmp_path, change):
    """A block is cleaned that no sync covers. Any one unit in front of what is copied out of it is lost."""
    path = tmp_path / "c"
    with make(path, device=f"page={UNIT},unit={UNIT},block=32768", capacity=64 * 32768) as store:
        for n, name in enumerate(("keep", "x", "pad")):
            append(store.sequence(name), data(64, n))
    sidecar_path(path).unlink()
    before, wanted, recorder = path.read_bytes(), read_packaged(path), Recorder()
    with recorder.recording():
        store = kv.open(path, "a")
        writer, then = store._writers.fresh, change(store)
        fill_block(store, 10)
        block = writer.block
        then()
        fill_block(store, 40)
        assert store._cleaner._take(block)
        while store._cleaner._victim is not None:
            store._cleaner._step(5)
        store.abandon()
    for image in each_loss(before, recorder.asked):
        path.write_bytes(image)
        found = read_packaged(path)
        assert found == read_plainly(path)
        assert found["keep"] == wanted["keep"]
        assert is_state(keys_of(path, "x"))


def fill_block(store, seed):
    """Append, without a sync, until the open block is another one."""
    block = store._writers.fresh.block
    while store._writers.fresh.block is block:
        append(store.sequence("pad"), data(64, seed))
        seed += 1


def each_loss(before, asked):
    """The file without one of the pieces that no sync covers, for the first ones."""
    base, loose = synced_and_loose(before, asked, UNIT)
    for lost in range(min(len(loose), 12)):
        image = bytearray(base)
        for n, piece in enumerate(loose):
            if n != lost:
                apply(image, piece)
        yield bytes(image)


def keys_of(path, name):
    """Those of layer 0 of a sequence; none if it is not there."""
    with kv.open(path) as store:
        return store.sequence(name).read(0)[0] if name in store.sequences() else data(1, 0)[0][0][:0]


def is_state(keys):
    """Whether sequence x stood so at any time: as it was, cut and appended to, or begun anew."""
    old, new, more = (data(tokens, seed)[0][0] for tokens, seed in ((64, 1), (64, 5), (16, 5)))
    went_on = np.concatenate([old[:16], more])
    states = [old, *(went_on[:end] for end in range(16, 33)), *(new[:end] for end in range(65))]
    return any(np.array_equal(keys.view(np.uint16), state.view(np.uint16)) for state in states)
