"""Two models that should be one: what tells them apart, in words."""

from __future__ import annotations

from kvcodec.errors import IdentityMismatch
from kvcodec.store.model import Layer, Model


def describe_layer(layer: Layer) -> str:
    """Streams and attention of a layer."""
    streams = " ".join(f"{s.name} {s.heads}x{s.dim}" for s in layer.streams) or "no cache"
    window = f" window {layer.window}" if layer.window else ""
    rope = f" rope {layer.rope_base:g}/{layer.rope_scale:g}" if layer.rope_base or layer.rope_scale else ""
    return f"{streams}{window}{rope}"


def differences(held: Model, asked: Model) -> list[str]:
    """Where two models differ: "dtype: bfloat16, not float16" and the like; empty if they are the same."""
    out = []
    for name in ("name", "dtype", "rope_layout", "shards", "shard"):
        a, b = getattr(held, name), getattr(asked, name)
        if a != b:
            a, b = (x.name.lower() if name == "rope_layout" else x for x in (a, b))
            out.append(f"{name.replace('_', ' ')}: {a!r}, not {b!r}")
    if held.fingerprint != asked.fingerprint:
        a, b = (m.fingerprint.hex()[:16] or "none" for m in (held, asked))
        out.append(f"fingerprint: {a}, not {b}")
    if len(held.layers) != len(asked.layers):
        out.append(f"{len(held.layers)} layers, not {len(asked.layers)}")
    for n, (x, y) in enumerate(zip(held.layers, asked.layers, strict=False)):
        if x != y:
            out.append(f"layer {n}: {describe_layer(x)}, not {describe_layer(y)}")
            break
    return out


def mismatch(path: object, held: Model, asked: Model) -> IdentityMismatch:
    """The error that names both models and the first places where they differ."""
    where = "; ".join(differences(held, asked)[:4])
    return IdentityMismatch(f"{path} belongs to {held.describe()}, not to {asked.describe()} ({where})")
