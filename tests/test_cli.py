"""The command line: output, exit codes, and errors in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import kvcodec as kv
from kvcodec._version import __version__
from kvcodec.cli import output
from kvcodec.cli.app import app, run
from tests.children import Child
from tests.test_bulk import REAL, TINY, make_dump, names
from tests.test_bulk_verify import flipped, inside_record

README = Path(__file__).parent.parent / "README.md"
COMMANDS = (
    "encode", "decode", "info", "verify", "diff", "drop", "fork", "compact", "train", "drift", "wear", "bench"
)  # fmt: skip
MAIN = [sys.executable, "-c", "from kvcodec.cli import main; main()"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE")}


@pytest.fixture(name="here")
def here_fixture(tmp_path, monkeypatch):
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


def piped(*arguments):
    """What a forked process, with pipes for its output and no terminal anywhere, writes to (stdout, stderr)."""

    def work(write):
        os.environ.pop("FORCE_COLOR", None)
        os.environ.pop("COLUMNS", None)
        os.environ.pop("TTY_COMPATIBLE", None)
        os.dup2(write, 1)
        os.dup2(error, 2)
        sys.stdin, sys.stdout, sys.stderr = open(os.devnull), open(1, "w"), open(2, "w")  # noqa: SIM115
        code = run([str(a) for a in arguments])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    error = os.memfd_create("stderr")
    with open(error, "r+b") as file, Child(work) as child:
        stdout = child.rest().decode()
        assert child.wait() == 0
        file.seek(0)
        return stdout, file.read().decode()


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


def test_parts_formats_and_every_sequence(here):
    invoke("encode", "chat.safetensors", "p.kvlog", "--layers", "1", "--tokens", "100:200", "--threads", 2, "-q")
    assert "100 tokens, 1 layers" in invoke("decode", "p.kvlog", "p.npz").stdout
    assert "20 tokens, 1 layers" in invoke("decode", "p.kvlog", "p.npy", "--tokens", ":20", "--layers", "1").stdout
    with np.load("p.npz") as library:
        assert library["k.1"].shape == (100, 2, 16)
    assert np.load("p.npy").shape == (1, 2, 2, 20, 16)
    make_dump(Path("b.safetensors"), 70)
    out = invoke("encode", "chat.safetensors", "b.safetensors", "two.kvlog").stdout
    assert "sequence chat, 300 tokens" in out
    assert "sequence b, 70 tokens" in out
    assert "the whole log, 2 sequences:" in out
    told = json.loads(invoke("encode", "chat.safetensors", "b.safetensors", "3.kvlog", "--json").stdout)
    assert [one["sequence"] for one in told["sequences"]] == ["chat", "b"]
    assert told["stats"]["sequences"]
    out = invoke("decode", "two.kvlog", "all", "--all", "--format", "npy").stdout
    assert out.startswith("all/chat.npy: sequence chat, 300 tokens")
    assert names("all") == ["b.npy", "chat.npy"]
    told = json.loads(invoke("decode", "two.kvlog", "all", "--all", "--json").stdout)
    assert [one["dump"] for one in told["dumps"]] == ["all/chat.safetensors", "all/b.safetensors"]


def test_resume(here):
    with pytest.raises(ZeroDivisionError):
        kv.encode("chat.safetensors", "r.kvlog", resume=True, residual=16, device=TINY, progress=lambda *at: 1 / 0)
    assert Path(".r.kvlog.encoding").exists()
    invoke("encode", "chat.safetensors", "r.kvlog", "--resume", "--residual", 16, "--device", TINY)
    assert names(here) == sorted([*(f"{n}.kvlog{s}" for n in ("cache", "r") for s in ("", ".idx")), "chat.safetensors"])
    out = invoke("encode", "chat.safetensors", "r.kvlog", "--append", "--resume").stdout
    assert "300 of the tokens were there already" in out


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


def test_verify_repairs_into_a_new_log(here):
    assert "nothing was lost" in invoke("verify", "cache.kvlog", "--repair", "same.kvlog").stdout
    kv.encode("chat.safetensors", "tiny.kvlog", device=TINY, sequence="chat", residual=16)
    bad = flipped(Path("tiny.kvlog"), here, inside_record("tiny.kvlog", 2))
    out = invoke("verify", bad.name, "--repair", "saved.kvlog", code=1).stdout
    assert "what could be read was saved" in out
    assert "Lost rows" in out
    assert "saved.kvlog: clean" in invoke("verify", "saved.kvlog").stdout
    assert "exists already" in invoke("verify", bad.name, "--repair", "saved.kvlog", code=2).stderr
    report = json.loads(invoke("verify", bad.name, "--repair", "saved.kvlog", "--force", "--json", code=1).stdout)
    (sequence,) = report["sequences"]
    assert sequence["saved_tokens"] + sequence["lost_tokens"] == sequence["tokens"]
    assert "take the place" in invoke("verify", bad.name, "--repair", bad.name, "--force", code=2).stderr
    assert "--repair" in invoke("verify", bad.name, "--force", code=2).stderr
    assert "want a log" in invoke("verify", "chat.safetensors", "--repair", "x.kvlog", code=2).stderr


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
        ("fork", "cache.kvlog", "chat", "new"),
        ("drop", "cache.kvlog", "chat"),
        ("compact", "cache.kvlog"),
    ],
)
def test_json_is_one_object_and_nothing_else(here, arguments):
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1

    def refuse(name):
        raise AssertionError(name)

    assert isinstance(json.loads(result.stdout, parse_constant=refuse), dict)


def test_sequences_are_forked_dropped_and_compacted(here):
    assert "256 tokens of chat" in invoke("fork", "cache.kvlog", "chat", "new", "--keep", 256).stdout
    with kv.open("cache.kvlog") as store:
        wanted = store.sequence("new").read(0)
    assert "tokens 0 to 63 evicted" in invoke("drop", "cache.kvlog", "new", "--tokens", ":64").stdout
    assert "cut to 200 tokens" in invoke("drop", "cache.kvlog", "new", "--keep", 200).stdout
    assert "sequence chat, dropped" in invoke("drop", "cache.kvlog", "chat").stdout
    assert "blocks erased" in invoke("compact", "cache.kvlog").stdout
    scrubbed = invoke("compact", "cache.kvlog", "--scrub", "--faults", "seed=1,flips=1e-5", "--json").stdout
    assert json.loads(scrubbed)["blocks_scrubbed"] == 0
    assert "0 blocks scrubbed" in invoke("compact", "cache.kvlog", "--scrub").stdout
    with kv.open("cache.kvlog") as store:
        assert store.sequences() == ["new"]
        for got, own in zip(store.sequence("new").read(0), wanted, strict=True):
            assert np.array_equal(got.view(np.uint16), own[64:200].view(np.uint16))
    assert "clean" in invoke("verify", "cache.kvlog").stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("drop", "cache.kvlog", "none"), "holds no sequence 'none'"),
        (("drop", "cache.kvlog", "chat", "--tokens", "5"), "want FIRST:END"),
        (("drop", "cache.kvlog", "chat", "--tokens", "5:2"), "to be evicted"),
        (("drop", "cache.kvlog", "chat", "--tokens", "5:9", "--keep", "3"), "exclude each other"),
        (("drop", "cache.kvlog", "chat", "--keep", "9999999"), "tokens to be left"),
        (("fork", "cache.kvlog", "chat", "chat"), "already"),
        (("fork", "cache.kvlog", "none", "b"), "holds no sequence 'none'"),
        (("fork", "cache.kvlog", "chat", "b", "--keep", "9999999"), "a fork at token"),
    ],
)
def test_what_cannot_be_forgotten_leaves_the_log_as_it_is(here, arguments, why):
    before = Path("cache.kvlog").read_bytes()
    assert why in invoke(*arguments, code=2).stderr
    with kv.open("cache.kvlog") as store:
        assert store.sequences() == ["chat"]
    assert Path("cache.kvlog").read_bytes()[: len(before)] == before


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
        stdout, stderr = piped(*arguments)
        assert "\x1b" not in stdout
        assert stderr == ""
        tables = [line for line in stdout.splitlines() if str(REAL) not in line]
        assert max(map(len, tables)) <= 80
        assert all(line == line.rstrip() for line in tables)


def test_a_long_name_is_folded_not_cut(here):
    name = "conversation-" * 12
    invoke("encode", "chat.safetensors", "x.kvlog", "--sequence", name, "-q")
    for command in ("info", "verify"):
        text = piped(command, "x.kvlog")[0]
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
    lines = [line for block in shown for line in block.splitlines()]
    assert set(COMMANDS) - {"bench", "train", "drift", "drop", "fork", "compact"} == {
        line.split()[2] for line in lines if line[0:1] == "$"
    }


def test_the_readme_examples_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    names_of_example: dict[str, object] = {}
    for example in text.split("```python\n")[1:]:
        exec(example.split("```")[0], names_of_example)
    assert names_of_example["k"].shape == (100, 8, 128)
    assert names_of_example["y"].shape == (32, 128)
    assert len(text.splitlines()) < 185
    assert "install kvcodec" not in text.replace("kvcodec-flash", "")


def test_wear_of_a_log(here):
    found = json.loads(invoke("wear", "cache.kvlog", "--json", "--capacity", "1TB").stdout)
    with kv.open("cache.kvlog") as store:
        stats = store.stats()
    own, life = found["amplification"], found["life"]
    assert own["programmed_bytes"] == stats.programmed_bytes
    assert own["total"] == pytest.approx(stats.write_amplification)
    assert own["total"] == pytest.approx(own["format"] * own["padding"] * own["cleaning"])
    assert life["programmed_bytes_per_token"] == stats.programmed_bytes / stats.sequences[0].tokens
    assert life["tbw_bytes"] == pytest.approx(1e12 * 3000 / own["total"])
    assert life["tokens_until_death"] == pytest.approx(1e12 * 3000 / life["programmed_bytes_per_token"])
    worn = json.loads(invoke("wear", "cache.kvlog", "--json", "--device", "qlc", "--tokens-per-second", 100).stdout)
    assert worn["life"]["years_of_life"] == pytest.approx(life["years_of_life"] / 6)
    text = invoke("wear", "cache.kvlog").stdout
    assert "years of life" in text
    assert "estimated" in text


def test_wear_before_there_is_a_log():
    wanted = ["wear", "--model", "32x8x128", "--tokens", 1024]
    raw, coded = (
        json.loads(invoke(*wanted, "--k", k, "--v", v, "--residual", 0, "--json").stdout)
        for k, v in (("raw", "raw"), ("int4/channel/g64", "int4/token/g64"))
    )
    assert raw["life"]["programmed_bytes_per_token"] >= 131_072
    assert coded["amplification"]["total"] <= 1.05
    assert 3.2 < coded["life"]["years_of_life"] / raw["life"]["years_of_life"] < 3.6
    small = ["wear", "--model", "1x2x64", "--device", "page=2048,unit=512,block=16384", "--blocks", 32]
    text = invoke(*small, "--tokens", 256, "--drop", "oldest", "--fill", 0.7, "--residual", 0).stdout
    assert "steady since" in text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "a log or of a --model"), (("cache.kvlog", "--model", "1x1x64"), "a log or of a --model"),
        (("--model", "32x8"), "layers x KV heads"), (("--model", "0x1x64"), "layers x KV heads"),
        (("--model", "1x1x64", "--k", "pq"), "budget"), (("--model", "1x1x64", "--durability", "no"), "durability"),
        (("--model", "1x1x64", "--capacity", "much"), "capacity 'much'"),
        (("--model", "1x1x64", "--drop", "best"), "oldest or random"), (("none.kvlog",), "No such file"),
    ],
)  # fmt: skip
def test_wear_that_cannot_be_told_is_one_line(arguments, why, capsys):
    assert run(["wear", *arguments]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
