"""What the fuzzer found, and inputs by lot: only errors of errors.py, within bounds of time and memory, and never a
wrong number where checksums were not made right.
"""

import contextlib
import importlib
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.errors import FormatError
from kvcodec.layout import Kind
from tests.fuzz import log_target
from tests.fuzz.choices import Choices
from tests.fuzz.corpus import TARGETS, inputs, lot
from tests.fuzz.edits import interesting
from tests.fuzz.kvdict_target import kvdict_seeds
from tests.fuzz.kvdict_target import mutate as mutate_kvdict
from tests.fuzz.log_seeds import NAMES, log_seed

LOTS = {"log": 16, "dump": 500, "kvdict": 120, "text": 1000}
MEMORY = 4 << 30  # bytes of address space beyond what the process has
SEEDS = 7  # logs of all codecs, and one that was cleaned
SECONDS = 300  # of an input, in which kernels may have to be compiled


@contextlib.contextmanager
def bounded():
    """Little memory, little time, and small files."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = {resource.RLIMIT_AS: pages * resource.getpagesize() + MEMORY, resource.RLIMIT_FSIZE: 256 << 20}
    before = {limit: resource.getrlimit(limit) for limit in limits}

    def hang(*_):
        raise TimeoutError(f"no end after {SECONDS} s")

    handler = signal.signal(signal.SIGALRM, hang)
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, before[limit][1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        for limit, was in before.items():
            resource.setrlimit(limit, was)


def replay(target, named):
    run = importlib.import_module(f"tests.fuzz.{target}_target").run
    for name, data in named:
        with bounded():
            try:
                run(data)
            except BaseException as error:
                error.add_note(f"{target} {name}: {data.hex()}")
                raise


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus(target):
    replay(target, inputs(target))


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_by_lot(target):
    """Of few logs: what each of them may give is read of it first."""
    chosen = enumerate(lot(1, LOTS[target]))
    few = target == "log"
    replay(target, ((n, bytes([n % SEEDS]) + data[1:] if few else data) for n, data in chosen))


@pytest.mark.parametrize("name", NAMES)
def test_repairing_what_is_whole_changes_nothing(name):
    """So that what a repaired mutant says wrong is what was changed."""
    seed = log_seed(NAMES.index(name))
    whole = seed.log + seed.sidecar
    image = bytearray(whole)
    seed.structs.repair(image, chain=True, sidecar=True)
    assert bytes(image) == whole


def test_seeds_hold_every_kind_of_record():
    kinds = {
        int(record.header.of(bytearray(log_seed(n).log))["kind"])
        for n in range(len(NAMES))
        for record in log_seed(n).structs.records
    }
    assert kinds == set(Kind)


@pytest.mark.parametrize("field", ["tokens", "heads", "head_dim"])
def test_a_repaired_mutant_is_refused_by_what_it_says(tmp_path, field):
    """Not by a checksum, which would make fuzzing one of checksums alone."""
    seed = log_seed(NAMES.index("raw"))
    image = bytearray(seed.log + seed.sidecar)
    record = next(r for r in seed.structs.records if int(r.header.of(image)["kind"]) == Kind.GROUP)
    record.header.of(image)[field] += 1
    seed.structs.repair(image, chain=True, sidecar=True)
    path = tmp_path / "mutant.kvlog"
    path.write_bytes(image[: len(seed.log)])
    with pytest.raises(FormatError) as raised, kv.open(path) as store:
        [sequence.read(0) for sequence in store]
    assert "checksum" not in str(raised.value)


def test_the_oracle_finds_a_wrong_number(monkeypatch):
    """Numbers that a mutant gives and its seed never gave are found where checksums were left alone."""
    seed = log_seed(NAMES.index("raw"))
    sequence = next(iter(seed.rows))[0]
    rows = np.zeros((2, 1, 16), np.float32)
    wrong = type("Sequence", (), {"name": sequence, "read": lambda *_: (rows, rows), "__len__": lambda _: 2})()
    with pytest.raises(AssertionError, match="not what was written"):
        log_target._read(wrong, 0, seed.rows)


def test_choices_are_made_of_whatever_bytes():
    choices = Choices(b"\x05\x00\x02")
    assert (choices.below(3), choices.number(2), choices.left) == (2, 512, 0)
    assert (choices.number(8), choices.pick("ab"), choices.below(0), choices.below(1)) == (0, "a", 0, 0)
    assert all(0 <= interesting(7, 2, Choices(bytes([n]))) < 1 << 16 for n in range(64))


def test_a_mutant_of_nothing_is_its_seed():
    assert mutate_kvdict(b"\1\0\0") != kvdict_seeds()[1]  # an input without edits is one edit of zeros
    image, sidecar, seed, repaired, _ = log_target.mutate(b"\0\0\0")
    assert (sidecar, repaired) == (None, False)
    assert sum(a != b for a, b in zip(image, seed.log, strict=True)) <= 8
