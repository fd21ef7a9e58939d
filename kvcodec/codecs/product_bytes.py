"""Product codes as bytes, in a .kvdict file and in a log alike (formats/product.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.dictionary import MAX_DIM
from kvcodec.codecs.product import Product
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import MAX_COMPONENTS, Analysis
from kvcodec.codecs.uses import count_pairs, uses_from_bytes, uses_to_bytes
from kvcodec.errors import ShapeError, UnsupportedVersion
from kvcodec.layout import DICTIONARY_USE, PRODUCT
from kvcodec.product_spec import MAX_GROUPS
from kvcodec.shaped_spec import BUDGET_STEPS


def product_to_bytes(own: Product) -> bytes:
    """A head, and the arrays behind it in the order in which readers want them aligned: wide numbers first."""
    head = np.zeros((), PRODUCT)
    head["components"], head["head_dim"], head["groups"], head["uses"] = *own.basis.shape, own.groups, len(own.uses)
    head["pairs"], head["budget"] = count_pairs(own.rotation), round(own.budget * BUDGET_STEPS)
    steps = np.zeros(0, np.uint64) if own.rotation is None else own.rotation.steps
    analysis = own.analysis
    parts = [
        (steps, "<u8"), (own.mean, "<f4"), (analysis.rows, "<f4"), (analysis.units, "<f4"), (analysis.spread, "<f4"),
        (own.gains, "<u2"), (own.shapes, "<u2"), (own.ends, "<u2"), (own.basis, "<i2"), (own.books, "i1"),
    ]  # fmt: skip
    return b"".join(
        [head.tobytes(), uses_to_bytes(own.uses), *(np.ascontiguousarray(x).astype(t).tobytes() for x, t in parts)]
    )


def product_from_bytes(data: NDArray[np.uint8]) -> Product:
    """The product codes of all these bytes. Raises ShapeError, SpecError, UnsupportedVersion for what is none."""
    if len(data) < PRODUCT.itemsize:
        raise ShapeError(f"product codes in {len(data)} bytes")
    head = data[: PRODUCT.itemsize].view(PRODUCT)[0]
    if any(head["reserved"].tobytes()):
        raise UnsupportedVersion("a reserved field of product codes is set")
    components, dim, groups, uses, pairs = (
        int(head[name]) for name in ("components", "head_dim", "groups", "uses", "pairs")
    )
    if not (1 <= components <= MAX_COMPONENTS and 1 <= dim <= MAX_DIM and 1 <= groups <= MAX_GROUPS and uses):
        raise ShapeError(f"product codes of {components} components of {dim} channels in {groups} groups")
    shapes: list[tuple[Any, tuple[int, ...]]] = [
        ("u1", (uses * DICTIONARY_USE.itemsize,)), ("<u8", (pairs,)), ("<f4", (dim,)), ("<f4", (components + 1, dim)),
        ("<f4", (components,)), ("<f4", (components,)), ("<u2", (256,)), ("<u2", (16,)), ("<u2", (groups,)),
        ("<i2", (components, dim)), ("i1", (components, 256)),
    ]  # fmt: skip
    sizes = [np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in shapes]
    if len(data) != PRODUCT.itemsize + sum(sizes):
        raise ShapeError(f"product codes in {len(data)} bytes, want {PRODUCT.itemsize + sum(sizes)}")
    parts = np.split(data[PRODUCT.itemsize :], np.cumsum(sizes)[:-1])
    used, steps, mean, rows, units, spread, gains, levels, ends, basis, books = (
        part.copy().view(kind).reshape(shape) for part, (kind, shape) in zip(parts, shapes, strict=True)
    )
    if not all(np.isfinite(part).all() for part in (rows, units, spread)):
        raise ShapeError("analysis: want finite numbers")
    return Product(
        basis, books, ends, gains, levels, uses_from_bytes(used), mean, Analysis(rows, units, spread),
        Rotation(steps) if pairs else None, int(head["budget"]) / BUDGET_STEPS,
    )  # fmt: skip
