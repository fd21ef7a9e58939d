"""Damaged logs, and the new ones that what could be read of them was saved in."""

import contextlib
import os
import random
from unittest import mock

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.new_log import making_path
from kvcodec.bulk.survivors import SETS
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import BadMagic, DeviceBusy, DeviceError, DumpError, FormatError, LogExists, NoSpace, SpecError
from kvcodec.flash.device import Device
from kvcodec.flash.image import Image
from kvcodec.layout import SPARE_SLOT, DropScope, Kind
from kvcodec.log.frame import implied_drop, new_record
from kvcodec.log.located import NOWHERE, Located, Place
from kvcodec.log.order import order_records
from kvcodec.log.reader import Log
from kvcodec.log.sidecar import sidecar_path
from kvcodec.store.ending import drop_record
from kvcodec.store.entering import KINDS
from tests.power import Recorder, after_loss
from tests.test_golden import GOLDEN, INDEX
from tests.test_lifecycle import append, check, cut, data, join, make

SOUND = ("cleaned", "drop", "gap", "torn-tail", "superblock-lost", "zero-page", "split-copied")


def read(path, recovery="torn-tail", dictionary=None):
    """Of each sequence its length, and its rows by layer, stream and token, but for those evicted."""
    found = {}
    with kv.open(path, recovery=recovery, dictionary=dictionary) as store:
        for sequence in store:
            rows = {}
            for layer, own in enumerate(sequence._index.model.layers):
                if not own.streams:
                    continue
                gone = {t for first, end in sequence.evicted(layer) for t in range(first, end)}
                tokens = [t for t in sequence.held(layer) if t not in gone]
                for stream, got in zip(own.streams, sequence.read(layer, tokens), strict=True):
                    rows |= {(layer, stream.name, t): row.tobytes() for t, row in zip(tokens, got, strict=True)}
            found[sequence.name] = len(sequence), rows
    return found


def whole_tokens(sequence):
    """Tokens that all layers and streams hold where none has a window."""
    keys = {(layer, stream) for layer, stream, _ in sequence[1]}
    return {t for t in range(sequence[0]) if all((*key, t) in sequence[1] for key in keys)}


def story(path, *, k="raw", compact=True):
    """A log with forks, drops, evictions and blocks that were cleaned; the rows that were ever appended."""
    written = {name: data(tokens, seed) for seed, (name, tokens) in enumerate({"a": 260, "b": 200, "c": 90}.items())}
    gone, more = data(300, 8), (data(60, 30), data(40, 31))
    with make(path, k=k, v=k, residual=20, sinks=4) as store:
        append(store.sequence("gone"), gone)
        for name, parts in written.items():
            append(store.sequence(name), parts)
        store.sync()
        append(store.fork("b", "of b", 150), more[0])
        store.sequence("a").evict(64, 140)
        store.sequence("c").truncate(50)
        append(store.sequence("c"), more[1])
        append(store.fork("of b", "of it", 180), more[1])
        store.drop("gone")
        store.drop("of b")
        if compact:
            store.compact()
    of_b, c = join(cut(written["b"], 150), more[0]), join(cut(written["c"], 50), more[1])
    ended = {"before c": written["c"], "of b": of_b, "gone": gone}
    return written | {"c": c, "of it": join(cut(of_b, 180), more[1])} | ended


@pytest.fixture(scope="module", params=[True, False], ids=["cleaned", "as written"])
def stories(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("repair") / "log"
    return path, story(path, compact=request.param)


@pytest.fixture
def log(stories):
    return stories[0]


@pytest.fixture
def parts(stories):
    return stories[1]


def copy_of(log, folder, damage=None):
    """A copy of a log and its sidecar with some damage."""
    path = folder / "damaged"
    raw = bytearray(log.read_bytes())
    if damage is not None:
        damage(raw)
    path.write_bytes(raw)
    sidecar_path(path).write_bytes(sidecar_path(log).read_bytes())
    return path


def records_of(log, *kinds):
    """Records of these kinds, all unless told, in log order: (where in the file, header)."""
    device = Device.open(log)
    found = [(device.file_offset(one.place.block, one.place.offset), one.header) for one in Log(device).poll()]
    device.close()
    return [one for one in found if not kinds or int(one[1]["kind"]) in kinds]


def test_what_is_whole_is_copied_whole(log, tmp_path):
    before = log.read_bytes(), sidecar_path(log).read_bytes()
    told = []
    report = kv.repair(log, tmp_path / "new", progress=lambda *at: told.append(at))
    assert report.is_whole
    assert told[-1] == (1000, 1000)
    assert told == sorted(told)
    assert read(tmp_path / "new") == read(log)
    assert (log.read_bytes(), sidecar_path(log).read_bytes()) == before
    assert verify_log(tmp_path / "new").verdict == "clean"
    assert sorted(os.listdir(tmp_path)) == ["new", "new.idx"]
    sidecar_path(tmp_path / "new").unlink()
    assert read(tmp_path / "new", "absolute") == read(log)
    with kv.open(log) as old, kv.open(tmp_path / "new") as new:
        assert (new.device.geometry, new.device.blocks) == (old.device.geometry, old.device.blocks)
    copied, known = (records_of(path) for path in (tmp_path / "new", log))
    assert len(copied) == report.records > 20
    assert {header.tobytes() for _, header in copied} <= {header.tobytes() for _, header in known}


def test_a_new_log_goes_on_as_the_old_one(log, tmp_path):
    kv.repair(log, tmp_path / "new")
    with kv.open(log) as old:
        lengths = {one.name: len(one) for one in old}
    with kv.open(tmp_path / "new", "a") as store:
        for name in lengths:
            append(store.sequence(name), data(70, 50))
        append(store.fork("of it", "another"), data(5, 51))
        store.sequence("a").evict(140, 180)
        store.drop("b")
        store.compact()
        assert {one.name: len(one) - 70 for one in store if one.name not in ("another", "b")} == {
            name: length for name, length in lengths.items() if name != "b"
        }
    assert verify_log(tmp_path / "new").verdict == "clean"


def saved_as_told(path, out, before):
    """Repair a damaged log: the new one holds what verify finds readable, under the same numbers, and no more.

    before: rows of the log when it was whole.
    """
    raw, told = path.read_bytes(), verify_log(path)
    try:
        report = kv.repair(path, out)
    except FormatError:
        assert told.sequences == ()
        assert not out.exists()
        return None
    finally:
        assert path.read_bytes() == raw
    found = read(out)
    by_name = {one.name: one for one in report.sequences}
    assert set(found) == set(by_name) >= {one.name for one in told.sequences}
    for one in told.sequences:  # whole records of lost frames may have been saved beside
        assert by_name[one.name].tokens >= one.tokens
        assert by_name[one.name].lost_tokens <= one.lost_tokens + by_name[one.name].tokens - one.tokens
    for one in report.sequences:
        lost = {t for first, end in one.lost_ranges for t in range(first, end)}
        tokens = whole_tokens(found[one.name])
        assert not tokens & lost
        wanted = whole_tokens(before.get(one.name, (0, {})))
        assert {t for t in wanted if t < one.tokens} - lost <= tokens
        for known in (known for known in told.sequences if known.name == one.name):
            readable = set(range(known.tokens)) - {t for first, end in known.lost_ranges for t in range(first, end)}
            assert not {t for t in readable & wanted if t < one.tokens} - tokens
    assert report.is_whole == (not told.orphans and not any(one.lost for one in told.sequences) and not report.damage)
    if report.is_whole:
        assert found == before
    return report


def was_written(found, parts):
    """That all rows are those of their sequence: where a DROP record is lost, what it had ended may be back."""
    for name, (_, rows) in found.items():
        for (layer, stream, token), row in rows.items():
            known = [parts[one][layer]["kv".index(stream)] for one in (name, f"before {name}") if one in parts]
            assert any(token < len(own) and own[token].tobytes() == row for own in known), (name, layer, stream, token)


def test_random_damage(log, parts, tmp_path):
    before, lot = read(log), random.Random(3)
    size, lost = log.stat().st_size, 0
    for n in range(5):
        places = [lot.randrange(8192, size) for _ in range(lot.choice((4, 8, 16)))]

        def damage(raw, places=places, zero=n % 2):
            for at in places:
                if zero:
                    raw[at // 64 * 64 : at // 64 * 64 + 64] = bytes(64)
                else:
                    raw[at] ^= 1 << lot.randrange(8)

        out = tmp_path / f"new{n}"
        report = saved_as_told(copy_of(log, tmp_path, damage), out, before)
        if report is None:
            continue
        lost += not report.is_whole
        was_written(read(out), parts)
        if n % 5 == 0:
            with kv.open(out, "a") as store:
                for sequence in store:
                    append(sequence, data(30, n))
            assert verify_log(out).verdict == "clean"
    assert lost


def test_lost_tokens_in_the_middle_are_evicted_and_others_keep_their_numbers(tmp_path):
    parts = story(tmp_path / "log", compact=False)
    with kv.open(tmp_path / "log") as store:
        place = (
            next(iter(next(iter(store.index.sequences[store.index.by_name["b"]].maps.values())))).coded.parts[0].place
        )
        at = store.device.file_offset(place.block, place.offset + 40)
    report = kv.repair(copy_of(tmp_path / "log", tmp_path, lambda raw: flip(raw, at)), tmp_path / "new")
    assert not report.is_whole
    assert report.damage
    by_name = {one.name: one for one in report.sequences}
    assert by_name["b"].lost
    with kv.open(tmp_path / "new") as store:
        for name, evicted in (("a", [(64, 140)]), ("b", []), ("c", []), ("of it", [])):
            gone = sorted([*evicted, *by_name[name].lost_ranges])
            check(store.sequence(name), cut(parts[name], len(store.sequence(name))), gone)


def flip(raw, at):
    raw[at] ^= 1


def test_tokens_lost_at_the_end_are_cut_off(tmp_path):
    with make(tmp_path / "log") as store:
        for seed in range(3):
            append(store.sequence("a"), data(64, seed))
            store.sync()
    start = records_of(tmp_path / "log", *KINDS)[-1][0]
    report = kv.repair(copy_of(tmp_path / "log", tmp_path, lambda raw: flip(raw, start + 40)), tmp_path / "new")
    assert [(one.tokens, one.saved_tokens) for one in report.sequences] == [(192, 128)]
    with kv.open(tmp_path / "new", "a") as store:
        check(store.sequence("a"), join(data(64, 0), data(64, 1)))
        append(store.sequence("a"), data(10, 5))
    assert verify_log(tmp_path / "new").verdict == "clean"


def test_a_window_that_has_gone_on_keeps_the_length(tmp_path):
    parts = join(data(192, 0), data(320, 1))
    with make(tmp_path / "log", window=100) as store:  # layer 1 never has tokens 192 to 383 in a record
        append(store.sequence("a"), cut(parts, 192))
        append(store.sequence("a"), data(320, 1))
    last = [at for at, h in records_of(tmp_path / "log", *KINDS) if (h["first_layer"], h["first_token"]) == (0, 448)]
    path = copy_of(tmp_path / "log", tmp_path, lambda raw: [flip(raw, at + 40) for at in last])
    (checked,) = kv.repair(path, tmp_path / "new").sequences
    assert (checked.tokens, checked.lost_ranges) == (512, [(448, 512)])
    with kv.open(tmp_path / "new", "a") as store:
        sequence = store.sequence("a")
        assert (len(sequence), sequence.held(1)) == (512, range(412, 512))
        for layer, first in enumerate((0, 412)):
            assert sequence.evicted(layer) == [(448, 512)]
            for got, wanted in zip(sequence.read(layer), parts[layer], strict=True):
                assert got.tobytes() == wanted[first:448].tobytes()
        append(sequence, data(70, 9))
    assert verify_log(tmp_path / "new").verdict == "clean"


@pytest.mark.parametrize(("windows", "length", "ahead"), [((48, 48), 300, 150), ((0, 48), 5, 300)])
def test_a_layer_that_is_ahead_costs_no_rows_where_others_are_damaged(tmp_path, windows, length, ahead):
    """A sequence ends with a token that all of its layers have, however far one of them reaches."""
    model = kv.Model(tuple(kv.Layer.kv(1, 16, window=window) for window in windows))
    parts = data(length, 1)
    with make(tmp_path / "log", model=model) as store:
        append(store.sequence("other"), data(300, 2))
        store.sync()
        append(store.sequence("c"), parts)
        store.sequence("c").append(windows.index(48), *data(ahead, 3)[0])
        assert len(store.sequence("c")) == length
    start = next(at for at, header in records_of(tmp_path / "log", *KINDS) if int(header["sequence"]) == 1)
    path = copy_of(tmp_path / "log", tmp_path, lambda raw: flip(raw, start + 200))
    report = verify_log(path)
    assert report.verdict == "damaged"
    repaired = kv.repair(path, tmp_path / "new")
    for found in (report.sequences, repaired.sequences):
        (own,) = (one for one in found if one.name == "c")
        assert own.lost_ranges == [(length, length + ahead)]
    with kv.open(tmp_path / "new") as store:
        sequence = store.sequence("c")
        assert len(sequence) == length
        for layer, window in enumerate(windows):
            assert not sequence.evicted(layer)
            for got, wanted in zip(sequence.read(layer), parts[layer], strict=True):
                assert np.array_equal(got, wanted[max(0, length - window) if window else 0 :])


def test_a_writer_goes_on_behind_evicted_tokens(tmp_path):
    with make(tmp_path / "log", residual=20) as store:
        append(store.sequence("a"), data(100, 1))
        store.sync()
        store.log_change(drop_record(1, DropScope.RANGE, 90, 100))
        store.abandon()
    with kv.open(tmp_path / "log", "a") as store:
        append(store.sequence("a"), data(70, 2))
    with kv.open(tmp_path / "log", "a") as store:
        check(store.sequence("a"), join(data(100, 1), data(70, 2)), [(90, 100)])


def test_a_drop_in_a_unit_whose_slot_is_damaged_still_holds(log, tmp_path):
    at = records_of(log, Kind.DROP)[0][0]
    with kv.open(log) as store:
        block, inside = divmod(at - store.device.file_offset(0), store.device.geometry.stride)
        slot = store.device.file_offset(block) - store.device.geometry.spare_area + 16 * (inside // 64)
    path = copy_of(log, tmp_path, lambda raw: flip(raw, slot + int(SPARE_SLOT.fields["generation"][1])))
    assert verify_log(path).verdict == "damaged"
    kv.repair(path, tmp_path / "new")
    assert read(tmp_path / "new") == read(log)


def test_what_does_not_fit_gets_more_blocks(tmp_path):
    """The last record of a block may have been split; a copy of its parts is not."""
    device = "page=256,unit=64,block=4096"
    store = make(tmp_path / "log", k="int4/channel/g16", v="int4/token/g16", device=device, capacity=11 * 4096)
    with contextlib.suppress(NoSpace):
        for n in range(100):
            append(store.sequence("a"), data(37, n))
    store.abandon()
    assert kv.repair(tmp_path / "log", tmp_path / "new").is_whole
    assert read(tmp_path / "new") == read(tmp_path / "log")
    with kv.open(tmp_path / "log") as store:
        blocks = store.device.blocks
    whole = Device.create

    def crowded(*args, **options):
        return whole(*args, **options | {"blocks": options["blocks"] // (2 if options["blocks"] == blocks else 1)})

    with mock.patch.object(Device, "create", crowded):
        assert kv.repair(tmp_path / "log", tmp_path / "newer").is_whole
    assert read(tmp_path / "newer") == read(tmp_path / "log")


def test_a_drop_that_damage_implies_takes_no_records_place():
    """It has the lsn of the last record before the damage."""
    row = new_record(Kind.STEP, b"", sequence=1, lsn=5, heads=1, all_heads=2).header.reshape(1)[0]
    other = new_record(Kind.STEP, b"", sequence=1, lsn=5, heads=1, all_heads=2, first_head=1).header.reshape(1)[0]
    late = new_record(Kind.STEP, b"", sequence=1, lsn=2, heads=2, all_heads=2).header.reshape(1)[0]
    parts = [Located(Place(1, 0, at), header) for at, header in ((64, row), (128, other))]
    ordered = order_records([[*parts, Located(NOWHERE, implied_drop(5))], [Located(Place(2, 1, 64), late)]])
    assert [int(one.header["kind"]) for one in ordered] == [Kind.STEP] * 3 + [Kind.DROP]


def test_a_fork_outlives_the_record_of_its_parent(tmp_path):
    with make(tmp_path / "log") as store:
        append(store.sequence("a"), data(64, 1))
        store.sync()
        append(store.sequence("b"), data(64, 2))
        store.sync()
        append(store.fork("b", "f", 64), data(64, 3))
    start = records_of(tmp_path / "log", Kind.SEQUENCE)[2][0]
    report = kv.repair(copy_of(tmp_path / "log", tmp_path, lambda raw: flip(raw, start + 40)), tmp_path / "new")
    assert {one.name: one.saved_tokens for one in report.sequences} == {"a": 64, "f": 64}
    with kv.open(tmp_path / "new") as store:
        check(store.sequence("f"), join(data(64, 2), data(64, 3)), [(0, 64)])
        check(store.sequence("a"), data(64, 1))


@pytest.mark.parametrize("name", ["dictionary", "product"])
def test_rows_over_a_set_that_is_lost_wait_for_it(name, tmp_path):
    """The record of the set is in one frame with the model: the others of that frame are saved."""
    whole, path = GOLDEN / f"{name}.kvlog", tmp_path / "damaged"
    with kv.open(whole) as store:
        own = store.index.dictionaries.find(store.index.dictionaries.held()[0])
    raw = bytearray(whole.read_bytes())
    at, header = records_of(whole, *SETS)[0]
    flip(raw, at + int(header["header_bytes"]) + 20)
    path.write_bytes(raw)
    report = kv.repair(path, tmp_path / "waits")
    assert "pass dictionary=" in report.missing
    assert not any(one.lost for one in report.sequences)
    assert verify_log(tmp_path / "waits", dictionary=own).verdict == "clean"
    assert kv.repair(path, tmp_path / "new", dictionary=own).missing is None
    for new in ("waits", "new"):
        assert read(tmp_path / new, dictionary=own) == read(whole)


def test_a_flipped_bit_costs_one_record_of_a_frame(tmp_path):
    with make(tmp_path / "log", device="page=256,unit=64,block=65536", capacity=1 << 20) as store:
        append(store.sequence("a"), data(640, 1))
    at, header = next(one for one in records_of(tmp_path / "log", *KINDS) if one[1]["first_token"] == 128)
    path = copy_of(tmp_path / "log", tmp_path, lambda raw: flip(raw, at + int(header["header_bytes"]) + 5))
    lost = (int(header["first_token"]), int(header["first_token"]) + int(header["tokens"]))
    told = verify_log(path).sequences
    assert not told or told[0].lost_tokens > lost[1] - lost[0]
    (checked,) = kv.repair(path, tmp_path / "new").sequences
    assert checked.lost_ranges == [lost]
    with kv.open(tmp_path / "new") as store:
        check(store.sequence("a"), data(640, 1), [lost])


@pytest.mark.parametrize(
    "entry", [e for e in INDEX if "error" in e or e["name"].split(".")[0] in SOUND], ids=lambda e: e["name"]
)
def test_golden_logs(entry, tmp_path):
    path, out = GOLDEN / entry["name"], tmp_path / "new"
    raw = path.read_bytes()
    told = verify_log(path)
    try:
        report = kv.repair(path, out)
    except FormatError:
        assert "error" in entry
        assert os.listdir(tmp_path) == []
        return
    finally:
        assert path.read_bytes() == raw
    if report.missing is not None:
        assert verify_log(out).verdict == "unreadable"
        return
    found = read(out)
    assert [(one.name, one.lost) for one in report.sequences] == [(one.name, one.lost) for one in told.sequences]
    if "error" in entry:
        assert not report.is_whole or entry["name"] in ("record-checksum.kvlog",)
        for one in told.sequences:
            lost = {t for first, end in one.lost_ranges for t in range(first, end)}
            assert len(whole_tokens(found[one.name])) >= one.tokens - len(lost) - 64 * bool(lost)
    else:
        assert found == read(path, "torn-tail")


def test_refusals_leave_everything_as_it_was(log, tmp_path):
    dump = b"no log" * 100
    path = copy_of(log, tmp_path)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    os.link(path, tmp_path / "link")
    for out in (path, tmp_path / "link", sidecar_path(path)):
        for overwrite in (False, True):
            with pytest.raises(SpecError, match="take the place"):
                kv.repair(path, out, overwrite=overwrite)
    os.unlink(tmp_path / "link")
    (tmp_path / "new").write_bytes(dump)
    with pytest.raises(LogExists):
        kv.repair(path, tmp_path / "new")
    with pytest.raises(BadMagic):
        kv.repair(tmp_path / "new", tmp_path / "newer")
    with pytest.raises(DumpError):
        kv.repair(tmp_path / "none", tmp_path / "newer")
    with pytest.raises(FileNotFoundError):
        kv.repair(path, tmp_path / "none" / "new")
    with kv.open(path, "a"), pytest.raises(DeviceBusy):
        kv.repair(path, tmp_path / "newer")
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()}.keys() == {*before, "new"}
    assert (tmp_path / "new").read_bytes() == dump
    assert kv.repair(path, tmp_path / "new", overwrite=True).is_whole
    kv.open(path, "a").close()  # nothing holds it any more


@pytest.mark.parametrize("call", ["write", "reserve", "sync", "publish"])
@pytest.mark.parametrize("error", [NoSpace(28, "full"), DeviceError(5, "broken")], ids=["full", "broken"])
def test_a_disk_that_fails_leaves_no_file(log, tmp_path, monkeypatch, call, error):
    own, calls = getattr(Image, call), []

    def fail(image, *args, **options):
        calls.append(call)
        if len(calls) == 2:
            raise error
        return own(image, *args, **options)

    monkeypatch.setattr(Image, call, fail)
    raw = log.read_bytes()
    with pytest.raises(DeviceError):
        kv.repair(log, tmp_path / "new")
    assert os.listdir(tmp_path) == []
    assert log.read_bytes() == raw


def test_a_killed_repair_is_begun_anew(log, tmp_path):
    making = making_path(tmp_path / "new", "repairing")
    make(making).close()
    assert kv.repair(log, tmp_path / "new").is_whole
    assert sorted(os.listdir(tmp_path)) == ["new", "new.idx"]


def test_an_append_that_a_crash_cut_short_is_no_damage_where_a_layer_has_a_window(tmp_path):
    """The window has left what was never written: the sequence is as long as it can be read, and nothing is lost."""
    path, recorder = tmp_path / "c", Recorder()
    with make(path, window=40, sinks=4) as store:
        append(store.sequence("a"), data(64, 1))
    before = path.read_bytes()
    with recorder.recording(), kv.open(path, "a") as store:
        append(store.sequence("b"), data(110, 2))
        store.sync()
        store.abandon()
    for count in range(1, len(recorder.asked) + 1):
        path.write_bytes(after_loss(before, recorder.asked, count, 64))
        sidecar_path(path).unlink(missing_ok=True)
        assert verify_log(path).verdict in ("clean", "torn tail"), count
        report = kv.repair(path, tmp_path / "new", overwrite=True)
        assert report.is_whole
        assert read(tmp_path / "new") == read(path)


def test_what_a_summary_stands_for_does_not_come_back_behind_a_window(tmp_path):
    """Rows of a summary that a window has left are needed as long as a record has rows of what they stand for."""
    path, lot = tmp_path / "a.kvlog", np.random.default_rng(0)
    model = kv.Model((kv.Layer.kv(1, 16), kv.Layer.kv(1, 16, window=64)))

    def some(tokens):
        return {n: [lot.standard_normal((tokens, 1, 16)).astype(np.float32)] * 2 for n in range(2)}

    with kv.open(path, "w", model=model, k="raw", v="raw", residual=0, sinks=0) as store:
        store.sequence("a").append_layers(some(200))
        store.sequence("a").summarize(140, 160, some(2))
        store.sequence("a").append_layers(some(40))
    kv.repair(path, tmp_path / "b.kvlog")
    shapes = []
    for log in (path, tmp_path / "b.kvlog"):
        with kv.open(log, "a") as store:
            store.sequence("a").truncate(210)
            shapes.append([len(store.sequence("a").read(n)[0]) for n in range(2)])
    assert shapes[0] == [210 - 18, 50]
    assert shapes[1] == shapes[0]
