"""Writer upon writer, of which each loses single units, erases that fail, and blocks that are cleaned as soon as they
are closed: numbers of frames are given again, and those that had them first are left in the log.
"""

import contextlib
from unittest import mock

import pytest

from kvcodec.errors import EraseFailed
from kvcodec.flash.device import Device
from tests.power import after_few_lost
from tests.test_chains import SHARDS, Chain, live_all

FAILING, CLEANED = 0.04, 0.35  # shares of erases, and of steps behind which blocks are cleaned


class RoughChain(Chain):
    """failing: whether erases fail beside those that fail on a device of its kind."""

    def __init__(self, folder, seed):
        super().__init__(folder, seed)
        self.failing = self.lot.random() < 0.5

    def _may_wear_out(self):
        return self.failing or super()._may_wear_out()

    @contextlib.contextmanager
    def _aged(self):
        erase = Device.erase

        def erase_or_fail(device, block):
            if self.failing and self.lot.random() < FAILING:
                raise EraseFailed(5, f"block {block} does not erase", str(self.path))
            erase(device, block)

        with super()._aged(), mock.patch.object(Device, "erase", erase_or_fail):
            yield

    def _pace(self):
        """Half of the writers sync nothing, and clean nothing: what they lose is in front of what they do not."""
        self.quiet = self.lot.random() < 0.5
        return (False, 0) if self.quiet else super()._pace()

    def _steps(self):
        return self.lot.choice([8, 16, 24]) if self.quiet else super()._steps()

    def _power_until(self, asked):
        return asked if self.quiet and self.lot.random() < 0.7 else super()._power_until(asked)

    def _after_loss(self, asked, count):
        few = self.lot.choice([1, 1, 1, 2, 3, 5])
        return after_few_lost(self.before, asked, count, self.geometry.unit_bytes, self.lot, few)

    def _choose(self):
        what, *how = super()._choose()
        if what == "append":
            name, tokens, n = how
            how = [name, tokens if self.lot.random() < 0.2 else min(tokens, 4), n]
        return what, *how

    def _step(self, store):
        super()._step(store)
        if not self.quiet and self.lot.random() < CLEANED:
            self._clean_new(store)

    def _clean_new(self, store):
        """Of the youngest blocks of either lane some, or the open one, while there is room for what they hold."""
        if store.device.erased_blocks <= store._cleaner.reserve + 4:
            return
        youngest = [block for walk in store.log.walks for block in walk.blocks.in_use()[-4:]]
        chosen = self.lot.sample(youngest, min(len(youngest), self.lot.randint(1, 4)))
        with store._writers.unless_full():
            store._cleaner.empty({block.number for block in chosen} - store.device.retired.keys())


@pytest.mark.parametrize("seed", range(6))
def test_some_rough_chains(tmp_path, seed):
    RoughChain(tmp_path, seed).live(4)


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(SHARDS))
def test_rough_chains_of_writers(tmp_path, shard):
    live_all(RoughChain, tmp_path, shard)
