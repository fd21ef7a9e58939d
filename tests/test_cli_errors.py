"""The command line: errors in one line, exit codes, interrupts, and the progress bar."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kvcodec.cli import failures, output, progress
from kvcodec.cli.app import run
from tests.caches import rows
from tests.test_bulk import names, write_dump
from tests.test_bulk_verify import flipped, inside_record
from tests.test_cli import (
    ENVIRONMENT,
    MAIN,
    call,
    here_fixture,  # noqa: F401
    refused,
)

# -- errors --------------------------------------------------------------------------------------------------------


def test_errors_are_one_line_that_names_file_and_remedy(here, capsys):
    os.mkfifo("fifo")
    log, dump = Path("cache.kvlog"), Path("chat.safetensors")
    assert refused(capsys, "info", "none") == "none: No such file or directory"
    assert refused(capsys, "info", dump).startswith("chat.safetensors: is not a kvcodec log, want")
    assert refused(capsys, "info", "fifo") == "fifo: is not a regular file"
    assert refused(capsys, "verify", "fifo") == "fifo: not a regular file"
    assert refused(capsys, "verify", "none") == "none: cannot open: No such file or directory"
    assert refused(capsys, "encode", "fifo", "x.kvlog") == "fifo: not a regular file"
    assert refused(capsys, "encode", dump, "fifo", "--force") == "fifo: is not a regular file"
    assert refused(capsys, "diff", dump, "fifo") == "fifo: not a regular file"
    assert refused(capsys, "decode", log, "fifo", "--force") == "fifo: not a regular file"
    assert refused(capsys, "encode", log, "x.kvlog") == "cache.kvlog: a kvcodec log, not a dump"
    assert refused(capsys, "encode", dump, "no/x.kvlog") == "no: no such directory"
    assert refused(capsys, "encode", dump, log) == "cache.kvlog: exists already, --force replaces it"
    assert refused(capsys, "decode", log, dump) == "chat.safetensors: exists already, --force replaces it"
    assert "want {layer} once" in refused(capsys, "encode", dump, "x.kvlog", "--map", "k=foo")
    assert "the mapping names k but not v" in refused(capsys, "encode", dump, "x.kvlog", "--map", "k={layer}")
    assert "device 'drum' is unknown" in refused(capsys, "encode", dump, "x.kvlog", "--device", "drum")
    assert "'int9' is unknown, want" in refused(capsys, "encode", dump, "x.kvlog", "--k", "int9")
    assert "no sequence 'x' of: 'chat', --sequence picks one" in refused(capsys, "decode", log, "x", "--sequence", "x")
    assert "recovery mode 'hope'" in refused(capsys, "decode", log, "x", "--recovery", "hope")
    assert "holds a sequence 'chat' already" in refused(capsys, "encode", dump, log, "--append")
    assert refused(capsys, "encode", dump, dump, "x.kvlog", "--sequence", "a").startswith("--sequence names one dump's")
    assert "would both be sequence 'chat'" in refused(capsys, "encode", dump, dump, "x.kvlog")
    assert "want some of 0-1" in refused(capsys, "encode", dump, "x.kvlog", "--layers", "0-7")
    assert "want a range such as 128:512" in refused(capsys, "decode", log, "x", "--tokens", "7")
    assert "exclude each other" in refused(capsys, "decode", log, "x", "--all", "--sequence", "chat")
    assert "format is 'pt'" in refused(capsys, "decode", log, "x", "--format", "pt")
    assert names(here) == ["cache.kvlog", "cache.kvlog.idx", "chat.safetensors", "fifo"]


def test_wrong_use_is_one_line_too(capsys):
    assert refused(capsys) == "Missing command; see kvcodec --help"
    assert refused(capsys, "xyz") == "No such command 'xyz'; see kvcodec --help"
    assert refused(capsys, "encode", "x").endswith("see kvcodec encode --help")
    assert "--residual" in refused(capsys, "encode", "a", "b", "--residual", "-1")
    assert "--frobnicate" in refused(capsys, "info", "a", "--frobnicate")


def test_a_nan_is_named_by_place_and_file(here, capsys):
    k = rows(0, "k", 8)
    k[5, 1, 3] = np.nan
    write_dump(Path("nan.safetensors"), {"k.0": k, "v.0": rows(0, "v", 8)})
    line = refused(capsys, "encode", "nan.safetensors", "x.kvlog")
    assert line.startswith("nan.safetensors: NaN or Inf at layer 0, stream k, token 5, head 1, channel 3")


def test_damage_is_named_by_offset_and_remedy(here, capsys):
    flipped(Path("cache.kvlog"), here, inside_record("cache.kvlog", 2))
    data = bytearray(Path("flipped.kvlog").read_bytes())
    data[:4096] = data[4096:8192] = bytes(4096)
    Path("none.kvlog").write_bytes(data)
    assert "is not a kvcodec log" in refused(capsys, "info", "none.kvlog")
    line = refused(capsys, "decode", "flipped.kvlog", "x", "--recovery", "absolute")
    assert line.startswith("flipped.kvlog: at byte ")
    assert "--recovery skip-damaged" in line


def test_a_name_with_a_line_break_stays_on_one_line(here, capsys):
    assert refused(capsys, "info", "a\nb\x1b[31m").startswith("a\\nb\\x1b[31m: ")
    assert refused(capsys, "info", os.fsdecode(b"a\xff")).startswith("a\\udcff: ")


def test_real_processes_exit_as_promised(here):
    call("verify", "cache.kvlog", code=0)
    call("diff", "chat.safetensors", "cache.kvlog", "--max-error", 0, code=1)
    done = call("info", "none", code=2)
    assert (done.stdout, done.stderr) == ("", "kvcodec: none: No such file or directory\n")
    assert "Traceback" not in call("encode", code=2).stderr


def test_an_interrupt_exits_with_130_and_leaves_nothing(here):
    code = (
        "import os, signal, sys, kvcodec.bulk.encode as e, kvcodec.cli as c\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a job in the background may ignore
        "real = e.encode_dump\n"
        "def encode_dump(*a, **k):\n"
        "    k['progress'] = lambda done, total: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(*a, **k)\n"
        "e.encode_dump = encode_dump\n"
        "sys.argv = ['kvcodec', 'encode', 'chat.safetensors', 'x.kvlog']\n"
        "c.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | ENVIRONMENT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert names(here) == ["cache.kvlog", "cache.kvlog.idx", "chat.safetensors"]


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_closed_pipe_is_no_traceback(here, command):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*MAIN, command, "cache.kvlog"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("command", ["info", "verify"])
@pytest.mark.parametrize("closed", [0, 1, 2])
def test_closed_standard_streams_change_no_exit_code(here, command, closed):
    done = subprocess.run([*MAIN, command, "cache.kvlog"], preexec_fn=lambda: os.close(closed), stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_full_standard_output_is_one_line(here, command):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*MAIN, command, "cache.kvlog"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "kvcodec: standard output: No space left on device\n")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from kvcodec.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"kvcodec: {missing} is missing: pip install 'kvcodec-flash[cli]'\n"


def test_the_command_line_is_light_to_import():
    code = (
        "import sys, kvcodec.cli.app as a; a.run(['encode', '--help'])\n"
        "print([m for m in ('numpy', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# -- progress ------------------------------------------------------------------------------------------------------


def on_a_terminal(code):
    """What `code` writes to a terminal on stderr."""
    own, other = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=other) as child:
        try:
            os.close(other)
            got = b""
            while True:
                try:
                    piece = os.read(own, 4096)
                except OSError:
                    break
                if not piece:
                    break
                got += piece
            assert child.wait(60) == 0
        finally:
            os.close(own)
            child.kill()
    return got.decode()


JOB = (
    "import time\nfrom kvcodec.cli.progress import progress_bar\n"
    "with progress_bar('work', wanted={wanted}) as tell:\n    tell(1, 4); time.sleep({seconds})\n"
)


def test_a_bar_is_shown_for_work_longer_than_a_second():
    assert "work" in on_a_terminal(JOB.format(wanted=True, seconds=1.5))
    assert on_a_terminal(JOB.format(wanted=True, seconds=0.1)) == ""
    assert on_a_terminal(JOB.format(wanted=False, seconds=1.2)) == ""


def test_no_bar_where_stderr_is_no_terminal(capfd):
    with progress.progress_bar("work") as tell:
        tell(1, 2)
        time.sleep(1.1)
    assert capfd.readouterr().err == ""


# -- small parts ---------------------------------------------------------------------------------------------------


def test_sizes_for_readers():
    shown = [output.size(n) for n in (0, 1023, 1024, 9814016, 314048512, 1 << 32, 1 << 62)]
    assert shown == ["0 B", "1023 B", "1.00 KiB", "9.36 MiB", "299.50 MiB", "4.00 GiB", "4096.00 PiB"]
    assert [output.ratio(x) for x in (3.5555, float("nan"), float("inf"))] == ["3.56x", "-", "infx"]


def test_an_unforeseen_error_is_not_hidden(here, monkeypatch):
    import kvcodec.bulk.verify

    def fail(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(kvcodec.bulk.verify, "verify_log", fail)
    with pytest.raises(ZeroDivisionError):
        run(["verify", "cache.kvlog"])


def test_every_error_has_a_line(capsys):
    from kvcodec import errors

    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    other = {
        errors.NonFiniteError: (0, "k", 0, 0, 0), errors.Uncorrectable: (5, 1, 2, "why"),
        errors.ProgramFailed: (1, 2, "path"),
    }  # fmt: skip
    made = [kind(*other.get(kind, (5, "why"))) for kind in kinds]
    for error in made:
        text = failures._describe(error, Path("d"), Path("l"))
        assert text
