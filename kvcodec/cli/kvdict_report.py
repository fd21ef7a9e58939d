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
    from kvcodec.codecs.trellis import Trellis
    from kvcodec.dictionary.artefact import Artefact

_SHOWN = (1, 2, 4, 8, 16, 32)  # atoms of a vector
_ANY = 1e300
_SHAPED_COLUMNS = ("components", "channels", "", "error")


def is_kvdict(path: Path) -> bool:
    """Whether a file's content, not its name, says that it holds dictionaries. Raises OSError."""
    from kvcodec.layout import KVDICT_MAGIC

    if not path.is_file():  # a pipe would be waited for
        return False
    with open(path, "rb") as file:
        return file.read(len(KVDICT_MAGIC)) == KVDICT_MAGIC


def print_kvdict(path: Path, artefact: Artefact, *, json: bool) -> None:
    """Tables of the dictionaries, of the product codes and of the trellis codes, or one JSON object."""
    own = artefact.dictionaries
    products = [_product_as_dict(*each) for each in zip(own.products, _errors(artefact, "products"), strict=True)]
    trellises = [_trellis_as_dict(*each) for each in zip(own.trellises, _errors(artefact, "trellises"), strict=True)]
    if json:
        rows = [_as_dict(one) for one in own.dictionaries]
        print_json(
            {
                "kvdict": str(path),
                "hash": own.hash.hex(),
                "bytes": own.nbytes,
                "dictionaries": rows,
                "products": products,
                "trellises": trellises,
            }
        )
        return
    counts = [f"{len(own.dictionaries)} dictionaries"] if own.dictionaries else []
    counts += [f"{len(own.products)} product codes"] if own.products else []
    counts += [f"{len(own.trellises)} trellis codes"] if own.trellises else []
    print_line(f"{path}: set {own.hash.hex()}, {', '.join(counts)}, {size(own.nbytes)}")
    if own.dictionaries:
        _print_dictionaries(own.dictionaries)
    if own.products:
        _print_products(own.products, products)
    if own.trellises:
        _print_trellises(own.trellises, trellises)


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
        (_uses(one), str(own["bytes"]), str(one.groups), *_shaped_cells(own))
        for one, own in zip(products, told, strict=True)
    ]  # fmt: skip
    columns = ("for", "bytes", "groups", *_SHAPED_COLUMNS)
    print_table(columns, lines, title=_shaped_title("Product codes", told))


def _print_trellises(trellises: Sequence[Trellis], told: Sequence[dict[str, Any]]) -> None:
    lines = [
        (_uses(one), str(own["bytes"]), str(one.bits), str(one.window), *_shaped_cells(own))
        for one, own in zip(trellises, told, strict=True)
    ]  # fmt: skip
    columns = ("for", "bytes", "bits", "window", *_SHAPED_COLUMNS)
    print_table(columns, lines, title=_shaped_title("Trellis codes", told))


def _shaped_title(kind: str, told: Sequence[dict[str, Any]]) -> str:
    budgets = sorted({one["budget"] for one in told if one["budget"]})
    trained = f", trained for {', '.join(f'B{budget:g}' for budget in budgets)}" if budgets else ""
    return f"{kind}{trained}; bytes of a vector, relative error of held-out vectors"


def _shaped_cells(own: dict[str, Any]) -> tuple[str, ...]:
    error = "-" if own["error"] is None else number(own["error"], ".4f")
    special = "before rotation" * own["before_rotation"] + "from k" * own.get("predicted", False)
    return str(own["components"]), str(own["channels"]), special, error


def _product_as_dict(one: Product, error: float | None) -> dict[str, Any]:
    return _shaped_as_dict(one, error) | {"groups": one.groups, "predicted": one.prediction is not None}


def _trellis_as_dict(one: Trellis, error: float | None) -> dict[str, Any]:
    return _shaped_as_dict(one, error) | {"bits": one.bits, "window": one.window}


def _shaped_as_dict(one: Product | Trellis, error: float | None) -> dict[str, Any]:
    uses = [{"layer": layer, "stream": stream.name.lower()} for layer, stream in one.uses]
    return {
        "uses": uses, "bytes": one.code_bytes + 2, "components": len(one.basis), "channels": one.dim,
        "before_rotation": one.rotation is not None, "budget": one.budget or None, "error": error,
    }  # fmt: skip


def _errors(artefact: Artefact, field: str) -> list[float | None]:
    """Held-out errors of products, or trellises, as far as the information tells; it may say anything."""
    count, told = len(getattr(artefact.dictionaries, field)), artefact.information.get(field)
    entries = told if isinstance(told, list) and len(told) == count else [None] * count
    found = [entry.get("error") if isinstance(entry, dict) else None for entry in entries]
    return [float(error) if isinstance(error, int | float) and 0 <= error < _ANY else None for error in found]


def _as_dict(one: Dictionary) -> dict[str, Any]:
    uses = [{"layer": layer, "stream": stream.name.lower()} for layer, stream in one.uses]
    return {
        "uses": uses, "atoms": one.size, "channels": one.dim, "transform": one.transform.name.lower(),
        "mean": one.has_mean, "metric": one.metric is not None, "errors": [float(error) for error in one.errors],
    }  # fmt: skip


def _uses(one: Dictionary | Product | Trellis) -> str:
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
