"""Devices whose blocks are bad, or wear out: nothing is lost while good ones are left, and the log stays readable."""

import functools
import itertools
import random
from collections import Counter
from unittest import mock

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import NoSpace, SpecError, WornOut
from kvcodec.flash import device as device_module
from kvcodec.flash import programming
from kvcodec.flash.faults import Faults
from kvcodec.flash.image import Image
from kvcodec.layout import RetireCause
from tests.caches import rows
from tests.test_lifecycle import append, check, data, make


def churn(store, known, numbers, rounds):
    """Sequences come and go, oldest first."""
    for n in itertools.islice(numbers, rounds):
        while len(known) > 6:
            name = next(iter(known))
            store.drop(name)
            del known[name]
        parts = data(60, n)
        append(store.sequence(str(n)), parts)
        known[str(n)] = parts


def test_faults_are_the_same_at_every_run():
    one, other = Faults.parse("seed=3,bad=0.1,weak=0.2,weak_cycles=9"), Faults(3, 0.1, 0.2, 9)
    assert one == other
    assert one.bad_blocks(1000) == other.bad_blocks(1000)
    assert 60 < len(one.bad_blocks(1000)) < 140
    weak = [block for block in range(1000) if one.fails_to_erase(block, 9, 100)]
    assert 140 < len(weak) < 260
    assert all(one.fails_to_erase(block, 100, 100) for block in range(9))
    assert not any(Faults().fails_to_erase(block, 99, 100) for block in range(9))
    for text in ("bad=2", "x=1", "bad=a", "weak_cycles=0"):
        with pytest.raises(SpecError):
            Faults.parse(text)


def test_bad_blocks_are_never_programmed(tmp_path):
    path = tmp_path / "c"
    with make(path, capacity=60 * 4096, faults="seed=1,bad=0.2", durability="step") as store:
        bad = set(Faults(1, 0.2).bad_blocks(60))
        assert len(bad) > 5
        assert set(store.device.retired) == bad
        known, numbers = {}, itertools.count()
        churn(store, known, numbers, 40)
    with kv.open(path, "a", durability="step") as store:
        assert store.device.retired == dict.fromkeys(bad, RetireCause.FACTORY)
        churn(store, known, numbers, 20)
        for block in bad:
            assert not store.device.programmed(block).any()
        for name, parts in known.items():
            check(store.sequence(name), parts)
    assert verify_log(path).verdict == "clean"


def test_blocks_that_do_not_erase_are_retired_until_none_is_left(tmp_path):
    path = tmp_path / "c"
    known, numbers, lot = {}, itertools.count(), np.random.default_rng(0)
    options = {"durability": "step", "faults": "seed=2,weak=0.9,weak_cycles=3,worn=0"}
    store = make(path, capacity=60 * 4096, **options)
    with pytest.raises(WornOut):  # noqa: PT012
        for _ in range(100):
            churn(store, known, numbers, 4)
            if lot.random() < 0.3:
                store.abandon()
                store = kv.open(path, "a", **options)
    retired = dict(store.device.retired)
    assert len(retired) > 20
    assert set(retired.values()) == {RetireCause.ERASE}
    store.abandon()
    for mode in "ra":
        with kv.open(path, mode) as store:
            held = {name: parts for name, parts in known.items() if name in store.sequences()}
            assert len(held) >= len(known) - 1
            for name, parts in held.items():
                check(store.sequence(name), parts)
    assert verify_log(path).verdict in ("clean", "torn tail")


def test_a_device_worn_to_its_rating_is_worn_out(tmp_path):
    device = "page=256,unit=64,block=4096,cycles=4"
    known, numbers = {}, itertools.count()
    with make(tmp_path / "c", device=device, capacity=40 * 4096, durability="step", faults="seed=1") as store:
        with pytest.raises(NoSpace) as caught:
            churn(store, known, numbers, 400)
        assert isinstance(caught.value, WornOut)
        assert max(store.device.erase_counts.values()) <= 4
        assert sum(store.device.erase_counts.values()) > 80
        for name, parts in list(known.items())[1:]:
            check(store.sequence(name), parts)


class PowerCut(Exception):
    """Nothing is written any more."""


def cut_power(after):
    """Lets so many writes and erases of a device pass, half of the next one, and none after that."""
    write, punch, left = Image.write, Image.punch, [after]

    def limited(image, offset, data):
        left[0] -= 1
        if left[0] < 0:
            write(image, offset, memoryview(data)[: len(data) // 2]) if left[0] == -1 else None
            raise PowerCut
        write(image, offset, data)

    def limited_punch(image, offset, length):
        left[0] -= 1
        if left[0] < 0:
            punch(image, offset, length // 2) if left[0] == -1 else None
            raise PowerCut
        punch(image, offset, length)

    return mock.patch.multiple(Image, write=limited, punch=limited_punch)


HARSH = {"seed": 1, "bad": 0.05, "weak": 0.03, "weak_cycles": 200, "worn": False}
LONGEST = 300  # tokens of a sequence


@functools.lru_cache(8)
def all_rows(name):
    """Rows of a sequence, of which it has the first ones: layer by layer, K and V."""
    return [tuple(rows(n, s, LONGEST + 6, 1, 16, salt=name) for s in "kv") for n in range(2)]


def live_on_a_bad_device(path, appends, every, **faults):
    """Sequences grow token by token, are read and dropped, on a device with bad blocks, units that fail to program and
    bits that flip, whose power fails; gives counts of what happened. Power fails between what is asked of the file: the
    disk beneath is not waited for.
    """
    own = Faults(**HARSH | faults)
    options, spoil = {"durability": "step", "faults": own}, mock.Mock(wraps=programming.spoil_unit)
    lot, known, numbers, counts = random.Random(5), {}, itertools.count(), Counter()
    store = make(path, device="page=512,unit=64,block=8192", capacity=120 * 8192, residual=32, **options)
    with mock.patch.object(device_module, "spoil_unit", spoil), mock.patch("os.fdatasync"):
        while counts["appends"] < appends:
            try:
                with cut_power(lot.randint(every // 2, every * 3 // 2)):
                    while counts["appends"] < appends:
                        known = _live_on(store, known, lot, numbers)
                        counts["appends"] += 1
            except PowerCut:
                counts["cuts"] += 1
                counts["erases"] = sum(store.device.erase_counts.values())
                store.abandon()
                store = kv.open(path, "a", **options)
                known = _after_cut(store, known)
    counts["program failures"] = spoil.call_count
    counts |= Counter(cause.name for cause in store.device.retired.values())
    if errors := store.device.read_errors:
        counts |= {"flips corrected": errors.corrected, "scrubbed": errors.scrubbed, "lost": errors.uncorrectable}
    store.close()
    return counts


def _live_on(store, known, lot, numbers):
    """One append, now and then one read, and drops."""
    if not known or len(known[max(known)]) > LONGEST:
        name = next(numbers)
        known[name] = range(0)
        store.sequence(str(name))
    name = max(known)
    start, more = len(known[name]), lot.randint(1, 3)
    parts = [tuple(x[start : start + more] for x in own) for own in all_rows(name)]
    store.sequence(str(name)).append_layers(dict(enumerate(parts)))
    known[name] = range(start + more)
    if lot.random() < 0.01:
        _check_rows(store.sequence(str(lot.choice(sorted(known)))))
    while sum(map(len, known.values())) > 1500:
        store.drop(str(min(known)))
        del known[min(known)]
    return known


def _check_rows(sequence):
    for layer, wanted in enumerate(all_rows(int(sequence.name))):
        for own, whole in zip(sequence.read(layer), wanted, strict=True):
            assert np.array_equal(own.view(np.uint16), whole[: len(own)].view(np.uint16))


def _after_cut(store, known):
    """What is there, which is all that returned, and at most one append or the loss of one dropped sequence more."""
    names = {int(name) for name in store.sequences()}
    assert len(set(known) - names) <= 1
    assert names <= set(known) | {max(known, default=0) + 1} | {min(known, default=0) - 1}
    found = {}
    for name in sorted(names):
        sequence = store.sequence(str(name))
        if name in known:
            assert len(known[name]) <= len(sequence) <= len(known[name]) + 3
        _check_rows(sequence)
        found[name] = range(len(sequence))
    return found


def test_some_appends_on_a_bad_device_whose_power_fails(tmp_path):
    counts = live_on_a_bad_device(tmp_path / "c", 400, 250, program=1e-3, flips=1e-4)
    assert counts["cuts"] > 2
    assert min(counts[one] for one in ("program failures", "PROGRAM", "FACTORY", "flips corrected")) > 0
    assert not counts["lost"]
    assert verify_log(tmp_path / "c").verdict == "clean"


@pytest.mark.campaign
def test_100_000_appends_on_a_bad_device_whose_power_fails(tmp_path):
    counts = live_on_a_bad_device(tmp_path / "c", 100_000, 1000, program=2e-5, flips=1e-4)
    print(dict(counts))  # what the run came to
    assert counts["cuts"] > 200
    assert min(counts[one] for one in ("PROGRAM", "flips corrected", "scrubbed")) > 0
    assert not counts["lost"]
    assert verify_log(tmp_path / "c").verdict == "clean"
