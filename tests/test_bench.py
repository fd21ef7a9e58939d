"""The bench: what it prints and writes, how ratios come about, and that nothing wrong is ever timed."""

import builtins
import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from kvcodec.bench.attention_data import attend, make_cache, make_values
from kvcodec.bench.attention_peers import enter_attention, enter_scores
from kvcodec.bench.bandwidth import Probes, allocate_words, read_stream, read_streams, write_words_past_caches
from kvcodec.bench.codec_rows import codec_rows
from kvcodec.bench.peers import NAMES, find_peers
from kvcodec.bench.product_codec_rows import product_codec_rows
from kvcodec.bench.pursuit_peers import enter_pursuits, make_problem
from kvcodec.bench.report import Report, RowResult, Timing
from kvcodec.bench.row import OURS, READ, WRITE, Absent, Contender, Row, WrongResult, require_close
from kvcodec.bench.run import choose_rows, list_rows, run_bench, run_row
from kvcodec.bench.scale import FULL, QUICK, Scale
from kvcodec.bench.table import format_duration, format_markdown, format_rows
from kvcodec.bench.timing import time_in_turns
from kvcodec.cli.app import run
from kvcodec.errors import SpecError

if importlib.import_module("numba").config.DISABLE_JIT:
    pytest.skip("only compiled kernels are worth a bench", allow_module_level=True)

NOBODY = find_peers(())
TINY = Scale(
    cached_tokens=64, memory_tokens=64, context=128, score_tokens=64, long_context=64, probe_bytes=1 << 16,
    dump_bytes=1 << 20, records=64, rounds=2, least_rounds=1, row_seconds=0.01, batch_seconds=1e-4,
)  # fmt: skip


class Clock:
    """Time that passes only when work is done."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def __call__(self):
        return self.now

    def work(self, name, seconds):
        def run():
            self.calls.append(name)
            self.now += seconds() if callable(seconds) else seconds

        return run


def timing(name, seconds, units=1, moved=0, probe=None):
    return Timing(name, units, moved, READ if probe is not None else "", np.array(seconds), probe)


def make_row(*entries, name="a-row", **options):
    return Row(name, "work", "1 thing", "thing", lambda _peers, _folder: entries, **options)


def probes(size=1 << 16):
    return Probes(size, lambda ways: next(iter(ways)))


# -- time ----------------------------------------------------------------------------------------------------------


def test_contenders_take_turns():
    clock = Clock()
    seconds = time_in_turns([clock.work("a", 1.0), clock.work("b", 2.0)], Scale(rounds=3, row_seconds=100), clock)
    assert clock.calls == ["a", "b"] * 4  # one to see how long each takes
    assert seconds.tolist() == [[1.0] * 3, [2.0] * 3]


def test_short_runs_are_repeated_after_one_that_does_not_count():
    clock = Clock()
    scale = Scale(rounds=1, batch_seconds=0.25, row_seconds=100)
    seconds = time_in_turns([clock.work("a", 0.125), clock.work("b", 1.0)], scale, clock)
    assert clock.calls == ["a", "b", "a", "a", "a", "b"]
    assert seconds.tolist() == [[0.125], [1.0]]


@pytest.mark.parametrize(("row_seconds", "rounds"), [(0.5, 5), (8.0, 8), (1000.0, 21)])
def test_rounds_fit_the_time_that_a_row_may_take(row_seconds, rounds):
    clock = Clock()
    assert time_in_turns([clock.work("a", 1.0)], Scale(row_seconds=row_seconds), clock).shape == (1, rounds)


# -- figures -------------------------------------------------------------------------------------------------------


def test_a_ratio_is_the_median_of_the_ratios_of_each_turn():
    ours = timing(OURS, [1.0, 10.0, 2.0], units=4)  # a slow turn slows both
    peer = timing("peer", [3.0, 30.0, 4.0], units=2)
    row = RowResult("r", "what", "shape", "thing", (ours, peer))
    assert row.ratio(peer) == 6.0
    assert row.ratio(ours) == 1.0
    assert ours.ns_per_unit == 2.0 / 4 * 1e9
    assert RowResult("r", "what", "shape", "thing", (peer,)).ratio(peer) is None


def test_a_share_is_of_the_bandwidth_in_the_same_turns():
    probe = np.array([1.0, 10.0, 1.0]) / 1e9  # seconds a byte
    found = timing(OURS, [2.0, 20.0, 4.0], moved=10**9, probe=probe)
    assert found.share == 0.5
    assert found.gb_per_s == 0.25
    assert timing(OURS, [2.0]).share is None
    assert timing(OURS, [2.0]).gb_per_s is None


def test_a_row_is_timed_with_its_probes_and_says_who_is_absent():
    clock = Clock()
    ours = Contender(OURS, clock.work("ours", 1.0), 8, 1000, READ)
    peer = Contender("peer", clock.work("peer", 3.0), 8, 2000, WRITE)
    yardsticks = probes()
    yardsticks.read, yardsticks.write = clock.work("read", 0.5), clock.work("write", 0.25)
    row = make_row(ours, Absent("other", "why"), peer)
    found = run_row(row, NOBODY, yardsticks, Scale(rounds=2, row_seconds=100), clock=clock)
    assert clock.calls[2:] == ["ours", "peer", "read", "write"] * 3
    assert [t.share for t in found.timings] == [1000 / yardsticks.size * 0.5, 2000 / yardsticks.size * 0.25 / 3]
    assert found.ratio(found.timings[1]) == 3.0
    assert found.absent == (Absent("other", "why"),)
    assert found.error is None


# -- what is wrong is not timed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [OURS, "peer"])
def test_a_wrong_result_of_anyone_stops_the_row(name):
    def check():
        require_close(name, np.array([1.0, 2.5]), np.array([1.0, 2.0]), 0.1)

    runs = []
    entries = [
        Contender(n, lambda: runs.append(1), 1, check=check if n == name else lambda: None) for n in (OURS, "peer")
    ]
    found = run_row(make_row(*entries), NOBODY, probes(), TINY)
    assert found.error == f"{name}: relative error of the result is 0.22, want at most 0.1"
    assert found.timings == ()
    assert len(runs) <= 2
    assert Report({}, {}, True, (found,)).bad
    assert f"  WRONG {found.error}" in format_rows([found])


@pytest.mark.parametrize("found", [[np.nan, 2.0], [1.0, np.inf], [1.0, 2.0, 3.0]])
def test_close_is_finite_and_of_the_same_shape(found):
    with pytest.raises(WrongResult):
        require_close("a", np.array(found), np.array([1.0, 2.0]), 0.1)


def test_a_codec_that_loses_more_than_a_step_is_found_out(monkeypatch):
    from kvcodec.codecs.grouped import GroupedCodec

    right = GroupedCodec.decode

    def decode(self, *arguments, **options):
        rows = right(self, *arguments, **options)
        rows[3, 0, 5] += 10
        return rows

    monkeypatch.setattr(GroupedCodec, "decode", decode)
    for row in codec_rows(TINY):
        assert "steps from what was coded" in run_row(row, NOBODY, probes(), TINY).error


# -- peers ---------------------------------------------------------------------------------------------------------


def test_peers_that_were_not_asked_for_are_absent():
    assert NOBODY.versions() == dict.fromkeys(NAMES, "absent: not asked for")
    assert NOBODY.enter("ggml", "ggml q4_0", lambda _: pytest.fail("an absent peer")) == Absent(
        "ggml q4_0", "not asked for"
    )
    with pytest.raises(SpecError, match="peer 'cuda', want some of ggml, torch, numpy"):
        find_peers(["numpy", "cuda"])


def test_peers_that_are_not_installed_are_absent_and_say_how_to_install_them(monkeypatch):
    for name in ("llama_cpp", "torch", "threadpoolctl", "faiss"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    versions = find_peers().versions()
    assert set(versions) == set(NAMES)
    for text in versions.values():
        assert text.startswith("absent: ")
        assert text.endswith("pip install 'kvcodec-flash[bench]'")


def test_a_library_that_is_not_what_was_expected_is_absent(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    spec = importlib.machinery.ModuleSpec("llama_cpp", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    assert "no libggml-base in" in find_peers(["ggml"]).absent["ggml"]


@pytest.mark.parametrize("name", NAMES)
def test_peers_agree_where_they_are_installed(name):
    peers = find_peers([name])
    if name in peers.absent:
        pytest.skip(peers.absent[name])
    q, k, _ = make_cache(1, 1, 128)
    entries = [*enter_attention(peers, make_cache(4, 2, 640)), *enter_scores(peers, q[0], k[0])]
    entries += [e for row in codec_rows(TINY) for e in row.prepare(peers, None)]
    entries += enter_pursuits(peers, make_problem(64, 16, 20, 3))
    entries += [e for row in product_codec_rows(TINY) for e in row.prepare(peers, None)] if name == "faiss" else []
    shown = {"spams": "SPAMS", "sklearn": "scikit-learn", "faiss": "FAISS"}.get(name, name)
    mine = [e for e in entries if isinstance(e, Contender) and e.name.startswith(shown)]
    assert mine
    for entry in mine:
        entry.run()
        entry.check()


def test_attention_of_a_handful_of_numbers():
    q, k, v = np.array([[2.0, 0], [0, 2]]), np.array([[[1.0, 0], [0, 1]]]), np.array([[[1.0, 2], [3, 4]]])
    e = np.exp(np.sqrt(2))
    weights = np.array([[e, 1], [1, e]]) / (e + 1)
    assert np.allclose(attend(q, k, v), weights @ v[0])
    assert np.array_equal(make_values(1, 8192 + 64, 1)[0, 8192:], make_values(1, 8192, 1)[0, :64])


# -- memory --------------------------------------------------------------------------------------------------------


def test_bandwidth_kernels_read_and_write_every_word():
    words = allocate_words(1 << 16)
    assert words.ctypes.data % 4096 == 0
    words[:] = np.arange(len(words), dtype=np.uint64) ** 2
    assert read_stream(words) == read_streams(words) == words.sum()
    write_words_past_caches(words, np.uint64(7))
    assert (words == 7).all()


# -- whole runs ----------------------------------------------------------------------------------------------------


def test_rows_have_names_of_their_own_and_are_chosen_by_them():
    rows = list_rows(FULL)
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert names == [row.name for row in list_rows(QUICK)]
    assert {row.name for row in choose_rows(rows, None, quick=True)} < set(names)
    assert [row.name for row in choose_rows(rows, "bandwidth-*", quick=True)] == [
        "bandwidth-read", "bandwidth-write", "bandwidth-copy",
    ]  # fmt: skip
    assert [row.name for row in choose_rows(rows, "start-inf", quick=True)] == ["start-info"]
    with pytest.raises(SpecError, match="no row is called 'x'; there are bandwidth-read, "):
        choose_rows(rows, "x", quick=False)


def test_the_bench_as_json(monkeypatch, capsys):
    monkeypatch.setattr("kvcodec.bench.run.QUICK", TINY)
    assert run(["bench", "--quick", "--peers", "", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"machine", "peers", "quick", "rows"}
    assert {"processor", "SIMD", "numba", "numpy", "kvcodec"} <= set(found["machine"])
    assert found["peers"] == dict.fromkeys(NAMES, "absent: not asked for")
    assert found["quick"] is True
    assert [row["name"] for row in found["rows"]] == [r.name for r in choose_rows(list_rows(TINY), None, quick=True)]
    for row in found["rows"]:
        assert set(row) == {"name", "what", "shape", "unit", "contenders", "absent", "error"}
        assert row["error"] is None
        assert row["contenders"] or row["absent"]
        for one in row["contenders"]:
            assert set(one) == {"name", "ns_per_unit", "gb_per_s", "bound", "share_of_bandwidth", "ratio", "rounds"}
            assert one["ns_per_unit"] > 0
            assert one["rounds"] >= 1
            assert (one["share_of_bandwidth"] is None) == (one["bound"] is None)
        ratios = {one["name"]: one["ratio"] for one in row["contenders"]}
        if OURS in ratios:
            assert ratios.pop(OURS) == 1
            assert all(ratio > 0 for ratio in ratios.values())
        else:
            assert set(ratios.values()) == {None}
        if row["name"].startswith(("quantize", "dequantize")):
            assert row["contenders"][0]["name"] == OURS


@pytest.mark.parametrize("only", ["start-info", "start-encode", "open-scan", "encode-threads"])
def test_slow_rows_run_when_they_are_named(monkeypatch, tmp_path, only):
    monkeypatch.setattr("kvcodec.bench.run.QUICK", TINY)
    steps = []
    report = run_bench(only=only, quick=True, peers=(), scratch=tmp_path, progress=lambda *s: steps.append(s))
    assert all(row.error is None for row in report.rows)
    assert all(row.ours for row in report.rows)
    assert steps[-1] == (len(report.rows),) * 2
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_a_dump_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr("kvcodec.bench.command_rows.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1 << 20}))
    (row,) = choose_rows(list_rows(TINY), "encode-threads", quick=True)
    (entry,) = row.prepare(NOBODY, tmp_path)
    assert entry == Absent(OURS, f"{tmp_path} has 1 MiB left, want 4")


def test_a_wrong_row_is_told_and_exits_with_1(monkeypatch, capsys):
    def refuse():
        raise WrongResult("peer: nonsense")

    rows = [
        make_row(Contender(OURS, lambda: None, 1)),
        make_row(Contender("peer", lambda: None, 1, check=refuse), name="b"),
    ]
    monkeypatch.setattr("kvcodec.bench.run.list_rows", lambda _: rows)
    assert run(["bench", "--quick", "--peers", ""]) == 1
    out = capsys.readouterr().out
    assert "  WRONG peer: nonsense" in out
    assert "a-row: work, 1 thing" in out
    assert re.search(r"ggml +absent: not asked for", out)


def test_wrong_use(monkeypatch, capsys):
    for arguments, text in (
        (["--only", "x"], "kvcodec: no row is called 'x'"),
        (["--peers", "cuda"], "kvcodec: peer 'cuda', want some of ggml, torch, numpy"),
        (["--quick", "--only", "start-info", "--scratch", "/nowhere"], "kvcodec: /nowhere"),
    ):
        assert run(["bench", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith(text)
        assert error.count("\n") == 1
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert run(["bench"]) == 2
    assert "only compiled kernels" in capsys.readouterr().err


# -- tables and plots ----------------------------------------------------------------------------------------------


def a_report():
    probe = np.array([0.5]) / 1e9
    timings = (timing(OURS, [1.0], 10**9, 10**9, probe), timing("peer", [2.5], 10**9))
    row = RowResult("r", "what", "shape", "value", timings, (Absent("other", "why: how"),))
    return Report({"processor": "abacus"}, {"ggml": "1"}, False, (row,))


def test_tables():
    assert format_rows(a_report().rows) == [
        "  by       time            GB/s  of bandwidth  ratio",
        "r: what, shape",
        "  kvcodec  1 ns a value    1.00     50 % read  1.00x",
        "  peer     2.5 ns a value     -             -  2.50x",
        "  other absent: why: how",
    ]
    text = "\n".join(format_markdown(a_report()))
    assert "| r | what, shape | kvcodec | 1 ns a value | 1.00 | 50 % read | 1.00x |" in text
    assert "|  |  | peer | 2.5 ns a value | - | - | 2.50x |" in text
    assert "|  |  | other | absent |  |  |  |" in text
    assert "| processor | abacus |" in text
    assert [format_duration(x) for x in (0.951, 1234.0, 5.1e6, 2.5e9)] == ["0.951 ns", "1.23 µs", "5.1 ms", "2.5 s"]


def test_a_plot_needs_matplotlib_before_anything_is_measured(monkeypatch, capsys, tmp_path):
    original = builtins.__import__
    monkeypatch.setattr("kvcodec.bench.run.run_bench", lambda **_: pytest.fail("it was measured"))
    monkeypatch.setattr("importlib.import_module", lambda name: original("no_such_module"))
    assert run(["bench", "--plot", str(tmp_path / "a.png")]) == 2
    assert capsys.readouterr().err == "kvcodec: --plot needs matplotlib: pip install 'kvcodec-flash[bench]'\n"


def test_a_plot(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("kvcodec.bench.run.run_bench", lambda **_: a_report())
    path = tmp_path / "a.svg"
    assert run(["bench", "--plot", str(path)]) == 0
    assert path.read_text().startswith("<?xml")
    assert run(["bench", "--plot", str(path)]) == 2
    assert "exists already, --force replaces it" in capsys.readouterr().err
    assert run(["bench", "--plot", str(path), "--force"]) == 0
    assert run(["bench", "--plot", str(tmp_path / "a.xyz")]) == 2
    monkeypatch.setattr("kvcodec.bench.run.run_bench", lambda **_: Report({}, {}, False, ()))
    assert run(["bench", "--plot", str(tmp_path / "b.svg")]) == 2
    assert "no row has both" in capsys.readouterr().err
    assert not (tmp_path / "b.svg").exists()


@pytest.mark.parametrize("path", sorted((Path(__file__).parent.parent / "bench").glob("*.py")), ids=lambda p: p.stem)
def test_a_script_finds_what_it_imports(path):
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
