"""Rows of a dump into a sequence, chunk by chunk, from where the sequence ends."""

from __future__ import annotations

from kvcodec.bulk.chunks import Progress, token_chunks
from kvcodec.bulk.dump_model import STREAMS
from kvcodec.bulk.selection import DumpPart
from kvcodec.store.model import Model
from kvcodec.store.rows import take_rows
from kvcodec.store.store import Store


def copy_rows(source: DumpPart, store: Store, name: str, tell: Progress) -> None:
    """Append the rows of all layers that the sequence `name` has not yet; begin it if there is none.

    tell: called with (done, total) in tokens times layers, at first with what is there already. Memory: a chunk of
    all layers, its codes, and the open windows.
    """
    sequence = store.sequence(name)
    there, layers = len(sequence), len(source.layers)
    tell(there * layers, source.tokens * layers)
    for start, stop in token_chunks(source.tokens - there, store.model.token_bytes):
        at, end = there + start, there + stop
        sequence.append_layers(
            {layer: tuple(source.rows(layer, stream, at, end) for stream in STREAMS) for layer in source.layers}
        )
        store.device.image.release()
        tell(end * layers, source.tokens * layers)


def check_rows(source: DumpPart, model: Model) -> None:
    """Read all rows as a store would take them. Raises NonFiniteError and what reading the dump raises."""
    streams = {(n, s.id): s for n, layer in enumerate(model.layers) for s in layer.streams}
    for start, stop in token_chunks(source.tokens, model.token_bytes):
        for (layer, id_), stream in streams.items():
            take_rows(source.rows(layer, id_, start, stop), model, layer, stream, start)
