"""Damaged .kvdict files, and files that are not what they ought to be though all their checksums are right."""

import numpy as np
import pytest

from kvcodec.dictionary.artefact import read_artefact
from kvcodec.errors import FormatError
from kvcodec.flash.checksum import crc32c
from kvcodec.layout import KVDICT, KVDICT_ENTRY


def forge_entry(path, number, change, entries=None):
    """`change` the body of an entry, and with `entries` the table; where the body begins."""
    data = bytearray(path.read_bytes())
    head, table = np.frombuffer(data, KVDICT, 1), table_of(data)
    at, size = int(table["offset"][number]), int(table["bytes"][number])
    body = data[at : at + size]
    change(body)
    data[at : at + size] = body
    table["crc"][number] = crc32c(bytes(body))
    if entries is not None:
        entries(table)
    end = KVDICT.itemsize + table.nbytes + int(head["information_bytes"][0])
    head["crc"] = crc32c(bytes(data[: KVDICT.itemsize - 4]) + bytes(data[KVDICT.itemsize : end]))
    path.write_bytes(data)
    return at


def check_damage_is_found(path, bits, sizes):
    """No flipped bit in every `bits`-th byte, but in padding, and no end at every `sizes`-th one passes unseen."""
    data = path.read_bytes()
    table = table_of(data)
    ends = table["offset"] + table["bytes"]
    for at in range(0, len(data), bits):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            read_artefact(path)
        except FormatError:
            continue
        assert any(end <= at < -(-int(end) // 64) * 64 for end in ends) or at < table["offset"][0], at
    for size in range(0, len(data), sizes):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError):
            read_artefact(path)


def table_of(data):
    """The entries of a file, in its own memory."""
    count = int(np.frombuffer(data, KVDICT, 1)["dictionaries"][0])
    return np.frombuffer(data, KVDICT_ENTRY, count, KVDICT.itemsize)
