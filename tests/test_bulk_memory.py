"""Dumps larger than the memory that a job may take: encoded, killed, resumed and decoded within a bound."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvcodec.bulk.new_log import making_path
from kvcodec.dumps import open_dump
from kvcodec.layout import StreamId
from tests.test_bulk_resume import big_dump, size_of

JOB = (
    "import sys, kvcodec as kv\n"
    "getattr(kv, sys.argv[1])(sys.argv[2], sys.argv[3], **eval(sys.argv[4]))\n"
    "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])\n"
)


def run(job, source, target, **options):
    """The most memory that a process with this job had at once, in MiB."""
    command = [sys.executable, "-c", JOB, job, str(source), str(target), repr(options)]
    done = subprocess.run(command, cwd=Path.cwd(), capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def kill_midway(dump, log, size):
    """Kills an encode once the half-made log has `size` bytes; anew if a busy machine let it come to its end."""
    command = [sys.executable, "-c", JOB, "encode", str(dump), str(log), "{'resume': True}"]
    making = making_path(log)
    for _ in range(10):
        with subprocess.Popen(command, cwd=Path.cwd(), stdout=subprocess.DEVNULL) as child:
            try:
                while child.poll() is None and size_of(making) <= size:
                    time.sleep(0.001)
            finally:
                child.kill()
        if child.returncode == -signal.SIGKILL and making.exists():
            return
        assert child.returncode in (0, -signal.SIGKILL)
        for path in log.parent.glob(f"{log.name}*"):
            path.unlink()
    pytest.fail("every encode came to its end")


def digest(path):
    """Of all rows of a dump."""
    total = hashlib.sha256()
    with open_dump(path) as dump:
        for layer in dump.layers:
            for stream in (StreamId.K, StreamId.V):
                for start in range(0, dump.tokens, 4096):
                    total.update(dump.rows(layer, stream, start, min(start + 4096, dump.tokens)))
    return total.hexdigest()


def circle(tmp_path, mib, bound):
    dump = big_dump(tmp_path / "chat.safetensors", mib)
    taken = {"encode": run("encode", dump, tmp_path / "whole.kvlog")}
    taken["decode"] = run("decode", tmp_path / "whole.kvlog", tmp_path / "whole.safetensors")
    log = tmp_path / "a.kvlog"
    kill_midway(dump, log, (mib << 20) // 8)
    taken["resume"] = run("encode", dump, log, resume=True)
    os.unlink(dump)
    (tmp_path / "whole.kvlog").unlink()
    wanted = digest(tmp_path / "whole.safetensors")
    (tmp_path / "whole.safetensors").unlink()
    for name in ("b.safetensors", "b.npz", "b.npy"):
        taken[name] = run("decode", log, tmp_path / name)
        assert digest(tmp_path / name) == wanted
        (tmp_path / name).unlink()
    assert max(taken.values()) < bound, taken
    return taken


def test_a_dump_of_128_mib(tmp_path):
    circle(tmp_path, 128, 420)


@pytest.mark.campaign
def test_a_dump_of_2_gib_takes_less_than_600_mib(tmp_path):
    print(circle(tmp_path, 2048, 600))


def test_a_dump_of_npz_is_read_as_it_lies(tmp_path):
    """Memory does not grow with an .npz or .npy dump either."""
    for name in ("chat.npz", "chat.npy"):
        dump = big_dump(tmp_path / name, 128)
        assert run("encode", dump, tmp_path / f"{name}.kvlog") < 420
