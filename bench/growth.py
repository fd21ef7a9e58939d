"""Whether it pays that dictionaries grow: errors over positions with and without, and how many tokens earn the atoms.

    python bench/growth.py --train DUMP... --test DUMP... [--atoms 1024] [--sparsity 8] [--grow 32] [--growths 8]
                           [--layers 5,17] [--dictionary FILE] [--write]

Trains dictionaries on the dumps of --train, or takes those of a .kvdict file, and encodes each dump of --test twice,
without a residual window, with dictionaries that stay and with such that grow. An error is that of all rows of some
tokens: the root of their squared errors beside their squares. What new atoms save is told in bytes: how many more a
vector over the old dictionary would take, in more atoms of it, to err as little. Told of the tokens behind
the last growth, and of one sequence: whatever else is coded over the same log earns too. With --write the tables go
into bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import kvcodec as kv
from kvcodec.bulk.encode import encode_dump
from kvcodec.bulk.train import train_dumps
from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.dictionary.artefact import read_dictionary
from kvcodec.dictionary.growing import relative_errors
from kvcodec.dumps import open_dump
from kvcodec.dumps.dump import Dump
from kvcodec.layout import StreamId
from kvcodec.sparse_spec import MAX_ATOMS, SparseCodes
from kvcodec.store.headers import read_spec
from kvcodec.store.store import Store

SINKS = 4
EVERY = 256  # tokens of a column
RESULTS = Path(__file__).parent / "RESULTS.md"
MARK = "<!-- {}growth: written by bench/growth.py -->"
Rows = NDArray[np.float32]


class Stream(NamedTuple):
    """A stream of a layer: the original rows, those of the two logs, and the dictionary that it ended over.

    first: the first token over it, if it grew. rows: float32 (tokens, heads, dim).
    """

    layer: int
    stream: StreamId
    rows: Rows
    fixed: Rows
    grown: Rows
    first: int
    end: Dictionary

    @property
    def name(self) -> str:
        return f"{self.layer} {self.stream.name}"

    def error(self, got: Rows, first: int, end: int) -> float:
        """Of tokens first … end - 1."""
        own = self.rows[first:end]
        return math.sqrt(float(np.square(got[first:end] - own).sum() / np.square(own).sum()))


def main() -> None:
    """Print tables."""
    options = parse()
    with tempfile.TemporaryDirectory() as scratch:
        own = take_dictionaries(options, Path(scratch))
        texts = [tell_text(dump, own, options, Path(scratch)) for dump in options.test]
    trained = f"{len(options.train)} texts" if options.train else options.dictionary.name
    head = (
        f"Trained on {trained}; dict/s{options.sparsity}/c6/ef, {options.atoms if options.train else 'its'} atoms, "
        f"grow={options.grow}, growths={options.growths}, no residual window; layers {options.layers or 'all'}."
    )
    told = "\n\n".join([head, *texts])
    print(told)
    if options.write:
        text = RESULTS.read_text()
        before, rest = text.split(MARK.format(""))
        RESULTS.write_text(f"{before}{MARK.format('')}\n{told}\n{MARK.format('/')}{rest.split(MARK.format('/'))[1]}")


def parse() -> argparse.Namespace:
    """Arguments."""
    parser = argparse.ArgumentParser(description="What growing dictionaries save, and cost.")
    parser.add_argument("--train", type=Path, nargs="+", default=[])
    parser.add_argument("--test", type=Path, nargs="+", required=True)
    parser.add_argument("--dictionary", type=Path)
    parser.add_argument("--layers", default=None)
    parser.add_argument("--write", action="store_true")
    for name, default in (("atoms", 1024), ("sparsity", 8), ("grow", 32), ("growths", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if bool(options.train) == bool(options.dictionary):
        parser.error("--train or --dictionary")
    return options


def take_dictionaries(options: argparse.Namespace, scratch: Path) -> DictionarySet:
    """Those that do not know of the texts to come."""
    if options.dictionary:
        return read_dictionary(options.dictionary)
    train_dumps(
        options.train, scratch / "own.kvdict", atoms=options.atoms, sparsity=options.sparsity, layers=options.layers
    )
    return read_dictionary(scratch / "own.kvdict")


def tell_text(dump: Path, own: DictionarySet, options: argparse.Namespace, scratch: Path) -> str:
    """Code a dump both ways, and tell what came of it."""
    spec, logs = f"dict/s{options.sparsity}/c6/ef", [scratch / "fixed.kvlog", scratch / "grown.kvlog"]
    for log, grow in zip(logs, (0, options.grow), strict=True):
        encode_dump(
            dump, log, k=spec, v=spec, dictionary=own, residual=0, sinks=SINKS, layers=options.layers, grow=grow,
            growths=options.growths, sequence="a", overwrite=True,
        )  # fmt: skip
    with open_dump(dump) as source, kv.open(logs[0]) as fixed, kv.open(logs[1]) as grown:
        layers = fixed_layers(fixed)
        streams = [look(source, fixed, grown, *use, own) for use in own.uses() if use[0] in layers]
        return "\n\n".join([f"{dump.stem}: {sizes(fixed, grown)}", positions(streams), worth(streams, own, options)])


def look(source: Dump, fixed: Store, grown: Store, layer: int, stream: StreamId, own: DictionarySet) -> Stream:
    """A stream in both logs."""
    both = [store.sequence("a").read(layer, dtype=np.float32)[stream - 1] for store in (fixed, grown)]
    held = fixed.sequence("a").held(layer)
    rows = np.asarray(source.rows(layer, stream, held.start, held.stop)).astype(np.float32)
    first, end = find_growth(grown, layer, stream, own)
    return Stream(layer, stream, rows, *both, max(0, first - held.start), end)


def fixed_layers(store: Store) -> set[int]:
    """Layers that the log has."""
    return {layer for index in store.index.sequences.values() for layer, _ in index.maps}


def find_growth(store: Store, layer: int, stream: StreamId, own: DictionarySet) -> tuple[int, Dictionary]:
    """The last dictionary of a stream, and the first token over it: what comes from there on taught it nothing."""
    index, sets = next(iter(store.index.sequences.values())), store.index.dictionaries
    first, last = index.length, own.find(layer, stream)
    assert last is not None
    for extent in index.maps[layer, stream].covering(0, index.length):
        header, _ = store.log.load(extent.coded.parts[0].place)
        codes = (extent.coded.step or read_spec(header)).sparse
        if codes is not None and codes.size > last.size:
            first = extent.first
            found = sets.find(codes.basis).find(layer, stream)
            assert found is not None
            last = found
    return first, last


def sizes(fixed: Store, grown: Store) -> str:
    """How often, and what it cost."""
    one, two = fixed.stats(), grown.stats()
    codes = two.coded_bytes / one.coded_bytes
    return (
        f"grew {two.growths} times, {two.grown_bytes} bytes of new atoms and their headers; "
        f"codes of a log that grows: {codes:.3f} times those of one that does not"
    )


def positions(streams: Sequence[Stream]) -> str:
    """Errors over positions, without growing and with it."""
    columns = range(SINKS, max(len(one.rows) for one in streams), EVERY)
    lines = ["| | | " + " | ".join(f"from {first}" for first in columns) + " |", "|---|---|" + "---|" * len(columns)]
    for one in streams:
        for name, got in (("stays", one.fixed), ("grows", one.grown)):
            errors = [one.error(got, first, first + EVERY) if first < len(one.rows) else math.nan for first in columns]
            lines.append(f"| layer {one.name} | {name} | " + " | ".join(f"{error:.3f}" for error in errors) + " |")
    return "\n".join(lines)


def worth(streams: Sequence[Stream], own: DictionarySet, options: argparse.Namespace) -> str:
    """What it is worth to each stream."""
    lines = [
        "| stream | from token | error, stays | grows | new atoms | bytes | saved a vector | earned after tokens |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(worth_of(one, own, options.sparsity) for one in streams)])


def worth_of(one: Stream, own: DictionarySet, sparsity: int) -> str:
    """A line for one stream."""
    before = own.find(one.layer, one.stream)
    assert before is not None
    if one.end.size == before.size:
        return f"| layer {one.name} | never | | | 0 | 0 | | |"
    rows = one.rows[one.first :]
    heads, rows = rows.shape[1], np.ascontiguousarray(rows.reshape(-1, rows.shape[2]))
    costs = [error_of(rows, before, n) for n in range(sparsity, MAX_ATOMS + 1)]
    reached = error_of(rows, one.end, sparsity)
    saved = bytes_for(reached, costs, before.size, sparsity) - row_bytes(sparsity, one.end.size)
    nbytes = (one.end.size - before.size) * before.dim
    earned = f"{nbytes / (saved * heads):.0f}" if saved > 0 else "never"
    return (
        f"| layer {one.name} | {one.first} | {costs[0]:.3f} | {reached:.3f} | {one.end.size - before.size} | {nbytes} "
        f"| {saved:.2f} | {earned} |"
    )


def error_of(rows: Rows, own: Dictionary, sparsity: int) -> float:
    """Of all rows together."""
    energies = np.square(rows, dtype=np.float64).sum(axis=1)
    return math.sqrt(float((np.square(relative_errors(rows, own, sparsity)) * energies).sum() / energies.sum()))


def row_bytes(sparsity: int, size: int) -> int:
    """Of a vector."""
    return SparseCodes(sparsity, 6, sets=True, size=size).row_bytes


def bytes_for(error: float, costs: Sequence[float], size: int, sparsity: int) -> float:
    """Bytes of a vector over a dictionary of `size` atoms that errs so little: between those of two sparsities, or
    those of the most atoms that a vector can have.
    """
    for more in range(len(costs) - 1):
        if costs[more + 1] <= error:
            part = (costs[more] - error) / (costs[more] - costs[more + 1])
            low, high = (row_bytes(sparsity + n, size) for n in (more, more + 1))
            return low + part * (high - low)
    return row_bytes(MAX_ATOMS, size)


if __name__ == "__main__":
    main()
