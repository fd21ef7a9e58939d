"""What `kvcodec info` prints of a .kvdict file. Imports neither typer nor rich."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcodec.cli.output import number, print_json, print_line, size
from kvcodec.cli.tables import print_table

if TYPE_CHECKING:
    from kvcodec.codecs.dictionary import Dictionary
    from kvcodec.dictionary.artefact import Artefact

_SHOWN = (1, 2, 4, 8, 16, 32)  # atoms of a vector


def is_kvdict(path: Path) -> bool:
    """Whether a file's content, not its name, says that it holds dictionaries. Raises OSError."""
    from kvcodec.layout import KVDICT_MAGIC

    if not path.is_file():  # a pipe would be waited for
        return False
    with open(path, "rb") as file:
        return file.read(len(KVDICT_MAGIC)) == KVDICT_MAGIC


def print_kvdict(path: Path, artefact: Artefact, *, json: bool) -> None:
    """A table of the dictionaries, or one JSON object."""
    own = artefact.dictionaries
    if json:
        rows = [_as_dict(one) for one in own.dictionaries]
        print_json({"kvdict": str(path), "hash": own.hash.hex(), "bytes": own.nbytes, "dictionaries": rows})
        return
    print_line(f"{path}: set {own.hash.hex()}, {len(own.dictionaries)} dictionaries, {size(own.nbytes)}")
    most = max((len(one.errors) for one in own.dictionaries), default=0)
    shown = [n for n in _SHOWN if n <= most]
    lines = [
        (_uses(one), str(one.size), str(one.dim), _traits(one), *(_error(one, n) for n in shown))
        for one in own.dictionaries
    ]  # fmt: skip
    columns = ("for", "atoms", "channels", "", *(f"error, {n}" for n in shown))
    print_table(columns, lines, title="Dictionaries; relative error of held-out vectors with so many atoms")


def _as_dict(one: Dictionary) -> dict[str, Any]:
    uses = [{"layer": layer, "stream": stream.name.lower()} for layer, stream in one.uses]
    return {
        "uses": uses, "atoms": one.size, "channels": one.dim, "transform": one.transform.name.lower(),
        "mean": one.has_mean, "metric": one.metric is not None, "errors": [float(error) for error in one.errors],
    }  # fmt: skip


def _uses(one: Dictionary) -> str:
    streams = dict.fromkeys(stream.name.lower() for _, stream in one.uses)
    return ", ".join(f"{s} {_ranges([layer for layer, t in one.uses if t.name.lower() == s])}" for s in streams)


def _ranges(layers: list[int]) -> str:
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][1] == layer - 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _traits(one: Dictionary) -> str:
    traits = (
        "before rotation" if one.transform else "",
        "mean" if one.has_mean else "",
        "metric" if one.metric is not None else "",
    )
    return ", ".join(trait for trait in traits if trait)


def _error(one: Dictionary, atoms: int) -> str:
    return number(float(one.errors[atoms - 1]), ".4f") if len(one.errors) >= atoms else "-"
