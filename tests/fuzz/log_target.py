"""Reader of logs: a mutated image in every recovery mode, its sequences read and attended to, the log verified.

An input is choices: which seed, what is repaired, and edits.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import kvcodec as kv
from kvcodec.bulk.verify import verify_log
from kvcodec.errors import KvcodecError
from kvcodec.layout import StreamId
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import sidecar_path
from tests.fuzz.choices import Choices
from tests.fuzz.edits import change_bytes, change_field
from tests.fuzz.image_structs import FIRST_BLOCK
from tests.fuzz.log_seeds import LogSeed, Rows, log_seed

_MOST_EDITS = 6
_MOST_TOKENS = 1 << 16  # rows of a sequence that so small a log can hold


def mutate(data: bytes) -> tuple[bytes, bytes | None, LogSeed, bool, int]:
    """A mutated log, its sidecar or None, the seed, whether checksums were repaired, and how to write to it."""
    choices = Choices(data)
    seed, flags, writing = log_seed(choices.number()), choices.number(), choices.number()
    image = bytearray(seed.log + seed.sidecar)
    for _ in range(_MOST_EDITS):
        _edit(image, seed, choices)
        if not choices.left:
            break
    repaired = flags & 3 != 0
    if repaired and len(image) == len(seed.log) + len(seed.sidecar):
        seed.structs.repair(image, chain=flags & 12 != 12, sidecar=flags & 32 == 0)
    sidecar = bytes(image[len(seed.log) :]) if flags & 16 else None
    return _resized(bytes(image[: len(seed.log)]), choices), sidecar, seed, repaired, writing


def _edit(image: bytearray, seed: LogSeed, choices: Choices) -> None:
    structs, what = seed.structs, choices.below(10)
    if what < 4:
        change_field(image, structs.of_records, choices)
    elif what < 6:
        change_field(image, structs.rare, choices)
    elif what < 8:
        change_bytes(image, *choices.pick(structs.records).body, choices)
    elif what == 8:
        change_bytes(image, 0, len(image), choices)
    else:
        _erase(image, seed, choices)


def _erase(image: bytearray, seed: LogSeed, choices: Choices) -> None:
    """A block, or some of its units, as if it had never been programmed."""
    block, unit = choices.pick(seed.structs.blocks), seed.structs.geometry.unit_bytes
    first, count = choices.below(len(block.slots)), choices.pick((1, 2, len(block.slots)))
    for n in range(first, min(first + count, len(block.slots))):
        slot = block.slots[n]
        image[slot.at : slot.end] = bytes(slot.dtype.itemsize)
        start = block.data + n * unit
        image[start : start + unit] = bytes(len(image[start : start + unit]))


def _resized(image: bytes, choices: Choices) -> bytes:
    what = choices.below(16)
    if what == 15:
        return image[: choices.below(len(image))]
    return image + bytes(choices.number(2)) if what == 14 else image


def run(data: bytes) -> None:
    """Raises whatever is no KvcodecError, and AssertionError for a number that is wrong."""
    image, sidecar, seed, repaired, writing = mutate(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzzed.kvlog"
        path.write_bytes(image)
        if sidecar is not None:
            sidecar_path(path).write_bytes(sidecar)
        for mode in Recovery:
            with contextlib.suppress(KvcodecError):
                _open(path, mode, None if repaired else seed.rows)
        verify_log(path)
        if writing & 3 == 3 and len(image) >= FIRST_BLOCK:
            with contextlib.suppress(KvcodecError):
                _write(path, compact=writing & 4 == 4)
            verify_log(path)


def _open(path: Path, mode: Recovery, wanted: Rows | None) -> None:
    with kv.open(path, recovery=mode) as store:
        store.stats()
        for sequence in store:
            for layer, shape in enumerate(store.model.layers):
                if shape.streams:
                    _read(sequence, layer, wanted)
                    _attend(sequence, layer, shape)


def _read(sequence: kv.Sequence, layer: int, wanted: Rows | None) -> None:
    try:
        streams = sequence.read(layer)
    except KvcodecError:
        return
    for n, rows in enumerate(streams):
        assert len(rows) <= _MOST_TOKENS, "more rows than so few bytes can hold"
        if wanted is None:
            continue
        known = wanted.get((sequence.name, layer, n), [])
        if len(rows) < len(sequence):  # some were evicted: rows are no longer numbered as tokens are
            known = [set().union(*known)] * len(rows)
        assert len(rows) <= len(known), "a token that never was"
        for token, row in enumerate(rows):
            assert np.ascontiguousarray(row).tobytes() in known[token], f"token {token} is not what was written"


def _attend(sequence: kv.Sequence, layer: int, shape: Any) -> None:
    scored = [stream for stream in shape.streams if stream.id != StreamId.V]
    heads, dim = scored[0].heads, sum(stream.dim for stream in scored)
    q = np.linspace(-2, 2, heads * dim, dtype=np.float32).reshape(heads, dim)
    with contextlib.suppress(KvcodecError):
        y = sequence.attend(layer, q, scale=0.25)
        assert not np.isnan(y).any(), "attention that is no number"  # raw rows may be infinite


def _write(path: Path, *, compact: bool) -> None:
    with kv.open(path, "a") as store:
        for sequence in list(store):
            for layer, shape in enumerate(store.model.layers):
                if shape.streams:
                    rows = [np.ones((3, s.heads, s.dim), np.float32) for s in shape.streams]
                    sequence.append(layer, *rows)
        store.sync()
        if compact:
            store.compact()
