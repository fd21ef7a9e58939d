"""Rows of opening a log, with its sidecar and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvcodec.bench.row import OURS, Contender, Row, WrongResult
from kvcodec.bench.scale import GROUP, Scale
from kvcodec.log.sidecar import sidecar_path
from kvcodec.store.model import Model
from kvcodec.store.opening import open_store

_LAYERS, _DIM = 32, 16
_STEP = 4096  # tokens of an append


def opening_rows(scale: Scale) -> list[Row]:
    """A log of many small records, made in the row's directory."""
    shape = f"{_records(scale)} records of {_LAYERS} layers, {GROUP} tokens x {_DIM} each"
    return [
        Row("open", "kvcodec.open, with the index sidecar", shape, "record",
            lambda _, folder: [_open(scale, folder, sidecar=True)], slow=True),
        Row("open-scan", "kvcodec.open, without it", shape, "record",
            lambda _, folder: [_open(scale, folder, sidecar=False)], slow=True),
    ]  # fmt: skip


def _records(scale: Scale) -> int:
    return scale.records // (2 * _LAYERS) * 2 * _LAYERS


def _open(scale: Scale, folder: Path, *, sidecar: bool) -> Contender:
    tokens, log = _records(scale) // (2 * _LAYERS) * GROUP, folder / "a.kvlog"
    rows = np.random.default_rng(0).standard_normal((min(tokens, _STEP), 1, _DIM), np.float32)
    model = Model.uniform(layers=_LAYERS, kv_heads=1, head_dim=_DIM)
    with open_store(log, "w", model=model, residual=0, sinks=0) as store:
        sequence = store.sequence("a")
        for first in range(0, tokens, _STEP):
            for layer in range(_LAYERS):
                sequence.append(layer, rows[: tokens - first], rows[: tokens - first])
    if not sidecar:
        sidecar_path(log).unlink()

    def run() -> int:
        with open_store(log) as store:
            return len(store.sequence("a"))

    def check() -> None:
        if (found := run()) != tokens:
            raise WrongResult(f"{OURS}: the log holds {found} tokens, want {tokens}")
        if sidecar_path(log).exists() != sidecar:
            raise WrongResult(f"{OURS}: reading made or took a sidecar")

    return Contender(OURS, run, _records(scale), check=check)
