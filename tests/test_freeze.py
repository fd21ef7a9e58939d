"""The frozen format: golden logs of version 1 keep their bytes for ever, and show all that version 1 has."""

import hashlib
from pathlib import Path

import pytest

from kvcodec.errors import KvcodecError
from kvcodec.flash.device import Device
from kvcodec.layout import CodecId, DropScope, Kind, Lane
from kvcodec.log.reader import Log

GOLDEN = Path(__file__).resolve().parent / "golden"
FROZEN = Path(__file__).resolve().parent / "version-1.sha256"


def frozen():
    """{name: sha256} of the golden logs as they were when the format was frozen, or when each of them was added."""
    lines = FROZEN.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def test_golden_logs_of_version_1_keep_their_bytes():
    """No tool writes the list: a golden log may be added to it, and none is ever changed."""
    names = [path.name for path in GOLDEN.iterdir() if path.suffix in (".kvlog", ".idx")]
    assert sorted(names) == sorted(frozen())
    for name, digest in frozen().items():
        assert hashlib.sha256((GOLDEN / name).read_bytes()).hexdigest() == digest, name


@pytest.fixture(scope="module")
def walked():
    """Headers of all records of all golden logs that are whole, and the walks that found them."""
    headers, walks = [], []
    for path in sorted(GOLDEN.glob("*.kvlog")):
        try:
            device = Device.open(path)
            log = Log(device)
            headers += [one.header for one in log.poll()]
            walks += log.walks
        except KvcodecError:  # a golden log that is to be rejected
            continue
    return headers, walks


def test_golden_logs_show_all_kinds_of_records(walked):
    headers, _ = walked
    assert {int(header["kind"]) for header in headers} >= set(Kind)
    assert {int(header["scope"]) for header in headers if header["kind"] == Kind.DROP} == set(DropScope)
    rows = [int(h["codec"]) for h in headers if h["kind"] in (Kind.GROUP, Kind.STEP, Kind.ROWS)]
    assert set(rows) >= set(CodecId)


def test_golden_logs_show_both_lanes_and_compaction(walked):
    _, walks = walked
    assert {walk.lane for walk in walks if walk.spans} == set(Lane)
    assert any(walk.totals.compacted for walk in walks)
