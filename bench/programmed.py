"""What a log programs for a token, every overhead counted: headers, padding of pages, the set of the codes.

    python bench/programmed.py [DUMP] [--tokens 2048] [--check | --print]

Writes logs of a cache of Gemma 3 270M's shape, 18 layers with one KV head of 256 channels, on `tlc` and without
residual window or sinks: rows of the dump's layers in turn, again and again. Dictionaries and product codes are trained
on the dump, one for K and one for V, and stand in the set once for each layer, as those of a model would: how well they
suit it makes no difference here. Writes its table into bench/RESULTS.md, or with --check fails if product codes program
more than a fourteenth of 16-bit rows at any size of records.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import kvcodec as kv
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.dictionary.artefact import read_dictionary
from kvcodec.dumps import open_dump
from kvcodec.store.stats import Stats

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "RESULTS.md"
DUMP = ROOT / "tests" / "data" / "gemma3_270m_512_3layers.safetensors"
BEGIN, END = "<!-- programmed: written by bench/programmed.py -->", "<!-- /programmed -->"
LAYERS, RECORDS = 18, (64, 128, 256)
BUDGET, FLOOR = 32, 14
STREAMS = kv.StreamId.K, kv.StreamId.V
Rows = dict[int, tuple[NDArray[Any], NDArray[Any]]]


class Codes(NamedTuple):
    """Specs of K and V in records of some tokens, with {g} for these; one size of records for all if it is not there.

    floor: how many times fewer bytes than 16-bit rows it is to program where rows come many at a time.
    """

    name: str
    k: str
    v: str
    trained: DictionarySet | None = None
    floor: float = 0


class Way(NamedTuple):
    """How tokens come: so many at a time, and whether each such step is durable when it returns."""

    name: str
    tokens: int
    durability: str = "sync"


WAYS = Way("64 at a time", 64), Way("one by one", 1), Way("one by one, each durable", 1, "step")


def train_for_all_layers(dump: Path, codec: str) -> DictionarySet:
    """A set whose streams all have their own codes, though those of K are alike, and those of V."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "codes.kvdict"
        more = {"budget": BUDGET} if codec == "pq" else {"epochs": 1}
        kv.train(dump, path, codec=codec, share="layers", **more)
        own = read_dictionary(path)
    kept = "products" if codec == "pq" else "dictionaries"
    by_stream = {one.uses[0][1]: one for one in getattr(own, kept)}
    every = tuple(replace(by_stream[stream], uses=((layer, stream),)) for layer in range(LAYERS) for stream in STREAMS)
    return DictionarySet(**{kept: every})


def choose_codes(dump: Path, *, products_alone: bool) -> Iterator[Codes]:
    """All that is measured."""
    if not products_alone:
        yield Codes("raw", "raw", "raw")
        yield Codes("INT4", "int4/channel/g{g}", "int4/token/g64")
        yield Codes("dict/s8", "dict/s8/g{g}", "dict/s8/g{g}", train_for_all_layers(dump, "dict"))
    pq = f"pq/B{BUDGET}"
    yield Codes(pq, pq + "/g{g}", pq + "/g{g}", train_for_all_layers(dump, "pq"), FLOOR)


def read_rows(dump: Path, tokens: int) -> Rows:
    """Rows (tokens, heads, dim) of K and V by layer."""
    with open_dump(dump) as source:
        own = [[source.rows(layer, stream, 0, source.tokens) for stream in STREAMS] for layer in source.layers]
    found = []
    for pair in own:
        k, v = (np.tile(rows, (-(-tokens // len(rows)), 1, 1))[:tokens] for rows in pair)
        found.append((k, v))
    return {layer: found[layer % len(found)] for layer in range(LAYERS)}


def write_log(path: Path, rows: Rows, codes: Codes, group: int, way: Way) -> Stats:
    """What a log of all rows takes."""
    tokens, heads, dim = rows[0][0].shape
    with kv.open(
        path, "w", model=kv.Model.uniform(LAYERS, heads, dim), k=codes.k.format(g=group), v=codes.v.format(g=group),
        residual=0, sinks=0, device="tlc", dictionary=codes.trained, durability=way.durability, overwrite=True,
    ) as store:  # fmt: skip
        sequence = store.sequence("text")
        for at in range(0, tokens, way.tokens):
            sequence.append_layers({n: [own[at : at + way.tokens] for own in pair] for n, pair in rows.items()})
    with kv.open(path) as store:
        return store.stats()


def make_table(dump: Path, tokens: int, *, floors_alone: bool) -> tuple[str, bool]:
    """The table in Markdown, and whether all figures keep to their floors."""
    head = ["codes", "tokens of a record", "tokens come", "bytes of a vector", "programmed", "ratio", "set, bytes"]
    table, fine, rows = [head, ["---"] * len(head)], True, read_rows(dump, tokens)
    vectors = 2 * LAYERS * tokens * rows[0][0].shape[1]
    with tempfile.TemporaryDirectory() as folder:
        for codes in choose_codes(dump, products_alone=floors_alone):
            for group in RECORDS if "{g}" in codes.k else RECORDS[:1]:
                for way in WAYS[: None if group == RECORDS[0] and not floors_alone else 1]:
                    stats = write_log(Path(folder) / "a.kvlog", rows, codes, group, way)
                    programmed = stats.programmed_bytes - stats.dictionary_bytes
                    ratio = stats.ratio(programmed)
                    fine &= ratio >= codes.floor or way.tokens == 1
                    coded = stats.payload_bytes / vectors
                    cells = codes.name, str(group) if "{g}" in codes.k else "", way.name, f"{coded:.1f}"
                    table.append([*cells, f"{programmed / vectors:.1f}", f"{ratio:.2f}", f"{stats.dictionary_bytes:,}"])
    return "\n".join("| " + " | ".join(row) + " |" for row in table), fine


def main() -> None:
    """Write or check the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", nargs="?", type=Path, default=DUMP)
    parser.add_argument("--tokens", type=int, default=2048, help="of the cache (2048)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a floor is missed")
    parser.add_argument("--print", action="store_true", help="print the table instead of writing it")
    options = parser.parse_args()
    table, fine = make_table(options.dump, options.tokens, floors_alone=options.check)
    if options.check or options.print:
        print(table)
    else:
        before, rest = RESULTS.read_text().split(BEGIN)
        RESULTS.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")
    sys.exit(not fine and "a figure is below its floor")


if __name__ == "__main__":
    main()
