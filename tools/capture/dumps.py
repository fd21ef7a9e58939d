"""From one run of a model to a file that kvcodec reads (kvcodec/dumps/names.py and queries.py)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tools.capture.failure import CaptureError
from tools.capture.gradients import FarGradients
from tools.capture.head import Head
from tools.capture.recorder import Layer, Recorder


class Wanted(NamedTuple):
    """What is taken out of a run. queries: positions whose queries are kept. dtype: of K, V and Q. pre: K before its
    rotation too. check: the perplexity. far: None, or moments of gradients for tokens that are so far back, without
    the first `sinks`. seed: of the labels that these need.
    """

    queries: int
    dtype: str
    pre: bool
    check: bool
    far: int | None = None
    sinks: int = 4
    seed: int = 0


def capture(model: Any, ids: Sequence[int], wanted: Wanted) -> tuple[dict[str, Tensor], dict[str, str], float | None]:
    """Runs `model` on `ids`: (tensors, metadata, the perplexity of all tokens but the first or None)."""
    tokens = torch.tensor(ids, dtype=torch.int64)
    positions = query_positions(len(ids), wanted.queries)
    recorder = Recorder(model, positions, getattr(torch, wanted.dtype), pre=wanted.pre)
    head = Head(model)
    gradients = None if wanted.far is None else FarGradients(head, wanted.far, wanted.seed)
    hidden = recorder.run(lambda: head.hidden(tokens) if gradients is None else gradients.run(tokens))
    tensors = {"ids": tokens.to(torch.int32)}
    if len(positions):
        tensors["q_pos"] = positions.to(torch.int32)
    for number, layer in recorder.layers.items():
        if gradients is not None:
            layer.rows |= gradients.moments(number, layer, wanted.sinks)
        tensors |= {f"{name}.{number}": rows for name, rows in layer.rows.items()}
        if layer.rope is not None:
            tensors[f"rope_freq.{number}"] = layer.rope.freq
    metadata = describe(recorder.layers)
    if wanted.far is not None:
        metadata["grad_far"] = str(wanted.far)
    return tensors, metadata, _perplexity(head, hidden, tokens) if wanted.check else None


def query_positions(tokens: int, count: int) -> Tensor:
    """At most `count` positions spread evenly over the second half of the text, its last token among them."""
    first = tokens // 2
    return torch.linspace(first, tokens - 1, min(count, tokens - first)).round().to(torch.int64).unique()


def _perplexity(head: Head, hidden: Tensor, ids: Tensor) -> float:
    total = 0.0
    with torch.no_grad():
        for chunk in head.chunks(len(ids) - 1):
            logits, labels = head.logits(hidden[chunk]), ids[1:][chunk].to(hidden.device)
            total += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
    return math.exp(total / (len(ids) - 1))


def describe(layers: dict[int, Layer]) -> dict[str, str]:
    """Metadata of the model's attention. Raises CaptureError where kvcodec has no words for it."""
    metadata = {"k": "post-RoPE", "logit_scale": repr(_only("logit scale", {layer.scale for layer in layers.values()}))}
    sizes: dict[str, set[Any]] = {
        "kv_heads": {layer.rows["k"].shape[1] for layer in layers.values()},
        "head_dim": {layer.rows[name].shape[2] for layer in layers.values() for name in "kv"},
        "q_heads": {layer.q_heads for layer in layers.values()},
        "logit_softcap": {layer.softcap for layer in layers.values()} - {None},
    }
    metadata |= {name: str(values.pop()) for name, values in sizes.items() if len(values) == 1}
    windows = {layer.window for layer in layers.values()} - {None}
    if windows:
        metadata["sliding_window"] = str(_only("sliding window", windows))
        metadata["global_layers"] = ",".join(str(n) for n, layer in layers.items() if layer.window is None)
    return metadata | _describe_ropes(layers)


def _describe_ropes(layers: dict[int, Layer]) -> dict[str, str]:
    ropes = [layer.rope for layer in layers.values()]
    known = [rope for rope in ropes if rope is not None]
    layouts = {rope.layout for rope in known}
    if len(known) < len(ropes) or len(layouts) > 1:
        return {"rope_layout": "unknown"}
    return {
        "rope_layout": layouts.pop(),
        "rope_dims": ",".join(str(rope.dim) for rope in known),
        "rope_bases": ",".join(f"{rope.base:.10g}" for rope in known),
        "rope_scales": ",".join(f"{rope.scale:.10g}" for rope in known),
    }


def _only(what: str, values: set[Any]) -> Any:
    if len(values) != 1:
        raise CaptureError(f"the layers differ in {what} ({', '.join(map(str, sorted(values)))}): a dump has only one")
    return next(iter(values))


def write_dump(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes a whole file or none. Raises CaptureError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, metadata=metadata)
        partial.chmod(0o666 & ~_umask())  # safetensors makes files that only their owner reads
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise CaptureError(f"{path}: cannot write: {error}") from None
    finally:
        partial.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
