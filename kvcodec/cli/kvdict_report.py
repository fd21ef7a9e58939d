"""What `kvcodec info` prints of a .kvdict file. Imports neither typer nor rich."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcodec.cli.output import number, print_json, print_line, size
from kvcodec.cli.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcodec.codecs.dictionary import Dictionary
    from kvcodec.codecs.product import Product
    from kvcodec.dictionary.artefact import Artefact

_SHOWN = (1, 2, 4, 8, 16, 32)  # atoms of a vector
_ANY = 1e300


def is_kvdict(path: Path) -> bool:
    """Whether a file's content, not its name, says that it holds dictionaries. Raises OSError."""
    from kvcodec.layout import KVDICT_MAGIC

    if not path.is_file():  # a pipe would be waited for
        return False
    with open(path, "rb") as file:
        return file.read(len(KVDICT_MAGIC)) == KVDICT_MAGIC


def print_kvdict(path: Path, artefact: Artefact, *, json: bool) -> None:
    """Tables of the dictionaries and of the product codes, or one JSON object."""
    own = artefact.dictionaries
    products = [_product_as_dict(one, error) for one, error in zip(own.products, _errors(artefact), strict=True)]
    if json:
        rows = [_as_dict(one) for one in own.dictionaries]
        print_json(
            {
                "kvdict": str(path),
                "hash": own.hash.hex(),
                "bytes": own.nbytes,
                "dictionaries": rows,
                "products": products,
            }
        )
        return
    counts = [f"{len(own.dictionaries)} dictionaries"] if own.dictionaries else []
    counts += [f"{len(own.products)} product codes"] if own.products else []
    print_line(f"{path}: set {own.hash.hex()}, {', '.join(counts)}, {size(own.nbytes)}")
    if own.dictionaries:
        _print_dictionaries(own.dictionaries)
    if own.products:
        _print_products(own.products, products)


def _print_dictionaries(dictionaries: Sequence[Dictionary]) -> None:
    most = max((len(one.errors) for one in dictionaries), default=0)
    shown = [n for n in _SHOWN if n <= most]
    lines = [
        (_uses(one), str(one.size), str(one.dim), _traits(one), *(_error(one, n) for n in shown))
        for one in dictionaries
    ]  # fmt: skip
    columns = ("for", "atoms", "channels", "", *(f"error, {n}" for n in shown))
    print_table(columns, lines, title="Dictionaries; relative error of held-out vectors with so many atoms")


def _print_products(products: Sequence[Product], told: Sequence[dict[str, Any]]) -> None:
    lines = [
        (
            _uses(one), str(own["bytes"]), str(one.groups), str(own["components"]), str(one.dim),
            "before rotation" * own["before_rotation"],
            "-" if own["error"] is None else number(own["error"], ".4f"),
        )
        for one, own in zip(products, told, strict=True)
    ]  # fmt: skip
    columns = ("for", "bytes", "groups", "components", "channels", "", "error")
    print_table(columns, lines, title="Product codes; bytes of a vector, relative error of held-out vectors")


def _product_as_dict(one: Product, error: float | None) -> dict[str, Any]:
    uses = [{"layer": layer, "stream": stream.name.lower()} for layer, stream in one.uses]
    return {
        "uses": uses, "bytes": one.groups + 2, "groups": one.groups, "components": len(one.basis), "channels": one.dim,
        "before_rotation": one.rotation is not None, "budget": one.budget or None, "error": error,
    }  # fmt: skip


def _errors(artefact: Artefact) -> list[float | None]:
    """Held-out error of each of the product codes, as far as the information tells; it may say anything."""
    count, told = len(artefact.dictionaries.products), artefact.information.get("products")
    entries = told if isinstance(told, list) and len(told) == count else [None] * count
    found = [entry.get("error") if isinstance(entry, dict) else None for entry in entries]
    return [float(error) if isinstance(error, int | float) and 0 <= error < _ANY else None for error in found]


def _as_dict(one: Dictionary) -> dict[str, Any]:
    uses = [{"layer": layer, "stream": stream.name.lower()} for layer, stream in one.uses]
    return {
        "uses": uses, "atoms": one.size, "channels": one.dim, "transform": one.transform.name.lower(),
        "mean": one.has_mean, "metric": one.metric is not None, "errors": [float(error) for error in one.errors],
    }  # fmt: skip


def _uses(one: Dictionary | Product) -> str:
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
