"""Writing golden logs, and describing them as index.json does."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import kvcodec
from kvcodec.errors import KvcodecError
from kvcodec.log.recover import Recovery
from kvcodec.log.sidecar import sidecar_path
from tools.golden.case import Case
from tools.golden.catalogue import CASES
from tools.golden.fixed import fixed_random

WITH_SIDECAR = ("worked-example", "durable-lost")


def make_case(case: Case, directory: Path) -> Path:
    """Write one golden log, and its sidecar if that is part of it."""
    path = directory / f"{case.name}.kvlog"
    with fixed_random(case.name):
        case.make(path)
    if case.name not in WITH_SIDECAR:
        sidecar_path(path).unlink(missing_ok=True)
    return path


def read_all(path: Path, recovery: str = "torn-tail") -> dict[str, dict[str, Any]]:
    """Each sequence's length and the digests of its rows' bits, by layer and stream. Raises what the store raises."""
    out = {}
    with kvcodec.open(path, recovery=recovery) as store:
        for sequence in store:
            rows = {}
            for n, layer in enumerate(store.index.sequences[sequence._index.info.id].model.layers):
                if layer.streams:
                    for stream, array in zip(layer.streams, sequence.read(n), strict=True):
                        rows[f"{n}.{stream.name}"] = hashlib.sha256(array.astype(array.dtype).tobytes()).hexdigest()
            out[sequence.name] = {"tokens": len(sequence), "rows": rows}
    return out


def read_modes(path: Path) -> dict[str, Any]:
    """For each recovery mode what is read, in tokens of each sequence, or the error."""
    out: dict[str, Any] = {}
    for mode in Recovery:
        try:
            out[mode.value] = {name: read["tokens"] for name, read in read_all(path, mode).items()}
        except KvcodecError as error:
            out[mode.value] = type(error).__name__
    return out


def describe(case: Case, path: Path) -> dict[str, Any]:
    """A case's entry in the index. The expected error is the case's own word, not what was seen."""
    entry: dict[str, Any] = {"name": path.name, "shows": case.shows, "sha256": digest(path)}
    if case.name in WITH_SIDECAR:
        entry["sidecar"] = digest(sidecar_path(path))
    if case.error:
        entry |= {"error": case.error, "at": case.at}
    else:
        entry["sequences"] = read_all(path)
    if case.modes:
        entry["modes"] = read_modes(path)
    return entry


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_golden(directory: Path) -> None:
    """Write all frozen cases and index.json."""
    cases = [case for case in CASES if case.frozen]
    index = [describe(case, make_case(case, directory)) for case in cases]
    text = json.dumps(index, indent=1, ensure_ascii=False)
    (directory / "index.json").write_text(text + "\n", encoding="utf-8")
