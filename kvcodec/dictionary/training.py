"""Training one dictionary: warm start, mini-batches, early stop, int8 atoms and what they cost on held-out vectors.

The first atoms are training vectors. Each epoch visits all blocks of training vectors in an order of its own, in
mini-batches: code one over the atoms, add the moments of its codes to those of the older ones, which fade, move the
atoms (learning.py). At an epoch's end atoms that hardly a vector took, and twins, become the residuals of the vectors
that are coded worst, and the held-out error decides which epoch's atoms are kept and when to stop. Vectors count as
they are, not as of unit length: what counts is the error of all beside the energy of all.

Memory is bounded, whatever the number of vectors: settings.memory_bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.dictionary import Dictionary, quantize_atoms
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.uses import Use
from kvcodec.dictionary.coder import Coder, Sparse
from kvcodec.dictionary.learning import Moments, choose_new, descend, find_useless
from kvcodec.dictionary.settings import Settings
from kvcodec.dictionary.space import Space
from kvcodec.dictionary.vectors import Vectors, read_blocks, read_parts, split_batches
from kvcodec.errors import SpecError

SAMPLE = 2048  # held-out vectors that the error after each epoch is measured on
_PART = 1024  # vectors that are measured at once
_CANDIDATES = 4  # for each atom to replace


class Step(NamedTuple):
    """Where training is: of `batches` mini-batches in all epochs `done` are. error: on the held-out sample after the
    last whole epoch, in the metric.
    """

    done: int
    batches: int
    epoch: int
    error: float


Tell = Callable[[Step], None]


@dataclass(frozen=True)
class Trained:
    """A dictionary, and how it came to be. curve: held-out error before the first and after each epoch, float atoms.
    error: plain relative error of held-out vectors after all atoms, int8 atoms. vectors, held_out: how many.
    replaced: atoms that were, in all epochs. stopped: why: "epochs", "converged" or "time".
    """

    dictionary: Dictionary
    curve: tuple[float, ...]
    error: float
    vectors: int
    held_out: int
    replaced: int
    stopped: str

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "curve": [round(error, 6) for error in self.curve],
            "error": round(self.error, 6),
            "errors": [round(float(error), 6) for error in self.dictionary.errors],
            "vectors": self.vectors,
            "held_out": self.held_out,
            "replaced": self.replaced,
            "stopped": self.stopped,
        }


def train_dictionary(
    training: Vectors,
    held_out: Vectors,
    settings: Settings,
    uses: tuple[Use, ...],
    *,
    rotation: Rotation | None = None,
    metric: NDArray[np.float32] | None = None,
    over: Callable[[], bool] = lambda: False,
    tell: Tell = lambda _step: None,
) -> Trained:
    """Train a dictionary for the streams `uses`.

    rotation: of the keys, where the vectors are what they were before it. metric: float32 (d, d), in which errors are
    measured. over: asked between mini-batches whether time is up. tell: called after each. The same for the same
    arguments, as long as `over` says no.
    Raises SpecError for fewer distinct training vectors than atoms, or a metric that is none.
    """
    if not sum(training.counts) or not sum(held_out.counts):
        raise SpecError("no vectors to train on, or none held out")
    mean = _find_mean(training) if settings.mean else None
    job = _Training(training, held_out, settings, Space(mean, metric), uses, over, tell)
    job.run()
    atoms, kept = quantize_atoms(job.space.leave(job.best)), np.zeros(0, np.float32) if mean is None else mean
    int8 = Dictionary(atoms, uses, kept, rotation, metric)
    errors, plain = measure_errors(int8, held_out, settings.sparsity)
    whole = Dictionary(int8.atoms, uses, int8.mean, rotation, metric, errors)
    counts = (sum(training.counts), sum(held_out.counts))
    return Trained(whole, tuple(job.curve), plain, *counts, job.replaced, job.stopped)


def measure_errors(dictionary: Dictionary, vectors: Vectors, sparsity: int) -> tuple[NDArray[np.float32], float]:
    """Relative errors of vectors coded over a dictionary, with coefficients that are not rounded: float32 (s,) in the
    dictionary's metric after 1, 2, … atoms, and the plain one after all of them.
    """
    mean = dictionary.mean if dictionary.has_mean else None
    space = Space(mean, dictionary.metric)
    factors = Space(None, dictionary.metric).enter(dictionary.atoms.astype(np.float32))
    lengths = np.sqrt(np.einsum("nd,nd->n", factors, factors))[:, None]
    lengths = np.where(lengths > 0, lengths, 1).astype(np.float32)
    coder = Coder(factors / lengths, sparsity)
    atoms = dictionary.atoms / lengths
    left, energy = np.zeros(sparsity), 0.0
    plain, plain_energy = 0.0, 0.0
    for rows in read_parts(vectors, _PART):
        codes = coder.code(space.enter(rows))
        left += codes.residuals.sum(axis=0, dtype=np.float64)
        energy += space.energy(rows)
        wrong = rows - dictionary.mean
        for place in range(sparsity):
            wrong -= codes.coefficients[:, place, None] * atoms[codes.indices[:, place]]
        plain += float(np.square(wrong, dtype=np.float64).sum())
        plain_energy += float(np.square(rows, dtype=np.float64).sum())
    return np.sqrt(left / max(energy, 1e-300)).astype(np.float32), math.sqrt(plain / max(plain_energy, 1e-300))


class _Training:
    def __init__(
        self,
        training: Vectors,
        held_out: Vectors,
        settings: Settings,
        space: Space,
        uses: tuple[Use, ...],
        over: Callable[[], bool],
        tell: Tell,
    ) -> None:
        self._vectors, self._settings, self.space = training, settings, space
        self._over, self._tell = over, tell
        self._lot = np.random.default_rng([settings.seed, *(number for use in uses for number in use)])
        rows = _read_sample(held_out, self._lot, SAMPLE)
        self._sample, self._energy = space.enter(rows), space.energy(rows)
        self._moments = Moments(settings.atoms, training.dim)
        self.curve: list[float] = []
        self.replaced, self.stopped = 0, "epochs"

    def run(self) -> None:
        """Leaves the atoms of the best epoch in `best`."""
        settings, idle = self._settings, 0
        atoms = self._draw_atoms()
        coder = Coder(atoms, settings.sparsity)
        self.best = atoms
        self.curve.append(self._measure(coder))
        for epoch in range(settings.epochs):
            order = self._lot.permutation(len(self._vectors.counts))
            coder = self._run_epoch(coder, epoch, order)
            error, least = self._measure(coder), min(self.curve)
            self.curve.append(error)
            if error < least:
                self.best = coder.atoms
            idle = 0 if error < least * (1 - settings.gain) else idle + 1
            if self.stopped == "time":
                return
            if idle >= settings.patience:
                self.stopped = "converged"
                return

    def _run_epoch(self, coder: Coder, epoch: int, order: NDArray[np.int64]) -> Coder:
        counts, moments = self._vectors.counts, self._moments
        batches, total = split_batches(order, counts, self._settings.batch_size), sum(counts)
        moments.uses[:] = 0
        for n, blocks in enumerate(batches):
            rows = self.space.enter(read_blocks(self._vectors, list(blocks)))
            codes = coder.code(rows)
            moments.fade(max(0.0, 1 - len(rows) / (total * self._settings.memory)))
            moments.add(rows, codes)
            before, coder = coder, Coder(descend(coder.atoms, moments), self._settings.sparsity)
            done = epoch * len(batches) + n + 1
            self._tell(Step(done, self._settings.epochs * len(batches), epoch, self.curve[-1]))
            if self._over():
                self.stopped = "time"
                return coder
        return self._replace(coder, before, rows, codes)

    def _replace(self, coder: Coder, before: Coder, rows: NDArray[np.float32], codes: Sparse) -> Coder:
        """After an epoch, whose last mini-batch is `rows`, `codes` over the atoms of `before`."""
        useless = find_useless(coder, self._moments.uses, self._settings.least)
        if not len(useless):
            return coder
        worst = np.argsort(-codes.residuals[:, -1], kind="stable")[: _CANDIDATES * len(useless)]
        atoms = coder.atoms.copy()
        new = choose_new(atoms, useless, rows[worst] - before.rebuild(codes, worst))
        self._moments.forget(new)
        self.replaced += len(new)
        return Coder(atoms, self._settings.sparsity) if len(new) else coder

    def _draw_atoms(self) -> NDArray[np.float32]:
        """Distinct training vectors, drawn from about four times as many as are needed."""
        n, d = self._settings.atoms, self._vectors.dim
        rows = self.space.enter(_read_sample(self._vectors, self._lot, _CANDIDATES * n))
        atoms = np.zeros((n, d), np.float32)
        drawn = rows[self._lot.permutation(len(rows))]
        found = len(choose_new(atoms, np.arange(n), drawn))
        if found < n:
            raise SpecError(
                f"{n} atoms: only {found} of {len(rows)} training vectors are distinct; fewer atoms, or more tokens"
            )
        return atoms

    def _measure(self, coder: Coder) -> float:
        left = coder.code(self._sample).residuals[:, -1].sum(dtype=np.float64)
        return math.sqrt(left / self._energy) if self._energy else 0.0


def _find_mean(vectors: Vectors) -> NDArray[np.float32]:
    total = np.zeros(vectors.dim)
    for rows in read_parts(vectors, _PART):
        total += rows.sum(axis=0, dtype=np.float64)
    return (total / sum(vectors.counts)).astype(np.float32)


def _read_sample(vectors: Vectors, lot: np.random.Generator, count: int) -> NDArray[np.float32]:
    """About `count` vectors of blocks drawn by lot, at most: all of them if there are no more."""
    order = lot.permutation(len(vectors.counts))
    ends = np.cumsum([vectors.counts[block] for block in order])
    return read_blocks(vectors, list(order[: int(np.searchsorted(ends, count)) + 1]))[:count]
