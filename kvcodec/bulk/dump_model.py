"""The model that a dump belongs to, as far as the dump tells."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kvcodec.bulk.selection import DumpPart
from kvcodec.dumps.identity import fingerprint_file, parse_fingerprint
from kvcodec.dumps.queries import read_window
from kvcodec.errors import DumpError, IdentityMismatch, SpecError
from kvcodec.layout import StreamId
from kvcodec.store.identity import differences
from kvcodec.store.model import Layer, Model, Stream

STREAMS = (StreamId.K, StreamId.V)


@dataclass(frozen=True)
class Identity:
    """What a dump does not tell of its model: a fingerprint of 32 bytes or none, and which tensor-parallel shard."""

    fingerprint: bytes = b""
    shard: int = 0
    shards: int = 1

    @classmethod
    def of(cls, model: str | os.PathLike[str] | None, shard: str | None) -> Identity:
        """Of a model, which is its file, to be hashed, or its fingerprint as 64 hexadecimal digits, and of a shard such
        as "0/8". Raises DumpError, SpecError.
        """
        fingerprint = b""
        if model is not None:
            by_hand = isinstance(model, str) and not os.path.exists(model) and len(model) == _HEX_DIGITS
            fingerprint = parse_fingerprint(str(model)) if by_hand else fingerprint_file(model)
        if shard is None:
            return cls(fingerprint)
        number, _, count = shard.partition("/")
        if not all(n.isascii() and n.isdigit() and len(n) < 6 for n in (number, count)):
            raise SpecError(f"shard {shard!r}, want one such as 0/8")
        return cls(fingerprint, int(number), int(count))


NOBODY = Identity()
_NAME_BYTES = 255
_HEX_DIGITS = 64
_FLOAT32_AS = "bfloat16"


def dump_model(dump: DumpPart, dtype: str | None = None, identity: Identity = NOBODY) -> Model:
    """Layers keep their numbers: one that the dump has no tensors for keeps no cache.

    dtype: "bfloat16" or "float16", for float32 dumps only (bfloat16); a 16-bit dump has its own. Windows and the
    model's name are taken from the metadata sliding_window, global_layers and model.
    Raises SpecError for another dtype or sizes that a log can't hold, DumpError for malformed metadata.
    """
    own = None if dump.dtype_id is None else dump.dtype_id.name.lower()
    if own is not None and dtype not in (None, own):
        raise SpecError(f"dtype is {dtype!r}, but the dump holds {own}: only float32 dumps are rounded")
    layers = [Layer()] * (dump.layers[-1] + 1)
    for number in dump.layers:
        streams = tuple(Stream(stream, *dump.shape(number, stream)[1:]) for stream in dump.streams)
        layers[number] = Layer(streams, _window(dump, number))
    name = dump.metadata.get("model", "").encode(errors="replace")[:_NAME_BYTES].decode(errors="ignore")
    own_dtype = own or dtype or _FLOAT32_AS
    return Model(tuple(layers), own_dtype, name, identity.fingerprint, identity.shard, identity.shards)


def check_same_model(log: Model, dump: Model) -> None:
    """Raises IdentityMismatch unless a dump's rows can stand in a log of model `log`.

    Streams, windows, dtype and shard must be the same, and names and fingerprints where both have one.
    """
    shapes = [[(layer.streams, layer.window) for layer in model.layers] for model in (log, dump)]
    names = {model.name for model in (log, dump) if model.name}
    prints = {model.fingerprint for model in (log, dump) if model.fingerprint}
    shards = {(model.shard, model.shards) for model in (log, dump)}
    if shapes[0] != shapes[1] or log.dtype != dump.dtype or len(names) > 1 or len(prints) > 1 or len(shards) > 1:
        where = "; ".join(differences(log, dump)[:4])
        raise IdentityMismatch(f"the log belongs to {log.describe()}, the dump to {dump.describe()} ({where})")


def _window(dump: DumpPart, layer: int) -> int:
    try:
        return read_window(dump.metadata, layer) or 0
    except DumpError as error:
        raise DumpError(f"{dump.path}: {error}") from None
