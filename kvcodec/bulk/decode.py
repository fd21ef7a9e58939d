"""A log back into a dump: kvcodec.decode."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.bulk.chunks import Progress, no_progress, token_chunks
from kvcodec.bulk.salvage import LostTokens, find_lost_tokens, kept_tokens, token_ranges
from kvcodec.bulk.sources import pick_sequence
from kvcodec.dumps.safetensors_writer import SafetensorsWriter
from kvcodec.errors import NonFiniteError, SpecError
from kvcodec.log.recover import Recovery
from kvcodec.store.model import Model
from kvcodec.store.sequence import Sequence
from kvcodec.store.store import Store, open_store

FilePath = str | os.PathLike[str]
DTYPES: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


@dataclass(frozen=True)
class DecodeReport:
    """What was decoded. tokens: rows written. lost: token ranges [first, end) left out, with skip-damaged only."""

    log: str
    dump: str
    sequence: str
    tokens: int
    layers: int
    dtype: str
    dump_bytes: int
    lost: tuple[tuple[int, int], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def decode_log(
    log: FilePath,
    dump: FilePath,
    *,
    sequence: str | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    recovery: str | Recovery = Recovery.TORN_TAIL,
    progress: Progress | None = None,
) -> DecodeReport:
    """Write a sequence of a log as a safetensors file.

    Tensors `k.L`, `v.L` (tokens, heads, dim) for each layer L; metadata kv_heads and head_dim where all layers agree,
    model, sequence, source, sliding_window and global_layers. sequence: the only one by default. dtype: "bfloat16",
    "float16" or "float32", the model's by default. recovery: as kvcodec.open takes it; with skip-damaged, tokens that
    some layer has lost are left out, and an int64 tensor `positions` (tokens,) says which ones are there.
    progress: called with (done, total) in tokens times layers. Memory: about 32 MiB of rows. The file appears under
    its name whole or not at all.

    Raises UnknownSequence with the names that there are, FormatError, SpecError, DumpError for an existing file
    without `overwrite`, NonFiniteError for a number beyond float16.
    """
    if dtype is not None and dtype not in DTYPES:
        raise SpecError(f"dtype is {dtype!r}, want one of {', '.join(DTYPES)}")
    recovery, target = Recovery.parse(recovery), Path(dump)
    with open_store(Path(log), recovery=recovery) as store:
        if target.exists() and os.path.samefile(log, target):
            raise SpecError(f"{target} is the log itself; name another dump")
        found = pick_sequence(store, sequence)
        index = store.index.sequences[store.index.by_name[found.name]]
        tokens = len(found)
        lost: list[LostTokens] = []
        kept: NDArray[np.int64] = np.arange(tokens)
        if recovery == Recovery.SKIP_DAMAGED:
            lost, _ = find_lost_tokens(store.log, index, tokens)
            kept = kept_tokens(lost, tokens)
        out = DTYPES[dtype or index.model.dtype]
        _write(found, index.model, kept, out, _metadata(store, found, index.model), target, overwrite, progress)
    layers = sum(bool(layer.streams) for layer in index.model.layers)
    size = target.stat().st_size
    return DecodeReport(str(log), str(dump), found.name, len(kept), layers, str(out), size, tuple(token_ranges(lost)))


def _write(
    sequence: Sequence,
    model: Model,
    kept: NDArray[np.int64],
    dtype: np.dtype[Any],
    metadata: dict[str, str],
    target: Path,
    overwrite: bool,
    progress: Progress | None,
) -> None:
    layers = {n: layer for n, layer in enumerate(model.layers) if layer.streams}
    tensors: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = [
        (f"{s.name}.{n}", dtype, (len(kept), s.heads, s.dim)) for n, layer in layers.items() for s in layer.streams
    ]
    whole = len(kept) == len(sequence)
    if not whole:
        tensors.append(("positions", np.dtype(np.int64), (len(kept),)))
    tell, done = progress or no_progress, 0
    with SafetensorsWriter(target, tensors, metadata, overwrite=overwrite) as writer:
        for n, layer in layers.items():
            for start, stop in token_chunks(len(kept), layer.token_bytes):
                rows = _read(sequence, n, kept[start:stop], model, dtype)
                for stream, array in zip(layer.streams, rows, strict=True):
                    writer.write(f"{stream.name}.{n}", start, array)
                done += stop - start
                tell(done, len(kept) * len(layers))
        if not whole:
            writer.write("positions", 0, kept)
        writer.commit()


def _read(
    sequence: Sequence, layer: int, tokens: NDArray[np.int64], model: Model, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], ...]:
    if dtype in (model.numpy_dtype, np.float32):
        return sequence.read(layer, tokens, dtype=dtype)
    with np.errstate(over="ignore"):
        rows = tuple(array.astype(dtype) for array in sequence.read(layer, tokens, dtype=np.float32))
    for stream, array in zip(model.layers[layer].streams, rows, strict=True):
        beyond = np.argwhere(~np.isfinite(array))
        if len(beyond):
            token, head, channel = beyond[0].tolist()
            raise NonFiniteError(layer, f"{stream.name} (as {dtype})", int(tokens[token]), head, channel)
    return rows


def _metadata(store: Store, sequence: Sequence, model: Model) -> dict[str, str]:
    streams = [s for layer in model.layers for s in layer.streams]
    metadata = {"source": store.path.name, "sequence": sequence.name}
    if model.name:
        metadata["model"] = model.name
    if len({(s.heads, s.dim) for s in streams}) == 1:
        metadata |= {"kv_heads": str(streams[0].heads), "head_dim": str(streams[0].dim)}
    windows = {layer.window for layer in model.layers if layer.streams and layer.window}
    if len(windows) == 1:
        seeing_all = [str(n) for n, layer in enumerate(model.layers) if layer.streams and not layer.window]
        metadata |= {"sliding_window": str(windows.pop()), "global_layers": ",".join(seeing_all)}
    return metadata
