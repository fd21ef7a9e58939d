"""Devices whose blocks are bad, or wear out: nothing is lost while good ones are left, and the log stays readable."""

import itertools

import numpy as np
import pytest

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import NoSpace, SpecError, WornOut
from kvcodec.flash.faults import Faults
from kvcodec.layout import RetireCause
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
    options = {"durability": "step", "faults": "seed=2,weak=0.9,weak_cycles=6,worn=0"}
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
