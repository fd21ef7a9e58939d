"""Logs to be mutated: the golden ones that read, each followed by the sidecar that a writer leaves beside it."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np

import kvcodec as kv
from kvcodec.errors import KvcodecError
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import sidecar_path
from tests.fuzz.image_structs import ImageStructs
from tools.golden.fixed import fixed_random

_GOLDEN = Path(__file__).parent.parent / "golden"
# inputs name a log by its number in this list: new ones go behind the others
NAMES = (
    "int4", "cleaned", "product", "dictionary-grown", "predicted", "trellis", "dictionary-max", "dictionary-sets",
    "int8", "latent", "steps", "sequences", "window", "drop", "gap", "dictionary-rotated", "dictionary-parts",
    "dictionary-bound", "product-rows", "head-split", "int2", "raw", "worked-example", "float16",
    "split-copied", "head-dim-20-12", "int4-symmetric", "int4-axes-swapped", "head-dim-80", "small-blocks", "summary",
)  # fmt: skip
Rows = dict[tuple[str, int, int], list[set[bytes]]]  # of a sequence, layer and stream: what each token's row may be


class LogSeed:
    """A log's bytes, with and without its sidecar, and where its structs are."""

    def __init__(self, name: str) -> None:
        golden = (_GOLDEN / f"{name}.kvlog").read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "seed.kvlog"
            path.write_bytes(golden)
            with fixed_random(name, session=9), kv.open(path, "a") as store:
                append_token(store)
            self.log, self.sidecar = path.read_bytes(), sidecar_path(path).read_bytes()
        self.structs = ImageStructs(self.log + self.sidecar, len(self.log))

    @functools.cached_property
    def rows(self) -> Rows:
        """Rows as the log has them now, and as it had them behind each of its frames."""
        frames = [frame for block in self.structs.blocks for frame in block.frames]
        found: Rows = {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "seed.kvlog"
            path.write_bytes(self.log)
            _collect(path, found)
            for frame in frames:
                image = bytearray(self.log)
                image[frame.header.at] ^= 1
                path.write_bytes(image)
                _collect(path, found)
        return found


def append_token(store: kv.Store) -> None:
    """One of ones to the first sequence: who appends nothing leaves a sidecar that nobody trusts."""
    sequence = store.sequence(store.sequences()[0])
    for layer, shape in enumerate(store.model.layers):
        if shape.streams:
            sequence.append(layer, *(np.ones((1, stream.heads, stream.dim), np.float32) for stream in shape.streams))


@functools.cache
def log_seed(number: int) -> LogSeed:
    """The seed of that number, modulo their count."""
    return LogSeed(NAMES[number]) if number < len(NAMES) else log_seed(number % len(NAMES))


def _collect(path: Path, found: Rows) -> None:
    for mode in (Recovery.POINT_IN_TIME, Recovery.SKIP_DAMAGED):
        try:
            with kv.open(path, recovery=mode) as store:
                for sequence in store:
                    for layer in range(len(store.model.layers)):
                        _add(found, sequence, layer)
        except KvcodecError:
            continue


def _add(found: Rows, sequence: kv.Sequence, layer: int) -> None:
    try:
        streams = sequence.read(layer)
    except KvcodecError:
        return
    for n, rows in enumerate(streams):
        known = found.setdefault((sequence.name, layer, n), [])
        known += [set() for _ in range(len(rows) - len(known))]
        for token, row in enumerate(rows):
            known[token].add(np.ascontiguousarray(row).tobytes())
