"""Headers of which one bit is changed, or any two: whatever reads them sees it."""

import functools
import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from kvcodec.dictionary.artefact import Artefact, read_artefact, write_artefact
from kvcodec.errors import KvcodecError
from kvcodec.flash.block import decode_header
from kvcodec.flash.device import Device
from kvcodec.flash.superblock import read_superblock
from kvcodec.layout import BLOCK_HEADER, FRAME_HEADER, KVDICT, SIDECAR, SPARE_SLOT, SUPERBLOCK, SUPERBLOCK_BYTES, Kind
from kvcodec.log.frame import Flaw, read_frame, read_record_header
from kvcodec.log.reader import Log
from kvcodec.log.sidecar import load_sidecar, sidecar_path
from tests.test_damage import product_codes

GOLDEN = Path(__file__).resolve().parent / "golden"
PAIRS = 2000  # of each header, in the test that always runs


class Header:
    """A header in a file of its own, and what reads it: that raises KvcodecError or Flaw where it refuses."""

    def __init__(self, path, at, size, read, device=None):
        self._fd, self._at, self._read, self._device = os.open(path, os.O_RDWR), at, read, device
        self._good = os.pread(self._fd, size, at)
        self.bits = 8 * size
        self._read()

    def refused(self, *bits):
        """Whether it is, with these bits changed."""
        value = int.from_bytes(self._good, "little") ^ functools.reduce(int.__xor__, (1 << bit for bit in bits))
        os.pwrite(self._fd, value.to_bytes(len(self._good), "little"), self._at)
        try:
            self._read()
        except (KvcodecError, Flaw):
            return True
        finally:
            os.pwrite(self._fd, self._good, self._at)
        return False

    def close(self):
        os.close(self._fd)
        if self._device is not None:
            self._device.close()


def superblock(folder):
    path = shutil.copy(GOLDEN / "cleaned.kvlog", folder / "c")
    device = Device.open(path)
    with open(path, "r+b") as file:  # without its second copy, which would stand in for it
        file.seek(SUPERBLOCK_BYTES)
        file.write(bytes(SUPERBLOCK.itemsize))
    return Header(path, 0, SUPERBLOCK.itemsize, lambda: read_superblock(device.image), device)


def of_log(folder, name):
    """A golden log, copied, and its records."""
    device = Device.open(shutil.copy(GOLDEN / name, folder / "c"))
    return device, Log(device).poll()


def block_header(folder):
    device, records = of_log(folder, "cleaned.kvlog")
    number = records[-1].place.block
    at, data = device.file_offset(number), device.data(number, 0, BLOCK_HEADER.itemsize)
    return Header(device.image.path, at, BLOCK_HEADER.itemsize, lambda: decode_header(data, at), device)


def frame_header(folder):
    device, records = of_log(folder, "int4.kvlog")
    place = records[0].place
    block, start = device.block(place.block), place.offset - FRAME_HEADER.itemsize
    at, data = device.file_offset(block.number), device.data(block.number, 0, device.geometry.block_bytes)
    identity = {"generation": block.generation, "uuid": device.uuid, "base": at}
    return Header(
        device.image.path, at + start, FRAME_HEADER.itemsize, lambda: read_frame(data, start, **identity), device
    )


def spare_slot(folder):
    device, records = of_log(folder, "cleaned.kvlog")
    place = records[-1].place
    unit = place.offset // device.geometry.unit_bytes
    at = device._spare_offset(place.block, unit)
    return Header(device.image.path, at, SPARE_SLOT.itemsize, lambda: device.read(place.block, unit), device)


def sidecar(folder):
    device, _ = of_log(folder, "durable-lost.kvlog")
    path = sidecar_path(device.image.path)
    shutil.copy(sidecar_path(GOLDEN / "durable-lost.kvlog"), path)
    log = Log(device)

    def read():
        log.fresh.known_durable = 0
        load_sidecar(device.image.path, log, resume=False)
        if not log.fresh.known_durable:
            raise Flaw("it was not taken in")

    return Header(path, 0, SIDECAR.itemsize, read, device)


def kvdict(folder):
    path = folder / "c.kvdict"
    write_artefact(path, Artefact(product_codes(), {}))
    return Header(path, 0, KVDICT.itemsize, lambda: read_artefact(path))


def record_header(kind, folder):
    for path in sorted(GOLDEN.glob("*.kvlog")):
        try:
            device, records = of_log(folder, path.name)
        except KvcodecError:  # a golden log that is to be rejected
            continue
        for one in records:
            if one.header["kind"] == kind:
                return _record_header(device, one)
        device.close()
    raise AssertionError(f"no golden log with {kind!r}")


def _record_header(device, one):
    at, base = one.place.offset, device.file_offset(one.place.block)
    data = device.data(one.place.block, 0, device.geometry.block_bytes)
    return Header(device.image.path, base + at, one.header.itemsize, lambda: read_record_header(data, at, base), device)


HEADERS = {make.__name__: make for make in (superblock, block_header, frame_header, spare_slot, sidecar, kvdict)}
HEADERS |= {kind.name: functools.partial(record_header, kind) for kind in Kind}


@pytest.fixture(params=HEADERS)
def header(tmp_path, request):
    header = HEADERS[request.param](tmp_path)
    yield header
    header.close()


def test_each_bit_and_some_pairs_are_seen(header):
    lot = np.random.default_rng(1)
    pairs = (lot.choice(header.bits, 2, replace=False).tolist() for _ in range(PAIRS))
    for bits in itertools.chain(((bit,) for bit in range(header.bits)), pairs):
        assert header.refused(*bits), bits


@pytest.mark.campaign
def test_every_pair_of_bits_is_seen(header):
    for bits in itertools.combinations(range(header.bits), 2):
        assert header.refused(*bits), bits
