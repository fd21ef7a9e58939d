"""Readers that stand still between any two looks at a log, while a writer goes on and cleans all of it: what is there
is read, and nothing is called damage.
"""

import itertools
import random
from unittest import mock

import pytest

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.flash.image import Image
from tests.campaigns import times
from tests.test_lifecycle import append, check, data, make

BLOCKS = 48
TOKENS = 40
MOST = 12  # sequences at once
BURSTS = (3, 40, 200)  # sequences written while a reader stands still; the longest clean the device more than once
LOOKS = 700  # more than opening or following such a log takes
SHARDS = times(8, 80)


class Busy:
    """A writer whose sequences come and go. kept: rows by name. bursts: how often another stood still for it."""

    def __init__(self, path, seed):
        make(path, capacity=BLOCKS * 4096).close()
        self.store, self.kept, self.bursts = kv.open(path, "a"), {}, 0
        self._numbers, self._lot = itertools.count(seed * 100_000), random.Random(seed)
        self.write(30)

    def write(self, sequences):
        for _ in range(sequences):
            number = next(self._numbers)
            self.kept[str(number)] = data(TOKENS, number)
            append(self.store.sequence(str(number)), self.kept[str(number)])
            if len(self.kept) > MOST:
                gone = self._lot.choice(sorted(self.kept))
                self.store.drop(gone)
                del self.kept[gone]
        self.store.sync()

    def at_look(self, look, burst, again):
        """While this lasts: it writes at a look of another at the file. again: and a little at later ones."""
        view, looks, own = Image.view, itertools.count(1), self.store.device.image

        def view_late(image, *where):
            if image is not own:
                n = next(looks)
                if n == look or (again and look < n < look + 1000 and (n - look) % 97 == 0):
                    self.bursts += n == look
                    self.write(burst if n == look else 2)
            return view(image, *where)

        return mock.patch.object(Image, "view", view_late)


def stand_still(path, seed, looks):
    """Readers that do so at each of these looks, one while it opens the log and one that follows it."""
    writer = Busy(path, seed)
    for n, look in enumerate(looks):
        burst, again = BURSTS[n % 3], n % 2 == 0
        with writer.at_look(look, burst, again), kv.open(path) as reader:
            is_right(reader, writer)
        with kv.open(path) as reader:
            writer.write(BURSTS[n // 3 % 2])
            with writer.at_look(look // 3 + 1, burst, again):
                reader.refresh()
            is_right(reader, writer)
    assert sum(writer.store.device.erase_counts.values()) > BLOCKS
    assert writer.bursts > len(looks)  # of two for each
    writer.store.close()


def is_right(reader, writer):
    assert sorted(reader.sequences()) == sorted(writer.kept)
    for name, parts in writer.kept.items():
        check(reader.sequence(name), parts)


def test_readers_that_stand_still_here_and_there(tmp_path):
    stand_still(tmp_path / "c", 0, range(5, LOOKS, 60))


@pytest.mark.campaign
@pytest.mark.parametrize("shard", range(SHARDS))
def test_readers_that_stand_still_anywhere(tmp_path, shard):
    stand_still(tmp_path / "c", 1 + shard, range(1 + shard % 8, LOOKS, 8))


def test_verify_takes_no_block_that_is_erased_meanwhile_for_damage(tmp_path):
    path = tmp_path / "c"
    writer = Busy(path, 9)
    for look in range(20, 900, 125):
        with writer.at_look(look, 40, again=False):
            assert verify_log(path).verdict in ("clean", "torn tail")
    assert writer.bursts == 8
    writer.store.close()
