"""Bits that flip in reads, and the code that corrects them: counted, never seen.

A unit is read with all flips that it has gathered since its block was erased. Up to `ecc` of them in a codeword are
corrected, and change nothing that is read; more are an error that names the place. So nobody ever gets wrong bytes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcodec.flash.faults import Faults
from kvcodec.flash.geometry import KIB, Geometry

_DUE = 0.5  # of the flips that can be corrected, from which on a block is to be cleaned
_FLIPS = 0xECC  # what the lots of a block's life are for


@dataclass
class _Life:
    """A block since it was erased. flips: of each codeword, uint32 (units, codewords); reads: of each unit; worst: most
    flips of a codeword that was read; corrected: bits, in all reads.
    """

    flips: NDArray[np.uint32]
    reads: NDArray[np.uint32]
    grave: NDArray[np.bool_]
    lot: np.random.Generator
    rate: float
    worst: int = 0
    corrected: int = 0


class ReadErrors:
    """What reads of a device met. corrected: bits that were put right; uncorrectable: units that could not be read;
    scrubbed: blocks that were erased when they were due.
    """

    def __init__(self, faults: Faults, geometry: Geometry) -> None:
        self._faults, self._geometry = faults, geometry
        self._codewords = max(1, geometry.unit_bytes // KIB)
        self._lives: dict[int, _Life] = {}
        self._lock = threading.Lock()
        self.corrected = self.uncorrectable = self.scrubbed = 0
        self._lost: set[tuple[int, int]] = set()
        self.due: set[int] = set()  # blocks that are to be cleaned while they can be

    @classmethod
    def of(cls, faults: Faults, uuid: bytes, geometry: Geometry) -> ReadErrors | None:
        """Those of a device, as `faults` remembers them; None if no read fails."""
        if not faults.fail_reads:
            return None
        found: ReadErrors = faults.memory.setdefault(uuid, cls(faults, geometry))
        return found

    def read(self, block: int, first: int, units: int, erases: int) -> tuple[int, str] | None:
        """Units of a block, which was erased so often, are read. The first that can't be, and why, if there is one."""
        with self._lock:
            life = self._lives.get(block)
            if life is None:
                life = self._lives[block] = self._begin(block, erases)
            own = slice(first, first + units)
            life.reads[own] += np.uint32(1)
            if life.rate:
                life.flips[own] += life.lot.poisson(life.rate, (units, self._codewords)).astype(np.uint32)
            flips, t = life.flips[own], self._faults.ecc
            corrected = int(flips[flips <= t].sum())
            life.corrected += corrected
            self.corrected += corrected
            life.worst = max(life.worst, int(flips.max(initial=0)))
            if life.worst > t * _DUE:
                self.due.add(block)
            grave = life.grave[own] & (life.reads[own] > self._faults.grave_reads)
            bad = np.flatnonzero(grave | (flips > t).any(axis=1))
            if not len(bad):
                return None
            new = {(block, first + int(one)) for one in bad} - self._lost
            self._lost |= new
            self.uncorrectable += len(new)
            at = int(bad[0])
            wrong = int(flips[at].max())
            return first + at, "can't be read any more" if grave[at] else f"{wrong} bits flipped, {t} can be corrected"

    def erased(self, block: int) -> None:
        """A block was erased: its flips are gone."""
        with self._lock:
            self._lives.pop(block, None)
            self._lost = {one for one in self._lost if one[0] != block}
            self.scrubbed += block in self.due
            self.due.discard(block)

    def of_block(self, block: int) -> tuple[int, int]:
        """Bits that were corrected in a block since it was erased, and the most that flipped in one codeword."""
        life = self._lives.get(block)
        return (0, 0) if life is None else (life.corrected, life.worst)

    def _begin(self, block: int, erases: int) -> _Life:
        units = self._geometry.units_per_block
        bits = 8 * self._geometry.unit_bytes / self._codewords
        rate = self._faults.flips * bits * (1 + erases / self._geometry.rated_cycles)
        lot = np.random.default_rng([self._faults.seed, _FLIPS, block, erases])
        grave = self._faults.are_grave(block, 0, units)
        flips = np.zeros((units, self._codewords), np.uint32)
        return _Life(flips, np.zeros(units, np.uint32), grave, lot, rate)
