"""What is trained on, what errors are measured on, and where the result goes: alike for all that is trained."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvcodec._version import __version__
from kvcodec.bulk.train_options import TrainOptions, Unit
from kvcodec.bulk.train_rows import DumpVectors, Part, find_rotation, fingerprint_dump
from kvcodec.codecs.rotation import Rotation
from kvcodec.dumps.dump import Dump
from kvcodec.errors import LogExists, SpecError


class Held(NamedTuple):
    """What errors are measured on: these dumps, or without any a fraction of those that are trained on."""

    dumps: Sequence[Dump]
    fraction: float


class Split(NamedTuple):
    """Parts to train on, and parts to measure on."""

    training: list[Part]
    measured: list[Part]

    @property
    def tokens(self) -> tuple[int, int]:
        """Of both, all dumps."""
        return sum(p.stop - p.start for p in self.training), sum(p.stop - p.start for p in self.measured)


def split_dumps(dumps: Sequence[Dump], held: Held, sinks: int) -> Split:
    """Without the first `sinks` tokens of each dump. Raises SpecError for a dump of which nothing is left."""
    training, measured = [], [Part(dump, min(sinks, dump.tokens), dump.tokens) for dump in held.dumps]
    for dump in dumps:
        out = 0 if held.dumps else max(1, round(dump.tokens * held.fraction))
        stop = dump.tokens - out
        if stop <= sinks:
            raise SpecError(f"{dump.path}: {dump.tokens} tokens, {sinks} sinks, {out} held out: none to train on")
        training.append(Part(dump, sinks, stop))
        measured += [] if held.dumps else [Part(dump, stop, dump.tokens)]
    return Split(training, measured)


class UnitVectors(NamedTuple):
    """Vectors of a unit to train on and to measure on, and how they were turned, if they are those from before that."""

    training: DumpVectors
    held_out: DumpVectors
    rotation: Rotation | None


def unit_vectors(split: Split, dumps: Sequence[Dump], unit: Unit, options: TrainOptions) -> UnitVectors:
    """Raises ShapeError, DumpError, SpecError."""
    unrotate, base = options.unrotates(unit), options.rope_base
    rotation = find_rotation(dumps, unit.uses, base) if unrotate else None
    training, held = (DumpVectors(parts, unit.uses, unrotate=unrotate, rope_base=base) for parts in split)
    return UnitVectors(training, held, rotation)


def check_out(out: Path, *, overwrite: bool) -> None:
    """Raises LogExists, or FileNotFoundError without its directory."""
    if not out.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(out.parent))
    if out.exists() and not overwrite:
        raise LogExists(errno.EEXIST, "exists already; ask for overwrite to replace it", str(out))


def describe_training(
    dumps: Sequence[Dump], split: Split, held: Held, options: TrainOptions, settings: dict[str, Any],
    units: Sequence[Unit],
) -> dict[str, Any]:  # fmt: skip
    """What the artefact says of its training but the results; no clock, and no number of threads."""
    tokens = [part.stop - part.start for part in split.training]
    return {
        "version": __version__,
        "settings": settings,
        "options": options.as_dict() | {"layers": sorted({layer for unit in units for layer, _ in unit.uses})},
        "dumps": [_describe_dump(d) | {"trained": n} for d, n in zip(dumps, tokens, strict=True)],
        "held_out": [_describe_dump(dump) for dump in held.dumps] or held.fraction,
        "model": dumps[0].metadata.get("model", ""),
    }


def describe_unit(unit: Unit, found: dict[str, Any]) -> dict[str, Any]:
    """A unit's entry in the information: its layers, its streams, and what was found."""
    layers = sorted({layer for layer, _ in unit.uses})
    streams = sorted({stream.name.lower() for _, stream in unit.uses})
    return {"layers": layers, "streams": streams, **found}


def _describe_dump(dump: Dump) -> dict[str, Any]:
    return {"name": dump.path.name, "fingerprint": fingerprint_dump(dump.path), "tokens": dump.tokens}
