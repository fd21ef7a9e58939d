"""The model that a dump belongs to, as far as the dump tells."""

from __future__ import annotations

from kvcodec.bulk.selection import DumpPart
from kvcodec.dumps.queries import read_window
from kvcodec.errors import DumpError, IdentityMismatch, SpecError
from kvcodec.layout import StreamId
from kvcodec.store.model import Layer, Model, Stream

STREAMS = (StreamId.K, StreamId.V)
_NAME_BYTES = 255
_FLOAT32_AS = "bfloat16"


def dump_model(dump: DumpPart, dtype: str | None = None) -> Model:
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
        streams = tuple(Stream(stream, *dump.shape(number, stream)[1:]) for stream in STREAMS)
        layers[number] = Layer(streams, _window(dump, number))
    name = dump.metadata.get("model", "").encode(errors="replace")[:_NAME_BYTES].decode(errors="ignore")
    return Model(tuple(layers), own or dtype or _FLOAT32_AS, name)


def check_same_model(log: Model, dump: Model) -> None:
    """Raises IdentityMismatch unless a dump's rows can stand in a log of model `log`.

    Streams, windows and dtype must be the same, and names where both have one.
    """
    shapes = [[(layer.streams, layer.window) for layer in model.layers] for model in (log, dump)]
    names = {model.name for model in (log, dump) if model.name}
    if shapes[0] != shapes[1] or log.dtype != dump.dtype or len(names) > 1:
        raise IdentityMismatch(f"the log belongs to {log.describe()}, the dump to {dump.describe()}")


def _window(dump: DumpPart, layer: int) -> int:
    try:
        return read_window(dump.metadata, layer) or 0
    except DumpError as error:
        raise DumpError(f"{dump.path}: {error}") from None
