"""The command line: output, exit codes, and errors in one line."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import kvcodec as kv
from kvcodec._version import __version__
from kvcodec.cli import failures, output, progress
from kvcodec.cli.app import app, run
from tests.caches import rows
from tests.test_bulk import REAL, TINY, flipped, inside_record, make_dump, names, write_dump

README = Path(__file__).parent.parent / "README.md"
COMMANDS = ("encode", "decode", "info", "verify", "diff")
MAIN = [sys.executable, "-c", "from kvcodec.cli import main; main()"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE")}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with chat.safetensors and its cache.kvlog, and in it."""
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.chdir(tmp_path)
    make_dump(Path("chat.safetensors"))
    kv.encode("chat.safetensors", "cache.kvlog", residual=16)
    return tmp_path


def invoke(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def call(*arguments, code=0):
    """A real process."""
    env = ENVIRONMENT | {"PYTHONPATH": os.environ.get("PYTHONPATH", str(Path.cwd()))}
    done = subprocess.run([*MAIN, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == code, done
    return done


def refused(capsys, *arguments):
    """The one line that wrong use or unreadable input gets."""
    assert run([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvcodec: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("kvcodec: ").rstrip("\n")


# -- what commands print -------------------------------------------------------------------------------------------


def test_the_version_and_the_help():
    assert invoke("--version").stdout == f"kvcodec {__version__}\n"
    text = invoke("--help").stdout
    assert all(command in text for command in COMMANDS)
    assert "Exit codes: 0 fine" in text
    for command in COMMANDS:
        text = invoke(command, "--help").stdout
        assert f"Example: kvcodec {command} " in text
        assert "--json" in text


def test_encode_prints_tokens_layers_and_ratios(here):
    out = invoke("encode", REAL, "real.kvlog").stdout
    assert "512 tokens, 3 layers" in out
    assert "0.5625 bytes a number" in out
    for line, ratio in (("codes + metadata", "3.56x"), ("programmed", "1.71x"), ("file", "1.66x")):
        assert any(row.startswith(line) and row.endswith(ratio) for row in out.splitlines())
    assert "two sequences" not in out
    again = invoke("encode", "chat.safetensors", "cache.kvlog", "--append", "--sequence", "b").stdout
    assert "the whole log, 2 sequences:" in again


def test_options_of_encode_arrive(here):
    invoke(
        "encode", "chat.safetensors", "x.kvlog", "--k", "int4/channel/g32", "--v", "raw", "--residual", 0,
        "--sinks", 1, "--device", "slc", "--sequence", "x", "--dtype", "bfloat16", "--quiet",
    )  # fmt: skip
    with kv.open("x.kvlog") as store:
        policy = store.index.sequences[1].info.policy
        assert store.sequences() == ["x"]
        assert store.device.geometry.name == "slc"
        assert [str(r.policy.spec) for r in policy.rules] == ["int4/channel/g32", "raw"]
        assert {(r.policy.residual, r.policy.sinks) for r in policy.rules} == {(0, 1)}


def test_decode_and_diff(here):
    assert (
        "300 tokens, 2 layers, float32" in invoke("decode", "cache.kvlog", "b.safetensors", "--dtype", "float32").stdout
    )
    invoke("decode", "cache.kvlog", "b.safetensors", "--force")
    invoke("diff", "b.safetensors", "cache.kvlog", "--max-error", 0)
    out = invoke("diff", "chat.safetensors", "b.safetensors", "--max-error", 0.01, code=1).stdout
    assert ": above 0.01" in out
    assert "not above 0.5" in invoke("diff", "chat.safetensors", "cache.kvlog", "--max-error", 0.5).stdout
    assert "Attention" not in out


def test_diff_of_a_real_dump_shows_attention(here):
    invoke("encode", REAL, "channel.kvlog", "-q")
    invoke("encode", REAL, "token.kvlog", "--k", "int4/token/g64", "-q")
    totals = {}
    for name in ("channel", "token"):
        text = invoke("diff", REAL, f"{name}.kvlog").stdout
        table = text[text.index("Attention") :].splitlines()
        k_only = table[1].split("  ")
        assert "K only" in " ".join(k_only)
        by_layer = {line.split()[0]: float(line.split()[3]) for line in table[2:]}
        assert set(by_layer) == {"5", "8", "17", "all"}
        totals[name] = by_layer
    assert all(totals["channel"][layer] < totals["token"][layer] for layer in totals["token"])


def test_info_shows_sizes_and_wear(here):
    out = invoke("info", "cache.kvlog").stdout
    with kv.open("cache.kvlog") as store:
        stats = store.stats()
    assert output.size(stats.file_bytes) in out
    assert f"{stats.write_amplification:.3f} = format" in out
    assert "0, at most 0 of 3000 cycles of a block" in out
    assert "k=int4/channel/g64" in out


def test_verify_says_what_is_wrong(here):
    assert "cache.kvlog: clean" in invoke("verify", "cache.kvlog").stdout
    kv.encode("chat.safetensors", "tiny.kvlog", device=TINY, sequence="chat", residual=16)
    bad = flipped(Path("tiny.kvlog"), here, inside_record("tiny.kvlog", 2))
    out = invoke("verify", bad.name, code=1).stdout
    assert "flipped.kvlog: damaged" in out
    assert "Byte ranges" in out
    assert invoke("verify", bad.name, "--quiet", code=1).stdout == ""
    assert "unreadable" in invoke("verify", "chat.safetensors", code=1).stdout
    saved = invoke("decode", bad.name, "b.safetensors", "--recovery", "skip-damaged").stdout
    assert "left out: tokens" in saved


@pytest.mark.parametrize(
    "arguments",
    [
        ("encode", "chat.safetensors", "x.kvlog"),
        ("decode", "cache.kvlog", "x.safetensors"),
        ("info", "cache.kvlog"),
        ("verify", "cache.kvlog"),
        ("diff", "chat.safetensors", "cache.kvlog"),
        ("diff", "chat.safetensors", "chat.safetensors"),
        ("verify", "chat.safetensors"),
        ("diff", REAL, REAL),
    ],
)
def test_json_is_one_object_and_nothing_else(here, arguments):
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1

    def refuse(name):
        raise AssertionError(name)

    assert isinstance(json.loads(result.stdout, parse_constant=refuse), dict)


def test_json_of_an_empty_log_has_no_nan(here):
    make_dump(Path("empty.safetensors"), 0)
    invoke("encode", "empty.safetensors", "e.kvlog", "--json")
    assert json.loads(invoke("info", "e.kvlog", "--json").stdout)["bytes_per_number"] is None
    assert "-" in invoke("info", "e.kvlog").stdout


def test_piped_output_is_plain_and_fits_80_columns(here):
    for arguments in (
        ("info", "cache.kvlog"),
        ("verify", "cache.kvlog"),
        ("encode", "chat.safetensors", "x.kvlog"),
        ("decode", "cache.kvlog", "x.safetensors"),
        ("diff", "chat.safetensors", "cache.kvlog"),
        ("diff", REAL, REAL),
    ):
        done = call(*arguments)
        assert "\x1b" not in done.stdout + done.stderr
        assert done.stderr == ""
        tables = [line for line in done.stdout.splitlines() if str(REAL) not in line]
        assert max(map(len, tables)) <= 80
        assert all(line == line.rstrip() for line in tables)


def test_a_long_name_is_folded_not_cut(here):
    name = "conversation-" * 12
    invoke("encode", "chat.safetensors", "x.kvlog", "--sequence", name, "-q")
    for command in ("info", "verify"):
        text = call(command, "x.kvlog").stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_markup_in_a_name_is_text(here):
    invoke("encode", "chat.safetensors", "x.kvlog", "--sequence", "[red]a[/red] :smile:", "-q")
    assert "[red]a[/red] :smile:" in invoke("info", "x.kvlog").stdout.replace("\n", " ")


# -- the README ----------------------------------------------------------------------------------------------------


def test_the_readme_shows_what_the_commands_print(tmp_path, monkeypatch):
    (tmp_path / "tests").symlink_to(REAL.parent.parent)
    monkeypatch.chdir(tmp_path)
    shown = [block.split("```")[0] for block in README.read_text().split("```console\n")[1:]]
    printed = [""] * len(shown)
    for n, block in enumerate(shown):
        for line in block.splitlines():
            if line.startswith("$ kvcodec "):
                command, _, tail = line.removeprefix("$ kvcodec ").partition(" | tail -")
                lines = invoke(*command.split()).stdout.strip("\n").splitlines()
                printed[n] += "\n".join([line, *lines[-int(tail or 0) :]]) + "\n"
    if os.environ.get("KVCODEC_WRITE_README"):
        text = README.read_text()
        for old, new in zip(shown, printed, strict=True):
            text = text.replace(old, new)
        README.write_text(text)
    assert printed == shown
    assert set(COMMANDS) == {line.split()[2] for block in shown for line in block.splitlines() if line[0:1] == "$"}


def test_the_readme_example_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    names_of_example: dict[str, object] = {}
    exec(text.split("```python\n")[1].split("```")[0], names_of_example)
    assert names_of_example["k"].shape == (100, 8, 128)
    assert len(text.splitlines()) < 120
    assert "pip install kvcodec" not in text


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


def test_a_closed_pipe_is_no_traceback(here):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*MAIN, "info", "cache.kvlog"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


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
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=other)
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
    os.close(own)
    assert child.wait() == 0
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
    made = [kind(0, "k", 0, 0, 0) if kind is errors.NonFiniteError else kind(5, "why") for kind in kinds]
    for error in made:
        text = failures._describe(error, Path("d"), Path("l"))
        assert text
    assert signal.SIGINT.value == 2
