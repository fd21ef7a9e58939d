"""What codes over trained dictionaries cost on real dumps: error of rows, of attention outputs, and bytes a vector.

    python bench/dictionary.py --train DIR --test DIR --out DIR [--layers 0-17] [--time SECONDS] [--check]

Trains what is not in --out yet, on the dumps of --train (for each N: K and V, K from before its rotary embedding, and
both kinds of K in the metric of the queries), and codes all tokens of those of --test but the four sinks. Writes its
tables into bench/RESULTS.md. With --check it works small, on a dump of the repository if no directories are given,
prints the tables, and writes nothing. Either way it fails unless OMP beats MP beats the greatest products, at every
sparsity.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import kvcodec as kv
from kvcodec.bulk.train_rows import find_rope
from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.codecs.pursuit import pursue
from kvcodec.dictionary import baseline
from kvcodec.dictionary.artefact import read_artefact
from kvcodec.dumps import open_dump
from kvcodec.dumps.dump import Dump
from kvcodec.dumps.extra import has_unrotated, read_unrotated
from kvcodec.errors import SpecError
from kvcodec.kernels.projection import project
from kvcodec.kernels.pursuit import top_dots
from kvcodec.layout import StreamId
from kvcodec.measure.attention import attention_error
from kvcodec.sparse_spec import SparseCodes

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "RESULTS.md"
DUMP = ROOT / "tests" / "data" / "gemma3_270m_512_3layers.safetensors"
MARK = "<!-- {}dictionary: written by bench/dictionary.py -->"
SINKS = 4
TRAINED_AT = 12  # atoms of a vector in training; the dictionaries are then used at all sparsities
Rows = NDArray[np.float32]
Matrix = dict[tuple[str, int], float]


class Kind(NamedTuple):
    """A stream as it is coded. metric: what errors are measured in, in training and coding."""

    name: str
    stream: StreamId
    unrotated: bool
    metric: str = "none"

    @property
    def file(self) -> str:
        """Of its dictionaries, without N."""
        return ("pre" if self.unrotated else "post") + ("" if self.metric == "none" else f"-{self.metric}")


KINDS = (
    Kind("K", StreamId.K, False),
    Kind("K before rotation", StreamId.K, True),
    Kind("V", StreamId.V, False),
    Kind("K, query metric", StreamId.K, False, "query"),
    Kind("K before rotation, query metric", StreamId.K, True, "query"),
)
PLAIN_K, PLAIN_V = KINDS[0], KINDS[2]
INTEGERS = (("int4/token/g64", "int4/token/g64"), ("int4/channel/g64", "int4/token/g64"))  # K and V
PER_TOKEN = INTEGERS[0]


class Work(NamedTuple):
    """What is measured. texts: test dumps. sizes: N. sparsities: s."""

    train: Sequence[Path]
    texts: Sequence[Path]
    out: Path
    layers: str | None
    sizes: Sequence[int]
    sparsities: Sequence[int]
    seconds: float | None
    kinds: Sequence[Kind]


# -- coders: vectors (n, d), a dictionary, s -> what decoding gives --------------------------------------------------


def code_omp(rows: Rows, own: Dictionary, sparsity: int, bits: int = 8) -> Rows:
    """As the codec does it, int8 atoms, integer coefficients and all."""
    codes = pursue(rows, own, SparseCodes(sparsity, bits, size=own.size))
    scales = codes.scales.view(ml_dtypes.bfloat16).astype(np.float32)
    return add_atoms(own, codes.indices, codes.coefficients * scales[:, None])


def code_mp(rows: Rows, own: Dictionary, sparsity: int) -> Rows:
    """Matching pursuit: no refit; coefficients are not rounded."""
    left = products_of(rows - own.mean, own)
    lines = np.arange(len(rows))
    indices, taken = np.zeros((len(rows), sparsity), np.int64), np.zeros((len(rows), sparsity), np.float32)
    for place in range(sparsity):
        best = np.abs(left).argmax(axis=1)
        indices[:, place], taken[:, place] = best, left[lines, best]
        for start in range(0, len(rows), 256):
            part = slice(start, start + 256)
            left[part] -= taken[part, place, None] * own.gram[best[part]]
    return add_atoms(own, indices, taken / own.norms[indices])


def code_greatest(rows: Rows, own: Dictionary, sparsity: int) -> Rows:
    """The greatest products, as they are."""
    products = products_of(rows - own.mean, own)
    indices, taken = np.zeros((len(rows), sparsity), np.uint16), np.zeros((len(rows), sparsity), np.float32)
    top_dots(products, indices, taken, np.zeros(len(rows), np.int64))
    return add_atoms(own, indices, taken / own.norms[indices])


def code_baseline(rows: Rows, _own: Dictionary, _sparsity: int) -> Rows:
    """18 bytes a vector."""
    codebook = baseline.random_codebook(rows.shape[1])
    return baseline.decode_vectors(baseline.encode_vectors(rows, codebook), codebook)


def products_of(rows: Rows, own: Dictionary) -> Rows:
    """Products with the unit atoms."""
    out = np.empty((len(rows), own.padded_size), np.float32)
    project(np.ascontiguousarray(rows), own.tiles, out)
    return out


def add_atoms(own: Dictionary, indices: NDArray[np.integer], factors: Rows) -> Rows:
    """Mean and sum of atoms."""
    out = np.tile(own.mean, (len(indices), 1))
    for place in range(indices.shape[1]):
        out += factors[:, place, None] * own.atoms[indices[:, place]]
    return out


# -- what is measured ------------------------------------------------------------------------------------------------


def relative(rows: Rows, coded: Rows) -> float:
    """Frobenius."""
    return float(np.linalg.norm(rows - coded) / np.linalg.norm(rows))


def layers_of(dump: Dump, own: DictionarySet) -> Iterator[int]:
    """Those that have dictionaries."""
    return (layer for layer in dump.layers if own.find(layer, StreamId.K) is not None)


@functools.lru_cache(maxsize=64)
def read(dump: Dump, layer: int, kind: Kind) -> Rows:
    """All tokens, (tokens, heads, dim)."""
    if not kind.unrotated:
        return dump.rows(layer, kind.stream, 0, dump.tokens).astype(np.float32)
    if has_unrotated(dump, layer):
        return read_unrotated(dump, layer, 0, dump.tokens).astype(np.float32)
    rows = dump.rows(layer, StreamId.K, 0, dump.tokens)
    return find_rope(dump, layer, None).undo(rows, np.arange(dump.tokens))


def code_rows(rows: Rows, coder: Callable[[Rows], Rows]) -> Rows:
    """Rows (tokens, heads, dim) with all but the sinks coded."""
    out = rows.copy()
    out[SINKS:] = coder(np.ascontiguousarray(rows[SINKS:].reshape(-1, rows.shape[2]))).reshape(rows[SINKS:].shape)
    return out


def outputs(dump: Dump, layer: int, k: Rows | None, v: Rows | None) -> tuple[float, float, float] | None:
    """Errors of attention outputs: K alone, V alone, both."""
    queries = dump.queries(layer)
    if queries is None:
        return None
    was = [read(dump, layer, kind) for kind in (PLAIN_K, PLAIN_V)]
    now = [hat if hat is not None else own for hat, own in zip((k, v), was, strict=True)]
    found = attention_error(queries.q, queries.positions, queries.scale, queries.window, *was, *now)
    return found.k_only.relative, found.v_only.relative, found.both.relative


def train(work: Work, size: int, kind: Kind) -> DictionarySet:
    """From --out, or trained now."""
    path = work.out / f"{kind.file}-{size}.kvdict"
    if not path.exists():
        began = time.monotonic()
        kv.train(
            work.train, path, atoms=size, sparsity=min(TRAINED_AT, max(work.sparsities)), layers=work.layers,
            streams="k,v" if kind.file == "post" else "k", rope="pre" if kind.unrotated else "post", metric=kind.metric,
            time=work.seconds, resume=True,
        )  # fmt: skip
        print(f"trained {path} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return read_artefact(path).dictionaries


def measure(work: Work, dumps: Sequence[Dump], size: int) -> tuple[Matrix, Matrix]:
    """Of one N: errors of rows by (kind, s), and errors of attention outputs by (what is coded, s). Means over layers
    and texts.
    """
    sets = {kind.file: train(work, size, kind) for kind in work.kinds}
    rows_of: dict[tuple[str, int], list[float]] = {}
    outputs_of: dict[tuple[str, int], list[float]] = {}
    for dump in dumps:
        for layer in layers_of(dump, sets["post"]):
            for s in work.sparsities:
                coded = {}
                for kind in work.kinds:
                    own = sets[kind.file].find(layer, kind.stream)
                    assert own is not None
                    rows = read(dump, layer, kind)
                    for bits in (8, 6):
                        hat = code_rows(rows, functools.partial(code_omp, own=own, sparsity=s, bits=bits))
                        rows_of.setdefault((f"{kind.name}/c{bits}", s), []).append(relative(rows[SINKS:], hat[SINKS:]))
                    if own.rotation is not None:
                        hat = own.rotation.turn(hat, np.arange(dump.tokens))
                    coded[kind.name] = hat
                for name in (kind.name for kind in work.kinds if kind is not PLAIN_V):
                    found = outputs(dump, layer, coded[name], coded["V"])
                    if found is not None:
                        for what, error in zip((name, "V", f"{name} and V"), found, strict=True):
                            outputs_of.setdefault((what, s), []).append(error)
        print(f"N = {size}: {dump.path.name} measured", file=sys.stderr, flush=True)
    return means(rows_of), means(outputs_of)


def means(found: dict[tuple[str, int], list[float]]) -> Matrix:
    """Over layers and texts."""
    return {key: float(np.mean(errors)) for key, errors in found.items()}


def measure_integers(work: Work, dumps: Sequence[Dump]) -> dict[tuple[str, str], tuple[float, list[float]]]:
    """Of the specs of K and V bytes of a vector, and errors of attention outputs (K alone, V alone, both): means."""
    layers = list(layers_of(dumps[0], train(work, work.sizes[0], PLAIN_K)))
    found = {}
    for specs in INTEGERS:
        errors, sizes = [], []
        for dump in dumps:
            for layer in layers:
                hats = []
                for kind, spec in zip((PLAIN_K, PLAIN_V), specs, strict=True):
                    rows = read(dump, layer, kind)
                    coded = kv.encode_array(rows[SINKS:], spec, stream=kind.stream)
                    sizes.append(coded.nbytes / coded.tokens / coded.heads)
                    hats.append(np.concatenate([rows[:SINKS], kv.decode_array(coded, dtype=np.float32)]))
                own = outputs(dump, layer, *hats)
                errors += [] if own is None else [own]
        if errors:
            found[specs] = float(np.mean(sizes)), [float(error) for error in np.mean(errors, axis=0)]
    return found


def enough(found: Matrix, limit: float, work: Work, size: int) -> list[tuple[str, list[str]]]:
    """Lines of the fewest atoms with which attention outputs of K and V err by at most a limit."""
    lines = []
    for name in sorted({name for name, _ in found if name.endswith(" and V")}):
        s = next((s for s in work.sparsities if found[name, s] <= limit), None)
        line = [f"more than {work.sparsities[-1]}", "", "", ""]
        if s is not None:
            size_of = SparseCodes(s, 6, True, size=size).row_bytes
            dim = train(work, size, PLAIN_K).dictionaries[0].dim
            line = [str(s), f"{found[name, s]:.3f}", str(size_of), f"{2 * dim / size_of:.1f}"]
        lines.append((f"{name}, N = {size}", line))
    return lines


def compare(work: Work, dump: Dump, size: int) -> Matrix:
    """Errors of rows by (kind and coder, s) on one dump; asserts their order."""
    sets = {kind.file: train(work, size, kind) for kind in work.kinds}
    coders = {"OMP": code_omp, "MP": code_mp, "greatest products": code_greatest}
    found: dict[tuple[str, int], list[float]] = {}
    for layer in layers_of(dump, sets["post"]):
        for kind in (kind for kind in work.kinds if kind.metric == "none"):
            own = sets[kind.file].find(layer, kind.stream)
            assert own is not None
            rows = read(dump, layer, kind)[SINKS:].reshape(-1, own.dim)
            found.setdefault((f"{kind.name}: 18-byte baseline", baseline.TAKEN), []).append(
                relative(rows, code_baseline(rows, own, 0))
            )
            for s in work.sparsities:
                for name, coder in coders.items():
                    found.setdefault((f"{kind.name}: {name}", s), []).append(relative(rows, coder(rows, own, s)))
    errors = means(found)
    for kind in (kind for kind in work.kinds if kind.metric == "none"):
        for s in work.sparsities:
            omp, mp, greatest = (errors[f"{kind.name}: {name}", s] for name in coders)
            assert omp < mp < greatest, f"{kind.name}, s = {s}: OMP {omp:.4f}, MP {mp:.4f}, greatest {greatest:.4f}"
    return errors


# -- tables ----------------------------------------------------------------------------------------------------------


def kinds_of(dump: Dump) -> tuple[Kind, ...]:
    """All that the dump tells enough for: how K was turned, and what queries there are."""
    kinds: tuple[Kind, ...] = KINDS
    if dump.queries(dump.layers[0]) is None:
        kinds = tuple(kind for kind in kinds if kind.metric == "none")
    try:
        find_rope(dump, dump.layers[0], None)
    except SpecError:
        kinds = tuple(kind for kind in kinds if not kind.unrotated)
    return kinds


def table(first: str, columns: Sequence[int | str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Markdown, a column for each sparsity."""
    names = [column if isinstance(column, str) else f"s = {column}" for column in columns]
    lines = [[first, *names], ["---"] * (len(columns) + 1), *([n, *cells] for n, cells in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cells(found: Matrix, name: str, sparsities: Sequence[int]) -> list[str]:
    """Figures of a line."""
    return [f"{found[name, s]:.3f}" if (name, s) in found else "" for s in sparsities]


def report(work: Work) -> str:
    """All tables, in Markdown."""
    sparsities = work.sparsities
    dumps = [open_dump(path) for path in work.texts]
    rows, attention, sizes, fewest = [], [], [], []
    integers = measure_integers(work, dumps)
    for size in work.sizes:
        found, outputs_found = measure(work, dumps, size)
        for kind in work.kinds:
            for bits in (8, 6):
                name = f"{kind.name}/c{bits}"
                rows.append((f"{kind.name}, N = {size}, {bits} bit", cells(found, name, sparsities)))
        names = sorted({name for name, _ in outputs_found})
        attention += [(f"{name}, N = {size}", cells(outputs_found, name, sparsities)) for name in names]
        if integers:
            fewest += enough(outputs_found, integers[PER_TOKEN][1][2], work, size)
        sizes.append((f"u16 + 8 bit, N = {size}", [str(SparseCodes(s).row_bytes) for s in sparsities]))
        small = [SparseCodes(s, 6, True, size=size) for s in sparsities]
        sizes.append((f"set + 6 bit, N = {size}", [str(codes.row_bytes) for codes in small]))
    compared = compare(work, dumps[0], work.sizes[0])
    shown = sorted({*sparsities, baseline.TAKEN})
    coders = [(name, cells(compared, name, shown)) for name in dict.fromkeys(name for name, _ in compared)]
    tokens = sum(d.tokens - SINKS for d in dumps)
    for dump in dumps:
        dump.close()
    read.cache_clear()
    trained = read_artefact(work.out / f"post-{work.sizes[0]}.kvdict").information
    total = sum(one["trained"] for one in trained["dumps"])
    about = (
        f"Trained on {total} tokens of {len(work.train)} texts, measured on {tokens} of {len(dumps)} others "
        f"({', '.join(path.stem for path in work.texts)}); layers {trained['options']['layers']}. "
        f"Means over layers and texts; {SINKS} sinks are not coded, there is no residual window."
    )
    beside = [
        (" · ".join(specs), [f"{size:.0f}", *(f"{error:.3f}" for error in errors)])
        for specs, (size, errors) in integers.items()
    ]
    return "\n\n".join(
        [
            about,
            "Relative error of rows, OMP, as coded:",
            table("", sparsities, rows),
            "Relative error of attention outputs, 6-bit coefficients:",
            table("coded", sparsities, attention),
            "Integer codecs on the same texts and layers, attention outputs:",
            table("K · V", ("bytes of a vector", "K alone", "V alone", "both"), beside),
            "The fewest atoms with which K and V together err by no more than INT4 with one scale a token "
            f"({' · '.join(PER_TOKEN)}), sets and 6-bit coefficients, bytes of a vector and how often 16-bit rows hold "
            "them:",
            table("coded", ("atoms", "error", "bytes", "ratio"), fewest),
            "Bytes of a vector, scale and all:",
            table("", sparsities, sizes),
            f"Coders over the same dictionaries (N = {work.sizes[0]}), {work.texts[0].stem}:",
            table("", shown, coders),
        ]
    )


def main() -> None:
    """Write the tables, or try it all on little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--train", "--test", "--out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--layers")
    parser.add_argument("--time", type=float, help="seconds for each dictionary file")
    parser.add_argument("--sizes", default="1024,2048,4096")
    parser.add_argument("--sparsities", default="4,6,8,12,16,24,32")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    if not asked.check and not (asked.train and asked.test and asked.out):
        parser.error("--train, --test and --out are needed, or --check")
    sizes, sparsities = (list(map(int, text.split(","))) for text in (asked.sizes, asked.sparsities))
    if asked.check:
        sizes, sparsities = [64], [2, 4, 6]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) if asked.check else asked.out
        out.mkdir(parents=True, exist_ok=True)
        dumps, texts = (sorted(d.glob("*.safetensors")) if d else [DUMP] for d in (asked.train, asked.test))
        if asked.check:
            dumps, texts = dumps[:2], texts[:1]
        with open_dump(texts[0]) as dump:
            kinds = kinds_of(dump)
        text = report(Work(dumps, texts, out, asked.layers, sizes, sparsities, asked.time, kinds))
    if asked.check:
        print(text)
        return
    begin, end = MARK.format(""), MARK.format("/")
    was = RESULTS.read_text()
    if begin not in was:
        was += f"\n## Codes over trained dictionaries\n\n{begin}\n{end}\n"
    before, rest = was.split(begin)
    RESULTS.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
