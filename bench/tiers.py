"""What attention in tiers costs on real dumps: errors of its outputs, and the bytes that it reads for a token.

    python bench/tiers.py --test FILE [FILE …] --dictionaries FILE [FILE …] [--layers 5,17] [--check]

Codes K and V of some layers of the dumps --test over dictionaries of post-RoPE K and V, and attends from the dumps'
queries, each of which sees all tokens up to its own. Writes its table into bench/RESULTS.md.
With --check it works small, on a dump of the repository and a dictionary that is trained on it, and prints the table.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import kvcodec as kv
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.dictionary.artefact import read_artefact
from kvcodec.dumps import open_dump
from kvcodec.dumps.dump import Dump
from kvcodec.layout import StreamId

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "RESULTS.md"
DUMP = ROOT / "tests" / "data" / "gemma3_270m_512_3layers.safetensors"
MARK = "<!-- {}tiers: written by bench/tiers.py -->"
SINKS, BITS = 4, 6
Floats = NDArray[np.float64]
Tiers = tuple[int, float]


class Way(NamedTuple):
    """How many atoms a vector has, and how they are read."""

    atoms: int
    tiers: Tiers | None = None

    @property
    def specs(self) -> tuple[str, str]:
        """With indices of 16 bits, and with sets that can be read so."""
        low = f"/low{self.tiers[0]}" if self.tiers else ""
        return f"dict/s{self.atoms}/c{BITS}", f"dict/s{self.atoms}/c{BITS}/ef{low}"

    def __str__(self) -> str:
        if self.tiers is None:
            return f"s{self.atoms}"
        low, share = self.tiers
        return f"s{self.atoms}, tiers ({low}, {share:g})"


WHOLE = Way(16)
WAYS = (
    WHOLE, *(Way(16, (3, share)) for share in (0, 0.05, 0.1, 0.25, 0.34)), *(Way(16, (6, share)) for share in (0, 0.1)),
    *map(Way, (4, 5, 6, 8)),
)  # fmt: skip


class Work(NamedTuple):
    """What is measured. first: where the first query stands that is asked; step: every how manyth is."""

    texts: Sequence[Path]
    dictionaries: Sequence[Path]
    layers: Sequence[int]
    first: int
    step: int


class Read(NamedTuple):
    """What came of reading a log in one way. outputs (queries, heads, dim); bytes_read: of a token and KV head."""

    outputs: Floats
    bytes_read: float


def attend_float(q: Floats, k: Floats, v: Floats, scale: float) -> Floats:
    """Outputs (heads, dim) of q (heads, dim) over k, v (tokens, KV heads, dim)."""
    out = np.empty((len(q), v.shape[2]))
    for h in range(len(q)):
        head = h * k.shape[1] // len(q)
        logits = k[:, head] @ q[h] * scale
        weights = np.exp(logits - logits.max())
        out[h] = weights / weights.sum() @ v[:, head]
    return out


def write_log(path: Path, dump: Dump, layers: Sequence[int], own: DictionarySet, spec: str) -> None:
    """A log of some layers of a dump: sinks raw, all else coded."""
    rows = {n: [dump.rows(n, stream, 0, dump.tokens) for stream in (StreamId.K, StreamId.V)] for n in layers}
    model = kv.Model(
        tuple(kv.Layer.kv(*rows[n][0].shape[1:]) if n in rows else kv.Layer() for n in range(max(layers) + 1))
    )
    with kv.open(path, "w", model=model, dictionary=own, k=spec, v=spec, sinks=SINKS, residual=0) as store:
        store.sequence("text").append_layers(rows)


def attend_log(path: Path, dump: Dump, layer: int, work: Work, tiers: Tiers | None) -> Read:
    """What the dump's queries see of a log."""
    queries = dump.queries(layer)
    assert queries is not None
    outputs, count, tokens = [], 0, 0
    with kv.open(path) as store:
        sequence = store.sequence("text")
        for n in chosen(queries.positions, work):
            seen = slice(0, int(queries.positions[n]) + 1)
            options = {"scale": queries.scale, "tokens": seen, "tiers": tiers}
            y, state = sequence.attend(layer, queries.q[:, n], return_state=True, **options)
            outputs.append(y.astype(np.float64))
            count, tokens = count + state.bytes_read, tokens + state.tokens
    return Read(np.array(outputs), count / tokens / dump.shape(layer, StreamId.K)[1])


def chosen(positions: NDArray[np.int64], work: Work) -> list[int]:
    """Numbers of the queries that are asked."""
    return np.flatnonzero(positions >= work.first)[:: work.step].tolist()


def attend_exact(dump: Dump, layer: int, work: Work) -> Floats:
    """What the dump's queries see of its own rows."""
    queries = dump.queries(layer)
    assert queries is not None
    k, v = (dump.rows(layer, s, 0, dump.tokens).astype(np.float64) for s in (StreamId.K, StreamId.V))
    return np.array(
        [
            attend_float(queries.q[:, n].astype(np.float64), k[: p + 1], v[: p + 1], queries.scale)
            for n, p in ((n, int(queries.positions[n])) for n in chosen(queries.positions, work))
        ]
    )


def relative(found: Floats, wanted: Floats, of: Floats) -> float:
    """Frobenius."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(of))


def measure(work: Work, own: DictionarySet, folder: Path) -> dict[Way, list[list[float]]]:
    """For each way, of each text and layer: error, how far it is from reading all 16 atoms, and bytes a token, with
    indices of 16 bits and as sets.
    """
    found: dict[Way, list[list[float]]] = {way: [] for way in WAYS}
    for text in work.texts:
        with open_dump(text) as dump:
            paths: dict[str, Path] = {}
            for spec in dict.fromkeys(spec for way in WAYS for spec in way.specs):
                paths[spec] = folder / f"{text.stem}-{len(paths)}.kvlog"
                write_log(paths[spec], dump, work.layers, own, spec)
            for layer in work.layers:
                exact = attend_exact(dump, layer, work)
                whole = attend_log(paths[WHOLE.specs[0]], dump, layer, work, None).outputs
                for way in WAYS:
                    wide, small = (attend_log(paths[spec], dump, layer, work, way.tiers) for spec in way.specs)
                    assert np.array_equal(wide.outputs, small.outputs), "indices of 16 bits and sets are the same atoms"
                    errors = relative(wide.outputs, exact, exact), relative(wide.outputs, whole, exact)
                    found[way].append([*errors, wide.bytes_read, small.bytes_read])
            for path in paths.values():
                path.unlink()
    return found


# -- tables ----------------------------------------------------------------------------------------------------------


def report(work: Work, folder: Path) -> str:
    """The table, in Markdown."""
    heads = ["", *(f"error, layer {n}" for n in work.layers), "beside s16", "bytes, u16", "bytes, sets", "blocks"]
    lines = [heads, ["---"] * len(heads)]
    for file in work.dictionaries:
        own = read_artefact(file).dictionaries
        (size,) = {one.size for one in own.dictionaries}
        found = measure(work, own, folder)
        count = {way: float(np.mean([row[2] for row in rows])) for way, rows in found.items()}
        for way, rows in found.items():
            table = np.array(rows).reshape(len(work.texts), len(work.layers), -1)
            errors, rest = table[:, :, 0].mean(axis=0), table.reshape(len(rows), -1).mean(axis=0)
            cells = [*(f"{e:.3f}" for e in errors), f"{rest[1]:.3f}", *(f"{b:.1f}" for b in rest[2:])]
            few = count[way._replace(tiers=(way.tiers[0], 0))] if way.tiers else 0
            share = f"{(count[way] - few) / (count[WHOLE] - few):.0%}" if way.tiers else ""
            lines.append([f"N = {size}, {way}", *cells, share])
    with open_dump(work.texts[0]) as dump:
        dim = dump.shape(work.layers[0], StreamId.K)[2]
    about = (
        f"K and V of {', '.join(text.stem for text in work.texts)}, {dim} channels, coefficients of {BITS} bits; "
        f"{SINKS} sinks are raw, there is no residual window. Queries from token {work.first} on, each of which sees "
        "all tokens up to its own; means over texts. Relative error of attention outputs against float64 over the "
        "original rows; what changes beside reading 16 atoms of all tokens, relative to the same outputs; bytes of K "
        f"and V that are read for a token of a KV head, of {4 * dim} as 16-bit numbers; blocks of 64 tokens that are "
        "read in full."
    )
    return "\n\n".join([about, "\n".join("| " + " | ".join(line) + " |" for line in lines)])


def main() -> None:
    """Write the table, or try it all on little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", type=Path, nargs="*", default=[])
    parser.add_argument("--dictionaries", type=Path, nargs="*", default=[])
    parser.add_argument("--layers", default="5,17")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    if not asked.check and not (asked.test and asked.dictionaries):
        parser.error("--test and --dictionaries are needed, or --check")
    layers = list(map(int, asked.layers.split(",")))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.check:
            file = folder / "own.kvdict"
            kv.train([DUMP], file, atoms=64, sparsity=WHOLE.atoms, layers=asked.layers, streams="k,v", time=10)
            print(report(Work([DUMP], [file], layers, 256, 4), folder))
            return
        text = report(Work(asked.test, asked.dictionaries, layers, 1024, 1), folder)
    begin, end = MARK.format(""), MARK.format("/")
    was = RESULTS.read_text()
    if begin not in was:
        was += f"\n## Attention in tiers\n\n{begin}\n{end}\n"
    before, rest = was.split(begin)
    RESULTS.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
