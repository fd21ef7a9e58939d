"""What a cache belongs to: the model's layers and streams, and the MODEL record that says so (formats/record.md)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from kvcodec.errors import CorruptRecord, SpecError
from kvcodec.flash.image import Bytes
from kvcodec.layout import MODEL_LAYER, DtypeId, Kind, RopeLayout, StreamId
from kvcodec.log.frame import Record, new_record

_DTYPES = {"bfloat16": DtypeId.BFLOAT16, "float16": DtypeId.FLOAT16}
NUMPY_DTYPES: dict[DtypeId, np.dtype[Any]] = {
    DtypeId.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DtypeId.FLOAT16: np.dtype(np.float16),
}
_MAX_LAYERS, _MAX_HEADS, _MAX_DIM = 4096, 4096, 16384
_HASH_BYTES = 16


@dataclass(frozen=True)
class Stream:
    """A named tensor of a layer: `heads` rows of `dim` channels for each token."""

    id: StreamId
    heads: int
    dim: int

    @property
    def name(self) -> str:
        return self.id.name.lower()

    @property
    def row_bytes(self) -> int:
        """Bytes of one token in 16 bits."""
        return 2 * self.heads * self.dim


@dataclass(frozen=True)
class Layer:
    """The streams of one layer. window: tokens that a sliding-window layer attends to, 0 for all.

    rope_base and rope_scale describe the rotary embedding that K carries; 0 if unknown.
    """

    streams: tuple[Stream, ...] = ()
    window: int = 0
    rope_base: float = 0.0
    rope_scale: float = 0.0

    def __post_init__(self) -> None:
        if len(self.streams) > 2 or len({s.id for s in self.streams}) != len(self.streams):
            raise SpecError("a layer has at most two streams, each of its own name")
        for s in self.streams:
            if not (1 <= s.heads <= _MAX_HEADS and 1 <= s.dim <= _MAX_DIM):
                raise SpecError(f"stream {s.name}: {s.heads} heads of {s.dim} channels are out of range")
        if not 0 <= self.window < 1 << 32:
            raise SpecError(f"window is {self.window}")
        if not (math.isfinite(self.rope_base) and math.isfinite(self.rope_scale)):
            raise SpecError("rope_base and rope_scale must be finite")

    @classmethod
    def kv(
        cls, kv_heads: int, head_dim: int, *, v_head_dim: int | None = None, window: int = 0, rope_base: float = 0.0
    ) -> Layer:
        """A layer with K and V of `kv_heads` heads (multi-head, grouped-query or multi-query attention)."""
        v = Stream(StreamId.V, kv_heads, head_dim if v_head_dim is None else v_head_dim)
        return cls((Stream(StreamId.K, kv_heads, head_dim), v), window, rope_base)

    @classmethod
    def mla(cls, latent: int, rope_dim: int, *, window: int = 0, rope_base: float = 0.0) -> Layer:
        """A layer of multi-head latent attention: the latent `c` and the position key `kr`, one row each a token."""
        return cls((Stream(StreamId.C, 1, latent), Stream(StreamId.KR, 1, rope_dim)), window, rope_base)

    def held(self, length: int) -> int:
        """The first of `length` tokens that the layer still needs: a sliding window forgets what is behind it."""
        return max(0, length - self.window) if self.window else 0

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in 16 bits, all streams."""
        return sum(s.row_bytes for s in self.streams)


@dataclass(frozen=True)
class Model:
    """Layers in order and the 16-bit dtype of their cache; a layer without streams keeps no cache.

    fingerprint: 32 bytes that identify the weights, or empty. shard of shards: which tensor-parallel part.
    """

    layers: tuple[Layer, ...]
    dtype: str = "bfloat16"
    name: str = ""
    fingerprint: bytes = b""
    shard: int = 0
    shards: int = 1
    rope_layout: RopeLayout = RopeLayout.UNKNOWN

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise SpecError(f"model dtype {self.dtype!r}, want {' or '.join(_DTYPES)}")
        if not 1 <= len(self.layers) <= _MAX_LAYERS:
            raise SpecError(f"a model has 1 to {_MAX_LAYERS} layers, not {len(self.layers)}")
        if not any(layer.streams for layer in self.layers):
            raise SpecError("no layer has a stream: there is nothing to keep")
        if len(self.fingerprint) not in (0, 32) or len(self.name.encode()) > 255:
            raise SpecError("a fingerprint has 32 bytes, a model's name at most 255")
        if not 0 <= self.shard < self.shards < 1 << 16:
            raise SpecError(f"shard {self.shard} of {self.shards}")

    @classmethod
    def uniform(cls, layers: int, kv_heads: int, head_dim: int, *, dtype: str = "bfloat16", name: str = "") -> Model:
        """A model whose layers are all alike."""
        return cls((Layer.kv(kv_heads, head_dim),) * layers, dtype, name)

    @property
    def dtype_id(self) -> DtypeId:
        return _DTYPES[self.dtype]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return NUMPY_DTYPES[self.dtype_id]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in 16 bits, all layers and streams."""
        return sum(layer.token_bytes for layer in self.layers)

    def record(self) -> Record:
        """The MODEL record; its hash covers every field but itself."""
        rows = np.zeros(len(self.layers), MODEL_LAYER)
        for row, layer in zip(rows, self.layers, strict=True):
            row["window"], row["rope_base"], row["rope_scale"] = layer.window, layer.rope_base, layer.rope_scale
            for stream, slot in zip(layer.streams, ("first", "second"), strict=False):
                row[f"{slot}_stream"], row[f"{slot}_heads"], row[f"{slot}_dim"] = stream.id, stream.heads, stream.dim
        name = self.name.encode()
        record = new_record(
            Kind.MODEL,
            rows.tobytes() + name,
            fingerprint=np.void(self.fingerprint.ljust(32, b"\0")),
            dtype=self.dtype_id,
            rope_layout=self.rope_layout,
            layers=len(self.layers),
            name_bytes=len(name),
            shard=self.shard,
            shards=self.shards,
        )
        record.header["model_hash"] = np.void(_hash(record.header.reshape(1)[0], record.body))
        return record

    @property
    def hash(self) -> bytes:
        """16 bytes that name this model in a log."""
        return bytes(self.record().header["model_hash"].tobytes())

    def describe(self) -> str:
        """One line for an error that must name a model."""
        shapes = sorted({tuple((s.name, s.heads, s.dim) for s in layer.streams) for layer in self.layers})
        kinds = "; ".join(" ".join(f"{n} {h}x{d}" for n, h, d in shape) or "none" for shape in shapes)
        shard = f", shard {self.shard} of {self.shards}" if self.shards > 1 else ""
        print_ = f", fingerprint {self.fingerprint.hex()[:16]}" if self.fingerprint else ""
        return f"{self.name or 'model'} ({len(self.layers)} layers: {kinds}; {self.dtype}{shard}{print_})"


def _hash(header: np.void, body: bytes | Bytes) -> bytes:
    own = header.copy()
    dtype = own.dtype
    own["model_hash"] = np.void(bytes(_HASH_BYTES))
    start = dtype.fields["model_hash"][1]  # type: ignore[index]
    return hashlib.sha256(own.tobytes()[start:] + bytes(body)).digest()[:_HASH_BYTES]


def read_model(header: np.void, body: Bytes, offset: int) -> Model:
    """The model of a MODEL record; `offset` is its place in the file. Raises CorruptRecord."""
    n, name_bytes = int(header["layers"]), int(header["name_bytes"])
    if body.size != n * MODEL_LAYER.itemsize + name_bytes:
        raise CorruptRecord(offset, "length of a MODEL record")
    if header["model_hash"].tobytes() != _hash(header, body):
        raise CorruptRecord(offset, "hash of a MODEL record")
    rows: Sequence[np.void] = body[: n * MODEL_LAYER.itemsize].view(MODEL_LAYER)  # type: ignore[assignment]
    try:
        dtype = {id_: name for name, id_ in _DTYPES.items()}.get(DtypeId(int(header["dtype"])), "")
        fingerprint = header["fingerprint"].tobytes()
        return Model(
            tuple(_read_layer(row) for row in rows),
            dtype,
            bytes(body[n * MODEL_LAYER.itemsize :]).decode(),
            fingerprint if any(fingerprint) else b"",
            int(header["shard"]),
            int(header["shards"]),
            RopeLayout(int(header["rope_layout"])),
        )
    except ValueError as error:
        raise CorruptRecord(offset, f"MODEL record: {error}") from None


def _read_layer(row: np.void) -> Layer:
    if int(row["reserved"]):
        raise SpecError("a reserved field is set")
    for slot in ("first", "second"):
        if not int(row[f"{slot}_stream"]) and (int(row[f"{slot}_heads"]) or int(row[f"{slot}_dim"])):
            raise SpecError("a shape without a stream")
    streams = tuple(
        Stream(StreamId(int(row[f"{slot}_stream"])), int(row[f"{slot}_heads"]), int(row[f"{slot}_dim"]))
        for slot in ("first", "second")
        if int(row[f"{slot}_stream"])
    )
    return Layer(streams, int(row["window"]), float(row["rope_base"]), float(row["rope_scale"]))
