"""Interrupted encodes: continued to what an uninterrupted one gives, or refused, or replaced."""

import os
import random
import signal
import time

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk import chunks
from kvcodec.bulk.encode import encode_dump, encode_dumps
from kvcodec.bulk.new_log import making_path
from kvcodec.bulk.verify import verify_log
from kvcodec.dumps import create_dump, open_dump
from kvcodec.errors import DeviceBusy, IdentityMismatch, LogExists, NonFiniteError, SpecError
from kvcodec.layout import StreamId
from tests.caches import rows, same
from tests.children import Child
from tests.test_bulk import (
    BF16,
    TINY,
    dump_fixture,  # noqa: F401
    make_dump,
    names,
    write_dump,
)


def killed(log, at, *dumps, **options):
    """An encode that is killed when so many tokens times layers are done, and finishes if there are no more."""

    def kill(done, total):
        if done >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    def work(write):
        chunks.CHUNK_BYTES = 1 << 14
        encode_dumps(dumps, log, progress=kill, **options)

    with Child(work) as child:
        code = child.wait()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def decoded(log, sequence="chat"):
    """Bytes of all rows."""
    with kv.open(log) as store:
        found = store.sequence(sequence)
        layers = [n for n, layer in enumerate(store.model.layers) if layer.streams]
        return b"".join(array.tobytes() for n in layers for array in found.read(n))


OPTIONS = [
    {},
    {"residual": 16, "sinks": 0},
    {"residual": 0},
    {"k": "int4/channel/g128", "residual": 8},
    {"k": "raw", "v": "raw"},
    {"device": TINY, "residual": 16},
    {"k": "int4/channel/g32", "device": "slc", "threads": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_killed_encode_is_continued_to_the_same_rows(tmp_path, options):
    dump = make_dump(tmp_path / "chat.safetensors", 1500, (0, 1, 4))
    encode_dump(dump, tmp_path / "whole.kvlog", **options)
    log = tmp_path / "a.kvlog"
    assert killed(log, 700, dump, **options)
    assert making_path(log).exists()
    assert killed(log, 2000, dump, resume=True, **options)
    assert not log.exists()
    told = []
    report = encode_dump(dump, log, resume=True, progress=lambda *at: told.append(at), **options)
    assert told[0] == (3 * report.resumed, 4500)
    assert told[-1] == (4500, 4500)
    assert 0 < report.resumed < 1500
    assert decoded(log) == decoded(tmp_path / "whole.kvlog")
    assert verify_log(log).verdict == "clean"
    assert names(tmp_path) == ["a.kvlog", "a.kvlog.idx", "chat.safetensors", "whole.kvlog", "whole.kvlog.idx"]


@pytest.mark.parametrize("seed", range(6))
def test_groups_that_were_cut_are_coded_anew(tmp_path, seed):
    """A crash that leaves streams of unequal groups at unequal ends gives the same rows in the end."""
    dump = make_dump(tmp_path / "chat.safetensors", 1000)
    options = {"k": "int4/channel/g128", "v": "int4/token/g64", "residual": 0, "device": TINY}
    encode_dump(dump, tmp_path / "whole.kvlog", **options)
    log = tmp_path / "a.kvlog"
    killed(log, 1400, dump, **options)
    making = making_path(log)
    cut = random.Random(seed).randint(20_000, making.stat().st_size)
    os.truncate(making, cut)  # what a power loss may leave: the frames before
    encode_dump(dump, log, resume=True, **options)
    assert decoded(log) == decoded(tmp_path / "whole.kvlog")


def test_sliding_windows(tmp_path):
    dump = make_dump(tmp_path / "chat.safetensors", 1000, (0, 1, 2), sliding_window="100", global_layers="1")
    encode_dump(dump, tmp_path / "whole.kvlog", residual=16)
    log = tmp_path / "a.kvlog"
    assert killed(log, 1500, dump, residual=16)
    encode_dump(dump, log, residual=16, resume=True)
    assert decoded(log) == decoded(tmp_path / "whole.kvlog")


def test_without_resume_a_half_made_log_is_replaced(tmp_path, dump):
    log = tmp_path / "a.kvlog"
    assert killed(log, 400, dump)
    report = encode_dump(dump, log, residual=3)
    assert report.resumed == 0
    assert names(tmp_path) == ["a.kvlog", "a.kvlog.idx", "chat.safetensors"]


def test_a_log_in_the_making_is_left_alone(tmp_path, dump):
    log = tmp_path / "a.kvlog"
    store = kv.open(making_path(log), "w", model=kv.Model.uniform(2, 2, 16))
    for options in ({}, {"resume": True}):
        with pytest.raises((DeviceBusy, SpecError)):
            encode_dump(dump, log, **options)
    assert making_path(log).exists()
    store.close()


def test_a_failure_keeps_what_was_done_only_for_a_job_that_resumes(tmp_path, dump):
    def stop(done, total):
        if done > 200:
            raise KeyboardInterrupt

    log = tmp_path / "a.kvlog"
    with pytest.raises(KeyboardInterrupt):
        encode_dump(dump, log, progress=stop)
    assert names(tmp_path) == ["chat.safetensors"]
    with pytest.raises(KeyboardInterrupt):
        encode_dump(dump, log, progress=stop, resume=True)
    assert making_path(log).exists()
    assert encode_dump(dump, log, resume=True).tokens == 300
    with pytest.raises(LogExists):
        encode_dump(dump, log, resume=True)


def test_another_dump_or_other_options_are_refused(tmp_path, dump):
    log = tmp_path / "a.kvlog"
    assert killed(log, 590, dump, residual=16, device=TINY)
    before = making_path(log).read_bytes()
    with open_dump(dump) as original:
        tensors = {
            f"{s.name.lower()}.{n}": original.rows(n, s, 0, 300) for n in (0, 1) for s in (StreamId.K, StreamId.V)
        }
    other = tensors | {"v.1": rows(9, "v", 300)}
    last = tensors["k.1"].copy()
    last[140:] = rows(9, "k", 300)[140:]
    cases = [
        (tensors, {"residual": 17}, SpecError, "other options: layer 0 K"),
        (tensors, {"k": "raw"}, SpecError, "other options"),
        (tensors, {"device": "slc"}, SpecError, "on another device"),
        (tensors, {"sequence": "x"}, SpecError, "of sequence 'chat'"),
        (tensors, {"layers": "0"}, IdentityMismatch, "belongs to"),
        (tensors, {"tokens": "1:"}, SpecError, "is not of this dump: layer 0 K, tokens 0 to 3 differ"),
        (tensors, {"tokens": ":100"}, SpecError, "more than the 100 to encode"),
        (other, {}, SpecError, "layer 1 V, tokens 0 to 3 differ"),
        (tensors | {"k.1": last}, {}, SpecError, "layer 1 K, tokens 132 to 195 differ"),
        ({name: array[:, :1] for name, array in tensors.items()}, {}, IdentityMismatch, "belongs to"),
    ]
    for changed, options, error, text in cases:
        write_dump(dump, changed)
        with pytest.raises(error, match=text):
            encode_dump(dump, log, resume=True, **({"residual": 16, "device": TINY} | options))
        assert making_path(log).read_bytes() == before
    write_dump(dump, tensors)
    assert encode_dump(dump, log, resume=True, device=TINY).resumed > 0  # what is not given may have been anything


def test_a_nan_behind_the_kill(tmp_path, dump):
    log = tmp_path / "a.kvlog"
    assert killed(log, 300, dump)
    k = rows(0, "k", 300)
    k[299] = np.nan
    write_dump(dump, {f"{s}.{n}": rows(n, s, 300) for n in (0, 1) for s in "kv"} | {"k.0": k})
    with pytest.raises(NonFiniteError):
        encode_dump(dump, log, resume=True)
    assert not log.exists()


def test_several_dumps(tmp_path):
    dumps = [make_dump(tmp_path / f"{name}.safetensors", tokens) for name, tokens in (("a", 300), ("b", 200), ("c", 0))]
    encode_dumps(dumps, tmp_path / "whole.kvlog", residual=16)
    for at in (400, 800):
        log = tmp_path / f"{at}.kvlog"
        assert killed(log, at, *dumps, residual=16)
        reports = encode_dumps(dumps, log, residual=16, resume=True)
        assert [r.sequence for r in reports] == ["a", "b", "c"]
        for name in "abc":
            assert decoded(log, name) == decoded(tmp_path / "whole.kvlog", name)
    assert killed(tmp_path / "x.kvlog", 800, *dumps, device=TINY)
    with pytest.raises(SpecError, match="begun with another dump, of sequence 'a'"):
        encode_dumps(dumps[1:], tmp_path / "x.kvlog", resume=True, device=TINY)


def test_append_goes_on_with_a_shorter_sequence(tmp_path):
    log, whole = tmp_path / "a.kvlog", tmp_path / "whole.kvlog"
    dump = make_dump(tmp_path / "chat.safetensors", 700)
    encode_dump(dump, whole, residual=16)
    encode_dump(make_dump(tmp_path / "first.safetensors", 50), log, residual=16)
    encode_dump(dump, log, append=True, tokens=":290")
    with pytest.raises(SpecError, match="holds a sequence 'chat' already"):
        encode_dump(dump, log, append=True)
    before = log.read_bytes()
    with pytest.raises(SpecError, match="not of this dump"):
        encode_dump(dump, log, append=True, resume=True, tokens="5:")
    with pytest.raises(SpecError, match="other options"):
        encode_dump(dump, log, append=True, resume=True, v="raw")
    assert log.read_bytes() == before
    for tokens, there in ((":500", 290), (None, 500), (None, 700)):
        assert encode_dump(dump, log, append=True, resume=True, tokens=tokens).resumed == there
    assert decoded(log) == decoded(whole)
    assert encode_dump(dump, log, append=True, resume=True, sequence="new").resumed == 0


def test_a_killed_append_is_continued(tmp_path):
    dumps = [make_dump(tmp_path / f"{name}.safetensors", 700) for name in ("first", "chat")]
    encode_dumps(dumps, tmp_path / "whole.kvlog", residual=16)
    log = tmp_path / "a.kvlog"
    encode_dump(dumps[0], log, residual=16)
    for at in (300, 900):
        assert killed(log, at, dumps[1], append=True, resume=True)
        assert verify_log(log).verdict in ("clean", "torn tail")
    encode_dump(dumps[1], log, append=True, resume=True)
    for name in ("first", "chat"):
        assert decoded(log, name) == decoded(tmp_path / "whole.kvlog", name)


def test_a_long_name(tmp_path, dump):
    log = tmp_path / ("n" * 240)
    assert killed(log, 400, dump)
    encode_dump(dump, log, resume=True)
    assert names(tmp_path) == ["chat.safetensors", log.name, f"{log.name}.idx"]


def big_dump(path, mib, layers=8, heads=8, dim=128):
    """A dump of that size, written in pieces, each of which differs from the others."""
    tokens = (mib << 20) // (layers * 2 * heads * dim * 2)
    declared = [(f"{s}.{n}", BF16, (tokens, heads, dim)) for n in range(layers) for s in "kv"]
    random_ = np.random.default_rng(0)
    pool = random_.standard_normal((4096, heads, dim), dtype=np.float32).astype(BF16)
    with create_dump(path, declared, {}) as writer:
        for name, _, _ in declared:
            for start in range(0, tokens, 1024):
                first = int(random_.integers(3072))
                writer.write(name, start, pool[first : first + min(1024, tokens - start)])
        writer.commit()
    return path


def size_of(path):
    """The file's bytes; 0 when it is not there, or no longer: its writer renames it when it ends."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_killed_at_random_moments_until_done(tmp_path):
    dump = big_dump(tmp_path / "chat.safetensors", 32)
    encode_dump(dump, tmp_path / "whole.kvlog")
    kills, random_ = 0, random.Random(1)
    for n in range(20):  # a busy machine may be too slow to kill an encode of so little before it is done
        log = tmp_path / f"{n}.kvlog"
        kills += kill_until_done(dump, log, random_)
        with kv.open(log) as a, kv.open(tmp_path / "whole.kvlog") as b:
            one, other = a.sequence("chat"), b.sequence("chat")
            for layer in range(8):
                assert all(same(x, y) for x, y in zip(one.read(layer), other.read(layer), strict=True))
        if kills >= 6:
            return
    pytest.fail(f"{kills} kills in 20 encodes")


def kill_until_done(dump, log, random_):
    """Encodes a dump, killed a few times at any moment; how often."""

    def encode(write):
        os.write(write, b"-")
        kv.encode(dump, log, resume=True)

    kills = 0
    while not log.exists():
        with Child(encode) as child:
            child.read()
            making = making_path(log)
            wanted = size_of(making) + random_.randint(0, 2 << 20)  # let it get on by that, then kill it
            while child.poll() is None and kills < 8:
                if size_of(making) > wanted:
                    time.sleep(random_.random() / 200)
                    child.kill()
                time.sleep(0.0005)
            assert child.wait() in (0, -signal.SIGKILL)
            kills += child.wait() != 0
    return kills


def test_going_on_brings_no_evicted_token_back(tmp_path):
    """A sequence that was cut within a token group goes on where that begins, but not within what was evicted."""
    dump, log = make_dump(tmp_path / "chat.safetensors", 600, (0, 1)), tmp_path / "a.kvlog"
    encode_dump(dump, log, residual=0)
    with kv.open(log, "a") as store:
        sequence = store.sequence("chat")
        sequence.evict(460, 480)
        sequence.truncate(490)
    encode_dump(dump, log, append=True, resume=True)
    with kv.open(log) as store:
        assert len(store.sequence("chat")) == 600
        assert store.sequence("chat").evicted(0) == [(460, 480)]


def test_going_on_cuts_no_summary(tmp_path):
    dump, log = make_dump(tmp_path / "chat.safetensors", 600, (0, 1)), tmp_path / "a.kvlog"
    encode_dump(dump, log, residual=0)
    with kv.open(log, "a") as store:
        sequence = store.sequence("chat")
        rows = {n: [x[:2] for x in sequence.read(n)] for n in range(2)}
        sequence.summarize(420, 480, rows)
        sequence.truncate(490)
    encode_dump(dump, log, append=True, resume=True)
    with kv.open(log) as store:
        sequence = store.sequence("chat")
        assert [(own.first, own.end) for own in sequence.summaries(0)] == [(420, 480)]
        assert len(sequence.read(0)[0]) == 600 - 58
