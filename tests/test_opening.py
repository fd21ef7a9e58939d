"""Opening by the thousand gives what opening frame by frame and record by record gives, errors included."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.cli import output, tables
from kvcodec.codecs import codec_for
from kvcodec.codecs.rows import GroupedRows, codes_rows
from kvcodec.codecs.sizes import head_sections, step_row_bytes
from kvcodec.errors import KvcodecError
from kvcodec.flash.device import Device
from kvcodec.layout import GROUP_HEADER, SIDECAR_ENTRY, STEP_HEADER, Kind, StreamId
from kvcodec.log import walk as walk_module
from kvcodec.log.frame import new_record
from kvcodec.log.located import PLACE, RecordTable, join_records
from kvcodec.log.reader import Log
from kvcodec.log.recover import Recovery
from kvcodec.spec import CodecSpec
from kvcodec.store import index as indexing
from kvcodec.store.extents import Coded, ExtentMap, Part
from kvcodec.store.index import LogIndex
from kvcodec.store.packed import Rows
from tests.caches import GEOMETRIES, TINY, rows, tiny_model

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.kvlog"))
INT4 = {"k": "int4/channel/g16", "v": "int4/token/g16"}


# -- frames ---------------------------------------------------------------------------------------------------------


def walk(path, recovery, read):
    """What a walk gives, says and raises."""
    try:
        device = Device.open(path)
    except KvcodecError as error:
        return type(error), str(error)
    try:
        log = Log(device, recovery)
        try:
            found = [(one.place, one.header.tobytes()) for one in read(log)]
        except KvcodecError as error:
            found = type(error), str(error)
        return found, log.cursor, log.report, log.totals, log.lsn, log.fresh.stopped
    finally:
        device.close()


def assert_walks_agree(path, recovery):
    careful = walk(path, recovery, Log.poll)
    for few in (1, 3):
        with mock.patch.object(walk_module, "_FEW", few):
            assert walk(path, recovery, Log.poll_table) == careful


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
@pytest.mark.parametrize("recovery", Recovery)
def test_a_quick_walk_is_a_walk(path, recovery):
    assert_walks_agree(path, recovery)


@pytest.fixture(scope="module", params=["tiny", "nor"])
def busy(tmp_path_factory, request):
    """A log with sequences, splits, STEPs, a DROP, padding and many blocks."""
    path = tmp_path_factory.mktemp("busy") / "log"
    geometry = TINY if request.param == "tiny" else kv.Geometry.parse("nor")
    with kv.open(path, "w", model=tiny_model(), device=geometry, residual=5, sinks=3, **INT4) as store:
        for turn in range(6):
            for name in "ab":
                n = len(store.sequence(name))
                for layer in range(2):
                    k, v = (rows(layer, s, n + 40 + turn)[n:] for s in "kv")
                    store.sequence(name).append(layer, k, v)
            store.sync()
    with kv.open(path, "a") as store:
        store.log_records([new_record(Kind.DROP, b"", sequence=2, first_token=40)])
    with kv.open(path, "a") as store:
        n = len(store.sequence("b"))
        for layer in range(2):
            k, v = (rows(layer, s, n + 90)[n:] for s in "kv")
            store.sequence("b").append(layer, k, v)
    return path


@pytest.mark.no_cover
@pytest.mark.parametrize("recovery", Recovery)
def test_a_quick_walk_meets_the_same_damage(busy, tmp_path, recovery):
    random = np.random.default_rng(list(Recovery).index(recovery))
    good = busy.read_bytes()
    for _ in range(30):
        bad = bytearray(good)
        for at in random.integers(8192, len(good), size=random.integers(1, 4)):
            bad[at] ^= 1 << random.integers(8)
        size = len(bad) if random.random() < 0.7 else int(random.integers(8192, len(bad)))
        path = tmp_path / "bad"
        path.write_bytes(bad[:size])
        assert_walks_agree(path, recovery)


# -- the index ------------------------------------------------------------------------------------------------------


def located(path):
    device = Device.open(path)
    return device, Log(device).poll()


def state(index):
    """All that an index knows."""
    return {
        number: (sequence.records, sequence.length, sequence._split,
                 {key: (list(extents), extents.reach, extents.end, extents.held, list(extents._runs()))
                  for key, extents in sequence.maps.items()})
        for number, sequence in index.sequences.items()
    }  # fmt: skip


def enter(device, records):
    """The state of an index behind these records, or what they raise."""
    index = LogIndex(Log(device))
    try:
        index.enter(records)
    except KvcodecError as error:
        return type(error), str(error)
    return state(index)


@pytest.fixture(params=[1, 64])
def many(request, monkeypatch):
    monkeypatch.setattr(indexing, "_MANY", request.param)


@pytest.mark.usefixtures("many")
def test_a_table_enters_as_its_records(busy):
    device, records = located(busy)
    kinds = {int(one.header["kind"]) for one in records}
    assert kinds >= {Kind.GROUP, Kind.STEP, Kind.DROP, Kind.SEQUENCE}
    split = any(int(r.header["heads"]) < int(r.header["all_heads"]) for r in records if r.header["kind"] == Kind.GROUP)
    assert split or device.geometry != TINY
    want = enter(device, records)
    assert isinstance(want, dict)
    assert enter(device, join_records([records])) == want
    half = len(records) // 2
    index = LogIndex(Log(device))
    for part in (records[:half], records[half:]):
        index.enter(join_records([part]))
    assert state(index) == want
    device.close()


@pytest.mark.no_cover
@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(("kind", "dtype"), [(Kind.GROUP, GROUP_HEADER), (Kind.STEP, STEP_HEADER)])
def test_a_wrong_record_in_a_table_is_refused_as_alone(busy, kind, dtype):
    device, records = located(busy)
    table = join_records([records])
    random = np.random.default_rng(kind)
    own = np.flatnonzero(table.kinds == kind)
    for name in dtype.names:
        if name.startswith(("reserved", "header_crc", "body_crc", "kind", "version")):
            continue
        for value in (0, 1, 200):
            forged = RecordTable(table.entries.copy())
            n = own[random.integers(len(own))]
            column = forged.columns(dtype)[name]
            if dtype[name].kind == "V":
                column[n] = np.void(bytes([value]) * dtype[name].itemsize)
            else:
                column[n] = (
                    value
                    if random.random() < 0.5
                    else value * 0x0101010101010101 & ((1 << 8 * dtype[name].itemsize) - 1)
                )
            assert enter(device, forged) == enter(device, list(forged)), (name, value, n)
    device.close()


def test_two_records_of_one_lsn_in_a_table(busy):
    device, records = located(busy)
    table = join_records([records])
    for first in range(5, len(table) - 1, 7):
        forged = RecordTable(table.entries.copy())
        lsns = forged.columns(GROUP_HEADER)["lsn"]
        lsns[first + 1] = lsns[first]
        assert enter(device, forged) == enter(device, list(forged))
    device.close()


# -- extents --------------------------------------------------------------------------------------------------------

TOKENS = 60
runs = st.lists(st.tuples(st.booleans(), st.integers(0, TOKENS), st.integers(1, 9)), min_size=1, max_size=8)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), runs),
        st.tuples(st.just("one"), st.tuples(st.booleans(), st.integers(0, TOKENS), st.integers(1, 9))),
        st.tuples(st.just("drop"), st.tuples(st.integers(0, TOKENS), st.integers(0, 60))),
        st.tuples(st.just("look"), st.just(None)),
    ),
    max_size=12,
)


def record(step, first, tokens, lsn):
    spec = CodecSpec.parse("raw") if step else None
    return Coded(lsn, spec, first, tokens, (Part((1, 2, lsn), 0, 1, 0, tokens, False),))


def as_rows(coded):
    place = np.array([coded.parts[0].place], PLACE)
    pattern = coded._replace(lsn=0, first=0)
    return Rows(pattern, np.array([coded.lsn]), np.array([coded.first]), place)


@settings(max_examples=250)
@given(actions)
def test_packed_extents_are_extents(steps):
    one, many, lsn = ExtentMap(), ExtentMap(), 0
    for action, what in steps:
        if action == "rows":
            for args in what:
                lsn += 1
                one.insert(record(*args, lsn))
                many.insert_rows(as_rows(record(*args, lsn)))
        elif action == "one":
            lsn += 1
            one.insert(record(*what, lsn))
            many.insert(record(*what, lsn))
        elif action == "drop":
            one.drop(*what)
            many.drop(*what)
        else:
            assert len(many) == len(one)
    owners = lambda extents: [(t, e.coded) for e in extents for t in range(e.first, e.end)]  # noqa: E731
    assert owners(many) == owners(one)
    assert (many.reach, many.end, many.held) == (one.reach, one.end, one.held)
    assert list(many._runs()) == list(one._runs())
    for first in range(0, TOKENS, 7):
        assert owners(many.covering(first, first + 9)) == owners(one.covering(first, first + 9))
        assert many.run_end(5, first) == one.run_end(5, first)
        counted = [sum(count * c.parts[0].size for c, count, _ in e.tally(first, 99)) for e in (one, many)]
        assert counted[0] == counted[1]


# -- a whole store --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_a_store_reads_the_same_with_and_without_its_sidecar(tmp_path, geometry):
    path = tmp_path / "log"
    with kv.open(path, "w", model=tiny_model(), device=geometry, residual=5, **INT4) as store:
        for layer in range(2):
            store.sequence("a").append(layer, *(rows(layer, s, 700) for s in "kv"))
    with kv.open(path) as store:
        stats, read = store.stats(), [store.sequence("a").read(layer) for layer in range(2)]
    Path(f"{path}.idx").unlink()
    with kv.open(path) as store:
        assert store.stats() == stats
        for layer in range(2):
            for got, want in zip(store.sequence("a").read(layer), read[layer], strict=True):
                assert got.tobytes() == want.tobytes()


def test_a_reader_that_opened_by_the_thousand_follows_the_writer(tmp_path):
    path = tmp_path / "log"
    kv.open(path, "w", model=tiny_model(), device=TINY, residual=5, **INT4).close()
    for n in (500, 3, 1, 200, 64):
        with kv.open(path) as reader, kv.open(path, "a") as store:
            before = reader.sequence("a").__len__() if "a" in reader.sequences() else 0
            sequence = store.sequence("a")
            for start in range(before, before + n, 50):
                stop = min(start + 50, before + n)
                for layer in range(2):
                    sequence.append(layer, *(rows(layer, s, stop)[start:] for s in "kv"))
                store.sync()
                assert len(reader.sequence("a")) == stop
            for layer in range(2):
                for got, want in zip(reader.sequence("a").read(layer), sequence.read(layer), strict=True):
                    assert got[: stop - 70].tobytes() == want[: stop - 70].tobytes()


def test_a_sidecar_row_is_a_record(busy):
    device, records = located(busy)
    table = join_records([records[:3], join_records([records[3:]]), []])
    assert table.entries.dtype == SIDECAR_ENTRY
    assert [(a.place, a.header.tobytes()) for a in table] == [(b.place, b.header.tobytes()) for b in records]
    assert [tuple(place) for place in table.places.tolist()] == [one.place for one in records]
    assert len(join_records([]).kinds) == len(join_records([]).words) == 0
    device.close()


# -- sizes without codecs, and the command line -----------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["raw", *(f"int{b}/{a}/g{g}{s}" for b in (2, 4, 8) for a in ("channel", "token")
                                          for g in (16, 96) for s in ("", "/sym"))])  # fmt: skip
def test_sizes_are_those_of_the_codec(spec):
    parsed = CodecSpec.parse(spec)
    for stream in StreamId:
        for tokens in (1, 64, 100):
            for dim in (1, 16, 40, 576):
                want = codec_for(parsed, stream).sections(tokens, dim)
                assert head_sections(parsed, stream, tokens, dim) == want
                if codes_rows(parsed):
                    assert step_row_bytes(parsed, dim) == GroupedRows(parsed, stream).row_bytes(dim)


def test_info_loads_no_kernel_and_no_parser(busy):
    heavy = ("numba", "typer", "rich.table")
    code = (
        "import atexit, sys\nfrom kvcodec.cli import main\n"
        f"atexit.register(lambda: print([n for n in {heavy} if n in sys.modules]))\nmain()"
    )
    plain = os.environ | {"COLUMNS": "120"}
    for arguments in (["info", str(busy)], ["info", "--json", str(busy)]):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
        assert done.stdout.splitlines()[-1] == "[]"


def test_info_says_what_is_wrong_as_ever(tmp_path):
    main = [sys.executable, "-c", "from kvcodec.cli import main; main()", "info"]
    (tmp_path / "x").write_bytes(b"no log")
    for name in ("x", "nothing"):
        done = subprocess.run([*main, str(tmp_path / name)], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1


def test_a_plain_table_is_the_table(capsys, monkeypatch):
    columns, lines = ("what", "", "n"), [("a b", "x", "1"), ("", "yy", "1000000"), ("c" * 30, "", "")]
    monkeypatch.delenv("COLUMNS", raising=False)
    for left in (1, 2):
        for names in (columns, ("", "", "")):
            tables.print_table(names, lines, left=left, title="T")
            plain = capsys.readouterr().out
            output.print_table(names, lines, left=left, title="T")
            assert capsys.readouterr().out == plain
    tables.print_table(columns, [("é", "", "")])
    plain = capsys.readouterr().out
    output.print_table(columns, [("é", "", "")])
    assert capsys.readouterr().out == plain


def test_a_copy_opens_as_the_log(busy, tmp_path):
    """A sidecar that is there but of another file is not used."""
    shutil.copy(busy, tmp_path / "copy")
    with kv.open(busy) as a, kv.open(tmp_path / "copy") as b:
        assert state(a.index) == state(b.index)
