"""Does every vector hold the error bound that it was coded with? Through a real log, compared in float64.

    python bench/bounds.py DUMP... --dictionary FILE [--bounds 0.2,0.3,0.5] [--codec dict|pq] [--atoms 24]
                                [--threads 2] [--print]

Writes K and V of all layers of each dump into a log of their own, as dict/sN/c6/ef with each bound over the
dictionaries of the .kvdict file, opens it again, reads all rows, and compares each vector with the dump's. --codec pq:
into records of the product codes of the file, without a log. Writes its table into bench/RESULTS.md, or prints it.
Fails if one vector misses its bound. Sliding windows are left out of the models, so that the logs keep all tokens.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import kvcodec as kv
from kvcodec.bulk.dump_model import dump_model
from kvcodec.bulk.selection import DumpPart
from kvcodec.codecs import codec_for
from kvcodec.codecs.bounded_shaped import BoundedProduct
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.dictionary.artefact import Artefact, read_artefact
from kvcodec.dumps import open_dump
from kvcodec.spec import CodecSpec
from kvcodec.store.stats import VectorCounts

RESULTS = Path(__file__).parent / "RESULTS.md"
MARK = "<!-- {}{}: written by bench/bounds.py -->"
TITLES = {"dict": ("bounds", ""), "pq": ("bounds-pq", ", of product codes")}
SINKS = 4
COLUMNS = ("bound", "text", "vectors", "worst", "codes", "INT4", "raw", "not in groups", "bytes a vector")


class Held(NamedTuple):
    """Vectors of a text that were compared, how many of them miss the bound, and the greatest error over its bound."""

    vectors: int
    missed: int
    worst: float


class Row(NamedTuple):
    """One text and one bound. kept: vectors in groups, by kind. coded_bytes: of these."""

    bound: float
    text: str
    held: Held
    kept: VectorCounts
    coded_bytes: int


def measure(path: Path, own: DictionarySet, bound: float, atoms: int, threads: int) -> Row:
    """Write the log, read it, compare."""
    spec = f"dict/s{atoms}/c6/ef/max{bound:g}"
    with tempfile.TemporaryDirectory() as folder, open_dump(path) as dump:
        log, part = Path(folder) / "a.kvlog", DumpPart(dump)
        known = dump_model(part)
        model = replace(known, layers=tuple(replace(layer, window=0) for layer in known.layers))
        coding = {"k": spec, "v": spec, "residual": 0, "sinks": SINKS, "dictionary": own}
        with kv.open(log, "w", model=model, threads=threads, **coding) as store:
            sequence, rows = store.sequence("a"), {}
            for layer in dump.layers:
                rows[layer] = [dump.rows(layer, stream, 0, dump.tokens) for stream in dump.streams]
            sequence.append_spans(dump.layers, [(0, dump.tokens)], part.rows, lambda _span: None, ahead=False)
        with kv.open(log) as store:
            found = [compare(rows[layer], store.sequence("a").read(layer), bound) for layer in dump.layers]
            (stats,) = store.stats().sequences
    assert stats.vectors is not None
    return Row(bound, path.stem, sum_held(found), stats.vectors, stats.coded_bytes)


def measure_records(path: Path, own: DictionarySet, bound: float) -> Row:
    """The same with product codes, of which records are made without a log."""
    spec, found = CodecSpec.parse(f"pq/max{bound:g}"), list[Held]()
    counts, coded = np.zeros(3, np.int64), 0
    with open_dump(path) as dump:
        dtype = DumpPart(dump).dtype_id
        for layer, stream in itertools.product(dump.layers, dump.streams):
            codec = codec_for(spec, stream, own.find_for(spec, layer, stream)).at(SINKS)
            assert isinstance(codec, BoundedProduct)
            tokens = codec.token_group
            end = SINKS + (dump.tokens - SINKS) // tokens * tokens
            rows, back = dump.rows(layer, stream, SINKS, end), []
            for n, one in enumerate(codec.encode_records(rows.view(np.uint16), dtype, tokens)):
                bits = codec.at(SINKS + n * tokens).decode_record(one, tokens, dtype)
                back.append(bits.view(rows.dtype))
                counts += np.bincount(one.mixed.kinds.reshape(-1), minlength=3)
                coded += len(one.mixed.join())
            others = dump.rows(layer, stream, 0, SINKS), dump.rows(layer, stream, end, dump.tokens)
            whole = np.concatenate([others[0], rows, others[1]])
            found.append(compare([whole], [np.concatenate([others[0], *back, others[1]])], bound))
    return Row(bound, path.stem, sum_held(found), VectorCounts(*counts.tolist(), None), coded)


def compare(originals: Sequence[NDArray], decoded: Sequence[NDArray], bound: float) -> Held:
    """Of the streams of one layer, each (tokens, heads, dim)."""
    vectors, missed, worst = 0, 0, 0.0
    for x, y in zip(originals, decoded, strict=True):
        wide = x.astype(np.float64)
        errors, limits = (np.linalg.norm(a, axis=2) for a in (y.astype(np.float64) - wide, bound * wide))
        vectors, missed = vectors + errors.size, missed + int((errors > limits).sum())
        worst = max(worst, float(np.max(np.divide(errors, limits, out=np.zeros_like(errors), where=limits > 0))))
    return Held(vectors, missed, worst)


def sum_held(found: Sequence[Held]) -> Held:
    """Of several streams or texts."""
    return Held(sum(h.vectors for h in found), sum(h.missed for h in found), max(h.worst for h in found))


def total(rows: Sequence[Row]) -> Row:
    """All texts of one bound."""
    kept = VectorCounts(*(sum(getattr(r.kept, n) for r in rows) for n in ("codes", "int4", "raw")), None)
    return Row(rows[0].bound, "all", sum_held([r.held for r in rows]), kept, sum(r.coded_bytes for r in rows))


def cells(row: Row) -> list[str]:
    """Of the table."""
    kept, held = row.kept, row.held
    groups = kept.codes + kept.int4 + kept.raw
    counts = (kept.codes, kept.int4, kept.raw, held.vectors - groups)
    return [
        f"{row.bound:g}", row.text, str(held.vectors), f"{math.floor(held.worst * 1e6) / 1e6:.6f}", *map(str, counts),
        f"{row.coded_bytes / groups:.1f}",
    ]  # fmt: skip


def report(rows: Sequence[Row], own: Artefact, codec: str) -> str:
    """Markdown."""
    trained = own.information["dumps"]
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for bound in dict.fromkeys(row.bound for row in rows):
        own_rows = [row for row in rows if row.bound == bound]
        lines += [cells(row) for row in (*own_rows, total(own_rows))]
    texts, tokens = len(trained), sum(one["trained"] for one in trained)
    missed, size = sum(row.held.missed for row in rows), 2 * dim_of(own.dictionaries)
    about = (
        f"{codec} with each bound, trained on {tokens} tokens of {texts} other texts. "
        f"K and V of all layers, one vector a token and head, {size} bytes in 16 bits. {missed} of "
        f"{sum(row.held.vectors for row in rows)} vectors miss their bound. worst: the greatest error over its bound, "
        f"rounded down. Not in groups are the first {SINKS} tokens and those that do not fill a record, which are raw."
    )
    return about + "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def dim_of(own: DictionarySet) -> int:
    """Channels of a vector."""
    return (own.dictionaries or own.products)[0].dim


def describe(own: Artefact, codec: str, atoms: int) -> str:
    """The codec, for the report."""
    if codec == "pq":
        budget = own.information["settings"]["budget"]
        return f"`pq` of {budget:g} bytes a vector on average, metric {own.information['options']['metric']},"
    sizes = ", ".join(map(str, sorted({one.size for one in own.dictionaries.dictionaries})))
    return f"`dict/s{atoms}/c6/ef`, N = {sizes},"


def main() -> None:
    """Write or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", type=Path)
    parser.add_argument("--dictionary", type=Path, required=True)
    parser.add_argument("--bounds", default="0.2,0.3,0.5")
    parser.add_argument("--codec", choices=tuple(TITLES), default="dict")
    parser.add_argument("--atoms", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    own, rows = read_artefact(options.dictionary), []
    for bound in map(float, options.bounds.split(",")):
        for path in options.dumps:
            began = time.monotonic()
            if options.codec == "pq":
                rows.append(measure_records(path, own.dictionaries, bound))
            else:
                rows.append(measure(path, own.dictionaries, bound, options.atoms, options.threads))
            print(f"{bound:g} {path.name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    text = report(rows, own, describe(own, options.codec, options.atoms))
    if options.print:
        print(text)
    else:
        mark, title = TITLES[options.codec]
        begin, end = MARK.format("", mark), MARK.format("/", mark)
        was = RESULTS.read_text()
        if begin not in was:
            was += f"\n## Bounds on the error of every vector{title}\n\n{begin}\n{end}\n"
        before, rest = was.split(begin)
        RESULTS.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")
    sys.exit("a vector misses its bound" if any(row.held.missed for row in rows) else 0)


if __name__ == "__main__":
    main()
