"""What integers cost attention: kv.attend on coded rows against float64 attention over the same rows, decoded.

    python bench/precision.py [DUMP] [--check | --print]

Codes are INT4, and product and trellis codes that are trained on the dump itself: how well they suit it makes no
difference here.
Writes its tables into bench/RESULTS.md, or fails if a figure is above its floor.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kvcodec as kv
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.product import Product
from kvcodec.dictionary.artefact import read_dictionary
from kvcodec.dumps import open_dump
from kvcodec.dumps.queries import Queries
from kvcodec.spec import CodecSpec

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "RESULTS.md"
DUMP = ROOT / "tests" / "data" / "gemma3_270m_512_3layers.safetensors"
BEGIN, END = "<!-- precision: written by bench/precision.py -->", "<!-- /precision -->"
K, V = "int4/channel/g64", "int4/token/g64"
BITS = 16, 8  # of queries
INT4_FLOORS = 5e-4, 5e-3, 5e-2, np.inf  # Frobenius over a layer's queries, and of the worst query, of both sorts
TRAINED_FLOORS = 1e-3, 5e-3, 1e-1, np.inf
TURNED: dict[str, Any] = {"budget": 32, "rope": "pre", "rope_base": 1e6}
TRAINED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("", "pq", {"budget": 32}),
    (", keys before rotation", "pq", TURNED),
    (", the same, values predicted", "pq", {**TURNED, "predict": True}),
    ("", "tcq", {"budget": 98}),
)
LONG, LONG_FLOOR = 131_072, 1e-3


class Codes(NamedTuple):
    """How rows of K and V are coded: specs, over the trained codes of a set, if any; what the figures must keep to."""

    name: str
    k: str
    v: str
    floors: tuple[float, ...]
    trained: DictionarySet | None = None

    def encode(self, k: Any, v: Any, layer: int, first: int) -> tuple[Any, Any]:
        """Rows (tokens, heads, dim) of both streams, the first one at position `first`."""
        own_k, own_v = self._find(self.k, layer, kv.StreamId.K), self._find(self.v, layer, kv.StreamId.V)
        keys = kv.encode_array(k, self.k, stream="k", dictionary=own_k, first=first)
        given = keys if isinstance(own_v, Product) and own_v.prediction is not None else None
        return keys, kv.encode_array(v, self.v, stream="v", dictionary=own_v, first=first, given=given)

    def _find(self, spec: str, layer: int, stream: kv.StreamId) -> Any:
        return None if self.trained is None else self.trained.find_for(CodecSpec.parse(spec), layer, stream)


def choose_codes(dump: Path) -> Iterator[Codes]:
    """All that is measured."""
    yield Codes("INT4", K, V, INT4_FLOORS)
    for name, codec, options in TRAINED:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "codes.kvdict"
            kv.train(dump, path, codec=codec, **options)
            spec = f"{codec}/B{options['budget']}"
            yield Codes(f"{spec}{name}", spec, spec, TRAINED_FLOORS, read_dictionary(path))


def attend(q: Any, k: Any, v: Any, scale: float) -> Any:
    """Float64 attention of q (heads, dim) over k, v (tokens, kv_heads, dim)."""
    shared = len(q) // k.shape[1]
    out = np.empty((len(q), v.shape[2]))
    for h in range(len(q)):
        logits = k[:, h // shared].astype(np.float64) @ q[h].astype(np.float64) * scale
        weights = np.exp(logits - logits.max())
        out[h] = weights / weights.sum() @ v[:, h // shared].astype(np.float64)
    return out


def measure_layer(codes: Codes, layer: int, rows: list[Any], queries: Queries, bits: int) -> tuple[float, float]:
    """Relative error over a layer's queries, each over the tokens it sees, and that of the worst query."""
    differences, wanted = [], []
    for position, q in zip(queries.positions.tolist(), queries.q.transpose(1, 0, 2), strict=True):
        first = max(0, position + 1 - (queries.window or position + 1))
        coded = codes.encode(*(own[first : position + 1] for own in rows), layer, first)
        y = kv.attend(q, *coded, scale=queries.scale, query_bits=bits)
        wanted.append(attend(q, *(kv.decode_array(one, dtype=np.float32) for one in coded), queries.scale))
        differences.append(y - wanted[-1])
    d, w = np.concatenate(differences), np.concatenate(wanted)
    worst = np.linalg.norm(d, axis=1) / np.linalg.norm(w, axis=1)
    return float(np.linalg.norm(d) / np.linalg.norm(w)), float(worst.max())


def measure_dump(dump: Path, codes: Codes) -> list[list[Any]]:
    """For each layer: error and worst query with 16-bit queries, and with 8-bit ones."""
    rows = []
    with open_dump(dump) as source:
        for layer in source.layers:
            own = [source.rows(layer, stream, 0, source.tokens) for stream in (kv.StreamId.K, kv.StreamId.V)]
            queries = source.queries(layer)
            if queries is None:
                sys.exit(f"{dump} has no queries")
            found = [measure_layer(codes, layer, own, queries, bits) for bits in BITS]
            rows.append([layer, *(figure for pair in found for figure in pair)])
    return rows


def measure_long(kind: str) -> float:
    """Relative error at LONG tokens, two heads: one token over tails of 2**-16 of its weight each, or all alike."""
    random = np.random.default_rng(0)
    k = np.zeros((LONG, 2, 64), np.float32)
    k[:, :, :32] = random.standard_normal((LONG, 2, 32)) * 0.05
    if kind == "dominant":
        k[LONG // 3, :, 63] = 16 * np.log(2) / 4
    v = random.standard_normal((LONG, 2, 64)).astype(np.float32)
    q = np.full((2, 64), 0.01, np.float32)
    q[:, 63] = 4
    coded = kv.encode_array(k, K, stream="k"), kv.encode_array(v, V, stream="v")
    y = kv.attend(q, *coded, scale=1.0)
    wanted = attend(q, *(kv.decode_array(one, dtype=np.float32) for one in coded), 1.0)
    return float(np.linalg.norm(y - wanted) / np.linalg.norm(wanted))


def make_tables(dump: Path) -> tuple[str, bool]:
    """Both tables in Markdown, and whether all figures keep to the floors."""
    long = {kind: measure_long(kind) for kind in ("dominant", "flat")}
    fine = all(error <= LONG_FLOOR for error in long.values())
    lines = ["| codes | layer | 16-bit query | worst query | 8-bit query | worst query |", "| --- " * 6 + "|"]
    for codes in choose_codes(dump):
        for layer, *figures in measure_dump(dump, codes):
            fine &= all(figure <= limit for figure, limit in zip(figures, codes.floors, strict=True))
            lines.append("| " + " | ".join([codes.name, str(layer), *(f"{figure:.1e}" for figure in figures)]) + " |")
    lines += ["", f"| {LONG:,} tokens | 16-bit query |", "| --- | --- |"]
    for kind, what in (("dominant", "one token, and tails of 2⁻¹⁶ of its weight"), ("flat", "all of about one weight")):
        lines.append(f"| {what} | {long[kind]:.1e} |")
    return "\n".join(lines), fine


def main() -> None:
    """Write or check the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", nargs="?", type=Path, default=DUMP)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a floor is missed")
    parser.add_argument("--print", action="store_true", help="print the tables instead of writing them")
    options = parser.parse_args()
    tables, fine = make_tables(options.dump)
    if options.print:
        print(tables)
    elif not options.check:
        before, rest = RESULTS.read_text().split(BEGIN)
        RESULTS.write_text(f"{before}{BEGIN}\n{tables}\n{END}{rest.split(END)[1]}")
    sys.exit(not fine and "a figure is above its floor")


if __name__ == "__main__":
    main()
