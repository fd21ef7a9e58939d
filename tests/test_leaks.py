"""Readers leave no file, map or thread behind, under the interpreter's development mode with warnings as errors."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = """
import gc, os, pathlib, sys, threading
import kvcodec as kv
from kvcodec.errors import KvcodecError
path = sys.argv[1]

def held():
    gc.collect()
    maps = pathlib.Path("/proc/self/maps").read_text().count(os.path.basename(path))
    return len(os.listdir("/proc/self/fd")), maps, threading.active_count()

def use(recovery):
    try:
        with kv.open(path, recovery=recovery, threads=2) as store:
            for sequence in store:
                sequence.read(0)
            store.stats()
    except KvcodecError:
        pass

use("torn-tail")
before = held()
for recovery in ("torn-tail", "absolute", "point-in-time", "skip-damaged"):
    for _ in range(5):
        use(recovery)
after = held()
assert after == before, (before, after)
assert after[1] == 0, after
"""


@pytest.mark.parametrize(
    "log", ["int4", "gap", "torn-tail", "frame-damaged", "superblocks-bad", "scale-nan", "group-layer"]
)
def test_no_file_map_or_thread_is_left(log):
    path = ROOT / "tests" / "golden" / f"{log}.kvlog"
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", CODE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
