"""Sidecars whose checksums are right and which name other records than the log has there: the log alone decides."""

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.errors import CorruptRecord
from kvcodec.flash.checksum import crc32c
from kvcodec.layout import SIDECAR, SIDECAR_ENTRY, SIDECAR_LANE, Kind
from kvcodec.log.sidecar import sidecar_path
from tests.fuzz.log_seeds import NAMES, log_seed


def forge(tmp_path, name, change):
    """A golden log beside a sidecar whose entries `change` has changed."""
    seed, path = log_seed(NAMES.index(name)), tmp_path / "forged.kvlog"
    path.write_bytes(seed.log)
    sidecar = bytearray(seed.sidecar)
    head = np.frombuffer(sidecar, SIDECAR, 1)[0]
    entries = np.frombuffer(sidecar, SIDECAR_ENTRY, int(head["records"]), SIDECAR.itemsize + 2 * SIDECAR_LANE.itemsize)
    change(entries)
    head["body_crc"] = crc32c(bytes(sidecar[SIDECAR.itemsize :]))
    head["crc"] = crc32c(head.tobytes()[:-4])
    sidecar_path(path).write_bytes(sidecar)
    return path


def read(path):
    with kv.open(path) as store:
        return {s.name: [rows.tobytes() for rows in s.read(0)] for s in store}


def swap_places(entries, one, other):
    for field in ("generation", "block", "offset"):
        entries[field][[one, other]] = entries[field][[other, one]]


def first_of(entries, kind):
    return next(n for n, entry in enumerate(entries) if entry["header"].tobytes()[4] == kind)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("int4", Kind.MODEL), ("int4", Kind.SEQUENCE), ("dictionary-parts", Kind.DICTIONARY), ("product", Kind.CODEBOOK)],
)
def test_another_record_lies_where_the_sidecar_says(tmp_path, name, kind):
    whole = read(forge(tmp_path, name, lambda entries: None))
    path = forge(tmp_path, name, lambda e: swap_places(e, first_of(e, kind), -1))
    if kind in (Kind.MODEL, Kind.SEQUENCE):
        assert read(path) == whole
        return
    with pytest.raises(CorruptRecord, match="another record than the index names"):  # sets are loaded when asked for
        read(path)


def test_rows_lie_elsewhere_than_the_sidecar_says(tmp_path):
    """Nothing but reading them tells."""
    path = forge(tmp_path, "raw", lambda e: swap_places(e, first_of(e, Kind.GROUP), -1))
    with pytest.raises(CorruptRecord):
        read(path)


def test_a_freed_record_that_the_sidecar_misplaces(tmp_path):
    whole = read(forge(tmp_path, "cleaned", lambda entries: None))
    path = forge(tmp_path, "cleaned", lambda e: swap_places(e, first_of(e, Kind.FREED), first_of(e, Kind.MODEL)))
    assert read(path) == whole
