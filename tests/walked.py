"""Logs that are forged frame by frame, and what walks over them give."""

import contextlib
from unittest import mock

import numpy as np
import pytest

from kvcodec.errors import CorruptRecord
from kvcodec.flash.device import Device
from kvcodec.layout import FREED_RUN, Kind
from kvcodec.log import walk as walk_module
from kvcodec.log.frame import new_record
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery
from kvcodec.log.takeup import take_up
from tools.golden.forge import Forge
from tools.golden.forged import forged_step

READS = (Recovery.POINT_IN_TIME, Recovery.SKIP_DAMAGED)
REFUSES = (Recovery.TORN_TAIL, Recovery.ABSOLUTE)


class Packed(Forge):
    """Frames share units, as those of a writer do."""

    def program(self, data):
        self.waiting = [*getattr(self, "waiting", []), (self.offset, data)]
        offset, self.offset = self.offset, self.offset + len(data)
        return offset

    def flush(self):
        start, data = self.waiting[0][0], b"".join(data for _, data in self.waiting)
        firsts = {offset // self.unit: offset % self.unit for offset, _ in reversed(self.waiting)}
        units = range(start // self.unit, start // self.unit - (-len(data) // self.unit))
        padded = data.ljust(len(units) * self.unit, b"\0")
        self.device.program(self.block.number, units[0], padded, [firsts.get(unit, 0xFFFF) for unit in units])
        self.offset, self.waiting = units[-1] * self.unit + self.unit, []


def step(forge, **ident):
    """A frame with one STEP record; where in the file it begins."""
    return place_of(forge, forge.frame(forge.seal(forged_step(forge.number)), **ident))


def torn(forge):
    """The next frame, of which a bit is wrong: it does not count."""
    number, crc, lsn = forge.number, forge.crc, forge.lsn
    start = forge.frame(forge.seal(forged_step(0)), after=lambda data: data.__setitem__(70, data[70] ^ 1))
    forge.number, forge.crc, forge.lsn = number, crc, lsn
    return place_of(forge, start)


def lost(forge, **ident):
    """The next frame, of which a bit is wrong, while those behind it go on as if it were whole."""
    start = forge.frame(forge.seal(forged_step(0)), after=lambda data: data.__setitem__(70, data[70] ^ 1), **ident)
    return place_of(forge, start)


def freed(forge, lane, first, frames, **ident):
    body = np.array([(lane, b"", first, frames)], FREED_RUN).tobytes()
    return forge.frame(forge.seal(new_record(Kind.FREED, body, runs=1)), **ident)


def place_of(forge, offset):
    return forge.device.file_offset(forge.block.number, offset)


def here(forge):
    """Where in the file the next frame would begin."""
    return place_of(forge, forge.offset)


def end_of(forge, block):
    return forge.device.file_offset(block, forge.device.geometry.block_bytes)


def size(forge):
    return forge.path.stat().st_size


@contextlib.contextmanager
def opened(forge, recovery="torn-tail", known=(0, 0)):
    """A log of which the sidecar vouches for frames `known` of the lanes."""
    device = Device.open(forge.path)
    log = Log(device, Recovery(recovery))
    for walk, durable in zip(log.walks, known, strict=True):
        walk.known_durable = durable
    try:
        yield log
    finally:
        device.close()


def taken_up(forge):
    """A log that was read, and its writers."""
    log = Log(forge.device)
    log.poll()
    return log, take_up(forge.device, log)


def walk(forge, recovery="torn-tail", known=(0, 0)):
    """lsns of what is read, and the report; read with care and without it is the same."""
    found = []
    for read, few in ((Log.poll, 8), (Log.poll_table, 8), (Log.poll_table, 1)):
        with opened(forge, recovery, known) as log, mock.patch.object(walk_module, "_FEW", few):
            lsns = [int(one.header["lsn"]) for one in read(log)]
            ends = [(each.cursor, each.spans, each.counters(), each.lsn, each.stopped) for each in log.walks]
            found.append((lsns, log.report, ends, log.totals, log.lsn))
    assert found[0] == found[1] == found[2]
    return found[0][:2]


def refused(forge, recovery, known=(0, 0)):
    """What a walk raises."""
    with opened(forge, recovery, known) as log, pytest.raises(CorruptRecord) as raised:
        log.poll()
    with opened(forge, recovery, known) as log, pytest.raises(CorruptRecord) as again:
        log.poll_table()
    assert str(again.value) == str(raised.value)
    return raised.value.offset, raised.value.why
