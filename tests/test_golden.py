"""Golden logs: their bytes are frozen, the writer makes them again, and each reads, or is rejected, as recorded."""

import hashlib
import json
from pathlib import Path

import pytest

import kvcodec
from kvcodec.errors import FormatError, KvcodecError
from kvcodec.log.recover import Recovery
from tools.golden.catalogue import CASES, REJECTED
from tools.golden.index import make_case, read_all, read_modes, write_golden
from tools.golden.whole import fill

GOLDEN = Path(__file__).resolve().parent / "golden"
INDEX = json.loads((GOLDEN / "index.json").read_text(encoding="utf-8"))
GOOD = [entry for entry in INDEX if "error" not in entry]
BAD = [entry for entry in INDEX if "error" in entry]
FORGED = [case for case in REJECTED if not case.frozen]
KNOWN: set[str] = set()


def by_name(entry):
    return entry["name"]


def params(cases):
    """Cases, those that are known to fail marked so."""
    known = pytest.mark.xfail(strict=True, reason="parts of a record are not compared")
    return [pytest.param(case, id=case.name, marks=[known] if case.name in KNOWN else []) for case in cases]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A directory in which the generator has just written everything."""
    directory = tmp_path_factory.mktemp("golden")
    write_golden(directory)
    return directory


def test_index_names_every_file():
    files = {e["name"] for e in INDEX} | {e["name"] + ".idx" for e in INDEX if "sidecar" in e} | {"index.json"}
    assert {path.name for path in GOLDEN.iterdir()} == files
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) < 1_750_000
    cases = [case for case in CASES if case.frozen]
    assert [e["name"] for e in INDEX] == [f"{case.name}.kvlog" for case in cases]


@pytest.mark.parametrize("entry", INDEX, ids=by_name)
def test_bytes_are_frozen(entry):
    data = (GOLDEN / entry["name"]).read_bytes()
    assert len(data) < 65536
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    if "sidecar" in entry:
        sidecar = (GOLDEN / (entry["name"] + ".idx")).read_bytes()
        assert hashlib.sha256(sidecar).hexdigest() == entry["sidecar"]


@pytest.mark.parametrize("entry", INDEX, ids=by_name)
def test_the_generator_writes_the_same_bytes(entry, fresh):
    for name in [entry["name"], entry["name"] + ".idx"][: 2 if "sidecar" in entry else 1]:
        assert (fresh / name).read_bytes() == (GOLDEN / name).read_bytes(), name


def test_the_generator_writes_the_same_index(fresh):
    assert json.loads((fresh / "index.json").read_text(encoding="utf-8")) == INDEX


@pytest.mark.parametrize("entry", GOOD, ids=by_name)
def test_a_good_log_reads_as_recorded(entry):
    assert read_all(GOLDEN / entry["name"]) == entry["sequences"]


@pytest.mark.parametrize("entry", GOOD, ids=by_name)
def test_a_good_log_can_be_appended_to(entry, tmp_path):
    path = tmp_path / entry["name"]
    path.write_bytes((GOLDEN / entry["name"]).read_bytes())
    lengths = {name: read["tokens"] for name, read in entry["sequences"].items()}
    with kvcodec.open(path, "a") as store:
        for sequence in store:
            fill(sequence, len(sequence), 3, 9)
    after = read_all(path, "absolute")
    assert {name: read["tokens"] for name, read in after.items()} == {n: t + 3 for n, t in lengths.items()}


@pytest.mark.parametrize("entry", [e for e in INDEX if "modes" in e], ids=by_name)
def test_recovery_modes_do_as_recorded(entry):
    assert set(entry["modes"]) == set(Recovery)
    assert read_modes(GOLDEN / entry["name"]) == entry["modes"]


def assert_rejected(path, error, at):
    """The log raises exactly the named error, at opening or at reading, which names a byte or the file."""
    with pytest.raises(KvcodecError) as raised:
        read_all(path)
    assert type(raised.value).__name__ == error
    assert isinstance(raised.value, FormatError)
    assert "at byte " in str(raised.value) or path.name in str(raised.value)
    if at == "open":
        with pytest.raises(KvcodecError):
            kvcodec.open(path).close()
    else:
        kvcodec.open(path).close()


@pytest.mark.parametrize("entry", BAD, ids=by_name)
def test_a_bad_log_is_rejected_by_name(entry):
    assert_rejected(GOLDEN / entry["name"], entry["error"], entry["at"])


@pytest.mark.parametrize("case", params(FORGED))
def test_a_forged_log_is_rejected_by_name(case, tmp_path):
    assert_rejected(make_case(case, tmp_path), case.error, case.at)


@pytest.mark.parametrize("case", params(CASES))
def test_a_writer_opens_what_a_reader_opens(case, tmp_path):
    """Opening for appending is no way around a rejection."""
    path = make_case(case, tmp_path)
    if case.error and case.at == "open":
        before = path.read_bytes()
        with pytest.raises(FormatError):
            kvcodec.open(path, "a")
        assert path.read_bytes() == before
    else:
        kvcodec.open(path, "a").close()


def test_a_model_that_is_not_the_logs(tmp_path):
    path = GOLDEN / "raw.kvlog"
    with pytest.raises(kvcodec.errors.IdentityMismatch, match="raw"):
        kvcodec.open(path, model=kvcodec.Model.uniform(1, 1, 32))
