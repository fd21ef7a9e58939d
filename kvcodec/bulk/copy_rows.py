"""Rows of a dump into a sequence, chunk by chunk, from where the sequence ends."""

from __future__ import annotations

from kvcodec.bulk.chunks import Progress, token_chunks
from kvcodec.bulk.selection import DumpPart
from kvcodec.store.ahead import Span
from kvcodec.store.model import Model
from kvcodec.store.rows import take_rows
from kvcodec.store.store import Store

_GROWING = 256  # tokens that are appended at once where dictionaries may grow after it


def copy_rows(source: DumpPart, store: Store, name: str, threads: int, tell: Progress) -> None:
    """Append the rows of all layers that the sequence `name` has not yet; begin it if there is none.

    tell: called with (done, total) in tokens times layers, at first with what is there already. Memory: of each thread
    a chunk of one layer's K or V, two chunks' codes, and the open windows. threads: more than one code a chunk while
    the one before it is written.
    """
    sequence = store.sequence(name)
    there, layers = len(sequence), len(source.layers)
    tell(there * layers, source.tokens * layers)
    store.device.image.write_past_cache()

    def told(span: Span) -> None:
        store.device.image.release()
        tell(span[1] * layers, source.tokens * layers)

    most = {} if store.growing is None else {"most": _GROWING}
    chunks = token_chunks(source.tokens - there, store.model.token_bytes, **most)
    spans = [(there + start, there + stop) for start, stop in chunks]
    sequence.append_spans(source.layers, spans, source.rows, told, ahead=threads > 1)


def check_rows(source: DumpPart, model: Model) -> None:
    """Read all rows as a store would take them. Raises NonFiniteError and what reading the dump raises."""
    streams = {(n, s.id): s for n, layer in enumerate(model.layers) for s in layer.streams}
    for start, stop in token_chunks(source.tokens, model.token_bytes):
        for (layer, id_), stream in streams.items():
            take_rows(source.rows(layer, id_, start, stop), model, layer, stream, start)
